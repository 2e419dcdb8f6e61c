"""The inside of a machine: commands on it, and its ports. Sessions of ssh have it, and some providers' own way in."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from burstd.domain.errors import NodeNotReady

LINE_BYTES = 4 << 20
"""No line that is heard is longer: the longest tell what was collected, a hundred bytes for each object of a list."""
OUTPUT_BYTES = 1 << 20
"""More output than this of one ``run`` breaks the connection: what burstd runs says little."""


_POLL_S = 0.5


class ConnectionLost(NodeNotReady):
    """The connection broke; how far the machine got is not known, and every step may be repeated."""

    again = True


class CommandTimedOut(NodeNotReady):
    """The machine did not finish in time."""

    again = True


@dataclass(frozen=True, slots=True)
class CompletedCommand:
    """What a command came to: exit status, standard output and standard error."""

    rc: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line that it said, for an error message."""
        lines = [*self.out.strip().splitlines(), *self.err.strip().splitlines()]
        return lines[-1][-400:] if lines else f"exit status {self.rc}"


class RemoteProcess(Protocol):
    """A command that runs on a machine, to be spoken with. It ends, or loses its standard input, with ``close``."""

    def write_line(self, line: bytes) -> None:
        """Sends to its standard input. Raises ConnectionLost."""
        ...

    def read_line(self, quiet_s: float, cancelled: threading.Event) -> bytes | None:
        """The next line of its standard output; empty: it has ended; None: ``cancelled`` was set.

        Raises CommandTimedOut where it says nothing for ``quiet_s``, ConnectionLost, also for a line without an end.
        """
        ...

    def stderr_tail(self) -> str:
        """The end of what it wrote to its standard error."""
        ...

    def close(self) -> None:
        """Ends the conversation."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Closing(ABC):
    """Its ``close`` ends a ``with``."""

    @abstractmethod
    def close(self) -> None:
        """May be repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LineStream(Closing):
    """The half of a RemoteProcess that reads: lines out of what comes in pieces."""

    def __init__(self, peer: str) -> None:
        """``peer``: who speaks, for messages."""
        self._peer = peer
        self._heard = bytearray()

    def read_line(self, quiet_s: float, cancelled: threading.Event) -> bytes | None:
        """As RemoteProcess has it."""
        deadline = time.monotonic() + quiet_s
        searched = 0
        while (end := self._heard.find(b"\n", searched)) < 0:
            searched = len(self._heard)
            if searched > LINE_BYTES:
                raise ConnectionLost(f"{self._peer} said more than {LINE_BYTES} bytes without an end of line")
            if cancelled.is_set():
                return None
            try:
                piece = self._receive(_POLL_S)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise CommandTimedOut(f"{self._peer} was not heard for {quiet_s:.0f} s") from None
                continue
            except OSError as error:
                raise self._lost(error) from None
            if piece == b"":
                return b""
            self._heard += piece or b""
            deadline = time.monotonic() + quiet_s
        line = bytes(self._heard[: end + 1])
        del self._heard[: end + 1]
        return line

    @abstractmethod
    def _receive(self, timeout_s: float) -> bytes | None:
        """What comes next of its standard output; empty: it has ended; None: something else came.

        Raises TimeoutError, OSError, and ConnectionLost where it was cut off.
        """

    def _lost(self, error: BaseException | None = None) -> ConnectionLost:
        return ConnectionLost(f"{self._peer} hung up in the middle" + (f": {error}" if error else ""))


def last_words(said: bytes | bytearray) -> str:
    """The last line of a command's standard error, for a message."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-400:] if lines else "nothing was said"


class PortConnection(Protocol):
    """A connection to a port of the machine. Both directions may be used by a thread each."""

    def recv(self, most: int) -> bytes:
        """What came, at most so many bytes; empty: the other side has said all. Raises OSError."""
        ...

    def sendall(self, data: bytes) -> None:
        """Raises OSError."""
        ...

    def shutdown_write(self) -> None:
        """Nothing more is sent; what the other side says can still be received. Where that cannot be told, nothing."""
        ...

    def close(self) -> None:
        """Ends it; a ``recv`` that waits returns. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Of a terminal, in characters."""

    rows: int
    columns: int


class RemoteTerminal(Protocol):
    """A command on a terminal of the machine. One thread may receive while another sends; any may close it."""

    def recv(self, most: int) -> bytes:
        """What it wrote, at most so many bytes; empty: it has ended, or is lost. Raises OSError."""
        ...

    def sendall(self, data: bytes) -> None:
        """Types this. Raises OSError."""
        ...

    def resize(self, size: TerminalSize) -> None:
        """Raises OSError."""
        ...

    def exit_status(self) -> int:
        """Of the command, after ``recv`` has told its end. Raises ConnectionLost where it is not known."""
        ...

    def close(self) -> None:
        """Hangs up; a ``recv`` that waits returns. May be repeated."""
        ...


class CommandShell(Protocol):
    """A way into one machine, to run commands with the rights that burstd has there. Not for several threads at once.

    Close it, or use ``with``. What burstd will never be allowed to do there raises NodeRefused.
    """

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - as in subprocess.run
        """Runs a command, with the end of its standard input after ``input``. Secrets belong into ``input`` only.

        Raises ConnectionLost, CommandTimedOut; the shell is of no use after either. An exit status other than 0 is no
        error here.
        """
        ...

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - see run
        """Runs a POSIX sh script with arguments, in one round trip; otherwise as ``run``."""
        ...

    def close(self) -> None:
        """Hangs up; may be repeated."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Shell(CommandShell, Protocol):
    """A CommandShell that does more. Its wires may be used by threads of their own."""

    def start_process(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> RemoteProcess:
        """Starts a command and talks with it line by line. Raises ConnectionLost."""
        ...

    def open_terminal(self, argv: Sequence[str], size: TerminalSize, *, timeout_s: float = 30.0) -> RemoteTerminal:
        """Starts a command on a terminal of its own. Raises ConnectionLost. It ends with the shell."""
        ...

    def dial(self, port: int, timeout_s: float = 30.0) -> PortConnection:
        """Connects to a TCP port that something on the machine listens at, on all addresses or on 127.0.0.1 only.

        Raises NotListening, ConnectionLost; neither ends the wires that there are. The wire ends with the shell.
        """
        ...


class NotListening(NodeNotReady):
    """Nothing on the machine listens at the port so far, or what does takes no connection."""

    again = True
