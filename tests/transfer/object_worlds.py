"""Servers of objects with a bucket of a user's own, and users with homes and configurations of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from burstd.transfer.privsep.client import Account, UserWorker, user_worker_for
from burstd.transfer.privsep.object_workers import ObjectWorker, object_worker_for
from tests.lab.s3_server import S3Server
from tests.lab.swift_server import SwiftServer

UID = 61007


@dataclass
class ObjectServerWorld:
    """One kind of server, with a bucket of a user's own."""

    kind: str
    address: tuple[str, int]
    put: Callable[[str, bytes], object]
    get: Callable[[str], tuple[bytes, Mapping[str, str]]]
    """Content, and what was written to it beside (names in lower case)."""
    names: Callable[[], set[str]]
    """All objects, and what is left of those that were not finished."""
    secret: str
    files: Callable[[int], Mapping[str, str]]
    """The user's configuration, by path in his home, for a server at this port."""

    @property
    def root(self) -> str:
        return f"{self.kind}://mine"

    @contextmanager
    def user(self, files: Mapping[str, str] | None = None, port: int = 0) -> Iterator[Account]:
        """One with a home of his own and these files in it."""
        home = Path(tempfile.mkdtemp(prefix="burst-test-"))
        home.chmod(0o755)
        try:
            for name, text in (self.files(port or self.address[1]) if files is None else files).items():
                file = home / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
                file.chmod(0o600)
            for path in (home, *home.rglob("*")):
                os.chown(path, UID, UID)
            yield Account("someone", UID, UID, (UID,), str(home))
        finally:
            shutil.rmtree(home)

    @contextmanager
    def object_worker(self, files: Mapping[str, str] | None = None, port: int = 0) -> Iterator[ObjectWorker]:
        with self.user(files, port) as who, object_worker_for(who, self.kind, loopback=True) as worker:
            yield worker


def s3_world(server: S3Server) -> ObjectServerWorld:
    server.make_bucket("mine")
    server.make_bucket("other")
    server.client().put_object(Bucket="other", Key="theirs", Body=b"secret")
    key = server.keys["mine"]
    client = server.client(key)
    place = urlsplit(server.endpoint)

    def get(name: str) -> tuple[bytes, Mapping[str, str]]:
        found = client.get_object(Bucket="mine", Key=name)
        return found["Body"].read(), found["Metadata"]

    def keys() -> set[str]:
        uploads = client.list_multipart_uploads(Bucket="mine").get("Uploads", ())
        listed = client.list_objects_v2(Bucket="mine").get("Contents", ())
        return {row["Key"] for row in listed} | {f"unfinished {row['Key']}" for row in uploads}

    def files(port: int) -> Mapping[str, str]:
        config = f"[default]\nregion = nowhere\n[profile burst]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:{port}\n"
        keys = f"[burst]\naws_access_key_id = {key.access_key}\naws_secret_access_key = {key.secret_key}\n"
        return {".aws/config": config, ".aws/credentials": keys}

    return ObjectServerWorld(
        "s3", (str(place.hostname), int(place.port or 80)),
        lambda name, body: client.put_object(Bucket="mine", Key=name, Body=body), get, keys, key.secret_key, files,
    )  # fmt: skip


def swift_world(server: SwiftServer) -> ObjectServerWorld:
    client = httpx.Client(headers={"X-Auth-Token": server.token()}, trust_env=False, timeout=60)
    base = server.storage_url
    client.put(f"{base}/mine").raise_for_status()
    place = urlsplit(base)

    def get(name: str) -> tuple[bytes, Mapping[str, str]]:
        found = client.get(f"{base}/mine/{quote(name)}").raise_for_status()
        return found.content, {n.removeprefix("x-object-meta-"): v for n, v in found.headers.items()}

    def keys() -> set[str]:
        rest = client.get(f"{base}/mine_segments", params={"format": "json"})
        parts = {f"unfinished {row['name']}" for row in rest.json()} if rest.status_code == 200 else set()
        wanted = {f"unfinished {row['name'].lstrip('/').partition('/')[2]}" for row in _slo_parts()}
        listed = client.get(f"{base}/mine", params={"format": "json"}).json()
        return {row["name"] for row in listed} | (parts - wanted)

    def _slo_parts() -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for row in client.get(f"{base}/mine", params={"format": "json"}).json():
            about = client.get(f"{base}/mine/{quote(row['name'])}", params={"multipart-manifest": "get"})
            found += about.json() if about.headers.get("x-static-large-object") else []
        return found

    def files(port: int) -> Mapping[str, str]:
        text = f"""clouds:
  other: {{auth_type: password, auth: {{auth_url: "http://127.0.0.1:1/v3"}}}}
  burst:
    auth_type: v1password
    auth: {{auth_url: "{server.auth_url}", username: "{server.user}", password: "{server.key}"}}
    object_store_endpoint_override: "http://127.0.0.1:{port}{place.path}"
"""
        return {".config/openstack/clouds.yaml": text}

    return ObjectServerWorld(
        "swift", (str(place.hostname), int(place.port or 80)),
        lambda name, body: client.put(f"{base}/mine/{quote(name)}", content=body).raise_for_status(),
        get, keys, server.key, files,
    )  # fmt: skip


@contextmanager
def file_worker_of(who: Account) -> Iterator[tuple[UserWorker, Path]]:
    """A hand for files, and a folder of the user's."""
    folder = Path(who.home) / "work"
    folder.mkdir()
    os.chown(folder, who.uid, who.gid)
    with user_worker_for(who) as worker:
        yield worker, folder
