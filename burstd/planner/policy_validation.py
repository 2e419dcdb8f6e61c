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
from burstd.domain.plugins.policy import LeftOut, Policy, PolicyFailed, Refused, Release, Remark, Target, Want
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot

_Words = tuple[str, ...]


class Bounds:
    """What is there, and how many machines jobs were given: no policy gets beyond it. Of one decision."""

    def __init__(self, snapshot: Snapshot, wants: Iterable[Want]) -> None:
        """``wants``: placement's, and what Slurm has asked for by itself."""
        self._snapshot = snapshot
        self._wants = tuple(wants)
        self._slots: dict[str, frozenset[str]] = {}

    def too_much(self, wants: Iterable[Want]) -> str:
        """Machines for a job that can not, or need not, start on them; empty: there are none."""
        for pool, jobs in _machines(wants).items():
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
        found = self._slots.get(pool)
        if found is None:
            found = self._slots[pool] = frozenset(self._snapshot.pools[pool].slots)
        return found

    def gang_of(self, want: Want) -> bool:
        """Whether its jobs are the gang that it says, or none of them is part of one and it says none.

        What is wanted for no job may go by any word but that of a gang of jobs.
        """
        if not want.jobs:
            return not want.gang or all(want.gang not in words for words in self._gangs.values())
        return all(want.gang in self._gangs.get(job, _SINGLE) for job in want.jobs)

    def pool_exists(self, pool: object) -> bool:
        """Whether the site has it."""
        return isinstance(pool, str) and pool in self._snapshot.pools

    def paid_for(self, want: Want) -> Want:
        """The want with the users and projects of its jobs, whatever a policy wrote there: limits go by them."""
        if not want.jobs:
            return want
        payers = self._payers.get(want.jobs)
        if payers is None:
            rows = [self._rows[job] for job in want.jobs if job in self._rows]
            users, accounts = dict.fromkeys(r.user for r in rows), dict.fromkeys(r.account for r in rows if r.account)
            payers = self._payers[want.jobs] = tuple(users), tuple(accounts)
        users_, accounts_ = payers
        same = want.users == users_ and want.accounts == accounts_
        return want if same else replace(want, users=users_, accounts=accounts_)

    def idle(self, claim_id: object) -> bool:
        """Whether it is a node that may be released."""
        claim = self._claims.get(claim_id) if isinstance(claim_id, str) else None
        if claim is None or claim.state not in (ClaimState.OPEN, ClaimState.READY):
            return False
        slurm = self._snapshot.slurm
        node = slurm.nodes.get(claim.slot) if isinstance(slurm, SlurmView) else None
        return node is not None and not node.busy

    @cached_property
    def _promised(self) -> Mapping[str, Mapping[str, int]]:
        return _machines(self._wants)

    @cached_property
    def _gangs(self) -> Mapping[str, set[str]]:
        found: dict[str, set[str]] = {}
        for want in self._wants:
            for job in want.jobs:
                found.setdefault(job, set()).add(want.gang)
        return found

    @cached_property
    def _payers(self) -> dict[_Words, tuple[_Words, _Words]]:
        return {want.jobs: (want.users, want.accounts) for want in self._wants}

    @cached_property
    def _rows(self) -> Mapping[str, Job]:
        slurm = self._snapshot.slurm
        return {job.id: job for job in slurm.jobs} if isinstance(slurm, SlurmView) else {}

    @cached_property
    def _claims(self) -> Mapping[str, Claim]:
        return {claim.id: claim for claim in self._snapshot.claims}


def answer(policy: Policy, snapshot: Snapshot, target: Target, bounds: Bounds) -> Target | PolicyFailed:
    """What a policy makes of the target, or how it failed."""
    name = type(policy).__name__
    try:
        name = str(policy.name)
        found = policy.evaluate(snapshot, target)
        # Inside as well: what it returned may be anything, down to None for the wants.
        fault = _fault(found, target, bounds, hard=bool(getattr(policy, "hard", False)))
        return PolicyFailed(name, fault) if fault else _noted(target, found, name, bounds)
    except PolicyBroken as error:
        return PolicyFailed(name, str(error))
    except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises becomes a result, and a HOLD
        return PolicyFailed(name, f"{type(error).__name__}: {error}")


def _fault(after: object, before: Target, bounds: Bounds, *, hard: bool) -> str:
    """How the answer of a policy breaks the contract; empty: it does not."""
    if not isinstance(after, Target):
        return f"it returned {type(after).__name__}, not a Target"
    if after.remarks[: len(before.remarks)] != before.remarks:
        return "it removed or changed remarks of others"
    if fault := _remark_fault(after.remarks[len(before.remarks) :]):
        return fault
    if any(not isinstance(line, BudgetLine) for line in after.budgets):
        return "it shows budgets that are none"
    if after.placed != before.placed or after.failed:
        return "it changed what is not a policy's to change (placed, failed)"
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


def _wants_fault(after: Target, before: Target, bounds: Bounds, *, hard: bool) -> str:
    known = {id(want) for want in before.wants}
    new = [want for want in after.wants if id(want) not in known]
    sound: set[tuple[str, int]] = set()
    for want in new:
        if fault := _want_fault(want, before.offers, bounds, sound):
            return fault
    same = {id(want) for want in after.wants}
    if not new and len(same) == len(after.wants):
        return ""
    if hard and (more := _grown(after.wants, before.wants)):
        return f"it is hard and must only take away, and wants more nodes of pool {more} than there were"
    lost = [want for want in before.wants if id(want) not in same]
    return "" if len(same) == len(after.wants) and _in_place_of(lost, new) else bounds.too_much(after.wants)


