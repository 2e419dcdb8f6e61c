"""Places (provider, region, zone, type) where too many machines are bad, by the record of past claims.

A machine counts 1 on its day, and half as much for every half-life since; what is older than WINDOW half-lives counts
no more. A place is too bad where the bad ones weigh ``bad_weight`` or more, and are more than ``bad_share`` of all by
weight. Time changes no share, but the bad ones lose weight: then a machine is tried there again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from burstd.domain.cloud.offer import Offer
from burstd.domain.machine_outcomes import BadPlaceRule, MachineOutcome, PlaceRecord, Quality
from burstd.domain.plugins.policy import ExcludedOffer, Target
from burstd.domain.snapshot import Snapshot
from burstd.planner.offers.offers import bad_place_reason

WINDOW = 4
"""Half-lives; a machine that is older would count a sixteenth, or less."""


def place_records(outcomes: Mapping[MachineOutcome, int], today: int, rule: BadPlaceRule) -> dict[str, PlaceRecord]:
    """By place, what is known of those where a machine was bad. ``today``: days since 1970."""
    days = max(1, round(WINDOW * rule.half_life_d))
    counted = {outcome: number for outcome, number in outcomes.items() if today - outcome.day < days}
    proven = {_image(outcome) for outcome in counted if outcome.quality is Quality.GOOD}
    reached = {_provider_day(outcome) for outcome in counted if outcome.quality is Quality.GOOD}
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for outcome, number in counted.items():
        unsure = outcome.quality in (Quality.BAD_OR_IMAGE, Quality.UNREACHED)
        if unsure and _image(outcome) not in proven:
            continue
        if outcome.quality is Quality.UNREACHED and _provider_day(outcome) not in reached:
            continue
        bad = number if outcome.quality is not Quality.GOOD else 0
        weight = 0.5 ** (max(0, today - outcome.day) / rule.half_life_d)
        for index, amount in enumerate((number, bad, number * weight, bad * weight)):
            sums[outcome.place][index] += amount
    return {
        place: PlaceRecord(
            machines=int(machines),
            bad=int(bad),
            days=days,
            percent=round(100 * bad_weight / weight),
            too_bad=bad_weight >= rule.bad_weight and bad_weight > rule.bad_share * weight,
            bad_places=rule.bad_places,
        )
        for place, (machines, bad, weight, bad_weight) in sorted(sums.items())
        if bad
    }


def without_bad_places(snapshot: Snapshot, target: Target) -> Target:
    """Takes offers of avoided places out of wants that have others: one call to a cloud may start any of them."""
    if not any(record.avoided for record in snapshot.places.values()):
        return target
    known: dict[int, tuple[tuple[Offer, ...], tuple[ExcludedOffer, ...]]] = {}
    wants = []
    for want in target.wants:
        # Thousands of wants have the same offers.
        if id(want.offers) not in known:
            why = {offer.id: bad_place_reason(snapshot, offer) for offer in want.offers}
            good = tuple(offer for offer in want.offers if not why[offer.id])
            left_out = tuple(ExcludedOffer(id_, "health", reason) for id_, reason in why.items() if reason)
            known[id(want.offers)] = (good, left_out) if good else (want.offers, ())
        offers, left_out = known[id(want.offers)]
        if left_out:
            want = replace(want, offers=offers, excluded_offers=(*want.excluded_offers, *left_out))  # noqa: PLW2901
        wants.append(want)
    return replace(target, wants=tuple(wants))


def _provider_day(outcome: MachineOutcome) -> tuple[str, int]:
    return outcome.place.partition("/")[0], outcome.day


def _image(outcome: MachineOutcome) -> tuple[str, str]:
    return outcome.place.partition("/")[0], outcome.image
