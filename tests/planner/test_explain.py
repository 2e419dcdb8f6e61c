"""What a person is told about a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import policies.budget
import policies.limits
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Hardware
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import Pin, Snapshot, Unavailable
from burstd.planner.explain.explain import Explanation, explain_job
from burstd.planner.offers.offers import next_breaker
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, make_snapshot, node, offer, pool

RESTS = next_breaker(None, offer(), "capacity", NOW)


def explanation_of(snapshot: Snapshot, job_id: str = "1", policies_: tuple[Policy, ...] = ()) -> Explanation:
    found = make_target(snapshot, policies_)
    return explain_job(snapshot, Plan((), found, found.remarks), job_id)


def test_a_job_that_gets_a_node() -> None:
    dear = offer("large", "3")
    broken = offer("cheap", "0.1")
    breaker = next_breaker(None, broken, "capacity", NOW, "none left")
    found = explanation_of(
        make_snapshot(job(cpus=2, memory_mib=100), offers=(dear, broken, offer()), breakers=(breaker,))
    )
    assert (found.verdict, found.request_text, found.remedies) == ("boot", "1 node, 2 CPUs, 100 MiB per node", ())
    [pool] = found.pool_candidates
    assert (pool.pool, pool.lacks, pool.slots, pool.free) == ("cpu", "", 4, 4)
    assert [(c.subject.split("/")[3], c.chosen, bool(c.rejected_because)) for c in pool.candidates] == [
        ("small", True, False),
        ("large", False, False),
        ("cheap", False, True),
    ]


def test_claims_and_nodes_that_serve_it() -> None:
    coming = claim("cpu1", S.BOOTING, jobs=("1",), reason="instance i-1 exists")
    found = explanation_of(make_snapshot(job(), claims=(coming,)))
    assert found.verdict == "covered"
    assert [(s.claim_id, s.slot, s.state, s.reason) for s in found.serving] == [
        ("c-cpu1", "cpu1", "booting", "instance i-1 exists")
    ]
    home = explanation_of(make_snapshot(job(partitions=("onprem", "burst")), nodes=(node("op1"),)))
    assert [(s.claim_id, s.slot, s.state) for s in home.serving] == [("", "op1", "idle")]


@pytest.mark.parametrize(
    ("case", "fields", "snapshot_fields", "verdict", "remedy"),
    [
        ("held", {"reason": "JobHeldUser"}, {}, "wait", "scontrol release 1"),
        ("dependent", {"reason": "Dependency"}, {}, "wait", ""),
        ("impossible", {"cpus": 99, "cpus_per_node": 99}, {}, "impossible", "request what a pool has"),
        (
            "no offer",
            {},
            {"offers": ()},
            "impossible",
            "allow offers as large as the pool's slots in the pool's rules, in burstd.toml (administrators only)",
        ),
        ("it rests", {}, {"breakers": (RESTS,)}, "wait", "wait: burstd retries failed offers"),
        ("no slot", {}, {"drained_slots": frozenset({"cpu1", "cpu2", "cpu3", "cpu4"})}, "wait", "wait for a slot"),
        ("on hold", {}, {"paused": "burstctl hold by root"}, "wait", "burstctl unhold (administrators only)"),
        (
            "pinned",
            {},
            {"pins": (Pin("cpu", 0, "exact", None, "root", NOW),)},
            "wait",
            "burstctl scale cpu --clear (administrators only)",
        ),
    ],
)
def test_what_would_help(
    case: str, fields: dict[str, Any], snapshot_fields: dict[str, Any], verdict: str, remedy: str
) -> None:
    found = explanation_of(make_snapshot(job(**fields), **snapshot_fields))
    assert (found.verdict, (*found.remedies, "")[0]) == (verdict, remedy), case
    assert bool(found.kept_by) == (case in ("on hold", "pinned"))
    assert found.summary


def test_the_last_word_is_the_policys() -> None:
    limited = policies.limits.plugin.make(policies.limits.LimitsSettings(nodes=0))
    found = explanation_of(make_snapshot(job()), policies_=(limited,))
    assert [(r.by, r.verdict) for r in found.remarks] == [("placement", "boot"), ("limits", "wait")]
    assert found.verdict == "wait"
    assert found.remedies[0] == "wait until other nodes end"


def test_what_a_budget_can_never_pay_has_the_budgets_remedy() -> None:
    budget = policies.budget.plugin.make(policies.budget.plugin.settings(users={"ada": {"limit": "0.01"}}))
    found = explanation_of(make_snapshot(job(time_limit_s=600.0)), policies_=(budget,))
    assert found.verdict == "impossible"
    assert found.remedies == ("raise the limit in [policies.budget] of burstd.toml (administrators only)",)


def test_pools_that_cannot_run_it_say_what_they_lack() -> None:
    found = explanation_of(make_snapshot(job(constraint="fast")))
    assert [(pool.lacks, pool.candidates) for pool in found.pool_candidates] == [("feature fast", ())]
    odd = explanation_of(make_snapshot(job(constraint="fast!")))
    assert odd.pool_candidates[0].lacks.startswith("invalid constraint 'fast!'")


@pytest.mark.parametrize(
    ("asked", "row"),
    [("7", "7"), ("7_12", "7"), ("7_3", "7_3"), ("5", "5"), ("5+1", "5+1")],
)
def test_the_row_that_stands_for_it(asked: str, row: str) -> None:
    rows: tuple[Job, ...] = (
        job("7", tasks=9, array_job_id="7", array_tasks="11-19"),
        job("7_3", array_job_id="7", state=JobState.RUNNING, node_list=("cpu1",)),
        job("5", het_job_id="5"),
        job("5+1", het_job_id="5", het_offset=1),
    )
    found = explanation_of(make_snapshot(*rows), asked)
    assert found.job is not None
    assert found.job.id == row


def test_jobs_that_have_started_or_are_not_there() -> None:
    running = job(state=JobState.RUNNING, node_list=("cpu1",))
    found = explanation_of(make_snapshot(running, claims=(claim("cpu1", S.IN_SERVICE),)))
    assert (found.verdict, found.summary) == ("running", "the job is running on cpu1")
    assert [s.slot for s in found.serving] == ["cpu1"]
    assert explanation_of(make_snapshot(), "9").summary == "not in Slurm's queue; for jobs that have ended, run sacct"
    blind = replace(make_snapshot(job()), slurm=Unavailable("timed out", 0))
    assert explanation_of(blind).summary == "cannot read Slurm: timed out"


def test_jobs_that_no_plan_speaks_of() -> None:
    assert (
        explanation_of(make_snapshot(job(partitions=("onprem",)))).summary
        == "no pool serves onprem; burst partitions: burst"
    )
    late = explain_job(make_snapshot(job()), Plan(), "1")
    assert (late.verdict, late.summary) == ("unknown", "the last plan is older than the job")


EFA = Hardware(fabric="efa", placement="placement-group")


@pytest.mark.parametrize(
    ("hardware", "fabric", "gang", "text"),
    [
        (EFA, "", "1", "its 2 nodes: a cluster placement group, efa"),
        (EFA, "", "", "its 2 nodes: nothing keeps them near each other, a network of which nothing is known"),
        (EFA, "efa", "", "its 2 nodes: all in one zone, efa"),
        (Hardware(fabric="none", placement="placement-group"), "", "1",
         "its 2 nodes: a cluster placement group, the common network"),
        (Hardware(placement="server-group"), "ib", "1", "its 2 nodes: a server group, ib"),
        (Hardware(placement="topology-key"), "", "1",
         "its 2 nodes: an affinity of their pods, a network of which nothing is known"),
    ],
)  # fmt: skip
def test_what_binds_the_nodes_of_a_job(hardware: Hardware, fabric: str, gang: str, text: str) -> None:
    of, kind = pool(fabric=fabric), offer(hardware=hardware)
    coming = [claim(f"cpu{n}", S.BOOTING, jobs=("1",), gang=gang, offer=kind) for n in (1, 2)]
    snapshot = make_snapshot(job(nodes=2), pools=(of,), offers=(kind,), claims=tuple(coming))
    assert explanation_of(snapshot).fabric == text
    apart = replace(coming[1], offer=replace(kind, zone="z"))
    snapshot = make_snapshot(job(nodes=2), pools=(of,), offers=(kind,), claims=(coming[0], apart))
    assert explanation_of(snapshot).fabric == "its 2 nodes: nothing binds them, they are in sky/r1/a and sky/r1/z"


def test_what_will_bind_the_nodes_of_a_job() -> None:
    kind = offer(hardware=EFA)
    assert explanation_of(make_snapshot(job(nodes=2), offers=(kind,))).fabric == (
        "its 2 nodes: a cluster placement group, efa"
    )
    assert not explanation_of(make_snapshot(job(), offers=(kind,))).fabric


def test_a_job_that_asks_for_a_fabric_that_no_pool_has() -> None:
    found = explanation_of(make_snapshot(job(nodes=2, constraint="ib"), offers=(offer(hardware=EFA),)))
    assert (found.verdict, "no node in pool cpu has feature ib" in found.summary) == ("impossible", True)
