"""Routes are closed when their jobs run no more, found again after a crash, and cost no call where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from burstd.api.backend import HeldRoute
from burstd.domain.errors import BadRequest, CloudUnavailable, OutcomeUnknown
from burstd.domain.plugins.provider import Provider, Route
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.reconciler.pollers.ingress import MOST, RouteDesk
from tests.api.office import PLAN
from tests.api.world import CLAIMS, JOBS, NOW, SLURM, SNAPSHOT

ENDED = replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:]))


class Cloud:
    """Routes of machines, and the calls that were made. ``down``: every call fails; ``mute``: opens without a word."""

    def __init__(self, *routes: Route) -> None:
        self.there = list(routes)
        self.calls: list[str] = []
        self.down: Exception | None = None
        self.mute = False

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.down is not None:
            raise self.down

    def open_route(self, instance_id: str, job_id: str, port: int) -> Route:
        self._called("open")
        route = Route(job_id, port, instance_id, "https://here.example")
        if route not in self.there:
            self.there.append(route)
        if self.mute:
            raise OutcomeUnknown("no answer came")
        return route

    def routes(self) -> Sequence[Route]:
        self._called("list")
        return tuple(self.there)

    def close_routes(self, routes: Sequence[Route]) -> None:
        self._called("close")
        self.there = [one for one in self.there if one not in routes]


class World:
    def __init__(self, *routes: Route) -> None:
        self.cloud = Cloud(*routes)
        self.seen: Snapshot | None = SNAPSHOT
        self.desk = self.born()

    def born(self) -> RouteDesk:
        providers = {"sandbox": cast("Provider", self.cloud), "sky": cast("Provider", SimpleNamespace())}
        return RouteDesk(providers, lambda: (self.seen, PLAN) if self.seen is not None else None)


OF_101 = Route("101", 8888, "i-gpu1", "https://here.example")


def test_open_kept_and_closed_with_the_job() -> None:
    world = World()
    assert (world.desk.able("sandbox"), world.desk.able("sky"), world.desk.able("nosuch")) == (True, False, False)
    world.desk.tend()
    assert world.desk.open(CLAIMS[0], "101", 8888) == HeldRoute("sandbox", OF_101)
    world.desk.open(CLAIMS[0], "101", 8888)
    assert world.desk.held() == (HeldRoute("sandbox", OF_101),)
    world.cloud.calls.clear()
    for _ in range(3):
        world.desk.tend()
    assert (world.cloud.there, world.cloud.calls) == ([OF_101], [])
    world.seen = ENDED
    for _ in range(3):
        world.desk.tend()
    assert (world.cloud.there, world.cloud.calls, world.desk.held()) == ([], ["close"], ())


def test_none_costs_one_call_a_start() -> None:
    world = World()
    for _ in range(3):
        world.desk.tend()
    assert world.cloud.calls == ["list"]


def test_what_a_dead_burstd_left_is_found() -> None:
    world = World(OF_101, Route("90", 8888, "i-gpu7", "https://old.example"))
    world.seen = None
    world.desk.tend()
    assert world.cloud.calls == []
    world.seen = SNAPSHOT
    world.desk.tend()
    assert (world.cloud.there, world.cloud.calls) == ([OF_101], ["list", "close"])


@pytest.mark.parametrize(
    "changes",
    [
        {"slurm": Unavailable("no answer", NOW)},
        {"slurm": replace(SLURM, jobs=JOBS)},
    ],
)
def test_what_cannot_be_told_closes_nothing(changes: dict[str, Any]) -> None:
    world = World(OF_101)
    world.seen = replace(SNAPSHOT, **changes)
    world.desk.tend()
    assert world.cloud.there == [OF_101]


@pytest.mark.parametrize(
    "route",
    [
        Route("101", 8888, "i-gpu2", ""),  # the job runs elsewhere since
        Route("105", 8888, "i-gpu1", ""),  # it waits
        Route("102", 8888, "i-gpu1", ""),  # another's machine
    ],
)
def test_the_job_must_run_on_that_machine(route: Route) -> None:
    world = World(route, OF_101)
    world.desk.tend()
    assert world.cloud.there == [OF_101]


def test_a_cloud_that_is_down_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("burstd.reconciler.pollers.ingress.time", SimpleNamespace(monotonic=lambda: now))
    world = World(OF_101)
    world.seen, world.cloud.down = ENDED, CloudUnavailable("no answer")
    for _ in range(3):
        world.desk.tend()
    assert world.cloud.calls == ["list"]
    now, world.cloud.down = 1031.0, None
    world.desk.tend()
    assert (world.cloud.calls, world.cloud.there) == (["list", "list", "close"], [])


def test_one_that_vanished_is_forgotten_at_the_next_list(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("burstd.reconciler.pollers.ingress.time", SimpleNamespace(monotonic=lambda: now))
    world = World(OF_101)
    world.desk.tend()
    world.cloud.there.clear()
    now = 1301.0
    world.desk.tend()
    assert (world.cloud.calls, world.desk.held()) == (["list", "list"], ())


@pytest.mark.parametrize("others", [(), (9000,)])
def test_one_whose_opening_had_no_answer_ends_with_its_job(
    monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    now = 1000.0
    monkeypatch.setattr("burstd.reconciler.pollers.ingress.time", SimpleNamespace(monotonic=lambda: now))
    world = World()
    world.desk.tend()
    for port in others:
        world.desk.open(CLAIMS[0], "101", port)
    world.cloud.mute = True
    with pytest.raises(OutcomeUnknown):
        world.desk.open(CLAIMS[0], "101", 8888)
    world.desk.end([one for one in world.desk.held() if one.route.port in others])
    assert world.cloud.there == [OF_101]
    now, world.seen = 1031.0, ENDED
    world.desk.tend()
    assert world.cloud.there == []
    world.cloud.calls.clear()
    now = 1400.0
    world.desk.tend()
    assert world.cloud.calls == []


def test_a_job_has_a_few_only() -> None:
    world = World()
    for port in range(8000, 8000 + MOST):
        world.desk.open(CLAIMS[0], "101", port)
    world.desk.open(CLAIMS[0], "101", 8000)
    # The same port on another of its machines is one more.
    for claim, port in ((CLAIMS[0], 9000), (CLAIMS[1], 8000)):
        with pytest.raises(BadRequest, match=f"Job 101 has {MOST} routes; close one"):
            world.desk.open(claim, "101", port)
    world.desk.open(CLAIMS[1], "102", 8000)
    assert len(world.cloud.there) == MOST + 1
