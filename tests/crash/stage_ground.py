"""Where the bytes of jobs are in staging's crash tests, and transfers that move them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from burstd.domain.claim import Claim
from burstd.domain.staging import Checkpoint, Tree
from burstd.slurm.commands.job_facts import JobFacts
from burstd.staging.controller.tasks import (
    CheckpointRequest,
    CollectedCheckpoint,
    CollectedOutput,
    CommandEnd,
    DeliveredOutput,
    InputSize,
    JobSummary,
    SharedScratchServer,
    StageFailed,
    StagingTask,
    UploadedInput,
)
from burstd.transfer.content_store.upload_pool import TransferCancelled
from tests.crash.stage_slurm import BurstSlurm

SLOTS = ("c1", "c2", "c3", "c4")


@dataclass(frozen=True, slots=True)
class Output:
    """What one run of a job wrote on one node."""

    job_id: str
    run: int
    node: str


@dataclass(slots=True)
class DataLocations:
    """Where everything is. Bytes are there or not."""

    inputs: set[tuple[str, str]] = field(default_factory=set)
    """(job, input) in the store; what they share stays there."""
    outputs: dict[tuple[str, str], set[Output]] = field(default_factory=dict)
    """(job, node) -> what lies in the store."""
    disks: dict[str, dict[str, set[Output]]] = field(default_factory=dict)
    """Claim -> job with a folder there -> its output."""
    premises: dict[str, set[Output]] = field(default_factory=dict)
    """Job with a folder on premises -> its output."""
    delivered: set[Output] = field(default_factory=set)
    ended: dict[str, list[JobSummary]] = field(default_factory=dict)
    lost_with_machine: set[Output] = field(default_factory=set)
    """Lost with its machine."""
    discarded_jobs: set[str] = field(default_factory=set)
    """Jobs whose owner gave the output up."""
    written: set[Output] = field(default_factory=set)
    faults: dict[tuple[str, str], Exception] = field(default_factory=dict)
    """(kind, job or empty for any) -> how its next transfer fails."""
    completed_transfers: list[tuple[str, str, str]] = field(default_factory=list)
    """Transfers that came to their end: kind, job, claim."""
    woken_jobs: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    """Job -> the checkpoint that lies on its nodes."""
    put_back: list[tuple[str, str, str]] = field(default_factory=list)
    """Checkpoints that were put back: job, part, path."""
    commands: list[tuple[str, str, float]] = field(default_factory=list)
    """Checkpoint commands that were run: job, node, seconds they had."""
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    """Job -> the variables that Slurm was told when it gave the job its nodes."""
    damaged: set[str] = field(default_factory=set)
    """Paths of checkpoints that the store does not have whole."""
    pruned: list[tuple[str, ...]] = field(default_factory=list)
    """Jobs of whose checkpoints only these were left in the store."""
    told: list[str] = field(default_factory=list)
    """Jobs that were told to write a checkpoint."""
    shared: dict[str, list[str]] = field(default_factory=dict)
    """Job -> nodes with its shared scratch, the one that serves it first."""
    sshds_end: dict[str, int] = field(default_factory=dict)
    """Job -> on so many nodes its shared scratch is when the first one serves it no more, until it does so anew."""

    def raise_fault(self, kind: str, job: str) -> None:
        """Where this is to fail now."""
        if (fault := self.faults.pop((kind, job), None)) is not None:
            raise fault


class FakeTransfers:
    """See burstd.staging.controller.tasks.Transfers."""

    def __init__(self, ground: DataLocations, slurm: BurstSlurm) -> None:
        self._locations = ground
        self._slurm = slurm
        self._completed: set[tuple[object, ...]] = set()
        """What this process has been told that it is complete."""

    def query_job(self, job_id: str) -> JobFacts | None:
        """See Transfers."""
        return self._slurm.facts(job_id)

    def nudge_scheduler(self, job_id: str) -> None:
        """See Transfers."""
        self._locations.woken_jobs.append(job_id)

    def release_hold(self, job_id: str) -> None:
        """See Transfers."""
        self._slurm.release(job_id)

    def requeue_job(self, task: StagingTask) -> bool:
        """See Transfers."""
        if self._locations.faults.pop(("requeue", task.job.job_id), None) is not None:
            return False
        self._slurm.requeue(task.job.job_id)
        return True

    def _begin_transfer(self, task: StagingTask, kind: str, place: str = "") -> None:
        ground, job = self._locations, task.job
        what = (job.job_id, job.created, kind, place)
        if what in self._completed:
            ground.violations.append(f"{kind} of job {job.job_id} {place} was complete and is repeated")
        if task.cancelled.is_set():
            raise TransferCancelled("the transfer was cancelled")
        fault = ground.faults.pop((kind, job.job_id), None) or ground.faults.pop((kind, ""), None)
        if fault is not None:
            if getattr(fault, "resend", False):
                ground.inputs = {(who, name) for who, name in ground.inputs if who != job.job_id}
            raise fault
        ground.completed_transfers.append((kind, job.job_id, place))
        self._completed.add(what)

    def measure_sources(self, task: StagingTask) -> InputSize:
        """See Transfers."""
        self._begin_transfer(task, "look")
        return InputSize(1000, 2, True)

    def upload_input(self, task: StagingTask) -> UploadedInput:
        """See Transfers."""
        job, trees, sent = task.job, {}, 0
        if job.attempts and not any(who == job.job_id for who, _ in self._locations.inputs):
            # What the store has lost is sent and placed once more.
            self._completed = {one for one in self._completed if one[0] != job.job_id}
        self._begin_transfer(task, "send")
        for name in job.directives.input_names:
            if (job.job_id, name) not in self._locations.inputs:
                self._locations.inputs.add((job.job_id, name))
                sent += 500
            trees[name] = Tree("in", f"{job.job_id}-{name}", (), 1, 500)
        return UploadedInput(trees, 500 * len(trees), sent, 1.0)

    def _disk(self, claim: Claim) -> dict[str, set[Output]]:
        disk = self._locations.disks.get(claim.id)
        if disk is None:
            raise StageFailed(f"{claim.slot} does not answer", retryable=True)
        return disk

    def fetch_input(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> None:
        """See Transfers."""
        disk = self._disk(claim)
        assert all(path.startswith("/") for path in files)
        self._begin_transfer(task, "place", claim.id)
        job = task.job
        for name in job.directives.input_names:
            assert (job.job_id, name) in self._locations.inputs, f"{name} of {job.job_id} is not there"
            assert name in job.trees
        disk.setdefault(job.job_id, set())

    def serve_shared_scratch(self, task: StagingTask, claim: Claim) -> SharedScratchServer | None:
        """See Transfers."""
        self._disk(claim)
        self._locations.raise_fault("share", task.job.job_id)
        self._locations.shared[task.job.job_id] = [claim.slot]
        self._locations.sshds_end.pop(task.job.job_id, None)
        return SharedScratchServer(claim.slot, 43000, "", "") if len(task.job.nodes) > 1 else None

    def mount_shared_scratch(self, task: StagingTask, claim: Claim, server: SharedScratchServer) -> None:
        """See Transfers."""
        self._disk(claim)
        self._locations.raise_fault("share", task.job.job_id)
        if self._locations.sshds_end.get(task.job.job_id) == len(self._locations.shared[task.job.job_id]):
            raise StageFailed("the shared scratch cannot be mounted", retryable=True)
        assert server.address == self._locations.shared[task.job.job_id][0] != claim.slot
        self._locations.shared[task.job.job_id].append(claim.slot)

    def link_on_premises(self, task: StagingTask) -> None:
        """See Transfers."""
        self._begin_transfer(task, "link")
        self._locations.premises.setdefault(task.job.job_id, set())

    def collect_output(self, task: StagingTask, claim: Claim, files: Sequence[str]) -> CollectedOutput:
        """See Transfers."""
        job, disk = task.job, self._disk(claim)
        self._begin_transfer(task, "collect", claim.id)
        known = self._slurm.jobs.get(job.job_id)
        if files != (f"/home/{job.user}/slurm-{job.job_id}.out",):
            assert not files
            assert known is None or known.phase == "gone" or known.uid != job.uid, "the job's own output is not fetched"
        found = disk.get(job.job_id, set())
        prefix = f"out/{job.job_id}/{claim.slot}"
        if not found:
            return CollectedOutput({}, 0, 1.0)
        self._locations.outputs[job.job_id, claim.slot] = set(found)
        return CollectedOutput({"0": Tree(prefix, "d", (), len(found), 10)}, 10, 1.0)

    def collect_checkpoint(self, task: StagingTask, claim: Claim, request: CheckpointRequest) -> CollectedCheckpoint:
        """See Transfers."""
        self._disk(claim)
        job = task.job.job_id
        self._locations.raise_fault("checkpoint", job)
        if request.tell_job:
            self._locations.told.append(job)
        state = self._locations.states.get(job, "")
        if not state or request.known == state:
            return CollectedCheckpoint(state, state, None, "", 0, 0.1)
        return CollectedCheckpoint(state, state, Tree(f"checkpoint/{job}", state, (), 1, 100), "", 40, 0.1)

    def remove_other_checkpoints(self, task: StagingTask) -> None:
        """See Transfers."""
        self._locations.pruned.append((task.job.job_id, *(one.path for one in task.job.checkpoints)))

    def run_checkpoint_command(self, task: StagingTask, claim: Claim, limit_s: float) -> CommandEnd:
        """See Transfers."""
        self._disk(claim)
        self._locations.raise_fault("command", task.job.job_id)
        self._locations.commands.append((task.job.job_id, claim.slot, limit_s))
        self._locations.states[task.job.job_id] = "step-by-command"
        return CommandEnd(3, 1.5)

    def restore_checkpoint(self, task: StagingTask, claim: Claim, checkpoint: Checkpoint, part: str) -> None:
        """See Transfers."""
        self._disk(claim)
        if checkpoint.path in self._locations.damaged:
            raise StageFailed(f"{checkpoint.path} is damaged", retryable=True, resend=True)
        self._locations.put_back.append((task.job.job_id, part, checkpoint.path))

    def deliver_output(self, task: StagingTask, summary: JobSummary) -> DeliveredOutput:
        """See Transfers."""
        self._begin_transfer(task, "bring")
        job = task.job
        fetched = {key.partition("/")[0] for key in job.outputs}
        assert not fetched & set(summary.lost_nodes)
        assert fetched | set(summary.lost_nodes) == set(job.nodes) & set(SLOTS), (job, summary)
        for node in fetched:
            self._locations.delivered |= self._locations.outputs.get((job.job_id, node), set())
        if summary.on_premises:
            self._locations.delivered |= self._locations.premises.get(job.job_id, set())
        self._locations.ended.setdefault(job.job_id, []).append(summary)
        return DeliveredOutput(10)

    def remove_job_data(self, task: StagingTask, claims: Sequence[Claim], *, checkpoints: bool = True) -> None:
        """See Transfers."""
        if checkpoints:
            self._locations.put_back = [one for one in self._locations.put_back if one[0] != task.job.job_id]
        disks = [self._disk(claim) for claim in claims]
        self._begin_transfer(task, "clear")
        job_id = task.job.job_id
        for key in [key for key in self._locations.outputs if key[0] == job_id]:
            del self._locations.outputs[key]
        for disk in disks:
            disk.pop(job_id, None)
        self._locations.premises.pop(job_id, None)
        self._locations.shared.pop(job_id, None)
