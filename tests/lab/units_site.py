"""A site whose burstd runs as slurm under its units: a real systemd is process 1 of a process namespace of the head.

Slurm and munge run beside it, on the same file system, network and /run.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from burstd.share import share_path
from tests.lab.base_site import CONFIG
from tests.lab.site import Site
from tests.systemd.pid1 import SystemdBox, systemd_in

UNITS = (
    "burstd.service", "burstd.socket", "burstd-user-worker.socket", "burstd-user-worker@.service",
    "burstd-object-worker.socket", "burstd-object-worker@.service",
    "burstd-image-worker.socket", "burstd-image-worker@.service",
    "burstd-mount-worker.socket", "burstd-mount-worker@.service",
)  # fmt: skip
_SOCKETS = tuple(unit for unit in UNITS if unit.endswith(".socket"))
_RUN_ALREADY = ("munge", "slurmctld", "slurmd", "ssh")


class UnitsSite(Site):
    """As ``Site``; ``systemd`` is the head's."""

    def __init__(self, release: str = "trixie", **more: Any) -> None:
        super().__init__(release, **more)
        self._stack = ExitStack()
        self._systemd: SystemdBox | None = None

    @property
    def systemd(self) -> SystemdBox:
        """Of the head; booted at the first call, with the units installed as docs/admin.md has it."""
        if self._systemd is None:
            for unit in UNITS:
                self.write(f"/etc/systemd/system/{unit}", share_path("systemd", unit).read_text(encoding="utf-8"))
            # What was made for a burstd that root runs; RuntimeDirectory= and its kin make it anew.
            self.cluster.sh("rm -rf /run/burstd /var/lib/burstd /var/spool/burstd")
            head = self.cluster.head
            self._systemd = self._stack.enter_context(systemd_in(head, shared_run=True, mask=_RUN_ALREADY))
        return self._systemd

    def down(self) -> None:
        """Ends and removes everything. May be repeated."""
        self._stack.close()
        self._systemd = None
        super().down()

    def start_burstd(self, timeout_s: float = 60.0) -> None:
        """Starts burstd by its units and returns when burstctl reaches it."""
        self.spawn_burstd()
        self.wait(self.api_answers, timeout_s, "burstd answering")

    def spawn_burstd(self) -> None:
        """Starts burstd and does not wait for it."""
        self.cluster.sh("chown slurm: /etc/burstd/*.token /etc/burstd/*.key 2>/dev/null; chmod 644 " + CONFIG)
        self.systemd.systemctl("start", *_SOCKETS)
        self.systemd.systemctl("start", "--no-block", "burstd.service")

    def burstd_runs(self) -> bool:
        """Whether the service is up, or on its way."""
        state = self.systemd.shows("burstd.service", "ActiveState") if self._systemd is not None else ""
        return state in ("active", "activating")

    def kill_burstd(self, signal: str = "KILL") -> None:
        """Ends burstd with a signal, and has systemd not start it again."""
        if self._systemd is None:
            return
        self.systemd.systemctl("stop", "burstd.socket", check=False)
        self.signal_burstd(signal)
        self.systemd.systemctl("stop", "burstd.service")

    def signal_burstd(self, signal: str) -> None:
        """Sends burstd's main process a signal."""
        self.systemd.systemctl("kill", f"--signal={signal}", "--kill-whom=main", "burstd.service", check=False)

    def daemon_log(self) -> str:
        """What burstd and its hands have said so far."""
        return "" if self._systemd is None else self.systemd.journal("burstd*")

    def main_pid(self, other_than: str = "", timeout_s: float = 30.0) -> str:
        """The process of burstd, among those of systemd, once it is another one."""
        deadline = time.monotonic() + timeout_s
        while (pid := self.systemd.shows("burstd.service", "MainPID")) in ("0", other_than):
            assert time.monotonic() < deadline, self.daemon_log()[-3000:]
            time.sleep(0.1)
        return pid
