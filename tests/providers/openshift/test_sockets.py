from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from websocket import WebSocketBadStatusException

from providers.openshift.client.websocket import STDERR, STDIN, STDOUT, Channels, open_websocket
from tests.lab.kubernetes.certificates import Authority
from tests.providers.openshift.peer import PATIENCE_S, Peer, access_to, frame

PATH = "/api/v1/namespaces/burst/pods/a/exec?command=cat"
BYTES = bytes(range(256))


class Rig:
    """Both ends of one connection."""

    def __init__(self, folder: Path, *, secure: bool) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_S)
        self.tls = self.ca = None
        if secure:
            authority = Authority(folder / "ca")
            pair = authority.pair("server", hosts=["127.0.0.1"])
            self.ca = authority.cert
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(pair.cert, pair.key)
        self.access = access_to(self.listener, folder, self.ca)
        self.pool = ThreadPoolExecutor(2)
        self.peer: Peer = self._open()

    def _open(self) -> Peer:
        taking = self.pool.submit(self._take)
        self.channels = Channels(open_websocket(self.access, PATH, PATIENCE_S), PATIENCE_S)
        return taking.result(PATIENCE_S)

    def _take(self) -> Peer:
        peer = Peer(self.listener, self.tls)
        peer.accepts()
        return peer

    def close(self) -> None:
        self.channels.close()
        self.peer.close()
        self.listener.close()
        self.pool.shutdown()


