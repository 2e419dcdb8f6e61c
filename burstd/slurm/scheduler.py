"""Slurm through its commands; and the choice between commands and pyslurm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from burstd.domain.errors import SchedulerRefused
from burstd.domain.slurm.job import ENDED_STATES, Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import Node, Reservation
from burstd.slurm import reservations
from burstd.slurm.commands import jobs, licenses, nodes
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import compress

_MAX_ADDRESSES_PER_COMMAND = 1000
"""A single argument of a command may have 128 KiB."""
_MAX_ARGUMENT_CHARACTERS = 100_000
"""Of the same: the tasks of an array may take thousands."""
_INVALID_JOB_ID = "invalid job id"
"""So squeue says that it knows none of the jobs that it is asked for."""
_INVALID_NODE_STATE = "Invalid node state specified"
_POWER_SAVING_OFF = (
    "slurmctld has power saving off, as ResumeProgram or SuspendProgram was not there when it started, or slurm.conf "
    "switches it off: mend what 'burstctl check' names, then systemctl restart slurmctld"
)
_MAX_JOBS_PER_COMMAND = 1000
"""scontrol asks slurmctld for one job after another: this many must be done before the command's timeout."""


_ENDED_BY_ITSELF = frozenset({JobState.COMPLETED, JobState.FAILED})
_ENDED = frozenset({JobState.CANCELLED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.DEADLINE})


