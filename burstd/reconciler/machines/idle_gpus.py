"""Jobs that do not use their GPUs: which were warned, and what is done to them.

All of it is an event of the job, and on record, before Slurm hears of it. A run is looked at again right before: one
that has ended, or has begun anew, is left alone. What burstd was killed in is done after its restart if the GPUs are
still idle, with the same time limit; what Slurm has answered is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import NamedTuple

import structlog

from burstd.db import USER_KEY
from burstd.domain.errors import SchedulerRefused
from burstd.domain.idle_gpus import IdleAct, IdleJob, IdleRun, IdleWarning, RunKey
from burstd.domain.plan import ActOnIdleJobs, RecordIdleJobs
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import RuntimeState
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

KEY = "idle_gpus"
"""Under which the store keeps the runs that were warned: JSON."""
CAUSE = "idle_gpus"
"""Of the events."""
WARNED = "idle gpus"
"""State of a job's event: this run was warned."""
OVER = "idle gpus over"
"""State of a job's event: the warning of this run is withdrawn."""
REFUSED = "idle gpus refused"
"""State of a job's event: Slurm did not do it."""
EVENTS = {
    IdleAct.SHORTEN: "idle gpus: time limit shortened",
    IdleAct.REQUEUE: "idle gpus: requeued",
    IdleAct.CANCEL: "idle gpus: cancelled",
}
"""State of a job's event: this is done to this run."""
START_TOLERANCE_S = 1.0
"""Slurm counts whole seconds."""


class _Event(NamedTuple):
    run: RunKey
    new: str
    reason: str


class IdleGpus:
    """Used in the deciding thread only. All methods raise SchedulerUnavailable and StoreError."""

    def __init__(self, context: LoopContext) -> None:
        self._context, self._store = context, context.store
        self._warnings: dict[RunKey, IdleWarning] = {
            (str(job), int(restarts)): IdleWarning(**{**fields, "act": IdleAct(fields["act"])})
            for job, restarts, fields in json.loads(self._store.metadata(KEY) or "[]")
        }

    def runtime_state(self, state: RuntimeState) -> RuntimeState:
        """``state`` with the runs that were warned."""
        return replace(state, idle_warnings=dict(self._warnings))

    def apply(self, action: RecordIdleJobs | ActOnIdleJobs) -> int:
        """Returns how many jobs it concerned."""
        return self._record(action) if isinstance(action, RecordIdleJobs) else self._act(action)

    def _record(self, action: RecordIdleJobs) -> int:
        over = [key for key in action.over if key in self._warnings]
        warnings = {key: known for key, known in self._warnings.items() if key not in over}
        new = [(idle, text) for idle, text in action.warned if not _is_warned(warnings.get(idle.key), idle)]
        warnings |= {idle.key: idle.warning(self._context.clock.now()) for idle, _ in new}
        events = [
            _Event(key, OVER, "its GPUs are used, it has ended, or its figures are missing")
            for key in over
            if not self._warnings[key].done
        ]
        self._save(warnings, [*events, *(_Event(idle.key, WARNED, text) for idle, text in new)])
        return len(new) + len(over)

    def _act(self, action: ActOnIdleJobs) -> int:
        jobs = {job.id: job for job in self._context.scheduler.jobs()}
        due: list[IdleRun] = []
        for run in action.runs:
            job, known = jobs.get(run.job_id), self._warnings.get(run.key)
            same = job is not None and job.state is JobState.RUNNING and job.restarts == run.restarts
            if job is None or known is None or known.done or not same:
                continue
            if abs(job.start - run.start) <= START_TOLERANCE_S:
                due.append(run)
        acts = {run.key: replace(self._warnings[run.key], act=run.act, limit_s=run.limit_s) for run in due}
        # What burstd was killed in is on record already.
        fresh = [run for run in due if self._warnings[run.key].act is IdleAct.NOTHING]
        self._save(self._warnings | acts, [_Event(run.key, EVENTS[run.act], run.reason) for run in fresh])
        return sum(map(self._carry_out, due))

    def _carry_out(self, run: IdleRun) -> int:
        refusal = ""
        try:
            self._call_slurm(run)
        except SchedulerRefused as error:
            refusal = str(error)
            log.warning("slurm refused what follows idle GPUs", job=run.job_id, act=run.act.value, error=refusal)
        else:
            log.info("a job does not use its GPUs", job=run.job_id, act=run.act.value, reason=run.reason)
        answered = replace(self._warnings[run.key], done=True, refusal=refusal)
        self._save(self._warnings | {run.key: answered}, [_Event(run.key, REFUSED, refusal)] if refusal else [])
        return not refusal

    def _call_slurm(self, run: IdleRun) -> None:
        match run.act:
            case IdleAct.SHORTEN:
                self._context.scheduler.limit_time(run.job_id, run.limit_s)
            case IdleAct.REQUEUE:
                # No interruption is recorded: no cloud has taken the machine, and the next one need not be on demand.
                self._context.scheduler.requeue_jobs([run.job_id])
            case IdleAct.CANCEL:
                self._context.scheduler.cancel_running(run.job_id)
            case IdleAct.NOTHING:
                raise AssertionError("nothing is no step of a plan")

    def _save(self, warnings: dict[RunKey, IdleWarning], events: Iterable[_Event]) -> None:
        """Both or none; what is in memory is never ahead of the record."""
        with self._store.batch():
            for key, new, reason in events:
                known = warnings.get(key) or self._warnings[key]
                data = {"run": key[1], **({USER_KEY: known.user} if known.user else {})}
                self._store.log_event(f"job:{key[0]}", new=new, reason=reason, cause=CAUSE, data=data)
            if warnings != self._warnings:
                rows = [[*key, asdict(known)] for key, known in warnings.items()]
                self._store.set_metadata(KEY, json.dumps(rows) if rows else "", logged=False)
        self._warnings = warnings


def _is_warned(known: IdleWarning | None, idle: IdleJob) -> bool:
    return known is not None and known.holds_for(idle)
