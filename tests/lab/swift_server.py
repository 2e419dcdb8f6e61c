"""A real OpenStack Swift of Debian's packages for tests: ``with SwiftServer(folder) as swift: swift.storage_url``."""

from __future__ import annotations

import random
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from providers.sandbox.boxes.boot.boot_script import RUN_DIR, base_files, boot_script
from providers.sandbox.boxes.boot.description import BindMount, BoxDescription, BoxFile, start_init
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs, ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.lab.guard import LabWatchdog

_SUITE = "bookworm"
_PATIENCE_S = 60.0
_NAME = "swift"
_DISK = "/srv/node"
_READY = f"{RUN_DIR}/swift-ready"
_SERVERS = ("account", "container", "object")
_PORTS = (*_SERVERS, "memcached", "proxy")

# The packages start their daemons where they are not kept from it.
_INSTALL = """set -e
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get update -qq
apt-get install -y -qq --no-install-recommends swift-proxy swift-account swift-container swift-object memcached \
  >/dev/null
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/* /tmp/*
"""
_SWIFT_CONF = """[swift-hash]
swift_hash_path_suffix = burstd
swift_hash_path_prefix = burstd
[storage-policy:0]
name = one
default = yes
[swift-constraints]
max_header_size = 16384
"""
# Patient, for there is one disk on a busy machine: else an object that took long is missing in its container's list,
# or the only server is given up for a minute.
_SERVER_CONF = """[DEFAULT]
bind_ip = {address}
bind_port = {port}
workers = 0
user = swift
devices = {disk}
mount_check = false
fallocate_reserve = 0
log_level = WARNING
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
node_timeout = 60
conn_timeout = 10
container_update_timeout = 60
"""
_PROXY_CONF = """[DEFAULT]
bind_ip = {address}
bind_port = {proxy}
workers = 0
user = swift
log_level = WARNING
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache listing_formats tempurl bulk tempauth copy slo dlo {app}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = 60
recoverable_node_timeout = 60
conn_timeout = 10
error_suppression_limit = 1000000
[filter:cache]
use = egg:swift#memcache
memcache_servers = {address}:{memcached}
[filter:tempauth]
use = egg:swift#tempauth
{users}
"""
_PLAIN = (
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "listing_formats",
    "tempurl",
    "bulk",
    "copy",
    "slo",
    "dlo",
)
# In one program: each start of swift-ring-builder takes a second.
_RINGS = """import sys
from swift.common.ring import RingBuilder
address, ports = sys.argv[1], sys.argv[2:]
for kind, port in zip(("account", "container", "object"), ports):
    builder = RingBuilder(4, 1, 0)
    disk = {"id": 0, "region": 1, "zone": 1, "ip": address, "port": int(port), "device": "d1", "weight": 1.0}
    builder.add_dev({**disk, "replication_ip": address, "replication_port": int(port), "meta": ""})
    builder.rebalance()
    builder.get_ring().save(f"/etc/swift/{kind}.ring.gz")
"""
# Ready is what has taken an object and given it back; the key comes from the file that the proxy has it from.
_CHECK = """import configparser, sys, time, urllib.error, urllib.request
base, user, ready = sys.argv[1:]
conf = configparser.RawConfigParser()
conf.read("/etc/swift/proxy-server.conf")
key = conf["filter:tempauth"]["user_" + user.replace(":", "_")].split()[0]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(method, url, headers, data=None):
    request = urllib.request.Request(url, data, headers, method=method)
    with opener.open(request, timeout=20) as answer:
        return answer.headers, answer.read()
said = ""
while True:
    try:
        found, _ = ask("GET", base + "/auth/v1.0", {"X-Auth-User": user, "X-Auth-Key": key})
        token, place = {"X-Auth-Token": found["X-Auth-Token"]}, found["X-Storage-Url"] + "/burstd-probe"
        ask("PUT", place, token)
        ask("PUT", place + "/probe", {**token, "Content-Type": "text/plain"}, b"probe")
        if ask("GET", place + "/probe", token)[1] == b"probe":
            ask("DELETE", place + "/probe", token)
            ask("DELETE", place, token)
            break
    except (urllib.error.URLError, OSError) as error:
        if str(error) != said:
            said = str(error)
            print("swift is not ready:", said, flush=True)
        time.sleep(0.1)
open(ready, "x").close()
"""


def _start(address: str, ports: dict[str, int], user: str) -> str:
    """Starts all daemons and waits for them; they end with the box."""
    lines = [
        "set -e; cd /etc/swift",
        f"mkdir -p {_DISK}/d1 /var/cache/swift /var/log/swift",
        f"chown -R swift:swift {_DISK} /var/cache/swift",
        f"python3 {RUN_DIR}/rings.py {address} {' '.join(str(ports[kind]) for kind in _SERVERS)}",
        f"memcached -u nobody -l {address} -p {ports['memcached']} -U 0 -m 32 >/var/log/swift/memcached.log 2>&1 &",
    ]
    lines += [
        f"swift-{kind}-server {kind}-server.conf -v </dev/null >/var/log/swift/{kind}.log 2>&1 &"
        for kind in (*_SERVERS, "proxy")
    ]
    lines.append(
        f"timeout {_PATIENCE_S:.0f} python3 {RUN_DIR}/check.py http://{address}:{ports['proxy']} {user} {_READY}"
    )
    return "\n".join(lines)


