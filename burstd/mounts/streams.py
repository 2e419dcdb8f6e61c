"""Streams: ssh from the head to a node, by which the node shows a user's trees (burstd.transfer.privsep.mount_worker).

A stream outlives burstd. A file in a folder stands for each: its worker holds a lock on it for as long as it lasts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import structlog

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError, NodeNotReady, NodeRefused
from burstd.domain.mounts import MountedTree, check_trees
from burstd.domain.plugins.shell import Shell, last_words
from burstd.node.errors import HeadNotReady, HostKeyUnknown, NotReachable
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeys
from burstd.node.validator import ValidatorConfig, check_address
from burstd.transfer.privsep import descriptor_channel
from burstd.transfer.privsep import mount_worker as program
from burstd.transfer.privsep.client import connect_worker
from burstd.transfer.privsep.errors import Account, UserWorkerError, printable
from burstd.transfer.protocol.ssh_program import ssh_argv

log = structlog.get_logger(__name__)

_MOUNTED = b"mounted"
_REFUSED, _AGAIN = "refused: ", "again: "
_SAID_BYTES = 64 << 10
"""Of what a node says before its trees stand."""
_ANSWER_BYTES = 64 << 10
_MOUNT_TIMEOUT_S = 60.0
_UNMOUNT_TIMEOUT_S = 20.0
_ANSWER_TIMEOUT_S = 30.0
"""For the worker, which looks at the user's trees: a file server may have to answer."""
_END_TIMEOUT_S = 5.0
_FLOCK = struct.Struct("hhqqi0q")
"""struct flock of fcntl(2): type, whence, start, length, process."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream whose trees stood."""

    user: str
    trees: tuple[MountedTree, ...]
    """Those that were asked for; what the head has not, or closes to the user, is not mounted."""
    pid: int = 0
    """The worker's."""
    ended: bool = False
    """By itself: the node shows its trees no more."""


