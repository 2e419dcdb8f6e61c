"""The only caller of Slurm's changing commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import SchedulerRefused
from burstd.domain.health import HEALTH
from burstd.domain.missing_home import HOMES
from burstd.domain.plan import (
    Action,
    ActOnIdleJobs,
    BindJob,
    DrainNodes,
    HandOver,
    HoldJob,
    LimitJobTime,
    PowerDown,
    RecordIdleJobs,
    RecordInterruptions,
    RegisterNodes,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    StartJobsNow,
    UnbindJob,
    UndrainNodes,
    UpdateJobs,
    WarnJobs,
)
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import RuntimeState
from burstd.planner import isolation
from burstd.planner.lifecycle.spot_notices import parse_reason
from burstd.reconciler.context import LoopContext
from burstd.reconciler.excluded_nodes import ExcludedNodes
from burstd.reconciler.machines.idle_gpus import IdleGpus
from burstd.reconciler.machines.interruptions import Interruptions

log = structlog.get_logger(__name__)

REGISTER_EVERY_S = 2.0
REFUSAL_PAUSE_S = 5.0
UNBINDABLE_S = 3600.0
UPDATE_EVERY_S = 5.0
UPDATES_PER_LOOP = 50
"""Calls of scontrol. Thousands of jobs that each ask for another size must not keep a loop for minutes."""


def slots_by_claim(store: Store) -> dict[str, str]:
    """The slot of each claim that is not GONE."""
    return {claim.id: claim.slot for claim in store.claims()}


class SlurmActions:
    """Used in the deciding thread. Remembers what Slurm was told lately, and what it refused."""

    def __init__(self, context: LoopContext) -> None:
        self._context, self._store = context, context.store
        self.interruptions = Interruptions(context)
        self.idle_gpus = IdleGpus(context)
        self._address_sent_at: dict[str, float] = {}
        """When Slurm last got a slot's address."""
        self._power_down_sent_at: dict[str, float] = {}
        self._bound_since: dict[str, float] = {}
        self._unbindable: dict[str, float] = {}
        self._refusals: dict[Action, tuple[float, str]] = {}
        self._last_updates: dict[str, tuple[float, JobUpdate]] = {}
        """By job, the last one that Slurm has taken, and when."""
        self._updates_left = UPDATES_PER_LOOP
        self.excluded_nodes = ExcludedNodes(self._store)
        self.held_for_homes = self._store.held_jobs(HOMES)
        """By job, why; of jobs of the past as well."""

    def forget_held_jobs(self, jobs: Iterable[Job]) -> None:
        """But these, which are in the queue."""
        if self.held_for_homes:
            self.held_for_homes = {job.id: why for job in jobs if (why := self.held_for_homes.get(job.id))}

    def runtime_state(self, now: float, bound: Mapping[str, object], state: RuntimeState) -> RuntimeState:
        """``state`` with what Slurm was told, as a loop begins. ``bound``: jobs with a reservation of their own."""
        self._updates_left = UPDATES_PER_LOOP
        for job_id in bound:
            self._bound_since.setdefault(job_id, now)
        state = replace(
            state,
            power_down_sent_at=dict(self._power_down_sent_at),
            bound_since=dict(self._bound_since),
            unbindable=frozenset(job for job, at in self._unbindable.items() if now - at < UNBINDABLE_S),
            excluded_nodes=self.excluded_nodes.by_job(),
            held_for_homes=dict(self.held_for_homes),
        )
        return self.idle_gpus.runtime_state(self.interruptions.runtime_state(now, state))

    def alarms(self, now: float) -> list[str]:
        """What Slurm refused in the last seconds."""
        return [text for at, text in self._refusals.values() if now - at < 2 * REFUSAL_PAUSE_S]

    def _record_refusal(self, action: Action, error: str, now: float) -> None:
        self._refusals = {a: refusal for a, refusal in self._refusals.items() if now - refusal[0] < 2 * REFUSAL_PAUSE_S}
        self._refusals[action] = (now, error)
        if isinstance(action, BindJob):
            self._unbindable = {job: at for job, at in self._unbindable.items() if now - at < UNBINDABLE_S}
            self._unbindable[action.job_id] = now

    def apply(self, action: Action) -> int:
        """Returns how many changes were made; a step that Slurm refuses pauses for a few seconds."""
        try:
            return self._call_slurm(action)
        except SchedulerRefused as error:
            # One node that Slurm refuses must not hold up the others. Of jobs it has changed the others: those that are
            # left in the next loop were refused.
            many = () if isinstance(action, UpdateJobs) else isolation.split_action(action, slots_by_claim(self._store))
            if many:
                return sum(self.apply(part) for part in many)
            self._record_refusal(action, str(error), self._context.clock.now())
            log.error("slurm refused", action=type(action).__name__, error=str(error))
            return 0

    def _call_slurm(self, action: Action) -> int:
        now = self._context.clock.now()
        refusal = self._refusals.get(action)
        if refusal is not None and now - refusal[0] < REFUSAL_PAUSE_S:
            return 0
        match action:
            case RegisterNodes():
                # Slurm may show another address than it was told: it is not told in every loop.
                news = [
                    pair
                    for pair in action.addresses
                    if now - self._address_sent_at.get(pair[0], float("-inf")) > REGISTER_EVERY_S
                ]
                if not news:
                    return 0
                self._context.scheduler.set_address(news)
                self._address_sent_at.update((name, now) for name, _ in news)
            case SetGate():
                self._context.scheduler.set_gate(action.nodes)
                split = len(action.into_service)
                self._move_claims(action.into_service, S.READY, S.IN_SERVICE, action.claim_reasons[:split])
                self._move_claims(action.into_drain, S.IN_SERVICE, S.DRAINING, action.claim_reasons[split:])
            case BindJob():
                self._context.scheduler.bind(action.job_id, action.user, action.nodes)
                self._bound_since[action.job_id] = now
                self._move_claims(action.claims, S.READY, S.IN_SERVICE, [action.reason] * len(action.claims))
            case UnbindJob():
                self._context.scheduler.unbind(action.job_id)
                self._bound_since.pop(action.job_id, None)
            case PowerDown():
                self._context.scheduler.power_down(action.nodes, force=action.force)
                self._power_down_sent_at.update(dict.fromkeys(action.nodes, now))
                self._move_claims(
                    action.terminating, S.DRAINING, S.TERMINATING, [action.reason] * len(action.terminating)
                )
            case HandOver():
                return self._hand_over(action, now)
            case SetNodesDown():
                self._context.scheduler.down(action.nodes, action.reason)
            case DrainNodes():
                self._drain(action)
            case UndrainNodes():
                self._context.scheduler.resume(action.nodes)
            case RecordInterruptions():
                return self.interruptions.record_runs(action.runs)
            case RequeueJobs():
                return self.interruptions.requeue(action.runs, now)
            case WarnJobs():
                return self.interruptions.warn(action)
            case RecordIdleJobs() | ActOnIdleJobs():
                return self.idle_gpus.apply(action)
            case HoldJob():
                self._context.scheduler.hold(action.job_id)
                log.warning("a job is held", job=action.queue_id, reason=action.reason)
                self._store.log_event(f"job:{action.queue_id}", new="held", reason=action.reason, cause=action.cause)
                if action.cause == HOMES:
                    self.held_for_homes[action.queue_id] = action.reason
            case LimitJobTime():
                log.warning("job is given the time that was paid for", job=action.job_id, reason=action.reason)
                self._context.scheduler.limit_time(action.job_id, action.limit_s)
            case UpdateJobs():
                return self._update_jobs(action, now)
            case StartJobsNow():
                self._context.scheduler.start_now(action.jobs)
            case _:
                raise TypeError(f"no such step: {action!r}")
        return 1

    def _drain(self, action: DrainNodes) -> None:
        self._context.scheduler.drain(action.nodes, action.reason)
        notice = parse_reason(action.reason)
        cause = HEALTH if notice is not None and notice.unhealthy else "spot"
        with self._store.batch():
            for claim_id, node in zip(action.claims, action.nodes, strict=True):
                data = {"claim": claim_id}
                self._store.log_event(f"slot:{node}", new="drained", reason=action.reason, cause=cause, data=data)

    def _update_jobs(self, action: UpdateJobs, now: float) -> int:
        self._last_updates = {job: last for job, last in self._last_updates.items() if now - last[0] < UPDATE_EVERY_S}
        # The queue may have been read before.
        last = {id(update): update for _, update in self._last_updates.values()}
        same = {key for key, update in last.items() if update == action.update}
        news = [
            (job, queue_id)
            for job, queue_id in zip(action.jobs, action.queue_ids, strict=True)
            if queue_id not in self._last_updates or id(self._last_updates[queue_id][1]) not in same
        ]
        if not news or not self._updates_left:
            return 0
        self._updates_left -= 1
        queue_ids = [queue_id for _, queue_id in news]
        self.excluded_nodes.record(queue_ids, action.update.added_nodes, now)
        self._context.scheduler.update_jobs([job for job, _ in news], action.update)
        self._last_updates.update(dict.fromkeys(queue_ids, (now, action.update)))
        log.info("jobs' requests are updated in Slurm", jobs=",".join(queue_ids), reason=action.reason)
        return 1

    def _hand_over(self, action: HandOver, now: float) -> int:
        claim = self._store.claim(action.claim_id)
        taken = any(other.slot == action.claim.slot for other in self._store.claims())
        if taken or not (claim.state is S.DRAINING or action.is_done):
            return 0
        if not action.is_done:
            self._context.scheduler.power_down([claim.slot], force=False)
            self._power_down_sent_at[claim.slot] = now
        log.info("machine is handed over", claim=claim.id, instance=claim.instance_id, slot=claim.slot,
                 to=action.claim.slot, reason=action.claim.reason)  # fmt: skip
        self._store.hand_over_claim(
            claim.id, claim.state, action.claim, self._context.new_id(), in_service_from=now if action.is_done else None
        )
        return 1

    def _move_claims(self, claims: Sequence[str], old: ClaimState, new: ClaimState, reasons: Sequence[str]) -> None:
        with self._store.batch():
            for claim_id, reason in zip(claims, reasons, strict=True):
                claim = self._store.claim(claim_id)
                with self._context.quarantine.contain_errors("move", isolation.node_subject(claim.slot)):
                    if claim.state is old:
                        self._store.transition_claim(claim_id, old, new, reason)
