"""Decisions one after the other, with a memory: each plan is the one that is made without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from burstd.domain.claim import ClaimState
from burstd.domain.plan import MakeClaim, Plan
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import Decider, decide
from burstd.planner.policy_chain import PlannerCache
from burstd.planner.timeouts import Tuning
from burstd.testing.policy import strategies
from policies import backlog, idle, limits
from tests.examples import examples

from .worlds import NOW, job, make_snapshot, offer, pool
from .worlds import claim as claim_on

CHAIN = (
    backlog.plugin.make(backlog.plugin.settings(min_jobs=2, max_age_s=300)),
    idle.plugin.make(idle.plugin.settings(keep_alive_s=60, spare_nodes=1)),
    limits.plugin.make(limits.plugin.settings(nodes=6)),
)
Step = Callable[[st.DataObject, Snapshot, Plan], Snapshot]


def seen(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """With another look at Slurm."""
    assert isinstance(snapshot.slurm, SlurmView)
    return replace(snapshot, slurm=replace(snapshot.slurm, **fields))


def slurm_of(snapshot: Snapshot) -> SlurmView:
    assert isinstance(snapshot.slurm, SlurmView)
    return snapshot.slurm


def submit(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    jobs = slurm_of(snapshot).jobs
    taken = {row.id for row in jobs} | {row.array_job_id for row in jobs}
    number = next(n for n in range(100, 10_000) if str(n) not in taken)
    alike: bool = data.draw(st.booleans())
    if jobs and alike:
        row = replace(data.draw(st.sampled_from(jobs)), id=str(number), array_job_id="", array_tasks="", tasks=1,
                      het_job_id="", state=JobState.PENDING)  # fmt: skip
    else:
        row = data.draw(strategies.jobs(number))
    row = replace(
        row, priority=data.draw(st.integers(-1, 4)), submitted=data.draw(st.sampled_from((NOW, row.submitted)))
    )
    at = data.draw(st.integers(0, len(jobs)))
    return seen(snapshot, jobs=(*jobs[:at], row, *jobs[at:]))


def cancel(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    jobs = slurm_of(snapshot).jobs
    gone = data.draw(st.sets(st.integers(0, max(0, len(jobs) - 1)), max_size=2))
    return seen(snapshot, jobs=tuple(row for n, row in enumerate(jobs) if n not in gone))


def change(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    jobs = list(slurm_of(snapshot).jobs)
    if jobs:
        at = data.draw(st.integers(0, len(jobs) - 1))
        fields: dict[str, Any] = data.draw(
            st.sampled_from(
                (
                    {"reason": "Licenses"}, {"reason": "Priority"}, {"reason": "BurstBufferStageIn"},
                    {"reason": "BeginTime"}, {"priority": 9}, {"dependency": "afterok:9(unfulfilled)"},
                    {"state": JobState.RUNNING}, {"state": JobState.PENDING}, {"eligible": snapshot.now + 20},
                    {"cpus": 2}, {"tasks_limit": 1}, {"comment": "x"}, {"user": "bob"}, {"account": "lab"},
                    {"exclusive_user": True},
                )
            )
        )  # fmt: skip
        jobs[at] = replace(jobs[at], **fields)
    return seen(snapshot, jobs=tuple(jobs))


def reorder(_data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    return seen(snapshot, jobs=tuple(reversed(slurm_of(snapshot).jobs)))


def node(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    nodes = dict(slurm_of(snapshot).nodes)
    if nodes:
        name = data.draw(st.sampled_from(sorted(nodes)))
        old = nodes[name]
        state, used = data.draw(st.sampled_from((("IDLE", 0), ("MIXED", 1), ("ALLOCATED", old.cpus), ("DOWN", 0))))
        flags = data.draw(st.sampled_from((old.flags, old.flags - {"POWERED_DOWN"}, old.flags | {"DRAIN"})))
        nodes[name] = replace(old, state=state, cpus_allocated=used, flags=flags)
    return seen(snapshot, nodes=nodes)


def claim(data: st.DataObject, snapshot: Snapshot, plan: Plan) -> Snapshot:
    """What was wanted is made, one is gone, or one comes into another state."""
    made = tuple(
        replace(a.claim, id=f"m-{a.claim.slot}")
        for a in plan.actions if isinstance(a, MakeClaim)
    )  # fmt: skip
    claims = snapshot.claims
    what = data.draw(st.sampled_from(("make", "end", "move")))
    if what == "make":
        slots = {c.slot for c in claims}
        return replace(snapshot, claims=(*claims, *(c for c in made if c.slot not in slots)))
    if not claims:
        return snapshot
    at = data.draw(st.integers(0, len(claims) - 1))
    state = data.draw(st.sampled_from([s for s in ClaimState if s is not ClaimState.GONE]))
    new = () if what == "end" else (replace(claims[at], state=state, since=snapshot.now),)
    return replace(snapshot, claims=(*claims[:at], *new, *claims[at + 1 :]))


def wait(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    return replace(snapshot, now=snapshot.now + data.draw(st.sampled_from((0, 1, 60, 130, 700, -30))))


def believe(data: st.DataObject, snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Room has been there for jobs for some time."""
    words = sorted(plan.target.placements)
    since = {word: snapshot.now - data.draw(st.sampled_from((0, 100, 500))) for word in words}
    fields: dict[str, Any] = data.draw(
        st.sampled_from(({"stuck_since": since}, {"stuck_on_burst_since": since}, {"stuck_since": {}}))
    )
    return replace(snapshot, runtime_state=replace(snapshot.runtime_state, **fields))


