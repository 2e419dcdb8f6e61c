"""The answer, ready to be shown: the JSON, and the figures of the table, the plots and the page, are this."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict

from burstd.domain.billing.site_cost import NodeGroup
from burstd.simulate.buy_or_rent.alternatives import (
    AddedReplay,
    Alternative,
    alternatives_of,
    break_even,
    burst_alone,
    cheapest,
    cloud_hour,
)
from burstd.simulate.buy_or_rent.prices import BOUGHT, Prices, Way
from burstd.simulate.report.report import ReportWindow
from burstd.simulate.report.wording import format_amount, format_share
from burstd.simulate.study import PreparedStudy


class _ReportModel(BaseModel):
    model_config = ConfigDict(frozen=True)


class WayReport(_ReportModel):
    """What an hour of one GPU (or CPU) costs, added in one way."""

    name: str
    owned: Decimal
    """Used or not."""
    marginal: Decimal | None
    """What use adds; null: it is not known, and is in ``owned``."""
    break_even: float | None
    """The part of its hours that must be used in place of clouds' for it to pay; null: it never does."""


class AlternativeReport(_ReportModel):
    """One alternative: ``alternatives.Alternative``. Lengths of time in seconds, null: jobs never started or ended."""

    added: int
    way: str
    """Empty: none are added."""
    burst: bool
    cheapest: bool
    """Of those that let jobs wait no longer than bursting alone."""
    jobs: int
    unfinished: int
    p50_wait_s: float | None
    p90_wait_s: float | None
    mean_completion_s: float | None
    utilisation: float | None
    paid_hours: float
    replaced: float | None
    cost: Decimal
    marginal: Decimal | None
    cloud_cost: Decimal
    """The clouds' part of both."""
    used_hours: float
    cost_per_used: Decimal | None
    marginal_per_used: Decimal | None

    @property
    def name(self) -> str:
        """How jobs get what the site lacks: ``no cloud``, ``burst``, ``bought``, ``bought + burst``."""
        if not self.way:
            return "burst" if self.burst else "no cloud"
        return f"{self.way} + burst" if self.burst else self.way


class BuyOrRentReport(_ReportModel):
    """All of it."""

    version: Literal[1] = 1
    """It changes where a key goes or changes its meaning; new keys may come at any time."""
    basis: Literal["simulated"] = "simulated"
    """All figures are of replays of the trace."""
    title: str
    trace: str
    site: str
    cloud: str
    chain: str
    window: ReportWindow
    unit: str
    """What is added: GPUs or CPUs."""
    currency: str
    seed: int
    cloud_hour: Decimal | None
    """What an hour came to in which a job ran on a cloud's GPU (or CPU); null: none did."""
    ways: tuple[WayReport, ...]
    alternatives: tuple[AlternativeReport, ...]
    verdict: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def days(self) -> str:
        """Length of the window: ``14 days``."""
        days = (self.window.end - self.window.start).total_seconds() / 86400
        return f"{format_amount(days)} {'day' if days == 1 else 'days'}"

    def json_text(self) -> str:
        """For programs; ends with a line end."""
        return self.model_dump_json(indent=1) + "\n"


def build_report(
    prepared: PreparedStudy, chain: str, group: NodeGroup | None, prices: Prices, replays: Sequence[AddedReplay]
) -> BuyOrRentReport:
    """The answer by these replays. ``group``: whose nodes are bought."""
    window, alone = prepared.workload.window, burst_alone(replays)
    found = alternatives_of(replays, prices, window)
    best, cloud = cheapest(found), cloud_hour(alone, prices.cloud_worth)
    report = BuyOrRentReport(
        title=prepared.title,
        trace=prepared.trace_text,
        site=prepared.site_text,
        cloud=prepared.cloud_text,
        chain=chain,
        window=ReportWindow(start=_date(window.start), end=_date(window.end)),
        unit=prepared.unit_word,
        currency=prices.currency,
        seed=prepared.scenario.seed,
        cloud_hour=_per_hour(cloud),
        ways=tuple(_way(way, cloud) for way in prices.ways),
        alternatives=tuple(_alternative(one, prices, one is best) for one in found),
        verdict=(),
        notes=tuple(filter(None, _notes(prepared, group, prices, alone))),
    )
    return report.model_copy(update={"verdict": tuple(_verdict(report))})


def _way(way: Way, cloud: Decimal | None) -> WayReport:
    hour, share = way.hour, break_even(way.hour, cloud)
    return WayReport(
        name=way.name, owned=hour.owned.quantize(_SMALL), marginal=_per_hour(hour.marginal),
        break_even=None if share is None else round(float(share), 4),
    )  # fmt: skip


