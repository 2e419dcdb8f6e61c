"""Real servers as worlds of the stagers' contract."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from burstd.domain.plugins.stager import Stager
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.testing.store_world import CLUSTER, FaultyProxy, ProxiedStoreWorld, StoreWorld
from staging.objects.s3 import S3Settings, S3Stager
from staging.objects.swift import SwiftSettings, SwiftStager
from staging.shared import SharedSettings, SharedStager
from staging.ssh.stager import SshSettings, SshStager
from tests.lab.s3_server import S3Server
from tests.lab.ssh_store import DATA, SshStore
from tests.lab.swift_server import SwiftServer


@dataclass
class SharedWorld(StoreWorld):
    """A folder."""

    path: Path

    def stager(self, cluster: str) -> Stager:
        return SharedStager("disk", cluster, SharedSettings(path=PurePosixPath(self.path)))

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        missing = SharedSettings(path=PurePosixPath(self.path / "unmounted"))
        return {"no folder": (SharedStager("disk", CLUSTER, missing), "")}

    def begin_put(self, key: str) -> bool:
        # Entered and never left, as where the process is killed.
        writing = SharedStager("disk", CLUSTER, SharedSettings(path=PurePosixPath(self.path)))._folder.open_for_writing(
            key
        )
        self._held = writing.__enter__()
        self._writing = writing
        return True


@dataclass
class SshWorld(ProxiedStoreWorld):
    """A storage node in a box. Used within its network."""

    node: SshStore
    folder: Path
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        self.address = (self.node.address, self.node.port)

    def stager(self, cluster: str, **changes: Any) -> Stager:
        settings = {
            "host": self.node.address,
            "user": self.node.user,
            "key_file": self.node.key,
            "node_key_file": self.node.node_key,
            "known_hosts_file": self.node.known_hosts,
            "path": DATA,
        }
        return SshStager("node", cluster, SshSettings.model_validate(settings | changes))

    def stager_through(self, proxy: FaultyProxy) -> Stager:
        known = self.folder / f"known-{proxy.port}"
        lines = self.node.known_hosts.read_text(encoding="ascii").splitlines()
        known.write_text("".join(f"[127.0.0.1]:{proxy.port} {entry.split(' ', 1)[1]}\n" for entry in lines))
        return self.stager(CLUSTER, host="127.0.0.1", port=proxy.port, known_hosts_file=known, timeout_s=self.timeout_s)

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        stranger, other = self.folder / f"stranger-{secrets.token_hex(4)}", self.folder / "other_hosts"
        ensure_ssh_key(stranger)
        key = ensure_ssh_key(self.folder / f"impostor-{secrets.token_hex(4)}")
        other.write_text(f"{self.node.address} {key.rsplit(' ', 1)[0]}\n", encoding="ascii")
        secret = stranger.read_text(encoding="ascii").splitlines()[2]
        return {
            "another key": (self.stager(CLUSTER, key_file=stranger), secret),
            "no key": (self.stager(CLUSTER, key_file=self.folder / "none"), ""),
            "another host key": (self.stager(CLUSTER, known_hosts_file=other), ""),
            "no host key": (self.stager(CLUSTER, known_hosts_file=self.folder / "none"), ""),
            "no folder": (self.stager(CLUSTER, path=f"{DATA}/unmounted"), ""),
            "another's folder": (self.stager(CLUSTER, path="/root"), ""),
            "no Python": (self.stager(CLUSTER, python="python9"), ""),
        }

    def begin_put(self, key: str) -> bool:
        name = f"{time.time_ns() // 1_000_000}.abcdef.{key.replace('/', '~')}"
        self.stager(CLUSTER).free_bytes()
        half = self.node.folder / "data" / CLUSTER / ".tmp" / name
        half.write_bytes(b"half")
        return True


@dataclass
class S3World(ProxiedStoreWorld):
    """A bucket."""

    server: S3Server
    bucket: str
    folder: Path
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        place = urlsplit(self.server.endpoint)
        self.address = (str(place.hostname), int(place.port or 80))

    def _keys(self, name: str, secret: str) -> Path:
        file = self.folder / f"{name}.key"
        file.write_text(f"{self.server.keys[self.bucket].access_key}\n{secret}\n", encoding="ascii")
        return file

    def stager(self, cluster: str, **changes: Any) -> S3Stager:
        settings = {
            "bucket": self.bucket,
            "endpoint": self.server.endpoint,
            "addressing": "path",
            "access_key_file": self._keys("good", self.server.keys[self.bucket].secret_key),
        }
        return S3Stager("bucket", cluster, S3Settings.model_validate(settings | changes))

    def stager_through(self, proxy: FaultyProxy) -> Stager:
        return self.stager(
            CLUSTER,
            endpoint=f"http://127.0.0.1:{proxy.port}",
            timeout_s=self.timeout_s / 2,
            connect_timeout_s=self.timeout_s / 2,
        )

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        wrong = secrets.token_urlsafe(30)
        right = self.server.keys[self.bucket].secret_key
        return {
            "another secret": (self.stager(CLUSTER, access_key_file=self._keys("wrong", wrong)), wrong),
            "another's bucket": (self.stager(CLUSTER, bucket="not-ours"), right),
            "no file of keys": (self.stager(CLUSTER, access_key_file=self.folder / "none"), ""),
        }

    def nowhere(self) -> S3Stager:
        """For a bucket that is not there, with a key that may do everything."""
        file = self.folder / "admin.key"
        file.write_text(f"{self.server.access_key}\n{self.server.secret_key}\n", encoding="ascii")
        return self.stager(CLUSTER, bucket="burst-none", access_key_file=file)

    def begin_put(self, key: str) -> bool:
        client = self.server.client(self.server.keys[self.bucket])
        client.create_multipart_upload(Bucket=self.bucket, Key=f"burstd/{CLUSTER}/{key}")
        client.close()
        return True


@dataclass
class SwiftWorld(ProxiedStoreWorld):
    """A container, entered by tempauth."""

    server: SwiftServer
    container: str
    folder: Path
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        place = urlsplit(self.server.auth_url)
        self.address = (str(place.hostname), int(place.port or 80))

    def _key(self, name: str, key: str) -> Path:
        file = self.folder / f"{name}.key"
        file.write_text(f"{key}\n", encoding="ascii")
        return file

    def stager(self, cluster: str, **changes: Any) -> Stager:
        settings = {
            "container": self.container,
            "auth_url": self.server.auth_url,
            "user": self.server.user,
            "key_file": self._key("good", self.server.key),
        }
        return SwiftStager("container", cluster, SwiftSettings.model_validate(settings | changes))

    def stager_through(self, proxy: FaultyProxy) -> Stager:
        return self.stager(
            CLUSTER,
            auth_url=f"http://127.0.0.1:{proxy.port}/auth/v1.0",
            endpoint=f"http://127.0.0.1:{proxy.port}",
            timeout_s=self.timeout_s,
        )

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        wrong = secrets.token_urlsafe(24)
        return {
            "another key": (self.stager(CLUSTER, key_file=self._key("wrong", wrong)), wrong),
            "no key": (self.stager(CLUSTER, key_file=self.folder / "none"), ""),
            "no container": (self.stager(CLUSTER, container="none"), self.server.key),
        }

    def begin_put(self, key: str) -> bool:  # noqa: ARG002 - see StoreWorld
        return False