@pytest.fixture(params=["plain", "tls"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, secure=request.param == "tls")
    yield made
    made.close()


def test_who_asks_and_for_what(rig: Rig) -> None:
    head = rig.peer.head.decode().lower()
    assert head.startswith(f"get {PATH} http/1.1\r\n")
    assert "\r\nauthorization: bearer t0\r\n" in head
    assert "\r\nsec-websocket-protocol: v4.channel.k8s.io\r\n" in head


@pytest.mark.parametrize("size", [0, 1, 124, 125, 126, 65534, 65535, 65536, 200_000])
def test_bytes_arrive_as_they_are(rig: Rig, size: int) -> None:
    data = (BYTES * (size // 256 + 1))[:size]
    rig.pool.submit(rig.channels.send, STDIN, data)
    came, channel = b"", -1
    while len(came) < size or channel < 0:
        kind, body = rig.peer.hears()
        assert (kind, body[0]) == (2, STDIN)
        came, channel = came + body[1:], body[0]
    assert came == data
    rig.pool.submit(rig.peer.says, bytes((STDOUT,)) + data + b"\xff")
    back = b""
    while len(back) <= size:
        message = rig.channels.receive(PATIENCE_S)
        assert message is not None
        assert message[0] == STDOUT
        back += message[1]
    assert back == data + b"\xff"


def test_frames_that_come_in_bits_and_many_at_once(rig: Rig) -> None:
    text = frame(b"\x01out") + frame(b"\x02err") + frame(b"\x01") + frame(b"\x01a", last=False) + frame(b"b", 0)
    for at in range(len(text)):
        rig.peer.link.sendall(text[at : at + 1])
    got = [rig.channels.receive(PATIENCE_S) for _ in range(4)]
    assert got == [(STDOUT, b"out"), (STDERR, b"err"), (STDOUT, b"a"), (STDOUT, b"b")]
    rig.peer.link.sendall(text)
    assert [rig.channels.receive(PATIENCE_S) for _ in range(4)] == got


def test_nothing_comes_in_time_and_then_it_does(rig: Rig) -> None:
    with pytest.raises(TimeoutError):
        rig.channels.receive(0)
    rig.peer.link.sendall(frame(b"\x01abc")[:3])
    with pytest.raises(TimeoutError):
        rig.channels.receive(0.01)
    rig.peer.link.sendall(frame(b"\x01abc")[3:])
    assert rig.channels.receive(PATIENCE_S) == (STDOUT, b"abc")


def test_a_ping_is_answered(rig: Rig) -> None:
    rig.peer.says(b"still there?", 9)
    rig.peer.says(b"\x01x")
    assert rig.channels.receive(PATIENCE_S) == (STDOUT, b"x")
    assert rig.peer.hears() == (10, b"still there?")


@pytest.mark.parametrize("how", ["close", "cut"])
def test_the_other_side_ends_it(rig: Rig, how: str) -> None:
    rig.peer.says(b"\x01last")
    if how == "close":
        rig.peer.says(struct.pack("!H", 1000), 8)
    else:
        socket.socket.shutdown(rig.peer.link, socket.SHUT_WR)
    assert rig.channels.receive(PATIENCE_S) == (STDOUT, b"last")
    try:
        assert rig.channels.receive(PATIENCE_S) is None
    except ssl.SSLEOFError:
        assert how == "cut", "TLS says where an end is none"
    rig.channels.close()
    assert rig.channels.receive(PATIENCE_S) is None
    with pytest.raises(OSError, match="closed"):
        rig.channels.send(STDIN, b"x")


def test_closing_wakes_who_waits(rig: Rig) -> None:
    waiting = rig.pool.submit(rig.channels.receive)
    rig.channels.close()
    assert waiting.result(PATIENCE_S) is None
    assert rig.peer.hears() == (8, struct.pack("!H", 1000))
    rig.channels.close()


def test_both_ways_at_once_and_the_other_side_reads_only_what_it_has_written(rig: Rig) -> None:
    """Neither a thread that sends into a full connection nor one that receives keeps the other waiting."""
    data = os.urandom(8 << 20)
    echoed = threading.Event()

    def echo() -> None:
        left = len(data)
        while left:
            _, body = rig.peer.hears()
            left -= len(body) - 1
            rig.peer.says(b"\x01" + body[1:])
        echoed.set()

    rig.pool.submit(echo)
    sending = rig.pool.submit(rig.channels.send, STDIN, data)
    came = bytearray()
    while len(came) < len(data):
        message = rig.channels.receive(PATIENCE_S)
        assert message is not None
        came += message[1]
    sending.result(PATIENCE_S)
    assert echoed.wait(PATIENCE_S)
    assert came == data


def test_who_takes_nothing_is_given_up(rig: Rig) -> None:
    rig.channels._timeout_s = 0.1
    with pytest.raises(TimeoutError):
        rig.channels.send(STDIN, bytes(64 << 20))


@pytest.mark.parametrize("text", [b"\x82\x81abcdx", b"\x82\x7f" + struct.pack("!Q", 1 << 40)], ids=["masked", "long"])
def test_what_is_no_frame_of_a_server(rig: Rig, text: bytes) -> None:
    rig.peer.link.sendall(text)
    with pytest.raises(ConnectionError):
        rig.channels.receive(PATIENCE_S)


def test_the_first_message_of_a_port_says_nothing(rig: Rig) -> None:
    forwarded = Channels(rig.channels._opened, PATIENCE_S, (0, 1))
    for message in (b"\x00\x39\x30", b"\x01\x39\x30", b"\x00bytes", b"\x01connection refused"):
        rig.peer.says(message)
    assert [forwarded.receive(PATIENCE_S) for _ in range(2)] == [(0, b"bytes"), (1, b"connection refused")]


def test_a_refusal_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def refuse() -> None:
            peer = Peer(listener)
            peer.link.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone")
            peer.close()

        refusing = pool.submit(refuse)
        with pytest.raises(WebSocketBadStatusException) as caught:
            open_websocket(access_to(listener, tmp_path, None), PATH, PATIENCE_S)
        refusing.result(PATIENCE_S)
        assert (caught.value.status_code, caught.value.resp_body) == (404, b"gone")


def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path) -> None:
    rig = Rig(tmp_path, secure=True)
    other = tmp_path / "other"
    other.mkdir()
    access = access_to(rig.listener, other, Authority(other / "ca").cert)
    taking = rig.pool.submit(Peer, rig.listener, rig.tls)
    with pytest.raises(ssl.SSLCertVerificationError):
        open_websocket(access, PATH, PATIENCE_S)
    with pytest.raises(OSError, match="SSL"):
        taking.result(PATIENCE_S)
    rig.close()
