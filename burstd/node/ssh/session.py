"""An ssh connection to one machine, whose host key is checked before anything else is said to it.

Imports paramiko: import this module only when a machine is to be spoken to.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

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
from burstd.node.errors import (
    AuthRefused,
    CommandFailed,
    ForwardingForbidden,
    HostKeyMismatch,
    Incompatible,
    NotAuthorizedYet,
    NotReachable,
)
from burstd.node.ssh.host_keys import HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import KeyUnusable
from burstd.node.ssh.transport import LimitedTransport

# paramiko's threads log a traceback for every host that does not answer so far; all of it reaches us as exceptions.
_CHANNEL = "burstd.node.ssh.transport"
_PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED of RFC 4254, 5.1
_STATUS_S = 5.0
_SEND_TIMEOUT_S = 60.0
_COMPLAINT_BYTES = 1 << 16
_GRACE_S = 1.0
"""So long after its time a call that waits on the other side is cut off."""
_PUT = """
set -eu
umask 077
new=$(mktemp "$1.XXXXXX")
trap 'rm -f "$new"' EXIT
cat > "$new"
[ "$(wc -c < "$new")" -eq "$4" ] || { echo "$1 came through cut short" >&2; exit 1; }
chown "$3" "$new"
chmod "$2" "$new"
mv -f "$new" "$1"
"""


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Where a machine answers. ``key``: the file of our private key. A ``user`` other than root acts through sudo."""

    address: str
    key: Path
    user: str = "root"
    port: int = 22


def check_port_listening(target: SshTarget, timeout_s: float) -> None:
    """Returns when something listens at the target's port. Raises NotReachable."""
    _tcp(target, timeout_s).close()


