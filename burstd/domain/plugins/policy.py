"""The interface of a policy, and the target that policies narrow or widen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from burstd.domain.billing.costs import BudgetLine, Reserve
from burstd.domain.claim import Cause, Tenancy
from burstd.domain.cloud.offer import Offer
from burstd.domain.project import Share
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.snapshot import SlurmView, Snapshot


@dataclass(frozen=True, slots=True)
class ExcludedOffer:
    """An offer that a policy took out of a want, and why."""

    offer: str
    """Offer.id."""
    by: str
    reason: str
    """A sentence for a person, without a full stop; empty: the policy did not say."""


@dataclass(frozen=True, slots=True)
class Want(Tenancy):
    """New machines for one pool: all of them or none.

    ``offers`` are the ways to get them, best first; a policy may take some away or put them in another order.
    ``jobs`` are the jobs that would start on them.
    """

    pool: str
    nodes: int
    cause: Cause
    reason: str
    offers: tuple[Offer, ...]
    _: KW_ONLY
    slots: tuple[str, ...] = ()
    """The slots to fill, one a node. A policy that adds a want leaves it empty; the end of the chain fills it in."""
    excluded_offers: tuple[ExcludedOffer, ...] = ()
    """Offers that policies have taken out of it (``without_refused_offers``)."""
    reserved: tuple[Reserve, ...] = ()
    """What is held back for one of its machines, by offer; empty: no budget pays for it. A budget's to set."""
    dedicated: bool = False
    """For its jobs only: others would take the machines and had better wait on premises. They end with these jobs."""


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """An idle node that nothing needs: its claim is to be closed, unless a policy keeps it."""

    claim_id: str
    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What was decided about a subject, by whom, and why. The record that ``explain`` reads."""

    by: str
    """``demand``, ``placement``, or the policy's name."""
    subject: str
    """``job:123``, ``pool:gpu``, ``claim:...``."""
    verdict: str
    """One word: ``wait``, ``boot``, ``covered``, ``impossible``, ``drop``, ``keep``, ``release``, ``add``; ``warn`` of
    what is said beside the last word."""
    reason: str
    """A sentence for a person, without a full stop."""


def remarks_on_dropped_want(want: Want, by: str, reason: str) -> tuple[Remark, ...]:
    """The remarks that go with taking a want away: one for the pool, one for each job that now waits."""
    return (
        Remark(by, f"pool:{want.pool}", "drop", f"{want.nodes} node(s) ({want.reason}): {reason}"),
        *(Remark(by, f"job:{job}", "wait", reason) for job in want.jobs),
    )


def remarks_on_dropped_wants(wants: Iterable[tuple[Want, str]], by: str) -> tuple[Remark, ...]:
    """The remarks that go with taking many wants away, each for its reason: what is alike is said once."""
    dropped_wants = tuple(wants)
    jobs: dict[str, str] = {}
    for want, reason in dropped_wants:
        for job in want.jobs:
            jobs.setdefault(job, reason)
    return (
        *_remarks_by_pool(dropped_wants, by),
        *(Remark(by, f"job:{job}", "wait", reason) for job, reason in jobs.items()),
    )


def _remarks_by_pool(gone: Iterable[tuple[Want, str]], by: str) -> tuple[Remark, ...]:
    nodes: dict[tuple[str, str, str], int] = {}
    for want, reason in gone:
        key = (want.pool, want.reason, reason)
        nodes[key] = nodes.get(key, 0) + want.nodes
    return tuple(Remark(by, f"pool:{p}", "drop", f"{n} node(s) ({of}): {why}") for (p, of, why), n in nodes.items())


def without_refused_offers(want: Want, by: str, refusal: Callable[[Offer], str]) -> Want:
    """The want with those of its offers for which ``refusal`` has no reason; it may be left without any.

    The others are on its record, so that ``burstctl explain`` can tell why they were not taken.
    """
    reasons = [(offer, refusal(offer)) for offer in want.offers]
    out = tuple(ExcludedOffer(offer.id, by, reason) for offer, reason in reasons if reason)
    if not out:
        return want
    offers = tuple(offer for offer, reason in reasons if not reason)
    return replace(want, offers=offers, excluded_offers=(*want.excluded_offers, *out))


