"""Notifies systemd that burstd is ready, alive, reloading or stopping. Silent where nobody listens.

The protocol is sd_notify(3): one datagram of ``KEY=value`` lines to the unix socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Notifier:
    """Speaks to the socket in ``NOTIFY_SOCKET``. Calls never block and never fail: the service manager may be gone."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        name = environ.get("NOTIFY_SOCKET", "")
        if name.startswith(("/", "@")):
            # A leading @ stands for the zero byte of an abstract socket.
            self._address = "\0" + name[1:] if name[0] == "@" else name
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self.watchdog_s = _watchdog_s(environ)
        """How often ``alive`` is to be called, in seconds; None: no watchdog. Half of what systemd waits."""

    @property
    def is_supervised(self) -> bool:
        """True under a service manager that wants to know."""
        return self._socket is not None

    def ready(self, status: str = "") -> bool:
        """Start, or reload, is done."""
        return self._send("READY=1", *_status(status))

    def feed_watchdog(self) -> bool:
        """The watchdog is fed. To be called by the loop whose hanging it shall notice."""
        return self._send("WATCHDOG=1")

    def status(self, text: str) -> bool:
        """One line for ``systemctl status``."""
        return self._send(*_status(text))

    def reloading(self) -> bool:
        """The settings are being read again; ``ready`` follows. systemd asks for the moment in microseconds."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "") -> bool:
        """burstd is on its way out."""
        return self._send("STOPPING=1", *_status(status))

    @contextmanager
    def patience(self, every_s: float = 20.0) -> Iterator[None]:
        """Neither the time limit of a start nor the watchdog ends burstd meanwhile: a new schema may take its time."""
        done = threading.Event()

        def extend() -> None:
            while not done.wait(every_s):
                self._send("WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={round(4 * every_s * 1_000_000)}")

        thread = threading.Thread(target=extend, name="patience", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def close(self) -> None:
        """Closes the socket; later calls say nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> bool:
        """True where the datagram was taken."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:  # full, or gone: burstd does its work without being watched
            return False
        return True


def _status(text: str) -> tuple[str, ...]:
    # A line break in it would begin another message.
    return (f"STATUS={' '.join(text.split())}",) if text else ()


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2_000_000
