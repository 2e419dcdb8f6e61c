"""What every command shares: ``--json`` and ``--socket``, the connection to the daemon, exit codes, completion."""

from __future__ import annotations

import inspect
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import typer

from burstd.api.answers.text import parse_time
from burstd.cli.plain_text import json_text, print_json, safe_text
from burstd.domain.cloud.read_limits import read_bounded

if TYPE_CHECKING:
    from datetime import tzinfo

    from burstd.api.answers.base import AnswerView
    from burstd.cli.output import ConsoleOutput

P = ParamSpec("P")
A = TypeVar("A", bound="AnswerView")
Params = Mapping[str, str | int | float]

DEFAULT_SOCKET = Path("/run/burstd/control.sock")
REQUEST_TIMEOUT_S = 40.0
"""Longer than the daemon lets a command wait."""
MAX_ANSWER_BYTES = 64 << 20
"""No answer of the daemon's is longer: 10,000 events have some MiB."""
_PIECE_BYTES = 1 << 16
_URL_CHARACTERS = "/?=&%+:,"
"""Those of a path and its query that stay as they are."""


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
    STANDBY = 75
    """The other head leads: ask there."""


EXIT_CODE_BY_STATUS = {
    403: ExitCode.FORBIDDEN, 404: ExitCode.NOT_FOUND, 409: ExitCode.NEGATIVE,
    HTTPStatus.MISDIRECTED_REQUEST: ExitCode.STANDBY, 422: ExitCode.USAGE,
}  # fmt: skip
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


_MAX_FAULT_CHARS = 200
answered_sockets: list[Path] = []
"""Sockets that answered this program: a later error may come from their answers."""


