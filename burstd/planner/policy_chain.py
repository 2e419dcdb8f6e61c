"""Placement, then the policies in their order, then the administrator's pins: what is to come, in one Target.

A policy is foreign code. What it returns is checked; one that raises or breaks its contract stops the chain, and then
nothing is made and nothing released (HOLD) until it is mended: no uncontrolled bursting, no lost nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from burstd.domain.plugins.policy import (
    NodeRelease,
    Policy,
    PolicyFailed,
    Remark,
    Target,
    Want,
    remarks_on_dropped_wants,
)
from burstd.domain.slurm.outlook import Outlooks
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.demand import DemandCache, pending_demand
from burstd.planner.demand.request import payers_of
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.lifecycle.orphans import wants_of_slurm
from burstd.planner.lifecycle.output_retention import (
    RETENTION_S,
    NodeRetention,
    retained_nodes,
    without_releases_of_retained,
)
from burstd.planner.offers.bad_places import without_bad_places
from burstd.planner.offers.image_rollout import drain_outdated_nodes
from burstd.planner.offers.scale_overrides import apply_scale_overrides
from burstd.planner.placement.placement import PlacementCache, placement_target
from burstd.planner.placement.verdicts import FOR_SITE_NODES
from burstd.planner.policy_validation import PolicyBounds, evaluate_policy
from burstd.planner.projects.steps import ProjectPlan, narrow_to_projects, plan_projects, quota_first
from burstd.planner.volumes import add_volume_wants

IN_DOUBT = "no machine is started while the record is in doubt"


class PlannerCache:
    """What a decision leaves for the next, so that this one has less to do. One thread at a time may use it."""

    def __init__(self) -> None:
        self.demand = DemandCache()
        self.placement = PlacementCache()
        self.projects = ProjectPlan()
        """Of the last target."""


def make_target(
    snapshot: Snapshot,
    policies: Sequence[Policy],
    retention_s: float = RETENTION_S,
    spot_interruptions: int = 0,
    cache: PlannerCache | None = None,
) -> Target:
    """What is wanted and what may go now. Pure; each want has its slots named and at least one offer.

    ``spot_interruptions`` is Tuning's. ``cache`` is that of the last decision: the answer is the same without it.

    Policies are asked in the order of ``policies``, those with an attribute ``last`` after the others, by its value.

    No policy lets a node go that holds output of a job (output_retention.py); an administrator's pin may drain it.
    Idle nodes of an older image go after that, one at a time (image_rollout.py).

    Where Slurm cannot be read, a policy failed, the snapshot is paused or the record in doubt, nothing is wanted and
    nothing released.
    """
    if not isinstance(snapshot.outlook, Outlooks):
        snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
    cache = cache or PlannerCache()
    payers = payers_of(getattr(policy, "payers", {}) for policy in policies)
    demand = pending_demand(snapshot, cache.demand, payers)
    cache.projects = plan_projects(snapshot, demand)
    demand = quota_first(demand, cache.projects)
    target = placement_target(snapshot, demand, spot_interruptions, cache.placement)
    if not isinstance(snapshot.slurm, SlurmView):
        return target
    target = add_volume_wants(snapshot, target, cache.placement.free_slots())
    target = narrow_to_projects(snapshot, target, cache.projects, payers)
    policies = sorted(policies, key=lambda policy: getattr(policy, "last", 0))
    gangs, placement_wants = _gang_sizes(target), target.wants
    target = _evaluate_policies(policies, snapshot, target, PolicyBounds(snapshot, placement_wants))
    if target.failed_policies:
        return target
    retained = retained_nodes(snapshot, retention_s)
    target = _whole_gangs(
        apply_scale_overrides(snapshot, without_releases_of_retained(snapshot, target, retention_s), retained), gangs
    )
    target = drain_outdated_nodes(snapshot, target, retention_s)
    by_slurm = wants_of_slurm(snapshot, snapshot.slurm, target)
    target = replace(target, wants=(*by_slurm, *target.wants))
    # What others have added, an administrator's pin as well, must not get past a budget.
    hard = [policy for policy in policies if getattr(policy, "hard", False)]
    released = target.releases
    target = _until_hard_policies_agree(hard, snapshot, target, PolicyBounds(snapshot, (*placement_wants, *by_slurm)))
    if target.failed_policies:
        return target
    target = without_bad_places(snapshot, _without_new_releases(target, released, retained))
    awaited = {slot for want in by_slurm for slot in want.slots}
    free = {
        name: [*slots, *(slot for slot in snapshot.pools[name].slots if slot in awaited)] if awaited else slots
        for name, slots in cache.placement.free_slots().items()
    }
    target = _assign_slots(free, _whole_gangs(target, gangs), awaited)
    hold = snapshot.paused or (IN_DOUBT if snapshot.record_doubt else "")
    return _on_hold(target, hold) if hold else target


def _evaluate_policies(policies: Iterable[Policy], snapshot: Snapshot, target: Target, bounds: PolicyBounds) -> Target:
    """The target after these policies, or held where one failed."""
    for policy in policies:
        found = evaluate_policy(policy, snapshot, target, bounds)
        if isinstance(found, PolicyFailed):
            held_target = _nothing_wanted(target, found.name, f"the policy failed: {found.error}")
            return replace(held_target, failed_policies=(found,))
        target = found
    return target


def _until_hard_policies_agree(
    hard: Sequence[Policy], snapshot: Snapshot, target: Target, bounds: PolicyBounds
) -> Target:
    """The target that every hard policy has seen and left as it is: none that comes later can undo what one took."""
    unchanged = 0
    for _ in range(_MAX_ROUNDS):
        for policy in hard:
            before = target.wants
            target = _evaluate_policies((policy,), snapshot, target, bounds)
            if target.failed_policies:
                return target
            unchanged = unchanged + 1 if target.wants == before else 0
            if unchanged == len(hard):
                return target
    if not hard:
        return target
    why = "hard policies keep changing each other's target"
    names = ", ".join(str(policy.name) for policy in hard)
    return replace(_nothing_wanted(target, "chain", why), failed_policies=(PolicyFailed(names, why),))


_MAX_ROUNDS = 6
"""The first may change much, the second what the change of one means to the others."""


def _without_new_releases(
    target: Target, before: Sequence[NodeRelease], retained: Mapping[str, NodeRetention]
) -> Target:
    """The target without releases of nodes with output that came after those ``before``."""
    known = {release.claim_id for release in before}
    out = {r.claim_id for r in target.releases if r.claim_id in retained and r.claim_id not in known}
    if not out:
        return target
    remarks = [Remark("staging", f"claim:{claim_id}", "keep", str(retained[claim_id])) for claim_id in sorted(out)]
    releases = tuple(release for release in target.releases if release.claim_id not in out)
    return replace(target, releases=releases, remarks=(*target.remarks, *remarks))


def _nothing_wanted(target: Target, by: str, why: str) -> Target:
    """Nothing wanted, nothing released."""
    dropped = remarks_on_dropped_wants(((want, why) for want in target.wants), by)
    remarks = [Remark(by, f"claim:{release.claim_id}", "keep", why) for release in target.releases]
    remarks.append(Remark(by, "plan", "hold", why))
    return replace(target, wants=(), releases=(), remarks=(*target.remarks, *dropped, *remarks))


def _on_hold(target: Target, why: str) -> Target:
    """Nothing wanted; the hold has the last word on each job that waits for a machine, whatever else it lacks."""
    why = f"on hold: {why}"
    target = _nothing_wanted(target, "hold", why)
    last = {r.subject: r for r in target.remarks if r.subject.startswith("job:")}
    remarks = [
        Remark("hold", subject, "wait", why)
        for subject, r in last.items()
        if r.verdict == "wait" and r.by not in ("hold", "demand", "projects") and FOR_SITE_NODES not in r.reason
    ]
    return replace(target, remarks=(*target.remarks, *remarks))


def _gang_sizes(target: Target) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for want in target.wants:
        if want.gang:
            sizes[want.gang] = sizes.get(want.gang, 0) + want.nodes
    return sizes


def _whole_gangs(target: Target, before: Mapping[str, int]) -> Target:
    """A gang of which a policy took a part away would boot for nothing: the rest goes as well."""
    now = _gang_sizes(target)
    torn = {gang for gang, nodes in now.items() if nodes != before.get(gang, nodes)}
    if not torn:
        return target
    why = "another part of the job was refused"
    remarks = remarks_on_dropped_wants(((want, why) for want in target.wants if want.gang in torn), "chain")
    wants = tuple(want for want in target.wants if want.gang not in torn)
    return replace(target, wants=wants, remarks=(*target.remarks, *remarks))


def _assign_slots(free_slots: Mapping[str, Sequence[str]], target: Target, awaited: AbstractSet[str]) -> Target:
    """Gives each want its slots; what finds none, or has no offer, is dropped. A gang stands or falls as a whole.

    ``free_slots``: those of each pool. ``awaited`` are slots that Slurm powers up by itself.
    """
    if not awaited and _all_assigned(free_slots, target.wants):
        return target
    free = {name: dict.fromkeys(some) for name, some in free_slots.items()}
    # Slots that placement named for jobs are theirs; wants of policies take what is left.
    reserved = awaited | {slot for want in target.wants for slot in want.slots}
    units: dict[str, list[int]] = {}
    for index, want in enumerate(target.wants):
        units.setdefault(want.gang or f"#{index}", []).append(index)
    assigned: dict[int, Want] = {}
    refused: list[tuple[Want, str]] = []
    for indexes in units.values():
        taken: list[tuple[str, str]] = []
        some: dict[int, Want] = {}
        fault = ""
        for index in indexes:
            want = target.wants[index]
            slots = want.slots or tuple(s for s in free[want.pool] if s not in reserved)[: want.nodes]
            if not want.offers:
                fault = f"no offer available for pool {want.pool}"
            elif len(slots) < want.nodes or any(slot not in free[want.pool] for slot in slots):
                fault = f"pool {want.pool} has no free slot left"
            else:
                for slot in slots:
                    del free[want.pool][slot]
                    taken.append((want.pool, slot))
                some[index] = want if want.slots else replace(want, slots=slots)
        if not fault:
            assigned |= some
            continue
        for pool, slot in taken:
            free[pool][slot] = None
        refused += [(target.wants[index], fault) for index in indexes]
    wants = tuple(assigned[index] for index in sorted(assigned))
    return replace(target, wants=wants, remarks=(*target.remarks, *remarks_on_dropped_wants(refused, "chain")))


def _all_assigned(free: Mapping[str, Sequence[str]], wants: tuple[Want, ...]) -> bool:
    """True where all have offers, and free slots of their own: most often none but placement has made any."""
    if not all(want.offers and len(want.slots) == want.nodes for want in wants):
        return False
    assigned = [slot for want in wants for slot in want.slots]
    return len(set(assigned)) == len(assigned) and all(
        set(free[pool]).issuperset([slot for want in wants if want.pool == pool for slot in want.slots])
        for pool in {want.pool for want in wants}
    )