def _alternative(one: Alternative, prices: Prices, best: bool) -> AlternativeReport:
    replay = one.replay
    return AlternativeReport(
        added=replay.units, way=one.way.name if one.way else "", burst=replay.burst, cheapest=best, jobs=replay.jobs,
        unfinished=replay.unfinished, p50_wait_s=_finite(replay.p50_wait_s), p90_wait_s=_finite(replay.p90_wait_s),
        mean_completion_s=_finite(replay.mean_completion_s), utilisation=_finite(one.utilisation),
        paid_hours=round(one.paid_h, 4), replaced=_finite(one.replaced), cost=one.cost.quantize(_CENT),
        marginal=None if one.marginal is None else one.marginal.quantize(_CENT),
        cloud_cost=(replay.cloud_cost * prices.cloud_worth).quantize(_CENT), used_hours=round(one.used_h, 4),
        cost_per_used=_per_hour(one.cost_per_used), marginal_per_used=_per_hour(one.marginal_per_used),
    )  # fmt: skip


_CENT, _SMALL = Decimal("0.01"), Decimal("0.0001")


def _per_hour(amount: Decimal | None) -> Decimal | None:
    return None if amount is None else amount.quantize(_SMALL)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _verdict(report: BuyOrRentReport) -> Iterator[str]:
    """When each way pays, how far the trace would have come to it, and what was the cheapest."""
    unit, currency, cloud = report.unit, report.currency, report.cloud_hour
    for way in report.ways:
        verb = "Buying" if way.name == BOUGHT else f"Renting by {way.name}"
        added = f" and {hour_text(way.marginal)} more in use" if way.marginal else ""
        price = f"an hour costs {hour_text(way.owned)} {currency} used or not{added}"
        if cloud is None:
            yield f"{verb} has nothing to replace: no job ran in a cloud; {price}."
        elif way.break_even is None:
            yield f"{verb} never pays: {price}, and a used hour in the cloud {hour_text(cloud)}."
        else:
            yield (
                f"{verb} pays when about {format_share(way.break_even)} or more of the hours of the added {unit} are"
                f" used in place of the cloud's: {price}, a used hour in the cloud {hour_text(cloud)}."
            )
    if cloud is not None:
        first = report.ways[0].name
        mixed = [one for one in report.alternatives if one.burst and one.way == first]
        if mixed:
            yield f"So much of their hours would have been used in its place: {', '.join(_share_texts(mixed))}."
    best = next(one for one in report.alternatives if one.cheapest)
    alone = next(one for one in report.alternatives if one.burst and not one.added)
    lead = "Cheapest with waits (median, 90 %) not longer than with bursting alone"
    if best is alone:
        yield f"{lead}: bursting alone, {money_text(alone.cost)} {currency} in {report.days}."
    else:
        marginal = "" if best.marginal is None else f" (marginal {money_text(best.marginal)})"
        yield (
            f"{lead}: {best.added} more, {best.name}, {money_text(best.cost)} {currency}{marginal} in {report.days};"
            f" bursting alone costs {money_text(alone.cost)}."
        )


def _share_texts(mixed: Sequence[AlternativeReport]) -> Iterator[str]:
    """Of all that are added, and of those beyond the number before."""
    added, paid, used = 0, 0.0, 0.0
    for one in mixed:
        now = (one.replaced or 0.0) * one.paid_hours
        share = (now - used) / (one.paid_hours - paid)
        last = f" ({format_share(share)} of the last {one.added - added})" if added else ""
        yield f"{format_share(one.replaced or 0.0)} with {one.added} more{last}"
        added, paid, used = one.added, one.paid_hours, now


def hour_text(amount: Decimal) -> str:
    """Of an hour: two digits after the point, or as many as tell something."""
    places = min(4, max(2, 1 - amount.adjusted())) if amount else 2
    return f"{amount:,.{places}f}"


def money_text(amount: Decimal) -> str:
    """``12,345.60``."""
    return f"{amount:,.2f}"


def _notes(prepared: PreparedStudy, group: NodeGroup | None, prices: Prices, alone: AddedReplay) -> Iterator[str]:
    unit, size = prepared.unit_word, prepared.scenario.node_size
    yield "all figures are simulated from the trace, at list prices"
    yield f"added {unit} are nodes of the site, paid for in all hours of the window and then while its jobs use them"
    yield (
        f"nodes that the site has already are in no cost, nor is their energy, also where added {unit} save some of it;"
        f" {unit} of a commitment cost no energy"
    )
    if group is not None:
        per = "each" if group.hour.per_gpu else f"the price of a node is of {size} {unit}"
        yield f"bought {unit} cost what [site.cost.{group.name}] says: {per}"
        if group.hour.marginal is None:
            yield f"[site.cost.{group.name}] does not say what an hour of use adds: the marginal cost is not known"
    yield prices.note
    left_out = len(prepared.workload.jobs) - alone.jobs
    if left_out:
        yield f"{left_out} jobs that neither the site of now nor a cloud can run are left out"
    yield from prepared.notes
