"""Does what a plan says: checks again that a step is still right, writes it down, then acts.

Everything here runs in the deciding thread but the work handed to the workers; results come back through ``drain``.
A step that Slurm does not answer is left: the next loop plans it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TypeVar

import structlog

from burstd.db import ClaimFields, Store
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BurstdError, NodeNotReady, NodeRefused, SchedulerRefused
from burstd.domain.plan import (
    Action,
    AdoptMachine,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    LaunchMachine,
    LimitJobTime,
    MakeClaim,
    Plan,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RecordInterruptions,
    RegisterNodes,
    RemoveOrphans,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    StartJobsNow,
    StartSlurmd,
    TerminateMachines,
    UnbindJob,
    UndrainNodes,
    ValidateNode,
)
from burstd.domain.plugins.provider import ConsoleLog, NoticeWatch, Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import NodeValidator
from burstd.node.errors import ClockNotSet
from burstd.planner import isolation
from burstd.planner.lifecycle.lifecycle import UNWANTED, VALIDATION_TIMEOUT
from burstd.planner.lifecycle.listing import NOT_REGISTERED_YET
from burstd.reconciler.machines.adopter import Adopter
from burstd.reconciler.machines.circuit_breakers import CircuitBreakers
from burstd.reconciler.machines.interruptions import Interruptions
from burstd.reconciler.machines.launcher import Launcher
from burstd.reconciler.machines.terminator import Terminator
from burstd.reconciler.memory import LoopState
from burstd.reconciler.quarantine import LOOP_ERRORS, Quarantine
from burstd.runtime.clock import HeadClockMonitor
from burstd.runtime.workers import Workers

POOL_REMOVED = "pool"
"""Error of a claim whose pool is not configured any more: that is no fault of the offer's."""

_T = TypeVar("_T")

log = structlog.get_logger(__name__)


REGISTER_EVERY_S = 2.0
REACH_EVERY_S = 30.0
"""A machine that lists lack, and that answers, is reached for again after this pause."""