class ApiClient:
    """A connection to the daemon; turns errors into messages and exit codes."""

    watching = False
    """Whether what is asked for is asked for again and again."""

    def __init__(self, path: Path, *, as_json: bool) -> None:
        self.path = path
        self.json = as_json

    def get_json(self, path: str, params: Params | None = None) -> Any:
        """An answer as JSON; ends the program where there is none."""
        return self.request("GET", path, params=params)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Params | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """An answer as JSON; ends the program with a sentence and the right code where there is none."""
        try:
            return self.answer_or_exit(*self.request_status(method, path, body, params, timeout_s))
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

    def parse(self, model: type[A], answer: Any) -> A:
        """The answer with its types; ends the program where it has not what this version knows."""
        from pydantic import ValidationError

        try:
            return model.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:_MAX_FAULT_CHARS]
            self.fail(
                ExitCode.NEGATIVE,
                f"the answer from {self.path} cannot be shown ({fault}): is it burstd there, of this version?",
            )

    def show(self, model: type[A], answer: Any, draw: Callable[[ConsoleOutput, A], None]) -> None:
        """Prints an answer: with ``--json`` as it came, else as ``draw`` does."""
        if self.json:
            print_json(answer)
        else:
            from burstd.cli.output import ConsoleOutput  # with rich, which takes long to load

            draw(ConsoleOutput(), self.parse(model, answer))

    def parse_times(self, zone: tzinfo | None = None, **options: str) -> dict[str, float]:
        """What ``--since`` and the like say, in seconds since 1970; nothing for those that are empty.

        ``zone``: of times that name none; None: local time.
        """
        found: dict[str, float] = {}
        for name, text in options.items():
            try:
                found |= {name: parse_time(text, zone=zone)} if text else {}
            except ValueError as error:
                self.fail(ExitCode.USAGE, f"--{name}: {error}.")
        return found

    def run_command(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Params | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Has the daemon carry a command out and prints what came of it."""
        from burstd.api.answers.base import CommandResultView

        answer = self.request(method, path, body, params, timeout_s)
        self.show(CommandResultView, answer, lambda out, result: out.line(result.text))

    def request_status(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Params | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[int, Any]:
        """Status and answer. Raises DaemonUnreachable."""
        from http.client import HTTPConnection, HTTPException  # help does without it

        target = f"/v1{quote(path, safe=_URL_CHARACTERS)}"
        if params:
            target += ("&" if "?" in target else "?") + urlencode(params)
        headers = {} if body is None else {"Content-Type": "application/json"}
        # A client for the web (httpx, with its certificates) takes longer to load than the whole command.
        connection = HTTPConnection("burstd", timeout=timeout_s)
        try:
            connection.sock = self.connect(timeout_s)
            connection.request(method, target, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            pieces = iter(lambda: answer.read1(_PIECE_BYTES), b"")
            decoded = json.loads(read_bounded(pieces, MAX_ANSWER_BYTES, timeout_s))
        except TimeoutError:
            raise DaemonUnreachable(
                _with_hint(f"burstd does not answer on {self.path} within {timeout_s:.0f} s.")
            ) from None
        except (OSError, HTTPException) as error:
            raise DaemonUnreachable(_with_hint(f"burstd closed the connection on {self.path} ({error}).")) from None
        except (ValueError, RecursionError):
            decoded = None
        finally:
            connection.close()
        if not isinstance(decoded, dict):
            raise DaemonUnreachable(f"What answers on {self.path} is not burstd; choose its socket with --socket.")
        answered_sockets.append(self.path)
        return answer.status, decoded

    def connect(self, timeout_s: float) -> socket.socket:
        """To the daemon's socket. Raises DaemonUnreachable."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setsockopt(*connect_timeout_option(timeout_s))
            connection.connect(str(self.path))
        except OSError:
            connection.close()
            raise connection_error(self.path) from None
        connection.settimeout(timeout_s)
        return connection

    def fail(self, code: ExitCode, text: str) -> NoReturn:
        """Says why on standard error and ends the program."""
        message = json_text({"error": text, "code": int(code)}) if self.json else f"burstctl: {safe_text(text)}"
        sys.stderr.write(message + "\n")
        raise typer.Exit(code)


def with_client(function: Callable[Concatenate[ApiClient, P], None]) -> Callable[..., None]:
    """A command that takes ``--json`` and ``--socket`` as well; the function gets a connection instead of them."""
    return _with_options(function, json=JsonOption, socket=SocketOption)


def without_daemon(function: Callable[Concatenate[ApiClient, P], None]) -> Callable[..., None]:
    """The same of a command that needs no daemon: it takes ``--json`` only."""
    return _with_options(function, json=JsonOption)


def _with_options(function: Callable[..., None], **options: Any) -> Callable[..., None]:
    def run(ctx: typer.Context, json: bool, socket: Path | None = None, **words: Any) -> None:
        root = ctx.find_root()
        shared: GlobalOptions = root.obj
        chosen = socket or shared.socket
        if ctx.invoked_subcommand is not None:  # this is the callback of a group
            for name, value in words.items():
                if value != given[name].default:
                    raise typer.BadParameter(f"say it after {ctx.invoked_subcommand}", ctx, param_hint=f"--{name}")
            root.obj = GlobalOptions(json or shared.json, chosen)
            return
        path = _preferred_socket(chosen) if chosen == DEFAULT_SOCKET else chosen
        function(ApiClient(path, as_json=json or shared.json), **words)

    word = inspect.Parameter.KEYWORD_ONLY
    given = inspect.signature(function, eval_str=True).parameters
    more = [
        inspect.Parameter(name, word, default=False if name == "json" else None, annotation=option)
        for name, option in options.items()
    ]
    parameters = [
        inspect.Parameter("ctx", word, annotation=typer.Context),
        *(one.replace(kind=word) for one in list(given.values())[1:]),
        *more,
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def completion(path: str, items: str, *keys: str) -> Callable[[typer.Context, str], list[str]]:
    """Completes names that the daemon has in the list ``items`` of an answer; none where it does not answer."""

    def names(ctx: typer.Context, incomplete: str) -> list[str]:
        shared = ctx.find_root().obj
        # While completing, the callback of the program itself has not run.
        socket_path = shared.socket if shared else Path(os.environ.get("BURSTD_SOCKET") or DEFAULT_SOCKET)
        try:
            status, answer = ApiClient(socket_path, as_json=False).request_status("GET", path)
        except DaemonUnreachable:
            return []
        found = {item[key] for item in answer.get(items, ()) for key in keys} if status == 200 else set()
        return sorted(name for name in found if name and name.startswith(incomplete))

    return names


pool_names = completion("/status", "pools", "name")
provider_names = completion("/status", "providers", "name")
node_names = completion("/nodes?all=true", "nodes", "slot", "claim")
job_ids = completion("/jobs", "jobs", "id")
staged_job_ids = completion("/stage", "jobs", "job")
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="123, 123_7 or 123+1.", autocompletion=job_ids)]


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
    from burstd.api.answers.base import current_user

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


def confirm(burstd: ApiClient, question: str) -> None:
    """Asks the person at the terminal; ends burstctl where the answer is not yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        burstd.fail(ExitCode.USAGE, "Nobody answered; say --yes to do it without being asked.")
    if answer.strip().lower() not in ("y", "yes"):
        burstd.fail(ExitCode.NEGATIVE, "Nothing was done.")
