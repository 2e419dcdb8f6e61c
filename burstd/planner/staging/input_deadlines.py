"""When a pending job's input lets a node be started for it: so late that a paid node does not wait for an upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burstd.domain.claim import USABLE, ClaimState
from burstd.domain.clock import utc_clock_text
from burstd.domain.plan import Action, ChangeClaimState
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.domain.units import span_text
from burstd.planner.staging.transfer_schedule import boot_estimate, latest_boot_start

TOLERATED_DELAY_S = 300.0
"""A node that is there or on its way for a job is kept for it where its input comes so much later than it was to."""
MAX_BOOT_SAMPLES = 20
"""So many of a pool's latest boots are kept in mind."""
STAGE_IN_REASONS = frozenset({"BurstBufferStageIn", "BurstBufferResources"})
"""Slurm's reasons while a job's input is not in the store."""
_INPUT_PENDING = frozenset({StageState.WAITING, StageState.UPLOADING})
_OUTPUT_PENDING = frozenset({StageState.COLLECTING, StageState.DELIVERING, StageState.DELIVERED})


@dataclass(frozen=True, slots=True)
class InputVerdict:
    """What a job's input says to a node for it. ``why``: none now, for this reason; empty: let there be one."""

    wait_reason: str
    due: float = float("inf")
    """When the answer will be another, if all goes as expected."""
    is_held: bool = False


def data_of_job(data: Mapping[str, StagingView], job: Job) -> StagingView | None:
    """The data of a job, or of the array or het job that it belongs to."""
    return data.get(job.id) or data.get(job.array_job_id) or data.get(job.het_job_id)


class InputDeadlines:
    """Answers for the jobs of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot.now
        self._data = snapshot.data
        self._pools = snapshot.pools
        self._boots = boot_durations(snapshot) if snapshot.data else {}
        self._estimates: dict[tuple[str, ...], float] = {}
        usable = [claim for claim in snapshot.claims if claim.state in USABLE] if snapshot.data else []
        self._jobs_with_nodes = {
            job_or_gang for claim in usable for job_or_gang in (*claim.jobs, claim.gang) if job_or_gang
        }

    def input_verdict(self, job: Job) -> InputVerdict | None:
        """None: its data says neither yes nor no."""
        view = data_of_job(self._data, job)
        if view is None:
            if job.reason in STAGE_IN_REASONS:
                return InputVerdict("its input is being uploaded; no estimate yet")
            return None
        if view.state is StageState.HELD:
            return InputVerdict(f"its data is held: {view.error or 'no reason is known'}", is_held=True)
        if view.state in _INPUT_PENDING:
            return self._on_its_way(job, view)
        if view.state in _OUTPUT_PENDING:
            return InputVerdict("the output of its last run is being delivered first")
        return InputVerdict(view.volume_reason) if view.state is StageState.STAGED else None

    def _on_its_way(self, job: Job, view: StagingView) -> InputVerdict:
        if view.activity or (view.error and not view.ready_at and view.state is StageState.WAITING):
            return InputVerdict(view.activity or view.error)
        if not view.ready_at:
            return InputVerdict("its input is being uploaded; no estimate yet")
        boot = self._boot(job)
        start = latest_boot_start(self._now, view.ready_at, boot)
        if start <= self._now or (
            start - self._now <= TOLERATED_DELAY_S
            and not self._jobs_with_nodes.isdisjoint((job.id, job.array_job_id, job.het_job_id))
        ):
            return InputVerdict("")
        at = utc_clock_text(view.ready_at, self._now, "%H:%M")
        return InputVerdict(
            f"its input is expected at {at} ({_rounded_span(view.ready_at - self._now)}); a node takes"
            f" {_rounded_span(boot)} to boot: burstd launches one in {_rounded_span(start - self._now)}",
            start,
        )

    def _boot(self, job: Job) -> float:
        found = self._estimates.get(job.partitions)
        if found is None:
            serving = [
                name for name, pool in self._pools.items() if not set(pool.partitions).isdisjoint(job.partitions)
            ]
            found = boot_estimate([seconds for name in serving for seconds in self._boots.get(name, ())])
            self._estimates[job.partitions] = found
        return found


def boot_durations(snapshot: Snapshot) -> dict[str, list[float]]:
    """How long nodes of each pool took from their claim until they were ready, as far as is known now. Seconds.

    Besides what this process has seen (RuntimeState.boot_durations) live claims count, but not those of gangs,
    which wait for the last of them.
    """
    found = {pool: list(seconds) for pool, seconds in snapshot.runtime_state.boot_durations.items()}
    for claim in snapshot.claims:
        if claim.gang or claim.reused_from or claim.pool in snapshot.runtime_state.boot_durations:
            continue
        ready = claim.in_service_from or (claim.since if claim.state is ClaimState.READY else None)
        if ready is not None:
            found.setdefault(claim.pool, []).append(ready - claim.created)
    return found


def updated_boot_durations(
    known: Mapping[str, tuple[float, ...]], snapshot: Snapshot, actions: Sequence[Action]
) -> dict[str, tuple[float, ...]]:
    """The new ``RuntimeState.boot_durations``: the last one and a plan's steps, MAX_BOOT_SAMPLES a pool."""
    claims = {claim.id: claim for claim in (*snapshot.claims, *snapshot.storage_claims)}
    found = dict(known)
    for action in actions:
        if isinstance(action, ChangeClaimState) and (action.old, action.new) == (
            ClaimState.VALIDATING,
            ClaimState.READY,
        ):
            claim = claims[action.claim_id]
            if claim.reused_from:
                continue
            found[claim.pool] = (*found.get(claim.pool, ()), snapshot.now - claim.created)[-MAX_BOOT_SAMPLES:]
    return found


def _rounded_span(seconds: float) -> str:
    """In steps of ten seconds, so that the sentence does not change with every look."""
    return span_text(seconds if seconds < 60 else round(seconds, -1))
