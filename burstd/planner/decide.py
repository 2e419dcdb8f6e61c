"""The decision: a snapshot and the policies in, a plan out."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from burstd.domain.cloud.offer import Offer
from burstd.domain.plan import Action, ChangeClaimState, HandOver, MakeClaim, Plan
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.homes import home_holds, home_remarks
from burstd.planner.idle_gpus import plan_idle_gpus
from burstd.planner.job_updates import requeue_misplaced, update_jobs
from burstd.planner.lifecycle.adoption import plan_adoptions
from burstd.planner.lifecycle.gate import drain_unwanted_ready, gate_steps
from burstd.planner.lifecycle.interruption import notice_remarks, notice_steps
from burstd.planner.lifecycle.launch_failures import launch_drains, launch_remarks
from burstd.planner.lifecycle.lifecycle import advance_claims
from burstd.planner.lifecycle.orphans import remove_orphans, reset_slots
from burstd.planner.mounts import mount_remarks, mount_steps
from burstd.planner.offers.dedicated import enforce_time_limits
from burstd.planner.offers.image_rollout import image_for
from burstd.planner.offers.offers import alternative_offers
from burstd.planner.offers.planned_claim import planned_claim
from burstd.planner.offers.reuse import plan_reuse
from burstd.planner.policy_chain import IN_DOUBT, PlannerCache, make_target
from burstd.planner.projects.quota_preemption import preempt_for_all
from burstd.planner.projects.steps import project_steps
from burstd.planner.snapshot_view import SnapshotView, build_view
from burstd.planner.staging.storage_node import storage_node_steps
from burstd.planner.timeouts import Tuning
from burstd.planner.unshown_paths import path_warnings


class Decider:
    """Decides again and again, with less to do where little has changed. Its plans are those of ``decide``.

    What did not change must be the very same objects (jobs, nodes): it is by these that it knows. One thread at a time.
    """

    def __init__(self) -> None:
        self._cache = PlannerCache()

    def decide(self, snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning) -> Plan:
        """The plan of one snapshot, as the function ``decide`` makes it."""
        return decide(snapshot, policies, tuning, self._cache)


def decide(snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning, cache: PlannerCache | None = None) -> Plan:
    """Everything that is to be done now, each step with its reason. Pure: the same plan for the same arguments.

    ``cache`` is the Decider's: the plan is the same with and without it.

    While Slurm cannot be read nothing is wanted and nothing released; claims under way go on as far as the clouds
    alone can take them.
    """
    with _without_gc():
        return _decide(snapshot, policies, tuning, cache)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Without the search for garbage: there is none while plans are made, and it takes as long as making them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _decide(snapshot: Snapshot, policies: Sequence[Policy], tuning: Tuning, cache: PlannerCache | None) -> Plan:
    cache = cache or PlannerCache()
    view = build_view(snapshot, tuning.gate, tuning.output_retention_s)
    adoptions = plan_adoptions(snapshot, view)
    if snapshot.record_doubt:
        # What the record says of machines and slots may be long over: nothing is done on its word.
        return Plan((*adoptions, *preempt_for_all(snapshot, IN_DOUBT)))
    read = isinstance(snapshot.slurm, SlurmView)
    target = Target()
    if read:
        target = make_target(snapshot, policies, tuning.output_retention_s, tuning.spot_interruptions, cache)
        target, handovers = plan_reuse(view, target)
        view = replace(view, handovers=handovers)
    steps = [
        *notice_steps(view),
        *launch_drains(view),
        *mount_steps(view),
        *home_holds(view),
        *(project_steps(cache.projects, view, target) if read else []),
        *advance_claims(view, tuning),
        *drain_unwanted_ready(view, target),
    ]
    idle = plan_idle_gpus(view, tuning.idle_gpus, tuning.figures_max_age_s)
    moving = frozenset(step.claim_id for step in steps if isinstance(step, ChangeClaimState | HandOver))
    actions: list[Action] = [
        *adoptions,
        # Before any job is let start, and any node opens.
        *update_jobs(view, target),
        *requeue_misplaced(view, target),
        *steps,
        *gate_steps(view, target, tuning, moving),
        *enforce_time_limits(view),
        *idle.actions,
        *([] if snapshot.paused else make_claims(view, target)),
        *reset_slots(view, tuning),
        *remove_orphans(snapshot, view, tuning),
        *storage_node_steps(snapshot, tuning),
    ]
    remarks = (
        *target.remarks,
        *launch_remarks(view),
        *notice_remarks(view),
        *mount_remarks(view),
        *home_remarks(view),
        *idle.remarks,
    )
    # First, as the last remark on a job is the last word on it.
    return Plan(tuple(actions), target, (*path_warnings(view, remarks), *remarks), idle.jobs)


def make_claims(view: SnapshotView, target: Target) -> list[MakeClaim]:
    """A claim for each machine that is wanted, on the slots that the target gave it, from its best offer."""
    claims: list[MakeClaim] = []
    by_offers: dict[tuple[str, int], tuple[str, tuple[Offer, ...]]] = {}
    for want in target.wants:
        if not want.offers:
            continue
        offer, key = want.offers[0], (want.pool, id(want.offers))
        if key not in by_offers:
            pool = view.snapshot.pools[want.pool]
            by_offers[key] = image_for(view.snapshot, pool, offer), alternative_offers(pool, want.offers)
        image, others = by_offers[key]
        for slot in want.slots:
            claim = planned_claim(want, slot, offer, view.snapshot.cluster, view.now, image, others)
            claims.append(MakeClaim(claim, others))
    return claims
