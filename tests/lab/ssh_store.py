"""A storage node with sshd, rsync and Python, in a box: ``with SshStore() as node: ssh -i node.key node.user@...``."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from burstd.node.ssh.host_keys import parse_console_host_keys
from burstd.node.ssh.key_pair import ensure_ssh_key
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.lab.guard import LabWatchdog
from tests.node.conftest import on_network

_NAME = "store"
_PUBLIC = "/etc/ssh/burst.pub"
DATA = "/srv/data"
"""Where it has its large disk."""


class SshStore:
    """One storage node, in a lab of its own or, with ``lab``, a host of that lab at ``at``.

    The ordinary user ``burst`` and root take ``key``. What is written below /srv/data is on this machine's disk, in
    ``folder``; the rest in memory, ``disk_mib`` MiB at most. The boxes of its lab reach it; the calling process does
    so only within ``reach()``. Everything ends at the end of ``with``, or when this process ends in any way.
    """

    user = "burst"
    port = 22

    def __init__(
        self,
        folder: Path | None = None,
        *,
        lab: Lab | None = None,
        at: str = "10.77.0.5",
        release: str = "bookworm",
        disk_mib: int = 1024,
    ) -> None:
        self.address = at
        self.release = release
        self.folder = folder.resolve() / "ssh-store" if folder else Path(tempfile.mkdtemp(prefix="burstd-store-"))
        self._disk_mib = disk_mib
        self._own = lab is None
        self._lab = lab or Lab(self.folder, LabNetwork(f"s{secrets.token_hex(4)}"))
        self._watchdog: LabWatchdog | None = None

    @property
    def key(self) -> Path:
        """The private key's file."""
        return self.folder / "id_ed25519"

    @property
    def node_key(self) -> Path:
        """The private key's file of those who only get and put objects; burstd lets it in."""
        return self.folder / "node_ed25519"

    @property
    def known_hosts(self) -> Path:
        """A file for ssh's UserKnownHostsFile with the node's host key."""
        return self.folder / "known_hosts"

    @property
    def box(self) -> Box:
        """The node itself."""
        return self._lab.box(_NAME)

    @property
    def network(self) -> LabNetwork:
        """Where the node is."""
        return self._lab.network

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
        """Starts it; returns when sshd answers and the user is there. Raises SandboxError."""
        rootfs = ensure_rootfs(self.release)
        (self.folder / "data").mkdir(parents=True)
        public = ensure_ssh_key(self.key)
        ensure_ssh_key(self.node_key)
        if self._own:
            self._watchdog = LabWatchdog(self.folder)
            self._lab.up()
        spec = BoxSpec(
            _NAME,
            self.address,
            [rootfs.path],
            services=[["sh", "-ec", self._welcome()]],
            binds=[BindMount(self.folder / "data", DATA, read_only=False)],
            files=[BoxFile(_PUBLIC, f"{public}\n"), BoxFile("/root/.ssh/authorized_keys", f"{public}\n", 0o600)],
            disk_mib=self._disk_mib,
        )
        box = self._lab.start(spec)
        box.wait_booted()
        box.wait_ssh()
        keys = parse_console_host_keys(box.console())
        if not keys:
            raise BoxFailed("the storage node showed no host key", f"look at {box.directory / 'console.log'}")
        lines = "".join(f"{self.address} {key}\n" for key in sorted(keys))
        self.known_hosts.write_text(lines, encoding="ascii")
        return self

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        if self._own:
            self._lab.down()
        elif (self._lab.boxes_directory / _NAME).exists():
            self.box.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._watchdog is not None:
            self._watchdog.end()
            self._watchdog = None

    @contextmanager
    def reach(self) -> Iterator[None]:
        """This thread, and the threads and programs that it starts meanwhile, are on the node's network."""
        if self.network.hub is None:
            yield
        else:
            with on_network(self.network.hub):
                yield

    def ssh(self, *options: str, user: str = user) -> list[str]:
        """The words before a command on the node, for a program that runs within ``reach()``."""
        return [
            "ssh", "-F", "none", "-i", str(self.key), "-p", str(self.port), "-o", "IdentitiesOnly=yes",
            "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={self.known_hosts}",
            *options, f"{user}@{self.address}",
        ]  # fmt: skip

    def _welcome(self) -> str:
        home = f"/home/{self.user}"
        return (
            f"useradd --create-home --shell /bin/bash --password '*' {self.user}; "
            f"install -d -m 700 -o {self.user} -g {self.user} {home}/.ssh; "
            f"install -m 600 -o {self.user} -g {self.user} {_PUBLIC} {home}/.ssh/authorized_keys; "
            f"chown {self.user}:{self.user} {DATA}"
        )
