"""The policy spot: who risks a machine that may be taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import policies.spot
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Policy
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.snapshot import EndedClaim, Snapshot
from burstd.planner.policy_chain import make_target

from .worlds import NOW, FixedOutlooks, claim, job, last_verdict, make_snapshot, offer, pool, slot_node

CHEAP = offer(price="0.3", spot=True)
SURE = offer(price="1")
BOTH = (CHEAP, SURE)
H = 3600.0


def spot(**given: Any) -> Policy:
    return policies.spot.plugin.make(policies.spot.SpotSettings(**given))


def markets(snapshot: Snapshot, policy: Policy) -> list[list[str]]:
    """For each want, the markets of its offers."""
    found = make_target(snapshot, (policy,))
    assert not found.failed_policies
    return [[o.market for o in want.offers] for want in found.wants]


def gone(number: int, error: str, of: Offer = CHEAP) -> EndedClaim:
    return EndedClaim(NOW - 60 * number, claim(f"cpu{number}", S.GONE, offer=of, error=error))


@pytest.mark.parametrize(
    ("case", "given", "asks", "spot_too"),
    [
        ("a short job of one node", {}, {"time_limit_s": H}, True),
        ("too long", {}, {"time_limit_s": 5 * H}, False),
        ("as long as it may be", {}, {"time_limit_s": 4 * H}, True),
        ("no time limit", {}, {}, False),
        ("not to be run again", {}, {"time_limit_s": H, "requeue": False}, False),
        ("not to be run again, and risked", {"without_requeue": True}, {"time_limit_s": H, "requeue": False}, True),
        ("two nodes", {}, {"time_limit_s": H, "nodes": 2, "cpus": 2}, False),
        ("two nodes that may be risked", {"max_nodes": 2}, {"time_limit_s": H, "nodes": 2, "cpus": 2}, True),
        ("no spot at all", {"max_nodes": 0}, {"time_limit_s": H}, False),
        ("a pool of its own mind", {"pools": {"cpu": {"max_run_s": 60}}}, {"time_limit_s": H}, False),
        ("another pool's mind", {"pools": {"gpu": {"max_run_s": 60}}}, {"time_limit_s": H}, True),
        ("it saves 70 %", {"min_saving_percent": 70}, {"time_limit_s": H}, True),
        ("which is not enough", {"min_saving_percent": 71}, {"time_limit_s": H}, False),
    ],
)  # fmt: skip
def test_when_to_risk_it(case: str, given: dict[str, Any], asks: dict[str, Any], spot_too: bool) -> None:
    found = markets(make_snapshot(job(**asks), offers=BOTH), spot(**given))
    assert found == [["spot", "on-demand"] if spot_too else ["on-demand"]], case


def test_what_is_expected_counts_more_than_the_time_limit() -> None:
    short = FixedOutlooks({"1": Outlook(float("inf"), "queue", 600.0, "12 jobs of ada", 100.0, 0.0)})
    assert markets(make_snapshot(job(time_limit_s=48 * H), offers=BOTH, outlook=short), spot()) == [
        ["spot", "on-demand"]
    ]
    unknown = FixedOutlooks({"1": replace(short["1"], run_basis="none")})
    assert markets(make_snapshot(job(), offers=BOTH, outlook=unknown), spot()) == [["on-demand"]]


def test_a_job_without_a_way_but_spot_waits_and_is_told_why() -> None:
    found = make_target(make_snapshot(job(time_limit_s=5 * H), offers=(CHEAP,)), (spot(),))
    assert found.wants == ()
    assert last_verdict(found)[1] == (
        "no offer left in pool cpu: no spot for job 1: the job is expected to run 300 min, the limit is 240 min"
    )


def test_what_is_left_out_is_on_record() -> None:
    (want,) = make_target(make_snapshot(job(time_limit_s=5 * H), offers=BOTH), (spot(),)).wants
    assert [(out.offer, out.by) for out in want.excluded_offers] == [(CHEAP.id, "spot")]


def test_jobs_that_share_a_machine_share_the_risk() -> None:
    calm = job("2", requeue=False, time_limit_s=H)
    assert markets(make_snapshot(job("1", time_limit_s=H), calm, offers=BOTH), spot()) == [["on-demand"]]


@pytest.mark.parametrize(
    ("limit", "found"), [(0, ["spot", "on-demand"]), (1, ["on-demand"]), (2, ["spot", "on-demand"])]
)
def test_a_job_that_has_lost_machines(limit: int, found: list[str]) -> None:
    snapshot = make_snapshot(job(time_limit_s=H, restarts=1), offers=BOTH, interruptions={"1": frozenset({0})})
    assert markets(snapshot, spot(interruptions=limit)) == [found]


@pytest.mark.parametrize(
    ("case", "ended", "found"),
    [
        ("two are not three", ["interrupted"] * 2, ["spot", "on-demand"]),
        ("three taken back", ["interrupted"] * 3, ["on-demand"]),
        ("however that showed", ["interrupted", "lost", "ended"], ["on-demand"]),
        ("three that failed otherwise", ["validation"] * 3, ["spot", "on-demand"]),
        ("three that were let go", [""] * 3, ["spot", "on-demand"]),
    ],
)
def test_a_kind_that_is_taken_back_from_others(case: str, ended: list[str], found: list[str]) -> None:
    past = tuple(gone(n, error) for n, error in enumerate(ended, 1))
    assert markets(make_snapshot(job(time_limit_s=H), offers=BOTH, ended_claims=past), spot()) == [found], case


def test_another_zone_is_another_kind() -> None:
    past = tuple(gone(n, "interrupted") for n in (1, 2, 3))
    other = replace(CHEAP, zone="b")
    found = make_target(make_snapshot(job(time_limit_s=H), offers=(CHEAP, other, SURE), ended_claims=past), (spot(),))
    assert [o.id for o in found.wants[0].offers] == [other.id, SURE.id]


@pytest.mark.parametrize(
    ("percent", "there", "found"),
    [(100, 0, "sss"), (50, 0, "s-s"), (0, 0, "---"), (50, 1, "-s-"), (33, 1, "--s")],
)
def test_a_share_of_all_nodes(percent: float, there: int, found: str) -> None:
    rows = [job(str(n), exclusive=True, time_limit_s=H) for n in (1, 2, 3)]
    claims = tuple(claim(f"cpu{n}", S.IN_SERVICE, offer=CHEAP) for n in range(1, there + 1))
    busy = tuple(replace(slot_node(pool(), c.slot, up=True), cpus_allocated=4, state="ALLOCATED") for c in claims)
    wanted = markets(make_snapshot(*rows, offers=BOTH, claims=claims, nodes=busy), spot(max_share_percent=percent))
    assert "".join("s" if "spot" in some else "-" for some in wanted) == found
