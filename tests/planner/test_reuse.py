"""Idle machines that pass to another pool: which, for whom, and what is left alone."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plan import HandOver, MakeClaim, PowerDown, SetGate
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.node import Reservation
from burstd.domain.snapshot import CircuitBreaker, CloudView, SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.lifecycle.spot_notices import TAKEN_BACK
from burstd.planner.offers.reuse import breaker_key
from burstd.planner.timeouts import Tuning
from policies import idle
from tests.planner.worlds import NOW, claim, job, make_snapshot, offer, pool, slot_node

KEEP = idle.plugin.make(idle.IdleSettings(keep_alive_s=600))
OFFER = offer()
SPOT = offer(spot=True, price="0.5")
A = pool("a", partitions=("short",))
B = pool("b", partitions=("long",), reuse_from=("a",))
ADDRESS = "10.0.0.1"
S = ClaimState


def machine(slot: str = "a1", state: ClaimState = S.IN_SERVICE, **fields: Any) -> Claim:
    about = {"instance_id": f"i-{slot}", "address": ADDRESS, "billed_from": NOW - 300, "launch_called": NOW - 300}
    return claim(slot, state, **(about | fields))


def world(*jobs: Job, claims: tuple[Claim, ...] = (machine(),), **fields: Any) -> Snapshot:
    """A cluster whose clouds list the machines of these claims; its gate holds what is not open."""
    offers = fields.pop("offers", (OFFER,))
    clouds = fields.pop("clouds", None)
    instances = tuple(
        Instance(
            c.instance_id, "sky", InstanceState.RUNNING, c.id, {}, address=c.address, zone="a", instance_type="small"
        )
        for c in claims
        if c.instance_id
    )
    made = make_snapshot(*(jobs or (job("9", partitions=("long",)),)), pools=fields.pop("pools", (A, B)),
                         claims=claims, offers=offers, **fields)  # fmt: skip
    assert isinstance(made.slurm, SlurmView)
    nodes = {
        name: replace(node, address=next((c.address for c in claims if c.slot == name), name))
        for name, node in made.slurm.nodes.items()
    }
    shut = frozenset(nodes) - {c.slot for c in claims if c.state is S.IN_SERVICE}
    slurm = replace(made.slurm, nodes=nodes, reservations=(Reservation("burstd", shut),), read_at=NOW)
    return replace(made, slurm=slurm, clouds=clouds or {"sky": CloudView(offers, instances, instances_listed=NOW)})


def steps(snapshot: Snapshot, policies: tuple[Any, ...] = (KEEP,)) -> tuple[list[str], list[str], list[HandOver]]:
    """Slots of claims that are made, claims that are drained, handovers."""
    actions = decide(snapshot, policies, Tuning()).actions
    drained = [c for a in actions if isinstance(a, SetGate) for c in a.into_drain]
    return (
        [a.claim.slot for a in actions if isinstance(a, MakeClaim)],
        drained,
        [a for a in actions if isinstance(a, HandOver)],
    )


def test_an_idle_node_that_is_kept_for_a_while_is_drained_and_no_machine_launched() -> None:
    assert steps(world()) == ([], ["c-a1"], [])


def test_one_that_is_drained_and_idle_is_handed_over_and_not_terminated() -> None:
    snapshot = world(claims=(machine(state=S.DRAINING, since=NOW - 1),))
    made, drained, [step] = steps(snapshot)
    assert (made, drained, step.claim_id, step.is_done) == ([], [], "c-a1", False)
    onward = step.claim
    assert (onward.pool, onward.slot, onward.jobs, onward.users) == ("b", "b1", ("9",), ("ada",))
    assert not [a for a in decide(snapshot, (KEEP,), Tuning()).actions if isinstance(a, PowerDown) and a.terminating]


def test_it_is_not_handed_over_before_its_node_was_seen_idle_behind_the_gate() -> None:
    assert steps(world(claims=(machine(state=S.DRAINING, since=NOW + 1),))) == ([], [], [])


def test_without_the_setting_nothing_is_handed_over() -> None:
    assert steps(world(pools=(A, replace(B, reuse_from=())))) == (["b1"], [], [])


def test_of_two_jobs_one_gets_the_machine_and_the_other_a_new_one() -> None:
    jobs = [job(str(n), partitions=("long",), cpus_per_node=4, exclusive=True) for n in (8, 9)]
    made, drained, _ = steps(world(*jobs))
    assert (len(made), drained) == (1, ["c-a1"])


ON_DEMAND_RULE = OfferRule("sky", markets=("on-demand",))


@pytest.mark.parametrize(
    ("claims", "fields"),
    [
        ((machine(reserved=Decimal(5)),), {}),
        ((machine(dedicated_by_policy=True),), {}),
        ((machine(gang="9"),), {}),
        ((machine(image="older"),), {}),
        ((machine(offer=offer("large", "1")),), {"offers": (OFFER,)}),
        ((machine(offer=offer("large", "3")),), {"offers": (OFFER, offer("large", "3"))}),
        ((machine(offer=offer(spot=True)),), {"offers": (OFFER, offer(spot=True))}),
        ((machine(billed_from=None),), {}),
        ((machine(),), {"drained_slots": frozenset({"a1"})}),
        ((machine(),), {"bound": {"9": frozenset({"a1"})}}),
        ((machine(),), {"claims_with_volume": frozenset({"c-a1"})}),
        ((machine(),), {"data": {"3": StagingView(StageState.DELIVERING, NOW - 50, nodes=("a1",))}}),
        ((machine(),), {"breakers": (CircuitBreaker(breaker_key("b"), "reuse", 1, NOW + 60, "it failed"),)}),
        ((machine(),), {"pools": (A, replace(B, rules=(replace(ON_DEMAND_RULE, image="other"),)))}),
        ((machine(),), {"pools": (A, replace(B, fabric="efa"))}),
        ((machine(),), {"clouds": {"sky": CloudView((OFFER,), (), instances_listed=NOW)}}),
        ((machine(state=S.DRAINING, since=NOW - 100),), {}),
        ((machine(state=S.DRAINING, since=NOW - 1, reason="GPU 0 fell off the bus (Xid 79)", error="health"),), {}),
    ],
    ids=["budget", "dedicated", "gang", "image", "not offered", "dearer", "spot for on-demand", "no bill", "held",
         "bound", "volume", "data", "failed before", "other image", "no fabric", "not listed",
         "drains for long", "ill"],
)  # fmt: skip
def test_what_is_bound_or_does_not_fit_stays(claims: tuple[Claim, ...], fields: dict[str, Any]) -> None:
    made, _, handed = steps(world(claims=claims, **fields))
    assert (made, handed) == (["b1"], [])


def test_one_that_is_busy_or_taken_back_is_waited_for_by_nobody() -> None:
    busy = replace(slot_node(A, "a1", up=True), state="MIXED", cpus_allocated=1, address=ADDRESS)
    draining = machine(state=S.DRAINING, since=NOW - 1)
    made, _, handed = steps(world(claims=(draining,), nodes=(busy,)))
    assert (made, handed) == (["b1"], [])
    made, _, handed = steps(world(claims=(replace(draining, reason=f"{TAKEN_BACK}: its cloud says so"),)))
    assert (made, handed) == (["b1"], [])


def test_machines_of_a_pool_that_is_not_named_stay() -> None:
    other = pool("c", partitions=("third",), reuse_from=("b",))
    snapshot = world(job("9", partitions=("third",)), pools=(A, B, other))
    assert steps(snapshot) == (["c1"], [], [])


def test_a_pod_is_never_handed_over() -> None:
    snapshot = world()
    ends = replace(snapshot.clouds["sky"], machines_outlive_nodes=False)
    assert steps(replace(snapshot, clouds={"sky": ends})) == (["b1"], [], [])


def test_a_minimum_of_the_other_pool_stays() -> None:
    least = idle.plugin.make(idle.IdleSettings(keep_alive_s=600, min_nodes=1))
    two = world(claims=(machine(), machine("a2", address="10.0.0.2")))
    assert [len(drained) for _, drained, _ in (steps(world(), (least,)), steps(two, (least,)))] == [0, 1]


def test_gangs_and_het_jobs_get_machines_of_their_own() -> None:
    gang = job("9", partitions=("long",), nodes=2)
    assert steps(world(gang, claims=(machine(), machine("a2", address="10.0.0.2")))) == (["b1", "b2"], [], [])


def test_explain_has_the_figures() -> None:
    earlier = machine("b2", address="10.0.0.9", reused_from="a2", created=NOW - 110, in_service_from=NOW - 90)
    busy = job("3", partitions=("long",))
    snapshot = replace(world(claims=(machine(), earlier)), drained_slots=frozenset({"b2"}))
    progress = replace(snapshot.runtime_state, boot_durations={"b": (180.0,)})
    plan = decide(replace(snapshot, runtime_state=progress), (KEEP,), Tuning())
    assert [r.reason for r in plan.remarks if r.subject == "job:9"][-1] == (
        "node b1 is machine a1 of pool a, handed over: ready in about 20 s instead of 180 s, saves 0.04 EUR"
    )
    assert busy


def test_an_older_record_follows_the_machine() -> None:
    """The copy has a1 in service; in Slurm its machine is b2, and a job runs there."""
    runs = job("9", partitions=("long",), state=job().state.RUNNING, node_list=("b2",))
    snapshot = world(runs, claims=(machine(),))
    assert isinstance(snapshot.slurm, SlurmView)
    nodes = dict(snapshot.slurm.nodes)
    nodes["a1"] = replace(nodes["a1"], flags=frozenset({"CLOUD", "POWERED_DOWN"}))
    nodes["b2"] = replace(nodes["b2"], flags=frozenset({"CLOUD"}), state="ALLOCATED", cpus_allocated=4, address=ADDRESS)
    _, drained, [step] = steps(replace(snapshot, slurm=replace(snapshot.slurm, nodes=nodes)))
    assert (drained, step.is_done, step.claim.slot, step.claim.jobs) == ([], True, "b2", ("9",))
