"""Processes of ours that outlive their maker: recorded by pid and start time, never trusted by a bare pid."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from providers.sandbox.boxes.errors import BoxFailed


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time (clock ticks since boot) of a process, None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot of the machine. ``start`` is in clock ticks since boot."""

    pid: int
    start: int
    boot: str

    @classmethod
    def current(cls) -> Process:
        """The calling process."""
        found = _stat(os.getpid())
        if found is None:
            raise AssertionError
        return cls(os.getpid(), found[1], _boot_id())

    @classmethod
    def load(cls, file: Path) -> Process | None:
        """The recorded process, None when nothing (whole) is recorded."""
        try:
            fields = json.loads(file.read_text(encoding="ascii"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return cls(fields["pid"], fields["start"], fields["boot"])

    def save(self, file: Path) -> None:
        """Records it, atomically."""
        unfinished = file.with_name(file.name + ".new")
        unfinished.write_text(json.dumps(asdict(self)), encoding="ascii")
        unfinished.rename(file)

    @property
    def alive(self) -> bool:
        """Whether this very process runs; a zombie does not."""
        found = _stat(self.pid)
        return (
            found is not None and found == (found[0], self.start) and found[0] not in "ZX" and self.boot == _boot_id()
        )

    def kill(self, grace_s: float = 0.0, timeout_s: float = 20.0) -> None:
        """Ends it: SIGTERM when ``grace_s`` is given, then SIGKILL; returns when it is gone. Raises BoxFailed."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if not self.alive:  # asked after the handle was taken, so the handle is of the process that we mean
                return
            if grace_s:
                _send(handle, signal.SIGTERM)
                if _ended(handle, grace_s):
                    return
            _send(handle, signal.SIGKILL)
            if not _ended(handle, timeout_s):
                raise BoxFailed(f"process {self.pid} did not end within {timeout_s:.0f} s", "see its state in /proc")
        finally:
            os.close(handle)


def _send(handle: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, what)


def _ended(handle: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            return True
    return False
