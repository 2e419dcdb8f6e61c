"""What every command shares: ``--json`` and ``--socket``, the connection to the daemon, exit codes."""

from __future__ import annotations

import json
import os
import pwd
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from burstd.cli.output import json_text, safe_text
from burstd.domain.cloud.read_limits import whole

if TYPE_CHECKING:
    import httpx

DEFAULT_SOCKET = Path("/run/burstd/control.sock")
TIMEOUT_S = 40.0
"""Longer than the daemon lets a command wait."""
ANSWER_BYTES = 64 << 20
"""No answer of the daemon's is longer: 10,000 events have some MiB."""


def waiting(seconds: float) -> tuple[int, int, bytes]:
    """Option of a blocking socket: connect() waits so long for room in the daemon's queue, which others may fill.

    Without it connect() waits for ever, and one of a socket with a time-out fails at once.
    """
    return socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), 0)


class Code(IntEnum):
    """Exit codes. Stable: scripts rely on them."""

    OK = 0
    NO = 1
    """A negative answer: the daemon refused, or a check found faults."""
    USAGE = 2
    UNREACHABLE = 3
    """The daemon cannot be reached, or cannot answer now."""
    FORBIDDEN = 4
    NOT_FOUND = 5


CODES = {403: Code.FORBIDDEN, 404: Code.NOT_FOUND, 409: Code.NO, 422: Code.USAGE}
"""By HTTP status."""

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Socket = Annotated[Path | None, typer.Option("--socket", metavar="PATH", help="The daemon's control socket.")]


@dataclass(frozen=True, slots=True)
class Shared:
    """What was said before the subcommand."""

    json: bool
    socket: Path


class Unreachable(Exception):
    """The daemon cannot be reached; the message says why and how to see more."""


class NotRunning(Unreachable):
    """Nobody listens: burstd does not run here, or listens elsewhere."""


heard: list[Path] = []
"""Sockets that answered this program: what fails afterwards may be for what they said."""


class Session:
    """A connection to the daemon, and how to say what came of it."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self.path = path
        self.json = as_json
        self._client: httpx.Client | None = None

    def get(self, path: str, params: Mapping[str, str | int | float] | None = None) -> Any:
        """An answer; ends the program where there is none."""
        return self.ask("GET", path, params=params)

    def ask(
        self, method: str, path: str, body: object = None, params: Mapping[str, str | int | float] | None = None
    ) -> Any:
        """An answer; ends the program with a sentence and the right code where there is none."""
        try:
            return self.answered(*self.talk(method, path, body, params))
        except Unreachable as error:
            self.fail(Code.UNREACHABLE, str(error))

    def answered(self, status: int, answer: Any) -> Any:
        """The answer itself; ends the program where it is a no."""
        if status >= 400:
            self.fail(CODES.get(status, Code.UNREACHABLE), str(answer.get("error", f"The daemon answered {status}.")))
        return answer

    def talk(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, str | int | float] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[int, Any]:
        """Status and answer. Raises Unreachable."""
        import httpx  # noqa: PLC0415  # help and completion do without it

        if self._client is None:
            # Without the environment: a proxy has no part in a unix socket.
            transport = httpx.HTTPTransport(uds=str(self.path), socket_options=[waiting(timeout_s)])
            self._client = httpx.Client(transport=transport, base_url="http://burstd/v1", trust_env=False)
        try:
            limits = httpx.Timeout(timeout_s, connect=None)
            # As it comes: what is packed may unpack to anything.
            headers = {"Accept-Encoding": "identity"}
            with self._client.stream(method, path, json=body, params=params, headers=headers, timeout=limits) as answer:
                said = json.loads(whole(answer.iter_raw(), ANSWER_BYTES, timeout_s))
        except httpx.TimeoutException:
            raise Unreachable(_more(f"burstd does not answer on {self.path} within {timeout_s:.0f} s.")) from None
        except httpx.ConnectError:
            raise why_not(self.path) from None
        except httpx.TransportError as error:
            raise Unreachable(_more(f"burstd broke the connection on {self.path} off ({error}).")) from None
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise Unreachable(f"What answers on {self.path} is not burstd; choose its socket with --socket.")
        heard.append(self.path)
        return answer.status_code, said

    def fail(self, code: Code, text: str) -> NoReturn:
        """Says why on standard error and ends the program."""
        said = json_text({"error": text, "code": int(code)}) if self.json else f"burstctl: {safe_text(text)}"
        sys.stderr.write(said + "\n")
        raise typer.Exit(code)


def session(ctx: typer.Context, as_json: bool, path: Path | None) -> Session:
    """The session of a command; what stands after the subcommand goes before what stands in front of it."""
    shared: Shared = ctx.find_root().obj
    named = path or shared.socket
    return Session(_free(named) if named == DEFAULT_SOCKET else named, as_json=as_json or shared.json)


def _free(path: Path) -> Path:
    """admin.sock beside it, where this user may use it and burstd runs: others cannot fill its queue."""
    own = path.with_name("admin.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(own))
        except OSError:
            return path
    return own


def _more(text: str) -> str:
    return f"{text}\nSee more with: systemctl status burstd; journalctl -u burstd"


def why_not(path: Path) -> Unreachable:
    """Tries once more without HTTP, whose errors do not tell."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setsockopt(*waiting(2))
            probe.connect(str(path))
    except BlockingIOError:
        return Unreachable(_more(f"Too many connections wait at {path}; see whose with: ss -xp src {path}"))
    except FileNotFoundError:
        return NotRunning(_more(
            f"There is no socket {path}: burstd does not run here, or listens elsewhere "
            "(say where with --socket or BURSTD_SOCKET)."
        ))  # fmt: skip
    except ConnectionRefusedError:
        if not path.is_socket():
            return Unreachable(_more(f"{path} is no socket; choose the daemon's with --socket."))
        return NotRunning(_more(f"Nobody listens on {path}: burstd has ended and left its socket behind."))
    except PermissionError:
        return Unreachable(_more(
            f"User {whoami()} may not connect to {path}: look at the modes of its folder with ls -ld {path.parent}."
        ))  # fmt: skip
    except OSError as error:
        return Unreachable(_more(f"{path} cannot be connected to: {error.strerror or error}."))
    return Unreachable(_more(f"burstd on {path} did not take the connection; it may have just started."))


def whoami() -> str:
    """The name of the user who runs burstctl, as far as the system knows one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
