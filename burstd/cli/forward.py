"""burstctl port-forward"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket as sockets
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from burstd.cli.job import JobId
from burstd.cli.output import safe_text
from burstd.cli.session import CODES, Code, Json, Session, Socket, Unreachable, session, waiting, why_not
from burstd.transfer.protocol.relay import SocketWire, hang_up, relay

HOST = "127.0.0.1"
PATIENCE_S = 60.0
"""For the daemon's answer: it may have to make an ssh connection first."""
_LONGEST = 1 << 16
"""Bytes of an answer."""
_PAUSE_S = 1.0
"""After a connection that could not be accepted."""
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_CONNECTED = ("01", "04", "05")
"""States of the client's end as the tables have them: ESTABLISHED, and FIN_WAIT1 and 2 where it has said all."""
_LIVE = (1, 8)
"""States of this end as TCP_INFO has them: ESTABLISHED, and CLOSE_WAIT where the client has said all."""


class Refused(Exception):
    """The daemon's no, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def port_forward(
    ctx: typer.Context,
    job_id: JobId,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="What the job listens at on its node.")],
    local: Annotated[
        int | None,
        typer.Option("--local", min=0, max=65535, help="Port of 127.0.0.1 here; default: the same, 0: any free one."),
    ] = None,
    node: Annotated[str, typer.Option(help="One of the job's nodes; default: the first.")] = "",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Bring a port of your running job to 127.0.0.1 here, until the job ends or Ctrl-C.

    For a notebook, TensorBoard and the like; the program may listen on its node's 127.0.0.1 alone. Only your own
    processes on this host are let through.
    """
    burstd = session(ctx, json, socket)
    door = _Door(burstd.path.parent / "forward.sock", {"job": job_id, "port": port, "node": node})
    try:
        hold, said = door.ask(hold=True)
    except Refused as no:
        burstd.fail(CODES.get(no.status, Code.UNREACHABLE), str(no))
    except Unreachable as error:
        burstd.fail(Code.UNREACHABLE, str(error))
    with hold, _listen(burstd, port if local is None else local, given=local is not None) as listener:
        here = listener.getsockname()[1]
        if burstd.json:
            _tell({"host": HOST, "port": here, "job": said.get("job"), "node": said.get("node"), "to": port})
        else:
            where = safe_text(f"port {port} of {said.get('node')}, until job {said.get('job')}")
            typer.echo(f"{HOST}:{here} is {where} ends or Ctrl-C.")
        sys.stdout.flush()
        try:
            why = _serve(listener, hold, door)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        burstd.fail(Code.NO, why)


class _Door:
    """The daemon's socket for ports of jobs, and what is asked for there."""

    def __init__(self, path: Path, wish: dict[str, Any]) -> None:
        self._path = path
        self._wish = wish

    def ask(self, *, hold: bool) -> tuple[sockets.socket, dict[str, Any]]:
        """A connection that was let through, and the answer. Raises Refused, Unreachable."""
        connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        answer: dict[str, Any] = {}
        try:
            connection.setsockopt(*waiting(PATIENCE_S))
            connection.connect(str(self._path))
            connection.settimeout(PATIENCE_S)
            # A no may come before the question; it is heard below.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(self._wish | {"hold": hold}).encode() + b"\n")
            answer = _line(connection)
            connection.settimeout(None)
        except TimeoutError:
            raise Unreachable(f"burstd does not answer on {self._path} within {PATIENCE_S:.0f} s.") from None
        except OSError:
            raise why_not(self._path) from None
        finally:
            if not answer.get("ok"):
                connection.close()
        if not answer:
            raise Unreachable(f"burstd on {self._path} hung up without an answer; it may be ending.")
        if not answer.get("ok"):
            status = answer.get("status")
            raise Refused(status if type(status) is int else 503, str(answer.get("error", "the daemon said no")))
        return connection, answer


def _line(connection: sockets.socket) -> dict[str, Any]:
    """One line, and nothing of what follows it; empty where there is none."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST and (byte := connection.recv(1)):
        line += byte
    try:
        said = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        said = {}
    return said if isinstance(said, dict) else {}


def _listen(burstd: Session, port: int, *, given: bool) -> sockets.socket:
    try:
        return sockets.create_server((HOST, port))
    except OSError as error:
        if given:
            burstd.fail(
                Code.NO, f"Port {port} of {HOST} cannot be used here: {os.strerror(error.errno or 0)}. Choose another."
            )
    # It is taken, or below 1024; the number is no promise.
    return sockets.create_server((HOST, 0))


def _serve(listener: sockets.socket, hold: sockets.socket, door: _Door) -> str:
    """Takes connections until the daemon says that it is over; returns why."""
    while True:
        ready, _, _ = select.select([listener, hold], [], [])
        if hold in ready:
            with contextlib.suppress(OSError):
                if why := _line(hold).get("error"):
                    return f"{str(why)[:1].upper()}{str(why)[1:]}."
            return "burstd hung up; try again when it runs."
        try:
            connection, client = listener.accept()
        except OSError as error:
            _complain(f"a connection could not be accepted: {os.strerror(error.errno or 0)}.")
            select.select([hold], [], [], _PAUSE_S)
            continue
        threading.Thread(target=_carry, args=(connection, client, door), daemon=True).start()


def _carry(connection: sockets.socket, client: tuple[str, int], door: _Door) -> None:
    with connection:
        if not is_mine(connection, client):
            _complain("a connection was not let through: no process of yours has its other end.")
            hang_up(connection)
            return
        try:
            far, _ = door.ask(hold=False)
        except (Refused, Unreachable) as error:
            _complain(str(error))
            return
        with far:
            relay(connection, SocketWire(far))


def is_mine(connection: sockets.socket, client: tuple[str, int]) -> bool:
    """Whether a process of this user has the other end. ``client``: the address of that end, as accept() told it.

    Once it has, all that comes is his. While this end lives there is no second connection between the same two
    addresses; after a reset there may be, and its owner would be found instead: so this end is looked at last.
    """
    owner = _owner(client, connection.getsockname())
    return owner == os.geteuid() and connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 1)[0] in _LIVE


def _owner(client: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Uid of the socket at ``client`` that is connected with ``here``, both of this host; None: no process has it.

    A socket that nobody has any more has inode 0, and uid 0 whosever it was.
    https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html
    """
    for table, prefix in zip(_TABLES, (b"", bytes(10) + b"\xff\xff"), strict=True):
        ends = [_end(prefix, client), _end(prefix, here)]
        # Where the kernel has no IPv6 there is one table alone.
        with contextlib.suppress(FileNotFoundError), table.open(encoding="ascii") as rows:
            next(rows)
            for words in map(str.split, rows):
                if words[1:3] == ends and words[3] in _CONNECTED and words[9] != "0":
                    return int(words[7])
    return None


def _end(prefix: bytes, address: tuple[str, int]) -> str:
    """As the tables write it: hexadecimal words of 32 bits, whose bytes are in the machine's order.

    ``prefix`` makes an IPv6 address of it, as a program has it whose sockets are for both.
    """
    octets = prefix + sockets.inet_aton(address[0])
    words = (int.from_bytes(octets[n : n + 4], sys.byteorder) for n in range(0, len(octets), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{address[1]:04X}"


def _complain(text: str) -> None:
    sys.stderr.write(f"burstctl: {safe_text(text)}\n")


def _tell(answer: dict[str, Any]) -> None:
    typer.echo(json.dumps(answer))
