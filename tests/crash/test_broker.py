"""A job with requirements in its comment, with burstd killed at any moment before and after Slurm is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import policies.broker
from burstd.reconciler.excluded_nodes import EXCLUDED_NODES_KEY
from tests.crash.test_directed import COMPLETED, RUNNING
from tests.crash.world import GPU_SLOTS, SLOTS, World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

GPUS = frozenset(GPU_SLOTS)
OWN = frozenset({"g1", "c2"})
"""What a job's user excludes."""
YEAR_S = 365 * 86400.0
ANYWHERE = JobSpec(partitions=("onprem", "burst"), comment="burst: gpu=1 mem=300", run_s=30)
HELD_BACK = JobSpec(partitions=("onprem", "burst"), comment="burst: gpu=1 mem=300", run_s=30, begin_in_s=YEAR_S)
"""As job_submit.lua has it."""
MISSPELT = JobSpec(
    partitions=("onprem", "burst"), comment="burst: memm=300", run_s=30, begin_in_s=YEAR_S, excluded_nodes=OWN
)


@contextmanager
def world(template: Path) -> Iterator[World]:
    with memory_folder() as folder:
        broker = policies.broker.plugin.make(policies.broker.BrokerSettings())
        w = World(folder, template=template, alpha="sim", policies=(broker,))
        yield w
        w.kill()


def places(template: Path) -> list[int]:
    """Where burstd can die around what it tells Slurm of the job, and until it binds it."""
    with world(template) as w:
        with w.recorded_places():
            w.slurm.submit(HELD_BACK)
            w.run(60)
        return w.crash_points.distinct_places(" update_jobs ", " bind ", " set_gate ")


def test_killed_anywhere_the_job_never_runs_where_it_must_not(template: Path) -> None:
    found = places(template)
    assert len(found) > 4
    for place in found:
        with world(template) as w:
            job = w.slurm.submit(HELD_BACK)
            w.crash_points.arm(place)
            w.run(60)
            assert w.reconciler is None, place
            w.crash_points.disarm()
            w.run(30)
            w.start()
            w.run_until(lambda job=job, w=w: w.states(job) == [COMPLETED], 240)  # type: ignore[misc]
            done = w.slurm.job(job)
            assert (len(GPUS.intersection(done.nodes)), done.restarts) == (1, 0), w.crash_points.passed[-1]


def test_one_that_slurm_started_at_once_is_moved(template: Path) -> None:
    with world(template) as w:
        w.kill()
        job = w.slurm.submit(ANYWHERE)
        w.run_until(lambda: w.states(job) == [RUNNING], 10)
        assert w.slurm.job(job).nodes == ("op1",)
        w.start()
        w.run_until(lambda: w.states(job) == [COMPLETED], 600)
        done = w.slurm.job(job)
        assert (len(GPUS.intersection(done.nodes)), done.restarts) == (1, 1)


def correct_comment(w: World, comment: str) -> str:
    """Kept off every node, then, in another life of burstd, off none but its user's. burstd may die on the way."""
    job = w.slurm.submit(MISSPELT)
    w.run(20)
    w.kill()
    w.start()
    w.run(10)
    w.start()
    assert w.slurm.job(job).spec.excluded_nodes == SLOTS | {"op1"}
    w.slurm.set_comment([job], comment)
    w.run(20)
    w.start()
    w.run_until(lambda: w.states(job) == [RUNNING], 30)
    assert w.slurm.job(job).spec.excluded_nodes == OWN
    assert w.slurm.job(job).nodes == ("op1",)
    return job


@pytest.mark.parametrize("comment", ["burst: mem=300", ""])
def test_killed_anywhere_a_job_follows_its_corrected_comment(template: Path, comment: str) -> None:
    with world(template) as w:
        w.crash_points.arm(1_000_000)
        job = correct_comment(w, comment)
        steps = tuple(
            f"{when} {name} " for when in ("before", "after") for name in ("set_metadata ('excluded", "update_jobs")
        )
        found = [n for n, place in enumerate(w.crash_points.passed, 1) if place.startswith(steps)]
        w.run_until(lambda: w.states(job) == [COMPLETED], 60)
        w.run(60)
        assert w.store.metadata(EXCLUDED_NODES_KEY) == ""
    # The first update and its record; the second one adds no node.
    assert len(found) == 6
    for place in found:
        with world(template) as w:
            w.crash_points.arm(place)
            correct_comment(w, comment)
            assert w.crash_points.left is None