class MountStreams:
    """The streams of this head. For worker threads; those of one claim and user come one after the other."""

    def __init__(
        self,
        *,
        folder: Path,
        config: Callable[[], ValidatorConfig],
        connect: Callable[[Claim], Shell],
        line_timeout_s: Callable[[], float],
        socket_path: Path | None = None,
        min_uid: int = 1000,
        sftp_server: Callable[[], Path | None] = lambda: None,
    ) -> None:
        """``folder``: burstd's own, made where it is missing; nobody else may write there.

        ``config``: how machines are reached by ssh; ``connect``: SlurmNodeValidator.connect. ``line_timeout_s``: a line
        that is cut for longer ends a stream. ``socket_path``: of burstd-mount-worker.socket; None: burstd is root and
        starts workers itself. ``sftp_server``: None: where distributions have it.
        """
        self._folder = folder
        self._config = config
        self._connect = connect
        self._line_timeout_s = line_timeout_s
        self._socket_path = socket_path
        self._min_uid = min_uid
        self._sftp_server = sftp_server
        self._script = files("burstd.node").joinpath("scripts", "mount.sh").read_text(encoding="utf-8")
        self._changed = threading.Condition()
        self._busy: set[str] = set()
        self._children: list[subprocess.Popen[bytes]] = []
        for unfinished in folder.glob("*.hosts"):
            unfinished.unlink(missing_ok=True)
        for _, path in self._records():
            # burstd was killed before its trees stood; a worker that lives ends by itself then.
            if not path.stat().st_size:
                path.unlink(missing_ok=True)

    def start(self, claim: Claim, who: Account, trees: Sequence[MountedTree]) -> None:
        """Returns once these trees of a user stand on the claim's machine.

        Raises NodeNotReady (try again), NodeRefused (that machine never will), UserWorkerError (the head cannot show
        them to this user).
        """
        try:
            check_trees(trees)
        except ValueError as error:
            raise UserWorkerError("", 0, str(error)) from None
        name = f"{claim.id}.{who.uid}"
        with self._exclusively(name):
            running = _read_record(self._folder / name)
            if running is None:
                self._start_with_what_is_there(name, claim, who, trees)
            elif running.ended:
                raise NodeNotReady(f"the mounts of {who.user} on {claim.slot} have broken and are not cleared so far")
            elif running.trees != tuple(trees):
                raise NodeNotReady(
                    f"{claim.slot} shows {_listed(running.trees)} to {who.user}, and jobs there use them: "
                    f"{_listed(trees)} can be mounted once these have ended"
                )

    def stop(self, claim: Claim | None, claim_id: str, uid: int) -> None:
        """Unmounts on the node where it can be reached, and ends the processes on the head in any case.

        ``claim``: None where its machine is gone.
        """
        name = f"{claim_id}.{uid}"
        with self._exclusively(name):
            try:
                if claim is not None:
                    self._unmount(claim, uid)
            finally:
                self._end(self._folder / name)

    def streams(self) -> Mapping[tuple[str, int], Stream]:
        """All whose trees stood, by claim id and uid: those that last, and those that ended by themselves until
        ``stop`` is called for them."""
        with self._changed:
            self._children = [child for child in self._children if child.poll() is None]
            busy = set(self._busy)
        found = ((key, path.name, _read_record(path)) for key, path in self._records())
        return {key: one for key, name, one in found if one is not None and not (one.ended and name in busy)}

    def _records(self) -> Iterator[tuple[tuple[str, int], Path]]:
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                claim_id, _, uid = path.name.rpartition(".")
                if uid.isdigit() and claim_id:
                    yield (claim_id, int(uid)), path

    @contextmanager
    def _exclusively(self, name: str) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(name)
                self._changed.notify_all()

    def _start_with_what_is_there(self, name: str, claim: Claim, who: Account, trees: Sequence[MountedTree]) -> None:
        """Leaves out optional trees that the head has not, and those that the user may not enter: only the worker, as
        the user, sees which."""
        there = list(trees)
        while (missing := self._start_or_name_missing(name, claim, who, trees, there)) is not None:
            there.remove(missing)

    def _start_or_name_missing(
        self, name: str, claim: Claim, who: Account, asked: Sequence[MountedTree], trees: Sequence[MountedTree]
    ) -> MountedTree | None:
        try:
            self._start(name, claim, who, asked, trees)
        except UserWorkerError as error:
            missing = next((tree for tree in trees if tree.path == error.path), None)
            if missing is None or len(trees) == 1:
                raise
            if error.errno != errno.EACCES and not (error.errno == errno.ENOENT and missing.optional):
                raise
            return missing
        return None

    def _start(
        self, name: str, claim: Claim, who: Account, asked: Sequence[MountedTree], trees: Sequence[MountedTree]
    ) -> None:
        check_address(claim)
        keys = self._host_keys(claim)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record, known_hosts = self._folder / name, self._folder / f"{name}.hosts"
        known_hosts.write_text("".join(f"{claim.id} {key}\n" for key in sorted(keys.keys)), encoding="ascii")
        lock = os.open(record, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        stands = False
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _lock_request(fcntl.F_WRLCK))
            self._run_worker(claim, who, asked, trees, known_hosts, lock)
            stands = True
        except OSError as error:
            raise HeadNotReady(f"the head cannot start a stream to {claim.slot}: {error}") from None
        finally:
            os.close(lock)
            known_hosts.unlink(missing_ok=True)
            if not stands:
                record.unlink(missing_ok=True)

    def _host_keys(self, claim: Claim) -> HostKeys:
        if not claim.address:
            raise NotReachable(f"{claim.slot}: the provider has told no address of instance {claim.instance_id} so far")
        host_keys = HostKeyFiles(self._config().host_keys_dir)
        known = host_keys.load_keys(claim.id)
        if known is None:
            self._connect(claim).close()
            known = host_keys.load_keys(claim.id)
        if known is None:
            raise NodeRefused(
                f"machines of {claim.offer.provider} have no ssh, which mounted trees need: leave their pools out of "
                "mounts.trees",
                cause="ssh",
            )
        if not known.keys:
            raise HostKeyUnknown(f"the host keys of {claim.slot} are not known so far")
        return known

    def _ssh_argv(self, claim: Claim, uid: int, trees: Sequence[MountedTree], known_hosts: Path) -> list[str]:
        config = self._config()
        named = [f"{'ro' if tree.read_only else 'rw'} {tree.path}" for tree in trees]
        sudo = [] if config.ssh_user == "root" else ["sudo", "-n", "--"]
        words = [*sudo, "sh", "-c", self._script, "sh", "mount", str(uid), *named]
        return ssh_argv(
            claim.address, shlex.join(words), user=config.ssh_user, key_file=str(config.ssh_key),
            known_hosts_file=str(known_hosts), port=config.ssh_port, timeout_s=self._line_timeout_s(),
            connect_timeout_s=config.connect_timeout_s, alias=claim.id,
        )  # fmt: skip

    def _run_worker(
        self,
        claim: Claim,
        who: Account,
        asked: Sequence[MountedTree],
        trees: Sequence[MountedTree],
        known_hosts: Path,
        lock: int,
    ) -> None:
        sftp_server = self._sftp_server()
        hello = {
            "uid": who.uid, "gid": who.gid, "groups": list(who.groups or (who.gid,)), "home": who.home,
            "trees": [[tree.path, tree.read_only] for tree in trees],
            "ssh": self._ssh_argv(claim, who.uid, trees, known_hosts),
            "sftp_server": str(sftp_server) if sftp_server else "",
        }  # fmt: skip
        said, saying = os.pipe()
        sock, child = connect_worker(["-S", str(program.__file__)], self._socket_path, self._min_uid, {})
        try:
            with sock:
                sock.settimeout(_ANSWER_TIMEOUT_S)
                try:
                    pid = _answer_of(sock, hello, [lock, saying])["ready"]
                    os.close(saying)
                    saying = -1
                    _wait_until_mounted(claim, said)
                    _write_record(lock, int(str(pid)), who.user, asked)
                    _answer_of(sock, {"do": "keep"})
                except (descriptor_channel.ConnectionEnded, OSError, LookupError, ValueError) as error:
                    raise NodeNotReady(f"the trees of {who.user} cannot be mounted on {claim.slot}: {error}") from None
        except BaseException:
            if child is not None:
                child.kill()
            raise
        finally:
            os.close(said)
            if saying >= 0:
                os.close(saying)
            if child is not None:
                with self._changed:
                    self._children.append(child)

    def _unmount(self, claim: Claim, uid: int) -> None:
        try:
            with self._connect(claim) as shell:
                done = shell.script(self._script, "unmount", str(uid), timeout_s=_UNMOUNT_TIMEOUT_S)
            if done.rc != 0:
                log.warning("trees are not unmounted on the node", slot=claim.slot, uid=uid, error=done.last_line)
        except BurstdError as error:
            log.info("node does not unmount trees", slot=claim.slot, uid=uid, error=str(error))

    def _end(self, path: Path) -> None:
        """Ends a worker, and with it its stream; removes its file."""
        if (pid := _pid_of(path)) is not None:
            _kill(pid)
        if (pid := _pid_of(path)) is not None:
            raise NodeNotReady(f"process {pid}, which shows trees to a node, does not end: see {path}")
        path.unlink(missing_ok=True)


