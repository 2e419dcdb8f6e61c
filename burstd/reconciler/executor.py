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
    Adopt,
    Bind,
    Drain,
    Interrupted,
    Launch,
    Learn,
    LimitTime,
    MakeClaim,
    Move,
    NodeDown,
    Plan,
    PowerDown,
    Prove,
    Reach,
    Register,
    RemoveOrphans,
    Requeue,
    SetGate,
    Start,
    StartNow,
    Terminate,
    Unbind,
    Undrain,
)
from burstd.domain.plugins.provider import ConsoleLog, NodeWatch, Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import Prover
from burstd.node.errors import ClockNotSet
from burstd.planner import isolation
from burstd.planner.lifecycle.lifecycle import NOT_SEEN, UNWANTED
from burstd.planner.lifecycle.listing import YOUNG
from burstd.reconciler.machines.adopter import Adopter
from burstd.reconciler.machines.circuit_breakers import Trust
from burstd.reconciler.machines.interruptions import Interruptions
from burstd.reconciler.machines.launcher import Launcher
from burstd.reconciler.machines.terminator import Terminator
from burstd.reconciler.memory import Memory
from burstd.reconciler.quarantine import MEANT, Holds
from burstd.runtime.clock import HeadClock
from burstd.runtime.workers import Workers

BY_SETTINGS = "pool"
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
        prover: Prover,
        workers: Workers,
        clock: Clock,
        memory: Memory,
        trust: Trust,
        launcher: Launcher,
        terminator: Terminator,
        interruptions: Interruptions,
        adopter: Adopter,
        head: HeadClock,
        holds: Holds,
        pools: Callable[[], Mapping[str, Pool]],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._providers = providers
        self._prover = prover
        self._workers = workers
        self._clock = clock
        self._memory = memory
        self._trust = trust
        self._launcher = launcher
        self._terminator = terminator
        self._interruptions = interruptions
        self._adopter = adopter
        self._head = head
        self._holds = holds
        self._pools = pools

    def apply(self, plan: Plan) -> int:
        """Does the plan's actions in order; returns how many changed something, so that a next loop is due at once.

        Raises SchedulerUnavailable when Slurm stops answering, and the store's errors; the rest of the plan is then
        left to the next loop.
        """
        self._launcher.make(a for a in plan.actions if isinstance(a, MakeClaim))
        changed = sum(isinstance(a, MakeClaim) for a in plan.actions)
        self._launcher.again(a for a in plan.actions if isinstance(a, Launch))
        for records, actions in groupby(plan.actions, lambda action: isinstance(action, Move | Learn)):
            # One flush to the disk for all that is only written down: a thousand would keep the loop for seconds.
            with self._store.batch() if records else nullcontext():
                changed += sum(map(self._apart, actions))
        if any(isinstance(action, Move) and action.new is S.GONE for action in plan.actions):
            self._forget_machines()
        return changed

    def _apart(self, action: Action) -> int:
        """Does it; what burstd fails on is left alone, and the rest is done."""
        try:
            return self._do(action)
        except MEANT:
            raise
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm (Holds)
            if parts := isolation.parts(action, self._slots()):
                return sum(self._apart(part) for part in parts)
            name = type(action).__name__
            for subject in isolation.concerned(action, self._slots()) or (f"the step {name}",):
                self._holds.broke(subject, name, error)
            return 0

    def _do(self, action: Action) -> int:
        match action:
            case MakeClaim() | Launch():
                return 0
            case Adopt():
                return self._adopt(action)
            case Move():
                return self._move(action)
            case Learn():
                return self._learn(action)
            case Prove():
                return self._prove(action)
            case Reach():
                return self._reach(action)
            case Start():
                return self._start(action)
            case Terminate():
                return self._terminator.terminate(action)
            case RemoveOrphans():
                return self._terminator.remove(action)
            case _:
                return self._tell_slurm(action)

    def _tell_slurm(self, action: Action) -> int:
        try:
            return self._slurm(action)
        except SchedulerRefused as error:
            if parts := isolation.parts(action, self._slots()):
                # One node that Slurm refuses must not hold up the others.
                return sum(self._tell_slurm(part) for part in parts)
            self._memory.refused(action, str(error), self._clock.now())
            log.error("slurm refused", action=type(action).__name__, error=str(error))
            return 0

    def _slots(self) -> dict[str, str]:
        return {claim.id: claim.slot for claim in self._store.claims()}

    def _slurm(self, action: Action) -> int:
        now = self._clock.now()
        if self._memory.refused_lately(action, now):
            return 0
        match action:
            case Register():
                # Slurm may show another address than it was told: it is not told in every loop.
                told = self._memory.registered
                news = [pair for pair in action.addresses if now - told.get(pair[0], float("-inf")) > REGISTER_EVERY_S]
                if not news:
                    return 0
                self._scheduler.set_address(news)
                told.update((name, now) for name, _ in news)
            case SetGate():
                self._scheduler.set_gate(action.nodes)
                split = len(action.opens)
                self._moves(action.opens, S.READY, S.OPEN, action.why[:split])
                self._moves(action.closes, S.OPEN, S.CLOSING, action.why[split:])
            case Bind():
                self._scheduler.bind(action.job_id, action.user, action.nodes)
                self._memory.bound_since[action.job_id] = now
                self._moves(action.claims, S.READY, S.OPEN, [action.reason] * len(action.claims))
            case Unbind():
                self._scheduler.unbind(action.job_id)
                self._memory.bound_since.pop(action.job_id, None)
            case PowerDown():
                self._scheduler.power_down(action.nodes, force=action.force)
                self._memory.tidied.update(dict.fromkeys(action.nodes, now))
                self._moves(action.ends, S.CLOSING, S.TERMINATING, [action.reason] * len(action.ends))
            case NodeDown():
                self._scheduler.down(action.nodes, action.reason)
            case Drain():
                self._scheduler.drain(action.nodes, action.reason)
                with self._store.batch():
                    for claim_id, node in zip(action.claims, action.nodes, strict=True):
                        self._store.append(f"slot:{node}", new="drained", reason=action.reason, cause="spot",
                                           data={"claim": claim_id})  # fmt: skip
            case Undrain():
                self._scheduler.resume(action.nodes)
            case Interrupted():
                return self._interruptions.note(action.runs)
            case Requeue():
                return self._interruptions.requeue(action.runs, now)
            case LimitTime():
                log.warning("job is given the time that was paid for", job=action.job_id, reason=action.reason)
                self._scheduler.limit_time(action.job_id, action.limit_s)
            case StartNow():
                self._scheduler.start_now(action.jobs)
            case _:
                raise TypeError(f"no such step: {action!r}")
        return 1

    def _moves(self, claims: Sequence[str], old: ClaimState, new: ClaimState, reasons: Sequence[str]) -> None:
        with self._store.batch():
            for claim_id, reason in zip(claims, reasons, strict=True):
                claim = self._store.claim(claim_id)
                with self._holds.guard("move", isolation.node(claim.slot)):
                    if claim.state is old:
                        self._store.move(claim_id, old, new, reason)

    def _learn(self, action: Learn) -> int:
        claim = self._store.claim(action.claim_id)
        since = claim.launch_called if claim.billed_from is None else claim.billed_from
        self._store.touch(
            claim.id, address=action.address, instance_id=action.instance_id, billed_from=since,
            offer=action.offer or claim.offer,
        )  # fmt: skip
        return 1

    def _move(self, action: Move) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state is not action.old:
            return 0
        fields: ClaimFields = {}
        # What Slurm did not see in time failed by the machine's fault where the machine said so last.
        own = self._memory.last_cause.get(claim.id, "") if action.error == NOT_SEEN else ""
        error = own or action.error
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
        last_word = self._memory.last_word.get(claim.id, "") if action.new is S.FAILED else ""
        reason = f"{action.reason}; last: {last_word}" if last_word else action.reason
        self._store.move(claim.id, action.old, action.new, reason, **fields)
        if action.new is S.FAILED and error not in (BY_SETTINGS, UNWANTED):
            self._trust.failed(claim, error, reason)
        if action.new is S.LOST and action.old in YOUNG:
            # A cloud that ends machines before they are nodes would be asked for ever.
            self._trust.failed(claim, "interrupted" if claim.offer.spot else error, reason)
        if action.new is S.READY:
            self._trust.proved(claim)
        if action.new is S.GONE:
            self._memory.ended.discard(claim.id)
            self._memory.silent.pop(claim.id, None)
        if action.new not in (S.PROVING, S.BOOTING):
            self._memory.forget_proof(claim.id)
        return 1

    def _forget_machines(self) -> None:
        try:
            self._prover.keep([live.id for live in self._store.claims()])
        except OSError as error:
            log.warning("what was learned of machines that are gone could not be removed", error=str(error))

    def _prove(self, action: Prove) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state not in (S.BOOTING, S.PROVING) or claim.id in self._memory.calling:
            return 0
        provider, pool = self._providers[claim.offer.provider], self._pools()[claim.pool]
        self._memory.calling.add(claim.id)

        def console() -> str:
            return provider.console(claim.instance_id) if isinstance(provider, ConsoleLog) else ""

        def answered() -> None:
            with self._holds.guard("result", isolation.node(claim.slot)):
                self._reached(claim.id)

        def reached() -> None:
            self._workers.post(answered)

        def work() -> str:
            has = isinstance(provider, ConsoleLog)
            return self._prover.prove(claim, pool, console if has else None, reached)

        def done(result: str | Exception) -> None:
            self._memory.calling.discard(claim.id)
            if not isinstance(result, Exception):
                self._reached(claim.id)
                self._head.right()
                self._memory.proved.add(claim.id)
                self._store.append(f"slot:{claim.slot}", new="proven", reason=result, data={"claim": claim.id})
                return
            self._node_failed(claim, result)

        self._submit(claim, work, done)
        return 0

    def _submit(self, claim: Claim, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Work at one machine: an error over its result is that node's."""

        def back(result: _T | Exception) -> None:
            with self._holds.guard("result", isolation.node(claim.slot)):
                done(result)

        self._workers.submit("nodes", work, back)

    def _adopt(self, action: Adopt) -> int:
        """A machine at work is entered at once: its host key may be lost as well, and is on its console for now."""
        made = self._adopter.adopt(action)
        for claim in self._store.claims() if made else ():
            if claim.slot == action.claim.slot and claim.state is S.OPEN:
                self._reach(Reach(claim.id))
        return made

    def _reach(self, action: Reach) -> int:
        claim, key = self._store.claim(action.claim_id), f"reach:{action.claim_id}"
        if key in self._memory.calling:
            return 0
        self._memory.calling.add(key)

        def done(result: Exception | None) -> None:
            self._memory.calling.discard(key)
            now = self._clock.now()
            if isinstance(result, NodeNotReady):
                self._memory.silent[claim.id] = now
                return
            # It answers, or nobody can tell: what cannot be told is not taken for gone.
            self._memory.silent.pop(claim.id, None)
            self._memory.rest(key, now, REACH_EVERY_S)
            if result is not None:
                log.error("machine could not be reached for", claim=claim.id, slot=claim.slot, exc_info=result)

        self._submit(claim, lambda: self._prover.reach(claim), done)
        return 0

    def _reached(self, claim_id: str) -> None:
        claim = self._store.claim(claim_id)
        if claim.state is S.BOOTING:
            self._store.move(claim_id, S.BOOTING, S.PROVING, "the machine answers")

    def _node_failed(self, claim: Claim, error: Exception) -> None:
        """A machine that is not ready is tried again; one that is refused, or breaks the prover, is given back."""
        if isinstance(error, ClockNotSet) and error.off_s:
            self._head.refused(claim.id, claim.offer.id, error.off_s)
        if not isinstance(error, BurstdError):
            log.error("proving broke", claim=claim.id, slot=claim.slot, exc_info=error)
        cause = error.cause if isinstance(error, NodeNotReady | NodeRefused) else "proof"
        # One that has been open may hold output: it is given back only where Slurm does not see it in time.
        if isinstance(error, NodeNotReady) or claim.opened is not None:
            self._memory.rest(claim.id, self._clock.now(), self._memory.pace.prove_retry_s)
            self._memory.last_word[claim.id], self._memory.last_cause[claim.id] = str(error), cause
            log.debug("not ready yet", claim=claim.id, slot=claim.slot, error=str(error))
            return
        now = self._store.claim(claim.id)
        if now.state in (S.BOOTING, S.PROVING):
            self._store.move(claim.id, now.state, S.FAILED, str(error), error=cause)
            self._memory.forget_proof(claim.id)
            self._trust.failed(claim, cause, str(error))

    def _start(self, action: Start) -> int:
        claim = self._store.claim(action.claim_id)
        if claim.state is not S.PROVING or claim.id in self._memory.calling:
            return 0
        provider, pool = self._providers[claim.offer.provider], self._pools()[claim.pool]
        self._memory.calling.add(claim.id)

        def done(result: Exception | None) -> None:
            self._memory.calling.discard(claim.id)
            if isinstance(result, Exception):
                self._node_failed(claim, result)
            else:
                self._memory.started[claim.id] = self._clock.now()

        def work() -> None:
            watch = provider.watch() if claim.offer.spot and isinstance(provider, NodeWatch) else ""
            self._prover.start(claim, pool, watch)

        self._submit(claim, work, done)
        return 0
