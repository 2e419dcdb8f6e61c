"""What placement says about a job: the verdict in a word and the reason in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burstd.domain.claim import ClaimState
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.demand import PendingJob
from burstd.planner.demand.requeued_jobs import on_demand_first, on_demand_reason
from burstd.planner.offers.offers import OfferEvaluation, free_slots_reason, no_offer_reason, none_ever_usable
from burstd.planner.placement.bins import Bin, BinKind
from burstd.planner.placement.equivalence_class import EligiblePool, EquivalenceClass, EquivalenceClasses
from burstd.planner.placement.first_fit import BURST_START_GRACE_S, Packer, PlacementOutcome
from burstd.planner.placement.inputs import usable_by_pool

_CLAIM_PROGRESS = {
    ClaimState.PLANNED: "planned",
    ClaimState.LAUNCHING: "launching",
    ClaimState.BOOTING: "booting",
    ClaimState.VALIDATING: "being validated",
    ClaimState.READY: "ready",
}
FOR_SITE_NODES = "waiting for the site's own nodes"
_SHOWN = 4
_SHARED_BY_NONE = (
    "a job with --exclusive=user, or in a partition with ExclusiveUser=YES, shares no node with other users"
)


class VerdictWriter:
    """Puts outcomes into words; what holds for a whole equivalence class is worked out once."""

    def __init__(
        self,
        snapshot: Snapshot,
        evaluations: Mapping[str, tuple[OfferEvaluation, ...]],
        classes: EquivalenceClasses,
        packer: Packer,
    ) -> None:
        self._pools = snapshot.pools
        self._evaluations = evaluations
        self._usable = usable_by_pool(evaluations)
        self._classes = classes
        self._packer = packer
        self._free_slots = {name: packer.free_slot_count(name) for name in snapshot.pools}
        self._slot_reasons = {
            n: free_slots_reason(snapshot, pool, self._free_slots[n]) for n, pool in snapshot.pools.items()
        }

    def verdict_for(
        self, pending: PendingJob, job_classes: Sequence[EquivalenceClass], outcome: PlacementOutcome
    ) -> tuple[str, str]:
        """Verdict and reason; ``verdict_on_new_node`` serves a job that gets one new node."""
        if pending.tasks == 1 and not outcome.tasks_left and len(outcome.existing) + len(outcome.new) == 1:
            return self.verdict_on_bin((outcome.existing or outcome.new)[0])
        if not outcome.tasks_left and not outcome.new:
            return "covered", f"the job fits on {_names(outcome.existing)}"
        if not outcome.tasks_left and not outcome.existing:
            return "boot", f"the job gets {len(outcome.new)} new node(s): {_names(outcome.new)}"
        if outcome.tasks_left == pending.tasks:
            return self._unassigned(pending, job_classes, outcome)
        parts = []
        if outcome.existing:
            parts.append(f"{_tasks(pending, outcome.tasks_on_existing, 'fit')} on {_names(outcome.existing)}")
        if outcome.new:
            parts.append(
                f"{_tasks(pending, outcome.tasks_on_new, 'get')} {len(outcome.new)} new node(s): {_names(outcome.new)}"
            )
        if outcome.tasks_left:
            parts.append(f"{outcome.tasks_left} task(s) waiting: {self._unassigned(pending, job_classes, outcome)[1]}")
        return "boot" if outcome.new else "covered", "; ".join(parts)

    def verdict_on_new_node(self, found: Bin, times: int, whose: str = "its nodes") -> tuple[str, str]:
        """Verdict and reason of a job on this new node once all jobs that share it are placed.

        ``times``: how often machines were taken from one of them, if it avoids spot for it.
        """
        offers = on_demand_first(self._usable[found.pool]) if times else self._usable[found.pool]
        why = on_demand_reason(offers, times, whose)
        return "boot", f"the job gets a new node in pool {found.pool}: {found.name}, {offers[0].id}{why}"

    def verdict_on_bin(self, found: Bin) -> tuple[str, str]:
        """Verdict and reason for a job that is placed on this bin alone; the same for all of them."""
        if found.verdict is None:
            found.verdict = self._make_verdict(found)
        return found.verdict

    def rejection(self, job_class: EquivalenceClass) -> tuple[str, str]:
        """Verdict and reason for a job for which nothing is left: as for the first of its kind."""
        if job_class.rejection is None:
            job_class.rejection = self._make_rejection(job_class)
        return job_class.rejection

    def impossible_reason(self, job_class: EquivalenceClass) -> str:
        """Why no pool can ever run a job, whatever room there is; empty: one can."""
        verdict, reason = self._rejection_by_room(job_class)
        return reason if verdict == "impossible" else ""

    def _make_verdict(self, found: Bin) -> tuple[str, str]:
        if found.kind is BinKind.NEW:
            return self.verdict_on_new_node(found, 0)
        if found.claim is not None and found.kind is BinKind.IN_FLIGHT:
            return "covered", f"the job fits on {found.name} ({_CLAIM_PROGRESS[found.claim.state]})"
        return "covered", f"the job fits on {found.name} (in service)"

    def _unassigned(
        self, pending: PendingJob, job_classes: Sequence[EquivalenceClass], outcome: PlacementOutcome
    ) -> tuple[str, str]:
        if outcome.stuck_on:
            return "wait", (
                f"the job fits on {outcome.stuck_on} (in service), but Slurm has not started it there for more than"
                f" {BURST_START_GRACE_S / 60:.0f} min; burstd launches no other node for it meanwhile"
            )
        if outcome.given_up:
            return "wait", (
                f"Slurm did not start the job on nodes that fit it for more than {BURST_START_GRACE_S / 60:.0f} min;"
                " burstd launches no node for it for an hour"
            )
        verdicts = [self.rejection(job_class) for job_class in job_classes]
        worst = next((i for i, (verdict, _) in enumerate(verdicts) if verdict == "impossible"), outcome.lacking_member)
        verdict, reason = verdicts[worst]
        if len(job_classes) == 1:
            return verdict, reason
        return verdict, f"the components start together, and {pending.jobs[worst].id} cannot: {reason}"

    def _make_rejection(self, job_class: EquivalenceClass) -> tuple[str, str]:
        verdict, reason = self._rejection_by_room(job_class)
        users = self._other_users(job_class) if verdict == "wait" and self._packer.users_matter else ""
        return verdict, f"{reason}; {users}" if users else reason

    def _other_users(self, job_class: EquivalenceClass) -> str:
        """The first node that has room, and that the job cannot share with those who use it; empty: there is none."""
        pools = job_class.eligible_pools
        share = pools[0].share if job_class.is_gang and pools else job_class.request.single_node_share
        for index in self._packer.indexes:
            at = index.find(0, share, job_class.kept_off_by_users)
            if at < len(index.bins):
                return self._users_text(index.bins[at], job_class)
        return ""

    def _users_text(self, found: Bin, job_class: EquivalenceClass) -> str:
        names = sorted(found.users)
        who = "others" if "" in names else f"user{'s' if len(names) > 1 else ''} {' and '.join(names)}"
        pool = self._pools.get(found.pool)
        shared = [p for p in job_class.partitions if pool is not None and pool.exclusive_user and p in pool.partitions]
        what = _SHARED_BY_NONE if not shared else f"partition {shared[0]} shares no node between users"
        return f"node {found.name} {'is for' if found.used else 'runs'} jobs of {who}; {what}"

    def _rejection_by_room(self, job_class: EquivalenceClass) -> tuple[str, str]:
        if job_class.requirements.constraint.problem:
            return "impossible", job_class.requirements.constraint.problem
        if not job_class.eligible_pools:
            lacking = "; ".join(
                f"no node in pool {name} has {what}" for name, what in job_class.lacking_by_pool.items()
            )
            if self._classes.fits_with_site_nodes(job_class):
                return "wait", f"{FOR_SITE_NODES} in {_partitions(job_class)}: " + (lacking or "no pool serves the job")
            return "impossible", lacking or f"no node in {_partitions(job_class)} can run the job"
        if not self._classes.fits_pools(job_class):
            pools = ", ".join(f"pool {r.pool.name} has {len(r.pool.slots)} slots" for r in job_class.eligible_pools)
            wanted = f"the job needs {min(r.nodes for r in job_class.eligible_pools)} node(s) at once"
            if job_class.excluded_nodes or job_class.required_nodes:
                wanted += " among those that -w and -x allow"
            if self._classes.fits_with_site_nodes(job_class):
                return "wait", f"{wanted}, {pools}; {FOR_SITE_NODES} as well"
            return "impossible", f"{wanted}, {pools}"
        names = {route.pool.name for route in job_class.eligible_pools}
        if all(none_ever_usable(self._evaluations[name]) for name in names) and not self._classes.fits_without_pools(
            job_class, names
        ):
            pools = ", ".join(sorted(names))
            why = no_offer_reason(
                judged for route in job_class.eligible_pools for judged in self._evaluations[route.pool.name]
            )
            return "impossible", f"no offer can serve pool {pools}: {why}"
        return "wait", "; ".join(self._no_slot_reason(route, job_class) for route in job_class.eligible_pools)

    def _no_slot_reason(self, eligible: EligiblePool, job_class: EquivalenceClass) -> str:
        """Why a pool that could run it gives no new slot now."""
        pool = eligible.pool
        if eligible.price is None:
            return f"no offer available for pool {pool.name}: {no_offer_reason(self._evaluations[pool.name])}"
        free = len(list(self._packer.allowed_slots(eligible, job_class)))
        given = self._free_slots[pool.name] - self._packer.free_slot_count(pool.name)
        left = f"{free} free slot(s), {eligible.nodes} needed" if free else "no free slot"
        return (
            f"pool {pool.name}: {left} ({self._slot_reasons[pool.name]}, {given} for jobs ahead; "
            f"{len(pool.slots)} in total)"
        )


def _names(bins: Sequence[Bin]) -> str:
    names = list(dict.fromkeys(b.name for b in bins))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _partitions(job_class: EquivalenceClass) -> str:
    return ", ".join(job_class.partitions)


def _tasks(pending: PendingJob, count: int, verb: str) -> str:
    return f"{count} task(s) {verb}" if pending.tasks > 1 else f"the job {verb}s"