class CommandScheduler:
    """``burstd.domain.plugins.scheduler.Scheduler`` on squeue and scontrol, from 22.05 on.

    ``translate`` turns Slurm's times (the system's clock, seconds since 1970) into burstd's.
    """

    def __init__(
        self,
        commands: SlurmCommands | None = None,
        translate: Callable[[float], float] = lambda wall: wall,
        gate_name: str = reservations.GATE,
    ) -> None:
        self._commands = commands or SlurmCommands()
        self._translate = translate
        self._gate = gate_name
        self._job_cache: dict[jobs.QueueRow, Job] = {}
        self._ended_jobs: tuple[Job, ...] = ()
        self._node_reader = nodes.NodeReader(self._commands, translate)

    def version(self) -> tuple[int, int, int]:
        """Version of slurmctld: ``(22, 5, 8)``."""
        return self._commands.version()

    def jobs(self) -> Sequence[Job]:
        """Jobs that are pending, running or completing. One command, two before 24.05."""
        excluded = None
        if self.version() < jobs.EXCLUDED_NODES_SINCE:
            excluded = jobs.read_excluded_nodes(self._commands)
        found = jobs.read_jobs(self._commands, self._translate, excluded, self._job_cache)
        self._ended_jobs = tuple(job for job in found if job.state in ENDED_STATES)
        return tuple(job for job in found if job.state not in ENDED_STATES)

    def ended_jobs(self) -> Sequence[Job]:
        """Jobs that were over when ``jobs`` was last called."""
        return self._ended_jobs

    def nodes(self) -> Sequence[Node]:
        """All nodes, powered-down CLOUD nodes included."""
        return self._node_reader.read_all()

    def reservations(self) -> Sequence[Reservation]:
        """All reservations."""
        return reservations.parse_reservations(self._commands(*reservations.SHOW_RESERVATIONS), self._translate)

    def licenses(self) -> Mapping[str, int]:
        """By name, how many of each licence are free."""
        return licenses.parse_licenses(self._commands(*licenses.SHOW_LICENSES))

    def set_gate(self, nodes: Collection[str]) -> None:
        """Makes the gate hold exactly these nodes."""
        reservations.set_gate(self._commands, nodes, self._gate)

    def bind(self, job_id: str, user: str, nodes: Collection[str]) -> None:
        """Reserves these nodes for one pending job."""
        reservations.bind(self._commands, job_id, user, nodes)

    def unbind(self, job_id: str) -> None:
        """Removes the job's reservation, where it exists."""
        reservations.unbind(self._commands, job_id)

    def power_up(self, nodes: Collection[str]) -> None:
        """Sets State=POWER_UP.

        slurmd must not register before the node shows POWERING_UP (a second or two): POWER_UP would stick, and lead
        to a ResumeProgram call of its own after the next power_down.
        """
        self._power(nodes, "State=POWER_UP")

    def power_down(self, nodes: Collection[str], *, force: bool = False) -> None:
        """Sets State=POWER_DOWN, or POWER_DOWN_FORCE."""
        self._power(nodes, "State=POWER_DOWN_FORCE" if force else "State=POWER_DOWN")

    def set_address(self, addresses: Sequence[tuple[str, str]]) -> None:
        """Sets NodeAddr and NodeHostName. Newer versions of Slurm forget addresses when a node is powered down."""
        for start in range(0, len(addresses), _MAX_ADDRESSES_PER_COMMAND):
            part = addresses[start : start + _MAX_ADDRESSES_PER_COMMAND]
            names = ",".join(name for name, _ in part)
            where = ",".join(address for _, address in part)
            self._commands("scontrol", "update", f"NodeName={names}", f"NodeAddr={where}", f"NodeHostName={names}")

    def drain(self, nodes: Collection[str], reason: str) -> None:
        """Sets State=DRAIN with a reason."""
        self._update_nodes(nodes, "State=DRAIN", f"Reason={_one_line(reason)}")

    def resume(self, nodes: Collection[str]) -> None:
        """Sets State=RESUME. Raises SchedulerRefused also where a node is neither drained nor down."""
        self._update_nodes(nodes, "State=RESUME")

    def down(self, nodes: Collection[str], reason: str) -> None:
        """Sets State=DOWN with a reason."""
        self._update_nodes(nodes, "State=DOWN", f"Reason={_one_line(reason)}")

    def set_extra(self, nodes: Collection[str], text: str) -> None:
        """Sets Extra of nodes."""
        self._update_nodes(nodes, f"Extra={_one_line(text)}")

    def requeue_jobs(self, job_ids: Collection[str]) -> None:
        """Requeues running jobs. Without ``incomplete`` Slurm also requeues jobs that have ended meanwhile."""
        ids = list(job_ids)
        refused: SchedulerRefused | None = None
        for start in range(0, len(ids), _MAX_JOBS_PER_COMMAND):
            try:
                self._commands(
                    "scontrol", "requeue", "incomplete", ",".join(ids[start : start + _MAX_JOBS_PER_COMMAND])
                )
            except SchedulerRefused as error:
                refused = error
        if refused is not None:
            raise refused

    def warn_jobs(self, job_ids: Collection[str]) -> None:
        """Signals the steps of running jobs. Without --batch and --full a batch script gets none, as in slurmctld."""
        refused: SchedulerRefused | None = None
        for some in _job_id_batches(job_ids):
            for signal in ("CONT", "TERM"):
                try:
                    self._commands("scancel", f"--signal={signal}", *some.split(","))
                except SchedulerRefused as error:
                    refused = error
        if refused is not None:
            raise refused

    def requeue_ended(self, job_id: str) -> None:
        """Requeues a job that slurmctld still knows. ``scontrol requeue`` takes one that was cancelled as well."""
        state = jobs.read_state(self._commands, job_id)
        if state in _ENDED_BY_ITSELF:
            self._commands("scontrol", "requeue", job_id)
        elif state in _ENDED:
            raise SchedulerRefused(f"it has ended as {state.value}")

    def cancel_running(self, job_id: str) -> None:
        """Cancels a job that runs. Without ``--state`` one that was requeued a moment ago would be cancelled too."""
        self._commands("scancel", "--state=RUNNING", job_id)

    def limit_time(self, job_id: str, limit_s: float) -> None:
        """Sets the TimeLimit of a job: seconds, rounded down to whole minutes."""
        self._commands("scontrol", "update", f"JobId={job_id}", f"TimeLimit={max(1, int(limit_s // 60))}")

    def start_now(self, job_ids: Collection[str]) -> None:
        """Sets StartTime of pending jobs to now."""
        self._commands("scontrol", "update", f"JobId={','.join(job_ids)}", "StartTime=now")

    def hold(self, job_id: str) -> None:
        """Holds a pending job. After ``scontrol hold`` by burstd only an administrator could release it."""
        self._commands("scontrol", "uhold", job_id)

    def update_jobs(self, job_ids: Collection[str], update: JobUpdate) -> None:
        """Changes what pending jobs ask for."""
        what = [f"ExcNodeList={compress(update.excluded_nodes) if update.excluded_nodes else ''}"]
        if update.gres_per_node:
            what.append("Gres=" + ",".join(map(str, update.gres_per_node)))
        for key, value in (
            ("MinMemoryNode", update.memory_mib),
            ("NumCPUs", update.cpus),
            ("MinCPUsNode", update.cpus_per_node),
        ):
            what += [f"{key}={value}"] if value else []
        what += ["StartTime=now"] if update.start_now else []
        refused: SchedulerRefused | None = None
        for some in _job_id_batches(job_ids):
            try:
                self._commands("scontrol", "update", f"JobId={some}", *what)
            except SchedulerRefused as error:
                refused = error
        if refused is not None:
            raise refused

    def comments(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """Comments by job id, of the jobs that are in the queue."""
        found: dict[str, str] = {}
        for some in _job_id_batches(job_ids):
            try:
                found |= jobs.read_comments(self._commands, some)
            except SchedulerRefused as error:
                if _INVALID_JOB_ID not in str(error).lower():
                    raise
        return found

    def set_comment(self, job_ids: Collection[str], text: str) -> None:
        """Sets the Comment of jobs."""
        refused: SchedulerRefused | None = None
        for some in _job_id_batches(job_ids):
            try:
                self._commands("scontrol", "update", f"JobId={some}", f"Comment={_one_line(text)}")
            except SchedulerRefused as error:
                refused = error
        if refused is not None:
            raise refused

    def _power(self, nodes: Collection[str], state: str) -> None:
        try:
            self._update_nodes(nodes, state)
        except SchedulerRefused as error:
            # _valid_node_state_change() of slurmctld refuses these two for nothing else, before 26.05.
            if _INVALID_NODE_STATE in str(error):
                raise SchedulerRefused(f"{error}: {_POWER_SAVING_OFF}") from None
            raise

    def _update_nodes(self, nodes: Collection[str], *what: str) -> None:
        if nodes:
            self._commands("scontrol", "update", f"NodeName={compress(nodes)}", *what)


def _job_id_batches(job_ids: Iterable[str]) -> Iterator[str]:
    """Lists of jobs with commas between, so many and so long as one command may have."""
    some: list[str] = []
    length = 0
    for job_id in job_ids:
        if some and (len(some) == _MAX_JOBS_PER_COMMAND or length + len(job_id) > _MAX_ARGUMENT_CHARACTERS):
            yield ",".join(some)
            some, length = [], 0
        some.append(job_id)
        length += len(job_id) + 1
    if some:
        yield ",".join(some)


def _one_line(text: str) -> str:
    """scontrol takes control characters; squeue's and sinfo's readers would not like them."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
