"""The policy data_locality: near offers first, and no upload that is not worth it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import policies.data_locality
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.staging import StageState, StagingView
from burstd.planner.policy_chain import make_target

from .worlds import NOW, FixedOutlooks, job, last_verdict, make_snapshot, offer, wants

GIB = 2**30
NEAR = offer(region="near", price="2")
FAR = offer(region="far", price="1")
OFFERS = {"near": {"s3": ("sky/near/*",)}}
STAGED = StagingView(StageState.STAGED, 0.0, store="s3", size=100 * GIB)
LATE = StagingView(StageState.UPLOADING, NOW + 60, store="s3", size=100 * GIB, bytes_left=10 * GIB)


def locality(**given: Any) -> Policy:
    return policies.data_locality.plugin.make(policies.data_locality.DataLocalitySettings(**{**OFFERS, **given}))


def outlook(run_s: float = 3600, local_s: float = float("inf")) -> FixedOutlooks:
    return FixedOutlooks({"1": Outlook(NOW + local_s, "queue", run_s, "time limit", 100.0, 60.0)})


def decided(view: StagingView | None, policy: Policy, *others: Any, **fields: Any) -> Target:
    data = {"1": view} if view is not None else {}
    found = make_target(make_snapshot(job(), *others, offers=(NEAR, FAR), data=data, **fields), (policy,))
    assert not found.failed_policies
    return found


@pytest.mark.parametrize(
    ("case", "view", "given", "regions"),
    [
        ("near comes first", STAGED, {}, ["near", "far"]),
        ("no other than near", STAGED, {"far": "never"}, ["near"]),
        ("no data", None, {}, ["far", "near"]),
        ("a store without neighbours", StagingView(StageState.STAGED, 0.0, store="nfs"), {}, ["far", "near"]),
        ("all of an hour is cheaper far", STAGED, {"far_per_gib": "0.005"}, ["far", "near"]),
        ("moving it costs more than that", STAGED, {"far_per_gib": "0.02"}, ["near", "far"]),
        ("nothing is near", STAGED, {"near": {"s3": ("sea/*",)}}, ["far", "near"]),
    ],
)
def test_offers(case: str, view: StagingView | None, given: dict[str, Any], regions: list[str]) -> None:
    found = decided(view, locality(**given), outlook=outlook())
    assert [o.region for o in found.wants[0].offers] == regions, case


def test_a_long_job_is_worth_moving_its_input() -> None:
    found = decided(STAGED, locality(far_per_gib=Decimal("0.02")), outlook=outlook(run_s=10 * 3600))
    assert [o.region for o in found.wants[0].offers] == ["far", "near"]


def test_nothing_near_can_be_had() -> None:
    found = decided(STAGED, locality(near={"s3": ("sea/*",)}, far="never"))
    assert last_verdict(found) == ("wait", "no offer left in pool cpu: not near store s3, which has the input")


def test_a_job_that_lost_spot_machines_keeps_those_on_demand_in_front() -> None:
    spot, sure = offer(region="near", price="0.3", spot=True), offer(region="far", price="1")
    snapshot = make_snapshot(
        job(restarts=2), offers=(spot, sure), data={"1": STAGED}, interruptions={"1": frozenset({0, 1})}
    )
    found = make_target(snapshot, (locality(),), spot_interruptions=2)
    assert [o.market for o in found.wants[0].offers] == ["on-demand", "spot"]


def test_the_order_is_remarked() -> None:
    found = decided(STAGED, locality())
    assert [r.reason for r in found.remarks if r.by == "data_locality"] == [
        f"{NEAR.id} before {FAR.id} for job 1: store s3 has 100 GiB of its input"
    ]


@pytest.mark.parametrize(
    ("case", "view", "given", "here", "burst"),
    [
        ("small enough", LATE, {"max_gib": 10}, FixedOutlooks(), True),
        ("too large", LATE, {"max_gib": 9}, FixedOutlooks(), False),
        ("what is staged is free", STAGED, {"max_gib": 0}, FixedOutlooks(), True),
        ("the site never starts it", LATE, {}, outlook(), True),
        ("it would be over here", LATE, {}, outlook(20, 30), False),
        ("just not", LATE, {}, outlook(31, 30), True),
        ("who cares", LATE, {"worth_it": False}, outlook(20, 30), True),
        ("nobody knows", LATE, {}, FixedOutlooks(), True),
    ],
)
def test_which_jobs_burst(
    case: str, view: StagingView, given: dict[str, Any], here: FixedOutlooks, burst: bool
) -> None:
    found = decided(view, locality(**given), outlook=here)
    assert (wants(found) != []) == burst, case


def test_they_are_told_why_not() -> None:
    assert last_verdict(decided(LATE, locality(max_gib=9)))[1] == (
        "10 GiB of its input are not uploaded yet; the limit is 9 GiB"
    )
    assert last_verdict(decided(LATE, locality(), outlook=outlook(20, 30)))[1] == (
        "its input reaches the store in 1 min; the job is expected to end on premises in 1 min"
    )


def test_others_on_the_machine_burst_all_the_same() -> None:
    found = decided(LATE, locality(max_gib=9), job("2"))
    assert wants(found) == [("cpu", 1, ("2",))]


def test_the_store_with_most_of_the_input_counts() -> None:
    stores = {"a": ("sky/far/*",), "m": ("sky/near/*",), "z": ("sky/far/*",)}
    data = {n: StagingView(StageState.STAGED, 0.0, store=s, size=gib * GIB) for n, s, gib in
            (("1", "a", 1), ("2", "m", 3), ("3", "z", 2))}  # fmt: skip
    snapshot = make_snapshot(job("1"), job("2"), job("3"), offers=(NEAR, FAR), data=data)
    found = make_target(snapshot, (locality(near=stores),))
    assert [(w.jobs, w.offers[0].region) for w in found.wants] == [(("1", "2", "3"), "near")]
