"""Runs that did not start on their node: noticed in the queue, with the cause from the node's slurmd log, on record.

The log is read once for each such run, by a worker; of a job that Slurm holds the queue does not tell the node, so the
logs of a few likely ones are searched. What is on record is not read again, also after a restart of burstd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from burstd.db import USER_KEY
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import BurstdError
from burstd.domain.launch_failure import Blame, LaunchFailure, LaunchFault, failed_run
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner import isolation
from burstd.planner.lifecycle.launch_failures import LAUNCH
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

FAILED = "launch failed"
"""State of a job's event: this run did not start."""
MAX_LOGS = 4
"""Machines whose logs are searched for one run."""
KEPT = 1000
"""Failures of jobs that have left the queue, in memory."""
WITH_LAUNCH_LOG = frozenset({S.IN_SERVICE, S.DRAINING})
"""States of claims whose machine is asked why a job did not start."""


class LaunchFailures:
    """Used in the deciding thread only. Its methods raise StoreError."""

    def __init__(self, context: LoopContext) -> None:
        self._context, self._store = context, context.store
        self._known: dict[str, int] = {}
        """By job, the last such run that was looked at."""
        self._failures: dict[str, LaunchFailure] = {}

    def step(self, snapshot: Snapshot, placements: Mapping[str, Sequence[str]]) -> Snapshot:
        """``snapshot`` with what is known; begins to ask. ``placements``: by job, nodes that the last plan meant."""
        if isinstance(snapshot.slurm, Unavailable):
            return self._with_failures(snapshot)
        found = [(job, run) for job in (*snapshot.slurm.jobs, *snapshot.slurm.ended)
                 if (run := failed_run(job)) is not None]  # fmt: skip
        new = [(job, run) for job, run in found if self._known.get(job.id) != run]
        if new:
            recorded = self._store.runs_with_event([job.id for job, _ in new], FAILED)
            for job, run in new:
                with self._context.quarantine.contain_errors("launch", isolation.job_subject(job.id)):
                    self._known[job.id] = run
                    if run in recorded.get(job.id, ()):
                        self._restore(job.id, run)
                    elif candidates := _candidates(job, snapshot, snapshot.slurm, placements.get(job.id, ())):
                        self._ask(job, run, candidates)
        self._forget({job.id for job, _ in found})
        return self._with_failures(snapshot)

    def _with_failures(self, snapshot: Snapshot) -> Snapshot:
        state = replace(snapshot.runtime_state, launch_failures=dict(self._failures))
        return replace(snapshot, runtime_state=state)

    def _forget(self, here: set[str]) -> None:
        for job_id in [*self._failures][: max(0, len(self._failures) - KEPT)]:
            if job_id not in here:
                del self._failures[job_id]
        if len(self._known) > KEPT:
            self._known = {job_id: run for job_id, run in self._known.items() if job_id in here}

    def _ask(self, job: Job, run: int, candidates: Sequence[Claim]) -> None:
        validator, held = self._context.validator, job.state is JobState.PENDING

        def work() -> tuple[Claim | None, LaunchFault]:
            why = "no node's slurmd log has it"
            for claim in candidates:
                try:
                    fault = validator.launch_fault(claim, job.number or job.id, held=held)
                except BurstdError as error:
                    why = f"slurmd's log of {claim.slot} cannot be read: {error}"
                    continue
                if fault is not None:
                    return claim, fault
            return None, LaunchFault(why, "see slurmctld's log", Blame.JOB)

        def done(result: tuple[Claim | None, LaunchFault] | Exception) -> None:
            with self._context.quarantine.contain_errors("result", isolation.job_subject(job.id)):
                if isinstance(result, Exception):
                    raise result
                self._record(job, run, *result)

        # In a lane of its own: of a large array all tasks may fail at once, and no validation should wait for that.
        self._context.workers.submit("launch failures", work, done)

    def _record(self, job: Job, run: int, claim: Claim | None, fault: LaunchFault) -> None:
        slot, claim_id = (claim.slot, claim.id) if claim is not None else ("", "")
        failure = LaunchFailure(job.id, run, slot, claim_id, fault, job.user, self._context.clock.now())
        data = {
            "run": run, "slot": slot, "claim": claim_id, "launch_cause": fault.cause, "remedy": fault.remedy,
            "blame": fault.blame.value, **({USER_KEY: job.user} if job.user else {}),
        }  # fmt: skip
        self._store.log_event(
            f"job:{job.id}", new=FAILED, reason=f"{failure.text}; {fault.remedy}", cause=LAUNCH, data=data
        )
        log.info("a job did not start", job=job.id, slot=slot, blame=fault.blame.value, reason=fault.cause)
        self._failures.pop(job.id, None)
        self._failures[job.id] = failure

    def _restore(self, job_id: str, run: int) -> None:
        for event in self._store.events(subject=f"job:{job_id}", newest=True, limit=100):
            if event.new == FAILED and event.data.get("run") == run:
                said = {key: str(event.data.get(key, "")) for key in ("slot", "claim", "launch_cause", "remedy")}
                fault = LaunchFault(said["launch_cause"], said["remedy"], Blame(str(event.data.get("blame"))))
                user = str(event.data.get(USER_KEY, ""))
                self._failures[job_id] = LaunchFailure(
                    job_id, run, said["slot"], said["claim"], fault, user, event.time
                )
                return


def _candidates(job: Job, snapshot: Snapshot, slurm: SlurmView, placed: Sequence[str]) -> list[Claim]:
    """Claims whose machine may have the run in its log, the likeliest first. None of a job of the site's own nodes."""
    claims = {claim.slot: claim for claim in snapshot.claims if claim.state in WITH_LAUNCH_LOG}
    if job.state is not JobState.PENDING:
        # The batch script starts on the first.
        return [claims[job.node_list[0]]] if job.node_list[0] in claims else []
    serving = {name for name, pool in snapshot.pools.items() if not {*pool.partitions}.isdisjoint(job.partitions)}

    def unlikely(claim: Claim) -> tuple[bool, bool, float]:
        node = slurm.nodes.get(claim.slot)
        # slurmctld notes when a node was last busy, and submits the job anew in that moment.
        apart = abs(node.last_busy - job.submitted) if node is not None else float("inf")
        return claim.slot not in placed, node is None or not node.drained, apart

    return sorted((claim for claim in claims.values() if claim.pool in serving), key=unlikely)[:MAX_LOGS]