def stage(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    jobs = slurm_of(snapshot).jobs
    if not jobs:
        return snapshot
    row = data.draw(st.sampled_from(jobs))
    state = data.draw(st.sampled_from((StageState.UPLOADING, StageState.STAGED, StageState.HELD)))
    view = StagingView(state, snapshot.now + data.draw(st.sampled_from((0, 30, 3000))), since=snapshot.now)
    return replace(snapshot, data=data.draw(st.sampled_from(({}, {row.id: view}))))


def other(data: st.DataObject, snapshot: Snapshot, _plan: Plan) -> Snapshot:
    """What concerns no job in particular."""
    jobs = slurm_of(snapshot).jobs
    cut = {row.id: frozenset({0, 1}) for row in jobs[:1]}
    slots = frozenset(slot for some in snapshot.pools.values() for slot in some.slots[:1])
    fields: dict[str, Any] = data.draw(
        st.sampled_from(
            (
                {"drained_slots": slots},
                *({"drained_slots": slots, "drained_by": dict.fromkeys(slots, by)} for by in ("root", "ada")),
                {"drained_slots": frozenset()}, {"interruptions": cut}, {"interruptions": {}},
                {"paused": "held"}, {"paused": ""}, {"breakers": ()}, {"bound": {}},
                {"bound": {row.id: frozenset({c.slot for c in snapshot.claims[:1]}) for row in jobs[:1]}},
            )
        )
    )  # fmt: skip
    return replace(snapshot, **fields)


STEPS: tuple[Step, ...] = (submit, cancel, change, reorder, node, claim, wait, believe, stage, other)


def check(data: st.DataObject, snapshot: Snapshot, decider: Decider, steps: tuple[Step, ...], most: int) -> None:
    plan = decider.decide(snapshot, CHAIN, Tuning())
    for _ in range(data.draw(st.integers(1, most))):
        for step in data.draw(st.lists(st.sampled_from(steps), max_size=2)):
            snapshot = step(data, snapshot, plan)
            event(step.__name__)
        plan = decider.decide(snapshot, CHAIN, Tuning())
        assert plan == decide(snapshot, CHAIN, Tuning())


@settings(max_examples=examples(70), suppress_health_check=list(HealthCheck))
@given(snapshot=strategies.snapshots(), data=st.data())
def test_odd_worlds(snapshot: Snapshot, data: st.DataObject) -> None:
    if isinstance(snapshot.slurm, SlurmView):
        check(data, snapshot, Decider(), STEPS, 6)


@settings(max_examples=examples(70), suppress_health_check=list(HealthCheck))
@given(
    kinds=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=5, max_size=40),
    slots=st.integers(1, 6),
    data=st.data(),
)
def test_long_queues_of_few_kinds(kinds: list[tuple[int, int]], slots: int, data: st.DataObject) -> None:
    """Most of it stays as it is: what the memory is for."""
    jobs = tuple(job(str(n), cpus=cpus, priority=priority) for n, (cpus, priority) in enumerate(kinds))
    pools = (pool(slots=slots), pool("big", slots, Shape(8, 16_000)))
    offers = (offer(price="1"), offer("large", data.draw(st.sampled_from(("1.9", "2", "2.1"))), pools[1].shape))
    check(data, make_snapshot(*jobs, pools=pools, offers=offers), Decider(), (submit, cancel, change, wait, claim), 8)


