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

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.errors import BadRequest, NoAnswer, ProviderError
from burstd.domain.plan import Plan
from burstd.domain.plugins.provider import Provider, Route, RouteProvider
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Snapshot

log = structlog.get_logger(__name__)

CHECK_EVERY_S = 2.0
"""Seconds between checks, without a call, that the jobs still run."""
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
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One call at a time, so that no listing misses what is being opened."""
    routes: tuple[Route, ...] = ()
    complete: bool = False
    """Whether there are no others: they were listed, and each that was asked for since was answered."""
    relist_at: float = 0.0
    """When it is to be listed, if there are any or nobody knows; by the monotonic clock."""
    paused_until: float = 0.0
    """Left alone until then, after an error."""
    last_error: str = ""

    def list(self) -> None:
        self.routes, self.complete = tuple(self.source.routes()), True
        self.relist_at = time.monotonic() + RELIST_S

    def close(self, routes: Sequence[Route]) -> None:
        self.source.close_routes(routes)
        self.routes = tuple(route for route in self.routes if route not in routes)


class JobIngress:
    """All but ``start`` and ``stop`` may be called from any thread."""

    def __init__(self, providers: Mapping[str, Provider], latest: Callable[[], tuple[Snapshot, Plan] | None]) -> None:
        self._routes_of = {name: _ProviderRoutes(p) for name, p in providers.items() if isinstance(p, RouteProvider)}
        self._latest = latest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="routes", daemon=True)

    def start(self) -> None:
        """Closes what is over from now on. There is no thread where no provider has routes."""
        if self._routes_of:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. What is open stays; the next burstd finds it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CHECK_EVERY_S)

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
                side.list()
            others = [one for one in side.routes if one.job_id == job_id and _endpoints(one) != (job_id, at, port)]
            if len(others) >= MAX_ROUTES_PER_JOB:
                raise BadRequest(f"Job {job_id} has {len(others)} routes; close one before you open another.")
            try:
                route = side.source.open_route(at, job_id, port)
            except BaseException:
                # It may be there all the same, now or once the cloud has done what it did not answer.
                side.complete, side.relist_at = False, time.monotonic() + RETRY_S
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

    def close_finished(self) -> None:
        """Lists the routes that are due and closes those whose jobs have ended."""
        latest = self._latest()
        if latest is None:
            return
        for name, side in self._routes_of.items():
            # A request for a route goes first; the next poll comes soon.
            if time.monotonic() >= side.paused_until and side.lock.acquire(blocking=False):
                try:
                    self._refresh(name, side, latest[0])
                finally:
                    side.lock.release()

    def _refresh(self, name: str, side: _ProviderRoutes, snapshot: Snapshot) -> None:
        try:
            if (side.routes or not side.complete) and time.monotonic() >= side.relist_at:
                side.list()
            done = [r for r in side.routes if not _job_uses_machine(snapshot, r.job_id, name, r.instance_id)]
            if done:
                side.close(done)
                log.info("routes were closed, their jobs run no more", provider=name, jobs=[r.job_id for r in done])
            side.last_error = ""
        except ProviderError as error:
            side.paused_until = time.monotonic() + max(RETRY_S, error.retry_after_s)
            if str(error) != side.last_error:
                log.warning("routes cannot be listed or closed", provider=name, error=str(error))
            side.last_error = str(error)
        except Exception:
            # Foreign code; the routes of other providers are handled all the same.
            side.paused_until = time.monotonic() + RELIST_S
            log.exception("the provider's routes failed unexpectedly", provider=name)

    @contextmanager
    def _locked(self, name: str) -> Iterator[_ProviderRoutes]:
        side = self._routes_of[name]
        if not side.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise NoAnswer(f"provider {name} is busy with other routes; try again")
        try:
            yield side
        finally:
            side.lock.release()

    def _run(self) -> None:
        while not self._stop.wait(CHECK_EVERY_S):
            self.close_finished()


def _endpoints(route: Route) -> tuple[str, str, int]:
    """From where to where, whatever its address."""
    return route.job_id, route.instance_id, route.port


def _job_uses_machine(snapshot: Snapshot, job_id: str, provider: str, instance_id: str) -> bool:
    """Whether that job runs on that machine; True where it cannot be told."""
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return True
    slots = {
        claim.slot for claim in snapshot.claims
        if (claim.offer.provider, claim.instance_id) == (provider, instance_id) and claim.state in CLAIM_WITH_JOBS
    }  # fmt: skip
    return any(
        job.id == job_id and job.state in JOB_ON_NODES and not slots.isdisjoint(job.node_list) for job in slurm.jobs
    )
