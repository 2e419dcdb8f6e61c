"""Nodes that hold output of a job stay until it is off them, or for as long as the settings say."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import policies.idle
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.plan import ChangeClaimState, Plan, PowerDown, SetGate, TerminateMachines, UnbindJob
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.snapshot import CloudView, Pin, RuntimeState, Sighting, SlurmView, Snapshot
from burstd.domain.staging import OUTPUT_ON_NODES, StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.lifecycle.listing import listing_alarms
from burstd.planner.lifecycle.output_retention import retained_nodes, retention_alarm
from burstd.planner.timeouts import Tuning
from burstd.testing.policy.strategies import NOW as THEN
from burstd.testing.policy.strategies import snapshots

from .worlds import NOW, claim, job, make_snapshot, offer, pool, slot_node, target, wants

IDLE = policies.idle.plugin.make(policies.idle.plugin.settings(keep_alive_s=0))
TUNING = Tuning()
CPU = pool()


def held(state: StageState = StageState.COLLECTING, **fields: Any) -> dict[str, StagingView]:
    return {"12": replace(StagingView(state, 0.0, ("cpu1",), since=NOW - 50), **fields)}


def seen(one: Claim, data: dict[str, StagingView], *jobs: Job, **fields: Any) -> Snapshot:
    """A world with this claim, its instance, and a gate over every slot that is not open."""
    nodes = fields.pop("nodes", (replace(slot_node(CPU, one.slot, up=True), address=one.address),))
    base = make_snapshot(*jobs, claims=(one,), data=data, nodes=nodes, **fields)
    assert isinstance(base.slurm, SlurmView)
    gate = Reservation("burstd", frozenset(s for s in CPU.slots if s != one.slot or one.state is not S.IN_SERVICE))
    instance = Instance("i1", "sky", InstanceState.RUNNING, one.id, address=one.address)
    return replace(
        base,
        slurm=replace(base.slurm, reservations=(gate, *fields.pop("reservations", ())), read_at=NOW - 1),
        clouds={"sky": CloudView((offer(),), (instance,), (), NOW - 1)},
    )


def done(snapshot: Snapshot) -> list[str]:
    """What the plan does to the one claim."""
    words = []
    for action in decide(snapshot, (IDLE,), TUNING).actions:
        match action:
            case SetGate(into_drain=(_,)):
                words.append("close")
            case PowerDown(terminating=(_,)):
                words.append("power down")
            case TerminateMachines():
                words.append("terminate")
            case ChangeClaimState():
                words.append(action.new.value)
    return words


OPEN = claim("cpu1", S.IN_SERVICE, address="a1", instance_id="i1")
CLOSING = claim("cpu1", S.DRAINING, address="a1", instance_id="i1")
READY = claim("cpu1", S.READY, address="a1", instance_id="i1")
ENDING = claim("cpu1", S.TERMINATING, address="a1", instance_id="i1")
DOWN: dict[str, Any] = {"nodes": (Node("cpu1", "DOWN", address="a1"),)}
AT_WORK: dict[str, Any] = {"nodes": (Node("cpu1", "MIXED", cpus=4, cpus_allocated=1, address="a1"),)}
CEILING: dict[str, Any] = {"pins": (Pin("cpu", 0, "ceiling", None, "root", NOW),)}


def lost(since_s: float) -> dict[str, Any]:
    """Neither lists nor Slurm nor a shell has the machine."""
    progress = RuntimeState(missing_sightings={OPEN.id: Sighting(2, NOW - since_s)}, unreachable_at={OPEN.id: NOW})
    return {"runtime_state": progress, "nodes": (Node("cpu1", "IDLE", frozenset({"NOT_RESPONDING"}), address="a1"),)}


@pytest.mark.parametrize(
    ("case", "one", "data", "fields", "expected"),
    [
        ("idle, with nothing of anybody", OPEN, {}, {}, ["close"]),
        ("idle, its output is being collected", OPEN, held(), {}, []),
        ("idle, the end of its job is not known yet", OPEN, held(StageState.FETCHED), {}, []),
        ("its input is being brought", OPEN, held(StageState.FETCHING), {}, []),
        ("all is in the store", OPEN, held(StageState.DELIVERING), {}, ["close"]),
        ("all is home", OPEN, held(StageState.DELIVERED), {}, ["close"]),
        ("of another node", OPEN, held(nodes=("cpu2",)), {}, ["close"]),
        ("of an earlier machine on the slot", OPEN, held(since=NOW - 5000), {}, ["close"]),
        ("a machine made before the job ended, tried again since", OPEN, held(ended=NOW - 70), {}, []),
        ("kept for long enough", OPEN, held(ended=NOW - 90_000), {}, ["close"]),
        ("an administrator holds the slot", OPEN, held(), {"drained_slots": frozenset({"cpu1"})}, ["close"]),
        ("an administrator scales to none", OPEN, held(), CEILING, ["close"]),
        ("down in Slurm", OPEN, held(), DOWN, ["close"]),
        ("the machine is gone", OPEN, {}, lost(60), ["lost"]),
        ("the machine seems gone, with output", OPEN, held(), lost(599), []),
        ("the machine is gone, with output", OPEN, held(), lost(601), ["lost"]),
        ("closed, with nothing of anybody", CLOSING, {}, {}, ["power down"]),
        ("closed", CLOSING, held(), {}, []),
        ("closed and down", CLOSING, held(), DOWN, []),
        ("a job got in", CLOSING, held(StageState.FETCHED), AT_WORK, ["ready"]),
        ("ready and down, with nothing", READY, {}, DOWN, ["failed", "draining"]),
        ("ready and down", READY, held(), DOWN, []),
        ("being ended, with nothing", ENDING, {}, {}, ["terminate"]),
        ("a job got in at the last moment and left output", ENDING, held(), {}, []),
        (
            "already asked for",
            ENDING,
            held(),
            {"runtime_state": RuntimeState(termination_accepted=frozenset({OPEN.id}))},
            ["terminate"],
        ),
        ("broken", replace(ENDING, error="node_down"), held(), {}, ["terminate"]),
    ],
)
def test_what_becomes_of_a_node(
    case: str, one: Claim, data: dict[str, StagingView], fields: dict[str, Any], expected: list[str]
) -> None:
    one = replace(one, created=NOW - 100 if data and next(iter(data.values())).ended == 0 else NOW - 100_000)
    assert done(seen(one, data, **fields)) == expected, case


def test_the_limit_is_counted_from_the_end_of_the_job() -> None:
    old = replace(OPEN, created=NOW - 500_000)
    for data, until in (
        (held(since=NOW - 10, ended=NOW - 80_000), NOW + 6400),
        (held(since=NOW - 80_000), NOW + 6400),
        # A job that runs on is no reason to count; where it was last seen at work is.
        (held(StageState.FETCHED, since=NOW - 300_000), NOW - 100 + 86400),
    ):
        assert retained_nodes(seen(old, data))[old.id].until == until
    running = retained_nodes(seen(old, held(StageState.FETCHED, since=NOW - 300_000), **AT_WORK))
    assert running[old.id].until == NOW + 86400
    assert retained_nodes(seen(old, held(ended=NOW - 80_000)), retention_s=3600) == {}


def test_other_jobs_may_use_a_kept_node() -> None:
    found = target(job(), claims=(OPEN,), data=held())
    assert (wants(found), found.placements) == ([], {"1": ("cpu1",)})


def test_a_ceiling_closes_others_first() -> None:
    other = claim("cpu2", S.IN_SERVICE)
    found = target(claims=(OPEN, other), data=held(), policies=(IDLE,), pins=(Pin("cpu", 1, "exact", None, "r", NOW),))
    assert [r.claim_id for r in found.releases] == [other.id]


def test_it_is_told() -> None:
    snapshot = seen(OPEN, held(error="ssh: no route to host"), job("12", state=JobState.STAGE_OUT))
    plan = decide(snapshot, (IDLE,), TUNING)
    says = (
        "cpu1 holds output of job 12 that is not in the store (last: ssh: no route to host);"
        " kept until 1970-01-13 13:45 UTC"
    )
    assert says in [r.reason for r in plan.remarks if r.subject == f"claim:{OPEN.id}"]
    assert [r.reason for r in explain_job(snapshot, plan, "12").remarks] == [says]
    assert retention_alarm(snapshot) == (
        "1 node(s) are kept for output that is not in the store,"
        " which has cost 0.01 EUR since their jobs ended and costs 1.00 EUR/h: cpu1 for job 12"
        " (until 1970-01-13 13:45 UTC); 'burstctl stage status' has the reason"
    )
    assert retention_alarm(seen(OPEN, held())) == ""
    assert "given up" in retention_alarm(seen(replace(OPEN, created=NOW - 200_000), held(ended=NOW - 90_000)))


def test_a_list_is_not_contradicted_while_a_machine_with_output_is_given_time() -> None:
    missing = RuntimeState(missing_sightings={OPEN.id: Sighting(9, NOW - 400)})
    for data, alarms in ((held(), 0), ({}, 1)):
        assert len(listing_alarms(replace(seen(OPEN, data), runtime_state=missing), 600.0, 86400.0)) == alarms
    long_ago = RuntimeState(missing_sightings={OPEN.id: Sighting(9, NOW - 901)})
    (alarm,) = listing_alarms(replace(seen(OPEN, held()), runtime_state=long_ago), 600.0, 86400.0)
    assert "has lacked the machine of cpu1" in alarm


def test_a_job_whose_input_is_brought_to_its_nodes_keeps_its_binding() -> None:
    """It is CONFIGURING for as long as that takes."""
    bound = {"bound": {"12": frozenset({"cpu1"})}, "runtime_state": RuntimeState(bound_since={"12": NOW - 500})}
    waits = job("12", state=JobState.CONFIGURING, reservation="burstd-12", node_list=("cpu1",))

    def unbinds(one: Job) -> list[str]:
        plan: Plan = decide(seen(OPEN, held(StageState.FETCHING), one, **bound), (), TUNING)
        return [a.reason for a in plan.actions if isinstance(a, UnbindJob)]

    assert unbinds(waits) == []
    assert unbinds(replace(waits, state=JobState.PENDING)) == ["the job did not start within 60 s"]
    assert unbinds(replace(waits, state=JobState.RUNNING)) == ["the job runs or is gone"]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(snapshots(), st.data())
def test_no_plan_ends_a_machine_with_output_on_it(snapshot: Snapshot, draw: st.DataObject) -> None:
    slots = [c.slot for c in snapshot.claims]
    views = st.builds(
        StagingView,
        st.sampled_from(list(StageState)),
        st.just(0.0),
        st.lists(st.sampled_from(slots), max_size=2).map(tuple) if slots else st.just(()),
        st.sampled_from([THEN - 1, THEN - 5000, THEN - 100_000]),
    )
    jobs = st.dictionaries(st.integers(1, 12).map(str), views, max_size=4)
    snapshot = replace(
        snapshot, data=draw.draw(jobs), claims=tuple(replace(c, instance_id=f"i-{c.slot}") for c in snapshot.claims)
    )
    if isinstance(snapshot.slurm, SlurmView):
        gate = Reservation("burstd", frozenset(c.slot for c in snapshot.claims if c.state is not S.IN_SERVICE))
        snapshot = replace(snapshot, slurm=replace(snapshot.slurm, reservations=(gate,)))
    holding = retained_nodes(snapshot)
    claims = {c.id: c for c in snapshot.claims}
    for action in decide(snapshot, (IDLE,), TUNING).actions:
        match action:
            case PowerDown(terminating=ends):
                assert holding.keys().isdisjoint(ends)
            case TerminateMachines(claims=ended):
                assert all(claims[one].error for one in holding.keys() & set(ended))
            case ChangeClaimState(claim_id=one, new=S.FAILED | S.TERMINATING):
                assert one not in holding
    on_nodes = {name for view in snapshot.data.values() if view.state in OUTPUT_ON_NODES for name in view.nodes}
    assert {one.claim.slot for one in holding.values()} <= on_nodes


def test_a_machine_that_booted_too_late_is_drained_where_it_holds_data() -> None:
    """Its budget does not cover the time limit of its job any more."""
    waits = job("7", time_limit_s=3600)
    late = replace(READY, jobs=("7",), reserved=Decimal("0.01"), billed_from=NOW - 600, since=NOW - 10)

    def states(data: dict[str, StagingView]) -> list[S]:
        plan = decide(seen(late, data, waits), (), TUNING)
        return [a.new for a in plan.actions if isinstance(a, ChangeClaimState) and a.old is S.READY]

    assert states({}) == [S.FAILED]
    assert states(held(StageState.FETCHING)) == [S.DRAINING]
