"""Routes are closed when their jobs run no more, found again after a crash, and cost no call where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable, OutcomeUnknown, RateLimited
from burstd.domain.plugins.provider import Route
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.reconciler.pollers.ingress import MAX_ROUTES_PER_JOB, JobIngress, ProviderRoute
from tests.api.world import CLAIMS, JOBS, NOW, SLURM, SNAPSHOT
from tests.crash.workers import QueuedWorkers
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.reconciler.context import LoopContext

ENDED = replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:]))


class FakeRouteProvider:
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


class IngressRig:
    """Calls are made at once, in the caller's thread."""

    def __init__(self, *routes: Route) -> None:
        self.cloud, self.clock = FakeRouteProvider(*routes), VirtualClock()
        self.workers = QueuedWorkers(self.clock, {})
        self.seen: Snapshot | None = SNAPSHOT
        providers = {"sandbox": self.cloud, "sky": SimpleNamespace()}
        context = SimpleNamespace(providers=providers, clock=self.clock, workers=self.workers)
        self.ingress = JobIngress(cast("LoopContext", context))

    def loop(self) -> None:
        """One loop of burstd and what it began."""
        if self.seen is not None:
            self.ingress.close_finished(self.seen)
        while self.workers.has_work:
            self.workers.run_one()
            self.workers.run_callbacks()


OF_101 = Route("101", 8888, "i-gpu1", "https://here.example")


def test_open_kept_and_closed_with_the_job() -> None:
    world = IngressRig()
    assert (
        world.ingress.supports_routes("sandbox"),
        world.ingress.supports_routes("sky"),
        world.ingress.supports_routes("nosuch"),
    ) == (True, False, False)
    world.loop()
    assert world.ingress.open_route(CLAIMS[0], "101", 8888) == ProviderRoute("sandbox", OF_101)
    world.ingress.open_route(CLAIMS[0], "101", 8888)
    assert world.ingress.list_routes() == (ProviderRoute("sandbox", OF_101),)
    world.cloud.calls.clear()
    for _ in range(3):
        world.loop()
    assert (world.cloud.there, world.cloud.calls) == ([OF_101], [])
    world.seen = ENDED
    for _ in range(3):
        world.loop()
    assert (world.cloud.there, world.cloud.calls, world.ingress.list_routes()) == ([], ["close"], ())


def test_none_costs_one_call_a_start() -> None:
    world = IngressRig()
    for _ in range(3):
        world.loop()
    assert world.cloud.calls == ["list"]


def test_what_a_dead_burstd_left_is_found() -> None:
    world = IngressRig(OF_101, Route("90", 8888, "i-gpu7", "https://old.example"))
    world.seen = None
    world.loop()
    assert world.cloud.calls == []
    world.seen = SNAPSHOT
    world.loop()
    assert (world.cloud.there, world.cloud.calls) == ([OF_101], ["list", "close"])


@pytest.mark.parametrize(
    "changes",
    [
        {"slurm": Unavailable("no answer", NOW)},
        {"slurm": replace(SLURM, jobs=JOBS)},
    ],
)
def test_what_cannot_be_told_closes_nothing(changes: dict[str, Any]) -> None:
    world = IngressRig(OF_101)
    world.seen = replace(SNAPSHOT, **changes)
    world.loop()
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
    world = IngressRig(route, OF_101)
    world.loop()
    assert world.cloud.there == [OF_101]


def test_a_cloud_that_is_down_is_left_alone_for_a_while() -> None:
    world = IngressRig(OF_101)
    world.seen, world.cloud.down = ENDED, CloudUnavailable("no answer")
    for _ in range(3):
        world.loop()
    assert world.cloud.calls == ["list"]
    world.clock.advance(31.0)
    world.cloud.down = None
    world.loop()
    assert (world.cloud.calls, world.cloud.there) == (["list", "list", "close"], [])


def test_one_that_vanished_is_forgotten_at_the_next_list() -> None:
    world = IngressRig(OF_101)
    world.loop()
    world.cloud.there.clear()
    world.clock.advance(301.0)
    world.loop()
    assert (world.cloud.calls, world.ingress.list_routes()) == (["list", "list"], ())


@pytest.mark.parametrize("others", [(), (9000,)])
def test_one_whose_opening_had_no_answer_ends_with_its_job(others: tuple[int, ...]) -> None:
    world = IngressRig()
    world.loop()
    for port in others:
        world.ingress.open_route(CLAIMS[0], "101", port)
    world.cloud.mute = True
    with pytest.raises(OutcomeUnknown):
        world.ingress.open_route(CLAIMS[0], "101", 8888)
    world.ingress.close_routes([one for one in world.ingress.list_routes() if one.route.port in others])
    assert world.cloud.there == [OF_101]
    world.clock.advance(31.0)
    world.seen = ENDED
    world.loop()
    assert world.cloud.there == []
    world.cloud.calls.clear()
    world.clock.advance(400.0)
    world.loop()
    assert world.cloud.calls == []


def test_a_job_has_a_few_only() -> None:
    world = IngressRig()
    for port in range(8000, 8000 + MAX_ROUTES_PER_JOB):
        world.ingress.open_route(CLAIMS[0], "101", port)
    world.ingress.open_route(CLAIMS[0], "101", 8000)
    # The same port on another of its machines is one more.
    for claim, port in ((CLAIMS[0], 9000), (CLAIMS[1], 8000)):
        with pytest.raises(BadRequest, match=f"Job 101 has {MAX_ROUTES_PER_JOB} routes; close one"):
            world.ingress.open_route(claim, "101", port)
    world.ingress.open_route(CLAIMS[1], "102", 8000)
    assert len(world.cloud.there) == MAX_ROUTES_PER_JOB + 1


def test_one_that_comes_late_after_no_answer_ends_with_its_job() -> None:
    world = IngressRig()
    world.loop()
    world.clock.advance(3600.0)
    world.cloud.mute = True
    with pytest.raises(OutcomeUnknown):
        world.ingress.open_route(CLAIMS[0], "101", 8888)
    world.cloud.there.clear()
    world.clock.advance(1.0)
    world.loop()
    world.cloud.there.append(OF_101)
    world.seen = ENDED
    world.clock.advance(31.0)
    world.loop()
    assert world.cloud.there == []


def test_a_cloud_that_asks_for_a_rest_gets_it() -> None:
    world = IngressRig(OF_101)
    world.seen, world.cloud.down = ENDED, RateLimited("slow down", retry_after_s=600.0)
    for _ in range(10):
        world.loop()
        world.clock.advance(50.0)
    assert world.cloud.calls == ["list"]
