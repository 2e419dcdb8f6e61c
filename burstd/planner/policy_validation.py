"""What a policy answered: held against its contract, and what it took away put down to it.

A policy is foreign code, and an ordinary slip in it (``n / 2`` nodes, a helper that returns None) must not come as far
as the record or the clouds. Only what is new or changed is looked at: of ten thousand wants a policy leaves most as
they are, the very same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from burstd.domain.billing.costs import BudgetLine, Reserve
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import PolicyBroken
from burstd.domain.plugins.policy import (
    DroppedWant,
    ExcludedOffer,
    NodeRelease,
    Policy,
    PolicyFailed,
    Remark,
    Target,
    Want,
)
from burstd.domain.slurm.job import Job, users_and_accounts
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import SlurmView, Snapshot

_Texts = tuple[str, ...]


class PolicyBounds:
    """What is there, and how many machines jobs were given: no policy gets beyond it. Of one decision."""

    def __init__(self, snapshot: Snapshot, wants: Iterable[Want]) -> None:
        """``wants``: placement's, and what Slurm has asked for by itself."""
        self._snapshot = snapshot
        self._wants = tuple(wants)
        self._slots: dict[str, frozenset[str]] = {}

    def excess_fault(self, wants: Iterable[Want]) -> str:
        """Machines for a job that can not, or need not, start on them; empty: there are none."""
        for pool, jobs in _nodes_by_pool_and_job(wants).items():
            promised = self._promised.get(pool, {})
            if jobs == promised:
                continue
            strange = [job for job in jobs if job not in promised]
            if strange:
                return f"it wants nodes of pool {pool} for job {min(strange)}, which can not, or need not, start there"
            for job, nodes in jobs.items():
                if nodes > promised[job]:
                    return f"it wants {nodes} nodes of pool {pool} for job {job}, which is to get {promised[job]} there"
        return ""

    def slots(self, pool: str) -> frozenset[str]:
        """All of a pool that exists."""
        pool_slots = self._slots.get(pool)
        if pool_slots is None:
            pool_slots = self._slots[pool] = frozenset(self._snapshot.pools[pool].slots)
        return pool_slots

    def has_valid_gang(self, want: Want) -> bool:
        """Whether its jobs are the gang that it says, or none of them is part of one and it says none.

        What is wanted for no job may go by any word but that of a gang of jobs.
        """
        if not want.jobs:
            return not want.gang or all(want.gang not in gangs for gangs in self._gangs.values())
        return all(want.gang in self._gangs.get(job, _NO_GANG) for job in want.jobs)

    def pool_exists(self, pool: object) -> bool:
        """Whether the site has it."""
        return isinstance(pool, str) and pool in self._snapshot.pools

    def with_payers(self, want: Want) -> Want:
        """The want with the users and projects of its jobs, whatever a policy wrote there: limits go by them."""
        if not want.jobs:
            return want
        payers = self._payers.get(want.jobs)
        if payers is None:
            rows = [self._jobs[job] for job in want.jobs if job in self._jobs]
            payers = self._payers[want.jobs] = users_and_accounts(rows)
        users, accounts = payers
        return want if (want.users, want.accounts) == payers else replace(want, users=users, accounts=accounts)

    def is_releasable(self, claim_id: object) -> bool:
        """Whether it is a node that may be released."""
        claim = self._claims.get(claim_id) if isinstance(claim_id, str) else None
        if claim is None or claim.state not in (ClaimState.IN_SERVICE, ClaimState.READY):
            return False
        slurm = self._snapshot.slurm
        node = slurm.nodes.get(claim.slot) if isinstance(slurm, SlurmView) else None
        return node is not None and not node.busy

    @cached_property
    def _promised(self) -> Mapping[str, Mapping[str, int]]:
        return _nodes_by_pool_and_job(self._wants)

    @cached_property
    def _gangs(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {}
        for want in self._wants:
            for job in want.jobs:
                found.setdefault(job, set()).add(want.gang)
        return found

    @cached_property
    def _payers(self) -> dict[_Texts, tuple[_Texts, _Texts]]:
        return {want.jobs: (want.users, want.accounts) for want in self._wants}

    @cached_property
    def _jobs(self) -> Mapping[str, Job]:
        slurm = self._snapshot.slurm
        return {job.id: job for job in slurm.jobs} if isinstance(slurm, SlurmView) else {}

    @cached_property
    def _claims(self) -> Mapping[str, Claim]:
        return {claim.id: claim for claim in self._snapshot.claims}


def evaluate_policy(policy: Policy, snapshot: Snapshot, target: Target, bounds: PolicyBounds) -> Target | PolicyFailed:
    """What a policy makes of the target, or how it failed."""
    name = type(policy).__name__
    try:
        name = str(policy.name)
        found = policy.evaluate(snapshot, target)
        # Inside as well: what it returned may be anything, down to None for the wants.
        fault = _fault(found, target, bounds, hard=bool(getattr(policy, "hard", False)))
        return PolicyFailed(name, fault) if fault else _attributed(target, found, name, bounds)
    except PolicyBroken as error:
        return PolicyFailed(name, str(error))
    except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises becomes a result, and a HOLD
        return PolicyFailed(name, f"{type(error).__name__}: {error}")


def _fault(after: object, before: Target, bounds: PolicyBounds, *, hard: bool) -> str:
    """How the answer of a policy breaks the contract; empty: it does not."""
    if not isinstance(after, Target):
        return f"it returned {type(after).__name__}, not a Target"
    if after.remarks[: len(before.remarks)] != before.remarks:
        return "it removed or changed remarks of others"
    if fault := _remark_fault(after.remarks[len(before.remarks) :]):
        return fault
    if any(not isinstance(line, BudgetLine) for line in after.budgets):
        return "it shows budgets that are none"
    for job_id, update in after.job_updates.items():
        if not isinstance(job_id, str) or not isinstance(update, JobUpdate):
            return f"it has Slurm told of job {job_id!r} what is no JobUpdate"
    if not all(type(text) is str and text for pair in after.misplaced_jobs.items() for text in pair):
        return "it has jobs begin anew without their ids or a reason"
    if after.placements != before.placements or after.failed_policies:
        return "it changed what is not a policy's to change (placements, failed_policies)"
    for pool, offers in after.offers.items():
        if pool not in before.offers or not _within(offers, before.offers[pool]):
            return f"it allows offers for pool {pool!r} that are not to be had"
    return _wants_fault(after, before, bounds, hard=hard) or _release_fault(after, before, bounds)


def _remark_fault(new: Sequence[object]) -> str:
    for remark in new:
        if not isinstance(remark, Remark):
            return f"it remarks {type(remark).__name__}, not a Remark"
        for name in ("by", "subject", "verdict", "reason"):
            value = getattr(remark, name)
            if type(value) is not str or not value:
                return f"it remarks with {value!r} for {name} of {remark.subject!r}, which is no text"
    return ""


def _wants_fault(after: Target, before: Target, bounds: PolicyBounds, *, hard: bool) -> str:
    known = {id(want) for want in before.wants}
    new = [want for want in after.wants if id(want) not in known]
    sound: set[tuple[str, int]] = set()
    for want in new:
        if fault := _want_fault(want, before.offers, bounds, sound):
            return fault
    same = {id(want) for want in after.wants}
    if not new and len(same) == len(after.wants):
        return ""
    if hard and (more := _pool_with_more_nodes(after.wants, before.wants)):
        return f"it is hard and must only take away, and wants more nodes of pool {more} than there were"
    lost = [want for want in before.wants if id(want) not in same]
    return "" if len(same) == len(after.wants) and _in_place_of(lost, new) else bounds.excess_fault(after.wants)


def _in_place_of(lost: Iterable[Want], new: Iterable[Want]) -> bool:
    """Whether each new one has the slots of a lost one, for no other jobs. Most policies change wants like that."""
    by_slots = {want.slots: want for want in lost if want.slots}
    for want in new:
        old = by_slots.pop(want.slots, None)
        if old is None or old.pool != want.pool or not (want.jobs is old.jobs or set(want.jobs) <= set(old.jobs)):
            return False
    return True


def _want_fault(
    want: object, allowed: Mapping[str, tuple[Offer, ...]], bounds: PolicyBounds, checked_offers: set[tuple[str, int]]
) -> str:
    """``sound``: by pool and id(), tuples of offers that were looked at for others."""
    if not isinstance(want, Want):
        return f"it wants {type(want).__name__}, not a Want"
    if not bounds.pool_exists(want.pool):
        return f"it wants nodes of pool {want.pool!r}, which does not exist"
    if not isinstance(want.cause, Cause):
        return f"it wants nodes of pool {want.pool} for the cause {want.cause!r}, which is no Cause"
    if type(want.nodes) is not int or want.nodes < 1:
        return f"it wants {want.nodes} nodes of pool {want.pool}"
    for name in ("jobs", "users", "accounts", "slots"):
        value = getattr(want, name)
        if type(value) is not tuple or not _TEXT.issuperset(map(type, value)):
            return f"it wants nodes of pool {want.pool} with {value!r} for {name}, which is no tuple of texts"
    if (
        type(want.reason) is not str
        or not want.reason
        or type(want.gang) is not str
        or type(want.dedicated) is not bool
    ):
        wrong = (want.reason, want.gang, want.dedicated)
        return (
            f"it wants nodes of pool {want.pool} with {wrong!r} for reason, gang and dedicated: a text, one, and a bool"
        )
    if not bounds.has_valid_gang(want):
        whose = f"jobs {', '.join(want.jobs)}" if want.jobs else "no job"
        return f"it wants nodes of pool {want.pool} for {whose} as the gang {want.gang!r}, which they are not"
    if (want.pool, id(want.offers)) not in checked_offers:
        if not _within(want.offers, allowed.get(want.pool, ())):
            return f"it wants nodes of pool {want.pool} by offers that are not to be had"
        checked_offers.add((want.pool, id(want.offers)))
    if type(want.excluded_offers) is not tuple or not all(_left_out(out) for out in want.excluded_offers):
        return (
            f"it wants nodes of pool {want.pool} with {want.excluded_offers!r} for excluded_offers, which is no "
            f"tuple of ExcludedOffer"
        )
    if want.slots and not len(want.slots) == want.nodes == len(bounds.slots(want.pool).intersection(want.slots)):
        return f"it wants {want.nodes} node(s) of pool {want.pool} on slots that do not match"
    if any(not isinstance(r, Reserve) or not (0 <= r.egress <= r.amount < _MAX_AMOUNT) for r in want.reserved):
        return f"it reserves no amount of money for nodes of pool {want.pool}"
    return ""


_TEXT = frozenset({str})
_NO_GANG = frozenset({""})
_MAX_AMOUNT = 10**12
"""More money than this is none."""


def _left_out(out: object) -> bool:
    return isinstance(out, ExcludedOffer) and _TEXT.issuperset((type(out.offer), type(out.by), type(out.reason)))


def _release_fault(after: Target, before: Target, bounds: PolicyBounds) -> str:
    every = (*before.releases, *before.reusable)
    same = {id(release) for release in every}
    known = {release.claim_id for release in every}
    for release in (*after.releases, *after.reusable):
        if id(release) in same:
            continue
        if not isinstance(release, NodeRelease):
            return f"it releases {type(release).__name__}, not a Release"
        if release.claim_id not in known and not bounds.is_releasable(release.claim_id):
            return f"it releases {release.claim_id!r}, which is no idle node"
        if not _TEXT.issuperset((type(release.pool), type(release.reason))):
            return f"it releases {release.claim_id} with {release.reason!r} for a reason, which is no text"
    return ""


def _pool_with_more_nodes(after: Sequence[Want], before: Sequence[Want]) -> str:
    """A pool of which more is wanted than before, for whatever cause."""
    had = _nodes_by_pool_cause_gang(before)
    return next((kind[0] for kind, nodes in _nodes_by_pool_cause_gang(after).items() if nodes > had.get(kind, 0)), "")


def _nodes_by_pool_cause_gang(wants: Iterable[Want]) -> dict[tuple[str, Cause, str], int]:
    found: dict[tuple[str, Cause, str], int] = {}
    for want in wants:
        key = want.pool, want.cause, want.gang
        found[key] = found.get(key, 0) + want.nodes
    return found


def _nodes_by_pool_and_job(wants: Iterable[Want]) -> dict[str, dict[str, int]]:
    """By pool and job, how many."""
    found: dict[str, dict[str, int]] = {}
    for want in wants:
        if want.jobs:
            jobs = found.setdefault(want.pool, {})
            for job in want.jobs:
                jobs[job] = jobs.get(job, 0) + want.nodes
    return found


def _within(some: tuple[Offer, ...], allowed: tuple[Offer, ...]) -> bool:
    if some is allowed:
        return True
    # Nearly always they are the very same; to compare thousands of wants with dozens of offers each takes seconds.
    same = set(map(id, allowed))
    return type(some) is tuple and all(id(offer) in same or offer in allowed for offer in some)


def _attributed(before: Target, after: Target, by: str, bounds: PolicyBounds) -> Target:
    """The target that a policy returned, with what it took away put down to it."""
    # A policy that builds its target anew knows nothing of these.
    after = replace(after, wake_at=before.wake_at, dropped_wants=before.dropped_wants)
    known = {id(want) for want in before.wants}
    same = {id(want) for want in after.wants}
    changed = [want for want in before.wants if id(want) not in same]
    if not changed and len(same) == len(known):
        return after
    by_slots = {want.slots: want for want in changed if want.slots}
    wants = tuple(
        want if id(want) in known else bounds.with_payers(_with_left_out(by_slots.get(want.slots), want, by))
        for want in after.wants
    )
    wanted = {job for want in wants for job in want.jobs}
    lost = [(want, tuple(j for j in want.jobs if j not in wanted)) for want in changed]
    refused = tuple(DroppedWant(replace(want, jobs=jobs), by) for want, jobs in lost if jobs)
    return replace(after, wants=wants, dropped_wants=(*before.dropped_wants, *refused))


def _with_left_out(before: Want | None, after: Want, by: str) -> Want:
    if before is None or after.offers == before.offers:
        return after
    already_listed = {out.offer for out in after.excluded_offers}
    dropped = {offer.id for offer in before.offers} - {offer.id for offer in after.offers} - already_listed
    more = tuple(ExcludedOffer(offer.id, by, "") for offer in before.offers if offer.id in dropped)
    return replace(after, excluded_offers=(*after.excluded_offers, *more)) if more else after
