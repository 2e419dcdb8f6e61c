"""Images for a node's containerd, as one archive to import: https://github.com/opencontainers/image-spec.

A layer may be a folder of this machine, such as the boxes' root file system: the archive has a mark in its place, and
node.sh shows the folder where containerd would have unpacked the layer. So nothing is packed, copied or unpacked.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burstd.share import share_path

PAUSE = "localhost/pause:1"
_OCI = "application/vnd.oci.image"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Layer:
    """``folder``, or the programs of ``files`` (by their path without the first slash)."""

    name: str
    folder: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def tar(self) -> bytes:
        """As it is in the archive."""
        return _tar({f".burstd-layer-{self.name}": b""} if self.folder else self.files)


def keeper_library(folder: Path) -> bytes:
    """The library that an image for restricted pods has, of the source in config/images/Containerfile; needs gcc."""
    text = share_path("config", "images", "Containerfile").read_text(encoding="utf-8")
    source, library = folder / "keeper.c", folder / "keeper.so"
    source.write_text("\n".join(re.findall(r"'(int \w*chown\(.*?\})'", text)), encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library.read_bytes()


@dataclass(frozen=True, slots=True)
class Image:
    """``name`` is without a tag; images with the same layers differ by their ``labels``."""

    name: str
    tag: str
    layers: Sequence[Layer]
    command: Sequence[str] = ("/bin/sh",)
    labels: Mapping[str, str] = field(default_factory=dict)

    def _config(self) -> bytes:
        diffs = [_digest(layer.tar()) for layer in self.layers]
        return _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": list(self.command), "Env": [f"PATH={_PATH}"], "Labels": dict(self.labels)},
                "rootfs": {"type": "layers", "diff_ids": diffs},
            }
        )

    def _manifest(self) -> bytes:
        layers = [_descriptor(layer.tar(), "layer.v1.tar") for layer in self.layers]
        config = _descriptor(self._config(), "config.v1+json")
        return _json({"schemaVersion": 2, "mediaType": f"{_OCI}.manifest.v1+json", "config": config, "layers": layers})

    def blobs(self) -> list[bytes]:
        """All that it is made of."""
        return [*(layer.tar() for layer in self.layers), self._config(), self._manifest()]

    @property
    def reference(self) -> str:
        """Its name with the digest, as an ImageStream has it."""
        return f"{self.name}@{_digest(self._manifest())}"

    def entries(self) -> list[dict[str, Any]]:
        """Of the archive's index: by tag and by digest."""
        names = (f"{self.name}:{self.tag}", self.reference)
        return [_descriptor(self._manifest(), "manifest.v1+json", name) for name in names]


def archive(images: Iterable[Image]) -> bytes:
    """A tar that ``ctr images import`` takes."""
    images = list(images)
    index = {"schemaVersion": 2, "manifests": [entry for image in images for entry in image.entries()]}
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": blob for image in images for blob in image.blobs()}
    return _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs})


def _descriptor(content: bytes, kind: str, name: str = "") -> dict[str, Any]:
    found = {"mediaType": f"{_OCI}.{kind}", "digest": _digest(content), "size": len(content)}
    return {**found, "annotations": {"io.containerd.image.name": name}} if name else found


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
