from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.runtime.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """A service manager's end of the socket, and the environment that names it."""
    name = str(tmp_path / "n") if request.param == "path" else f"@burstd-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0") if name[0] == "@" else name)
        listening.settimeout(5)
        yield listening, {"NOTIFY_SOCKET": name}


def test_what_systemd_hears(manager: tuple[socket.socket, dict[str, str]]) -> None:
    listening, environ = manager
    notifier = Notifier(environ)
    assert notifier.is_supervised

    def heard() -> str:
        return listening.recv(4096).decode()

    assert notifier.ready("3 nodes open")
    assert heard() == "READY=1\nSTATUS=3 nodes open"
    notifier.feed_watchdog()
    assert heard() == "WATCHDOG=1"
    notifier.status("a\nREADY=1")
    assert heard() == "STATUS=a READY=1"
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    first, second = heard().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with notifier.patience(every_s=0.01):
        assert heard() == "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=40000"
    notifier.stopping()
    while (said := heard()) != "STOPPING=1":
        assert said.startswith("WATCHDOG=1")
    notifier.close()
    assert not notifier.ready()


def test_a_manager_that_does_not_read_or_is_gone_does_not_hold_burstd_up(tmp_path: Path) -> None:
    path = str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        sent = sum(notifier.feed_watchdog() for _ in range(10_000))
        assert 0 < sent < 10_000
    assert not notifier.feed_watchdog()
    assert not notifier.ready()


def test_nobody_listens() -> None:
    notifier = Notifier({})
    assert not notifier.is_supervised
    assert not notifier.ready("fine")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_systemd_asks(environ: dict[str, str], seconds: float | None) -> None:
    assert Notifier(environ).watchdog_s == seconds
