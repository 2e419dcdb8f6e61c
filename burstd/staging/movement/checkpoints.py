"""Checkpoints of running jobs: when the next one is due, what is kept of it, and how it is put back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock, backoff_s
from burstd.domain.plugins.provider import NoticeKind
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import Checkpoint, CheckpointLine, Staging, Tree
from burstd.domain.staging import StageState as S
from burstd.domain.units import size_text
from burstd.planner.lifecycle.spot_notices import notice_of_node
from burstd.staging.controller.job_runs import CheckpointProgress, StagingRun
from burstd.staging.controller.tasks import (
    CheckpointFailed,
    CheckpointRequest,
    CollectedCheckpoint,
    CommandEnd,
    StageFailed,
    StagingTask,
    Transfers,
)
from burstd.staging.movement.moves import TransferDispatcher
from burstd.staging.submission.quota import FindQuotaUsage
from burstd.transfer.content_store.manifest import MAX_TREE_BYTES

log = structlog.get_logger(__name__)

RETRY_S = 5.0
"""What changes while it is read is looked at again after this pause; what fails, after longer and longer ones."""
MAX_RETRY_S = 300.0
REQUEUE_RESERVE_S = 10.0
"""Before its machine ends, a job is requeued and what it wrote is brought off the machine."""
COMMAND_SHARE = 0.8
"""Of the time that is left before the requeue; the rest is for the checkpoint that is taken then."""
MIN_LAST_S = 3.0
"""A last checkpoint for which there is less time is not begun."""
_NODES_LANE, _SLURM_LANE = "stage:nodes", "stage:slurm"


class CheckpointDispatcher:
    """Used in the deciding thread. Each method returns the record."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        transfers: Transfers,
        dispatcher: TransferDispatcher,
        quotas: FindQuotaUsage,
    ) -> None:
        self._store = store
        self._clock = clock
        self._transfers = transfers
        self._dispatcher = dispatcher
        self._quotas = quotas

    def is_due(self, row: Staging, run: StagingRun) -> bool:
        """Whether one is to be taken now from a job that runs."""
        line, progress = row.directives.checkpoint, run.cycle.checkpoint
        if line is None or not run.active or progress.last_done:
            return False
        if progress.last_until:
            return True
        if not progress.due:
            began = self._dispatcher.entered_at(row, run.cycle, S.FETCHED)
            progress.due = max([began, *(one.taken for one in row.checkpoints)]) + line.every_s
        return self._clock.now() >= progress.due

    def note_interruption(self, row: Staging, run: StagingRun, slurm: SlurmView, leaves_at: float = 0.0) -> None:
        """Where a machine of the job is taken back and says when, or the job itself is requeued for others at
        ``leaves_at`` (0: it is not), the last checkpoint is taken first.
        """
        progress = run.cycle.checkpoint
        if row.state is not S.FETCHED or row.directives.checkpoint is None or progress.last_until:
            return
        notices = [notice for node in row.nodes if (notice := notice_of_node(slurm.nodes.get(node))) is not None]
        deadlines = [n.deadline for n in notices if n.kind is NoticeKind.INTERRUPTION and n.deadline is not None]
        now = self._clock.now()
        ends = [now + deadline - self._clock.wall() - REQUEUE_RESERVE_S for deadline in deadlines]
        until = min([*ends, *([leaves_at] if leaves_at else [])], default=0.0)
        if until - now >= MIN_LAST_S:
            progress.last_until, progress.parts = until, {}
            # One that is under way is older than what the job is about to write.
            run.cancel_tasks()

    def give_up_late(self, run: StagingRun) -> None:
        """The last one has taken too long: the job goes on without it."""
        progress = run.cycle.checkpoint
        if progress.last_until and not progress.last_done and self._clock.now() >= progress.last_until:
            progress.last_done = True
            run.cancel_tasks()

    def collect(
        self, row: Staging, run: StagingRun, machines: Mapping[str, Claim], others: Collection[Staging]
    ) -> Staging:
        """From all nodes of the job to the store; ``others``: the data of all jobs."""
        line, progress, now = row.directives.checkpoint, run.cycle.checkpoint, self._clock.now()
        cloud = self._dispatcher.cloud_nodes_of(row, run)
        if line is None or not cloud:
            # On premises no cloud takes a node back.
            progress.due, progress.last_done = float("inf"), True
            return row
        claims = self._dispatcher.nodes_with_output(row, run, machines)
        if missing := [node for node in row.nodes if node not in claims]:
            reason = f"the checkpoint is not taken: burstd has no machine for {', '.join(missing)}"
            return self._failed(row, run, line, reason)
        if row.checkpoints and not progress.others_removed and not progress.last_until:
            # Not while nodes bring one: an agent relies on objects that are there.
            removed = partial(self._others_removed, run, line)
            self._dispatcher.start_task(row, run, "checkpoint", self._remove_others, removed, lane=_NODES_LANE)
            return row
        if progress.last_until and line.command and not progress.command_ended:
            command = partial(
                self._run_command, claim=claims[row.nodes[0]],
                limit_s=min(line.within_s, COMMAND_SHARE * max(progress.last_until - now, 0.0)),
            )  # fmt: skip
            ended = partial(self._command_ended, run)
            self._dispatcher.start_task(row, run, "command", command, ended, lane=_NODES_LANE)
            return row
        parts = progress.parts = {}
        known = self._known(row, run)
        room = self._room(row, line, others)
        for number, node in enumerate(row.nodes):
            part = str(number)
            wait_s = min(line.within_s, progress.last_until - now) if progress.last_until and line.signal else 0.0
            # Where only some nodes write, the others have nothing to wait for.
            writes = not row.checkpoints or part in row.checkpoints[-1].trees
            request = CheckpointRequest(
                known.get(part, ""), room, max(wait_s, 0.0) if writes else 0.0, tell_job=wait_s > 0 and writes
            )  # fmt: skip
            work = partial(self._collect_part, claim=claims[node], request=request)
            done = partial(self._part_came, run, line, parts, part, room)
            self._dispatcher.start_task(row, run, f"checkpoint {node}", work, done, lane=_NODES_LANE)
        return row

    def _run_command(self, task: StagingTask, claim: Claim, limit_s: float) -> CommandEnd | CheckpointFailed:
        """In a worker thread. What is there is taken all the same."""
        try:
            return self._transfers.run_checkpoint_command(task, claim, limit_s)
        except StageFailed as error:
            return CheckpointFailed(str(error))

    def _command_ended(self, run: StagingRun, row: Staging, result: CommandEnd | CheckpointFailed) -> Staging:
        run.cycle.checkpoint.command_ended = True
        match result:
            case CheckpointFailed(reason):
                text = f"the checkpoint command was not run: {reason}"
            case CommandEnd(None, seconds):
                text = f"the checkpoint command was killed after {seconds:.0f} s, when its time was over"
            case CommandEnd(exit_code, seconds):
                text = f"the checkpoint command ended with exit code {exit_code} after {seconds:.0f} s"
        log.info("a checkpoint command has ended", job=row.job_id, result=text)
        return self._store.set_staging_reason(row.job_id, text)

    def _known(self, row: Staging, run: StagingRun) -> Mapping[str, str]:
        """Fingerprints of the newest one, where it is of this run on these nodes."""
        began = self._dispatcher.entered_at(row, run.cycle, S.FETCHED)
        newest = row.checkpoints[-1] if row.checkpoints else None
        return newest.fingerprints if newest is not None and newest.taken >= began else {}

    def _room(self, row: Staging, line: CheckpointLine, others: Collection[Staging]) -> int:
        """Bytes that a new one may have: what is left of the quotas when the oldest one goes."""
        usage = self._quotas(row, ())
        if usage is None:
            return MAX_TREE_BYTES
        goes = row.checkpoints[0].size if len(row.checkpoints) >= line.keep else 0
        users = sum(one.size for other in others if other.uid == row.uid for one in other.checkpoints)
        projects = sum(one.size for other in others if other.account == row.account for one in other.checkpoints)
        left = [
            use.limit_bytes - use.size_bytes - kept + goes
            for use, kept in ((usage.user, users), (usage.project, projects))
            if use.limit_bytes is not None
        ]
        return max(0, min([MAX_TREE_BYTES, *left]))

    def _collect_part(
        self, task: StagingTask, claim: Claim, request: CheckpointRequest
    ) -> CollectedCheckpoint | CheckpointFailed:
        """In a worker thread. What fails is no reason to hold the job's data."""
        try:
            return self._transfers.collect_checkpoint(task, claim, request)
        except StageFailed as error:
            return CheckpointFailed(str(error))

    def _remove_others(self, task: StagingTask) -> CheckpointFailed | None:
        try:
            self._transfers.remove_other_checkpoints(task)
        except StageFailed as error:
            return CheckpointFailed(str(error))
        return None

    def _others_removed(
        self, run: StagingRun, line: CheckpointLine, row: Staging, result: CheckpointFailed | None
    ) -> Staging:
        run.cycle.checkpoint.others_removed = result is None
        return row if result is None else self._failed(row, run, line, result.reason)

    def _part_came(
        self,
        run: StagingRun,
        line: CheckpointLine,
        parts: dict[str, CollectedCheckpoint | CheckpointFailed],
        part: str,
        room: int,
        row: Staging,
        result: CollectedCheckpoint | CheckpointFailed,
    ) -> Staging:
        parts[part] = result
        if len(parts) < len(row.nodes) or parts is not run.cycle.checkpoint.parts:
            return row
        failed = [one for one in parts.values() if isinstance(one, CheckpointFailed)]
        found = {part: one for part, one in parts.items() if isinstance(one, CollectedCheckpoint)}
        there = {part: one for part, one in found.items() if one.path}
        if failed:
            return self._failed(row, run, line, failed[0].reason)
        if len({one.path for one in there.values()}) > 1:
            paths = ", ".join(f"{row.nodes[int(part)]} has {one.path}" for part, one in sorted(there.items()))
            return self._changing(row, run, line, f"the newest checkpoint is not the same on all nodes: {paths}")
        new = [one for one in there.values() if one.tree is not None]
        if not new:
            changing = next((one.changing for one in found.values() if one.changing), "")
            return self._changing(row, run, line, f"the checkpoint was not taken: {changing}" if changing else "")
        return self._taken(row, run, line, there, room)

    def _taken(
        self, row: Staging, run: StagingRun, line: CheckpointLine, there: Mapping[str, CollectedCheckpoint], room: int
    ) -> Staging:
        """All nodes have given theirs."""
        before = row.checkpoints[-1].trees if row.checkpoints else {}
        trees: dict[str, Tree] = {
            part: tree for part, one in there.items() if (tree := one.tree or before.get(part)) is not None
        }
        size = sum(tree.size for tree in trees.values())
        if size > room:
            reason = f"the checkpoint has {size_text(size)}, and {size_text(room)} are left of the quota"
            return self._failed(row, run, line, reason)
        sent = sum(one.sent for one in there.values())
        path = next(iter(there.values())).path
        new = Checkpoint(
            taken=self._clock.now(), path=path, trees=trees, nodes=len(row.nodes),
            fingerprints={part: one.fingerprint for part, one in there.items()}, size=size, sent=sent,
            seconds=max(one.seconds for one in there.values()),
        )  # fmt: skip
        kept = (*row.checkpoints, new)[-line.keep :]
        progress = run.cycle.checkpoint
        progress.others_removed = progress.others_removed and len(kept) > len(row.checkpoints)
        self._settle(progress, line.every_s)
        reason = f"checkpoint {path} is in the store: {size} bytes, {sent} had to be sent"
        return self._store.update_staging(row.job_id, reason, checkpoints=kept, checkpoint_error="")

    def _settle(self, progress: CheckpointProgress, pause_s: float, *, failed: bool = False) -> None:
        progress.failures = progress.failures + 1 if failed else 0
        progress.due = self._clock.now() + pause_s
        progress.last_done = progress.last_until > 0

    def _failed(self, row: Staging, run: StagingRun, line: CheckpointLine, reason: str) -> Staging:
        progress = run.cycle.checkpoint
        pause_s = min(line.every_s, backoff_s(progress.failures + 1, RETRY_S, MAX_RETRY_S))
        self._settle(progress, pause_s, failed=True)
        log.warning("a checkpoint was not taken", job=row.job_id, error=reason)
        return self._store.update_staging(row.job_id, reason, checkpoint_error=reason)

    def _changing(self, row: Staging, run: StagingRun, line: CheckpointLine, reason: str) -> Staging:
        """Nothing new that is whole is there; ``reason`` empty: nothing new at all."""
        self._settle(run.cycle.checkpoint, min(line.every_s, RETRY_S) if reason else line.every_s)
        if reason == row.checkpoint_error:
            return row
        return self._store.update_staging(row.job_id, reason or "nothing changes", checkpoint_error=reason)

    # Back to the nodes.

    def put_back(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> tuple[Staging, bool]:
        """The newest one onto the nodes that the job has been given; and whether that is done.

        Where it cannot be, Slurm starts the job once more: it has the job's variables already, which name that one.
        """
        if row.checkpoint_error:
            if run.active:
                requeued = partial(self._requeued, run)
                self._dispatcher.start_task(
                    row, run, "requeue", self._transfers.requeue_job, requeued, lane=_SLURM_LANE
                )
            return row, False
        if row.directives.checkpoint is None or not row.checkpoints:
            return row, True
        checkpoint = row.checkpoints[-1]
        if any(int(part) >= len(row.nodes) for part in checkpoint.trees) or (
            len(checkpoint.trees) > 1 and checkpoint.nodes != len(row.nodes)
        ):
            reason = f"the checkpoint of {checkpoint.nodes} nodes is not put back: the job has {len(row.nodes)} now"
            return self._drop(checkpoint, row, reason), False
        if len(checkpoint.trees) > 1 and not all(node in machines for node in row.nodes):
            reason = f"the checkpoint of {checkpoint.nodes} nodes is not put back on premises"
            return self._drop(checkpoint, row, reason), False
        for part in checkpoint.trees:
            node = row.nodes[int(part)]
            claim = machines.get(node)
            if claim is None or _marker(claim) in run.cycle.brought:
                continue
            work = partial(self._restore_part, claim=claim, checkpoint=checkpoint, part=part)
            done = partial(self._part_restored, run, claim, checkpoint)
            self._dispatcher.start_task(row, run, f"checkpoint {node}", work, done, lane=_NODES_LANE)
        return row, not run.tasks

    def _requeued(self, run: StagingRun, row: Staging, is_requeued: bool) -> Staging:
        run.cycle.checkpoint.requeue_refused = not is_requeued
        run.cycle.paused_until = self._clock.now() + RETRY_S
        run.request_query()
        return row

    def _restore_part(
        self, task: StagingTask, claim: Claim, checkpoint: Checkpoint, part: str
    ) -> CheckpointFailed | None:
        try:
            self._transfers.restore_checkpoint(task, claim, checkpoint, part)
        except StageFailed as error:
            if not error.resend:
                raise
            return CheckpointFailed(str(error))
        return None

    def _part_restored(
        self,
        run: StagingRun,
        claim: Claim,
        checkpoint: Checkpoint,
        row: Staging,
        result: CheckpointFailed | None,
    ) -> Staging:
        if result is None:
            run.cycle.brought.add(_marker(claim))
            return row
        return self._drop(checkpoint, row, result.reason)

    def _drop(self, checkpoint: Checkpoint, row: Staging, reason: str) -> Staging:
        """It cannot be put back: the next older one is when Slurm starts the job again, with other variables."""
        if checkpoint not in row.checkpoints:
            return row
        rest = tuple(one for one in row.checkpoints if one != checkpoint)
        text = f"checkpoint {checkpoint.path} is given up: {reason}"
        log.warning("a checkpoint cannot be put back", job=row.job_id, error=reason)
        return self._store.update_staging(row.job_id, text, checkpoints=rest, checkpoint_error=text)


def _marker(claim: Claim) -> str:
    return f"checkpoint {claim.id}"
