"""Pools for which no machine can be launched, and rules that match nothing: what is said of them, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.cloud.offer import Hardware, Offer, OfferRule, Pool
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CloudView, Unavailable
from burstd.planner.offers.unfilled import UnfilledPools, unfilled_rules
from burstd.planner.policy_chain import make_target

from .worlds import make_snapshot, offer, pool

GPU = Shape(8, 32_000, (Gres("gpu", "v100", 4),))
CATALOG = (
    offer("g5.4xlarge", "4", GPU),
    offer("g5.2xlarge", "2", replace(GPU, cpus=4, memory_mib=16_000)),
    offer("p4d.24xlarge", "9", replace(GPU, gres=(Gres("gpu", "a100", 8),))),
    offer("m5.large", "1", Shape(64, 64_000), zone="b"),
)
AGREE = "make cpus, memory and gres of pool gpu agree with its machines, here and in slurm.conf"
WANTED = "machines of 8 CPUs, 32000 MiB, gpu:v100:4"


def gpu(*rules: OfferRule) -> Pool:
    return pool("gpu", shape=GPU, rules=rules)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            OfferRule("sky", ("g5.4xlrge",)),
            "instance types g5.4xlrge|sky has none|correct instance_types; the nearest are g5.4xlarge, g5.2xlarge",
        ),
        (
            OfferRule("sky", ("standard-*",)),
            (
                "instance types standard-*|sky has none|"
                "correct instance_types; there are g5.2xlarge, g5.4xlarge, m5.large, p4d.24xlarge"
            ),
        ),
        (
            OfferRule("sky", ("g5.4*",), zones=("b", "c")),
            "g5.4* in zone b, c|sky has them in a|correct zones, or remove them",
        ),
        (OfferRule("sky", markets=("spot",)), "offers of sky spot|sky has them on-demand only|correct markets"),
        (
            OfferRule("sky", ("g5.2*",)),
            (
                f"{WANTED}|g5.2xlarge smaller than the pool's slots: 4 CPUs of 8, 16000 MiB of 32000|"
                f"name g5.4xlarge in instance_types, or {AGREE}"
            ),
        ),
        (
            OfferRule("sky", ("p4d.*", "g5.4*")),
            (
                f"{WANTED}|p4d.24xlarge smaller than the pool's slots: 0 gpu:v100 of 4 (it has gpu:a100:8)|"
                f"name g5.4xlarge in instance_types, or {AGREE}"
            ),
        ),
        (
            OfferRule("sky", zones=("b",)),
            f"{WANTED}|m5.large smaller than the pool's slots: 0 gpu:v100 of 4|{AGREE}",
        ),
    ],
)
def test_what_does_not_match(rule: OfferRule, said: str) -> None:
    [found] = unfilled_rules([gpu(rule)], {"sky": CATALOG})
    assert f"{found.wanted}|{found.found}|{found.remedy}" == said
    assert (found.key, found.pool_is_empty) == (
        "pools.gpu.offers[0]",
        "g5.4*" not in rule.instance_types or bool(rule.zones),
    )


def test_a_machine_with_another_fabric() -> None:
    slow = replace(offer("slow", shape=GPU), hardware=Hardware(fabric="none"))
    [found] = unfilled_rules([replace(gpu(OfferRule("sky")), fabric="ib")], {"sky": (slow,)})
    assert (found.wanted, found.found) == (f"{WANTED}, ib", "slow without ib, which the pool's nodes have")


def test_a_cloud_that_offers_nothing() -> None:
    [found] = unfilled_rules([gpu(OfferRule("sky"))], {"sky": ()})
    assert (found.wanted, found.found, found.remedy) == (
        "machines of sky",
        "it offers none",
        "burstctl provider check sky",
    )


def test_rules_that_can_be_used_are_not_named() -> None:
    assert unfilled_rules([gpu(OfferRule("sky"), OfferRule("sky", ("g5.*",)))], {"sky": CATALOG}) == []
    assert unfilled_rules([gpu(OfferRule("sea"))], {"sky": CATALOG}) == []


def alarms(rules: tuple[OfferRule, ...], sky: tuple[Offer, ...] | Unavailable, *, fresh: bool = True) -> list[str]:
    snapshot = make_snapshot(pools=(gpu(*rules),))
    snapshot = replace(snapshot, clouds={"sky": CloudView(sky, ())} | ({"sea": CloudView((), ())} if fresh else {}))
    return UnfilledPools().alarms(snapshot, make_target(snapshot, ()))


def test_an_alarm_is_of_pools_that_stay_empty_whose_clouds_have_all_been_read() -> None:
    typo, sea = OfferRule("sky", ("g5.4xlrge",)), OfferRule("sea")
    text = (
        "no machine can be launched for pool gpu: pools.gpu.offers[0]: wanted instance types g5.4xlrge, found sky has "
        "none: correct instance_types; the nearest are g5.4xlarge, g5.2xlarge"
    )
    assert alarms((typo,), CATALOG) == [text]
    assert alarms((typo, sea), CATALOG) == [text]
    assert alarms((typo, sea), CATALOG, fresh=False) == []
    assert alarms((typo,), Unavailable("auth", 0.0)) == []
    assert alarms((typo, OfferRule("sky")), CATALOG) == []
    behind_a_breaker = make_snapshot(pools=(gpu(OfferRule("sky")),), offers=CATALOG)
    assert UnfilledPools().alarms(behind_a_breaker, Target()) == []


def test_what_is_said_of_a_pool_follows_its_rules_and_its_offers() -> None:
    one, typo, right = UnfilledPools(), gpu(OfferRule("sky", ("g5.4xlrge",))), gpu(OfferRule("sky", ("g5.4xlarge",)))

    def said(rules: Pool, offers: tuple[Offer, ...]) -> int:
        return len(one.alarms(make_snapshot(pools=(rules,), offers=offers), Target()))

    assert [said(typo, CATALOG), said(typo, CATALOG), said(right, CATALOG)] == [1, 1, 0]
    assert [said(right, CATALOG[1:]), said(right, CATALOG), said(typo, CATALOG)] == [1, 0, 1]
