"""A registry of container images (OCI distribution), with faults to order. Needs nothing but Python: it runs in boxes.

``python3 image_registry.py FOLDER PORT``: serves what ``add_image`` has put into FOLDER, at 127.0.0.1. Each repository
is a folder ``NAME`` with ``index.json`` (name or digest of a manifest -> media type), its blobs by digest, ``readers``
(lines of ``USER:PASSWORD``; none: everybody may read) and ``fault``, one of FAULTS. Requests go to FOLDER/requests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
FAULTS = ("", "slow", "endless", "wrong", "redirect", "unavailable")
"""Of layers: a byte now and then, no end, other bytes, from another address (no fault at all), 503."""

_GZIP = b"\x1f\x8b"


def add_image(
    folder: Path, name: str, root: Path, *, readers: Sequence[str] = (), architecture: str = "amd64", size: int = 0
) -> str:
    """An image of one layer, as ``NAME:1`` and, in an index of platforms, as ``NAME:many``; the manifest's digest.

    ``size``: what the manifest says of the layer, in place of the truth.
    """
    repository = folder / name
    repository.mkdir(parents=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, arcname=".", filter=_as_root)
    layer = gzip.compress(packed.getvalue(), mtime=0)
    config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    config["rootfs"] = {"type": "layers", "diff_ids": [_digest(packed.getvalue())]}
    config_row = _descriptor(repository, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    layer_row = _descriptor(repository, layer, "application/vnd.oci.image.layer.v1.tar+gzip")
    if size:
        layer_row["size"] = size
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_row, "layers": [layer_row]}
    row = _descriptor(repository, json.dumps(manifest).encode(), MANIFEST)
    other = {**row, "digest": _digest(b"of another platform"), "platform": {"architecture": "s390x", "os": "linux"}}
    rows = [other, {**row, "platform": {"architecture": architecture, "os": "linux"}}]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}
    index_row = _descriptor(repository, json.dumps(index).encode(), INDEX)
    digest = str(row["digest"])
    names = {"1": [digest, MANIFEST], digest: [digest, MANIFEST], "many": [index_row["digest"], INDEX]}
    names[str(index_row["digest"])] = names["many"]
    (repository / "index.json").write_text(json.dumps(names), encoding="ascii")
    (repository / "readers").write_text("".join(f"{reader}\n" for reader in readers), encoding="ascii")
    order_fault(folder, name, "")
    return digest


def order_fault(folder: Path, name: str, fault: str) -> None:
    """From now on the layers of a repository come so."""
    assert fault in FAULTS
    (folder / name / "fault").write_text(fault, encoding="ascii")


def _as_root(row: tarfile.TarInfo) -> tarfile.TarInfo:
    row.uid = row.gid = 0
    row.uname = row.gname = "root"
    return row


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(repository: Path, content: bytes, media_type: str) -> dict[str, object]:
    digest = _digest(content)
    (repository / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RegistryServer

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def log_message(self, *_args: object) -> None:
        """Requests are noted in the folder."""

    def _respond(self) -> None:
        url = urlsplit(self.path)
        with self.server.lock, (self.server.folder / "requests").open("a", encoding="utf-8") as noted:
            noted.write(f"{self.command} {url.path}\n")
        if url.path == "/token":
            self._give_token(parse_qs(url.query).get("scope", [""])[0])
            return
        kind, _, what = url.path.removeprefix("/v2/").rpartition("/")
        name, _, kind = kind.rpartition("/")
        authorization = self.headers.get("Authorization", "")
        if url.path == "/v2/" or not authorization.startswith("Bearer "):
            address = f"http://127.0.0.1:{self.server.server_port}"
            challenge = f'Bearer realm="{address}/token",service="lab",scope="repository:{name}:pull"'
            self._send(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', {"WWW-Authenticate": challenge})
        elif url.path.startswith("/elsewhere/"):
            self._send(200, (self.server.folder / url.path.removeprefix("/elsewhere/")).read_bytes())
        elif authorization != f"Bearer {name}":
            self._send(403, b'{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}')
        elif kind == "manifests":
            self._give_manifest(self.server.folder / name, what)
        else:
            self._give_blob(self.server.folder / name, what)

    def _give_token(self, scope: str) -> None:
        name = scope.split(":")[1] if scope.count(":") == 2 else ""
        readers = self.server.folder / name / "readers"
        allowed = readers.read_text(encoding="ascii").split() if name and readers.exists() else []
        given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        may = bool(name) and (not allowed or given in allowed)
        self._send(200, json.dumps({"token": name if may else "nothing"}).encode())

    def _give_manifest(self, repository: Path, what: str) -> None:
        index = repository / "index.json"
        found = json.loads(index.read_text(encoding="ascii")).get(what) if index.exists() else None
        if found is None:
            self._send(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
            return
        digest, media_type = found
        self._send(
            200, (repository / digest).read_bytes(), {"Content-Type": media_type, "Docker-Content-Digest": digest}
        )

    def _give_blob(self, repository: Path, what: str) -> None:
        blob = repository / what
        if not blob.exists():
            self._send(404, b'{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}')
            return
        is_layer = blob.read_bytes().startswith(_GZIP)
        fault = (repository / "fault").read_text(encoding="ascii") if is_layer else ""
        if fault == "unavailable":
            self._send(503, b"")
        elif fault == "wrong":
            self._send(200, bytes(len(blob.read_bytes())))
        elif fault == "redirect":
            self._send(307, bytes(1 << 16), {"Location": f"/elsewhere/{blob.relative_to(self.server.folder)}"})
        elif fault in ("slow", "endless"):
            self._give_without_end(b"x" if fault == "slow" else os.urandom(1 << 20), 0.2 if fault == "slow" else 0.0)
        else:
            self._send(200, blob.read_bytes())

    def _give_without_end(self, part: bytes, pause_s: float) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        try:
            while not self.server.ended.wait(pause_s):
                self.wfile.write(part)
                self.wfile.flush()
        except OSError:
            return  # whoever asked has gone

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


class RegistryServer(ThreadingHTTPServer):
    """Serves a folder, at 127.0.0.1."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder = folder
        self.lock = threading.Lock()
        self.ended = threading.Event()


if __name__ == "__main__":
    RegistryServer(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