def programs(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """A layer with Swift's servers and memcached (140 MB), built when it is not cached."""
    return ensure_layer(rootfs, _INSTALL, ["sh", "-c", _INSTALL], progress=progress)


class SwiftServer:
    """Proxy, account, container, object server and memcached, one replica, with tempauth, slo, dlo, tempurl and bulk.

    They run in a box of their own root file system, which keeps its objects in ``folder`` (not on a tmpfs of a kernel
    before 6.6: Swift needs extended attributes). The box is on this machine's loopback or, with ``lab``, a host of
    that lab at ``at``. Everything ends at the end of ``with``, or when this process ends in any way.
    """

    user = "test:tester"

    def __init__(
        self,
        folder: Path,
        *,
        lab: Lab | None = None,
        at: str = "10.77.0.6",
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.folder = folder.resolve() / "swift"
        self.address = "127.0.0.1" if lab is None else at
        self.key = secrets.token_urlsafe(24)
        self._hosts = lab
        self._lab = lab or Lab(self.folder, LabNetwork(f"w{secrets.token_hex(4)}"))
        self._progress = progress
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: LabWatchdog | None = None

    @property
    def auth_url(self) -> str:
        """Of tempauth, which speaks version 1.0: ``http://ADDRESS:PORT/auth/v1.0``."""
        return f"http://{self.address}:{self._ports['proxy']}/auth/v1.0"

    @property
    def storage_url(self) -> str:
        """Of the account that ``user`` administers."""
        return f"http://{self.address}:{self._ports['proxy']}/v1/AUTH_test"

    @property
    def network(self) -> LabNetwork:
        """The network of the lab that it is in; it is not attached to one of its own."""
        return self._lab.network

    def token(self) -> str:
        """A token for ``user``, good for a day. Raises httpx.HTTPError."""
        headers = {"X-Auth-User": self.user, "X-Auth-Key": self.key}
        answer = httpx.get(self.auth_url, headers=headers, timeout=30, trust_env=False).raise_for_status()
        return answer.headers["X-Auth-Token"]

    @property
    def box(self) -> Box:
        """Where it all runs."""
        return self._lab.box(_NAME)

    def __enter__(self) -> Self:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> Self:
        """Starts it; returns when it has taken an object. Raises SandboxError."""
        rootfs = ensure_rootfs(_SUITE, progress=self._progress)
        layers = [programs(rootfs, self._progress), rootfs.path]
        (self.folder / "disk").mkdir(parents=True)
        binds = [BindMount(self.folder / "disk", _DISK, read_only=False)]
        if self._hosts is None:
            self._ports = _free_ports(self.address)
            self._watchdog = LabWatchdog(self.folder)
            self._lab.up()
            self._launch(layers, binds)
        else:
            self._ports = dict(zip(_PORTS, (6202, 6201, 6200, 11211, 8080), strict=True))
            self._lab.start(
                BoxSpec(
                    _NAME, self.address, layers, services=self._services(), binds=binds, files=self._files(), ssh=False
                )
            )
        self.box.wait(self._ready, _PATIENCE_S, "taking objects")
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        if self._hosts is None:
            self._lab.down()
        elif (self._lab.boxes_directory / _NAME).exists():
            self.box.stop()
        if self._process is not None:
            self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._watchdog is not None:
            self._watchdog.end()
            self._watchdog = None

    def log(self, kind: str) -> str:
        """What a server has said: ``proxy``, ``account``, ``container`` or ``object``. Raises BoxFailed."""
        return self.box.path(f"/var/log/swift/{kind}.log").read_text(encoding="utf-8", errors="replace")

    @staticmethod
    def _ready(box: Box) -> bool:
        if box.booted and not box.path(_READY).exists():
            raise BoxFailed(f"Swift did not start: {box.console()[-800:]}", "look at its logs in /var/log/swift")
        return box.path(_READY).exists()

    def _launch(self, layers: list[Path], binds: list[BindMount]) -> None:
        """A box like any other, but on the machine's own network."""
        directory = self._lab.boxes_directory / _NAME
        directory.mkdir(mode=0o700, parents=True)
        box = Box(_NAME, self.address, self._lab.network, directory)
        box._save()
        description = BoxDescription(
            layers=layers,
            scratch=directory / "root",
            console=directory / "console.log",
            record=directory / "process.json",
            hostname=_NAME,
            binds=binds,
            files=[
                *base_files(_NAME, self.address),
                boot_script(self._services(), ssh=False, cloud_init=False),
                *self._files(),
            ],
            boot=f"{RUN_DIR}/boot",
        )
        with (directory / "start.log").open("wb") as log:
            self._process = start_init(description, None, log)

    def _services(self) -> list[list[str]]:
        return [["bash", "-c", _start(self.address, self._ports, self.user)]]

    def _files(self) -> list[BoxFile]:
        proxy = _PROXY_CONF.format(
            address=self.address,
            proxy=self._ports["proxy"],
            memcached=self._ports["memcached"],
            app="proxy-server",
            users=f"user_{self.user.replace(':', '_')} = {self.key} .admin {self.storage_url}",
        )
        proxy += "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in _PLAIN)
        files = [
            BoxFile("/etc/swift/swift.conf", _SWIFT_CONF),
            BoxFile("/etc/swift/proxy-server.conf", proxy, 0o600, "swift:swift"),
            BoxFile(f"{RUN_DIR}/rings.py", _RINGS),
            BoxFile(f"{RUN_DIR}/check.py", _CHECK),
        ]
        for kind in _SERVERS:
            conf = _SERVER_CONF.format(kind=kind, address=self.address, port=self._ports[kind], disk=_DISK)
            files.append(BoxFile(f"/etc/swift/{kind}-server.conf", conf))
        return files


def _free_ports(address: str) -> dict[str, int]:
    """Below those that the kernel gives to outgoing connections, which could take one before the server does."""
    found: list[int] = []
    for port in random.sample(range(15000, 32000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == len(_PORTS):
            return dict(zip(_PORTS, found, strict=True))
    raise BoxFailed("no free ports were found for Swift", "end what holds them")
