"""Jobs are told before they are requeued for other projects, and nobody else goes for the same GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from burstd.domain.claim import ClaimState
from burstd.domain.plan import JobRun, RequeueJobs, WarnJobs
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import RequeueWarning, RuntimeState, SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from tests.examples import examples
from tests.planner.test_projects import (
    GPU_NODE,
    GPU_POOL,
    PAIRS,
    STARVING,
    F,
    machines,
    projects,
    requeued,
    running,
    runs,
    settled,
    shares,
    steps,
    tasks,
    waiting,
    world,
)
from tests.planner.worlds import NOW, claim, offer, pool

AB = {name: project for name, project in projects().items() if name in "ab"}
ASKS = "project b asks for its share: project a has 16 GPUs, and its share is 11 GPUs"


def with_grace(snapshot: Snapshot, **grace_s: float) -> Snapshot:
    return replace(snapshot, projects=replace(snapshot.projects, grace_s=grace_s))


def with_warnings(snapshot: Snapshot, *warnings: WarnJobs, **state: Any) -> Snapshot:
    """As it is once these were carried out."""
    warned = dict(snapshot.runtime_state.warned)
    for action in warnings:
        for run in action.runs:
            warned[run.job_id, run.restarts] = RequeueWarning(
                run.queue_ids, action.until, run.reason, run.cause, action.takes_checkpoint
            )
    return replace(snapshot, runtime_state=replace(snapshot.runtime_state, warned=warned, **state))


def requeues(snapshot: Snapshot) -> list[JobRun]:
    return [run for action in steps(snapshot, RequeueJobs) for run in action.runs]


def test_a_victim_is_left_its_grace_time_and_nobody_else_goes_for_the_same() -> None:
    snapshot = settled(with_grace(world(*STARVING, of=AB), a=60))
    [warning] = steps(snapshot, WarnJobs)
    assert (warning.until, warning.takes_checkpoint, warning.by_slurm) == (NOW + 60, False, False)
    assert {(run.cause, run.reason) for run in warning.runs} == {("reclaim", ASKS)}
    assert len(warning.runs) == len(requeued(world(*STARVING, of=AB))) == 3
    assert requeues(snapshot) == []
    waits = with_warnings(snapshot, warning)
    assert (steps(waits, WarnJobs), requeues(waits)) == ([], [])
    assert decide(waits, (), Tuning()).target.wake_at == NOW + 60
    assert requeues(replace(waits, now=NOW + 59)) == []
    assert requeues(replace(waits, now=NOW + 60)) == list(warning.runs)
    more = world(*STARVING, *tasks(50, 8, "b"), of=AB)
    assert (
        shares(more) == shares(waits) or steps(settled(with_warnings(with_grace(more, a=60), warning)), WarnJobs) == []
    )


CLOUD_NODE = claim("n2", ClaimState.IN_SERVICE)


@pytest.mark.parametrize(
    ("grace_s", "data", "claims", "expected"),
    [
        (0.0, None, (), None),
        (60.0, None, (), (NOW + 60, False)),
        (0.0, StagingView(StageState.FETCHED, 0.0, checkpoint="none"), (CLOUD_NODE,), (NOW + 120, True)),
        (300.0, StagingView(StageState.FETCHED, 0.0, checkpoint="none"), (CLOUD_NODE,), (NOW + 300, True)),
        (60.0, StagingView(StageState.FETCHED, 0.0, checkpoint="none"), (), None),
        (60.0, StagingView(StageState.FETCHED, 0.0), (CLOUD_NODE,), None),
    ],
    ids=["none", "its partition's", "a checkpoint", "the longer of both", "on premises", "data without a checkpoint"],
)
def test_how_long_a_victim_is_left(grace_s: float, data: Any, claims: Any, expected: tuple[float, bool] | None) -> None:
    jobs = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "q-b", "n1"), waiting("9", "b", 4)]
    jobs += [running("1", "o-a", "n2", 4), running("2", "o-a", "n2", 4, since=2000)]
    view = {"1": data} if data is not None else {}
    slots = pool("n", 2, GPU_NODE, partitions=("gpu", *PAIRS))
    of = {"a": AB["a"], "b": replace(AB["b"], quota=F(4))}
    snapshot = with_grace(world(*jobs, of=of, data=view, claims=claims, pools=(slots,) if claims else ()), a=grace_s)
    found = settled(snapshot)
    assert [(w.until, w.takes_checkpoint) for w in steps(found, WarnJobs)] == ([expected] if expected else [])
    assert [run.job_id for run in requeues(found)] == ([] if expected else ["1"])


GOES = RequeueWarning(("1",), NOW + 30, "b asks", "reclaim", takes_checkpoint=False)
SAVES = replace(GOES, takes_checkpoint=True)
RUN = JobRun("1", ("1",), 0, "b asks", "reclaim")
SAVING = {"1": StagingView(StageState.FETCHED, 0.0, checkpoint="none", last_checkpoint_until=NOW + 20)}


@pytest.mark.parametrize(
    ("warning", "row", "later_s", "fields", "expected"),
    [
        (GOES, running("1", "o-a", "n1"), 29, {}, []),
        (GOES, running("1", "o-a", "n1"), 30, {}, [RUN]),
        (GOES, running("1", "o-a", "n1"), 30, {"requeued": frozenset({("1", 0)})}, []),
        (GOES, running("1", "o-a", "n1", restarts=1), 30, {}, []),
        (GOES, waiting("1", "a", restarts=1, reason="BeginTime"), 30, {}, []),
        (GOES, replace(running("1", "o-a", "n1"), state=JobState.COMPLETING), 30, {}, []),
        (GOES, running("2", "o-a", "n1"), 5, {}, [replace(RUN, ended=True)]),
        (GOES, running("2", "o-a", "n1"), 91, {}, []),
        (SAVES, running("1", "o-a", "n1"), 10, {"data": SAVING}, []),
        (SAVES, running("1", "o-a", "n1"), 20, {"data": SAVING}, [RUN]),
        (SAVES, running("1", "o-a", "n1"), 10, {}, [RUN]),
        (SAVES, running("2", "o-a", "n1"), 5, {}, []),
    ],
    ids=[
        "in its grace", "over", "requeued already", "another run", "it waits again", "ends", "has ended by itself",
        "has ended long after its grace",
        "its checkpoint is taken", "for too long", "its checkpoint is there", "has ended with its checkpoint",
    ],
)  # fmt: skip
def test_a_job_that_was_told_goes_once_though_nobody_asks_any_more(
    warning: RequeueWarning, row: Job, later_s: float, fields: dict[str, Any], expected: list[JobRun]
) -> None:
    data = fields.get("data", {})
    state = RuntimeState(warned={("1", 0): warning}, requeued=fields.get("requeued", frozenset()))
    snapshot = replace(world(row, of=AB, data=data, runtime_state=state), now=NOW + later_s)
    assert requeues(snapshot) == expected


def test_a_job_that_must_not_end_by_itself_is_requeued_at_once_where_slurmctld_preempts_it() -> None:
    row = running("1", "o-a", "n1", preempted_at=NOW - 1)
    snapshot = with_grace(world(row, of=AB, data={"1": StagingView(StageState.FETCHED, 0.0)}), a=60)
    assert [(run.job_id, run.cause) for run in requeues(snapshot)] == [("1", "preemption")]
    assert steps(snapshot, WarnJobs) == []
    known = RuntimeState(requeued=frozenset({("1", 0)}))
    assert requeues(replace(snapshot, runtime_state=known)) == []


def test_a_job_that_never_ends_on_a_drained_node_keeps_nobody_from_its_share() -> None:
    jobs = [*runs(100, 4, "q-a", "n1"), *runs(110, 3, "o-a", "n1"), *runs(120, 7, "o-a", "n2"), waiting("1", "d", 2)]
    stuck = replace(running("900", "o-b", "n3"), state=JobState.COMPLETING)
    of = projects(d={"quota": F(0), "weight": F(8)})
    for more in ((), (stuck,)):
        snapshot = world(*jobs, *more, nodes=("n1", "n2", "n3"), of=of)
        assert isinstance(snapshot.slurm, SlurmView)
        nodes = dict(snapshot.slurm.nodes)
        nodes["n3"] = replace(nodes["n3"], flags=frozenset({"DRAIN", "COMPLETING"}), reason="Kill task failed")
        assert requeued(replace(snapshot, slurm=replace(snapshot.slurm, nodes=nodes))) == ["112"]


def test_what_slurmctld_preempts_is_told_by_it_and_requeued_in_time() -> None:
    row = running("1", "o-a", "n1", preempted_at=NOW - 10)
    snapshot = with_grace(world(row, of=AB), a=60)
    [warning] = steps(snapshot, WarnJobs)
    assert (warning.until, warning.by_slurm) == (NOW + 50, True)
    assert [run.cause for run in warning.runs] == ["preemption"]
    assert steps(with_warnings(snapshot, warning), WarnJobs) == []
    limited = with_grace(world(replace(row, end=NOW + 40), of=AB), a=60)
    assert steps(limited, WarnJobs)[0].until == NOW + 40, "as slurmctld shows it"
    kept = with_grace(world(replace(row, requeue=False), of=AB), a=60)
    assert steps(kept, WarnJobs) == []


def test_nobody_goes_for_gpus_that_completing_jobs_give_back() -> None:
    first = requeued(world(*STARVING, of=AB))
    ending = [replace(job, state=JobState.COMPLETING) if job.id in first else job for job in STARVING]
    assert requeued(world(*ending, of=AB)) == []


def test_what_leaves_counts_against_its_project() -> None:
    of = projects(a={"quota": F(2)}, d={"quota": F(2)})
    jobs = [job for name in "abcd" for job in runs(ord(name) * 10, 2, f"q-{name}", "n1")]
    jobs += [*runs(100, 4, "o-a", "n2"), *runs(200, 4, "o-b", "n2"), *tasks(1, 2, "c")]
    snapshot = settled(with_grace(world(*jobs, of=of), a=60, b=60))
    [first] = steps(snapshot, WarnJobs)
    assert sorted(run.job_id for run in first.runs) == ["103", "203"]
    more = settled(with_grace(world(*jobs, *tasks(3, 2, "d"), of=of), a=60, b=60))
    assert [shares(more)[name][3] for name in "abcd"] == [4, 4, 4, 4]
    [then] = steps(with_warnings(more, first), WarnJobs)
    assert sorted(run.job_id for run in then.runs) == ["102", "202"], "not two of a"


def test_nobody_else_goes_where_a_small_job_would_take_the_room_of_a_large_one() -> None:
    of = {name: replace(project, quota=F(2)) for name, project in projects().items()}
    jobs = [
        running("1", "o-a", "n1", 4, since=500), running("2", "o-a", "n1", 4, since=900),
        running("3", "o-a", "n2", 1, since=400), running("4", "o-a", "n2", 4, since=600),
        running("5", "o-a", "n2", 3, since=900),
    ]  # fmt: skip
    asks = [replace(waiting(f"9{n}", n, gpus), partitions=(f"o-{n}",)) for n, gpus in (("b", 1), ("c", 4), ("d", 8))]
    snapshot = settled(with_grace(world(*jobs, *asks, of=of), a=60))
    [first] = steps(snapshot, WarnJobs)
    assert [run.job_id for run in first.runs] == ["3", "1"]
    assert steps(with_warnings(snapshot, first), WarnJobs) == []


def test_what_slurmctld_preempts_is_not_for_jobs_beyond_quotas() -> None:
    jobs = [*STARVING]
    snapshot = settled(with_grace(world(*jobs, of=AB), a=60))
    [alone] = steps(snapshot, WarnJobs)
    preempted = [replace(job, preempted_at=NOW - 1) if job.id in ("110", "111") else job for job in jobs]
    both = steps(settled(with_grace(world(*preempted, of=AB), a=60)), WarnJobs)
    assert [(w.by_slurm, len(w.runs)) for w in both] == [(True, 2), (False, len(alone.runs))]


def test_small_jobs_are_not_moved_while_others_leave() -> None:
    jobs = [*runs(1, 4, "o-a", "n1"), *runs(11, 4, "o-a", "n2"), *runs(21, 3, "q-b", "n2"), waiting("99", "b", 5)]
    snapshot = settled(with_grace(world(*jobs, of=AB), a=60))
    [warning] = steps(snapshot, WarnJobs)
    assert [(run.job_id, run.cause) for run in warning.runs] == [("4", "consolidation")]
    assert steps(with_warnings(snapshot, warning), WarnJobs) == []
    other = with_warnings(snapshot, replace(warning, runs=(JobRun("14", ("14",), 0, "b asks", "reclaim"),)))
    assert steps(other, WarnJobs) == []


def test_no_machine_is_started_while_jobs_leave_for_it() -> None:
    jobs = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 8, "o-a", "n2")]
    jobs += tasks(1, 4, "d", eligible=NOW - 60, submitted=NOW - 60)
    snapshot = world(*jobs, of=projects(), pools=(GPU_POOL,), offers=(offer(shape=GPU_POOL.shape),))
    assert machines(snapshot) == 4
    assert machines(with_grace(snapshot, a=60)) == 0
    leaves = WarnJobs((JobRun("120", ("120",), 0, "d asks", "reclaim"),), NOW + 60, takes_checkpoint=True)
    assert machines(with_warnings(snapshot, leaves)) == 0


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Snapshot, Snapshot]:
    """Two nodes with hardly a GPU free, and jobs of all sizes that wait; then the same with some more of these."""
    jobs, number = [], 0
    for name in ("n1", "n2"):
        left = 8 - draw(st.sampled_from((0, 0, 1, 2)))
        while left:
            number += 1
            gpus = min(left, draw(st.sampled_from((1, 1, 2, 4))))
            label = draw(st.sampled_from(("o-a", "o-b", "o-c", "q-c")))
            jobs.append(running(str(number), label, name, gpus, since=1000.0 + draw(st.integers(0, 50))))
            left -= gpus
    waits = [
        waiting(str(100 + k), draw(st.sampled_from("abcd")), draw(st.sampled_from((1, 1, 2, 4, 8))))
        for k in range(draw(st.integers(1, 10)))
    ]
    first = draw(st.integers(1, len(waits)))
    one, other = (settled(with_grace(world(*jobs, *some), a=60, b=60, c=60)) for some in (waits[:first], waits))
    return one, other


@given(crowded())
@settings(max_examples=examples(200), deadline=None)
def test_a_second_look_tells_nobody_else(worlds: tuple[Snapshot, Snapshot]) -> None:
    snapshot, more = worlds
    warnings = steps(snapshot, WarnJobs)
    again = with_warnings(snapshot, *warnings)
    assert steps(again, WarnJobs) == []
    gone = replace(again, now=NOW + 60)
    first = {run.job_id for w in warnings for run in w.runs}
    assert {run.job_id for run in requeues(gone)} == first
    # Others have asked meanwhile.
    then = [run for w in steps(with_warnings(more, *warnings), WarnJobs) for run in w.runs]
    assert first.isdisjoint(run.job_id for run in then)
    reclaimed = {run.job_id for run in then if run.cause == "reclaim"}
    assert isinstance(more.slurm, SlurmView)
    for name, (_, has, _, share) in shares(more).items():
        mine = {job.id: job.gres_per_node[0].count for job in more.slurm.jobs if job.account == name}
        if not reclaimed.isdisjoint(mine):
            assert has - sum(mine.get(job_id, 0) for job_id in reclaimed | first) >= share, name


@given(crowded())
@settings(max_examples=examples(100), deadline=None)
def test_nobody_goes_for_gpus_that_are_about_to_be_free(worlds: tuple[Snapshot, Snapshot]) -> None:
    """They complete: Slurm waits for their processes, for KillWait."""
    snapshot, _ = worlds
    assert isinstance(snapshot.slurm, SlurmView)
    leave = [run for w in steps(snapshot, WarnJobs) for run in w.runs]
    # One that makes room for another takes other GPUs itself, and others may ask for their share then.
    assume(all(run.cause != "consolidation" for run in leave))
    first = {run.job_id for run in leave}
    ending = [replace(job, state=JobState.COMPLETING) if job.id in first else job for job in snapshot.slurm.jobs]
    completing = settled(replace(snapshot, slurm=replace(snapshot.slurm, jobs=tuple(ending))))
    assert (steps(completing, WarnJobs), requeues(completing)) == ([], [])
