"""Pending jobs onto nodes: what is covered, what boots, what waits, what can never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Reservation
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CircuitBreaker, CloudView, RuntimeState, SlurmView, Unavailable
from burstd.planner.policy_chain import make_target

from .worlds import NOW, V100, claim, job, last_verdict, make_snapshot, node, offer, pool, slot_node, target, wants


def test_a_waiting_job_gets_a_new_node() -> None:
    found = target(job())
    [want] = found.wants
    assert (want.pool, want.nodes, want.jobs, want.users, want.slots) == ("cpu", 1, ("1",), ("ada",), ("cpu1",))
    assert want.offers == (offer(),)
    assert last_verdict(found) == ("boot", "the job gets a new node in pool cpu: cpu1, sky/r1/a/small/on-demand")


@pytest.mark.parametrize(
    ("case", "jobs", "nodes"),
    [
        ("four of one CPU share a node", [job(str(n)) for n in range(4)], 1),
        ("memory packs as well", [job(str(n), memory_mib=5000) for n in range(2)], 2),
        ("memory for each CPU", [job(str(n), cpus=2, memory_mib=3000, memory_per_cpu=True) for n in range(2)], 2),
        ("exclusive takes whole nodes", [job(str(n), exclusive=True) for n in range(3)], 3),
        ("a small one fills the gap", [job("1", cpus=3), job("2", cpus=3), job("3"), job("4")], 2),
        ("array tasks pack like jobs", [job("1", tasks=10, array_job_id="1", array_tasks="1-10")], 3),
        ("no more than there are slots", [job("1", tasks=100, array_job_id="1", array_tasks="1-100")], 4),
    ],
)
def test_packing(case: str, jobs: list[Job], nodes: int) -> None:
    assert sum(w.nodes for w in target(*jobs).wants) == nodes, case


def test_gpus_are_packed_by_name_and_type() -> None:
    gpu = pool("gpu", shape=Shape(16, 64_000, V100))
    offers = (offer("p3", shape=gpu.shape), offer(price="0.1"))
    jobs = [job(str(n), gres_per_node=(Gres("gpu", "", 2),)) for n in range(3)]
    found = target(*jobs, job("9", gres_per_node=(Gres("gpu", "a100", 1),)), pools=(pool(), gpu), offers=offers)
    assert wants(found) == [("gpu", 1, ("0", "1")), ("gpu", 1, ("2",))]
    assert last_verdict(found, "9") == (
        "impossible",
        "; ".join(f"no node in pool {name} has gpu:a100:1" for name in ("cpu", "gpu")),
    )


_GPU = pool("gpu", shape=Shape(16, 64_000, (*V100, Gres("shard", "", 8))))
_CPU_FULL = (claim("cpu1", S.DRAINING), claim("cpu2", S.DRAINING), claim("cpu3", S.DRAINING), claim("cpu4", S.DRAINING))


@pytest.mark.parametrize(
    ("case", "fields", "gpu_pool", "machines"),
    [
        ("no GPU", {}, _GPU, 0),
        ("no GPU, but other GRES", {"gres_per_job": (Gres("license", "", 0),)}, _GPU, 0),
        ("several nodes", {"nodes": 2, "nodes_max": 2, "cpus": 2}, _GPU, 0),
        ("the pool admits it", {}, replace(_GPU, cpu_jobs=True), 1),
        ("the pool admits it on several nodes", {"nodes": 2, "nodes_max": 2}, replace(_GPU, cpu_jobs=True), 2),
        ("a GPU", {"gres_per_node": (Gres("gpu", "", 1),)}, _GPU, 1),
        ("GPUs over all nodes", {"gres_per_job": (Gres("gpu", "", 8),)}, _GPU, 2),
        ("a part of a GPU", {"gres_per_node": (Gres("shard", "", 1),)}, _GPU, 1),
    ],
)
def test_no_machine_with_gpus_starts_for_a_job_without(
    case: str, fields: dict[str, Any], gpu_pool: Pool, machines: int
) -> None:
    offers = (offer(), offer("p3", shape=_GPU.shape))
    found = target(job(**fields), pools=(pool(), gpu_pool), offers=offers, claims=_CPU_FULL)
    assert sum(want.nodes for want in found.wants) == machines, case
    alone = target(job(**fields), pools=(gpu_pool,), offers=offers)
    assert last_verdict(alone) == (
        ("impossible", "no node in pool gpu has a place for a job without GPUs (--gres=gpu:1 asks for one)")
        if not machines
        else last_verdict(found)
    )


def test_a_machine_with_gpus_that_is_there_runs_jobs_without() -> None:
    coming = claim("gpu1", S.BOOTING, offer=offer(shape=_GPU.shape))
    found = target(job(), pools=(pool(), _GPU), offers=(offer(),), claims=(coming,))
    assert wants(found) == []
    assert found.placements == {"1": ("gpu1",)}


def test_a_job_without_gpus_takes_no_machine_that_comes_for_a_job_with_one() -> None:
    """That job would get another, which the next job without GPUs would take, and so on."""
    waiting = job("9", gres_per_node=(Gres("gpu", "", 1),))
    jobs = (job("1", exclusive=True, priority=9), waiting)
    offers = (offer("p3", shape=_GPU.shape),)
    assert wants(target(*jobs, pools=(_GPU,), offers=offers)) == [("gpu", 1, ("9",))]
    coming = claim("gpu1", S.BOOTING, offer=offers[0], jobs=("9",))
    found = target(*jobs, pools=(_GPU,), offers=offers, claims=(coming,))
    assert wants(found) == []
    assert found.placements == {"9": ("gpu1",)}
    beside = target(waiting, job("1"), pools=(_GPU,), offers=offers)
    assert wants(beside) == [("gpu", 1, ("9",))]
    assert last_verdict(beside, "1")[0] == "impossible"


def test_the_pool_that_holds_all_for_the_least_money() -> None:
    big = pool("big", shape=Shape(16, 64_000))
    offers = (offer(price="1"), offer("large", "3", big.shape))
    one = target(job(cpus=4), pools=(pool(), big), offers=offers)
    assert [w.pool for w in one.wants] == ["cpu"]
    many = target(*(job(str(n), cpus=4) for n in range(4)), pools=(pool(), big), offers=offers)
    assert [w.pool for w in many.wants] == ["big"]


def test_a_free_node_on_premises_comes_first() -> None:
    found = target(job(partitions=("onprem", "burst")), nodes=(node("op1"),))
    assert wants(found) == []
    assert last_verdict(found) == ("covered", "the job fits on op1 (in service)")
    assert found.placements == {"1": ("op1",)}


@pytest.mark.parametrize(
    ("case", "fields"),
    [
        ("busy", {"cpus_allocated": 4, "state": "ALLOCATED"}),
        ("drained", {"flags": frozenset({"DRAIN"})}),
        ("down", {"state": "DOWN"}),
        ("kept for another job", {"flags": frozenset({"PLANNED"})}),
        ("of another partition", {"partitions": ("debug",)}),
        ("too little memory", {"memory_mib": 1000}),
    ],
)
def test_a_node_that_will_not_take_the_job_does_not_cover_it(case: str, fields: dict[str, Any]) -> None:
    found = target(job(partitions=("onprem", "burst"), memory_mib=4000), nodes=(replace(node("op1"), **fields),))
    assert len(found.wants) == 1, case


def test_higher_jobs_of_other_partitions_take_the_node_first() -> None:
    rival = job("9", partitions=("onprem",), priority=10, cpus=4)
    found = target(job(partitions=("onprem", "burst")), rival, nodes=(node("op1"),))
    assert wants(found) == [("cpu", 1, ("1",))]
    assert [r.subject for r in found.remarks] == ["job:1"], "jobs that no pool serves are none of our business"


def test_a_reserved_node_is_not_free() -> None:
    snapshot = make_snapshot(job(partitions=("onprem", "burst")), nodes=(node("op1"),))
    assert isinstance(snapshot.slurm, SlurmView)
    kept = replace(snapshot.slurm, reservations=(Reservation("maint", frozenset({"op1"}), end=NOW + 60),))
    assert len(make_target(replace(snapshot, slurm=kept), ()).wants) == 1
    over = replace(snapshot.slurm, reservations=(Reservation("maint", frozenset({"op1"}), end=NOW - 60),))
    assert make_target(replace(snapshot, slurm=over), ()).wants == ()


@pytest.mark.parametrize("state", [S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE])
def test_a_claim_in_flight_serves_its_job(state: S) -> None:
    found = target(*(job(str(n)) for n in range(4)), claims=(claim("cpu1", state),))
    assert found.wants == ()
    assert last_verdict(found, "0")[0] == "covered"
    assert found.releases == ()


@pytest.mark.parametrize("state", [S.DRAINING, S.FAILED, S.LOST, S.TERMINATING])
def test_a_draining_claim_neither_serves_nor_frees_its_slot(state: S) -> None:
    found = target(job(), claims=(claim("cpu1", state),))
    assert [w.slots for w in found.wants] == [("cpu2",)]


def test_idle_nodes_that_nothing_needs_are_released() -> None:
    busy = replace(slot_node(pool(), "cpu2", up=True), state="MIXED", cpus_allocated=1)
    claims = (claim("cpu1", S.IN_SERVICE), claim("cpu2", S.IN_SERVICE), claim("cpu3"), claim("cpu4", S.BOOTING))
    found = target(claims=claims, nodes=(busy,))
    assert [r.claim_id for r in found.releases] == ["c-cpu1", "c-cpu3"]


def test_gang_is_all_or_nothing() -> None:
    found = target(job(nodes=3, cpus=6))
    [want] = found.wants
    assert (want.nodes, want.gang, want.slots) == (3, "1", ("cpu1", "cpu2", "cpu3"))
    short = target(job(nodes=3, cpus=6), claims=(claim("cpu1", S.TERMINATING), claim("cpu2", S.TERMINATING)))
    assert short.wants == ()
    taken = "2 in use, launching or terminating"
    assert last_verdict(short) == (
        "wait",
        f"pool cpu: 2 free slot(s), 3 needed ({taken}, 0 for jobs ahead; 4 in total)",
    )
    assert last_verdict(target(job(nodes=5, cpus=5))) == (
        "impossible",
        "the job needs 5 node(s) at once, pool cpu has 4 slots",
    )


def test_a_gangs_claims_are_its_own() -> None:
    mine = tuple(claim(f"cpu{n}", S.BOOTING, gang="2", jobs=("2",)) for n in (1, 2))
    small, gang = job("1", priority=9), job("2", nodes=3, cpus=3)
    found = target(small, gang, claims=mine)
    assert wants(found) == [("cpu", 1, ("1",)), ("cpu", 1, ("2",))]
    assert found.placements == {"2": ("cpu1", "cpu2")}
    assert found.wants[1].gang == "2"
    freed = target(small, claims=mine)
    assert freed.wants == (), "its job is gone: anyone may use them"


def test_a_gang_uses_open_nodes_and_boots_the_rest() -> None:
    found = target(job(nodes=3, cpus=3), claims=(claim("cpu1", S.IN_SERVICE),))
    assert wants(found) == [("cpu", 2, ("1",))]
    assert found.placements == {"1": ("cpu1",)}


def test_a_gang_that_waits_for_a_node_keeps_those_that_are_ready() -> None:
    held = tuple(claim(f"cpu{n}", S.TERMINATING) for n in (3, 4))
    found = target(job(nodes=3, cpus=3), claims=(claim("cpu1", gang="1"), claim("cpu2", gang="1"), *held))
    assert found.wants == ()
    assert found.releases == ()


def test_tasks_are_spread_where_no_node_is_large_enough() -> None:
    [want] = target(job(cpus=10)).wants
    assert (want.nodes, want.gang) == (3, "1")
    assert last_verdict(target(job(cpus=10, nodes_max=1)))[0] == "impossible"
    assert last_verdict(target(job(cpus=10, cpus_per_node=10)))[0] == "impossible"


def test_array_of_gangs() -> None:
    row = job("7", nodes=2, cpus=2, tasks=3, array_job_id="7", array_tasks="4-6")
    found = target(row)
    assert [(w.gang, w.jobs, w.nodes) for w in found.wants] == [("7_4", ("7",), 2), ("7_5", ("7",), 2)]
    assert last_verdict(found, "7")[1].startswith(
        "2 task(s) get 4 new node(s): cpu1, cpu2, cpu3, cpu4; 1 task(s) waiting: "
    )
    later = target(row, claims=tuple(claim(f"cpu{n}", S.BOOTING, gang="7_4") for n in (1, 2)))
    assert [w.gang for w in later.wants] == ["7_5"]


def test_het_components_start_together_or_not_at_all() -> None:
    gpu = pool("gpu", 2, shape=Shape(16, 64_000, V100))
    offers = (offer(), offer("p3", shape=gpu.shape))
    first = job("5", het_job_id="5", cpus=4)
    second = job("5+1", het_job_id="5", het_offset=1, nodes=2, cpus=2, gres_per_node=(Gres("gpu", "v100", 4),))
    found = target(first, second, pools=(pool(), gpu), offers=offers)
    assert [(w.pool, w.nodes, w.gang, w.jobs) for w in found.wants] == [
        ("cpu", 1, "5", ("5",)),
        ("gpu", 2, "5", ("5+1",)),
    ]
    full = target(first, second, pools=(pool(), gpu), offers=offers, claims=(claim("gpu1", S.TERMINATING),))
    assert full.wants == ()
    assert last_verdict(full, "5")[1].startswith(
        "the components start together, and 5+1 cannot: pool gpu: 1 free slot(s)"
    )
    alone = target(
        first, second, job("9"), pools=(pool("cpu", 1), gpu), offers=offers, claims=(claim("gpu1", S.FAILED),)
    )
    assert wants(alone) == [("cpu", 1, ("9",))], "what a het job could not use is free again"


def test_nodes_that_a_job_names_or_excludes() -> None:
    assert [w.slots for w in target(job(excluded_nodes=("cpu1", "cpu2"))).wants] == [("cpu3",)]
    assert [w.slots for w in target(job(node_list=("cpu4",))).wants] == [("cpu4",)]
    assert [w.slots for w in target(job(nodes=2, cpus=2, node_list=("cpu3",))).wants] == [("cpu3", "cpu1")]
    assert last_verdict(target(job(node_list=("op1",)), nodes=(node("op1"),)))[0] == "impossible"


def test_constraints_choose_pools_and_mix_them() -> None:
    fast = pool("fast", 2, shape=Shape(4, 8000, features=frozenset({"fast"})))
    slow = pool("slow", 2, shape=Shape(4, 8000, features=frozenset({"slow"})))
    pools = (slow, fast)
    assert [w.pool for w in target(job(constraint="fast"), pools=pools).wants] == ["fast"]
    assert [w.pool for w in target(job(nodes=2, cpus=2, constraint="[fast|slow]"), pools=pools).wants] == ["fast"]
    mixed = target(job(nodes=3, cpus=3, constraint="[fast*1&slow*2]"), pools=pools)
    assert sorted((w.pool, w.nodes, w.gang) for w in mixed.wants) == [("fast", 1, "1"), ("slow", 2, "1")]
    assert last_verdict(target(job(nodes=3, cpus=3, constraint="[fast|slow]"), pools=pools))[0] == "impossible"
    assert last_verdict(target(job(constraint="!fast"), pools=pools)) == (
        "impossible", "invalid constraint '!fast': unexpected '!'",
    )  # fmt: skip


def test_a_job_that_only_the_site_can_run_waits_for_it() -> None:
    busy = node("op1", cpus=64, cpus_allocated=64, state="ALLOCATED")
    found = target(job(cpus=32, cpus_per_node=32, partitions=("onprem", "burst")), nodes=(busy,))
    assert found.wants == ()
    assert last_verdict(found)[0] == "wait"


def test_bound_nodes_are_dedicated_to_their_job() -> None:
    second = job("2", reservation="burstd-2", reason="Reservation")
    found = target(job("1", priority=5), second, claims=(claim("cpu1"),), bound={"2": frozenset({"cpu1"})})
    assert wants(found) == [("cpu", 1, ("1",))]
    assert found.placements == {"2": ("cpu1",)}


def test_slots_that_are_not_free() -> None:
    off = frozenset({"CLOUD", "POWERED_DOWN", "DRAIN"})
    drained = replace(slot_node(pool(), "cpu1", up=False), flags=off)
    going = replace(drained, name="cpu2", flags=frozenset({"CLOUD", "POWERING_DOWN"}))
    found = target(job(nodes=2, cpus=2), nodes=(drained, going), drained_slots=frozenset({"cpu3"}))
    assert found.wants == ()
    assert last_verdict(found)[1].startswith("pool cpu: 1 free slot(s), 2 needed (0 in use")


def test_no_offer_no_node() -> None:
    found = target(job(), offers=())
    assert found.wants == ()
    assert last_verdict(found) == (
        "impossible",
        "no offer can serve pool cpu: the pool's rules allow no offer of any provider",
    )


def test_unreadable_clouds_and_slurm() -> None:
    snapshot = make_snapshot(job(), claims=(claim("cpu4", S.IN_SERVICE),))
    dark = replace(snapshot, clouds={"sky": CloudView(Unavailable("timed out", 0), ())})
    assert make_target(dark, ()).wants == ()
    assert last_verdict(make_target(replace(dark, claims=()), ()))[1].endswith("sky: cannot read its offers: timed out")
    blind = make_target(replace(snapshot, slurm=Unavailable("slurmctld does not answer", 0)), ())
    assert (blind.wants, blind.releases) == ((), ())
    assert blind.remarks[0].reason == "cannot read Slurm: slurmctld does not answer"


def test_a_free_node_that_slurm_does_not_use_is_not_trusted_for_ever() -> None:
    waiting = job(partitions=("onprem", "burst"))
    patient = target(waiting, nodes=(node("op1"),), runtime_state=RuntimeState(stuck_since={"1": NOW - 100}))
    assert patient.wants == ()
    tired = target(waiting, nodes=(node("op1"),), runtime_state=RuntimeState(stuck_since={"1": NOW - 130}))
    assert wants(tired) == [("cpu", 1, ("1",))]
    stuck = target(
        waiting, claims=(claim("cpu1", S.IN_SERVICE),), runtime_state=RuntimeState(stuck_since={"1": NOW - 700})
    )
    assert stuck.wants == ()
    assert [r.claim_id for r in stuck.releases] == ["c-cpu1"]
    assert last_verdict(stuck)[1].startswith("the job fits on cpu1 (in service), but Slurm has not started it there")


def test_running_jobs_want_nothing() -> None:
    assert target(job(state=JobState.RUNNING), job("2", state=JobState.CONFIGURING)).wants == ()


def test_a_job_with_a_choice_leaves_others_what_was_made_for_them() -> None:
    """First fit alone would give job 1 the claim of job 2, and start one more for job 2, at every look."""
    other = pool("other", partitions=("gpu",))
    free, bound_to_burst = job("1", partitions=("burst", "gpu"), cpus=4), job("2", cpus=4)
    claims = (claim("cpu1", S.BOOTING, jobs=("2",)), claim("other1", S.PLANNED, jobs=("1",)))
    found = target(free, bound_to_burst, pools=(pool(), other), claims=claims)
    assert found.wants == ()
    assert found.placements == {"1": ("other1",), "2": ("cpu1",)}


def test_a_gang_does_not_take_what_was_made_for_others() -> None:
    mine = claim("cpu1", S.BOOTING, jobs=("2",))
    found = target(job("1", nodes=2, cpus=2, priority=1), job("2", exclusive=True), claims=(mine,))
    assert [(w.slots, w.gang) for w in found.wants] == [(("cpu2", "cpu3"), "1")]
    nobodys = target(job("1", nodes=2, cpus=2, priority=1), claims=(mine,))
    assert [w.slots for w in nobodys.wants] == [("cpu2",)], "nobody waits for it any more"


def test_nodes_in_service_come_before_claims_in_flight() -> None:
    claims = (claim("cpu1", S.BOOTING, jobs=("9",)), claim("cpu2", S.IN_SERVICE))
    assert target(job(), claims=claims).placements == {"1": ("cpu2",)}


def test_what_was_made_for_a_job_comes_before_what_is_open_to_all() -> None:
    """Else the first node that opens is counted for the first job, and another is started for the job it was for."""
    claims = (claim("cpu1", S.BOOTING, jobs=("1",)), claim("cpu2", S.IN_SERVICE, jobs=("2",)))
    made = target(job(), job("2"), claims=claims)
    assert made.placements == {"1": ("cpu1",), "2": ("cpu2",)}
    assert made.wants == ()


@pytest.mark.parametrize(
    ("case", "offers", "verdict", "why"),
    [
        ("too small", (offer(shape=Shape(2, 8000)),), "impossible", "smaller than the pool's slots: 2 CPUs of 4"),
        ("none that the rules allow", (offer("big", provider="sea"),), "impossible", "the pool's rules allow no offer"),
        ("one that rests", (offer(),), "wait", "failed 1 time(s) (capacity), next attempt in 100 s"),
    ],
)
def test_a_job_that_no_offer_can_ever_run_is_told_so(
    case: str, offers: tuple[Offer, ...], verdict: str, why: str
) -> None:
    rests = CircuitBreaker(offer().id, "capacity", 1, NOW + 100)
    found = last_verdict(target(job(), offers=offers, breakers=(rests,)))
    assert found[0] == verdict, case
    assert why in found[1]
    both = job(partitions=("onprem", "burst"))
    busy = node("op1", state="ALLOCATED", cpus_allocated=4)
    assert last_verdict(target(both, offers=offers, nodes=(busy,), breakers=(rests,)))[0] == "wait", (
        "the site may run it"
    )
    there = replace(slot_node(pool(), "cpu1", up=True), state="ALLOCATED", cpus_allocated=4)
    waits = target(job(), offers=offers, nodes=(there,), claims=(claim("cpu1", S.IN_SERVICE),), breakers=(rests,))
    assert last_verdict(waits)[0] == "wait", "a node that is there may run it later"
