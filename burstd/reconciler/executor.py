"""Does what a plan says: checks again that a step is still right, writes it down, then acts.

Everything here runs in the deciding thread but the work handed to the workers; results come back through ``drain``.
A step that Slurm does not answer is left: the next loop plans it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import TypeVar

import structlog

from burstd.db import ClaimFields
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BurstdError, NodeNotReady, NodeRefused
from burstd.domain.health import HEALTH
from burstd.domain.plan import (
    Action,
    AdoptMachine,
    ChangeClaimState,
    LaunchMachine,
    MakeClaim,
    Plan,
    ProbeMachine,
    RecordAddress,
    RemoveOrphans,
    SetProjectLimits,
    SetQuotaPreemption,
    StartSlurmd,
    TerminateMachines,
    TestFabric,
    ValidateNode,
)
from burstd.domain.plugins.provider import ConsoleLog, NoticeWatch
from burstd.node.errors import ClockNotSet
from burstd.planner import isolation
from burstd.planner.lifecycle.lifecycle import UNWANTED, VALIDATION_TIMEOUT
from burstd.planner.lifecycle.listing import NOT_REGISTERED_YET
from burstd.reconciler.context import LoopContext
from burstd.reconciler.machines.adopter import Adopter
from burstd.reconciler.machines.circuit_breakers import CircuitBreakers
from burstd.reconciler.machines.launcher import Launcher
from burstd.reconciler.machines.progress import ProgressTable, Step
from burstd.reconciler.machines.terminator import Terminator
from burstd.reconciler.observer import Observer
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.quarantine import LOOP_ERRORS
from burstd.reconciler.slurm_actions import SlurmActions, slots_by_claim
from burstd.runtime.clock import HeadClockMonitor

POOL_REMOVED = "pool"
"""Error of a claim whose pool is not configured any more: that is no fault of the offer's."""

_T = TypeVar("_T")

log = structlog.get_logger(__name__)


MACHINES = "nodes"
"""The lane of calls at machines, most of which wait for one that boots."""
REACH_EVERY_S = 30.0
"""A machine that lists lack, and that answers, is reached for again after this pause."""


