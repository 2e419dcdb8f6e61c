"""When a pending job's input lets a node be started for it: so late that a paid node does not wait for an upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from burstd.domain.claim import USABLE, ClaimState
from burstd.domain.plan import Action, Move
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import DataView, StageState
from burstd.domain.units import span_text
from burstd.planner.staging.transfer_schedule import boot_estimate, boot_in_time

SLIP_S = 300.0
"""A node that is there or on its way for a job is kept for it where its input comes so much later than it was to."""
BOOTS = 20
"""So many of a pool's latest boots are kept in mind."""
STAGING = frozenset({"BurstBufferStageIn", "BurstBufferResources"})
"""Slurm's reasons while a job's input is not in the store."""
_ON_ITS_WAY = frozenset({StageState.WAITING, StageState.SENDING})
_GOING_HOME = frozenset({StageState.COLLECTING, StageState.BRINGING, StageState.HOME})


@dataclass(frozen=True, slots=True)
class Standing:
    """What a job's input says to a node for it. ``why``: none now, for this reason; empty: let there be one."""

    why: str
    due: float = float("inf")
    """When the answer will be another, if all goes as expected."""
    held: bool = False


def data_of(data: Mapping[str, DataView], job: Job) -> DataView | None:
    """The data of a job, or of the array or het job that it belongs to."""
    return data.get(job.id) or data.get(job.array_job_id) or data.get(job.het_job_id)


class Inputs:
    """Answers for the jobs of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._now = snapshot.now
        self._data = snapshot.data
        self._pools = snapshot.pools
        self._boots = boots(snapshot) if snapshot.data else {}
        self._estimates: dict[tuple[str, ...], float] = {}
        usable = [claim for claim in snapshot.claims if claim.state in USABLE] if snapshot.data else []
        self._served = {word for claim in usable for word in (*claim.jobs, claim.gang) if word}

    def of(self, job: Job) -> Standing | None:
        """None: its data says neither yes nor no."""
        view = data_of(self._data, job)
        if view is None:
            if job.reason in STAGING:
                return Standing("its input is being staged in, and nothing is known of it so far")
            return None
        if view.state is StageState.HELD:
            return Standing(f"its data is held: {view.error or 'no reason is known'}", held=True)
        if view.state in _ON_ITS_WAY:
            return self._on_its_way(job, view)
        if view.state in _GOING_HOME:
            return Standing("what its last run left is on its way home first")
        return Standing("") if view.state is StageState.STAGED else None

    def _on_its_way(self, job: Job, view: DataView) -> Standing:
        if not view.ready_at:
            return Standing("its input is on its way, and nobody can say yet when it will be there")
        boot = self._boot(job)
        start = boot_in_time(self._now, view.ready_at, boot)
        if start <= self._now or (
            start - self._now <= SLIP_S and not self._served.isdisjoint((job.id, job.array_job_id, job.het_job_id))
        ):
            return Standing("")
        at = datetime.fromtimestamp(view.ready_at, UTC).strftime("%H:%M UTC")
        return Standing(
            f"its input is expected at {at} ({_about(view.ready_at - self._now)}); a node takes {_about(boot)}:"
            f" one is started in {_about(start - self._now)}",
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


def boots(snapshot: Snapshot) -> dict[str, list[float]]:
    """How long nodes of each pool took from their claim until they were ready, as far as is known now. Seconds.

    Besides what this process has seen (Progress.booted) the claims that live tell, but for gangs, which wait for the
    last of them.
    """
    found = {pool: list(seconds) for pool, seconds in snapshot.progress.booted.items()}
    for claim in snapshot.claims:
        if claim.gang or claim.pool in snapshot.progress.booted:
            continue
        ready = claim.opened or (claim.since if claim.state is ClaimState.READY else None)
        if ready is not None:
            found.setdefault(claim.pool, []).append(ready - claim.created)
    return found


def booted(
    known: Mapping[str, tuple[float, ...]], snapshot: Snapshot, actions: Sequence[Action]
) -> dict[str, tuple[float, ...]]:
    """The new ``Progress.booted`` from the one before and the steps of a plan: the latest BOOTS of each pool."""
    claims = {claim.id: claim for claim in (*snapshot.claims, *snapshot.storage)}
    found = dict(known)
    for action in actions:
        if isinstance(action, Move) and (action.old, action.new) == (ClaimState.PROVING, ClaimState.READY):
            claim = claims[action.claim_id]
            found[claim.pool] = (*found.get(claim.pool, ()), snapshot.now - claim.created)[-BOOTS:]
    return found


def _about(seconds: float) -> str:
    """In steps of ten seconds, so that the sentence does not change with every look."""
    return span_text(seconds if seconds < 60 else round(seconds, -1))
