"""The decision of a loop and the questions around it, made without what burstd fails on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from burstd.domain.cloud.offer import Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.snapshot import Snapshot
from burstd.planner import isolation
from burstd.planner.decide import Decider
from burstd.planner.demand.stuck_jobs import covered_since, tried_since
from burstd.planner.forecast.outlook import outlooks
from burstd.planner.lifecycle import output_retention
from burstd.planner.lifecycle.adoption import foreign_alarms
from burstd.planner.lifecycle.listing import ending_alarms, listing_alarms
from burstd.planner.staging.affordable_inputs import payable_inputs
from burstd.planner.staging.input_deadlines import booted
from burstd.planner.staging.storage_node import storage_alarms
from burstd.planner.timeouts import Tuning
from burstd.reconciler.memory import Memory
from burstd.reconciler.quarantine import Holds


@dataclass(frozen=True, slots=True)
class Rules:
    """What may change while the daemon runs: pools, policies, times."""

    pools: Mapping[str, Pool]
    policies: Sequence[Policy]
    tuning: Tuning


@dataclass(frozen=True, slots=True)
class Thought:
    """What a decision and the questions around it came to."""

    plan: Plan
    tried_since: Mapping[str, float]
    covered_since: Mapping[str, float]
    booted: Mapping[str, tuple[float, ...]]
    alarms: tuple[str, ...]
    payable: frozenset[str]


class Decisions:
    """Used in the deciding thread. Does nothing but think, and hold what that fails on."""

    def __init__(self, holds: Holds, memory: Memory, rules: Callable[[], Rules]) -> None:
        self._holds = holds
        self._memory = memory
        self._rules = rules
        self._decider = Decider()

    def decide(self, snapshot: Snapshot) -> tuple[Snapshot, Thought]:
        """The decision, and the snapshot that it is made from: without what burstd fails on."""
        known = self._holds.held(snapshot)
        held = isolation.untouched(snapshot, known)
        try:
            seen, thought = self._thought(isolation.without(snapshot, held), self._decider)
        except Exception as error:
            # What it remembers may be half of the old and half of the new.
            self._decider = Decider()
            if self._works(snapshot, held):
                self._holds.broke("what it remembers of the last decision, and decides anew", "decision", error)
                return self.decide(snapshot)
            found = isolation.to_blame(
                [s for s in isolation.subjects(snapshot) if s not in held],
                lambda out: self._works(snapshot, {*held, *out}),
            )
            if not found:
                raise
            for subject in found:
                self._holds.broke(subject, "decision", error)
            held = isolation.untouched(snapshot, {*known, *found})
            seen, thought = self._thought(isolation.without(snapshot, held), self._decider)
        return seen, replace(thought, plan=isolation.spared(thought.plan, snapshot, held))

    def _works(self, snapshot: Snapshot, out: Collection[str]) -> bool:
        try:
            self._thought(isolation.without(snapshot, out), Decider())
        except Exception:  # noqa: BLE001  that is the question
            return False
        return True

    def _thought(self, snapshot: Snapshot, decider: Decider) -> tuple[Snapshot, Thought]:
        """All that is worked out from a snapshot; does nothing."""
        snapshot = replace(snapshot, outlook=outlooks(snapshot))
        rules, memory = self._rules(), self._memory
        tuning = rules.tuning
        plan = decider.decide(snapshot, rules.policies, tuning)
        alarms = [f"policy {f.name} failed: {f.error}" for f in plan.target.failed]
        every = (*snapshot.claims, *snapshot.storage)
        ownerless = sorted({c.offer.provider for c in every} - snapshot.clouds.keys())
        alarms += [f"machines at {p} cannot be looked after: put [providers.{p}] back" for p in ownerless]
        alarms += listing_alarms(snapshot, tuning.boot_timeout_s)
        alarms += ending_alarms(snapshot)
        alarms += foreign_alarms(snapshot)
        alarms += storage_alarms(snapshot)
        alarms += [kept] if (kept := output_retention.alarm(snapshot, tuning.keep_node_s)) else []
        return snapshot, Thought(
            plan,
            tried_since(memory.tried_since, snapshot, plan.target),
            covered_since(memory.covered_since, snapshot, plan.target),
            booted(memory.booted, snapshot, plan.actions),
            tuple(alarms),
            payable_inputs(memory.payable, snapshot, rules.policies),
        )
