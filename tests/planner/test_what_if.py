"""The smallest change that would start a job: of every kind, none where nothing helps, and never many tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

import policies.broker
import policies.limits
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.framework import Framework
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, Target, remarks_on_dropped_want
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import RuntimeState, Snapshot, Unavailable
from burstd.domain.staging import StageState, StagingView
from burstd.planner.explain import what_if as what_if_
from burstd.planner.explain.job_options import time_limit_text
from burstd.planner.explain.what_if import helpful_changes
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, make_snapshot, node, offer, pool

A100 = Shape(16, 64_000, (Gres("gpu", "a100", 4),), frozenset({"a100", "cloud"}))
V100 = Shape(8, 32_000, (Gres("gpu", "v100", 2),), frozenset({"v100", "cloud"}))
POOLS = (
    pool("v100", shape=V100, partitions=("burst", "gpu"), rules=(OfferRule("sky", ("v*",)),), cpu_jobs=True),
    pool("a100", shape=A100, partitions=("burst",), rules=(OfferRule("sky", ("a*",)),), cpu_jobs=True),
)
V_ONLY = (offer("v1", "2", V100),)
BOTH = (*V_ONLY, offer("a1", "9", A100))


def changes_for(snapshot: Snapshot, *policies_: Policy, job_id: str = "1") -> tuple[OptionChange, ...]:
    found = make_target(snapshot, policies_)
    return helpful_changes(snapshot, Plan((), found, found.remarks), job_id, lambda s: make_target(s, policies_))


def before_and_after(changes: Sequence[OptionChange]) -> list[tuple[str, str]]:
    return [(c.before, c.after) for c in changes]


def gpus(count: int, kind: str = "") -> tuple[Gres, ...]:
    return (Gres("gpu", kind, count),)


KINDS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("feature", {"constraint": "a100"}, "-C a100", "-C 'a100|v100'", "Features='a100|v100'"),
    ("one of two features", {"constraint": "v100&nvme"}, "-C 'v100&nvme'", "-C v100", "Features=v100"),
    ("odd features", {"constraint": "[a*2]"}, "-C '[a*2]'", "no -C", "Features="),
    ("type", {"gres_per_node": gpus(1, "h100")}, "--gres=gpu:h100:1", "--gres=gpu:1", "TresPerNode=gres/gpu:1"),
    ("type of all", {"gres_per_job": gpus(1, "h100")}, "--gpus=h100:1", "--gpus=1", "TresPerJob=gres/gpu:1"),
    ("fewer", {"gres_per_node": gpus(8)}, "--gres=gpu:8", "--gres=gpu:2", "TresPerNode=gres/gpu:2"),
    ("memory", {"memory_mib": 99_000}, "--mem=99000M", "--mem=32000M", "MinMemoryNode=32000"),
    ("memory for each CPU", {"memory_mib": 9000, "memory_per_cpu": True, "cpus": 8, "cpus_per_node": 8},
     "--mem-per-cpu=9000M", "--mem-per-cpu=4000M", "MinMemoryCPU=4000"),
    ("CPUs", {"cpus": 64, "cpus_per_node": 64}, "64 CPUs (-n, -c)", "8 CPUs", ""),
    ("nodes", {"nodes": 6, "nodes_max": 6, "cpus": 6}, "-N 6", "-N 4", ""),
    ("named node", {"node_list": ("op7",)}, "-w op7", "no -w", "ReqNodeList="),
    ("excluded nodes", {"excluded_nodes": tuple(f"{p}{n}" for p in ("v100", "a100") for n in range(1, 5))},
     "-x v1001,v1002,v1003,v1004,a1001,a1002,a1003,a1004", "no -x", "ExcNodeList="),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "before", "after", "update"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_each_kind_of_change(fields: dict[str, Any], before: str, after: str, update: str) -> None:
    first, *_ = changes_for(make_snapshot(job(**fields), pools=POOLS, offers=V_ONLY))
    assert (first.before, first.after) == (before, after)
    assert first.command == (f"scontrol update JobId=1 {update}" if update else "")
    assert first.offer == V_ONLY[0].id
    assert first.price == Decimal(2) * len(first.where)
    assert first.start_s == 60


def test_a_gpu_where_machines_start_for_jobs_with_gpus_only() -> None:
    pools = tuple(replace(some, cpu_jobs=False) for some in POOLS)
    found = changes_for(make_snapshot(job(), pools=pools, offers=V_ONLY))
    assert before_and_after(found) == [("no --gres", "--gres=gpu:1")]
    assert found[0].command == "scontrol update JobId=1 TresPerNode=gres/gpu:1"


def test_a_burst_partition_more() -> None:
    onprem = job(partitions=("gpu",), gres_per_node=gpus(4))
    found = changes_for(make_snapshot(onprem, pools=POOLS, offers=BOTH, nodes=(node("op1", partitions=("gpu",)),)))
    assert before_and_after(found) == [("-p gpu", "-p gpu,burst"), ("--gres=gpu:4", "--gres=gpu:2")]
    assert found[0].command == "scontrol update JobId=1 Partition=gpu,burst"


def test_what_is_there_is_at_once() -> None:
    busy = node("op1", partitions=("onprem",), cpus_allocated=1, state="MIXED")
    found = changes_for(make_snapshot(job(partitions=("onprem", "burst"), exclusive=True), nodes=(busy,), offers=()))
    assert [(c.before, c.after, c.start_s, c.where, c.offer, c.price) for c in found] == [
        ("--exclusive", "no --exclusive", 0, ("op1",), "", None)
    ]


def test_a_node_on_its_way_is_there_the_sooner_and_input_may_be_later() -> None:
    coming = claim("v1001", S.BOOTING, created=NOW - 40, pool="v100", offer=V_ONLY[0])
    snapshot = make_snapshot(job(gres_per_node=gpus(3)), pools=POOLS, offers=(), claims=(coming,))
    assert [c.start_s for c in changes_for(snapshot)] == [20]
    late = replace(snapshot, data={"1": StagingView(StageState.STAGED, NOW + 500)})
    assert [c.start_s for c in changes_for(late)] == [500]


class NoLongJobs:
    """Refuses machines to jobs of more than five hours, and to more than two nodes at once."""

    name = "careful"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        assert not isinstance(snapshot.slurm, Unavailable)
        limits = {j.id: j.time_limit_s for j in snapshot.slurm.jobs}
        bad = [w for w in target.wants if w.nodes > 2 or any(not 0 < limits[j] <= 5 * 3600 for j in w.jobs)]
        remarks = tuple(r for want in bad for r in remarks_on_dropped_want(want, self.name, "too much"))
        return replace(
            target, wants=tuple(w for w in target.wants if w not in bad), remarks=(*target.remarks, *remarks)
        )


@pytest.mark.parametrize(
    ("limit_s", "before", "after"),
    [(10 * 3600, "-t 10:00:00", "-t 5:00:00"), (86400 * 2, "-t 2-00:00:00", "-t 2:00:00"), (0, "no -t", "-t 4:00:00")],
)
def test_less_time_is_tried_where_a_policy_keeps_it(limit_s: float, before: str, after: str) -> None:
    [change] = changes_for(make_snapshot(job(time_limit_s=limit_s), pools=POOLS, offers=BOTH), NoLongJobs())
    assert (change.before, change.after) == (before, after)
    assert change.command == f"scontrol update JobId=1 TimeLimit={after[3:]}"


def test_the_policies_in_force_are_asked() -> None:
    wide = job(nodes=4, nodes_max=4, cpus=32, time_limit_s=3600, cpus_per_node=8)
    assert before_and_after(changes_for(make_snapshot(wide, pools=POOLS, offers=BOTH), NoLongJobs())) == [
        ("-N 4", "-N 2")
    ]
    none = policies.limits.plugin.make(policies.limits.LimitsSettings(nodes=0))
    assert changes_for(make_snapshot(wide, pools=POOLS, offers=BOTH), none) == ()


def test_jobs_before_it_keep_their_nodes() -> None:
    others = [job(str(n), priority=9, cpus=8) for n in range(2, 5)]
    gang = job(nodes=4, cpus=32, cpus_per_node=8, priority=1)
    snapshot = make_snapshot(*others, gang, job("9", priority=0, cpus=8), pools=POOLS[:1], offers=V_ONLY)
    [change] = changes_for(snapshot)
    assert (change.after, change.where) == ("-N 1", ("v1004",))


def test_jobs_that_are_left_out_keep_their_nodes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if_, "MAX_JOBS_BEFORE", 0)
    test_jobs_before_it_keep_their_nodes()


@pytest.mark.parametrize(
    ("fields", "around"),
    [
        ({}, {"offers": BOTH}),
        ({"reason": "JobHeldUser", "constraint": "x"}, {"offers": BOTH}),
        ({"state": JobState.RUNNING}, {"offers": BOTH}),
        ({"constraint": "x"}, {"offers": BOTH, "paused": "burstctl hold by root"}),
        ({"constraint": "x"}, {"offers": ()}),
        ({"constraint": "x", "memory_mib": 99_000}, {"offers": BOTH}),
    ],
    ids=["gets a node", "held", "runs", "paused", "nothing to be had", "two things at once"],
)
def test_nothing_is_said_where_no_change_helps(fields: dict[str, Any], around: dict[str, Any]) -> None:
    assert changes_for(make_snapshot(job(**fields), pools=POOLS, **around)) == ()
    assert changes_for(make_snapshot(job(**fields), pools=POOLS, **around), job_id="7") == ()


def test_what_slurm_calls_a_bad_constraint_may_be_asked_for_otherwise() -> None:
    found = changes_for(make_snapshot(job(constraint="x", reason="BadConstraints"), pools=POOLS, offers=BOTH))
    assert ("-C x", "-C 'x|v100'") in before_and_after(found)


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({"cpus": 64, "cpus_per_node": 64}, "64 CPUs (-n, -c)", "8 CPUs"),
        ({"nodes": 6, "nodes_max": 6, "cpus": 6}, "-N 6", "-N 4"),
    ],
)
def test_what_slurm_says_that_a_partition_cannot_meet_may_be_asked_for_otherwise(
    fields: dict[str, Any], before: str, after: str
) -> None:
    refused = job(**fields, reason="PartitionConfig")
    first, *_ = changes_for(make_snapshot(refused, pools=POOLS[:1], offers=V_ONLY))
    assert (first.before, first.after) == (before, after)
    fits = job(reason="PartitionConfig")
    assert changes_for(make_snapshot(fits, pools=POOLS, offers=V_ONLY)) == (), "Slurm alone knows why"


def test_tries_are_bounded_by_what_there_is_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    features = frozenset(f"f{n:03}" for n in range(90))
    odd = tuple(node(f"op{n}", partitions=("burst",), features=frozenset({f})) for n, f in enumerate(sorted(features)))
    down = tuple(replace(n, state="DOWN") for n in odd)
    snapshot = make_snapshot(job(constraint="x"), pools=POOLS, offers=(), nodes=down)
    target = make_target(snapshot, ())
    tried: list[Snapshot] = []

    def decide(given: Snapshot) -> Target:
        tried.append(given)
        return make_target(given, ())

    assert helpful_changes(snapshot, Plan((), target, target.remarks), "1", decide) == ()
    assert len(tried) == what_if_.MAX_ATTEMPTS
    tried.clear()
    monkeypatch.setattr(what_if_, "MAX_WORK", 500)
    assert helpful_changes(snapshot, Plan((), target, target.remarks), "1", decide) == ()
    assert len(tried) == what_if_.MIN_ATTEMPTS


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "0:01:00"), (5400, "1:30:00"), (90_000, "1-01:00:00"), (36_000, "10:00:00")]
)
def test_times_are_slurms(seconds: float, text: str) -> None:
    assert time_limit_text(seconds) == text


SLOTS = tuple(f"{p}{n}" for p in ("v100", "a100") for n in range(1, 5))


@pytest.mark.parametrize(
    ("added", "found"),
    [
        (SLOTS, []),
        (SLOTS[4:], [("-x v1001,v1002,v1003,v1004", "no -x", "ExcNodeList=a1001,a1002,a1003,a1004")]),
    ],
    ids=["all", "some"],
)
def test_exclusions_of_burstd_stay(added: tuple[str, ...], found: list[tuple[str, str, str]]) -> None:
    snapshot = make_snapshot(job(excluded_nodes=SLOTS), pools=POOLS, offers=BOTH)
    snapshot = replace(snapshot, runtime_state=RuntimeState(excluded_nodes={"1": frozenset(added)}))
    changes = changes_for(snapshot)
    assert [(c.before, c.after, c.command.removeprefix("scontrol update JobId=1 ")) for c in changes] == found


def test_a_job_that_stays_impossible_is_not_helped_by_room_on_a_node() -> None:
    free = node("op1", partitions=("burst",))
    broker = policies.broker.plugin.make(policies.broker.BrokerSettings())
    asked = job(comment="burst: model=h100", excluded_nodes=("op1", *SLOTS))
    assert changes_for(make_snapshot(asked, pools=POOLS, offers=BOTH, nodes=(free,)), broker) == ()


def test_frameworks_and_fabrics_are_no_alternatives() -> None:
    good = replace(
        POOLS[0], frameworks=(Framework("good-1", "true"),), shape=replace(V100, features=frozenset({"good-1"}))
    )
    fast = replace(POOLS[1], fabric="ib", shape=replace(A100, features=frozenset({"a100", "fabric", "ib"})))
    for asked, after in (("ib", ["no -C"]), ("good-2", ["-C 'good-2|a100'"])):
        snapshot = make_snapshot(job(constraint=asked), pools=(good, fast), offers=BOTH if asked != "ib" else V_ONLY)
        assert [c.after for c in changes_for(snapshot) if c.before.startswith("-C")] == after
