"""An array of millions of tasks is not looked at task by task once one of them finds no room."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.planner.demand import demand as demands
from burstd.planner.placement.first_fit import Packer
from burstd.planner.placement.gangs import assign_gang
from burstd.planner.policy_chain import make_target
from burstd.planner.snapshot_view import build_view
from tests.planner.worlds import NOW, claim, job, make_snapshot, node, pool

TASKS = 4_000_001
_MOST = 100


def array(tasks: int = TASKS, **fields: object) -> Job:
    span = f"0-{tasks - 1}"
    return job("7", nodes=2, cpus=2, tasks=tasks, array_job_id="7", array_tasks=span, **fields)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Task ids that are read and gangs that are placed; more than _MOST are an error."""
    told: list[str] = []

    def note(what: str) -> None:
        told.append(what)
        assert len(told) <= _MOST, f"more than {_MOST} of {TASKS} tasks are looked at"

    read = demands.task_ids

    def task_ids(text: str) -> Iterator[str]:
        for task in read(text):
            note(task)
            yield task

    def place(*args: object) -> object:
        note("gang")
        return assign_gang(*args)  # type: ignore[arg-type]

    for module in ("demand.demand", "placement.placement"):
        monkeypatch.setattr(f"burstd.planner.{module}.task_ids", task_ids, raising=False)
    monkeypatch.setattr("burstd.planner.placement.placement.assign_gang", place)
    return told


def gangs(found: Target) -> list[str]:
    return [want.gang for want in found.wants]


def test_what_is_full_is_not_tried_again(counted: list[str]) -> None:
    assert gangs(make_target(make_snapshot(array()), ())) == ["7_0", "7_1"]
    assert counted.count("gang") == 3


def test_a_claim_of_a_late_task_is_found_without_the_others(counted: list[str]) -> None:
    ready = [claim(f"cpu{n}", gang=f"7_{TASKS - 1}", jobs=("7",)) for n in (1, 2)]
    found = make_target(make_snapshot(array(), claims=tuple(ready)), ())
    assert gangs(found) == ["7_0"]
    assert found.placements[f"7_{TASKS - 1}"] == ("cpu1", "cpu2")
    assert not found.releases
    assert counted.count("gang") <= 3


def test_an_array_that_slurm_does_not_start_on_open_nodes_is_tried_once(counted: list[str]) -> None:
    opened = [claim(f"cpu{n}", ClaimState.IN_SERVICE, in_service_from=NOW - 5000) for n in (1, 2)]
    late = RuntimeState(stuck_since={"7": NOW - 4000})
    found = make_target(make_snapshot(array(), claims=tuple(opened), runtime_state=late), ())
    assert not found.wants
    assert counted.count("gang") == 1


def test_a_task_is_found_in_its_row_without_the_others(counted: list[str]) -> None:
    view = build_view(make_snapshot(array()), "gate")
    assert view.job(f"7_{TASKS - 1}") is not None
    assert view.job(f"7_{TASKS}") is None
    assert view.job("7_01") is None
    assert not counted


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 4)).map(lambda s: f"{s[0]}-{s[0] + s[1]}:{s[2]}"),
    min_size=1, max_size=3, unique=True,
).map(",".join)  # fmt: skip


@given(text=spans, asked=st.lists(st.integers(0, 50).map(str), max_size=6, unique=True))
def test_those_among_it_are_those_that_are_listed(text: str, asked: list[str]) -> None:
    assert demands.tasks_among(text, asked) == [task for task in demands.task_ids(text) if task in asked]
    assert all(demands.has_task(text, task) == (task in demands.task_ids(text)) for task in (*asked, "", "x", "03"))


def scene(lot: Random) -> Snapshot:
    """Arrays of gangs, claims for some of their tasks, tasks that were given up, and others that compete."""
    rows, claims, tried = [], [], {}
    free = [f"cpu{n}" for n in range(1, 11)]
    for number in "789"[: lot.randint(1, 3)]:
        low, many = lot.randint(0, 5), lot.randint(1, 9)
        text = f"{low}-{low + many - 1}"
        need = lot.choice((2, 2, 3))
        rows.append(
            job(
                number,
                nodes=need,
                cpus=need,
                tasks=many,
                array_job_id=number,
                array_tasks=text,
                priority=lot.randint(0, 3),
            )
        )
        for task in range(low, low + many):
            if lot.random() < 0.2 and len(free) >= need:
                state = lot.choice((ClaimState.READY, ClaimState.BOOTING))
                some = [free.pop(0) for _ in range(need - lot.randint(0, 1))]
                claims += [claim(slot, state, gang=f"{number}_{task}", jobs=(number,)) for slot in some]
            if lot.random() < 0.2:
                tried[f"{number}_{task}"] = NOW - lot.choice((10, 4000))
    covered = {number: NOW - lot.choice((10, 200, 4000)) for number in "789" if lot.random() < 0.3}
    claims += [claim(slot, ClaimState.IN_SERVICE, in_service_from=NOW - 4000) for slot in free[: lot.randint(0, 2)]]
    rows += [job(str(n), cpus=lot.randint(1, 4), priority=lot.randint(0, 3)) for n in range(lot.randint(0, 4))]
    nodes = tuple(node(f"on{n}", partitions=("burst",)) for n in range(lot.randint(0, 2)))
    return make_snapshot(
        *sorted(rows, key=lambda row: -row.priority), pools=(pool(slots=10),), claims=tuple(claims), nodes=nodes,
        runtime_state=RuntimeState(stuck_since=covered, stuck_on_burst_since=tried),
    )  # fmt: skip


@pytest.mark.slow
def test_the_plan_is_that_of_trying_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    lot = Random(13)  # noqa: S311
    scenes = [scene(lot) for _ in range(300)]
    short = [make_target(one, ()) for one in scenes]
    # Were every task known apart, each would be tried.
    every = {number: {str(task) for task in range(20)} for number in "789"}
    made = Packer.__init__

    def init(self: Packer, *args: object, **fields: object) -> None:
        made(self, *args, **fields)  # type: ignore[arg-type]
        self.tracked_tasks = every

    monkeypatch.setattr(Packer, "__init__", init)
    assert [make_target(one, ()) for one in scenes] == short
    assert sum(len(found.wants) > 1 for found in short) > 50
    assert any(found.releases for found in short)
