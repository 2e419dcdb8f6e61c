"""Which offers may fill a pool, in which order, and how failures keep them from being tried."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Hardware, OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CircuitBreaker, CloudView, Snapshot, Unavailable
from burstd.planner.offers.mended import breakers_mended_by_reload, breakers_of_place
from burstd.planner.offers.offers import (
    BACKOFF,
    TOO_LATE,
    BreakerIndex,
    alternative_offers,
    breaker_key,
    breakers_closed_by,
    configured_image,
    evaluate_offers,
    free_slots_reason,
    next_breaker,
    no_offer_reason,
    usable_offers,
)

from .worlds import NOW, V100, claim, make_snapshot, offer, pool

GPU = Shape(16, 64_000, V100)


def usable(of: Pool, *offers: Any, **fields: Any) -> list[str]:
    return [o.instance_type for o in usable_offers(make_snapshot(pools=(of,), offers=offers, **fields), of)]


def refusals(snapshot: Snapshot, of: Pool) -> dict[str, str]:
    return {j.subject: j.rejected_because for j in evaluate_offers(snapshot, of) if j.rejected_because}


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
    closed = CircuitBreaker(breaker_key(good, "capacity"), "capacity", 3, NOW + 240, "none left")
    snapshot = make_snapshot(pools=(of,), offers=(small, good, offer("x")), breakers=(closed,))
    snapshot = replace(snapshot, clouds={**snapshot.clouds, "sea": CloudView(Unavailable("timed out", 0), ())})
    assert refusals(snapshot, of) == {
        "sky/r1/a/p1/on-demand": "smaller than the pool's slots: 4 CPUs of 16, 8000 MiB of 64000, 0 gpu:v100 of 4",
        "sky/r1/a/p3/on-demand": "failed 3 time(s) (capacity: none left), next attempt in 240 s",
        "sky/r1/a/x/on-demand": "excluded by the pool's rules",
        "sea": "cannot read its offers: timed out",
        "fog": "the provider has not answered yet",
    }
    reasons = no_offer_reason(evaluate_offers(snapshot, of))
    assert reasons.endswith("and 1 more")
    assert "excluded" not in reasons


def test_a_breaker_that_has_run_out_keeps_nothing() -> None:
    over = CircuitBreaker("sky/*/*/*/*", "auth", 1, NOW)
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
        ("validation", "sky/r1/a/small/*", 120),
        ("fabric_test", "sky/r1/a/small/*/lo%2Fng", 120),
        ("gpu_health", "sky/r1/a/small/*", 120),
    ],
)
def test_what_a_failure_closes_and_for_how_long(cause: str, key: str, first: float) -> None:
    breaker = next_breaker(None, offer(), cause, NOW, "oh", pool="lo/ng")
    assert (breaker.key, breaker.cause, breaker.failures, breaker.until - NOW) == (key, cause, 1, first)
    again = next_breaker(breaker, offer(), cause, breaker.until)
    assert (again.failures, again.until - breaker.until) == (2, 2 * first)


def test_a_fault_of_a_pool_s_own_settings_closes_the_offer_for_that_pool_only() -> None:
    failed = next_breaker(None, offer(), "fabric_test", NOW, "there is no ib_write_bw", pool="long")
    assert usable(pool("long"), offer(), breakers=(failed,)) == []
    assert usable(pool("cpu"), offer(), breakers=(failed,)) == ["small"]
    assert breakers_closed_by((failed,), offer(), ready=True, pool="cpu") == ()
    assert breakers_closed_by((failed,), offer(), ready=True, pool="long") == (failed,)


@pytest.mark.parametrize(
    ("pools", "checks", "closed"),
    [
        (set(), False, []),
        ({"long"}, False, ["fabric_test", "reuse"]),
        ({"cpu"}, False, []),
        (set(), True, ["fabric_test", "munge"]),
    ],
)
def test_what_a_reload_may_have_mended(pools: set[str], checks: bool, closed: list[str]) -> None:
    causes = ("fabric_test", "munge", "capacity", "auth", "image", "health", "node_down")
    breakers = [next_breaker(None, offer(), cause, NOW, pool="long") for cause in causes]
    breakers += [CircuitBreaker("reuse/long", "reuse", 1, NOW), CircuitBreaker("sky/image/v1", "version", 1, NOW)]
    assert [b.cause for b in breakers_mended_by_reload(breakers, pools, checks_changed=checks)] == closed


@pytest.mark.parametrize(
    ("zone", "kind", "closed"),
    [
        ("", "", ["capacity", "auth", "quota", "fabric_test"]),
        ("a", "", ["capacity", "fabric_test"]),
        ("a", "small", ["capacity", "fabric_test"]),
        ("", "small", ["capacity", "quota", "fabric_test"]),
        ("b", "", []),
        ("", "large", []),
    ],
)
def test_breakers_by_the_name_of_their_place(zone: str, kind: str, closed: list[str]) -> None:
    causes = ("capacity", "auth", "quota", "fabric_test")
    breakers = [next_breaker(None, offer(), cause, NOW, pool="long") for cause in causes]
    breakers += [CircuitBreaker("reuse/sky", "reuse", 1, NOW), CircuitBreaker("sky/image/v1", "version", 1, NOW)]
    breakers += [next_breaker(None, offer(provider="sea"), "capacity", NOW)]
    assert [b.cause for b in breakers_of_place(breakers, "sky", zone, kind)] == closed


def test_failures_that_were_under_way_together_count_once() -> None:
    first = next_breaker(None, offer(), "capacity", NOW)
    second = next_breaker(first, offer(), "capacity", NOW + 1)
    assert (second.failures, second.until) == (1, NOW + 61)


def test_an_old_failure_is_forgotten() -> None:
    old = CircuitBreaker("sky/r1/a/small/on-demand", "capacity", 7, NOW - 3601)
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
    assert breakers_closed_by(breakers, offer(), ready=False) == (quota,)
    # Some clouds find later that they have none.
    assert breakers_closed_by(breakers, offer(), ready=True) == (capacity, boot)
    late = next_breaker(None, offer(), TOO_LATE, NOW)
    assert [breakers_closed_by((late,), offer(), ready=ready) for ready in (False, True)] == [(), ()]


_KEY_FIELDS = [
    st.sampled_from(words)
    for words in (["sky", "sea"], ["r1", "r2"], ["a", "b", ""], ["x", "y%2Fz"], ["spot", "on-demand"])
]
_KEYS = st.tuples(
    st.tuples(*(st.one_of(st.just("*"), words) for words in _KEY_FIELDS)).map("/".join),
    st.sampled_from(["", "/gpu", "/cpu"]),
).map("".join) | st.sampled_from(["", "a/*", "*"])


@given(st.lists(_KEYS, max_size=30), st.tuples(*_KEY_FIELDS), st.sampled_from(["", "gpu"]))
def test_what_covers_an_offer_is_found_as_if_each_were_looked_at(
    keys: list[str], words: tuple[str, ...], of: str
) -> None:
    provider, region, zone, kind, market = words
    kind = kind.replace("%2F", "/")
    one = offer(kind, provider=provider, region=region, zone=zone, spot=market == "spot")
    breakers = [CircuitBreaker(key, "quota", number, NOW) for number, key in enumerate(keys)]
    found = BreakerIndex(breakers).breakers_for(one, of)
    assert found == list(breakers_closed_by(breakers, one, ready=False, pool=of))
    assert not [b for b in found if b.key.endswith("/cpu")]


def test_names_with_slashes_stay_one_field() -> None:
    odd = offer("m1/large")
    breaker = next_breaker(None, odd, "capacity", NOW)
    assert usable(pool(), odd, offer(), breakers=(breaker,)) == ["small"]


def test_the_image_word_the_first_rule_that_allows_it() -> None:
    of = pool(rules=(OfferRule("sky", ("g*",), image="gpu"), OfferRule("sky", image="plain")))
    assert configured_image(of, offer("g5")) == "gpu"
    assert configured_image(of, offer("m5", price=str(Decimal(2)))) == "plain"


def fabric(word: str, placement: str = "", **fields: Any) -> Any:
    return offer(f"with-{word or 'unknown'}", hardware=Hardware(fabric=word, placement=placement), **fields)


def test_a_pool_with_a_fabric_takes_what_has_it_or_cannot_tell() -> None:
    of = pool(fabric="efa")
    offers = (fabric("efa"), fabric("none"), fabric("ib"), fabric(""))
    snapshot = make_snapshot(pools=(of,), offers=offers)
    assert {o.instance_type for o in usable_offers(snapshot, of)} == {"with-efa", "with-unknown"}
    assert refusals(snapshot, of) == {
        fabric("none").id: "without efa, which the pool's nodes have",
        fabric("ib").id: "without efa, which the pool's nodes have; it has ib",
    }
    assert len(usable_offers(snapshot, pool())) == 4


def test_nodes_with_a_fabric_are_in_one_place() -> None:
    """Slurm may start a job on any of a pool's nodes, and no fabric reaches into another zone."""
    of, here, there = pool(fabric="ib"), fabric("ib", zone="a"), fabric("ib", zone="b")
    coming = claim("cpu1", S.BOOTING, offer=there)
    snapshot = make_snapshot(pools=(of,), offers=(here, there), claims=(coming,))
    assert usable_offers(snapshot, of) == (there,)
    assert refusals(snapshot, of) == {here.id: "the pool has nodes, with their fabric, in sky/r1/b"}
    failed = replace(coming, state=S.FAILED)
    assert len(usable_offers(make_snapshot(pools=(of,), offers=(here, there), claims=(failed,)), of)) == 2
    assert alternative_offers(of, (here, there)) == ()
    assert alternative_offers(pool(), (here, there)) == (there,)


@pytest.mark.parametrize(
    ("drained_by", "text"),
    [
        ({}, "1 in use, launching or terminating, 2 drained, held or not powered down"),
        (
            {"cpu1": "root", "cpu2": "root"},
            ("1 in use, launching or terminating, 1 held by root (burstctl node release cpu2), "
            "1 drained, held or not powered down"),
        ),
        ({"cpu2": "root", "cpu3": "root"},
         "1 in use, launching or terminating, 2 held by root (burstctl node release NODE)"),
    ],
)  # fmt: skip
def test_who_has_the_slots_of_a_pool(drained_by: dict[str, str], text: str) -> None:
    snapshot = make_snapshot(
        claims=(claim("cpu1", S.IN_SERVICE),), drained_slots=frozenset({"cpu2", "cpu3"}), drained_by=drained_by
    )
    assert free_slots_reason(snapshot, snapshot.pools["cpu"], 1) == text
