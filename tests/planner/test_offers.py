"""Which offers may fill a pool, in which order, and how failures keep them from being tried."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import Breaker, CloudView, Snapshot, Unavailable
from burstd.planner.offers.offers import (
    BACKOFF,
    TOO_LATE,
    Covering,
    breaker_key,
    candidates,
    image_word,
    mended_by,
    next_breaker,
    usable_offers,
    why_none,
)

from .worlds import NOW, V100, offer, pool, world

GPU = Shape(16, 64_000, V100)


def usable(of: Pool, *offers: Any, **fields: Any) -> list[str]:
    return [o.instance_type for o in usable_offers(world(pools=(of,), offers=offers, **fields), of)]


def refusals(snapshot: Snapshot, of: Pool) -> dict[str, str]:
    return {j.subject: j.refused for j in candidates(snapshot, of) if j.refused}


def test_by_price_then_on_demand_then_rule_then_name() -> None:
    of = pool(rules=(OfferRule("sky", ("b",)), OfferRule("sky", markets=("spot", "on-demand"))))
    cheap = offer("cheap", "0.5", spot=True)
    offers = (offer("dear", "9"), offer("a"), offer("b"), offer("c"), offer("aspot", spot=True), cheap)
    assert usable(of, *offers) == ["cheap", "b", "a", "c", "aspot", "dear"]


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("another provider", {"provider": "sea"}),
        ("spot where none is allowed", {"spot": True}),
        ("another zone", {"zone": "c"}),
        ("another type", {"instance_type": "x1"}),
        ("too few CPUs", {"shape": Shape(8, 64_000, V100)}),
        ("too little memory", {"shape": Shape(16, 32_000, V100)}),
        ("too few GPUs", {"shape": Shape(16, 64_000, (Gres("gpu", "v100", 2),))}),
        ("other GPUs", {"shape": Shape(16, 64_000, (Gres("gpu", "a100", 8),))}),
    ],
)
def test_what_may_not_fill_a_pool(case: str, fields: dict[str, Any]) -> None:
    of = pool("gpu", shape=GPU, rules=(OfferRule("sky", ("p3*",), ("a", "b")),))
    good = offer("p3.8xlarge", shape=GPU)
    assert usable(of, good) == ["p3.8xlarge"]
    assert usable(of, replace(good, **fields)) == [], case


def test_larger_ones_and_typed_gpus_for_untyped_slots_will_do() -> None:
    of = pool("gpu", shape=Shape(4, 1000, (Gres("gpu", "", 2),)))
    assert usable(of, offer("p3", shape=GPU)) == ["p3"]


def test_each_refusal_has_its_reason() -> None:
    of = pool("gpu", shape=GPU, rules=(OfferRule("sky", ("p*",)), OfferRule("sea"), OfferRule("fog")))
    small, good = offer("p1"), offer("p3", shape=GPU)
    closed = Breaker(breaker_key(good, "capacity"), "capacity", 3, NOW + 240, "none left")
    snapshot = world(pools=(of,), offers=(small, good, offer("x")), breakers=(closed,))
    snapshot = replace(snapshot, clouds={**snapshot.clouds, "sea": CloudView(Unavailable("timed out", 0), ())})
    assert refusals(snapshot, of) == {
        "sky/r1/a/p1/on-demand": "smaller than the pool's slots: 4 CPUs of 16",
        "sky/r1/a/p3/on-demand": "failed 3 time(s) (capacity: none left), tried again in 240 s",
        "sky/r1/a/x/on-demand": "the pool's rules leave it out",
        "sea": "its offers could not be read: timed out",
        "fog": "the provider has not been read yet",
    }
    told = why_none(candidates(snapshot, of))
    assert told.endswith("and 1 more")
    assert "leave it out" not in told


def test_a_breaker_that_has_run_out_keeps_nothing() -> None:
    over = Breaker("sky/*/*/*/*", "auth", 1, NOW)
    assert usable(pool(), offer(), breakers=(over,)) == ["small"]
    assert usable(pool(), offer(), breakers=(replace(over, until=NOW + 1),)) == []


@pytest.mark.parametrize(
    ("cause", "key", "first"),
    [
        ("capacity", "sky/r1/a/small/on-demand", 60),
        ("quota", "sky/*/*/small/on-demand", 60),
        ("request", "sky/*/*/small/*", 300),
        ("image", "sky/*/*/small/*", 300),
        ("auth", "sky/*/*/*/*", 60),
        ("unavailable", "sky/*/*/*/*", 30),
        ("rate", "sky/*/*/*/*", 15),
        ("boot_timeout", "sky/r1/a/small/*", 120),
        ("proof", "sky/r1/a/small/*", 120),
    ],
)
def test_what_a_failure_closes_and_for_how_long(cause: str, key: str, first: float) -> None:
    breaker = next_breaker(None, offer(), cause, NOW, "oh")
    assert (breaker.key, breaker.cause, breaker.failures, breaker.until - NOW) == (key, cause, 1, first)
    again = next_breaker(breaker, offer(), cause, breaker.until)
    assert (again.failures, again.until - breaker.until) == (2, 2 * first)


def test_failures_that_were_under_way_together_count_once() -> None:
    first = next_breaker(None, offer(), "capacity", NOW)
    second = next_breaker(first, offer(), "capacity", NOW + 1)
    assert (second.failures, second.until) == (1, NOW + 61)


def test_an_old_failure_is_forgotten() -> None:
    old = Breaker("sky/r1/a/small/on-demand", "capacity", 7, NOW - 3601)
    assert next_breaker(old, offer(), "capacity", NOW).failures == 1


def test_the_provider_knows_best_how_long_to_wait() -> None:
    assert next_breaker(None, offer(), "rate", NOW, retry_after_s=90).until == NOW + 90


@given(st.sampled_from([*BACKOFF, "boot"]), st.integers(1, 60))
def test_the_wait_grows_to_its_bound_and_never_shrinks(cause: str, times: int) -> None:
    now, breaker, last = NOW, None, 0.0
    for _ in range(times):
        breaker = next_breaker(breaker, offer(), cause, now)
        assert last <= breaker.until - now <= 4 * 3600
        last, now = breaker.until - now, breaker.until


def test_success_ends_what_it_disproves() -> None:
    quota, capacity, boot = (next_breaker(None, offer(), cause, NOW) for cause in ("quota", "capacity", "boot"))
    elsewhere = next_breaker(None, offer(zone="b"), "capacity", NOW)
    breakers = (quota, capacity, boot, elsewhere)
    assert mended_by(breakers, offer(), ready=False) == (quota,)
    # Some clouds find later that they have none.
    assert mended_by(breakers, offer(), ready=True) == (capacity, boot)
    late = next_breaker(None, offer(), TOO_LATE, NOW)
    assert [mended_by((late,), offer(), ready=ready) for ready in (False, True)] == [(), ()]


_WORDS = [
    st.sampled_from(words)
    for words in (["sky", "sea"], ["r1", "r2"], ["a", "b", ""], ["x", "y%2Fz"], ["spot", "on-demand"])
]
_KEYS = st.tuples(*(st.one_of(st.just("*"), words) for words in _WORDS)).map("/".join) | st.sampled_from(
    ["", "a/*", "*"]
)


@given(st.lists(_KEYS, max_size=30), st.tuples(*_WORDS))
def test_what_covers_an_offer_is_found_as_if_each_were_looked_at(keys: list[str], words: tuple[str, ...]) -> None:
    provider, region, zone, kind, market = words
    kind = kind.replace("%2F", "/")
    one = offer(kind, provider=provider, region=region, zone=zone, spot=market == "spot")
    breakers = [Breaker(key, "quota", number, NOW) for number, key in enumerate(keys)]
    assert Covering(breakers).of(one) == list(mended_by(breakers, one, ready=False))


def test_names_with_slashes_stay_one_field() -> None:
    odd = offer("m1/large")
    breaker = next_breaker(None, odd, "capacity", NOW)
    assert usable(pool(), odd, offer(), breakers=(breaker,)) == ["small"]


def test_the_image_word_the_first_rule_that_allows_it() -> None:
    of = pool(rules=(OfferRule("sky", ("g*",), image="gpu"), OfferRule("sky", image="plain")))
    assert image_word(of, offer("g5")) == "gpu"
    assert image_word(of, offer("m5", price=str(Decimal(2)))) == "plain"
