"""Web addresses of jobs' ports, at providers that have them: opened on request, closed when the job runs no more.

What a provider lists is the record: after a crash it is listed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from burstd.api.backend import HeldRoute, NoAnswer
from burstd.api.job_nodes import has
from burstd.domain.claim import Claim
from burstd.domain.errors import BadRequest, ProviderError
from burstd.domain.plan import Plan
from burstd.domain.plugins.provider import Provider, Route, Routes
from burstd.domain.snapshot import Snapshot

log = structlog.get_logger(__name__)

LOOK_S = 2.0
"""How often it is seen, without a call, whether the jobs still run."""
RELIST_S = 300.0
"""How often a provider that has some is asked which."""
RETRY_S = 30.0
_TURN_S = 20.0
MOST = 8
"""Of one job."""


@dataclass(slots=True)
class _Side:
    source: Routes
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One call at a time, so that no listing misses what is being opened."""
    routes: tuple[Route, ...] = ()
    complete: bool = False
    """Whether there are no others: they were listed, and each that was asked for since was answered."""
    relist: float = 0.0
    """When it is to be listed, if there are any or nobody knows; by the monotonic clock."""
    rest: float = 0.0
    """Left alone until then, after an error."""
    told: str = ""

    def list(self) -> None:
        self.routes, self.complete = tuple(self.source.routes()), True
        self.relist = time.monotonic() + RELIST_S

    def close(self, routes: Sequence[Route]) -> None:
        self.source.close_routes(routes)
        self.routes = tuple(route for route in self.routes if route not in routes)


class RouteDesk:
    """Implements ``burstd.api.backend.RouteOffice``."""

    def __init__(self, providers: Mapping[str, Provider], latest: Callable[[], tuple[Snapshot, Plan] | None]) -> None:
        self._sides = {name: _Side(p) for name, p in providers.items() if isinstance(p, Routes)}
        self._latest = latest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self) -> None:
        """Closes what is over from now on. There is no thread where no provider has routes."""
        if self._sides:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. What is open stays; the next burstd finds it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_S)

    def able(self, provider: str) -> bool:
        """See RouteOffice."""
        return provider in self._sides

    def open(self, claim: Claim, job_id: str, port: int) -> HeldRoute:
        """See RouteOffice."""
        name, at = claim.offer.provider, claim.instance_id
        with self._turn(name) as side:
            if not side.complete:
                side.list()
            others = [one for one in side.routes if one.job_id == job_id and _way(one) != (job_id, at, port)]
            if len(others) >= MOST:
                raise BadRequest(f"Job {job_id} has {len(others)} routes; close one before you open another.")
            try:
                route = side.source.open_route(at, job_id, port)
            except BaseException:
                # It may be there all the same, now or once the cloud has done what it did not answer.
                side.complete, side.relist = False, time.monotonic() + RETRY_S
                raise
            # Its address may have come since.
            side.routes = (*(one for one in side.routes if _way(one) != _way(route)), route)
        log.info("a route was opened", provider=name, job=job_id, port=port, url=route.url)
        return HeldRoute(name, route)

    def held(self) -> Sequence[HeldRoute]:
        """See RouteOffice."""
        return tuple(HeldRoute(name, route) for name, side in self._sides.items() for route in side.routes)

    def end(self, held: Sequence[HeldRoute]) -> None:
        """See RouteOffice."""
        for name in self._sides:
            routes = [one.route for one in held if one.provider == name]
            if routes:
                with self._turn(name) as side:
                    side.close(routes)

    def tend(self) -> None:
        """One look: lists what is due, closes what is over."""
        latest = self._latest()
        if latest is None:
            return
        for name, side in self._sides.items():
            # Who asks for a route is served first; the next look comes soon.
            if time.monotonic() >= side.rest and side.lock.acquire(blocking=False):
                try:
                    self._tend(name, side, latest[0])
                finally:
                    side.lock.release()

    def _tend(self, name: str, side: _Side, snapshot: Snapshot) -> None:
        try:
            if (side.routes or not side.complete) and time.monotonic() >= side.relist:
                side.list()
            done = [r for r in side.routes if not has(snapshot, r.job_id, name, r.instance_id)]
            if done:
                side.close(done)
                log.info("routes were closed, their jobs run no more", provider=name, jobs=[r.job_id for r in done])
            side.told = ""
        except ProviderError as error:
            side.rest = time.monotonic() + max(RETRY_S, error.retry_after_s)
            if str(error) != side.told:
                log.warning("routes cannot be looked after", provider=name, error=str(error))
            side.told = str(error)
        except Exception:
            # Foreign code; those of other providers are looked after all the same.
            side.rest = time.monotonic() + RELIST_S
            log.exception("provider broke over its routes", provider=name)

    @contextmanager
    def _turn(self, name: str) -> Iterator[_Side]:
        side = self._sides[name]
        if not side.lock.acquire(timeout=_TURN_S):
            raise NoAnswer(f"{name} is slow with the routes of others; nothing was done, try again")
        try:
            yield side
        finally:
            side.lock.release()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.tend()


def _way(route: Route) -> tuple[str, str, int]:
    """From where to where, whatever its address."""
    return route.job_id, route.instance_id, route.port
