"""A job's checkpoint from a node into the store while the job runs: only what is whole.

What the line names without wildcards is taken as it is, with wildcards the newest match, by the time at which it got
its name or was changed last; a name that ends in ``.tmp`` is no match. It is whole where

- no process has a file of it open for writing, before and after the reading (the kernel grants a read lease then);
- owner, size, times and inode of everything in it are the same before and after the reading, and are older than the
  kernel's clock ticks, so that every change during the reading shows.

Else it is read again, then the next older match is taken. Both halves are here: ``collect_checkpoint`` has the store,
``read_checkpoint`` has the user's rights.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from burstd.transfer.agent.collection import OutputUploader, owned_job_folder
from burstd.transfer.agent.packing import OutgoingBuffers, TreePacker, literal_pattern
from burstd.transfer.agent.user_process import (
    FAULT_LIMIT,
    FAULT_STOPPED,
    AgentFault,
    JsonObject,
    PacketChannel,
    SharedBuffers,
    UserProcess,
)
from burstd.transfer.content_store.manifest import TreeTooLarge
from burstd.transfer.protocol.transports import ObjectTransport
from burstd.transfer.trees.walk import Walk, WalkItem, matching_paths

TRIES = 3
"""How often one match is read while it changes."""
MATCHES_TRIED = 5
SETTLED_NS = 20_000_000
"""A change that is older has another time than any to come: file systems take the time from a clock that ticks."""
POLL_S = 0.2
_UNFINISHED = ".tmp"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_WRITER_KNOWN = (errno.EACCES, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOLCK)


def collect_checkpoint(
    request: JsonObject,
    user: UserProcess,
    transport: ObjectTransport,
    progress: Callable[[int, int], None],
    query_head: Callable[[JsonObject], JsonObject],
) -> JsonObject:
    """Puts the newest whole checkpoint into the store. Raises AgentFault.

    Where ``wait_s`` is not 0, burstd is told with ``ready`` when a newer one than there is can be recognised.
    The answer has ``path`` (empty: there is none), ``fingerprint``, ``tree`` (None: it is the one that burstd has),
    ``changing`` (what was left because it changes), ``sent`` and ``seconds``.
    """
    began = time.monotonic()
    folder = owned_job_folder(request)
    user.drop_privileges(request["uid"], request["gid"], request["groups"])
    uploader = OutputUploader(transport, request["prefix"], user, lambda there: progress(there, 0))
    what = {name: request[name] for name in ("pattern", "known", "max_bytes", "wait_s")}

    def on_message(message: JsonObject) -> None:
        if "ready" in message:
            query_head({"ready": True})
        else:
            uploader.on_message(message)

    try:
        found: JsonObject = user.call_operation(
            {"do": "checkpoint", "base": f"{folder.path}/out", **what}, on_message=on_message
        )
    except AgentFault as fault:
        uploader.close()
        raise (uploader.fault or fault) if fault.kind == FAULT_STOPPED else fault from None
    finally:
        uploader.close()
    return {**found, "sent": uploader.sent_bytes, "seconds": round(time.monotonic() - began, 3)}


def read_checkpoint(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """Reads the newest whole checkpoint. ``wait_s``: how long a newer one than there is at first is waited for."""
    # Who opens a file for writing while the lease is held makes the kernel send this.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    reader = CheckpointReader(OutgoingBuffers(channel, buffers), request["base"], request["pattern"])
    reader.known, reader.max_bytes = request["known"], request["max_bytes"]
    try:
        if request["wait_s"]:
            first = reader.newest_state()
            channel.send({"ready": True})
            deadline = time.monotonic() + request["wait_s"]
            while time.monotonic() < deadline and reader.newest_state() in {"", first}:
                time.sleep(POLL_S)
        return reader.read()
    except TreeTooLarge as error:
        raise AgentFault(FAULT_LIMIT, f"the checkpoint {request['pattern']} cannot be kept: {error}") from None


class _Changing(Exception):
    """What is read changes; the message is a clause."""


@dataclass(frozen=True, slots=True)
class _State:
    """All that is known of what is there, without its content."""

    fingerprint: str
    size: int
    changed_ns: int
    """When anything in it was changed last."""


class CheckpointReader:
    """What a line names below ``base``, with the rights of this process."""

    def __init__(self, outgoing: OutgoingBuffers, base: str, pattern: str) -> None:
        self._outgoing = outgoing
        self._base = base
        self._parts = [part for part in pattern.split("/") if part not in {"", "."}]
        if pattern.startswith("/") or ".." in self._parts or not self._parts:
            raise AgentFault("agent", f"the path {pattern!r} is none below the job's output folder")
        literal = literal_pattern(pattern)
        self._literal = "" if literal is None else "/".join(part for part in literal.split("/") if part)
        self.known = ""
        """Fingerprint of the one that burstd has."""
        self.max_bytes = 0

    def read(self) -> JsonObject:
        """The answer, but for what was sent. Raises AgentFault, TreeTooLarge."""
        changing = ""
        for path in self._newest_first()[:MATCHES_TRIED]:
            for _ in range(TRIES):
                try:
                    return {**self._read_whole(path), "path": path, "changing": changing}
                except _Changing as error:
                    changing = f"{path} {error}"
                except FileNotFoundError:
                    changing = f"{path} was removed while it was read"
                    break
        return {"path": "", "fingerprint": "", "tree": None, "changing": changing}

    def newest_state(self) -> str:
        """Which match is the newest, and its state; for comparing. Empty: there is none, or it changes."""
        for path in self._newest_first()[:1]:
            try:
                return f"{path} {self._state(path).fingerprint}"
            except (_Changing, FileNotFoundError):
                return ""
        return ""

    def _newest_first(self) -> list[str]:
        """Paths below the base."""
        if self._literal:
            paths: Sequence[str] = [self._literal]
        else:
            try:
                top = os.open(self._base, _DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return []
            try:
                paths = list(dict.fromkeys(matching_paths(top, self._parts, "")))
            finally:
                os.close(top)
        found = []
        for path in paths:
            try:
                facts = os.lstat(f"{self._base}/{path}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self._literal or not path.endswith(_UNFINISHED):
                found.append((facts.st_ctime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _rows(self, path: str) -> Iterator[WalkItem]:
        """A walk of one match. Raises AgentFault for a link, which leads anywhere."""
        where = self._base
        for part in path.split("/"):
            where = f"{where}/{part}"
            if stat.S_ISLNK(os.lstat(where).st_mode):
                raise AgentFault(
                    "agent", f"the checkpoint {path} cannot be taken: {part} is a symbolic link; name what it leads to"
                )
        return iter(Walk(where))

    def _state(self, path: str) -> _State:
        """Raises _Changing where it is open for writing, or a part of it cannot be read."""
        digest = hashlib.sha256()
        size = changed_ns = 0
        for row, descriptor in self._rows(path):
            name = f"{self._base}/{path}/{row[1]}" if row[1] and row[0] != "f" else f"{self._base}/{path}"
            try:
                if descriptor >= 0:
                    facts = os.fstat(descriptor)
                    if _is_being_written(descriptor):
                        raise _Changing("is being written")
                    size += facts.st_size
                elif row[0] == "e":
                    raise _Changing(f"cannot be read: {os.strerror(int(str(row[2])))}")
                else:
                    facts = os.lstat(name)
            except FileNotFoundError:
                raise _Changing("is being changed") from None
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            changed_ns = max(changed_ns, facts.st_ctime_ns)
            digest.update(repr((row[0], row[1], *_identity(facts))).encode("utf-8", "surrogateescape"))
        return _State(digest.hexdigest(), size, changed_ns)

    def _settled_state(self, path: str) -> _State:
        """One in which every later change shows. Raises _Changing."""
        for _ in range(2):
            began = time.time_ns()
            state = self._state(path)
            if not began - SETTLED_NS < state.changed_ns <= began:
                return state
            time.sleep(SETTLED_NS / 1e9)
        raise _Changing("is being changed")

    def _read_whole(self, path: str) -> JsonObject:
        """One match, if it did not change meanwhile. Raises _Changing, FileNotFoundError."""
        if stat.S_ISREG(os.lstat(f"{self._base}/{path}").st_mode):
            return self._read_file(path)
        before = self._settled_state(path)
        self._check_size(path, before.size)
        if before.fingerprint == self.known:
            return {"fingerprint": before.fingerprint, "tree": None}
        packer = TreePacker(self._outgoing)
        tree = packer.pack_tree(packer.pending_entries(self._rows(path), f"{self._base}/{path}"))
        if self._state(path).fingerprint != before.fingerprint or packer.missing:
            raise _Changing("is being changed")
        return {"fingerprint": before.fingerprint, "tree": {**tree, "single": False}}

    def _read_file(self, path: str) -> JsonObject:
        """A file is whole also where the job puts another in its place while it is read."""
        row, descriptor = next(self._rows(path))
        if descriptor < 0:
            raise _Changing("is being changed")
        try:
            began, before = time.time_ns(), os.fstat(descriptor)
            if began - SETTLED_NS < before.st_ctime_ns <= began:
                time.sleep(SETTLED_NS / 1e9)
                before = os.fstat(descriptor)
            if _is_being_written(descriptor):
                raise _Changing("is being written")
            self._check_size(path, before.st_size)
            fingerprint = hashlib.sha256(repr(_identity(before)).encode()).hexdigest()
            if fingerprint == self.known:
                return {"fingerprint": fingerprint, "tree": None}
            packer = TreePacker(self._outgoing)
            entries = (packer.pack_file(os.fsencode(str(row[1])), os.dup(descriptor)) for _ in range(1))
            tree = packer.pack_tree(entries)
            after = os.fstat(descriptor)
            # To lose its name changes the time of its inode too.
            same = _identity(after)[:-1] == _identity(before)[:-1] and (
                after.st_ctime_ns == before.st_ctime_ns or after.st_nlink < before.st_nlink
            )
            if _is_being_written(descriptor) or not same:
                raise _Changing("is being written")
            return {"fingerprint": fingerprint, "tree": {**tree, "single": True}}
        finally:
            os.close(descriptor)

    def _check_size(self, path: str, size: int) -> None:
        if size > self.max_bytes:
            raise AgentFault(
                FAULT_LIMIT,
                f"the checkpoint {path} has {size} bytes, holes included, and {self.max_bytes} are left to its owner "
                "in the store",
            )


def _is_being_written(descriptor: int) -> bool:
    """Whether any process has the file open for writing. Where its file system cannot tell: no."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        if error.errno in _NO_WRITER_KNOWN:
            return False
        raise
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return (
        facts.st_dev, facts.st_ino, facts.st_mode, facts.st_uid, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns,
    )  # fmt: skip
