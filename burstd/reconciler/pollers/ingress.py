"""Web addresses of jobs' ports, at providers that have them: opened on request, closed when the job runs no more.

What a provider lists is the record: after a crash it is listed again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.errors import BadRequest, NoAnswer
from burstd.domain.plugins.provider import Route, RouteProvider
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.reconciler.context import LoopContext
from burstd.runtime.poller import Poller

log = structlog.get_logger(__name__)

RELIST_S = 300.0
"""Seconds between listings of a provider that has routes."""
RETRY_S = 30.0
_LOCK_TIMEOUT_S = 20.0
MAX_ROUTES_PER_JOB = 8
"""Of one job."""
JOB_ON_NODES = (JobState.RUNNING, JobState.SUSPENDED)
CLAIM_WITH_JOBS = (ClaimState.READY, ClaimState.IN_SERVICE, ClaimState.DRAINING)


@dataclass(frozen=True, slots=True)
class ProviderRoute:
    """A route, and the provider that has it."""

    provider: str
    route: Route


@dataclass(slots=True)
class _ProviderRoutes:
    source: RouteProvider
    poller: Poller
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One call at a time, so that no listing misses what is being opened."""
    routes: tuple[Route, ...] = ()
    complete: bool = False
    """Whether there are no others: they were listed, and each that was asked for since was answered."""
    relist_at: float = float("-inf")
    """When they are listed again, in burstd's time: not at once after a request without an answer."""

    def list(self, now: float) -> None:
        self.routes, self.complete, self.relist_at = tuple(self.source.routes()), True, now + RELIST_S

    def close(self, routes: Sequence[Route]) -> None:
        self.source.close_routes(routes)
        self.routes = tuple(route for route in self.routes if route not in routes)


class JobIngress:
    """All but ``close_finished`` may be called from any thread."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._routes_of = {
            name: _ProviderRoutes(p, Poller(
                context.workers, context.clock, f"{name}:routes", f"routes of {name}",
                interval_s=lambda: 0.0, retry_s=lambda: RETRY_S, most_s=lambda: RETRY_S,
            ))
            for name, p in context.providers.items()
            if isinstance(p, RouteProvider)
        }  # fmt: skip

    def supports_routes(self, provider: str) -> bool:
        """Whether this provider has routes."""
        return provider in self._routes_of

    def open_route(self, claim: Claim, job_id: str, port: int) -> ProviderRoute:
        """Opens a route to the claim's machine, or returns the existing one.

        Raises BadRequest over the limit, KeyError where the provider has no routes, ProviderError, NoAnswer.
        """
        name, at = claim.offer.provider, claim.instance_id
        with self._locked(name) as side:
            if not side.complete:
                side.list(self._context.clock.now())
            others = [one for one in side.routes if one.job_id == job_id and _endpoints(one) != (job_id, at, port)]
            if len(others) >= MAX_ROUTES_PER_JOB:
                raise BadRequest(f"Job {job_id} has {len(others)} routes; close one before you open another.")
            try:
                route = side.source.open_route(at, job_id, port)
            except BaseException:
                # It may be there all the same, now or once the cloud has done what it did not answer.
                side.complete, side.relist_at = False, self._context.clock.now() + RETRY_S
                raise
            # Its address may have come since.
            side.routes = (*(one for one in side.routes if _endpoints(one) != _endpoints(route)), route)
        log.info("a route was opened", provider=name, job=job_id, port=port, url=route.url)
        return ProviderRoute(name, route)

    def list_routes(self) -> Sequence[ProviderRoute]:
        """All known routes, from memory."""
        return tuple(ProviderRoute(name, route) for name, side in self._routes_of.items() for route in side.routes)

    def close_routes(self, routes: Sequence[ProviderRoute]) -> None:
        """Closes these routes, provider by provider."""
        for name in self._routes_of:
            own = [one.route for one in routes if one.provider == name]
            if own:
                with self._locked(name) as side:
                    side.close(own)

    def close_finished(self, snapshot: Snapshot) -> None:
        """Begins to list the routes that are due, and to close those whose jobs have ended; in the deciding thread."""
        now = self._context.clock.now()
        for name, side in self._routes_of.items():
            to_list = now >= side.relist_at and (side.routes or not side.complete)
            if to_list or _finished(name, side, snapshot):
                side.poller.poll(
                    partial(self._refresh, name, snapshot), lambda _: None, partial(_rest_as_asked, side.poller),
                    quiet=lambda _: True,
                )  # fmt: skip

    def _refresh(self, name: str, snapshot: Snapshot) -> None:
        side, now = self._routes_of[name], self._context.clock.now()
        # A request for a route goes first; the next loop comes soon.
        if not side.lock.acquire(blocking=False):
            return
        try:
            if now >= side.relist_at:
                side.list(now)
            done = _finished(name, side, snapshot)
            if done:
                side.close(done)
                log.info("routes were closed, their jobs run no more", provider=name, jobs=[r.job_id for r in done])
        finally:
            side.lock.release()

    @contextmanager
    def _locked(self, name: str) -> Iterator[_ProviderRoutes]:
        side = self._routes_of[name]
        if not side.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise NoAnswer(f"provider {name} is busy with other routes; try again")
        try:
            yield side
        finally:
            side.lock.release()


def _rest_as_asked(poller: Poller, error: Exception) -> None:
    poller.rest(getattr(error, "retry_after_s", 0.0))


def _finished(name: str, side: _ProviderRoutes, snapshot: Snapshot) -> list[Route]:
    """Those whose jobs do not run on their machines; none where it cannot be told."""
    slurm, routes = snapshot.slurm, side.routes
    if not routes or not isinstance(slurm, SlurmView):
        return []
    ids = {route.job_id for route in routes}
    nodes = {job.id: job.node_list for job in slurm.jobs if job.id in ids and job.state in JOB_ON_NODES}
    slots: dict[str, set[str]] = {}
    for claim in snapshot.claims:
        if claim.offer.provider == name and claim.state in CLAIM_WITH_JOBS:
            slots.setdefault(claim.instance_id, set()).add(claim.slot)
    return [r for r in routes if slots.get(r.instance_id, set()).isdisjoint(nodes.get(r.job_id, ()))]


def _endpoints(route: Route) -> tuple[str, str, int]:
    """From where to where, whatever its address."""
    return route.job_id, route.instance_id, route.port
