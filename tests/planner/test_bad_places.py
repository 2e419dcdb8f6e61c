"""Places where too many machines were bad: what is counted, for how long, and what becomes of their offers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.machine_outcomes import (
    DAY_S,
    BadPlaceRule,
    BadPlaces,
    MachineOutcome,
    PlaceRecord,
    Quality,
    machine_outcome,
)
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import ExcludedOffer
from burstd.domain.snapshot import CircuitBreaker, Snapshot
from burstd.planner.explain.explain import explain_job
from burstd.planner.offers.bad_places import place_records
from burstd.planner.offers.offers import breaker_key, usable_offers
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, make_snapshot, offer, pool

PLACE = "sky/r1/a/small"
GOOD, BAD, UNSURE, UNREACHED = Quality.GOOD, Quality.BAD, Quality.BAD_OR_IMAGE, Quality.UNREACHED
TODAY = 20_000


def found_of(of: Claim) -> tuple[MachineOutcome, float] | None:
    return machine_outcome(
        of.offer.place, spot=of.offer.spot, image=of.image, state=of.state, error=of.error, created=of.created,
        since=of.since, in_service_from=of.in_service_from, reused_from=of.reused_from,
    )  # fmt: skip


def outcome_of(of: Claim) -> Quality | None:
    found = found_of(of)
    return found[0].quality if found else None


@pytest.mark.parametrize(
    ("state", "error", "was_open", "quality"),
    [
        (S.BOOTING, "", False, None),
        (S.IN_SERVICE, "", True, GOOD),
        (S.GONE, "", True, GOOD),
        (S.GONE, "lost", True, GOOD),
        (S.GONE, "interrupted", True, GOOD),
        (S.GONE, "", False, None),
        (S.FAILED, "gpu_health", False, BAD),
        (S.GONE, "gpu_clocks", False, BAD),
        (S.GONE, "node_down", False, BAD),
        (S.GONE, "health", True, BAD),
        (S.TERMINATING, "boot_timeout", False, UNREACHED),
        (S.TERMINATING, "boot", False, UNSURE),
        (S.GONE, "gpus", False, UNSURE),
        (S.GONE, "ended", False, UNSURE),
        *((S.GONE, error, False, None) for error in (
            "capacity", "quota", "rate", "auth", "denied", "unavailable", "request", "image", "unknown", "unwanted",
            "interrupted", "too_late", "slurm", "munge", "users", "clock", "hostkey", "ssh", "driver", "pool",
            "validation_timeout", "gpu_tools",
        )),
    ],
)  # fmt: skip
def test_what_a_claim_says_of_its_machine(state: S, error: str, was_open: bool, quality: Quality | None) -> None:
    made = claim("cpu1", state, error=error, in_service_from=NOW if was_open else None)
    assert outcome_of(made) is quality


def test_a_spot_machine_that_was_taken_back_says_nothing() -> None:
    assert outcome_of(claim("cpu1", S.GONE, error="ended", offer=offer(spot=True))) is None


@pytest.mark.parametrize(
    ("error", "quality"), [("", GOOD), ("validation_timeout", GOOD), ("mig", GOOD), ("gpu_health", BAD)]
)
def test_a_machine_that_was_handed_over_was_a_node(error: str, quality: Quality) -> None:
    assert outcome_of(claim("cpu1", S.GONE, error=error, reused_from="gpu1")) is quality


def test_a_machine_counts_from_its_claim_and_one_that_failed_at_work_from_its_end() -> None:
    for error, day in (("gpu_health", 0), ("health", 30)):
        found = found_of(claim("cpu1", S.GONE, error=error, created=0.0, since=30 * DAY_S))
        assert found is not None
        assert found[0].day == day


def record(*groups: tuple[Quality, int, int], image: str = "", rule: BadPlaceRule | None = None) -> PlaceRecord | None:
    """Of one place: so many machines of a quality, of so many days ago."""
    counts: Counter[MachineOutcome] = Counter()
    for quality, number, age in groups:
        counts[MachineOutcome(PLACE, image, TODAY - age, quality)] += number
    return place_records(counts, TODAY, rule or BadPlaceRule()).get(PLACE)


@pytest.mark.parametrize(
    ("groups", "too_bad", "text"),
    [
        ([(BAD, 1, 0)], False, "1 of 1 machines bad in 56 days, 100 % by weight"),
        ([(BAD, 2, 0)], True, "2 of 2 machines bad in 56 days, 100 % by weight"),
        # Two of yesterday weigh a little less than two.
        ([(BAD, 2, 1)], False, "2 of 2 machines bad in 56 days, 100 % by weight"),
        ([(BAD, 4, 0), (GOOD, 5, 0)], True, "4 of 9 machines bad in 56 days, 44 % by weight"),
        ([(BAD, 3, 0), (GOOD, 7, 0)], False, "3 of 10 machines bad in 56 days, 30 % by weight"),
        # Good ones of long ago count less.
        ([(BAD, 3, 0), (GOOD, 7, 14)], True, "3 of 10 machines bad in 56 days, 46 % by weight"),
        # The way back: the share stays, the weight goes.
        ([(BAD, 4, 14), (GOOD, 5, 14)], True, "4 of 9 machines bad in 56 days, 44 % by weight"),
        ([(BAD, 4, 15), (GOOD, 5, 15)], False, "4 of 9 machines bad in 56 days, 44 % by weight"),
        ([(BAD, 100, 56)], None, ""),
        ([(GOOD, 100, 0)], None, ""),
        # An image of which there was no node may be at fault itself.
        ([(UNSURE, 9, 0)], None, ""),
        ([(UNSURE, 9, 0), (GOOD, 1, 3)], True, "9 of 10 machines bad in 56 days, 91 % by weight"),
    ],
)
def test_when_a_place_is_too_bad(groups: list[Any], too_bad: bool | None, text: str) -> None:
    found = record(*groups)
    assert (found and found.too_bad, str(found or "")) == (too_bad, text)


def test_an_image_proves_itself_in_another_place_of_its_provider() -> None:
    counts = {
        MachineOutcome("sky/r1/a/small", "v2", TODAY, UNSURE): 3,
        MachineOutcome("sky/r1/b/small", "v2", TODAY, GOOD): 1,
        MachineOutcome("sea/r1/b/small", "v2", TODAY, UNSURE): 3,
        MachineOutcome("sky/r1/c/small", "v3", TODAY, UNSURE): 3,
    }
    assert list(place_records(counts, TODAY, BadPlaceRule())) == [PLACE]


def test_machines_that_were_not_reached_count_on_days_on_which_another_of_the_provider_was() -> None:
    lost = MachineOutcome(PLACE, "v2", TODAY, UNREACHED)
    node = MachineOutcome("sky/r1/b/small", "v2", TODAY, GOOD)
    for other, places in (
        (node, [PLACE]),
        (replace(node, day=TODAY - 1), []),
        (replace(node, place="sea/r1/b/small"), []),
        (replace(node, image="v1"), []),
    ):
        assert list(place_records({lost: 3, other: 1}, TODAY, BadPlaceRule())) == places


def test_the_site_says_how_many_are_too_many() -> None:
    groups = (BAD, 3, 7), (GOOD, 7, 7)
    assert record(*groups, rule=BadPlaceRule(bad_share=0.29)).too_bad  # type: ignore[union-attr]
    assert not record(*groups, rule=BadPlaceRule(bad_share=0.29, bad_weight=3)).too_bad  # type: ignore[union-attr]
    assert not record(*groups, rule=BadPlaceRule(half_life_d=7, bad_share=0.29)).too_bad  # type: ignore[union-attr]
    assert record(*groups, rule=BadPlaceRule(half_life_d=1)) is None


BAD_RECORD = PlaceRecord(9, 4, 56, 44, too_bad=True)
CHEAP, OTHER, DEAR = offer(price="1"), offer(price="2", zone="b"), offer(price="3", zone="c")
WHY = "4 of 9 machines bad in 56 days, 44 % by weight"


def snapshot(*offers: Any, rule: BadPlaces = BadPlaces.AVOID, **fields: Any) -> Snapshot:
    places = {PLACE: replace(BAD_RECORD, bad_places=rule)}
    return make_snapshot(job(), offers=offers or (CHEAP, OTHER, DEAR), places=places, **fields)


def test_other_offers_come_first_and_only_they_are_launched() -> None:
    seen = snapshot()
    assert [o.zone for o in usable_offers(seen, pool())] == ["b", "c", "a"]
    found = make_target(seen, ())
    [want] = found.wants
    assert [o.zone for o in want.offers] == ["b", "c"]
    assert want.excluded_offers == (ExcludedOffer(CHEAP.id, "health", WHY),)
    [explained] = explain_job(seen, Plan((), found, found.remarks), "1").pool_candidates
    assert {c.offer.zone: (c.chosen, c.rejected_by, c.rejected_because) for c in explained.candidates if c.offer} == {
        "a": (False, "health", WHY), "b": (True, "", ""), "c": (False, "", ""),
    }  # fmt: skip


def test_a_spot_machine_of_the_place_is_no_better() -> None:
    spot = offer(price="0.1", spot=True)
    assert [o.zone for o in usable_offers(snapshot(CHEAP, OTHER, spot), pool())] == ["b", "a", "a"]


@pytest.mark.parametrize("why", ["alone", "the others have failed"])
def test_without_another_offer_the_place_is_used(why: str) -> None:
    offers = (CHEAP,) if why == "alone" else (CHEAP, OTHER)
    closed = () if why == "alone" else (CircuitBreaker(breaker_key(OTHER, "capacity"), "capacity", 1, NOW + 60),)
    seen = snapshot(*offers, breakers=closed)
    found = make_target(seen, ())
    assert [o.zone for o in found.wants[0].offers] == ["a"]
    [explained] = explain_job(seen, Plan((), found, found.remarks), "1").pool_candidates
    assert [(c.chosen, c.note) for c in explained.candidates if c.offer == CHEAP] == [(True, WHY)]


def test_a_policy_that_takes_the_others_away_leaves_the_place() -> None:
    class Thrift:
        name = "thrift"

        def evaluate(self, _: Snapshot, target: Any) -> Any:
            cheap = [replace(w, offers=tuple(o for o in w.offers if o.price < Decimal(2))) for w in target.wants]
            return replace(target, wants=tuple(cheap))

    assert [o.zone for o in make_target(snapshot(), (Thrift(),)).wants[0].offers] == ["a"]


def test_the_site_may_refuse_such_places_or_only_show_them() -> None:
    alone = snapshot(CHEAP, rule=BadPlaces.REFUSE)
    assert make_target(alone, ()).wants == ()
    assert usable_offers(alone, pool()) == ()
    remark = next(r for r in make_target(alone, ()).remarks if r.subject == "job:1")
    assert f"{WHY} (bad_places = 'refuse')" in remark.reason
    assert [o.zone for o in make_target(snapshot(rule=BadPlaces.SHOW), ()).wants[0].offers] == ["a", "b", "c"]
