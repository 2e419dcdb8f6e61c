"""A job with requirements in its comment, with burstd killed at any moment before and after Slurm is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import policies.broker
from tests.crash.test_directed import COMPLETED, RUNNING
from tests.crash.world import GPU_SLOTS, World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

GPUS = frozenset(GPU_SLOTS)
YEAR_S = 365 * 86400.0
ANYWHERE = JobSpec(partitions=("onprem", "burst"), comment="burst: gpu=1 mem=300", run_s=30)
HELD_BACK = JobSpec(partitions=("onprem", "burst"), comment="burst: gpu=1 mem=300", run_s=30, begin_in_s=YEAR_S)
"""As job_submit.lua has it."""


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
        w.crash_points.arm(1_000_000)
        w.slurm.submit(HELD_BACK)
        w.run(60)
        steps = tuple(f"{when} {name} " for when in ("before", "after") for name in ("update_jobs", "bind", "set_gate"))
        return [n for n, place in enumerate(w.crash_points.passed, 1) if place.startswith(steps)]


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
