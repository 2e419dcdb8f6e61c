"""What a person is told about the offers for a job: every kind of refusal, by whom, and what each would cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import policies.broker
from burstd.domain.billing.rates import Rates
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, Target, remarks_on_dropped_want, without_offers, without_refused_offers
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CloudView, Snapshot, Unavailable
from burstd.domain.staging import StageState, StagingView
from burstd.planner.explain.explain import Explanation, explain_job
from burstd.planner.offers.candidates import JobCost, OfferCandidate, preferred_candidate
from burstd.planner.offers.offers import next_breaker
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, make_snapshot, offer, pool

CHEAP, DEAR, SPOT = offer("cheap", "1"), offer("dear", "3"), offer("odd", "1", spot=True)
OTHER_MONEY = offer("far", "2", currency="USD")


class FakePolicy:
    """A policy that does what it is told."""

    def __init__(self, name: str, change: Callable[[Target], Target]) -> None:
        self.name = name
        self._change = change

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        assert snapshot.now
        return self._change(target)


def explanation_of(snapshot: Snapshot, *policies: Policy) -> Explanation:
    found = make_target(snapshot, policies)
    return explain_job(snapshot, Plan((), found, found.remarks), "1")


def candidates_by_type(found: Explanation) -> dict[str, tuple[bool, str, str, str]]:
    """By instance type (or provider): chosen, by whom refused, why, and why it comes later."""
    [pool_] = found.pool_candidates
    return {c.subject.split("/")[3] if c.offer else c.subject: (c.chosen, c.rejected_by, c.rejected_because, c.note)
            for c in pool_.candidates}  # fmt: skip


def no_dear(target: Target) -> Target:
    wants = tuple(
        without_refused_offers(w, "thrift", lambda o: "too dear" if o.price > 2 else "") for w in target.wants
    )
    return replace(target, wants=wants)


def none_at_all(target: Target) -> Target:
    remarks = tuple(r for want in target.wants for r in remarks_on_dropped_want(want, "no", "not today"))
    return replace(target, wants=(), remarks=(*target.remarks, *remarks))


def in_silence(target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, offers=w.offers[:1]) for w in target.wants))


def not_cheap(target: Target) -> Target:
    return replace(target, offers={n: tuple(o for o in some if o != DEAR) for n, some in target.offers.items()})


def every_offer(target: Target) -> Target:
    return without_offers(target, "spot", lambda _, o: "no spot" if o.spot else "too far")


BROKEN = next_breaker(None, DEAR, "capacity", NOW, "none left")
FOUR = (DEAR, OTHER_MONEY, SPOT, CHEAP)
KINDS: list[tuple[str, dict[str, Any], tuple[Policy, ...], dict[str, tuple[bool, str, str, str]]]] = [
    (
        "price",
        {"offers": FOUR},
        (),
        {
            "cheap": (True, "", "", ""),
            "odd": (False, "", "", "spot, after on-demand"),
            "far": (
                False,
                "",
                "its price is in USD, others of the pool are compared in EUR, and [rates] has no rate",
                "",
            ),
            "dear": (False, "", "", "more expensive than the chosen one"),
        },
    ),
    (
        "price by a rate",
        {"offers": FOUR, "rates": Rates("EUR", date(2026, 11, 1), {"USD": Decimal("0.4")})},
        (),
        {
            "far": (True, "", "", ""),
            "cheap": (False, "", "", "more expensive than the chosen one"),
            "odd": (False, "", "", "more expensive than the chosen one"),
            "dear": (False, "", "", "more expensive than the chosen one"),
        },
    ),
    (
        "stockout",
        {"offers": (DEAR,), "breakers": (BROKEN,)},
        (),
        {
            "dear": (False, "", "failed 1 time(s) (capacity: none left), next attempt in 60 s", ""),
        },
    ),
    (
        "shape",
        {"offers": (offer("tiny", shape=Shape(2, 8000)),)},
        (),
        {
            "tiny": (False, "", "smaller than the pool's slots: 2 CPUs of 4", ""),
        },
    ),
    (
        "rule",
        {"offers": (CHEAP,), "pools": (pool(rules=(OfferRule("sky", ("big",)),)),)},
        (),
        {
            "cheap": (False, "", "excluded by the pool's rules", ""),
        },
    ),
    (
        "unread",
        {"clouds": {"sky": CloudView(Unavailable("timed out", 0), ())}},
        (),
        {
            "sky": (False, "", "cannot read its offers: timed out", ""),
        },
    ),
    (
        "left out",
        {"offers": (CHEAP, DEAR)},
        (FakePolicy("thrift", no_dear),),
        {
            "cheap": (True, "", "", ""),
            "dear": (False, "thrift", "too dear", ""),
        },
    ),
    (
        "left out in silence",
        {"offers": (CHEAP, DEAR)},
        (FakePolicy("mute", in_silence),),
        {
            "cheap": (True, "", "", ""),
            "dear": (False, "mute", "excluded", ""),
        },
    ),
    (
        "taken away",
        {"offers": (CHEAP, DEAR)},
        (FakePolicy("thrift", no_dear), FakePolicy("no", none_at_all)),
        {
            "cheap": (False, "no", "not today", ""),
            "dear": (False, "thrift", "too dear", ""),
        },
    ),
    (
        "none left",
        {"offers": (CHEAP,)},
        (FakePolicy("spot", every_offer),),
        {
            "cheap": (False, "spot", "no offer left in pool cpu: too far", ""),
        },
    ),
    (
        "left out of the pool",
        {"offers": (CHEAP, DEAR)},
        (FakePolicy("pool", not_cheap), FakePolicy("no", none_at_all)),
        {
            "cheap": (False, "no", "not today", ""),
            "dear": (False, "no", "not today", ""),
        },
    ),
]


@pytest.mark.parametrize(("around", "policies", "expected"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_every_offer_says_why(
    around: dict[str, Any], policies: tuple[Policy, ...], expected: dict[str, tuple[bool, str, str, str]]
) -> None:
    snapshot = make_snapshot(job(), **{name: value for name, value in around.items() if name != "clouds"})
    snapshot = replace(snapshot, clouds=around.get("clouds", snapshot.clouds))
    assert candidates_by_type(explanation_of(snapshot, *policies)) == expected


def test_each_offer_has_its_cost() -> None:
    outlook = Outlook(NOW + 9000, "queue", 5400.0, "history of 3 jobs of ada", 240.0, 0.0)
    wide = job(nodes=2, cpus=2, time_limit_s=36_000)
    snapshot = make_snapshot(wide, offers=(CHEAP, DEAR))
    found = explain_job(replace(snapshot, outlook={"1": outlook}), Plan((), make_target(snapshot, ())), "1")
    assert [c.cost for c in found.pool_candidates[0].candidates] == [
        JobCost(2, Decimal(3), Decimal(20)),
        JobCost(2, Decimal(9), Decimal(60)),
    ]
    assert found.outlook == outlook
    assert explanation_of(make_snapshot(job())).pool_candidates[0].candidates[0].cost == JobCost(1, Decimal(1), None)


def test_the_first_choice_is_the_chosen_one_or_what_would_be() -> None:
    def choice(*policies: Policy) -> str:
        found: OfferCandidate | None = preferred_candidate(
            explanation_of(make_snapshot(job(), offers=(DEAR, CHEAP)), *policies).pool_candidates
        )
        return found.subject.split("/")[3] if found is not None else ""

    assert choice() == "cheap"
    assert choice(FakePolicy("no", none_at_all)) == "cheap"
    assert (
        preferred_candidate(explanation_of(make_snapshot(job(constraint="x"), offers=(DEAR,))).pool_candidates) is None
    )


def test_how_its_data_stands_and_what_its_machines_reserve() -> None:
    data = StagingView(StageState.UPLOADING, NOW + 180, size=9, bytes_left=4)
    coming = claim("cpu1", S.BOOTING, jobs=("1",), reserved=Decimal(7))
    found = explanation_of(make_snapshot(job(), data={"1": data}, claims=(coming,)))
    assert found.data == data
    assert [(s.slot, s.reserved, s.currency) for s in found.serving] == [("cpu1", Decimal(7), "EUR")]


@pytest.mark.parametrize(
    ("by", "remedy"),
    [
        ("budget", "wait until nodes under the budget end"),
        ("broker", "change the requirements in its comment (scontrol update JobId=1 Comment='burst: ...')"),
        ("site_rules", "see policy site_rules in burstd.toml"),
    ],
)
def test_each_policy_has_its_remedy(by: str, remedy: str) -> None:
    def away(target: Target) -> Target:
        return replace(target, wants=(), remarks=(*target.remarks, *remarks_on_dropped_want(target.wants[0], by, "no")))

    assert explanation_of(make_snapshot(job()), FakePolicy(by, away)).remedies[0] == remedy


def test_an_impossible_job_may_use_no_offer_and_costs_nothing() -> None:
    broker = policies.broker.plugin.make(policies.broker.BrokerSettings())
    slots = ("cpu1", "cpu2", "cpu3", "cpu4")
    asked = job(comment="burst: model=h100", excluded_nodes=slots, time_limit_s=600.0)
    found = explanation_of(make_snapshot(asked, offers=(CHEAP, DEAR)), broker)
    refused = (False, "broker", "the job is impossible as it is", "")
    assert candidates_by_type(found) == {"cheap": refused, "dear": refused}
    assert preferred_candidate(found.pool_candidates) is None