def queue(count: int) -> tuple[Job, ...]:
    return tuple(job(str(n), cpus=1 + n % 2, priority=-n) for n in range(count))


@pytest.mark.parametrize(
    ("case", "after", "same"),
    [
        ("nothing but time", lambda jobs: jobs, True),
        ("the last one is gone", lambda jobs: jobs[:-1], True),
        ("one more at the end", lambda jobs: (*jobs, job("new", priority=-999)), True),
        (
            "one of those that wait says why",
            lambda jobs: (*jobs[:-2], replace(jobs[-2], reason="Priority"), jobs[-1]),
            True,
        ),
        (
            "the first is told something",
            lambda jobs: (replace(jobs[0], reason="Priority", comment="x"), *jobs[1:]),
            True,
        ),
        ("the first is somebody else's", lambda jobs: (replace(jobs[0], user="bob"), *jobs[1:]), False),
        ("the first one is gone", lambda jobs: jobs[1:], False),
        ("one more at the front", lambda jobs: (*jobs, job("new", priority=999)), False),
    ],
)
def test_what_need_not_be_placed_anew(
    case: str, after: Callable[[tuple[Job, ...]], tuple[Job, ...]], same: bool
) -> None:
    decider, jobs = Decider(), queue(100)
    snapshot = make_snapshot(*jobs)
    before = decider.decide(snapshot, (), Tuning())
    later = replace(seen(snapshot, jobs=after(jobs)), now=NOW + 1)
    plan = decider.decide(later, (), Tuning())
    assert plan == decide(later, (), Tuning()), case
    assert (plan.target.wants[-1] is before.target.wants[-1]) is same, case


@pytest.mark.parametrize(
    ("case", "after", "most"),
    [
        ("a node is free", lambda jobs: jobs, 20),
        ("the first is gone as well", lambda jobs: jobs[1:], 20),
        ("one comes to the front as well", lambda jobs: (*jobs, job("new", priority=999)), 20),
        ("the last asks for more as well", lambda jobs: (*jobs[:-1], replace(jobs[-1], cpus=3)), 500),
    ],
)
def test_what_stays_left_out_is_not_looked_at(
    case: str, after: Callable[[tuple[Job, ...]], tuple[Job, ...]], most: int
) -> None:
    some, jobs, cache = pool(slots=4), queue(500), PlannerCache()
    in_service = tuple(claim_on(slot, ClaimState.IN_SERVICE) for slot in some.slots)
    snapshot = make_snapshot(*jobs, pools=(some,), claims=in_service)
    nodes = slurm_of(snapshot).nodes
    busy = replace(nodes["cpu4"], state="ALLOCATED", cpus_allocated=4)
    decide(seen(snapshot, nodes={**nodes, "cpu4": busy}), (), Tuning(), cache)
    later = seen(snapshot, jobs=after(jobs))
    assert decide(later, (), Tuning(), cache) == decide(later, (), Tuning()), case
    assert cache.placement.last is not None
    assert cache.placement.last.placed_anew <= most, case