def gang_units(wants: Iterable[Want]) -> tuple[tuple[Want, ...], ...]:
    """The wants in their order, those of one gang together: what stands or falls as a whole."""
    found: dict[str, list[Want]] = {}
    for index, want in enumerate(wants):
        found.setdefault(want.gang or f"#{index}", []).append(want)
    return tuple(tuple(unit) for unit in found.values())


def without_offers(
    target: Target,
    by: str,
    refusal: Callable[[Want, Offer], str],
    grouping_key: Callable[[Want], Hashable] | None = None,
) -> Target:
    """The target without the offers against which ``refusal(want, offer)`` has a reason, and with remarks on that.

    A want that is left with no offer at all is taken away, and its gang with it. Of wants whose
    ``grouping_key(want)`` and offers are equal only the first is asked about: with thousands of wants that saves
    seconds.
    """
    wants: list[Want] = []
    out: list[tuple[Want, str]] = []
    refusals: dict[tuple[str, str], list[str]] = {}
    known: dict[tuple[int, Hashable], Want] = {}

    def narrow(want: Want) -> Want:
        if grouping_key is None:
            return without_refused_offers(want, by, partial(refusal, want))
        key = (id(want.offers), grouping_key(want))
        if key not in known:
            # Without what others left out of it, so that it serves for all.
            known[key] = without_refused_offers(replace(want, excluded_offers=()), by, partial(refusal, want))
        like = known[key]
        return (
            replace(want, offers=like.offers, excluded_offers=(*want.excluded_offers, *like.excluded_offers))
            if like.excluded_offers
            else want
        )

    for unit in gang_units(target.wants):
        left = [narrow(want) for want in unit]
        why = [_refusal_reasons(old, new) for old, new in zip(unit, left, strict=True)]
        stuck = next((i for i, new in enumerate(left) if why[i] and not new.offers), None)
        if stuck is not None:
            reason = f"no offer left in pool {unit[stuck].pool}: {why[stuck]}"
            out += [(want, reason) for want in unit]
            continue
        for want, reason in zip(left, why, strict=True):
            if reason:
                refusals.setdefault((want.pool, reason), []).append(want.reason)
        wants += left
    remarks = remarks_on_dropped_wants(out, by) + tuple(
        Remark(by, f"pool:{pool}", "drop", f"offers excluded for {_first_names(whose)}: {reason}")
        for (pool, reason), whose in refusals.items()
    )
    return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if remarks else target


def without_jobs(target: Target, by: str, snapshot: Snapshot, refusal: Callable[[Want, Job], str]) -> Target:
    """The target without machines for the jobs against which ``refusal(want, job)`` has a reason, and with remarks.

    Where other jobs share the machine it is started for these; a gang stands or falls as a whole.
    """
    asked = {job for want in target.wants for job in want.jobs}
    if not asked or not isinstance(snapshot.slurm, SlurmView):
        return target
    jobs_by_id = {job.id: job for job in snapshot.slurm.jobs if job.id in asked}
    wants: list[Want] = []
    dropped_wants: list[tuple[Want, str]] = []
    refusals: dict[str, str] = {}
    for unit in gang_units(target.wants):
        out = {
            job: reason
            for want in unit
            for job in want.jobs
            if job in jobs_by_id and (reason := refusal(want, jobs_by_id[job]))
        }  # fmt: skip
        first = unit[0]
        if not out:
            wants += unit
        elif len(unit) > 1 or first.gang or len(out) == len(first.jobs):
            reason = next(iter(out.values()))
            dropped_wants += [(want, reason) for want in unit]
            jobs = dict.fromkeys(job for want in unit for job in want.jobs)
            refusals |= {job: out.get(job, reason) for job in jobs if job not in refusals}
        else:
            wants.append(_for_others(first, out, jobs_by_id))
            refusals |= {job: reason for job, reason in out.items() if job not in refusals}
    remarks = (
        *_remarks_by_pool(dropped_wants, by),
        *(Remark(by, f"job:{job}", "wait", reason) for job, reason in refusals.items()),
    )
    return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if remarks else target


