"""What ``docker://`` references, manifests and files of credentials say. Pure.

The grammar of references is that of github.com/distribution/reference; a name without a registry is Docker Hub's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEME = "docker://"
MAX_MANIFEST_BYTES = 4 << 20
"""As Skopeo and registries have it."""
_MAX_REFERENCE_CHARS = 512
_MAX_REPOSITORY_CHARS = 255
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HUB = "docker.io"
_HUB_NAMES = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""``uname -m`` -> as images call it, where that is another name."""
_LARGEST_IMAGE = 1 << 50


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image in a registry: by a tag or by a digest."""

    registry: str
    """``HOST`` or ``HOST:PORT``."""
    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        """With the scheme, as Skopeo and Apptainer read it."""
        last = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{SCHEME}{self.registry}/{self.repository}{last}"

    def at_digest(self, digest: str) -> str:
        """The same repository's manifest of this digest."""
        return f"{SCHEME}{self.registry}/{self.repository}@{digest}"


def parse_reference(text: str) -> ImageReference:
    """Reads ``docker://[REGISTRY/]NAME[:TAG|@DIGEST]``. Raises ValueError, with what is wrong."""
    rest = text.removeprefix(SCHEME)
    if len(rest) > _MAX_REFERENCE_CHARS:
        raise ValueError(f"is longer than {_MAX_REFERENCE_CHARS} characters")
    first, slash, after = rest.partition("/")
    registry = _HUB
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, rest = first.lower(), after
        if not is_registry(registry):
            raise ValueError(f"{first!r} is no registry: a name or address, perhaps with a port")
    found = _REFERENCE.fullmatch(rest)
    if found is None or len(found["repository"]) > _MAX_REPOSITORY_CHARS:
        raise ValueError(f"{rest!r} is no name of an image, which consists of small letters, digits, '.', '_' and '-'")
    if found["tag"] and found["digest"]:
        raise ValueError("has a tag and a digest, of which one is enough")
    registry, name = _HUB if registry in _HUB_NAMES else registry, found["repository"]
    repository = f"library/{name}" if registry == _HUB and "/" not in name else name
    digest = found["digest"] or ""
    return ImageReference(registry, repository, "" if digest else found["tag"] or "latest", digest)


def is_registry(text: str) -> bool:
    """Whether it is ``HOST`` or ``HOST:PORT``."""
    return _REGISTRY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ResolvedImage:
    """The manifest of one platform, as a registry gave it."""

    digest: str
    architecture: str
    """As images call it: ``amd64``."""
    size: int
    """Bytes of its layers, compressed."""

    @property
    def source(self) -> str:
        """Its name in the index of the store: the same for all who may read it, and no path or URL of a job."""
        return f"image {self.digest} {self.architecture}"


def image_architecture(machine: str) -> str:
    """As images call what ``uname -m`` says."""
    return _ARCHITECTURES.get(machine, machine)


def checked_manifest(manifest: bytes, expected: str) -> str:
    """The digest of a manifest, which is the expected one where there is any. Raises ValueError where it is not."""
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    if expected not in ("", digest):
        raise ValueError("comes with another digest than was asked for")
    return digest


def platform_digest(manifest: bytes, architecture: str) -> str | None:
    """The digest of the manifest for Linux on this architecture; None: this one is no list of platforms.

    Raises ValueError, with what is wrong.
    """
    content = _object(manifest)
    if "manifests" not in content:
        return None
    rows = [row for row in _list(content["manifests"]) if isinstance(row.get("platform"), dict)]
    found: dict[str, Any] = {}
    for row in rows:
        if row["platform"].get("os") == "linux":
            found.setdefault(str(row["platform"].get("architecture"))[:20], row.get("digest"))
    digest = found.get(architecture)
    if digest is None:
        others = ", ".join(sorted(found)[:5]) or "nothing"
        raise ValueError(f"has no image for Linux on {architecture}, only for {others}")
    return checked_digest(digest)


def checked_digest(value: Any) -> str:
    """A digest. Raises ValueError."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("has a digest that is no SHA-256")
    return value


def layers_size(manifest: bytes) -> int:
    """Bytes of the layers of one platform's manifest. Raises ValueError, with what is wrong."""
    content = _object(manifest)
    if content.get("schemaVersion") != 2 or "layers" not in content:
        raise ValueError("has no manifest of version 2: it was pushed by a very old Docker, or is no container image")
    total = 0
    for row in _list(content["layers"]):
        size = row.get("size")
        if type(size) is not int or not 0 <= size <= _LARGEST_IMAGE:
            raise ValueError("has a layer of a size that none has")
        total += size
    return total


def check_architecture(config: bytes, architecture: str) -> None:
    """Raises ValueError where the configuration of an image names another architecture."""
    found = _object(config).get("architecture")
    if found not in (None, "", architecture):
        raise ValueError(f"is for {str(found)[:20]}, and the site's machines are {architecture}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What files of credentials have for a registry."""

    auths: Mapping[str, Any]
    """As in the files; empty: nothing."""
    needs_helper: bool = False
    """A file leaves it to a program (``credsStore``, ``credHelpers``)."""


def registry_credentials(files: Sequence[bytes], registry: str) -> Credentials:
    """Of the first file that has any for this registry (``config.json`` of Docker, and what is like it).

    Raises ValueError where a file is none.
    """
    helper = False
    for number, text in enumerate(files):
        try:
            content = _object(text)
            rows = content.get("auths")
            found = {
                key: {name: row[name] for name in ("auth", "identitytoken") if isinstance(row.get(name), str)}
                for key, row in (rows if isinstance(rows, dict) else {}).items()
                if _registry_of_key(key) == registry and isinstance(row, dict)
            }
        except ValueError as error:
            raise ValueError(f"file {number + 1} of credentials {error}") from None
        if found := {key: row for key, row in found.items() if row}:
            return Credentials(found)
        helpers = content.get("credHelpers")
        helper = helper or bool(content.get("credsStore")) or (isinstance(helpers, dict) and registry in helpers)
    return Credentials({}, helper)


def _registry_of_key(key: str) -> str:
    host = key.partition("://")[2] or key
    host = host.partition("/")[0].lower()
    return _HUB if host in _HUB_NAMES else host


def _object(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(content, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - as any other fault of the text
    return content


def _list(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError("has no list where one must be")
    return value
