"""What comes next for a claim, by its state and what is seen of it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plan import Action, ChangeClaimState, PowerDown, RegisterNodes
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation, with_suspended_jobs
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import CloudView, RuntimeState, Sighting, SlurmView, Snapshot, Unavailable
from burstd.planner.lifecycle.lifecycle import advance_claims
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning

NOW = 10_000.0
SHAPE = Shape(cpus=4, memory_mib=8000)
OFFER = Offer("sky", "r", "z", "t", spot=False, shape=SHAPE, price=Decimal(1))
POOL = Pool("gpu", ("cl1",), ("burst",), SHAPE)
OFF = frozenset({"CLOUD", "POWERED_DOWN"})
TUNING = Tuning(
    boot_timeout_s=600, validation_timeout_s=180, node_down_grace_s=60, launch_attempts=4, power_down_retry_s=30
)


def claim(state: S, **fields: Any) -> Claim:
    base = Claim(
        id="c1", cluster="x", pool="gpu", slot="cl1", offer=OFFER, cause=Cause.DEMAND, state=state, created=NOW - 100,
        since=NOW - 100, jobs=("7",), instance_id="i1", address="10.0.0.1", launch_called=NOW - 100, attempts=1,
    )  # fmt: skip
    return replace(base, **fields)


def instance(state: InstanceState = InstanceState.RUNNING, **fields: Any) -> Instance:
    return replace(Instance("i1", "sky", state, "c1", address="10.0.0.1"), **fields)


def node(state: str = "IDLE", flags: frozenset[str] = frozenset({"CLOUD"}), **fields: Any) -> Node:
    return replace(Node("cl1", state, flags, ("burst",), cpus=4, memory_mib=8000, address="10.0.0.1"), **fields)


def seen(
    c: Claim,
    *,
    instances: tuple[Instance, ...] | Unavailable = (),
    leftovers: tuple[Leftover, ...] | Unavailable = (),
    node: Node | None = None,
    slurm_up: bool = True,
    waits: bool = True,
    gated: bool = True,
    idempotency: Idempotency = Idempotency.TOKEN,
    listed: float = NOW - 1,
    paused: str = "",
    bound: bool = False,
    configured: bool = True,
    **progress: Any,
) -> list[Action]:
    job = Job("7", "ada", JobState.PENDING if waits else JobState.RUNNING, ("burst",), NOW - 200)
    if "missing_sightings" in progress:
        progress.setdefault("unreachable_at", {"c1": NOW})
    gate = (Reservation("burstd", frozenset({"cl1"})),) if gated else ()
    nodes = {"cl1": node or globals()["node"](flags=OFF, address="cl1")}
    snapshot = Snapshot(
        now=NOW,
        cluster="x",
        pools={"gpu": POOL} if configured else {},
        slurm=SlurmView((job,), nodes, gate, read_at=NOW - 0.1) if slurm_up else Unavailable("down", 0),
        clouds={
            "sky": CloudView((OFFER,), instances, leftovers, listed, idempotency, settle_s=5, leftovers_listed=listed)
        },
        claims=(c,),
        paused=paused,
        bound={"9": frozenset({"cl1"})} if bound else {},
        runtime_state=RuntimeState(**progress),
    )
    return advance_claims(build_view(snapshot, "burstd"), TUNING)


TWICE = {"c1": Sighting(2, NOW - 30)}
ONCE = {"c1": Sighting(1, NOW - 3)}
SILENT = frozenset({"CLOUD", "NOT_RESPONDING"})
NONE: list[str] = []
ENDED: dict[str, Any] = {"termination_accepted": frozenset({"c1"})}


def described(actions: list[Action]) -> list[str]:
    """Actions as short words: the kind, and for a move where to."""
    return [
        f"{type(a).__name__}:{a.new.value}" if isinstance(a, ChangeClaimState) else type(a).__name__ for a in actions
    ]


@pytest.mark.parametrize(
    ("case", "c", "world", "expected"),
    [
        ("planned is launched", claim(S.PLANNED), {}, ["LaunchMachine"]),
        (
            "a planned one has its machine",
            claim(S.PLANNED),
            {"instances": (instance(),)},
            ["ChangeClaimState:launching"],
        ),
        ("planned whose job is gone ends unlaunched", claim(S.PLANNED), {"waits": False}, ["ChangeClaimState:gone"]),
        ("planned for Slurm itself is launched", claim(S.PLANNED, cause=Cause.SLURM, jobs=()), {}, ["LaunchMachine"]),
        ("nothing is launched on hold", claim(S.PLANNED), {"paused": "hold"}, NONE),
        ("a pool that was taken away gets none", claim(S.PLANNED), {"configured": False}, ["ChangeClaimState:gone"]),
        ("nor a provider", claim(S.PLANNED, offer=replace(OFFER, provider="fog")), {}, ["ChangeClaimState:gone"]),
        ("a call under way is waited for", claim(S.LAUNCHING, instance_id=""), {"busy": frozenset({"c1"})}, NONE),
        (
            "found by its tag",
            claim(S.LAUNCHING, instance_id=""),
            {"instances": (instance(),)},
            ["ChangeClaimState:booting"],
        ),
        (
            "found in error",
            claim(S.LAUNCHING, instance_id=""),
            {"instances": (instance(InstanceState.ERROR),)},
            ["ChangeClaimState:failed"],
        ),
        ("a token makes a repeat safe at once", claim(S.LAUNCHING, instance_id=""), {}, ["LaunchMachine"]),
        (
            "without one the list must have had time",
            claim(S.LAUNCHING, instance_id="", launch_called=NOW - 3),
            {"idempotency": Idempotency.SETTLE},
            NONE,
        ),
        (
            "and must be readable",
            claim(S.LAUNCHING, instance_id=""),
            {"idempotency": Idempotency.SETTLE, "instances": Unavailable("down", 0)},
            NONE,
        ),
        (
            "nor before the calls of an earlier process show",
            claim(S.LAUNCHING),
            {"idempotency": Idempotency.SETTLE, "process_start": NOW - 4},
            NONE,
        ),
        ("then it is asked again", claim(S.LAUNCHING), {"idempotency": Idempotency.SETTLE}, ["LaunchMachine"]),
        ("not for ever", claim(S.LAUNCHING, attempts=4), {}, ["ChangeClaimState:failed"]),
        ("booting waits for its address", claim(S.BOOTING, address=""), {"instances": (instance(address=""),)}, NONE),
        ("booting learns its address", claim(S.BOOTING, address=""), {"instances": (instance(),)}, ["RecordAddress"]),
        ("a running one is proven", claim(S.BOOTING), {"instances": (instance(),)}, ["ValidateNode"]),
        ("a pending one is not", claim(S.BOOTING), {"instances": (instance(InstanceState.PENDING),)}, NONE),
        (
            "one in error fails",
            claim(S.BOOTING),
            {"instances": (instance(InstanceState.ERROR),)},
            ["ChangeClaimState:failed"],
        ),
        (
            "a hung boot fails",
            claim(S.BOOTING, since=NOW - 601),
            {"instances": (instance(),)},
            ["ChangeClaimState:failed"],
        ),
        ("missing once is not gone", claim(S.BOOTING), {"missing_sightings": ONCE}, NONE),
        ("missing twice is", claim(S.BOOTING), {"missing_sightings": TWICE}, ["ChangeClaimState:lost"]),
        (
            "nor twice within seconds",
            claim(S.IN_SERVICE),
            {"missing_sightings": {"c1": Sighting(3, NOW - 3)}, "node": node()},
            NONE,
        ),
        (
            "unless it is listed as ended",
            claim(S.IN_SERVICE),
            {"missing_sightings": {"c1": Sighting(2, NOW - 3)}, "instances": (instance(InstanceState.TERMINATED),)},
            ["ChangeClaimState:lost"],
        ),
        (
            "of no use without its pool",
            claim(S.BOOTING),
            {"instances": (instance(),), "configured": False},
            ["ChangeClaimState:failed"],
        ),
        ("an unreadable cloud says nothing", claim(S.IN_SERVICE), {"instances": Unavailable("down", 0)}, NONE),
        ("after a restart it is proven again", claim(S.VALIDATING), {"instances": (instance(),)}, ["ValidateNode"]),
        ("the proven one is announced", claim(S.VALIDATING), {"validated": frozenset({"c1"})}, ["RegisterNodes"]),
        (
            "its address is set where Slurm has another",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "node": node(flags=frozenset({"POWERING_UP"}), address="cl1")},
            ["RegisterNodes"],
        ),
        (
            "slurmd starts once Slurm has the address",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "node": node(flags=OFF)},
            ["StartSlurmd"],
        ),
        (
            "not while a power up of Slurm's own is about to begin",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "node": node(flags=OFF | {"POWER_UP"})},
            NONE,
        ),
        (
            "not while the slot still goes down",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "node": node(flags=frozenset({"POWERING_DOWN"}))},
            NONE,
        ),
        (
            "registered is ready",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "slurmd_started": {"c1": NOW - 5}, "node": node()},
            ["ChangeClaimState:ready"],
        ),
        (
            "a started one has a moment to register",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "slurmd_started": {"c1": NOW - 5}, "node": node(flags=OFF)},
            NONE,
        ),
        (
            "then it is started again",
            claim(S.VALIDATING),
            {"validated": frozenset({"c1"}), "slurmd_started": {"c1": NOW - 25}, "node": node(flags=OFF)},
            ["StartSlurmd"],
        ),
        (
            "a proof has its time",
            claim(S.VALIDATING, since=NOW - 181),
            {"instances": (instance(),)},
            ["ChangeClaimState:failed"],
        ),
        (
            "but not where a job runs that came while burstd was away",
            claim(S.VALIDATING, since=NOW - 181),
            {"instances": (instance(),), "node": node("MIXED", cpus_allocated=1)},
            ["ValidateNode"],
        ),
        (
            "of a pool that was taken away it has none",
            claim(S.VALIDATING),
            {"instances": (instance(),), "configured": False},
            ["ChangeClaimState:failed"],
        ),
        (
            "of a provider that was taken away neither",
            claim(S.VALIDATING, offer=replace(OFFER, provider="fog")),
            {},
            NONE,
        ),
        (
            "an open one that a list lacks and Slurm hears",
            claim(S.IN_SERVICE),
            {"missing_sightings": TWICE, "node": node()},
            NONE,
        ),
        ("nor while Slurm is silent", claim(S.IN_SERVICE), {"missing_sightings": TWICE, "slurm_up": False}, NONE),
        (
            "one that neither has",
            claim(S.IN_SERVICE),
            {"missing_sightings": TWICE, "node": node(flags=SILENT)},
            ["ChangeClaimState:lost"],
        ),
        (
            "is reached for first",
            claim(S.IN_SERVICE),
            {"missing_sightings": TWICE, "node": node(flags=SILENT), "unreachable_at": {}},
            ["ProbeMachine"],
        ),
        (
            "and again where that was before",
            claim(S.IN_SERVICE),
            {"missing_sightings": TWICE, "node": node(flags=SILENT), "unreachable_at": {"c1": NOW - 31}},
            ["ProbeMachine"],
        ),
        (
            "and waited for",
            claim(S.IN_SERVICE),
            {
                "missing_sightings": TWICE,
                "node": node(flags=SILENT),
                "unreachable_at": {},
                "busy": frozenset({"reach:c1"}),
            },
            NONE,
        ),
        (
            "another machine behind the name",
            claim(S.IN_SERVICE),
            {"missing_sightings": TWICE, "node": node(address="x")},
            ["ChangeClaimState:lost"],
        ),
        ("an open one is left alone", claim(S.IN_SERVICE), {"instances": (instance(),), "node": node()}, NONE),
        *(
            (
                f"{state} in error while its node is {'up' if up else 'not up'}",
                claim(state),
                {
                    "missing_sightings": {"c1": Sighting(2, NOW - 1)},
                    "instances": (instance(InstanceState.ERROR),),
                    "bound": True,
                    "node": node("ALLOCATED", frozenset() if up else frozenset({"NOT_RESPONDING"}), cpus_allocated=4),
                },
                moves,
            )
            for state, up, moves in (
                (S.READY, False, ["ChangeClaimState:lost"]),
                (S.IN_SERVICE, False, ["ChangeClaimState:lost"]),
                (S.DRAINING, False, ["ChangeClaimState:lost"]),
                (S.READY, True, NONE),
                (S.IN_SERVICE, True, NONE),
                (S.DRAINING, True, NONE),
            )
        ),
        (
            "an open one in error that was seen once",
            claim(S.IN_SERVICE),
            {
                "missing_sightings": ONCE,
                "instances": (instance(InstanceState.ERROR),),
                "node": node("DOWN"),
            },
            NONE,
        ),
        (
            "nor where Slurm is not heard",
            claim(S.IN_SERVICE),
            {
                "missing_sightings": TWICE,
                "instances": (instance(InstanceState.ERROR),),
                "slurm_up": False,
            },
            NONE,
        ),
        (
            "what is lost in error is ended too",
            claim(S.TERMINATING, error="lost"),
            {
                "instances": (instance(InstanceState.ERROR),),
                "node": node("DOWN", OFF),
            },
            ["TerminateMachines"],
        ),
        ("closed and idle goes", claim(S.DRAINING), {"node": node()}, ["PowerDown"]),
        (
            "down in Slurm and missing in the list: whether it is lost is found out first",
            claim(S.DRAINING),
            {"missing_sightings": ONCE, "node": node("DOWN")},
            NONE,
        ),
        (
            "but not for ever",
            claim(S.DRAINING),
            {"missing_sightings": {"c1": Sighting(1, NOW - 60)}, "node": node("DOWN")},
            ["PowerDown"],
        ),
        (
            "not before the last figures of a job",
            claim(S.DRAINING),
            {"node": node(), "last_figures_awaited": frozenset({"c1"})},
            NONE,
        ),
        ("not before Slurm was read anew", claim(S.DRAINING, since=NOW), {"node": node()}, NONE),
        ("not before the gate is down", claim(S.DRAINING), {"node": node(), "gated": False}, NONE),
        (
            "not under a job that is suspended",
            claim(S.DRAINING),
            {"node": node(has_suspended_job=True)},
            ["ChangeClaimState:ready"],
        ),
        ("not while a job may come through its binding", claim(S.DRAINING), {"node": node(), "bound": True}, NONE),
        (
            "a job got in: back to work",
            claim(S.DRAINING),
            {"node": node("MIXED", cpus_allocated=1)},
            ["ChangeClaimState:ready"],
        ),
        (
            "unless somebody drained it",
            claim(S.DRAINING),
            {"node": node("MIXED", frozenset({"DRAIN"}), cpus_allocated=1)},
            NONE,
        ),
        ("lost under a job: Slurm is described first", claim(S.LOST), {"node": node("ALLOCATED")}, ["SetNodesDown"]),
        ("then it is ended", claim(S.LOST), {"node": node("DOWN")}, ["PowerDown", "ChangeClaimState:terminating"]),
        ("failed before Slurm knew", claim(S.FAILED), {}, ["ChangeClaimState:terminating"]),
        ("nothing is described to a dead Slurm", claim(S.FAILED), {"slurm_up": False}, NONE),
        ("learnt first", claim(S.TERMINATING, instance_id=""), {"instances": (instance(),)}, ["RecordAddress"]),
        ("terminated while it is listed", claim(S.TERMINATING), {"instances": (instance(),)}, ["TerminateMachines"]),
        (
            "not under a job that got in at the last moment",
            claim(S.TERMINATING),
            {"instances": (instance(),), "node": node("MIXED", frozenset({"POWER_DOWN"}), cpus_allocated=1)},
            NONE,
        ),
        (
            "but where the job waits for the next machine",
            claim(S.TERMINATING),
            {"instances": (instance(),), "node": node("ALLOCATED", frozenset({"POWERING_UP"}), cpus_allocated=1)},
            ["PowerDown", "TerminateMachines"],
        ),
        (
            "nor before Slurm was read anew",
            claim(S.TERMINATING, since=NOW),
            {"instances": (instance(),), "node": node()},
            NONE,
        ),
        (
            "a broken one at once",
            claim(S.TERMINATING, error="lost"),
            {"instances": (instance(),), "slurm_up": False},
            ["TerminateMachines"],
        ),
        ("asked for where it is not listed", claim(S.TERMINATING), {}, ["TerminateMachines"]),
        ("gone when nothing is listed", claim(S.TERMINATING), ENDED, ["ChangeClaimState:gone"]),
        ("which never was", claim(S.TERMINATING, instance_id=""), {}, ["ChangeClaimState:gone"]),
        (
            "gone when listed as ended",
            claim(S.TERMINATING),
            {"instances": (instance(InstanceState.TERMINATED),)},
            ["ChangeClaimState:gone"],
        ),
        ("not on a listing of before", claim(S.TERMINATING, since=NOW - 0.5), ENDED, NONE),
        ("not while a launch may still show", claim(S.TERMINATING, launch_called=NOW - 4), ENDED, NONE),
        ("not while leftovers are unknown", claim(S.TERMINATING), {**ENDED, "leftovers": Unavailable("down", 0)}, NONE),
        (
            "its leftovers go first",
            claim(S.TERMINATING),
            {**ENDED, "leftovers": (Leftover("volume", "v1", "sky", "c1"),)},
            ["RemoveOrphans"],
        ),
        ("nor while Slurm expects it", claim(S.TERMINATING), {**ENDED, "node": node()}, ["PowerDown"]),
        (
            "described once is enough for a while",
            claim(S.TERMINATING),
            {**ENDED, "node": node(), "power_down_sent_at": {"cl1": NOW - 5}},
            NONE,
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_next_step(case: str, c: Claim, world: dict[str, Any], expected: list[str]) -> None:
    assert described(seen(c, **world)) == expected


@pytest.mark.parametrize("state", [S.LAUNCHING, S.BOOTING, S.VALIDATING])
@pytest.mark.parametrize(("cause", "error"), [("", "boot"), ("capacity", "capacity"), ("quota", "quota")])
def test_a_cloud_that_refuses_late_is_taken_at_its_word(state: S, cause: str, error: str) -> None:
    refused = instance(InstanceState.ERROR, cause=cause, error="No valid host was found")
    (move,) = seen(claim(state), instances=(refused,))
    assert isinstance(move, ChangeClaimState)
    assert (move.new, move.error) == (S.FAILED, error)
    assert "No valid host" in move.reason


def test_that_a_machine_was_taken_back_is_known_to_the_end() -> None:
    why = "its machine is taken back: interruption"
    (off,) = seen(claim(S.DRAINING, reason=why), node=node())
    assert isinstance(off, PowerDown)
    assert off.reason == why
    (gone,) = seen(
        claim(S.TERMINATING, reason=off.reason), termination_accepted=frozenset({"c1"}), node=node(flags=OFF)
    )
    assert isinstance(gone, ChangeClaimState)
    assert (gone.new, gone.error) == (S.GONE, "interrupted")


def test_many_nodes_are_one_step() -> None:
    slots = tuple(f"cl{i}" for i in range(50))
    snapshot = Snapshot(
        now=NOW,
        cluster="x",
        pools={"gpu": replace(POOL, slots=slots)},
        slurm=SlurmView((), {s: node(flags=OFF, name=s, address=s) for s in slots}, (), NOW - 0.1),
        clouds={"sky": CloudView((), tuple(instance(id=f"i{s}", claim_id=s) for s in slots), (), NOW - 1)},
        claims=tuple(claim(S.VALIDATING, id=s, slot=s, address=f"a-{s}") for s in slots),
        runtime_state=RuntimeState(validated=frozenset(slots)),
    )
    [register] = advance_claims(build_view(snapshot, "burstd"), TUNING)
    assert isinstance(register, RegisterNodes)
    assert len(register.addresses) == 50


def test_a_node_with_a_suspended_job_is_busy() -> None:
    """Slurm shows it as IDLE, with all its CPUs free."""
    jobs = [Job(str(n), "ada", state, ("burst",), NOW, node_list=(f"gpu{n}",)) for n, state in enumerate(JobState)]
    nodes = {name: replace(node(), name=name) for name in ("gpu0", *(job.node_list[0] for job in jobs), "other")}
    seen_nodes = with_suspended_jobs(nodes, jobs)
    assert [name for name, one in seen_nodes.items() if one.busy] == [
        job.node_list[0] for job in jobs if job.state is JobState.SUSPENDED
    ]