def _kill(pid: int) -> None:
    """Returns when the process has ended, or after _END_TIMEOUT_S."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _END_TIMEOUT_S)
        finally:
            os.close(process)


def _answer_of(sock: socket.socket, message: Mapping[str, object], fds: list[int] | None = None) -> dict[str, object]:
    """Of a worker. Raises ConnectionEnded, OSError, UserWorkerError."""
    descriptor_channel.send(sock, dict(message), fds)
    answer, given = descriptor_channel.receive(sock, _ANSWER_BYTES)
    for fd in given:
        os.close(fd)
    if not isinstance(answer, dict):
        raise descriptor_channel.ConnectionEnded("it gives a wrong answer; see its journal (burstd-mount-worker@)")
    if "error" in answer:
        path, what = printable(str(answer.get("path", ""))), printable(str(answer["error"]))[:1000]
        raise UserWorkerError(path, int(answer.get("errno") or 0), f"{path}: {what}" if path else what)
    return answer


def _wait_until_mounted(claim: Claim, said: int) -> None:
    """Reads what the node says until its trees stand. Raises NodeNotReady, NodeRefused."""
    heard = b""
    waiting = select.poll()
    waiting.register(said, select.POLLIN)
    deadline = time.monotonic() + _MOUNT_TIMEOUT_S
    while _MOUNTED not in heard.split(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not waiting.poll(left_s * 1000):
            raise NodeNotReady(f"{claim.slot} did not mount its user's trees within {_MOUNT_TIMEOUT_S:.0f} s")
        part = os.read(said, 4096)
        heard += part
        if not part or len(heard) > _SAID_BYTES:
            raise _failure(claim, last_words(heard))


def _failure(claim: Claim, sentence: str) -> NodeNotReady | NodeRefused:
    if sentence.startswith(_REFUSED):
        return NodeRefused(f"{claim.slot}: {sentence.removeprefix(_REFUSED)}", cause="mounts")
    return NodeNotReady(f"trees cannot be mounted on {claim.slot}: {sentence.removeprefix(_AGAIN)}")


def _write_record(lock: int, pid: int, user: str, asked: Sequence[MountedTree]) -> None:
    """Whole in one call: a reader sees nothing, or all of it."""
    text = json.dumps({"pid": pid, "user": user, "trees": [asdict(tree) for tree in asked]}) + "\n"
    os.pwrite(lock, text.encode(), 0)


def _read_record(path: Path) -> Stream | None:
    """The stream of a file; None: its trees do not stand so far, or an earlier version wrote it otherwise."""
    try:
        with path.open("rb") as file:
            # Only looked at: a lock that is tried here would be in the way of a stream that starts.
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock_request(fcntl.F_WRLCK))
            content = file.read()
    except FileNotFoundError:
        return None
    if not content.endswith(b"\n"):
        return None
    try:
        record = json.loads(content)
        trees = tuple(MountedTree(**tree) for tree in record["trees"])
        return Stream(str(record["user"]), trees, int(record["pid"]), ended=_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)
    except (ValueError, TypeError, KeyError) as error:
        log.error("file of a mount cannot be read: end its process and remove it", file=str(path), error=repr(error))
        return None


def _pid_of(path: Path) -> int | None:
    stream = _read_record(path)
    return None if stream is None or stream.ended else stream.pid


def _lock_request(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _listed(trees: Sequence[MountedTree]) -> str:
    return ", ".join(sorted(tree.path for tree in trees))
