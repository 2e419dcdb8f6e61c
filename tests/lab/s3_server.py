"""A real S3 server, SeaweedFS, for tests and benchmarks: ``with S3Server(folder) as s3: s3.make_bucket("data")``."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.machine import SYSTEM_PATH, tool_path
from providers.sandbox.boxes.network import LabNetwork
from tests.lab import tools
from tests.node.conftest import on_network

REGION = "us-east-1"
_PATIENCE_S = 30.0
_POLL_S = 0.05
_TRIES = 5
_PROBE = "burstd-probe"
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
_ADMIN = ("Admin", "Read", "Write", "List", "Tagging")
_ORDINARY = ("Read", "Write", "List", "Tagging")


@dataclass(frozen=True, slots=True)
class S3Key:
    """One identity of the server, made at random for each server."""

    access_key: str = field(default_factory=lambda: secrets.token_hex(10).upper())
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(30), repr=False)


class S3Server:
    """One server with a disk of its own in ``folder``, on loopback or, with ``network``, on that lab's hub.

    On a lab's hub every box of the lab reaches it; the calling process does so only within ``reach()``. ``own_keys``
    names buckets (made with ``make_bucket``) that have an identity of their own in ``keys``, good for nothing else.
    It ends, with all its data, at the end of ``with`` or with the thread that started it, however that ended.
    """

    def __init__(self, folder: Path, *, network: LabNetwork | None = None, own_keys: Sequence[str] = ()) -> None:
        self.folder = folder / "seaweedfs"
        self.address = "127.0.0.1" if network is None else network.gateway
        self.admin = S3Key()
        self.keys = {bucket: S3Key() for bucket in own_keys}
        self._network = network
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """``http://ADDRESS:PORT``, the same for each start."""
        return f"http://{self.address}:{self._ports['s3.port']}"

    @property
    def access_key(self) -> str:
        """Of the identity that may do everything."""
        return self.admin.access_key

    @property
    def secret_key(self) -> str:
        """Of the identity that may do everything."""
        return self.admin.secret_key

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def start(self) -> None:
        """Starts it, after ``stop`` with what it held and where it was; returns when a signed request works.

        Raises BoxFailed, and what ``tools.weed`` raises.
        """
        program = tools.weed()
        self.folder.mkdir(parents=True, exist_ok=True)
        new = not self._ports
        for left in reversed(range(_TRIES)):
            if new:
                self._ports = self._free_ports()
            self._launch(program)
            if self._wait():
                return
            # Someone else may have taken a port since it was found free.
            if not left or not new:
                last = " | ".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
                raise BoxFailed(f"the S3 server ended while it started; it said last: {last}", f"look at {self._log}")

    def stop(self) -> None:
        """Ends its processes as a power cut would; its data stays. May be repeated."""
        if self._process is not None:
            self._process.kill()  # one process with many threads: it starts no other
            self._process.wait()
            self._process = None
        for socket_file in self.sockets:
            socket_file.unlink(missing_ok=True)

    @property
    def sockets(self) -> list[Path]:
        """Sockets that SeaweedFS makes there whatever it is told; they are left only where this process is killed."""
        kinds = [name.removesuffix(".port") for name in _PORTS]
        ports = [self._ports.get(f"{name}.grpc", 0) for name in _PORTS]
        return [Path(f"/tmp/seaweedfs-{k}-grpc-{p}.sock") for k, p in zip(kinds, ports, strict=True)]  # noqa: S108

    def _end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the running server. Raises BoxFailed."""
        if self._process is None:
            raise BoxFailed("the S3 server does not run", "start it")
        return self._process.pid

    def client(self, key: S3Key | None = None, **config: Any) -> Any:
        """A boto3 client for this server, of the identity ``key`` or else the one that may do everything."""
        key = key or self.admin
        # Without retries: they would hide what the server said. Loopback goes through no proxy.
        settings = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}, "proxies": {}, **config}
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=key.access_key,
            aws_secret_access_key=key.secret_key,
            config=Config(**settings),
        )

    def make_bucket(self, name: str) -> str:
        """Makes a bucket and returns its name. Raises what boto3 raises."""
        with self.reach():
            self.client().create_bucket(Bucket=name)
        return name

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        """This thread, and the threads and programs that it starts meanwhile, are where the server answers."""
        if self._network is None or self._network.hub is None:
            yield
        else:
            with on_network(self._network.hub):
                yield

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _free_ports(self) -> dict[str, int]:
        """Below those that the kernel gives to outgoing connections, which could take one before the server does."""
        names = [name + suffix for name in _PORTS for suffix in ("", ".grpc")]
        found: list[int] = []
        with self.reach():
            for port in random.sample(range(15000, 32000), 1000):
                with socket.socket() as probe:
                    try:
                        probe.bind((self.address, port))
                    except OSError:
                        continue
                found.append(port)
                if len(found) == len(names):
                    return dict(zip(names, found, strict=True))
        raise BoxFailed("no free ports were found for the S3 server", "end what holds them")

    def _launch(self, program: Path) -> None:
        """Its settings go through memory, so that no secret is in a file or on a command line."""
        words = [] if self._network is None else self._network.enter()
        words += [tool_path("setpriv"), "--pdeathsig=KILL", str(program), "server", "-s3"]
        words += [f"-dir={self.folder}", f"-ip={self.address}", f"-ip.bind={self.address}"]
        words += [f"-{name}={port}" for name, port in self._ports.items()]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        # The only master: it waits for no other's vote, which takes up to 25 s.
        words += ["-master.peers=none"]
        # In its folder, not where everyone's are. A socket's path is short, so they are relative to the folder.
        words += ["-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]
        # Small volumes, and few for each bucket, or a dozen buckets fill its share of them.
        words += ["-volume.max=500", "-master.volumeSizeLimitMB=1024", "-volume.minFreeSpace=64MiB"]
        settings = os.memfd_create("s3.json")
        try:
            os.write(settings, json.dumps({"identities": self._identities()}).encode())
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*words, f"-s3.config=/dev/fd/{settings}"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env={"PATH": SYSTEM_PATH, "HOME": str(self.folder), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
                    pass_fds=[settings],
                    start_new_session=True,
                )
        finally:
            os.close(settings)

    def _identities(self) -> list[dict[str, object]]:
        actions = {"admin": (self.admin, list(_ADMIN))}
        for bucket, key in self.keys.items():
            actions[f"of-{bucket}"] = (key, [f"{action}:{bucket}" for action in _ORDINARY])
        return [
            {"name": name, "credentials": [{"accessKey": k.access_key, "secretKey": k.secret_key}], "actions": may}
            for name, (k, may) in actions.items()
        ]

    def _wait(self) -> bool:
        """True when it takes an object, False when it has ended. Raises BoxFailed when the time is over."""
        deadline = time.monotonic() + _PATIENCE_S
        said = "nothing"
        with self.reach():
            client = self.client(connect_timeout=2, read_timeout=5)
            while self._process is not None and self._process.poll() is None:
                try:
                    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                        client.create_bucket(Bucket=_PROBE)
                    client.put_object(Bucket=_PROBE, Key="probe", Body=b"x")
                    client.delete_object(Bucket=_PROBE, Key="probe")
                    client.delete_bucket(Bucket=_PROBE)
                except (BotoCoreError, ClientError) as error:
                    said = str(error)
                else:
                    return True
                if time.monotonic() > deadline:
                    raise BoxFailed(
                        f"the S3 server took no object within {_PATIENCE_S:.0f} s: {said}", f"look at {self._log}"
                    )
                time.sleep(_POLL_S)
        return False
