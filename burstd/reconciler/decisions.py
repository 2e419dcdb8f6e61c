"""The decision of a loop and the questions around it, made without what burstd fails on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from burstd.domain.cloud.offer import Pool
from burstd.domain.machine_outcomes import BadPlaceRule
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.project import FairShare, Project
from burstd.domain.snapshot import KnownLimit, Snapshot
from burstd.planner import isolation
from burstd.planner.decide import Decider
from burstd.planner.demand.limited_jobs import limited_jobs
from burstd.planner.demand.stuck_jobs import stuck_on_burst_since, stuck_since
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.idle_gpus import idle_gpu_alarms
from burstd.planner.lifecycle import output_retention
from burstd.planner.lifecycle.adoption import foreign_alarms
from burstd.planner.lifecycle.listing import listing_alarms, termination_alarms
from burstd.planner.lifecycle.spot_notices import own_node_alarms
from burstd.planner.offers.unfilled import UnfilledPools
from burstd.planner.projects.capacity import capacity_alarms
from burstd.planner.staging.affordable_inputs import jobs_with_affordable_input
from burstd.planner.staging.input_deadlines import updated_boot_durations
from burstd.planner.staging.storage_node import storage_node_alarms
from burstd.planner.timeouts import Tuning
from burstd.reconciler.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What may change while the daemon runs: pools, policies, times, projects, the rule on bad places."""

    pools: Mapping[str, Pool]
    policies: Sequence[Policy]
    tuning: Tuning
    projects: Mapping[str, Project] = field(default_factory=dict)
    fair_share: FairShare = field(default_factory=FairShare)
    bad_places: BadPlaceRule = field(default_factory=BadPlaceRule)


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """What a decision and the questions around it came to."""

    plan: Plan
    stuck_on_burst_since: Mapping[str, float] = field(default_factory=dict)
    stuck_since: Mapping[str, float] = field(default_factory=dict)
    boot_durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    limited_jobs: Mapping[str, KnownLimit] = field(default_factory=dict)
    affordable_inputs: frozenset[str] = frozenset()
    """Jobs for whose input a storage node may be paid."""


class QuarantiningDecider:
    """Used in the deciding thread. Does nothing but think, and hold what that fails on."""

    def __init__(self, quarantine: Quarantine, config: Callable[[], RuntimeConfig]) -> None:
        self._quarantine = quarantine
        self.last = DecisionResult(Plan())
        """Where the next decision goes on from."""
        self._config = config
        self._decider = Decider()
        self._unfilled = UnfilledPools()

    def decide(self, snapshot: Snapshot) -> tuple[Snapshot, DecisionResult]:
        """The decision, and the snapshot that it is made from: without what burstd fails on."""
        known = self._quarantine.quarantined_subjects(snapshot)
        quarantined = isolation.with_affected_nodes(snapshot, known)
        try:
            seen, result = self._evaluate(isolation.without_subjects(snapshot, quarantined), self._decider)
        except Exception as error:
            # What it remembers may be half of the old and half of the new.
            self._decider = Decider()
            if self._succeeds_without(snapshot, quarantined):
                self._quarantine.add_subject(
                    "what it remembers of the last decision, and decides anew", "decision", error
                )
                return self.decide(snapshot)
            culprits = isolation.find_culprits(
                [s for s in isolation.all_subjects(snapshot) if s not in quarantined],
                lambda out: self._succeeds_without(snapshot, {*quarantined, *out}),
            )
            if not culprits:
                raise
            for subject in culprits:
                self._quarantine.add_subject(subject, "decision", error)
            quarantined = isolation.with_affected_nodes(snapshot, {*known, *culprits})
            seen, result = self._evaluate(isolation.without_subjects(snapshot, quarantined), self._decider)
        self.last = replace(result, plan=isolation.plan_without_subjects(result.plan, snapshot, quarantined))
        return seen, self.last

    def _succeeds_without(self, snapshot: Snapshot, out: Collection[str]) -> bool:
        try:
            self._evaluate(isolation.without_subjects(snapshot, out), Decider())
        except Exception:  # noqa: BLE001  that is the question
            return False
        return True

    def _evaluate(self, snapshot: Snapshot, decider: Decider) -> tuple[Snapshot, DecisionResult]:
        """All that is worked out from a snapshot; does nothing."""
        snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
        config, last = self._config(), self.last
        tuning = config.tuning
        plan = decider.decide(snapshot, config.policies, tuning)
        alarms = [f"policy {f.name} failed: {f.error}" for f in plan.target.failed_policies]
        every = (*snapshot.claims, *snapshot.storage_claims)
        ownerless = sorted({c.offer.provider for c in every} - snapshot.clouds.keys())
        alarms += [f"machines at {p} cannot be looked after: put [providers.{p}] back" for p in ownerless]
        alarms += listing_alarms(snapshot, tuning.boot_timeout_s, tuning.output_retention_s)
        alarms += termination_alarms(snapshot)
        alarms += self._unfilled.alarms(snapshot, plan.target)
        alarms += foreign_alarms(snapshot)
        alarms += storage_node_alarms(snapshot)
        alarms += capacity_alarms(snapshot)
        alarms += own_node_alarms(snapshot)
        alarms += idle_gpu_alarms(snapshot, tuning.idle_gpus)
        retention = output_retention.retention_alarm(snapshot, tuning.output_retention_s)
        alarms += [retention] if retention else []
        return snapshot, DecisionResult(
            plan,
            stuck_on_burst_since(last.stuck_on_burst_since, snapshot, plan.target),
            stuck_since(last.stuck_since, snapshot, plan.target),
            updated_boot_durations(last.boot_durations, snapshot, plan.actions),
            tuple(alarms),
            limited_jobs(last.limited_jobs, snapshot),
            jobs_with_affordable_input(last.affordable_inputs, snapshot, config.policies),
        )
