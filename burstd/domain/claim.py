"""A claim: one life of one machine for one slot. Its id is the idempotency token, the tag and the key of the bill."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from math import inf

from burstd.domain.cloud.offer import Offer
from burstd.domain.health import HEALTH


class ClaimState(StrEnum):
    """The life of a claim; which move may follow which is in TRANSITIONS."""

    PLANNED = "planned"
    LAUNCHING = "launching"
    BOOTING = "booting"
    VALIDATING = "validating"
    READY = "ready"
    IN_SERVICE = "in_service"
    DRAINING = "draining"
    FAILED = "failed"
    LOST = "lost"
    TERMINATING = "terminating"
    GONE = "gone"


_S = ClaimState
TRANSITIONS: dict[ClaimState, frozenset[ClaimState]] = {
    _S.PLANNED: frozenset({_S.LAUNCHING, _S.GONE}),
    # An answer that was lost ends in BOOTING (found by its tag), LAUNCHING again (not found), or FAILED.
    _S.LAUNCHING: frozenset({_S.BOOTING, _S.FAILED, _S.TERMINATING, _S.LOST}),
    _S.BOOTING: frozenset({_S.VALIDATING, _S.FAILED, _S.TERMINATING, _S.LOST}),
    _S.VALIDATING: frozenset({_S.READY, _S.BOOTING, _S.FAILED, _S.TERMINATING, _S.LOST}),
    # A Slurm that was started without its state has the node as powered down: it is validated again.
    _S.READY: frozenset({_S.IN_SERVICE, _S.VALIDATING, _S.DRAINING, _S.FAILED, _S.LOST}),
    _S.IN_SERVICE: frozenset({_S.VALIDATING, _S.DRAINING, _S.LOST}),
    # A node that is wanted again before it was switched off goes back to work.
    # VALIDATING: its machine is handed over to another pool, and is to be another node.
    _S.DRAINING: frozenset({_S.READY, _S.VALIDATING, _S.TERMINATING, _S.LOST}),
    _S.FAILED: frozenset({_S.TERMINATING}),
    _S.LOST: frozenset({_S.TERMINATING, _S.GONE}),
    _S.TERMINATING: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}

LIVE = frozenset(ClaimState) - {ClaimState.GONE}
"""States in which a machine may exist or is owed a look."""
USABLE = frozenset({_S.PLANNED, _S.LAUNCHING, _S.BOOTING, _S.VALIDATING, _S.READY, _S.IN_SERVICE})
"""States in which the claim is, or may become, a node that jobs run on."""


_NOT_FAILED = frozenset({"", "unwanted", "too_late"})
"""Errors of claims whose machine may have been well: those whom it was made for did not wait, or could not pay."""


class Cause(StrEnum):
    """Why a claim was made."""

    DEMAND = "demand"
    """Pending jobs."""
    FLOOR = "floor"
    """A policy's minimum or spare nodes."""
    PIN = "pin"
    """``burstctl scale``."""
    SLURM = "slurm"
    """Slurm called ResumeProgram by itself."""
    STORAGE = "storage"
    """Jobs' data: the storage node of a store, which is no node of Slurm's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who machines are for. Empty for a floor, a spare or a pin."""

    jobs: tuple[str, ...] = ()
    """Ids as in Job.id, in order."""
    users: tuple[str, ...] = ()
    """Of the jobs."""
    accounts: tuple[str, ...] = ()
    """Of the jobs: projects (Slurm accounts)."""
    gang: str = ""
    """The job whose nodes enter service together; empty: none. Wants of one gang stand or fall together."""


@dataclass(frozen=True, slots=True)
class Claim(Tenancy):
    """One life of one machine. Times in seconds since 1970 in burstd's own time; None: not yet."""

    id: str
    cluster: str
    pool: str
    slot: str
    offer: Offer
    cause: Cause
    state: ClaimState
    created: float
    since: float
    """When it came into its state."""
    reason: str = ""
    """Why it came into its state."""
    image: str = ""
    batch: str = ""
    """``LaunchRequest.batch``, once the request is on record."""
    instance_id: str = ""
    address: str = ""
    launch_called: float | None = None
    """When the cloud was last asked to launch it."""
    billed_from: float | None = None
    billed_until: float | None = None
    in_service_from: float | None = None
    """When it first came into service."""
    attempts: int = 0
    """Times that the cloud was asked to launch it."""
    reserved: Decimal = Decimal(0)
    """The most that it may cost, in the offer's currency, as a budget reckoned it before its launch; 0: no budget."""
    egress: Decimal = Decimal(0)
    """Of ``reserved``, what sending its jobs' output home may cost."""
    dedicated_by_policy: bool = False
    """A policy wants it for its own jobs only: others, which had better wait on premises, would take it."""
    reused_from: str = ""
    """The slot whose node its machine was before it was handed over; empty: it was launched for this one."""
    error: str = ""
    """Cause of failure as a short word (``capacity``, ``quota``, ``boot_timeout``, ``validation`` ...); empty: none."""

    @property
    def being_handed_over(self) -> bool:
        """Its machine was another node, and no job has been on it since."""
        return bool(self.reused_from) and self.in_service_from is None

    @property
    def dedicated(self) -> bool:
        """No other jobs than its own may start on it; where a budget pays for it, only while what is reserved lasts."""
        return bool(self.reserved or self.dedicated_by_policy) and bool(self.jobs)

    @property
    def spot_interrupted(self) -> bool:
        """Its cloud ended a spot machine, however that showed: no failure of its own."""
        return self.error == "interrupted" or (self.offer.spot and self.error in ("lost", "ended"))

    @property
    def failed(self) -> bool:
        """Its machine had a fault, and was not just taken back by a cloud that sells it as spot."""
        return self.error not in _NOT_FAILED and not self.spot_interrupted

    @property
    def overhead(self) -> bool:
        """Its machine failed: it never came into service for a fault of its own, or had one at work (``HEALTH``)."""
        was_node = self.in_service_from is not None or bool(self.reused_from)
        return self.error == HEALTH or (not was_node and self.error not in _NOT_FAILED)

    def budget_covers(self, seconds: float, now: float) -> bool:
        """Whether what is reserved for it is enough for so many seconds more; without a budget anything is."""
        if not self.reserved:
            return True
        return self.cost(now) + self.offer.price * Decimal(seconds) / 3600 <= self.reserved - self.egress

    def budget_left_s(self, now: float) -> float:
        """For how many seconds more what is reserved for it is enough; without a budget for ever."""
        if not self.reserved or not self.offer.price:
            return inf
        return float(max((self.reserved - self.egress - self.cost(now)) * 3600 / self.offer.price, Decimal(0)))

    def cost(self, now: float) -> Decimal:
        """What it has cost by ``now``, in the offer's currency: price of an hour times hours."""
        if self.billed_from is None:
            return Decimal(0)
        seconds = max(0.0, (self.billed_until if self.billed_until is not None else now) - self.billed_from)
        return self.offer.price * Decimal(seconds) / 3600


def billed_now(claims: Iterable[Claim], still_billed: Collection[str]) -> Iterator[Claim]:
    """Those that cost now. ``still_billed``: ids of claims that are paid for after their end."""
    return (c for c in claims if c.billed_from is not None and (c.billed_until is None or c.id in still_billed))