def _in_place_of(lost: Iterable[Want], new: Iterable[Want]) -> bool:
    """Whether each new one has the slots of a lost one, for no other jobs. Most policies change wants like that."""
    by_slots = {want.slots: want for want in lost if want.slots}
    for want in new:
        old = by_slots.pop(want.slots, None)
        if old is None or old.pool != want.pool or not (want.jobs is old.jobs or set(want.jobs) <= set(old.jobs)):
            return False
    return True


def _want_fault(
    want: object, allowed: Mapping[str, tuple[Offer, ...]], bounds: Bounds, sound: set[tuple[str, int]]
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
        words = getattr(want, name)
        if type(words) is not tuple or not _TEXT.issuperset(map(type, words)):
            return f"it wants nodes of pool {want.pool} with {words!r} for {name}, which is no tuple of texts"
    if type(want.reason) is not str or not want.reason or type(want.gang) is not str or type(want.alone) is not bool:
        wrong = (want.reason, want.gang, want.alone)
        return f"it wants nodes of pool {want.pool} with {wrong!r} for reason, gang and alone: a text, one, and a bool"
    if not bounds.gang_of(want):
        whose = f"jobs {', '.join(want.jobs)}" if want.jobs else "no job"
        return f"it wants nodes of pool {want.pool} for {whose} as the gang {want.gang!r}, which they are not"
    if (want.pool, id(want.offers)) not in sound:
        if not _within(want.offers, allowed.get(want.pool, ())):
            return f"it wants nodes of pool {want.pool} by offers that are not to be had"
        sound.add((want.pool, id(want.offers)))
    if type(want.left_out) is not tuple or not all(_left_out(out) for out in want.left_out):
        return f"it wants nodes of pool {want.pool} with {want.left_out!r} for left_out, which is no tuple of LeftOut"
    if want.slots and not len(want.slots) == want.nodes == len(bounds.slots(want.pool).intersection(want.slots)):
        return f"it wants {want.nodes} node(s) of pool {want.pool} on slots that do not match"
    if any(not isinstance(r, Reserve) or not (0 <= r.egress <= r.amount < _MOST) for r in want.reserved):
        return f"it reserves no amount of money for nodes of pool {want.pool}"
    return ""


_TEXT = frozenset({str})
_SINGLE = frozenset({""})
_MOST = 10**12
"""More money than this is none."""


def _left_out(out: object) -> bool:
    return isinstance(out, LeftOut) and _TEXT.issuperset((type(out.offer), type(out.by), type(out.reason)))


def _release_fault(after: Target, before: Target, bounds: Bounds) -> str:
    same = {id(release) for release in before.releases}
    known = {release.claim_id for release in before.releases}
    for release in after.releases:
        if id(release) in same:
            continue
        if not isinstance(release, Release):
            return f"it releases {type(release).__name__}, not a Release"
        if release.claim_id not in known and not bounds.idle(release.claim_id):
            return f"it releases {release.claim_id!r}, which is no idle node"
        if not _TEXT.issuperset((type(release.pool), type(release.reason))):
            return f"it releases {release.claim_id} with {release.reason!r} for a reason, which is no text"
    return ""


def _grown(after: Sequence[Want], before: Sequence[Want]) -> str:
    """A pool of which more is wanted than before, for whatever cause."""
    had = _by_kind(before)
    return next((kind[0] for kind, nodes in _by_kind(after).items() if nodes > had.get(kind, 0)), "")


def _by_kind(wants: Iterable[Want]) -> dict[tuple[str, Cause, str], int]:
    found: dict[tuple[str, Cause, str], int] = {}
    for want in wants:
        kind = want.pool, want.cause, want.gang
        found[kind] = found.get(kind, 0) + want.nodes
    return found


def _machines(wants: Iterable[Want]) -> dict[str, dict[str, int]]:
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


def _noted(before: Target, after: Target, by: str, bounds: Bounds) -> Target:
    """The target that a policy returned, with what it took away put down to it."""
    # A policy that builds its target anew knows nothing of these.
    after = replace(after, look_at=before.look_at, refused=before.refused)
    known = {id(want) for want in before.wants}
    same = {id(want) for want in after.wants}
    changed = [want for want in before.wants if id(want) not in same]
    if not changed and len(same) == len(known):
        return after
    by_slots = {want.slots: want for want in changed if want.slots}
    wants = tuple(
        want if id(want) in known else bounds.paid_for(_with_left_out(by_slots.get(want.slots), want, by))
        for want in after.wants
    )
    wanted = {job for want in wants for job in want.jobs}
    lost = [(want, tuple(j for j in want.jobs if j not in wanted)) for want in changed]
    refused = tuple(Refused(replace(want, jobs=jobs), by) for want, jobs in lost if jobs)
    return replace(after, wants=wants, refused=(*before.refused, *refused))


def _with_left_out(before: Want | None, after: Want, by: str) -> Want:
    if before is None or after.offers == before.offers:
        return after
    told = {out.offer for out in after.left_out}
    gone = {offer.id for offer in before.offers} - {offer.id for offer in after.offers} - told
    more = tuple(LeftOut(offer.id, by, "") for offer in before.offers if offer.id in gone)
    return replace(after, left_out=(*after.left_out, *more)) if more else after
