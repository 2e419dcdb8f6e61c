"""burstctl route, port-forward"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket as sockets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burstd.cli.job_socket import JobRefused, JobSocket, read_answer_line
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json_line, safe_text
from burstd.cli.session import (
    EXIT_CODE_BY_STATUS,
    ApiClient,
    DaemonUnreachable,
    ExitCode,
    JobArgument,
    with_client,
)
from burstd.cli.watch import listing
from burstd.transfer.protocol.relay import SocketWire, relay, shutdown_socket

if TYPE_CHECKING:
    from burstd.api.answers.jobs import RoutesView, RouteView

HOST = "127.0.0.1"
HUNG_UP = "burstd hung up; try again when it runs."
"""Why a port is no longer carried though its job may run."""
_ACCEPT_RETRY_S = 1.0
"""After a connection that could not be accepted."""
_PROC_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_CONNECTED_STATES = ("01", "04", "05")
"""States of the client's end as the tables have them: ESTABLISHED, and FIN_WAIT1 and 2 where it has said all."""
_LIVE_STATES = (1, 8)
"""States of this end as TCP_INFO has them: ESTABLISHED, and CLOSE_WAIT where the client has said all."""

app = typer.Typer(
    help="Web addresses of ports of your running jobs, on clouds that have them (OpenShift).\n\nThey are public: "
    "whoever knows one reaches the port, so the program there must ask for a token or password of its own. A job's end "
    "closes them. For yourself alone, use burstctl port-forward.",
    no_args_is_help=True,
)


@app.command("open")
@with_client
def open_route(
    burstd: ApiClient,
    job_id: JobArgument,
    port: Annotated[
        int, typer.Argument(metavar="PORT", min=1024, max=65535, help="What the job listens at, on all addresses.")
    ],
    node: Annotated[str, typer.Option(help="One of the job's nodes; default: the first.")] = "",
) -> None:
    """Give a port of your running job a public web address (https)."""
    from burstd.api.answers.jobs import RouteView

    burstd.show(RouteView, burstd.request("POST", f"/jobs/{job_id}/routes", {"port": port, "node": node}), _print_route)


def _print_route(out: ConsoleOutput, answer: RouteView) -> None:
    out.line((answer.url or "The cluster has not chosen its address so far: burstctl route list.", "bold"))
    out.note(
        f"Port {answer.port} of {answer.node} is public there, until job {answer.job} ends: what listens must have a "
        "token or password of its own.",
        "yellow",
    )


@app.command("list")
@listing
def list_routes(burstd: ApiClient) -> None:
    """The open ones of your jobs; for administrators, everyone's."""
    from burstd.api.answers.jobs import RoutesView

    burstd.show(RoutesView, burstd.get_json("/routes"), _print_routes)


def _print_routes(out: ConsoleOutput, answer: RoutesView) -> None:
    if not answer.routes:
        out.line("No route is open.")
        return
    rows = [(r.job, str(r.port), r.node, r.provider, r.url) for r in answer.routes]
    out.table(("JOB", "PORT>", "NODE", "PROVIDER", "ADDRESS*"), rows)


@app.command("close")
@with_client
def close_route(
    burstd: ApiClient,
    job_id: JobArgument,
    port: Annotated[int, typer.Argument(metavar="PORT", min=0, max=65535, help="Default: all of the job's.")] = 0,
) -> None:
    """Close a job's routes."""
    burstd.run_command("DELETE", f"/jobs/{job_id}/routes", params={"port": port})


@with_client
def port_forward(
    burstd: ApiClient,
    job_id: JobArgument,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="What the job listens at on its node.")],
    local: Annotated[
        int | None,
        typer.Option("--local", min=0, max=65535, help="Port of 127.0.0.1 here; default: the same, 0: any free one."),
    ] = None,
    node: Annotated[str, typer.Option(help="One of the job's nodes; default: the first.")] = "",
) -> None:
    """Bring a port of your running job to 127.0.0.1 here, until the job ends or Ctrl-C.

    For a notebook, TensorBoard and the like; the program may listen on its node's 127.0.0.1 alone. Only your own
    processes on this host are let through.
    """
    daemon = JobSocket(burstd.path, {"kind": "port", "job": job_id, "port": port, "node": node})
    monitor, answer = connect_or_fail(burstd, daemon)

    def announce(here: int) -> None:
        if burstd.json:
            print_json_line(
                {"host": HOST, "port": here, "job": answer.get("job"), "node": answer.get("node"), "to": port}
            )
        else:
            where = safe_text(f"port {port} of {answer.get('node')}, until job {answer.get('job')}")
            typer.echo(f"{HOST}:{here} is {where} ends or Ctrl-C.")

    with monitor:
        try:
            why = carry_port(burstd, daemon, monitor, port if local is None else local, local is not None, announce)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
    burstd.fail(ExitCode.NEGATIVE, why)


