"""Which jobs run on which machines, for the bill: noticed at each look at the queue, written on changes only.

What came and went between two looks is among the jobs that slurmctld still knows for MinJobAge. A run that slurmctld
has forgotten (burstd was down) ended when its node was last busy, where that is idle and nothing else is known to have
run there since, else when burstd last saw it: what nobody saw is nobody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from burstd.domain.billing.use import WHOLE, ClaimRun, Payer
from burstd.domain.claim import Claim
from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner import isolation
from burstd.planner.demand.job_requirements import dominant_share
from burstd.reconciler.context import LoopContext

ON_NODES = RUNNING_STATES - {JobState.STAGE_OUT}
_RunKey = tuple[str, str, int]
"""Claim, job and its ``run_start``: the start in burstd's time is another number at each look."""
SEEN_KEY = "runs seen"
"""Key under which the store keeps when runs were last seen, ..."""
NOTE_EVERY_S = 60.0
"""... which is written so often."""


class ClaimRunRecorder:
    """Used in the deciding thread only. Its methods raise StoreError."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._open: dict[_RunKey, ClaimRun] | None = None
        self._over: dict[_RunKey, ClaimRun] = {}
        """Runs on record that slurmctld has told the end of."""
        self._last_read = self._noted = 0.0

    def record(self, snapshot: Snapshot) -> None:
        """Writes down which runs have begun and ended since the last look."""
        slurm = snapshot.slurm
        if not isinstance(slurm, SlurmView) or slurm.read_at <= self._last_read:
            return
        before = self._open if self._open is not None else self._restore(slurm)
        claims = {claim.slot: claim for claim in (*snapshot.claims, *snapshot.quarantined_claims)}
        live = {claim.id: claim for claim in claims.values()}
        running = self._find(slurm, (job for job in slurm.jobs if job.state in ON_NODES), claims, before)
        over = self._find(slurm, slurm.ended_runs(), claims, before)
        left = {key: run for key, run in before.items() if key not in running and run.claim_id in live}
        ended = [over[key] for key in left.keys() & over.keys()]
        if forgotten := left.keys() - over.keys():
            since = {key for key, run in over.items() if (run.ended or 0.0) > self._last_read}
            there = Counter(claim_id for claim_id, _, _ in {*before, *running, *since})
            for run in map(left.__getitem__, forgotten):
                seen = self._last_seen(run, slurm, live[run.claim_id], alone=there[run.claim_id] == 1)
                ended.append(replace(run, ended=seen))
        unseen = [run for key, run in over.items() if key not in before and key not in self._over]
        self._context.store.save_runs([*(running[key] for key in running.keys() - before.keys()), *ended, *unseen])
        # Kept in mind only once it is on record: a write that fails is tried again at the next look.
        self._open, self._over, self._last_read = running, over, slurm.read_at
        if running and slurm.read_at - self._noted >= NOTE_EVERY_S:
            self._context.store.set_metadata(SEEN_KEY, str(slurm.read_at), logged=False)
            self._noted = slurm.read_at

    def running(self) -> tuple[ClaimRun, ...]:
        """The runs that had not ended at the last look."""
        return tuple((self._open or {}).values())

    def _restore(self, slurm: SlurmView) -> Mapping[_RunKey, ClaimRun]:
        """Takes up what the last burstd wrote; returns the runs that had not ended then."""
        store = self._context.store
        some = (*store.open_runs(), *store.runs_of_jobs({job.id for job in slurm.ended_runs()}))
        known = {(run.claim_id, run.payer.job, run.run_start): run for run in some}
        self._over = {key: run for key, run in known.items() if run.ended is not None}
        self._last_read = min(float(store.metadata(SEEN_KEY) or 0.0), slurm.read_at)
        return {key: run for key, run in known.items() if run.ended is None}

    def _find(
        self, slurm: SlurmView, jobs: Iterable[Job], claims: Mapping[str, Claim], known: Mapping[_RunKey, ClaimRun]
    ) -> dict[_RunKey, ClaimRun]:
        """The runs of these jobs on machines, as they are known or else made."""
        found: dict[_RunKey, ClaimRun] = {}
        for job in jobs:
            for claim in [claims[name] for name in job.node_list if name in claims] if job.run_start else ():
                ended = None if job.state in ON_NODES else max(job.end, job.start)
                if ended is not None and ended <= (claim.created if claim.billed_from is None else claim.billed_from):
                    continue  # It ran on the machine that was there before.
                key = (claim.id, job.id, job.run_start)
                with self._context.quarantine.contain_errors("runs on machines", isolation.job_subject(job.id)):
                    run = known.get(key) or self._over.get(key) or _run(job, claim, slurm)
                    found[key] = replace(run, ended=None if ended is None else max(ended, run.started))
        return found

    def _last_seen(self, run: ClaimRun, slurm: SlurmView, claim: Claim, *, alone: bool) -> float:
        node = slurm.nodes.get(claim.slot)
        busy = min(node.last_busy, slurm.read_at) if alone and node is not None and not node.busy else 0.0
        return max(run.started, self._last_read, busy)


def _run(job: Job, claim: Claim, slurm: SlurmView) -> ClaimRun:
    payer = Payer(job.id, job.user, job.account, ",".join(job.partitions))
    share = share_of_node(job, slurm.nodes.get(claim.slot))
    return ClaimRun(claim.id, payer, job.start, share, run_start=job.run_start)


def share_of_node(job: Job, node: Node | None) -> int:
    """What a job has of each of its nodes, in millionths; of one that Slurm does not show, all."""
    return WHOLE if node is None else max(1, min(WHOLE, round(dominant_share(job, node, len(job.node_list)) * WHOLE)))
