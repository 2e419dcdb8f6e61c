"""The interface of a policy, and the target that policies narrow or widen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from burstd.model.claim import Cause
from burstd.model.offer import Offer
from burstd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An offer that a policy took out of a want, and why."""

    offer: str
    """Offer.id."""
    by: str
    reason: str
    """A sentence for a person, without a full stop; empty: the policy did not say."""


@dataclass(frozen=True, slots=True)
class Want:
    """New machines for one pool: all of them or none.

    ``offers`` are the ways to get them, best first; a policy may take some away or put them in another order.
    ``jobs`` are the jobs that would start on them (ids as in Job.id), empty for a floor, a spare or a pin.
    """

    pool: str
    nodes: int
    cause: Cause
    reason: str
    offers: tuple[Offer, ...]
    jobs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    gang: str = ""
    """Set where the nodes must be opened together: the job's id. Wants of one gang stand or fall together."""
    slots: tuple[str, ...] = ()
    """The slots to fill, one a node. A policy that adds a want leaves it empty; the end of the chain fills it in."""
    accounts: tuple[str, ...] = ()
    """The projects (Slurm accounts) of its jobs."""
    left_out: tuple[LeftOut, ...] = ()
    """Offers that policies have taken out of it (see ``narrowed``)."""


@dataclass(frozen=True, slots=True)
class Release:
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
    """One word: ``wait``, ``boot``, ``covered``, ``impossible``, ``drop``, ``keep``, ``release``, ``add``."""
    reason: str
    """A sentence for a person, without a full stop."""


def dropped(want: Want, by: str, reason: str) -> tuple[Remark, ...]:
    """The remarks that go with taking a want away: one for the pool, one for each job that now waits."""
    return (
        Remark(by, f"pool:{want.pool}", "drop", f"{want.nodes} node(s) ({want.reason}): {reason}"),
        *(Remark(by, f"job:{job}", "wait", reason) for job in want.jobs),
    )


def narrowed(want: Want, by: str, refusal: Callable[[Offer], str]) -> Want:
    """The want with those of its offers for which ``refusal`` has no reason; it may be left without any.

    The others are on its record, so that ``burstctl explain`` can tell why they were not taken.
    """
    reasons = [(offer, refusal(offer)) for offer in want.offers]
    out = tuple(LeftOut(offer.id, by, reason) for offer, reason in reasons if reason)
    if not out:
        return want
    offers = tuple(offer for offer, reason in reasons if not reason)
    return replace(want, offers=offers, left_out=(*want.left_out, *out))


def units(wants: Iterable[Want]) -> tuple[tuple[Want, ...], ...]:
    """The wants in their order, those of one gang together: what stands or falls as a whole."""
    found: dict[str, list[Want]] = {}
    for index, want in enumerate(wants):
        found.setdefault(want.gang or f"#{index}", []).append(want)
    return tuple(tuple(unit) for unit in found.values())


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """A policy that raised or broke its contract: nothing is made and nothing released until it is mended."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A want that a policy took away, as it was before. The chain notes it, not the policy."""

    want: Want
    by: str


@dataclass(frozen=True, slots=True)
class Target:
    """What is to come: machines wanted, idle ones to release, and the remarks that led there."""

    wants: tuple[Want, ...] = ()
    releases: tuple[Release, ...] = ()
    remarks: tuple[Remark, ...] = ()
    offers: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """For each pool the offers that may fill it now, best first: cheapest, without those behind a breaker."""
    placed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes and slots, there already or on their way, that each pending job (or gang) was given in the plan."""
    failed: tuple[PolicyFailed, ...] = ()
    """Policies that failed; where there is one, ``wants`` and ``releases`` are empty."""
    look_at: float = float("inf")
    """When the next job begins to count that does not count yet, in burstd's time. Not a policy's to change."""
    refused: tuple[Refused, ...] = ()
    """Wants that policies took away. Not a policy's to change."""

    def with_remark(self, by: str, subject: str, verdict: str, reason: str) -> Target:
        """The same with one remark more."""
        return replace(self, remarks=(*self.remarks, Remark(by, subject, verdict, reason)))


class Policy(Protocol):
    """One link of the chain. Pure: no clock, no I/O, the same answer for the same arguments.

    Constructed with its own settings by the plug-in of its name (see docs/policies.md). One that has an attribute
    ``hard`` which is true (a budget, a limit) is asked a second time after all others and after the administrator's
    pins, so that nothing that they add passes it by; it must only take away.
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
