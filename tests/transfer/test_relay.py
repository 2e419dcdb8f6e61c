"""Connections that are carried on: each end is told, and none is carried for ever."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from burstd.transfer.protocol.relay import SocketWire, relay

QUIET_S = 0.3


class RelayRig:
    """A relay between two pairs of sockets; the test has the outer ends. ``near`` is the user, ``far`` the node."""

    def __init__(self, *, tells: bool, quiet_s: float) -> None:
        self.near, inner = socket.socketpair()
        self.far, outer = socket.socketpair()
        self.near.settimeout(20)
        self.far.settimeout(20)
        wire = SocketWire(outer)
        if not tells:
            wire.shutdown_write = lambda: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run, args=(inner, outer, wire, quiet_s))
        self._thread.start()

    def _run(self, inner: socket.socket, outer: socket.socket, wire: SocketWire, quiet_s: float) -> None:
        with inner, outer:
            relay(inner, wire, quiet_s)

    def ends(self) -> float:
        """Seconds until it has."""
        before = time.monotonic()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return time.monotonic() - before

    def close(self) -> None:
        self.near.close()
        self.far.close()
        self.ends()


@pytest.fixture(params=[True, False], ids=["tells", "cannot tell"])
def rig(request: pytest.FixtureRequest) -> Iterator[RelayRig]:
    """Of a way that can tell the node that the user has said all, and of one that cannot."""
    made = RelayRig(tells=request.param, quiet_s=QUIET_S)
    yield made
    made.close()


def test_all_comes_through_both_ways(rig: RelayRig) -> None:
    there, back = os.urandom(300_000), os.urandom(200_000)
    sending = [
        threading.Thread(target=side.sendall, args=(data,)) for side, data in ((rig.near, there), (rig.far, back))
    ]
    for thread in sending:
        thread.start()
    assert _read(rig.far, len(there)) == there
    assert _read(rig.near, len(back)) == back
    for thread in sending:
        thread.join()


def _read(side: socket.socket, size: int) -> bytes:
    heard = bytearray()
    while len(heard) < size:
        heard += side.recv(1 << 16)
    return bytes(heard)


def test_the_node_may_answer_after_the_user_has_said_all(rig: RelayRig) -> None:
    rig.near.sendall(b"question")
    rig.near.shutdown(socket.SHUT_WR)
    assert rig.far.recv(100) == b"question"
    rig.far.sendall(b"answer")
    assert rig.near.recv(100) == b"answer"
    rig.far.close()
    assert rig.near.recv(100) == b""
    rig.ends()


def test_a_user_who_has_gone_is_not_waited_for() -> None:
    rig = RelayRig(tells=False, quiet_s=60.0)
    rig.near.close()
    assert rig.ends() < 10
    assert rig.far.recv(1) == b""
    rig.close()


@pytest.mark.slow
def test_silence_ends_what_has_half_ended(rig: RelayRig) -> None:
    rig.far.shutdown(socket.SHUT_WR)
    assert rig.near.recv(1) == b""
    rig.near.sendall(b"still heard")
    assert rig.far.recv(100) == b"still heard"
    assert rig.ends() < 10


def test_a_wire_that_breaks_ends_it(rig: RelayRig) -> None:
    rig.far.close()
    assert rig.near.recv(1) == b""
    rig.near.close()
    assert rig.ends() < 10
