"""The way into a pod: commands by ``pods/exec``, ports by ``pods/portforward``; each is a connection of its own.

A websocket of ``pods/exec`` cannot tell a command that its standard input ends, so a shell in the pod counts the bytes.
Texts of scripts go through standard input too: arguments are a part of the URL, which proxies want to be short.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from burstd.domain.errors import NodeRefused, NotAllowed, ProviderError
from burstd.domain.plugins.shell import (
    OUTPUT_BYTES,
    Closing,
    CommandTimedOut,
    CompletedCommand,
    ConnectionLost,
    LineStream,
    NotListening,
    TerminalSize,
    last_words,
)
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.websocket import RESIZE, STATUS, STDERR, STDIN, STDOUT, exit_code
from providers.openshift.pods.manifest import CONTAINER

_CLOSING_S = 5.0
"""So long after the exit status the rest of the output may come: each stream takes its own way."""
_COMPLAINT_BYTES = 1 << 16
_DATA = 0
"""Channel of ``pods/portforward``."""
# All of standard input is read, whatever the command reads of it: some container runtimes never tell the end of a
# command that left any. $1: length of standard input. The command follows.
_RUN = """n=$1; shift; [ "$n" -gt 0 ] || exec "$@" </dev/null
head -c "$n" | { "$@"; rc=$?; cat >/dev/null; exit "$rc"; }"""
# The script comes first, byte by byte: some take more from a pipe than they are told. $1: its length, $2: that of its
# standard input. Its arguments follow.
_SCRIPT = 't=$(dd bs=1 count="$1" 2>/dev/null; echo .); n=$2; shift 2; set -- "$n" sh -c "${t%.}" sh "$@"\n' + _RUN
# Tells the sockets that listen (0A), as the kernel has them: address and port in hexadecimal digits.
_LISTENERS = ("awk", '$4 == "0A" { print $2 }', "/proc/net/tcp", "/proc/net/tcp6")
_LOOPBACK = ("00000000", "0100007F", "0" * 32, "0" * 24 + "01000000")
"""0.0.0.0, 127.0.0.1, :: and ::1, as a little-endian kernel writes them."""


class _Socket(Protocol):
    """A websocket to the API server, read by channels."""

    def send(self, channel: int, data: bytes | memoryview) -> None: ...

    def receive(self, timeout_s: float | None = None) -> tuple[int, bytes] | None: ...

    def close(self) -> None: ...


class PodShell(Closing):
    """Implements ``burstd.domain.plugins.shell.Shell``, with the rights of the pod's own user."""

    def __init__(self, calls: OpenShiftCalls, pod: str) -> None:
        """Makes no call so far."""
        self._calls = calls
        self._pod = pod
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._listening: set[int] = set()
        """Ports that something was seen to listen at."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - see Shell
        """Runs a command."""
        return self._run(["sh", "-c", _RUN, "sh", str(len(input)), *argv], input, timeout_s, argv[0])

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - see Shell
        """Runs a POSIX sh script with arguments, in one round trip."""
        sent = text.encode()
        words = ["sh", "-c", _SCRIPT, "sh", str(len(sent)), str(len(input)), *args]
        return self._run(words, sent + input, timeout_s, "a script")

    def start_process(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> PodTalk:  # noqa: ARG002 - the settings say it
        """Starts a command and talks with it line by line."""
        return PodTalk(self._exec(argv, argv[0]), self._pod)

    def open_terminal(
        self,
        argv: Sequence[str],
        size: TerminalSize,
        *,
        timeout_s: float = 30.0,  # noqa: ARG002 - the settings say it
    ) -> PodTerminal:
        """Starts a command on a terminal of its own."""
        terminal = PodTerminal(self._exec(argv, argv[0], tty=True), self._pod)
        try:
            terminal.resize(size)
        except OSError as error:
            terminal.close()
            raise ConnectionLost(f"pod {self._pod} hung up before it ran {argv[0]}: {error}") from None
        return terminal

    def dial(self, port: int, timeout_s: float = 30.0) -> PodWire:
        """Connects to a TCP port of the pod. Checks first that a process listens: the API server accepts any port."""
        if port not in self._listening:
            said = self.run(_LISTENERS, timeout_s=timeout_s).out
            if not _listens(said, port):
                raise NotListening(f"nothing listens at port {port} of pod {self._pod} (on 127.0.0.1) so far")
            self._listening.add(port)
        try:
            socket = self._calls.forward_socket(self._pod, port)
        except (ProviderError, OSError) as error:
            raise ConnectionLost(f"port {port} of pod {self._pod} cannot be reached: {error}") from None
        wire = PodWire(socket, lambda: self._listening.discard(port))
        self._open.add(wire)
        return wire

    def close(self) -> None:
        """Closes the connection; may be repeated."""
        for one in list(self._open):
            one.close()

    def _exec(self, argv: Sequence[str], name: str, *, tty: bool = False) -> _Socket:
        try:
            socket = self._calls.exec_socket(self._pod, argv, container=CONTAINER, tty=tty)
        except NotAllowed as error:
            # It would not be otherwise in a while, and each machine would be paid for until its time is over.
            raise NodeRefused(f"{name} may not be started in pod {self._pod}: {error}", cause=error.cause) from None
        except (ProviderError, OSError) as error:
            raise ConnectionLost(f"{name} could not be started in pod {self._pod}: {error}") from None
        self._open.add(socket)
        return socket

    def _run(self, argv: Sequence[str], sent: bytes, timeout_s: float, name: str) -> CompletedCommand:
        until = time.monotonic() + timeout_s
        socket = self._exec(argv, name)
        try:
            if sent:
                # Beside what is received: a command may say much before it has read all.
                threading.Thread(target=_send, args=(socket, sent), daemon=True).start()
            return _read_result(socket, until)
        except TimeoutError:
            raise CommandTimedOut(f"pod {self._pod} took more than {timeout_s:.0f} s for {name}") from None
        except OSError as error:
            raise ConnectionLost(f"pod {self._pod} hung up while it ran {name}: {error}") from None
        finally:
            socket.close()


class PodTalk(LineStream):
    """Implements ``burstd.domain.plugins.shell.RemoteProcess``."""

    def __init__(self, socket: _Socket, pod: str) -> None:
        super().__init__(f"pod {pod}")
        self._socket = socket
        self._said = bytearray()
        self._status: bytes | None = None
        self._ended = False

    def write_line(self, line: bytes) -> None:
        """Sends a line to its standard input. Raises ConnectionLost."""
        try:
            self._socket.send(STDIN, line)
        except OSError as error:
            raise self._lost(error) from None

    def stderr_tail(self) -> str:
        """The end of its standard error."""
        until = time.monotonic() + _CLOSING_S
        with contextlib.suppress(OSError, ConnectionLost):
            while time.monotonic() < until and (piece := self._receive(0.0)) != b"":
                self._heard += piece or b""
        return last_words(self._said)

    def close(self) -> None:
        """Closes the connection; may be repeated."""
        self._socket.close()

    def _receive(self, timeout_s: float) -> bytes | None:
        came: tuple[int, bytes] | None = None
        if not self._ended:
            try:
                came = self._socket.receive(_CLOSING_S if timeout_s and self._status is not None else timeout_s)
            except TimeoutError:
                if self._status is None or not timeout_s:
                    raise
        if came is None:
            self._ended = True
            # A command that was cut off looks ended too; one that has ended tells its status.
            if self._status is None:
                raise self._lost()
            exit_code(self._status)
            return b""
        channel, data = came
        if channel == STDERR:
            self._said = (self._said + data)[-_COMPLAINT_BYTES:]
        elif channel == STATUS:
            self._status = data
        return data if channel == STDOUT else None


class PodWire:
    """Implements ``burstd.domain.plugins.shell.PortConnection``."""

    def __init__(self, socket: _Socket, refused: Any) -> None:
        """``refused`` is called where the port turns out to be shut."""
        self._socket = socket
        self._refused = refused
        self._rest = b""

    def recv(self, most: int) -> bytes:
        """At most so many bytes; empty: the other side has finished. Raises OSError."""
        if not self._rest:
            came = self._socket.receive()
            if came is None:
                return b""
            channel, self._rest = came
            if channel != _DATA:
                words, self._rest = self._rest.decode("utf-8", "replace").strip(), b""
                self._refused()
                self.close()
                raise ConnectionError(words)
        found, self._rest = self._rest[:most], self._rest[most:]
        return found

    def sendall(self, data: bytes) -> None:
        """Sends all bytes. Raises OSError."""
        self._socket.send(_DATA, data)

    def shutdown_write(self) -> None:
        """Does nothing: the protocol has no half-close."""

    def close(self) -> None:
        """Closes the connection; may be repeated."""
        self._socket.close()


class PodTerminal:
    """Implements ``burstd.domain.plugins.shell.RemoteTerminal``."""

    def __init__(self, socket: _Socket, pod: str) -> None:
        self._socket = socket
        self._pod = pod
        self._rest = b""
        self._status: bytes | None = None

    def recv(self, most: int) -> bytes:
        """At most so many bytes; empty: the command has ended, or is lost. Raises OSError."""
        while not self._rest:
            try:
                came = self._socket.receive(None if self._status is None else _CLOSING_S)
            except TimeoutError:
                came = None
            if came is None:
                return b""
            channel, data = came
            if channel == STATUS:
                self._status = data
            elif channel == STDOUT:
                self._rest = data
        found, self._rest = self._rest[:most], self._rest[most:]
        return found

    def sendall(self, data: bytes) -> None:
        """Types this. Raises OSError."""
        self._socket.send(STDIN, data)

    def resize(self, size: TerminalSize) -> None:
        """Raises OSError."""
        self._socket.send(RESIZE, json.dumps({"Width": size.columns, "Height": size.rows}).encode())

    def exit_status(self) -> int:
        """Of the command. Raises ConnectionLost."""
        try:
            if self._status is not None:
                return exit_code(self._status)
        except ConnectionError as error:
            raise ConnectionLost(f"pod {self._pod}: {error}") from None
        raise ConnectionLost(f"pod {self._pod} hung up")

    def close(self) -> None:
        """Closes the connection; may be repeated."""
        self._socket.close()


def _send(socket: _Socket, data: bytes) -> None:
    """A command that ends without reading it all is no error; where the connection broke, whoever listens says so."""
    with contextlib.suppress(OSError):
        socket.send(STDIN, data)


def _read_result(socket: _Socket, until: float) -> CompletedCommand:
    """All that a command says until its end. Raises TimeoutError, and OSError where it was cut off."""
    said = {STDOUT: bytearray(), STDERR: bytearray()}
    status: bytes | None = None
    while True:
        try:
            came = socket.receive(max(0.0, until - time.monotonic()))
        except TimeoutError:
            if status is None:
                raise
            break
        if came is None:
            break
        channel, data = came
        if channel == STATUS and status is None:
            status, until = data, time.monotonic() + _CLOSING_S
        elif time.monotonic() > until and status is None:
            raise TimeoutError("it goes on after its time")
        elif time.monotonic() > until:
            break
        elif channel in said:
            said[channel] += data
            if sum(map(len, said.values())) > OUTPUT_BYTES:
                raise ConnectionError(f"more than {OUTPUT_BYTES} bytes of output")
    if status is None:
        raise ConnectionError("its exit status did not come")
    out, err = (bytes(said[channel]).decode("utf-8", "replace") for channel in (STDOUT, STDERR))
    return CompletedCommand(exit_code(status), out, err)


def _listens(said: str, port: int) -> bool:
    wanted = {f"{address}:{port:04X}" for address in _LOOPBACK}
    return not wanted.isdisjoint(said.split())