class Executor:
    """Carries out plans. Calls at machines are its own; Slurm, launches and terminations have classes of their own."""

    def __init__(
        self,
        context: LoopContext,
        progress: ProgressTable,
        observer: Observer,
        versions: Callable[[], Mapping[str, Mapping[str, Sequence[str]]]],
        pools: Callable[[], Mapping[str, Pool]],
        projects: ProjectSync | None = None,
    ) -> None:
        """``versions``: those of images, as CircuitBreakers has them; ``pools``: of Slurm's nodes and storage nodes."""
        self._context, self._store = context, context.store
        self._progress = progress
        self._pools = pools
        self._projects = projects
        self._breakers = CircuitBreakers(context, versions)
        self._launcher = Launcher(context, progress, self._breakers, pools)
        self._terminator = Terminator(context, progress, observer)
        self.adopter = Adopter(context)
        self.slurm = SlurmActions(context)
        self.head_clock = HeadClockMonitor()

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
            if split_actions := isolation.split_action(action, slots_by_claim(self._store)):
                return sum(self._apply_contained(part) for part in split_actions)
            name = type(action).__name__
            for subject in isolation.action_subjects(action, slots_by_claim(self._store)) or (f"the step {name}",):
                self._context.quarantine.add_subject(subject, name, error)
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
            case TestFabric():
                return self._test_fabric(action)
            case TerminateMachines():
                return self._terminator.terminate(action)
            case RemoveOrphans():
                return self._terminator.remove_orphans(action)
            case SetProjectLimits():
                return self._projects.set_limits(action) if self._projects is not None else 0
            case SetQuotaPreemption():
                return self._projects.set_quota_preemption(action) if self._projects is not None else 0
            case _:
                return self.slurm.apply(action)

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
        progress = self._progress.claims[claim.id]
        # What Slurm did not see in time failed by the machine's fault where the machine said so last.
        machine_cause = progress.last_cause if action.error == VALIDATION_TIMEOUT else ""
        error = machine_cause or action.error
        if error:
            fields["error"] = error
        if action.instance_id:
            fields["instance_id"] = action.instance_id
        if action.address:
            fields["address"] = action.address
        if action.offer is not None:
            fields["offer"] = action.offer
        now = self._context.clock.now()
        if claim.billed_from is None and (action.new is S.BOOTING or action.instance_id):
            # Also one that is listed in error: what the launch made is paid for until its end.
            fields["billed_from"] = claim.launch_called or now
        if action.new is S.LOST and claim.billed_from is not None and claim.billed_until is None:
            fields["billed_until"] = now
        last_error = progress.last_error if action.new is S.FAILED else ""
        reason = f"{action.reason}; last: {last_error}" if last_error else action.reason
        self._store.transition_claim(claim.id, action.old, action.new, reason, **fields)
        if action.new is S.FAILED and error not in (POOL_REMOVED, UNWANTED):
            self._breakers.record_machine_failure(claim, error, reason)
        if action.new is S.LOST and action.old in NOT_REGISTERED_YET:
            # A cloud that ends machines before they are nodes would be asked for ever.
            self._breakers.record_machine_failure(claim, "interrupted" if claim.offer.spot else error, reason)
        if action.new is S.GONE and error == HEALTH:
            # Only now: what it leaves behind to run begins at once, where there is no other offer.
            self._breakers.record_machine_failure(claim, error, claim.reason)
        if action.new is S.READY:
            self._breakers.record_machine_success(claim)
        return 1

    def _forget_gone_machines(self) -> None:
        try:
            self._context.validator.retain_only([live.id for live in self._store.claims()])
        except OSError as error:
            log.warning("what was learned of machines that are gone could not be removed", error=str(error))

    def _validate(self, action: ValidateNode) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state not in (S.BOOTING, S.VALIDATING) or self._progress.claims[claim.id].call.in_flight:
            return 0
        provider, pool = self._context.providers[claim.offer.provider], self._pools()[claim.pool]
        progress = self._progress.claims[claim.id]
        progress.call.in_flight = True

        def console() -> str:
            return provider.console(claim.instance_id) if isinstance(provider, ConsoleLog) else ""

        def answered() -> None:
            with self._context.quarantine.contain_errors("result", isolation.node_subject(claim.slot)):
                self._machine_answered(claim.id)

        def reached() -> None:
            self._context.workers.post(answered)

        def work() -> str:
            has_console = isinstance(provider, ConsoleLog)
            return self._context.validator.validate(claim, pool, console if has_console else None, reached)

        def done(result: str | Exception) -> None:
            progress.call.in_flight = False
            if not isinstance(result, Exception):
                self._machine_answered(claim.id)
                self.head_clock.confirm()
                progress.advance(self._store.claim(claim.id).state, Step.VALIDATED)
                self._store.log_event(f"slot:{claim.slot}", new="proven", reason=result, data={"claim": claim.id})
                return
            self._node_failed(claim, result)

        self._submit(claim, work, done)
        return 0

    def _submit(self, claim: Claim, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Work at one machine: an error over its result is that node's."""

        def back(result: _T | Exception) -> None:
            with self._context.quarantine.contain_errors("result", isolation.node_subject(claim.slot)):
                done(result)

        self._context.workers.submit(MACHINES, work, back)

    def _adopt(self, action: AdoptMachine) -> int:
        """A machine at work is entered at once: its host key may be lost as well, and is on its console for now."""
        adopted = self.adopter.adopt(action)
        for claim in self._store.claims() if adopted else ():
            if claim.slot == action.claim.slot and claim.state is S.IN_SERVICE:
                self._reach(ProbeMachine(claim.id))
        return adopted

    def _reach(self, action: ProbeMachine) -> int:
        claim, progress = self._store.claim(action.claim_id), self._progress.claims[action.claim_id]
        if progress.probe.in_flight:
            return 0
        progress.probe.in_flight = True

        def done(result: Exception | None) -> None:
            progress.probe.in_flight = False
            now = self._context.clock.now()
            if isinstance(result, NodeNotReady):
                progress.unreachable_at = now
                return
            # It answers, or nobody can tell: what cannot be told is not taken for gone.
            progress.unreachable_at, progress.probe.due = None, now + REACH_EVERY_S
            if result is not None:
                log.error("machine could not be reached for", claim=claim.id, slot=claim.slot, exc_info=result)

        self._submit(claim, lambda: self._context.validator.probe(claim), done)
        return 0

    def _machine_answered(self, claim_id: str) -> None:
        claim = self._store.claim(claim_id)
        if claim.state is S.BOOTING:
            self._store.transition_claim(claim_id, S.BOOTING, S.VALIDATING, "the machine answers")

    def _node_failed(self, claim: Claim, error: Exception) -> None:
        """A machine that is not ready is tried again; one that is refused, or breaks the prover, is given back."""
        if isinstance(error, ClockNotSet) and error.off_s:
            self.head_clock.record_offset(claim.id, claim.offer.id, error.off_s)
        if not isinstance(error, BurstdError):
            log.error("proving broke", claim=claim.id, slot=claim.slot, exc_info=error)
        cause = error.cause if isinstance(error, NodeNotReady | NodeRefused) else "validation"
        # One that has been open may hold output: it is given back only where Slurm does not see it in time.
        if isinstance(error, NodeNotReady) or claim.in_service_from is not None:
            progress = self._progress.claims[claim.id]
            progress.call.due = self._context.clock.now() + self._context.intervals.validation_retry_s
            progress.last_error, progress.last_cause = str(error), cause
            log.debug("not ready yet", claim=claim.id, slot=claim.slot, error=str(error))
            return
        now = self._store.claim(claim.id)
        if now.state in (S.BOOTING, S.VALIDATING, S.READY):
            self._store.transition_claim(claim.id, now.state, S.FAILED, str(error), error=cause)
            self._breakers.record_machine_failure(claim, cause, str(error))

    def _test_fabric(self, action: TestFabric) -> int:
        first, second = claims = [self._store.claim(claim_id) for claim_id in (action.first, action.second)]
        calls = [self._progress.claims[claim.id].call for claim in claims]
        test = self._pools()[first.pool].fabric_test
        if test is None or any(c.state is not S.READY for c in claims) or any(call.in_flight for call in calls):
            return 0
        for call in calls:
            call.in_flight = True

        def done(result: str | Exception) -> None:
            for call in calls:
                call.in_flight = False
            for claim in claims:
                if isinstance(result, Exception):
                    self._node_failed(claim, result)
                    continue
                self._progress.claims[claim.id].advance(self._store.claim(claim.id).state, Step.FABRIC_TESTED)
                data = {"claim": claim.id}
                self._store.log_event(f"slot:{claim.slot}", new="fabric_tested", reason=result, data=data)

        self._submit(first, lambda: self._context.validator.test_fabric(first, second, test), done)
        return 0

    def _start(self, action: StartSlurmd) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state is not S.VALIDATING or self._progress.claims[claim.id].call.in_flight:
            return 0
        provider, pool = self._context.providers[claim.offer.provider], self._pools()[claim.pool]
        progress = self._progress.claims[claim.id]
        progress.call.in_flight = True

        started_before = progress.step is Step.SLURMD_STARTED

        def done(result: str | Exception) -> None:
            progress.call.in_flight = False
            if isinstance(result, Exception):
                self._node_failed(claim, result)
            else:
                if result:
                    progress.last_error, progress.last_cause = result, ""
                progress.slurmd_started = self._context.clock.now()
                progress.advance(self._store.claim(claim.id).state, Step.SLURMD_STARTED)

        def work() -> str:
            watch = provider.watch_script() if claim.offer.spot and isinstance(provider, NoticeWatch) else ""
            fault = ""
            if started_before:
                # Before it may be started anew, which a log that cannot be read does not keep it from.
                with suppress(NodeNotReady):
                    fault = self._context.validator.registration_fault(claim)
            self._context.validator.start_slurmd(claim, pool, watch)
            return fault

        self._submit(claim, work, done)
        return 0