def _tcp(target: SshTarget, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection((target.address, target.port), timeout_s)
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise NotReachable(
            f"{target.address} does not answer on port {target.port} ({reason}): it boots, or a security group or "
            "firewall keeps the head from it"
        ) from None


def open_ssh_session(target: SshTarget, known: HostKeys, timeout_s: float = 10.0) -> SshSession:
    """Connects, checks the host key against ``known``, then authenticates with our key.

    ``timeout_s`` bounds each of the three. Raises NotReachable, HostKeyMismatch, Incompatible, AuthRefused or
    NotAuthorizedYet, KeyUnusable.
    """
    private = _private_key(target.key)
    wire = _tcp(target, timeout_s)
    try:
        own = wire.getpeername()[0] == wire.getsockname()[0]
    except OSError as error:
        wire.close()
        raise NotReachable(f"{target.address} ended the connection at once ({error.strerror}): it boots") from None
    if own:
        wire.close()
        raise HostKeyMismatch(
            f"{target.address} is this machine's own address, and no node's. Nothing was sent to it. Look at what the "
            "cloud says of the machine"
        )
    logging.getLogger(_CHANNEL).setLevel(logging.CRITICAL + 1)
    transport = LimitedTransport(wire)
    transport.set_log_channel(_CHANNEL)
    transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = timeout_s
    try:
        if known.keys:
            _request_known_key_types(transport, known)
        shown = _shake_hands(transport, target, known, timeout_s)
        _authenticate(transport, target, private, known)
    except BaseException:
        transport.close()
        raise
    return SshSession(transport, target, shown)


def _private_key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise KeyUnusable(f"burstd's ssh key {path} cannot be read: {error}") from None


def _request_known_key_types(transport: LimitedTransport, known: HostKeys) -> None:
    """Has the machine show a key of a type that we know; it may have several."""
    types = {key.split(" ")[0] for key in known.keys}
    options = transport.get_security_options()
    rsa = {"rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"}
    wanted = [t for t in options.key_types if t in types or ("ssh-rsa" in types and t in rsa)]
    if wanted:
        options.key_types = wanted


def _shake_hands(transport: LimitedTransport, target: SshTarget, known: HostKeys, timeout_s: float) -> str:
    """Agrees on keys and returns the machine's host key, having checked it."""
    try:
        transport.start_client(timeout=timeout_s)
        # Raises where the time ran out.
        key = transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        if known.keys and "host key" in str(error):
            raise _mismatch(target, known, "has none of their types") from None
        raise Incompatible(f"{target.address} and burstd have no way of speaking ssh in common: {error}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        # A port that answers with anything but ssh is a machine in the middle of its boot, or a proxy before it.
        raise NotReachable(f"{target.address} answers on port {target.port}, but not as sshd does: {error}") from None
    shown = f"{key.get_name()} {key.get_base64()}"
    if not known.accepts_key(shown):
        raise _mismatch(target, known, f"shows {key.fingerprint} ({key.get_name()})")
    return shown


def _mismatch(target: SshTarget, known: HostKeys, what: str) -> HostKeyMismatch:
    learned = "its console log" if known.trust is HostKeyPolicy.CONSOLE else "its first connection"
    return HostKeyMismatch(
        f"{target.address} {what}, which is none of the host keys of {learned}: another machine answers at this "
        "address. Nothing was sent to it. Look for a second owner of the address"
    )


def _authenticate(transport: LimitedTransport, target: SshTarget, private: paramiko.PKey, known: HostKeys) -> None:
    try:
        left = transport.auth_publickey(target.user, private)
    except paramiko.AuthenticationException as error:
        what = f"{target.address} refuses burstd's key for {target.user} ({error})"
        # cloud-init shows the host keys when it is done. An ordinary user is kept out even longer (pam_nologin).
        if known.trust is HostKeyPolicy.CONSOLE and target.user == "root":
            raise AuthRefused(
                f"{what}: its image does not run cloud-init's user data, or its sshd does not let {target.user} in"
            ) from None
        raise NotAuthorizedYet(f"{what}: cloud-init may not have installed it so far") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise ConnectionLost(f"{target.address} hung up while burstd logged in: {error}") from None
    if left:
        raise AuthRefused(f"{target.address} wants more than a key of {target.user}: {', '.join(left)}")


class SshSession(Closing):
    """A connection to a machine that is the right one. Not for several threads at once. Close it, or use ``with``."""

    def __init__(self, transport: LimitedTransport, target: SshTarget, host_key: str) -> None:
        self._transport = transport
        self._target = target
        self.host_key = host_key
        """The key it showed: ``ssh-ed25519 AAAA...``."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - as in subprocess.run
        """Runs a command as root. Secrets belong into ``input``, never into ``argv``.

        Raises ConnectionLost, CommandTimedOut; the connection is of no use after either. An exit status other than 0
        is no error here.
        """
        words = argv if self._target.user == "root" else ["sudo", "-n", "--", *argv]
        deadline = time.monotonic() + timeout_s
        try:
            with self._transport.close_after(timeout_s + _GRACE_S):
                channel = self._transport.open_session(timeout=timeout_s)
                channel.settimeout(timeout_s)
                channel.exec_command(shlex.join(words))
                _send(channel, input)
                out = _read(channel, channel.recv, deadline)
                err = _read(channel, channel.recv_stderr, deadline)
                ended = channel.status_event.wait(max(0.0, deadline - time.monotonic()))
                rc = channel.recv_exit_status() if ended else -1
                channel.close()
        except TimeoutError:
            self.close()
            raise self._timed_out(argv, timeout_s) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            if time.monotonic() >= deadline:
                raise self._timed_out(argv, timeout_s) from None
            raise ConnectionLost(f"{self._target.address} hung up while it ran {argv[0]}: {error}") from None
        if not ended:
            self.close()
            raise self._timed_out(argv, timeout_s)
        if rc < 0 and not self._transport.is_active():
            raise ConnectionLost(f"{self._target.address} hung up while it ran {argv[0]}")
        return CompletedCommand(rc, out, err)

    def _timed_out(self, argv: Sequence[str], timeout_s: float) -> CommandTimedOut:
        return CommandTimedOut(f"{self._target.address} took more than {timeout_s:.0f} s for {argv[0]}")

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - see run
        """Runs a POSIX sh script with arguments, in one round trip; otherwise as ``run``."""
        return self.run(["sh", "-c", text, "sh", *args], input=input, timeout_s=timeout_s)

    def start_process(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> SshCommandStream:
        """Starts a command as root and talks with it line by line. Raises ConnectionLost."""
        words = argv if self._target.user == "root" else ["sudo", "-n", "--", *argv]
        try:
            with self._transport.close_after(timeout_s):
                channel = self._transport.open_session(timeout=timeout_s)
                channel.exec_command(shlex.join(words))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(f"{self._target.address} hung up before it ran {argv[0]}: {error}") from None
        return SshCommandStream(self._transport, channel, self._target.address)

    def open_terminal(self, argv: Sequence[str], size: TerminalSize, *, timeout_s: float = 30.0) -> SshTerminal:
        """Starts a command as root on a terminal of its own. Raises ConnectionLost."""
        words = argv if self._target.user == "root" else ["sudo", "-n", "--", *argv]
        try:
            with self._transport.close_after(timeout_s):
                channel = self._transport.open_session(timeout=timeout_s)
                channel.get_pty(width=size.columns, height=size.rows)
                channel.exec_command(shlex.join(words))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.close()
            raise ConnectionLost(f"{self._target.address} hung up before it ran {argv[0]}: {error}") from None
        return SshTerminal(channel, self._target.address)

    def dial(self, port: int, timeout_s: float = 30.0) -> SshPortStream:
        """Connects to a TCP port of the machine's 127.0.0.1. Raises NotListening, ConnectionLost, ForwardingForbidden.

        The wire ends with the session.
        """
        there = f"{self._target.address} port {port}"
        try:
            channel = self._transport.open_channel(
                "direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0), timeout=timeout_s
            )
        except paramiko.ChannelException as error:
            if error.code == _PROHIBITED:
                raise ForwardingForbidden(
                    f"the sshd of {self._target.address} lets burstd forward nothing: set 'AllowTcpForwarding local' "
                    "in the sshd_config of its image"
                ) from None
            raise NotListening(f"nothing listens at {there} so far ({error.text})") from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            # The session goes on where it can: others' wires are in it.
            if self._is_alive():
                raise NotListening(
                    f"{there} takes no connection within {timeout_s:.0f} s: it is busy or stuck"
                ) from None
            raise ConnectionLost(f"{self._target.address} hung up before burstd was at port {port}: {error}") from None
        return SshPortStream(channel)

    def _is_alive(self) -> bool:
        """Whether its sshd still says anything, be it no."""
        try:
            self._transport.open_session(timeout=_STATUS_S).close()
        except paramiko.ChannelException:
            return True
        except (paramiko.SSHException, OSError, EOFError):
            return False
        return True

    def put_file(self, path: str, content: bytes, *, mode: int = 0o644, owner: str = "root:root") -> None:
        """Writes a file whole: it is there with all its content, mode and owner (``user:group``), or as before.

        Raises CommandFailed, and what ``run`` raises.
        """
        done = self.script(_PUT, path, f"{mode:04o}", owner, str(len(content)), input=content)
        if done.rc != 0:
            raise CommandFailed(
                f"{path} could not be written on {self._target.address}: {done.last_line}", rc=done.rc, err=done.err
            )

    def close(self) -> None:
        """Hangs up; may be repeated."""
        self._transport.close()


class SshCommandStream(LineStream):
    """A command that runs on a machine, to be spoken with. It ends, or loses its standard input, with ``close``."""

    def __init__(self, transport: LimitedTransport, channel: paramiko.Channel, address: str) -> None:
        super().__init__(address)
        self._transport = transport
        self._channel = channel

    def write_line(self, line: bytes) -> None:
        """Sends to its standard input. Raises ConnectionLost."""
        try:
            self._channel.settimeout(_SEND_TIMEOUT_S)
            with self._transport.close_after(_SEND_TIMEOUT_S + _GRACE_S):
                self._channel.sendall(line)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(error) from None

    def _receive(self, timeout_s: float) -> bytes:
        self._channel.settimeout(timeout_s)
        piece = self._channel.recv(1 << 16)
        # A line that was cut looks like an end at first; a command that has ended tells its status.
        if not piece and (not self._channel.status_event.wait(_STATUS_S) or self._channel.recv_exit_status() < 0):
            raise self._lost()
        return piece

    def stderr_tail(self) -> str:
        """The end of what it wrote to its standard error."""
        said, left = b"", OUTPUT_BYTES
        while left > 0 and self._channel.recv_stderr_ready() and (piece := self._channel.recv_stderr(1 << 16)):
            said = (said + piece)[-_COMPLAINT_BYTES:]
            left -= len(piece)
        return last_words(said)

    def close(self) -> None:
        """Ends the conversation."""
        self._channel.close()


class SshPortStream:
    """A connection to a port of a machine; see ``burstd.domain.plugins.shell.PortConnection``."""

    def __init__(self, channel: paramiko.Channel) -> None:
        channel.settimeout(None)
        self._channel = channel

    def recv(self, most: int) -> bytes:
        """What came; empty: the other side has said all. Raises OSError."""
        return self._channel.recv(most)

    def sendall(self, data: bytes) -> None:
        """Raises OSError."""
        self._channel.sendall(data)

    def shutdown_write(self) -> None:
        """Nothing more is sent; what the other side says can still be received."""
        # Where the machine is gone there is nobody left to be told.
        with contextlib.suppress(EOFError, OSError):
            self._channel.shutdown_write()

    def close(self) -> None:
        """Ends it; a ``recv`` that waits returns. May be repeated."""
        self._channel.close()


class SshTerminal(SshPortStream):
    """A command on a terminal of a machine; see ``burstd.domain.plugins.shell.RemoteTerminal``."""

    def __init__(self, channel: paramiko.Channel, address: str) -> None:
        super().__init__(channel)
        self._address = address

    def resize(self, size: TerminalSize) -> None:
        """Raises OSError."""
        try:
            self._channel.resize_pty(width=size.columns, height=size.rows)
        except (paramiko.SSHException, EOFError) as error:
            raise ConnectionError(str(error)) from None

    def exit_status(self) -> int:
        """Of the command. Raises ConnectionLost."""
        if not self._channel.status_event.wait(_STATUS_S) or (status := self._channel.recv_exit_status()) < 0:
            raise ConnectionLost(f"{self._address} hung up")
        return status


def _send(channel: paramiko.Channel, content: bytes) -> None:
    """Sends standard input and its end. A command that ends without reading all of it is no error."""
    try:
        channel.sendall(content)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        if not channel.closed and not channel.exit_status_ready():
            raise


def _read(channel: paramiko.Channel, receive: Callable[[int], bytes], deadline: float) -> str:
    """All of one stream. Our scripts say little: what goes on for ever is cut off by an error, not read."""
    chunks: list[bytes] = []
    size = 0
    while True:
        channel.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = receive(1 << 16)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace")
        chunks.append(chunk)
        size += len(chunk)
        if size > OUTPUT_BYTES:
            raise EOFError(f"more than {OUTPUT_BYTES} bytes of output")