class Executor:
    """The only caller of Slurm's changing commands; launches and endings are the Launcher's and the Terminator's."""

    def __init__(
        self,
        *,
        store: Store,
        scheduler: Scheduler,
        providers: Mapping[str, Provider],
        validator: NodeValidator,
        workers: Workers,
        clock: Clock,
        loop_state: LoopState,
        breakers: CircuitBreakers,
        launcher: Launcher,
        terminator: Terminator,
        interruptions: Interruptions,
        adopter: Adopter,
        head_clock: HeadClockMonitor,
        quarantine: Quarantine,
        pools: Callable[[], Mapping[str, Pool]],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._providers = providers
        self._validator = validator
        self._workers = workers
        self._clock = clock
        self._loop_state = loop_state
        self._breakers = breakers
        self._launcher = launcher
        self._terminator = terminator
        self._interruptions = interruptions
        self._adopter = adopter
        self._head_clock = head_clock
        self._quarantine = quarantine
        self._pools = pools

    def apply(self, plan: Plan) -> int:
        """Does the plan's actions in order; returns how many changed something, so that a next loop is due at once.

        Raises SchedulerUnavailable when Slurm stops answering, and the store's errors; the rest of the plan is then
        left to the next loop.
        """
        self._launcher.make_claims(a for a in plan.actions if isinstance(a, MakeClaim))
        changed = sum(isinstance(a, MakeClaim) for a in plan.actions)
        self._launcher.retry_launches(a for a in plan.actions if isinstance(a, LaunchMachine))
        for records, actions in groupby(
            plan.actions, lambda action: isinstance(action, ChangeClaimState | RecordAddress)
        ):
            # One flush to the disk for all that is only written down: a thousand would keep the loop for seconds.
            with self._store.batch() if records else nullcontext():
                changed += sum(map(self._apply_contained, actions))
        if any(isinstance(action, ChangeClaimState) and action.new is S.GONE for action in plan.actions):
            self._forget_gone_machines()
        return changed

    def _apply_contained(self, action: Action) -> int:
        """Does it; what burstd fails on is left alone, and the rest is done."""
        try:
            return self._apply_action(action)
        except LOOP_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm (Holds)
            if split_actions := isolation.split_action(action, self._slot_of_claim()):
                return sum(self._apply_contained(part) for part in split_actions)
            name = type(action).__name__
            for subject in isolation.action_subjects(action, self._slot_of_claim()) or (f"the step {name}",):
                self._quarantine.add_subject(subject, name, error)
            return 0

    def _apply_action(self, action: Action) -> int:
        match action:
            case MakeClaim() | LaunchMachine():
                return 0
            case AdoptMachine():
                return self._adopt(action)
            case ChangeClaimState():
                return self._move(action)
            case RecordAddress():
                return self._learn(action)
            case ValidateNode():
                return self._validate(action)
            case ProbeMachine():
                return self._reach(action)
            case StartSlurmd():
                return self._start(action)
            case TerminateMachines():
                return self._terminator.terminate(action)
            case RemoveOrphans():
                return self._terminator.remove_orphans(action)
            case _:
                return self._apply_in_slurm(action)

    def _apply_in_slurm(self, action: Action) -> int:
        try:
            return self._call_slurm(action)
        except SchedulerRefused as error:
            if split_actions := isolation.split_action(action, self._slot_of_claim()):
                # One node that Slurm refuses must not hold up the others.
                return sum(self._apply_in_slurm(part) for part in split_actions)
            self._loop_state.record_refusal(action, str(error), self._clock.now())
            log.error("slurm refused", action=type(action).__name__, error=str(error))
            return 0

    def _slot_of_claim(self) -> dict[str, str]:
        return {claim.id: claim.slot for claim in self._store.claims()}

    def _call_slurm(self, action: Action) -> int:
        now = self._clock.now()
        if self._loop_state.was_refused_lately(action, now):
            return 0
        match action:
            case RegisterNodes():
                # Slurm may show another address than it was told: it is not told in every loop.
                last_sent = self._loop_state.address_sent_at
                news = [
                    pair for pair in action.addresses if now - last_sent.get(pair[0], float("-inf")) > REGISTER_EVERY_S
                ]
                if not news:
                    return 0
                self._scheduler.set_address(news)
                last_sent.update((name, now) for name, _ in news)
            case SetGate():
                self._scheduler.set_gate(action.nodes)
                split = len(action.into_service)
                self._move_claims(action.into_service, S.READY, S.IN_SERVICE, action.claim_reasons[:split])
                self._move_claims(action.into_drain, S.IN_SERVICE, S.DRAINING, action.claim_reasons[split:])
            case BindJob():
                self._scheduler.bind(action.job_id, action.user, action.nodes)
                self._loop_state.bound_since[action.job_id] = now
                self._move_claims(action.claims, S.READY, S.IN_SERVICE, [action.reason] * len(action.claims))
            case UnbindJob():
                self._scheduler.unbind(action.job_id)
                self._loop_state.bound_since.pop(action.job_id, None)
            case PowerDown():
                self._scheduler.power_down(action.nodes, force=action.force)
                self._loop_state.power_down_sent_at.update(dict.fromkeys(action.nodes, now))
                self._move_claims(
                    action.terminating, S.DRAINING, S.TERMINATING, [action.reason] * len(action.terminating)
                )
            case SetNodesDown():
                self._scheduler.down(action.nodes, action.reason)
            case DrainNodes():
                self._scheduler.drain(action.nodes, action.reason)
                with self._store.batch():
                    for claim_id, node in zip(action.claims, action.nodes, strict=True):
                        self._store.log_event(f"slot:{node}", new="drained", reason=action.reason, cause="spot",
                                           data={"claim": claim_id})  # fmt: skip
            case UndrainNodes():
                self._scheduler.resume(action.nodes)
            case RecordInterruptions():
                return self._interruptions.record_runs(action.runs)
            case RequeueJobs():
                return self._interruptions.requeue(action.runs, now)
            case LimitJobTime():
                log.warning("job is given the time that was paid for", job=action.job_id, reason=action.reason)
                self._scheduler.limit_time(action.job_id, action.limit_s)
            case StartJobsNow():
                self._scheduler.start_now(action.jobs)
            case _:
                raise TypeError(f"no such step: {action!r}")
        return 1

    def _move_claims(self, claims: Sequence[str], old: ClaimState, new: ClaimState, reasons: Sequence[str]) -> None:
        with self._store.batch():
            for claim_id, reason in zip(claims, reasons, strict=True):
                claim = self._store.claim(claim_id)
                with self._quarantine.contain_errors("move", isolation.node_subject(claim.slot)):
                    if claim.state is old:
                        self._store.transition_claim(claim_id, old, new, reason)

    def _learn(self, action: RecordAddress) -> int:
        claim = self._store.claim(action.claim_id)
        since = claim.launch_called if claim.billed_from is None else claim.billed_from
        self._store.update_claim(
            claim.id, address=action.address, instance_id=action.instance_id, billed_from=since,
            offer=action.offer or claim.offer,
        )  # fmt: skip
        return 1

    def _move(self, action: ChangeClaimState) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state is not action.old:
            return 0
        fields: ClaimFields = {}
        # What Slurm did not see in time failed by the machine's fault where the machine said so last.
        machine_cause = self._loop_state.last_cause.get(claim.id, "") if action.error == VALIDATION_TIMEOUT else ""
        error = machine_cause or action.error
        if error:
            fields["error"] = error
        if action.instance_id:
            fields["instance_id"] = action.instance_id
        if action.address:
            fields["address"] = action.address
        if action.offer is not None:
            fields["offer"] = action.offer
        now = self._clock.now()
        if action.new is S.BOOTING and claim.billed_from is None:
            fields["billed_from"] = claim.launch_called or now
        if action.new is S.LOST and claim.billed_from is not None and claim.billed_until is None:
            fields["billed_until"] = now
        last_error = self._loop_state.last_error.get(claim.id, "") if action.new is S.FAILED else ""
        reason = f"{action.reason}; last: {last_error}" if last_error else action.reason
        self._store.transition_claim(claim.id, action.old, action.new, reason, **fields)
        if action.new is S.FAILED and error not in (POOL_REMOVED, UNWANTED):
            self._breakers.record_machine_failure(claim, error, reason)
        if action.new is S.LOST and action.old in NOT_REGISTERED_YET:
            # A cloud that ends machines before they are nodes would be asked for ever.
            self._breakers.record_machine_failure(claim, "interrupted" if claim.offer.spot else error, reason)
        if action.new is S.READY:
            self._breakers.record_machine_success(claim)
        if action.new is S.GONE:
            self._loop_state.termination_accepted.discard(claim.id)
            self._loop_state.unreachable_at.pop(claim.id, None)
        if action.new not in (S.VALIDATING, S.BOOTING):
            self._loop_state.forget_validation(claim.id)
        return 1

    def _forget_gone_machines(self) -> None:
        try:
            self._validator.retain_only([live.id for live in self._store.claims()])
        except OSError as error:
            log.warning("what was learned of machines that are gone could not be removed", error=str(error))

    def _validate(self, action: ValidateNode) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state not in (S.BOOTING, S.VALIDATING) or claim.id in self._loop_state.in_flight:
            return 0
        provider, pool = self._providers[claim.offer.provider], self._pools()[claim.pool]
        self._loop_state.in_flight.add(claim.id)

        def console() -> str:
            return provider.console(claim.instance_id) if isinstance(provider, ConsoleLog) else ""

        def answered() -> None:
            with self._quarantine.contain_errors("result", isolation.node_subject(claim.slot)):
                self._machine_answered(claim.id)

        def reached() -> None:
            self._workers.post(answered)

        def work() -> str:
            has_console = isinstance(provider, ConsoleLog)
            return self._validator.validate(claim, pool, console if has_console else None, reached)

        def done(result: str | Exception) -> None:
            self._loop_state.in_flight.discard(claim.id)
            if not isinstance(result, Exception):
                self._machine_answered(claim.id)
                self._head_clock.confirm()
                self._loop_state.validated.add(claim.id)
                self._store.log_event(f"slot:{claim.slot}", new="proven", reason=result, data={"claim": claim.id})
                return
            self._node_failed(claim, result)

        self._submit(claim, work, done)
        return 0

    def _submit(self, claim: Claim, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Work at one machine: an error over its result is that node's."""

        def back(result: _T | Exception) -> None:
            with self._quarantine.contain_errors("result", isolation.node_subject(claim.slot)):
                done(result)

        self._workers.submit("nodes", work, back)

    def _adopt(self, action: AdoptMachine) -> int:
        """A machine at work is entered at once: its host key may be lost as well, and is on its console for now."""
        adopted = self._adopter.adopt(action)
        for claim in self._store.claims() if adopted else ():
            if claim.slot == action.claim.slot and claim.state is S.IN_SERVICE:
                self._reach(ProbeMachine(claim.id))
        return adopted

    def _reach(self, action: ProbeMachine) -> int:
        claim, key = self._store.claim(action.claim_id), f"reach:{action.claim_id}"
        if key in self._loop_state.in_flight:
            return 0
        self._loop_state.in_flight.add(key)

        def done(result: Exception | None) -> None:
            self._loop_state.in_flight.discard(key)
            now = self._clock.now()
            if isinstance(result, NodeNotReady):
                self._loop_state.unreachable_at[claim.id] = now
                return
            # It answers, or nobody can tell: what cannot be told is not taken for gone.
            self._loop_state.unreachable_at.pop(claim.id, None)
            self._loop_state.wait_before_retry(key, now, REACH_EVERY_S)
            if result is not None:
                log.error("machine could not be reached for", claim=claim.id, slot=claim.slot, exc_info=result)

        self._submit(claim, lambda: self._validator.probe(claim), done)
        return 0

    def _machine_answered(self, claim_id: str) -> None:
        claim = self._store.claim(claim_id)
        if claim.state is S.BOOTING:
            self._store.transition_claim(claim_id, S.BOOTING, S.VALIDATING, "the machine answers")

    def _node_failed(self, claim: Claim, error: Exception) -> None:
        """A machine that is not ready is tried again; one that is refused, or breaks the prover, is given back."""
        if isinstance(error, ClockNotSet) and error.off_s:
            self._head_clock.record_offset(claim.id, claim.offer.id, error.off_s)
        if not isinstance(error, BurstdError):
            log.error("proving broke", claim=claim.id, slot=claim.slot, exc_info=error)
        cause = error.cause if isinstance(error, NodeNotReady | NodeRefused) else "validation"
        # One that has been open may hold output: it is given back only where Slurm does not see it in time.
        if isinstance(error, NodeNotReady) or claim.opened is not None:
            self._loop_state.wait_before_retry(
                claim.id, self._clock.now(), self._loop_state.intervals.validation_retry_s
            )
            self._loop_state.last_error[claim.id], self._loop_state.last_cause[claim.id] = str(error), cause
            log.debug("not ready yet", claim=claim.id, slot=claim.slot, error=str(error))
            return
        now = self._store.claim(claim.id)
        if now.state in (S.BOOTING, S.VALIDATING):
            self._store.transition_claim(claim.id, now.state, S.FAILED, str(error), error=cause)
            self._loop_state.forget_validation(claim.id)
            self._breakers.record_machine_failure(claim, cause, str(error))

    def _start(self, action: StartSlurmd) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state is not S.VALIDATING or claim.id in self._loop_state.in_flight:
            return 0
        provider, pool = self._providers[claim.offer.provider], self._pools()[claim.pool]
        self._loop_state.in_flight.add(claim.id)

        def done(result: Exception | None) -> None:
            self._loop_state.in_flight.discard(claim.id)
            if isinstance(result, Exception):
                self._node_failed(claim, result)
            else:
                self._loop_state.slurmd_started[claim.id] = self._clock.now()

        def work() -> None:
            watch = provider.watch_script() if claim.offer.spot and isinstance(provider, NoticeWatch) else ""
            self._validator.start_slurmd(claim, pool, watch)

        self._submit(claim, work, done)
        return 0