def connect_or_fail(burstd: ApiClient, daemon: JobSocket) -> tuple[sockets.socket, dict[str, Any]]:
    """A connection that tells the job's end, and the answer; ends burstctl where there is none."""
    try:
        return daemon.connect(hold=True)
    except JobRefused as no:
        burstd.fail(EXIT_CODE_BY_STATUS.get(no.status, ExitCode.UNREACHABLE), str(no))
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))


def carry_port(
    burstd: ApiClient,
    daemon: JobSocket,
    monitor: sockets.socket,
    local: int,
    local_given: bool,
    announce: Callable[[int], None],
) -> str:
    """Carries connections to port ``local`` of 127.0.0.1 here, or another where it is taken and nobody gave it.

    ``announce`` is called with the port once they are taken. Returns why the job's end of it is over.
    """
    with _listen(burstd, local, port_given=local_given) as listener:
        announce(listener.getsockname()[1])
        sys.stdout.flush()
        return _accept_until_closed(listener, monitor, daemon)


def _listen(burstd: ApiClient, port: int, *, port_given: bool) -> sockets.socket:
    try:
        return sockets.create_server((HOST, port))
    except OSError as error:
        if port_given:
            burstd.fail(
                ExitCode.NEGATIVE,
                f"Port {port} of {HOST} cannot be used here: {os.strerror(error.errno or 0)}. Choose another.",
            )
    # It is taken, or below 1024; the number is no promise.
    return sockets.create_server((HOST, 0))


def _accept_until_closed(listener: sockets.socket, monitor: sockets.socket, daemon: JobSocket) -> str:
    """Takes connections until the daemon says that it is over; returns why."""
    while True:
        ready, _, _ = select.select([listener, monitor], [], [])
        if monitor in ready:
            with contextlib.suppress(OSError):
                if why := read_answer_line(monitor).get("error"):
                    return f"{str(why)[:1].upper()}{str(why)[1:]}."
            return HUNG_UP
        try:
            connection, client = listener.accept()
        except OSError as error:
            warn(f"a connection could not be accepted: {os.strerror(error.errno or 0)}.")
            select.select([monitor], [], [], _ACCEPT_RETRY_S)
            continue
        threading.Thread(target=_relay_connection, args=(connection, client, daemon), daemon=True).start()


def _relay_connection(connection: sockets.socket, client: tuple[str, int], daemon: JobSocket) -> None:
    with connection:
        if not peer_is_same_user(connection, client):
            warn("a connection was not let through: no process of yours has its other end.")
            shutdown_socket(connection)
            return
        try:
            far, _ = daemon.connect(hold=False)
        except (JobRefused, DaemonUnreachable) as error:
            warn(str(error))
            return
        with far:
            relay(connection, SocketWire(far))


def peer_is_same_user(connection: sockets.socket, client: tuple[str, int], also: int | None = None) -> bool:
    """Whether a process of this user has the other end, or one of the uid ``also``.

    ``client``: the address of that end, as accept() told it.
    Once it has, all that comes is his. While this end lives there is no second connection between the same two
    addresses; after a reset there may be, and its owner would be found instead: so this end is looked at last.
    """
    owner = _peer_uid(client, connection.getsockname())
    return (
        owner is not None
        and owner in (os.geteuid(), also)
        and connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 1)[0] in _LIVE_STATES
    )


def sudo_uid() -> int | None:
    """Uid of who ran this by sudo; None: nobody did. Only this user and root can have said it."""
    said = os.environ.get("SUDO_UID", "")
    return int(said) if re.fullmatch("[0-9]{1,10}", said) else None


def _peer_uid(client: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Uid of the socket at ``client`` that is connected with ``here``, both of this host; None: no process has it.

    A socket that nobody has any more has inode 0, and uid 0 whosever it was.
    https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html
    """
    for table, prefix in zip(_PROC_TCP_TABLES, (b"", bytes(10) + b"\xff\xff"), strict=True):
        ends = [_proc_address(prefix, client), _proc_address(prefix, here)]
        # Where the kernel has no IPv6 there is one table alone.
        with contextlib.suppress(FileNotFoundError), table.open(encoding="ascii") as rows:
            next(rows)
            for columns in map(str.split, rows):
                if columns[1:3] == ends and columns[3] in _CONNECTED_STATES and columns[9] != "0":
                    return int(columns[7])
    return None


def _proc_address(prefix: bytes, address: tuple[str, int]) -> str:
    """As the tables write it: hexadecimal words of 32 bits, whose bytes are in the machine's order.

    ``prefix`` makes an IPv6 address of it, as a program has it whose sockets are for both.
    """
    octets = prefix + sockets.inet_aton(address[0])
    groups = (int.from_bytes(octets[n : n + 4], sys.byteorder) for n in range(0, len(octets), 4))
    return f"{''.join(f'{group:08X}' for group in groups)}:{address[1]:04X}"


def warn(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"burstctl: {safe_text(text)}\n")