def _for_others(want: Want, out: Mapping[str, str], jobs_by_id: Mapping[str, Job]) -> Want:
    """The want for those of its jobs that are not out."""
    jobs = tuple(job for job in want.jobs if job not in out)
    left = [jobs_by_id[job] for job in jobs if job in jobs_by_id]
    users, accounts = {job.user for job in left}, {job.account for job in left}
    return replace(
        want,
        jobs=jobs,
        users=tuple(user for user in want.users if user in users),
        accounts=tuple(account for account in want.accounts if account in accounts),
        reason=f"{want.reason}, without {_first_names(tuple(out))}",
    )


def _refusal_reasons(old: Want, new: Want, most: int = 3) -> str:
    """The reasons against the offers that went from one to the other."""
    reasons = tuple(dict.fromkeys(out.reason for out in new.excluded_offers[len(old.excluded_offers) :]))
    return "; ".join(reasons[:most]) + (f" and {len(reasons) - most} more" if len(reasons) > most else "")


def _first_names(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """A policy that raised or broke its contract: nothing is made and nothing released until it is mended."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class DroppedWant:
    """A want that a policy took away, as it was before. The chain notes it, not the policy."""

    want: Want
    by: str


@dataclass(frozen=True, slots=True)
class Target:
    """What is to come: machines wanted, idle ones to release, and the remarks that led there."""

    wants: tuple[Want, ...] = ()
    releases: tuple[NodeRelease, ...] = ()
    remarks: tuple[Remark, ...] = ()
    offers: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """For each pool the offers that may fill it now, best first: cheapest, without those behind a breaker."""
    placements: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes and slots, there already or on their way, that each pending job (or gang) was given in the plan."""
    failed_policies: tuple[PolicyFailed, ...] = ()
    """Policies that failed; where there is one, ``wants`` and ``releases`` are empty."""
    wake_at: float = float("inf")
    """When the next job begins to count that does not count yet, in burstd's time. Not a policy's to change."""
    dropped_wants: tuple[DroppedWant, ...] = ()
    """Wants that policies took away. Not a policy's to change."""

    budgets: tuple[BudgetLine, ...] = ()
    """How budgets stand, where a policy keeps any: what ``burstctl bill`` shows of them."""
    job_updates: Mapping[str, JobUpdate] = field(default_factory=dict)
    """What Slurm is to be told of pending jobs, by their ids, where it does not have it yet."""
    misplaced_jobs: Mapping[str, str] = field(default_factory=dict)
    """Jobs that have just started where they must not run, by their ids, and why: they are to begin anew elsewhere."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """By project, how it stands. Not a policy's to change."""
    reusable: tuple[NodeRelease, ...] = ()
    """Idle nodes that a policy keeps only because other jobs may come: another pool may have their machines."""

    def with_remark(self, by: str, subject: str, verdict: str, reason: str) -> Target:
        """The same with one remark more."""
        return replace(self, remarks=(*self.remarks, Remark(by, subject, verdict, reason)))


class Policy(Protocol):
    """One link of the chain. Pure: no clock, no I/O, the same answer for the same arguments.

    Constructed with its own settings by the plug-in of its name (see docs/policies.md). One that has an attribute
    ``hard`` which is true (a budget, a limit) is asked a second time after all others and after the administrator's
    pins, so that nothing that they add passes it by; it must only take away: what it adds is a failure.

    One that has an attribute ``last`` (a whole number; without it 0) is asked after all those of which it is less,
    wherever the settings name it. Limits have 1 and throttle 2: they count machines, and must not count what another
    policy takes away afterwards, or what they refused for it would never come.

    One that has an attribute ``payers`` (a budget) names who pays apart: under ``user`` and ``account`` the names of
    users and accounts, ``*`` for all. Jobs that others of them pay are never given a new machine together.
    """

    @property
    def name(self) -> str:
        """The word by which remarks and settings name it."""
        ...

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Narrows or widens the target; each change comes with a remark."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyPlugin:
    """What an entry point of the group ``burstd.policies`` names: how to make a policy from its settings."""

    name: str
    settings: type[Any]
    """A pydantic model that refuses unknown keys; its fields are the keys of ``[policies.NAME]``."""
    make: Callable[[Any], Policy]
