"""A Slurm of thousands of CLOUD nodes and a long queue behind burstd's own commands, in a process of its own.

It answers squeue, scontrol and sinfo with the text of Slurm 24.11, and starts the next job on every node that is up
and outside the gate. What it uses of processor and memory is not burstd's.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from burstd.slurm.commands.jobs import QUEUE_FIELDS
from burstd.slurm.hostlist import compress, expand

CPUS, MEMORY_MIB = 8, 32_000
"""Of a node."""
_KINDS, _USERS = 50, 100
_FIELD = "\x1f"
_NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc={used} CPUEfctv=8 CPUTot=8 CPULoad=0.00 "
    "AvailableFeatures=cloud ActiveFeatures=cloud Gres=(null) GresDrain=N/A NodeAddr={address} NodeHostName={name} "
    "Version=24.11.5 OS=Linux 6.12.43+deb13-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1  RealMemory=32000 "
    "AllocMem={memory} FreeMem=N/A Sockets=8 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=burst  BootTime={since} SlurmdStartTime={since} LastBusyTime={busy} "
    "ResumeAfterTime=None CfgTRES=cpu=8,mem=32000M,billing=8 AllocTRES= CurrentWatts=0 AveWatts=0\n"
)
_GATE = (
    "ReservationName=burstd StartTime={start} EndTime={end} Duration=365-00:00:00 Nodes={nodes} NodeCnt={count} "
    "CoreCnt={count} Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu={count} Users=root "
    "Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) MaxStartDelay=(null)\n"
)


@dataclass(slots=True)
class _Node:
    name: str
    address: str
    state: str = "IDLE+CLOUD+POWERED_DOWN"
    since: str = "None"
    busy: str = "Unknown"
    job: str = ""

    def text(self) -> str:
        used, memory = (CPUS, MEMORY_MIB) if self.job else (0, 0)
        return _NODE.format(
            name=self.name, address=self.address, used=used, memory=memory, state=self.state, since=self.since,
            busy=self.busy,
        )  # fmt: skip


@dataclass(slots=True)
class _Waiting:
    """A job, or what is left of an array: ``next`` to ``last``; next is 0 for a job."""

    array: int
    next: int
    last: int


class _World:
    """Nodes and jobs; in the process of its own."""

    def __init__(self, slots: Sequence[str]) -> None:
        self._nodes = {name: _Node(name, name) for name in slots}
        self._gate: frozenset[str] = frozenset()
        self._rows: dict[str, str] = {}
        """By JobArrayID, that of the pending rest of an array by its number."""
        self._waiting: deque[_Waiting] = deque()
        self._number = 0

    def answer(self, words: Sequence[str], environment: Mapping[str, str]) -> str:
        """Of one command."""
        match words:
            case ("squeue", *_):
                return self._queue(environment["SQUEUE_FORMAT2"])
            case ("sinfo", *_):
                return "".join(f"{name}\n" for name in self._nodes)
            case ("scontrol", "show", "config"):
                return "SLURM_VERSION           = 24.11.5\n"
            case ("scontrol", *_, "show", "node"):
                return "".join(node.text() for node in self._nodes.values())
            case ("scontrol", *_, "show", "reservation"):
                return self._reservations()
            case ("scontrol", "create" | "update" | "delete", *assigned):
                self._change(dict(word.split("=", 1) for word in assigned if "=" in word))
                return ""
            case ("submit", jobs, tasks):
                self._submit(int(jobs), int(tasks))
                return ""
            case ("register", name, address):
                self._register(self._nodes[name], address)
                return ""
        raise ValueError(f"nobody can answer {words}")

    def _queue(self, formatted: str) -> str:
        field = formatted.split(",", 1)[0].partition(":0")[2]
        row = formatted.rpartition(":0")[2] + "\n"
        return "".join(text + row for text in self._rows.values()).replace(_FIELD, field)

    def _reservations(self) -> str:
        if not self._gate:
            return "No reservations in the system\n"
        now = int(time.time())
        return _GATE.format(start=now, end=now + 31_536_000, nodes=compress(self._gate), count=len(self._gate))

    def _change(self, what: Mapping[str, str]) -> None:
        if "ReservationName" in what:
            self._gate = frozenset(expand(what["Nodes"])) if "Nodes" in what else frozenset()
            self._start_jobs()
            return
        names = expand(what["NodeName"])
        for name, address in zip(names, what.get("NodeAddr", what["NodeName"]).split(","), strict=False):
            node = self._nodes[name]
            if "NodeAddr" in what:
                node.address = address
        state = {"POWER_UP": "IDLE+CLOUD+POWERING_UP", "POWER_DOWN": "IDLE+CLOUD+POWERED_DOWN"}.get(
            what.get("State", "")
        )
        for name in names if state else ():
            self._nodes[name].state = state or ""

    def _register(self, node: _Node, address: str) -> None:
        node.address, node.state, node.since = address, "IDLE+CLOUD", str(int(time.time()))
        self._start_jobs()

    def _submit(self, jobs: int, tasks: int) -> None:
        for _ in range(jobs // tasks):
            self._number += 1
            one = _Waiting(self._number, 1 if tasks > 1 else 0, tasks)
            self._waiting.append(one)
            self._show_waiting(one)
        self._start_jobs()

    def _show_waiting(self, one: _Waiting) -> None:
        shown, tasks = str(one.array), "N/A"
        if one.next:
            tasks = f"{one.next}-{one.last}"
            shown = f"{one.array}_[{tasks}]"
        self._rows[str(one.array)] = self._row(one.array, str(one.array), shown, tasks, "PENDING", "Resources")

    def _start_jobs(self) -> None:
        for node in self._nodes.values():
            if node.state == "IDLE+CLOUD" and not node.job and node.name not in self._gate and self._waiting:
                self._start_next(node)

    def _start_next(self, node: _Node) -> None:
        one, now = self._waiting[0], str(int(time.time()))
        job, shown, task = str(one.array), str(one.array), "N/A"
        if one.next:
            self._number += 1
            job, shown, task = str(self._number), f"{one.array}_{one.next}", str(one.next)
            one.next += 1
        node.job, node.state, node.busy = job, "ALLOCATED+CLOUD", now
        self._rows[shown] = self._row(one.array, job, shown, task, "RUNNING", "None", node.name, now)
        if task == "N/A" or one.next > one.last:
            self._waiting.popleft()
            if task != "N/A":
                del self._rows[str(one.array)]
        else:
            self._show_waiting(one)

    def _row(
        self, array: int, job: str, shown: str, tasks: str, state: str, reason: str, node: str = "", start: str = "N/A"
    ) -> str:
        kind, user = array % _KINDS, f"user{array % _USERS}"
        cpus, memory = 1 + kind % CPUS, 1000 * (1 + kind % 30)
        now, name = str(int(time.time())), f"/home/{user}/projects/run"
        values = {
            **dict.fromkeys(QUEUE_FIELDS, "N/A"), "JobID": job, "JobArrayID": shown, "ArrayTaskID": tasks,
            "ArrayJobID": str(array), "State": state, "PriorityLong": str(4_294_000_000 - array),
            "Partition": "burst", **dict.fromkeys(("NumNodes", "MaxNodes", "NumTasks", "BatchFlag", "Requeue"), "1"),
            "NumCPUs": str(cpus), "MinCPUs": str(cpus), "NTPerNode": "0", "MinMemory": f"{memory}M",
            "tres-alloc": f"cpu={cpus},mem={memory}M,node=1,billing={cpus}", "Sockets": "*", "OverSubscribe": "NO",
            "Exclusive": "", "ExcNodes": "", "TimeLimit": "2:00:00", "SubmitTime": now, "EligibleTime": now,
            "StartTime": start, "EndTime": "N/A", "exit_code": "0:0", "ReqNodes": "", "NodeList": node,
            "RestartCnt": "0", "UserName": user, "Account": f"group{array % 20}", "QOS": "normal", "Reason": reason,
            "Feature": "(null)", "Reservation": "(null)", "Licenses": "(null)", "Dependency": "(null)",
            "WorkDir": name, "STDOUT": f"{name}/slurm-{job}.out", "Comment": "(null)", "Name": f"sweep-{kind}",
        }  # fmt: skip
        return _FIELD.join(values[field] for field in QUEUE_FIELDS)


def _serve(slots: Sequence[str], lines: Sequence[Connection]) -> None:
    world, open_lines = _World(slots), list(lines)
    while open_lines:
        for line in wait(open_lines):
            assert isinstance(line, Connection)
            try:
                words, environment = line.recv()
            except EOFError:
                open_lines.remove(line)
            else:
                line.send_bytes(world.answer(words, environment).encode())


class ScaleSlurm:
    """Starts the process; ``run`` is a CommandRunner. Used by one thread, ``register`` by any."""

    def __init__(self, slots: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(2)]
        (self._line, _), (self._machines, _) = pairs
        self._process = context.Process(target=_serve, args=(slots, [theirs for _, theirs in pairs]), daemon=True)
        self._process.start()
        for _, theirs in pairs:
            theirs.close()
        self._lock = threading.Lock()
        self.seconds = 0.0
        """That its answers took so far, by the clock."""
        self.commands: list[str] = []

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """One command."""
        del timeout_s
        begun = time.perf_counter()
        self._line.send((tuple(argv), dict(environment)))
        self._line.poll(None)
        self.seconds += time.perf_counter() - begun
        self.commands.append(" ".join(argv[:3])[:40])
        return subprocess.CompletedProcess(argv, 0, self._line.recv_bytes().decode(), "")

    def submit(self, jobs: int, tasks: int = 1) -> None:
        """So many jobs, each for a node of its own, in arrays of so many tasks; 1: each by itself."""
        self.run(("submit", str(jobs), str(tasks)), {}, 0.0)

    def register(self, name: str, address: str) -> None:
        """slurmd of a node registers."""
        with self._lock:
            self._machines.send((("register", name, address), {}))
            self._machines.recv_bytes()

    def close(self) -> None:
        """Ends the process."""
        self._line.close()
        self._machines.close()
        self._process.join()
