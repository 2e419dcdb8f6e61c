"""Placement, then the policies in their order, then the administrator's pins: what is to come, in one Target.

A policy is foreign code. What it returns is checked; one that raises or breaks its contract stops the chain, and then
nothing is made and nothing released (HOLD) until it is mended: no uncontrolled bursting, no lost nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from burstd.core.demand import DemandMemory, demand
from burstd.core.images import roll
from burstd.core.keeping import KEEP_S, keep, kept
from burstd.core.outlook import outlooks
from burstd.core.pins import pin
from burstd.core.placement import PlacementMemory, place
from burstd.core.tidy import asked_by_slurm
from burstd.model.claim import Cause, ClaimState
from burstd.model.errors import PolicyBroken
from burstd.model.money import BudgetLine, Reserve
from burstd.model.offer import Offer
from burstd.model.outlook import Outlooks
from burstd.model.policy import LeftOut, Policy, PolicyFailed, Refused, Remark, Target, Want, dropped
from burstd.model.snapshot import SlurmView, Snapshot

AllowedOffers = Mapping[str, tuple[Offer, ...]]


class Memory:
    """What a decision leaves for the next, so that this one has less to do. One thread at a time may use it."""

    def __init__(self) -> None:
        self.demand = DemandMemory()
        self.placement = PlacementMemory()


def make_target(
    snapshot: Snapshot,
    policies: Sequence[Policy],
    keep_s: float = KEEP_S,
    spot_interruptions: int = 0,
    memory: Memory | None = None,
) -> Target:
    """What is wanted and what may go now. Pure; each want has its slots named and at least one offer.

    ``spot_interruptions`` is Tuning's. ``memory`` is that of the last decision: the answer is the same without it.

    No policy lets a node go that holds output of a job (keeping.py); an administrator's pin may have it closed.
    Idle nodes of an older image go after that, one at a time (images.py).

    Where Slurm cannot be read, a policy failed or the snapshot is paused, nothing is wanted and nothing released.
    """
    if not isinstance(snapshot.outlook, Outlooks):
        snapshot = replace(snapshot, outlook=outlooks(snapshot))
    memory = memory or Memory()
    target = place(snapshot, demand(snapshot, memory.demand), spot_interruptions, memory.placement)
    if not isinstance(snapshot.slurm, SlurmView):
        return target
    gangs, promised = _gang_sizes(target), _promised(target)
    target = _ask(policies, snapshot, target, promised)
    if target.failed:
        return target
    target = _whole_gangs(pin(snapshot, keep(snapshot, target, keep_s), kept(snapshot, keep_s)), gangs)
    target = roll(snapshot, target, keep_s)
    by_slurm = asked_by_slurm(snapshot, snapshot.slurm, target)
    target = replace(target, wants=(*by_slurm, *target.wants))
    # What others have added, an administrator's pin as well, must not get past a budget.
    target = _agreed([p for p in policies if getattr(p, "hard", False)], snapshot, target, promised)
    if target.failed:
        return target
    awaited = {slot for want in by_slurm for slot in want.slots}
    free = {
        name: [*slots, *(slot for slot in snapshot.pools[name].slots if slot in awaited)] if awaited else slots
        for name, slots in memory.placement.free().items()
    }
    target = _name_slots(free, _whole_gangs(target, gangs), awaited)
    return _hold(target, "hold", snapshot.paused) if snapshot.paused else target


_Promised = Mapping[str, AbstractSet[str]]
"""By pool, the jobs for which placement wants machines there: no policy may want any for others."""


def _promised(target: Target) -> _Promised:
    found: dict[str, set[str]] = {}
    for want in target.wants:
        found.setdefault(want.pool, set()).update(want.jobs)
    return found


def _ask(policies: Iterable[Policy], snapshot: Snapshot, target: Target, promised: _Promised) -> Target:
    """The target after these policies, or held where one failed."""
    for policy in policies:
        found = _evaluate(policy, snapshot, target, promised)
        if isinstance(found, PolicyFailed):
            held = _hold(target, found.name, f"the policy failed: {found.error}")
            return replace(held, failed=(found,))
        target = _noted(target, found, str(policy.name))
    return target


def _agreed(hard: Sequence[Policy], snapshot: Snapshot, target: Target, promised: _Promised) -> Target:
    """The target that every hard policy has seen and left as it is: none that comes later can undo what one took."""
    content = 0
    for _ in range(_ROUNDS):
        for policy in hard:
            before = target.wants
            target = _ask((policy,), snapshot, target, promised)
            if target.failed:
                return target
            content = content + 1 if target.wants == before else 0
            if content == len(hard):
                return target
    if not hard:
        return target
    why = "what each of the hard policies wants is changed by another for ever"
    names = ", ".join(str(policy.name) for policy in hard)
    return replace(_hold(target, "chain", why), failed=(PolicyFailed(names, why),))


_ROUNDS = 6
"""The first may change much, the second what the change of one means to the others."""


def _noted(before: Target, after: Target, by: str) -> Target:
    """The target that a policy returned, with what it took away put down to it."""
    # A policy that builds its target anew knows nothing of these.
    after = replace(after, look_at=before.look_at, refused=before.refused)
    same = {id(want) for want in after.wants}
    changed = [want for want in before.wants if id(want) not in same]
    if not changed:
        return after
    wanted = {job for want in after.wants for job in want.jobs}
    lost = [(want, tuple(j for j in want.jobs if j not in wanted)) for want in changed]
    refused = tuple(Refused(replace(want, jobs=jobs), by) for want, jobs in lost if jobs)
    by_slots = {want.slots: want for want in changed if want.slots}
    wants = tuple(
        _with_left_out(by_slots[want.slots], want, by) if want.slots in by_slots else want for want in after.wants
    )
    return replace(after, wants=wants, refused=(*before.refused, *refused))


def _with_left_out(before: Want, after: Want, by: str) -> Want:
    if after.offers == before.offers:
        return after
    told = {out.offer for out in after.left_out}
    gone = {offer.id for offer in before.offers} - {offer.id for offer in after.offers} - told
    more = tuple(LeftOut(offer.id, by, "") for offer in before.offers if offer.id in gone)
    return replace(after, left_out=(*after.left_out, *more)) if more else after


def _evaluate(policy: Policy, snapshot: Snapshot, target: Target, promised: _Promised) -> Target | PolicyFailed:
    name = str(getattr(policy, "name", type(policy).__name__))
    try:
        found = policy.evaluate(snapshot, target)
        # Inside as well: what it returned may be anything, down to None for the wants.
        fault = _fault(found, target, snapshot, promised)
    except PolicyBroken as error:
        return PolicyFailed(name, str(error))
    except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises becomes a result, and a HOLD
        return PolicyFailed(name, f"{type(error).__name__}: {error}")
    return PolicyFailed(name, fault) if fault else found


def _fault(after: object, before: Target, snapshot: Snapshot, promised: _Promised) -> str:
    """How the answer of a policy breaks the contract; empty: it does not."""
    if not isinstance(after, Target):
        return f"it returned {type(after).__name__}, not a Target"
    if after.remarks[: len(before.remarks)] != before.remarks:
        return "it removed or changed remarks of others"
    strange = next((r for r in after.remarks[len(before.remarks) :] if not isinstance(r, Remark)), None)
    if strange is not None:
        return f"it remarks {type(strange).__name__}, not a Remark"
    if any(not isinstance(line, BudgetLine) for line in after.budgets):
        return "it shows budgets that are none"
    if after.placed != before.placed or after.failed:
        return "it changed what is not a policy's to change (placed, failed)"
    for pool, offers in after.offers.items():
        if pool not in before.offers or not _within(offers, before.offers[pool]):
            return f"it allows offers for pool {pool!r} that are not to be had"
    checked = {id(want) for want in before.wants}
    for want in after.wants:
        fault = _want_fault(want, before.offers, snapshot, promised) if id(want) not in checked else ""
        if fault:
            return fault
    known = {release.claim_id for release in before.releases}
    for release in after.releases:
        if release.claim_id not in known and not _idle(release.claim_id, snapshot):
            return f"it releases {release.claim_id!r}, which is no idle node"
    return ""


def _want_fault(want: object, allowed: AllowedOffers, snapshot: Snapshot, promised: _Promised) -> str:
    if not isinstance(want, Want):
        return f"it wants {type(want).__name__}, not a Want"
    pool = snapshot.pools.get(want.pool)
    if pool is None:
        return f"it wants nodes of pool {want.pool!r}, which does not exist"
    if not isinstance(want.cause, Cause):
        return f"it wants nodes of pool {want.pool} for the cause {want.cause!r}, which is no Cause"
    if want.nodes < 1:
        return f"it wants {want.nodes} nodes of pool {want.pool}"
    if not _within(want.offers, allowed.get(want.pool, ())):
        return f"it wants nodes of pool {want.pool} by offers that are not to be had"
    strange = set(want.jobs) - promised.get(want.pool, frozenset())
    if strange:
        return f"it wants nodes of pool {want.pool} for job {min(strange)}, which can not, or need not, start there"
    if want.slots and not len(want.slots) == want.nodes == len(set(want.slots) & set(pool.slots)):
        return f"it wants {want.nodes} node(s) of pool {want.pool} on slots that do not match"
    if any(not isinstance(r, Reserve) or not (0 <= r.egress <= r.amount < _MOST) for r in want.reserved):
        return f"it reserves no amount of money for nodes of pool {want.pool}"
    return ""


_MOST = 10**12
"""More money than this is none."""


def _within(some: tuple[Offer, ...], allowed: tuple[Offer, ...]) -> bool:
    if some is allowed:
        return True
    # Nearly always they are the very same; to compare thousands of wants with dozens of offers each takes seconds.
    same = set(map(id, allowed))
    return all(id(offer) in same or offer in allowed for offer in some)


def _idle(claim_id: str, snapshot: Snapshot) -> bool:
    claim = next((c for c in snapshot.claims if c.id == claim_id), None)
    if claim is None or claim.state not in (ClaimState.OPEN, ClaimState.READY):
        return False
    node = snapshot.slurm.nodes.get(claim.slot) if isinstance(snapshot.slurm, SlurmView) else None
    return node is not None and not node.busy


def _hold(target: Target, by: str, why: str) -> Target:
    """Nothing wanted, nothing released."""
    remarks = [remark for want in target.wants for remark in dropped(want, by, why)]
    remarks += [Remark(by, f"claim:{release.claim_id}", "keep", why) for release in target.releases]
    remarks.append(Remark(by, "plan", "hold", why))
    return replace(target, wants=(), releases=(), remarks=(*target.remarks, *remarks))


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
    why = "a part of its gang was taken away"
    remarks = [r for want in target.wants if want.gang in torn for r in dropped(want, "chain", why)]
    wants = tuple(want for want in target.wants if want.gang not in torn)
    return replace(target, wants=wants, remarks=(*target.remarks, *remarks))


def _name_slots(there: Mapping[str, Sequence[str]], target: Target, awaited: AbstractSet[str]) -> Target:
    """Gives each want its slots; what finds none, or has no offer, is dropped. A gang stands or falls as a whole.

    ``there``: the free ones of each pool. ``awaited`` are slots that Slurm powers up by itself.
    """
    if not awaited and _all_named(there, target.wants):
        return target
    free = {name: dict.fromkeys(some) for name, some in there.items()}
    # Slots that placement named for jobs are theirs; wants of policies take what is left.
    spoken_for = awaited | {slot for want in target.wants for slot in want.slots}
    units: dict[str, list[int]] = {}
    for index, want in enumerate(target.wants):
        units.setdefault(want.gang or f"#{index}", []).append(index)
    named: dict[int, Want] = {}
    remarks: list[Remark] = []
    for indexes in units.values():
        taken: list[tuple[str, str]] = []
        some: dict[int, Want] = {}
        fault = ""
        for index in indexes:
            want = target.wants[index]
            slots = want.slots or tuple(s for s in free[want.pool] if s not in spoken_for)[: want.nodes]
            if not want.offers:
                fault = f"no offer for pool {want.pool} can be used now"
            elif len(slots) < want.nodes or any(slot not in free[want.pool] for slot in slots):
                fault = f"pool {want.pool} has no free slot left for it"
            else:
                for slot in slots:
                    del free[want.pool][slot]
                    taken.append((want.pool, slot))
                some[index] = want if want.slots else replace(want, slots=slots)
        if not fault:
            named |= some
            continue
        for pool, slot in taken:
            free[pool][slot] = None
        for index in indexes:
            remarks += dropped(target.wants[index], "chain", fault)
    wants = tuple(named[index] for index in sorted(named))
    return replace(target, wants=wants, remarks=(*target.remarks, *remarks))


def _all_named(free: Mapping[str, Sequence[str]], wants: tuple[Want, ...]) -> bool:
    """True where all have offers, and free slots of their own: most often none but placement has made any."""
    if not all(want.offers and len(want.slots) == want.nodes for want in wants):
        return False
    named = [slot for want in wants for slot in want.slots]
    return len(set(named)) == len(named) and all(
        set(free[pool]).issuperset([slot for want in wants if want.pool == pool for slot in want.slots])
        for pool in {want.pool for want in wants}
    )
