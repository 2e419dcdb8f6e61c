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
from burstd.domain.cloud.read_limits import read_bounded

if TYPE_CHECKING:
    import httpx

DEFAULT_SOCKET = Path("/run/burstd/control.sock")
REQUEST_TIMEOUT_S = 40.0
"""Longer than the daemon lets a command wait."""
MAX_ANSWER_BYTES = 64 << 20
"""No answer of the daemon's is longer: 10,000 events have some MiB."""


def connect_timeout_option(seconds: float) -> tuple[int, int, bytes]:
    """Option of a blocking socket: connect() waits so long for room in the daemon's queue, which others may fill.

    Without it connect() waits for ever, and one of a socket with a time-out fails at once.
    """
    return socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), 0)


class ExitCode(IntEnum):
    """Exit codes. Stable: scripts rely on them."""

    OK = 0
    NEGATIVE = 1
    """A negative answer: the daemon refused, or a check found faults."""
    USAGE = 2
    UNREACHABLE = 3
    """The daemon cannot be reached, or cannot answer now."""
    FORBIDDEN = 4
    NOT_FOUND = 5


EXIT_CODE_BY_STATUS = {403: ExitCode.FORBIDDEN, 404: ExitCode.NOT_FOUND, 409: ExitCode.NEGATIVE, 422: ExitCode.USAGE}
"""By HTTP status."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
SocketOption = Annotated[Path | None, typer.Option("--socket", metavar="PATH", help="The daemon's control socket.")]


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """What was said before the subcommand."""

    json: bool
    socket: Path


class DaemonUnreachable(Exception):
    """The daemon cannot be reached; the message says why and how to see more."""


class DaemonNotRunning(DaemonUnreachable):
    """Nobody listens: burstd does not run here, or listens elsewhere."""


answered_sockets: list[Path] = []
"""Sockets that answered this program: a later error may come from their answers."""


class ApiClient:
    """A connection to the daemon; turns errors into messages and exit codes."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self.path = path
        self.json = as_json
        self._client: httpx.Client | None = None

    def get(self, path: str, params: Mapping[str, str | int | float] | None = None) -> Any:
        """An answer; ends the program where there is none."""
        return self.request("GET", path, params=params)

    def request(
        self, method: str, path: str, body: object = None, params: Mapping[str, str | int | float] | None = None
    ) -> Any:
        """An answer; ends the program with a sentence and the right code where there is none."""
        try:
            return self.answer_or_exit(*self.request_status(method, path, body, params))
        except DaemonUnreachable as error:
            self.fail(ExitCode.UNREACHABLE, str(error))

    def answer_or_exit(self, status: int, answer: Any) -> Any:
        """The answer itself; ends the program where it is an error."""
        if status >= 400:
            self.fail(
                EXIT_CODE_BY_STATUS.get(status, ExitCode.UNREACHABLE),
                str(answer.get("error", f"The daemon answered {status}.")),
            )
        return answer

    def request_status(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, str | int | float] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[int, Any]:
        """Status and answer. Raises Unreachable."""
        import httpx  # noqa: PLC0415  # help and completion do without it

        if self._client is None:
            # Without the environment: a proxy has no part in a unix socket.
            transport = httpx.HTTPTransport(uds=str(self.path), socket_options=[connect_timeout_option(timeout_s)])
            self._client = httpx.Client(transport=transport, base_url="http://burstd/v1", trust_env=False)
        try:
            limits = httpx.Timeout(timeout_s, connect=None)
            # As it comes: what is packed may unpack to anything.
            headers = {"Accept-Encoding": "identity"}
            with self._client.stream(method, path, json=body, params=params, headers=headers, timeout=limits) as answer:
                decoded = json.loads(read_bounded(answer.iter_raw(), MAX_ANSWER_BYTES, timeout_s))
        except httpx.TimeoutException:
            raise DaemonUnreachable(
                _with_hint(f"burstd does not answer on {self.path} within {timeout_s:.0f} s.")
            ) from None
        except httpx.ConnectError:
            raise connection_error(self.path) from None
        except httpx.TransportError as error:
            raise DaemonUnreachable(_with_hint(f"burstd closed the connection on {self.path} ({error}).")) from None
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise DaemonUnreachable(f"What answers on {self.path} is not burstd; choose its socket with --socket.")
        answered_sockets.append(self.path)
        return answer.status_code, decoded

    def fail(self, code: ExitCode, text: str) -> NoReturn:
        """Says why on standard error and ends the program."""
        message = json_text({"error": text, "code": int(code)}) if self.json else f"burstctl: {safe_text(text)}"
        sys.stderr.write(message + "\n")
        raise typer.Exit(code)


def api_client(ctx: typer.Context, as_json: bool, path: Path | None) -> ApiClient:
    """The session of a command; what stands after the subcommand goes before what stands in front of it."""
    shared: GlobalOptions = ctx.find_root().obj
    chosen = path or shared.socket
    return ApiClient(_preferred_socket(chosen) if chosen == DEFAULT_SOCKET else chosen, as_json=as_json or shared.json)


def _preferred_socket(path: Path) -> Path:
    """admin.sock beside it, where this user may use it and burstd runs: others cannot fill its queue."""
    own = path.with_name("admin.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(own))
        except OSError:
            return path
    return own


def _with_hint(text: str) -> str:
    return f"{text}\nSee more with: systemctl status burstd; journalctl -u burstd"


def connection_error(path: Path) -> DaemonUnreachable:
    """Tries once more without HTTP, whose errors hide the cause."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setsockopt(*connect_timeout_option(2))
            probe.connect(str(path))
    except BlockingIOError:
        return DaemonUnreachable(_with_hint(f"Too many connections wait at {path}; see whose with: ss -xp src {path}"))
    except FileNotFoundError:
        return DaemonNotRunning(_with_hint(
            f"There is no socket {path}: burstd does not run here, or listens elsewhere "
            "(say where with --socket or BURSTD_SOCKET)."
        ))  # fmt: skip
    except ConnectionRefusedError:
        if not path.is_socket():
            return DaemonUnreachable(_with_hint(f"{path} is no socket; choose the daemon's with --socket."))
        return DaemonNotRunning(_with_hint(f"Nobody listens on {path}: burstd has ended and left its socket behind."))
    except PermissionError:
        return DaemonUnreachable(
            _with_hint(
                f"User {current_user()} may not connect to {path}: look at the modes of its folder with ls "
                f"-ld {path.parent}."
            )
        )
    except OSError as error:
        return DaemonUnreachable(_with_hint(f"{path} cannot be connected to: {error.strerror or error}."))
    return DaemonUnreachable(_with_hint(f"burstd on {path} did not take the connection; it may have just started."))


def current_user() -> str:
    """The name of the user who runs burstctl, as far as the system knows one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
