"""The part of the agent that works with a user's rights: a child process, and how the two halves speak.

The child is forked before the request is read: no secret of it is in the child's memory. Contents go between the two
through shared memory (slots of one object each), all else as packets of JSON.

Where the agent is no root, as in a pod of a restricted cluster, the machine has one user: slurmd and all jobs run as
that one, so both halves do, and whose a job is decides nothing on the machine.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from burstd.domain.plugins.stager import OBJECT_BYTES

BUFFER_COUNT = 6
_PACKET = 1 << 20
_NUDGE = {"nudge": True}
CHILD_STALL_S = 60.0
"""A child that stands still for so long gets SIGCONT, once; after as long again it is killed."""
CHILD_POLL_S = 1.0
JsonObject = dict[str, Any]


FAULT_STOPPED = "stopped"
"""Kind of the child's fault where it was cancelled: the canceller knows the reason."""


FAULT_LIMIT = "limit"
"""Kind of the fault where a job left more than can be brought home: nothing changes that but a person."""
LIMIT_REMEDY = (
    "It stays on the node until an administrator packs some of it there into one archive, splits or removes it, then: "
    "burstctl stage retry; or until it is given up: burstctl stage discard"
)


class AgentFault(Exception):
    """What the agent answers as its error.

    ``kind`` is one of store, full (the store is), space (the node has none), damaged, rights, limit, agent.
    """

    def __init__(self, kind: str, sentence: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.keys = keys
        """Objects whose content is not what their name says, or that are not there (kind damaged)."""


def fault_from_oserror(error: OSError, what: str) -> AgentFault:
    """The fault for a call of the system that failed while ``what`` was done."""
    import errno  # noqa: PLC0415 - rarely needed

    where = f" ({error.filename!r})" if error.filename else ""
    sentence = f"{what} failed{where}: {error.strerror}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        # Others write there as well: it may be otherwise in a while.
        return AgentFault("agent", f"{sentence}. Free space on the node or ask for less")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return AgentFault("rights", sentence)
    return AgentFault("agent", sentence)


def chown_to_user(path: str, uid: int, gid: int) -> None:
    """Makes a file or directory a user's, where there are several users."""
    if os.geteuid() == 0:
        os.chown(path, uid, gid, follow_symlinks=False)


class SharedBuffers:
    """Memory that both halves see: BUFFER_COUNT runs of OBJECT_BYTES each."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, BUFFER_COUNT * OBJECT_BYTES))

    def view(self, buffer: int, length: int = OBJECT_BYTES) -> memoryview:
        """The first ``length`` bytes of a slot."""
        start = buffer * OBJECT_BYTES
        return self._memory[start : start + length]


class PacketChannel:
    """One end of what the halves say to each other. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Mapping[str, Any], *descriptors: int) -> None:
        """Sends a packet, and open files with it. Raises OSError when the other half is gone."""
        socket.send_fds(self._end, [json.dumps(message).encode()], descriptors)

    def receive(self) -> tuple[JsonObject, list[int]]:
        """The next packet; nudges are passed over. Raises EOFError when the other half is gone."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._end, _PACKET, 4)
            if not data:
                raise EOFError
            message: JsonObject = json.loads(data)
            if message != _NUDGE:
                return message, descriptors

    def readable(self, seconds: float) -> bool:
        """Whether by then there is a packet to receive, or the end."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def nudge(self) -> None:
        """Wakes the other half if it waits in ``receive``, which the kernel's counters show; never waits."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self._end.send(json.dumps(_NUDGE).encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """The other half sees the end."""
        self._end.close()


class _StallWatch:
    """Whether the child moves. Its user can stop it, or have it read from a file system that never answers."""

    def __init__(self, pid: int, channel: PacketChannel) -> None:
        self._pid = pid
        self._channel = channel
        self._polled_at = 0.0
        self._counters: list[str] = []
        self._idle_s = self._stopped_s = 0.0
        """Seconds it has not moved since it last did, and seconds it was found stopped in all its life: who stops it
        again and again cannot have it go on for ever by single steps."""
        self._continued = False

    def is_stalled(self) -> bool:
        """Whether it has stood still for 2 * CHILD_STALL_S; after the first half it gets SIGCONT.

        Looks once every CHILD_POLL_S.
        """
        if time.monotonic() - self._polled_at < CHILD_POLL_S:
            return False
        self._polled_at = time.monotonic()
        before = self._counters
        state, *self._counters = _counters(self._pid)
        if state in "Tt":
            self._stopped_s += CHILD_POLL_S
        elif self._counters != before:
            self._idle_s = 0.0
        else:
            self._idle_s += CHILD_POLL_S
            self._channel.nudge()
        if self._idle_s + self._stopped_s >= CHILD_STALL_S and not self._continued:
            self._continued = True
            os.kill(self._pid, signal.SIGCONT)
        return self._idle_s + self._stopped_s >= 2 * CHILD_STALL_S


def _counters(pid: int) -> list[str]:
    """State of a process; and what grows when it runs or wakes: ticks of the processor, and switches to others."""
    # After the name of the program, which may hold anything.
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    status = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return [stat[0], *stat[11:13], *(line for line in status if "ctxt_switches" in line)]


Operation = Callable[[PacketChannel, SharedBuffers, JsonObject, list[int]], JsonObject]
"""What the child can do: takes the request and the open files that came with it, returns the answer."""


class UserProcess:
    """The child, as the half with root's rights sees it."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        """Forks. Call it before there is any thread. ``operations``: by name."""
        self.buffers = SharedBuffers()
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            parent_end.close()
            _run_child(PacketChannel(child_end), self.buffers, operations)
        child_end.close()
        self.channel = PacketChannel(parent_end)
        self._watch = _StallWatch(self._pid, self.channel)

    def drop_privileges(self, uid: int, gid: int, groups: list[int]) -> None:
        """The child gives up root's rights, where it has them, for the user's, for ever. Raises AgentFault."""
        self.call_operation({"do": "become", "uid": uid, "gid": gid, "groups": groups})

    def join_job(self, pid: int, job: str) -> None:
        """Puts the child into the cgroups in which Slurm limits and ends a job, where process ``pid`` of it is."""
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if f"/job_{job}/" in path:
                # Where a controller is not mounted there, or not ours to change, there is nothing to join.
                with contextlib.suppress(OSError):
                    procs = Path(f"/sys/fs/cgroup/{controllers}{path}/cgroup.procs")
                    procs.write_text(str(self._pid), encoding="ascii")

    def call_operation(
        self,
        request: JsonObject,
        *descriptors: int,
        on_message: Callable[[JsonObject], None] | None = None,
    ) -> Any:
        """Has the child do one thing; ``on_message`` is called with what it says before it is done.

        Raises AgentFault, also where the child stands still for long: it is killed then.
        """
        try:
            self.channel.send(request, *descriptors)
            while True:
                while not self.channel.readable(CHILD_POLL_S):
                    self._check_stalled()
                self._check_stalled()
                message, _ = self.channel.receive()
                if "ok" in message:
                    return message["ok"]
                if "error" in message:
                    raise AgentFault(message["kind"], message["error"])
                if on_message is not None:
                    on_message(message)
        except (EOFError, ConnectionError):
            raise AgentFault("agent", "the process with the user's rights is gone: out of memory, or killed") from None

    def _check_stalled(self) -> None:
        if self._watch.is_stalled():
            self.kill()
            raise AgentFault(
                "agent",
                f"the process with the user's rights stood still for {2 * CHILD_STALL_S:.0f} s and was "
                f"killed: a process of "
                "the user's on the node stops it, or a file system there does not answer; look there with ps and dmesg",
            )

    def kill(self) -> None:
        """At once, for any thread. A root without CAP_KILL cannot: the child is to see the end of its line."""
        if self._pid:
            with contextlib.suppress(PermissionError):
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the child. It may be stopped, and would not see the end of its line."""
        if self._pid:
            self.channel.close()
            self.kill()
            os.waitpid(self._pid, 0)
            self._pid = 0


def _run_child(channel: PacketChannel, buffers: SharedBuffers, operations: Mapping[str, Operation]) -> None:
    """The child's life; does not return."""
    status = 1
    try:
        _detach_streams()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
        os.umask(0)
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                request, descriptors = channel.receive()
                if "do" not in request:
                    continue  # meant for work that has failed meanwhile
                try:
                    channel.send({"ok": _run_operation(channel, buffers, operations, request, descriptors)})
                except AgentFault as fault:
                    channel.send({"error": str(fault), "kind": fault.kind})
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
        status = 0
    finally:
        os._exit(status)


def _run_operation(
    channel: PacketChannel,
    buffers: SharedBuffers,
    operations: Mapping[str, Operation],
    request: JsonObject,
    descriptors: list[int],
) -> JsonObject:
    try:
        if request["do"] == "become":
            _drop_privileges(request["uid"], request["gid"], request["groups"])
            return {}
        if os.geteuid() == 0:
            raise AgentFault("agent", "the process with the user's rights still has root's")
        return operations[request["do"]](channel, buffers, request, descriptors)
    except OSError as error:
        raise fault_from_oserror(error, f"{request['do']} with the user's rights") from None


def _drop_privileges(uid: int, gid: int, groups: list[int]) -> None:
    if uid <= 0 or gid < 0:
        raise AgentFault("rights", f"uid {uid}, gid {gid}: data of root is not staged. Submit the job as a user")
    if os.geteuid() != 0:
        return
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _detach_streams() -> None:
    """The child neither reads the request nor writes answers; what it complains of is seen."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
