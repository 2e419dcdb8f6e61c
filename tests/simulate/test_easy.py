"""Slurm's queue in the replay: EASY on the site's nodes, and machines of the cloud beside them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.simulate.traces.window import ReplayJob
from burstd.simulate.world.queue import BackfillQueue
from burstd.simulate.world.site import BackfillReservation, OnPremSite


class NoMachines:
    """Nothing of the cloud is open."""

    users_matter = False

    def find_slots(self, job: ReplayJob) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def allocate(self, slots: tuple[str, ...], job: ReplayJob, now: float) -> None:  # noqa: ARG002
        raise AssertionError("there are none")


def job(number: int, at: float, run: float, limit: float, nodes: int = 1, units: int = 1) -> ReplayJob:
    return ReplayJob(number, f"j{number}", at, run, limit, nodes, units, "ada", "proj", "")


class SiteRig:
    """A site with nothing beside it, run from event to event."""

    def __init__(self, nodes: int, size: int) -> None:
        self.site = OnPremSite(nodes, size)
        self.queue = BackfillQueue(self.site, NoMachines(), 0.0, self._on_started)
        self.now = 0.0
        self.starts: dict[int, float] = {}
        self.promises: dict[int, float] = {}
        """When the first reservation of each head was to begin."""
        self._ends: list[tuple[float, int, ReplayJob, tuple[int, ...]]] = []

    def _on_started(self, one: ReplayJob, site_nodes: tuple[int, ...], slots: tuple[str, ...]) -> None:
        assert not slots
        assert len(set(site_nodes)) == one.nodes
        self.starts[one.number] = self.now
        heappush(self._ends, (self.now + one.run_s, one.number, one, site_nodes))

    def run(self, jobs: Sequence[ReplayJob]) -> dict[int, float]:
        coming = list(jobs)
        while coming or self._ends:
            self.now = min([one.submitted for one in coming[:1]] + [end for end, *_ in self._ends[:1]])
            freed = False
            while self._ends and self._ends[0][0] <= self.now:
                _, number, one, places = heappop(self._ends)
                self.site.deallocate(places, one.units, self.starts[number] + one.limit_s)
                freed = True
            fresh = [one for one in coming if one.submitted <= self.now]
            coming = coming[len(fresh) :]
            for one in fresh:
                self.queue.add(one)
            if freed:
                self.queue.backfill_pass(self.now)
            else:
                for one in fresh:
                    self.queue.start_if_possible(one, self.now)
            if self.queue.head is not None and self.queue.reservation is not None:
                self.promises.setdefault(self.queue.head.number, self.queue.reservation.shadow_time)
            assert min(self.site.free) >= 0
        return self.starts


@pytest.mark.parametrize(
    ("nodes", "size", "jobs", "starts"),
    [
        pytest.param(
            1, 4, [job(1, 0, 100, 100, units=3), job(2, 1, 50, 50, units=2), job(3, 2, 90, 90)], [0, 100, 2],
            id="a short one starts before the head",
        ),
        pytest.param(
            1, 4, [job(1, 0, 100, 100, units=3), job(2, 1, 50, 50, units=4), job(3, 2, 90, 99)], [0, 100, 150],
            id="one that would delay the head by its limit waits",
        ),
        pytest.param(
            1, 4, [job(1, 0, 100, 100, units=3), job(2, 1, 50, 50, units=2), job(3, 2, 500, 500)], [0, 100, 2],
            id="a long one starts on what the head leaves",
        ),
        pytest.param(
            1, 4, [job(1, 0, 100, 100, units=3), job(2, 1, 50, 50, units=4), job(3, 2, 500, 500)], [0, 100, 150],
            id="a long one waits where the head leaves nothing",
        ),
        pytest.param(
            2, 4, [job(1, 0, 100, 100, units=4), job(2, 1, 50, 50, nodes=2, units=4), job(3, 2, 98, 98, units=4)],
            [0, 100, 2], id="the other node is free until a job of both nodes starts",
        ),
        pytest.param(
            1, 2, [job(1, 0, 10, 100, units=2), job(2, 1, 10, 10, units=2), job(3, 2, 5, 5)], [0, 10, 20],
            id="the head starts sooner where a job ends before its limit",
        ),
        pytest.param(
            2, 2, [job(1, 0, 100, 100), job(2, 0, 100, 100), job(3, 1, 10, 10, units=2)], [0, 0, 1],
            id="nodes in use are filled up first",
        ),
        pytest.param(
            1, 1, [job(1, 0, 10, 10), job(2, 1, 10, 10), job(3, 2, 10, 10)], [0, 10, 20], id="in order of submission",
        ),
    ],
)  # fmt: skip
def test_easy(nodes: int, size: int, jobs: list[ReplayJob], starts: list[float]) -> None:
    assert list(dict(sorted(SiteRig(nodes, size).run(jobs).items())).values()) == starts


@st.composite
def _jobs(draw: st.DrawFn) -> list[ReplayJob]:
    at = 0.0
    jobs: list[ReplayJob] = []
    for number in range(1, draw(st.integers(1, 40)) + 1):
        at += draw(st.integers(0, 30))
        run = draw(st.integers(1, 200))
        limit = run + draw(st.sampled_from([0, 0, 10, 100]))
        jobs.append(job(number, at, run, limit, draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.integers(1, 4))))
    return jobs


@given(_jobs())
def test_backfill_never_delays_the_head_and_every_job_starts(jobs: list[ReplayJob]) -> None:
    site = SiteRig(3, 4)
    starts = site.run(jobs)
    assert sorted(starts) == [one.number for one in jobs]
    assert site.site.busy == 0
    for number, promised in site.promises.items():
        assert starts[number] <= promised


def test_a_hold_knows_what_the_head_leaves() -> None:
    site = OnPremSite(2, 4)
    site.allocate((0,), 3, 100.0, None)
    site.allocate((1,), 4, 50.0, None)
    assert site.reserve(1, 2) == BackfillReservation(50.0, {1: 2})
    assert site.reserve(2, 2) == BackfillReservation(100.0, {0: 2, 1: 2})
    assert site.find_nodes(1, 1, 99.0, BackfillReservation(100.0, {0: 0})) == (0,)
    assert site.find_nodes(1, 1, 101.0, BackfillReservation(100.0, {0: 0})) == ()
