"""What claims cost, and to whom it is put down. Decimals all the way; shares always add up to the whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from burstd.domain.billing.costs import cost_of, equal_shares
from burstd.domain.claim import Claim
from burstd.domain.volume import Volume

BillGrouping = Literal["user", "account", "job", "pool", "provider", "claim"]


@dataclass(frozen=True, slots=True)
class BillLine:
    """What one user (project, job, pool, provider, claim) owes, in one currency.

    ``seconds`` are machine seconds, shared as the cost is. ``key`` is empty for machines that were made for nobody
    in particular: floors, pins, and what Slurm started by itself.
    """

    key: str
    currency: str
    cost: Decimal
    """To a millionth."""
    seconds: float
    claims: int
    """Claims (of a line for volumes: volumes) that it has a part in."""
    volumes: bool = False
    """It is of volumes, not of machines; ``seconds`` are theirs."""
    overhead: bool = False
    """It is of machines that failed (``Claim.overhead``), which no user, project or job pays for."""


def cost_between(claim: Claim, since: float, until: float) -> tuple[Decimal, float]:
    """Cost, to a millionth of the currency, and billed seconds of a claim inside a window.

    Price of an hour times seconds / 3600; seconds to a thousandth, so that the result is the same on every machine.
    """
    if claim.billed_from is None:
        return Decimal(0), 0.0
    end = until if claim.billed_until is None else min(until, claim.billed_until)
    seconds = max(0.0, end - max(since, claim.billed_from))
    return cost_of(claim.offer.price, seconds), seconds


def volume_lines(volumes: Iterable[Volume], group: BillGrouping, since: float, until: float) -> tuple[BillLine, ...]:
    """The bill of volumes for a window, dearest first. Of a claim, job or pool there are none: their key is empty."""
    found: dict[tuple[str, str], BillLine] = {}
    for volume in volumes:
        if volume.billed_from is None:
            continue
        end = until if volume.billed_until is None else min(until, volume.billed_until)
        seconds = max(0.0, end - max(since, volume.billed_from))
        if not seconds:
            continue
        keys = {"user": volume.user, "account": volume.account, "provider": volume.provider}
        key = (keys.get(group, ""), volume.currency)
        line = found.get(key) or BillLine(*key, Decimal(0), 0.0, 0, volumes=True)
        found[key] = replace(
            line,
            cost=line.cost + cost_of(volume.price, seconds),
            seconds=line.seconds + seconds,
            claims=line.claims + 1,
        )
    return tuple(sorted(found.values(), key=lambda line: (-line.cost, line.key, line.currency)))


def bill_lines(claims: Iterable[Claim], group: BillGrouping, since: float, until: float) -> tuple[BillLine, ...]:
    """The bill for a window, dearest first.

    A claim that was made for several jobs or users is shared equally among them, however long each used it. What
    failed machines cost has lines of its own.
    """
    cost: dict[tuple[str, str, bool], Decimal] = defaultdict(Decimal)
    seconds: dict[tuple[str, str, bool], float] = defaultdict(float)
    number: dict[tuple[str, str, bool], int] = defaultdict(int)
    for claim in claims:
        total, billed_seconds = cost_between(claim, since, until)
        if not billed_seconds:
            continue
        payers = _payers(claim, group)
        for payer, share in zip(payers, equal_shares(total, len(payers)), strict=True):
            key = (payer, claim.offer.currency, claim.overhead)
            cost[key] += share
            seconds[key] += billed_seconds / len(payers)
            number[key] += 1
    lines = (BillLine(key[0], key[1], cost[key], seconds[key], number[key], overhead=key[2]) for key in cost)
    return tuple(sorted(lines, key=lambda line: (-line.cost, line.key, line.currency, line.overhead)))


def _payers(claim: Claim, group: BillGrouping) -> tuple[str, ...]:
    if claim.overhead and group in ("user", "account", "job"):
        return ("",)
    match group:
        case "user":
            return tuple(dict.fromkeys(claim.users)) or ("",)
        case "account":
            return tuple(dict.fromkeys(claim.accounts)) or ("",)
        case "job":
            return tuple(dict.fromkeys(claim.jobs)) or ("",)
        case "pool":
            return (claim.pool,)
        case "provider":
            return (claim.offer.provider,)
        case "claim":
            return (claim.id,)
