"""Takes the snapshot: the clouds in their own threads, Slurm at each loop, the store last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.clock import Clock
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BurstdError, SchedulerRefused, SchedulerUnavailable
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import CloudView, Sighting, SlurmView, Unavailable
from burstd.planner.isolation import node_subject as subject
from burstd.planner.lifecycle.ownership import Ownership
from burstd.reconciler.quarantine import Quarantine
from burstd.runtime.workers import Workers

_T = TypeVar("_T")

log = structlog.get_logger(__name__)

_EXPECTED = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING})
_REGISTERED = frozenset({S.READY, S.IN_SERVICE, S.DRAINING})
_CHANGING = frozenset({S.LAUNCHING, S.BOOTING, S.TERMINATING})


class NodeDoubted(BurstdError):
    """Slurm's data of a node is not plausible."""


@dataclass(slots=True)
class PollIntervals:
    """Intervals of all pollers, in seconds; one object for all, which a reload replaces."""

    tick_s: float = 15.0
    """A loop at least this often."""
    poll_s: float = 2.0
    """The queue, where Slurm's state directory cannot be watched."""
    slurm_fast_s: float = 0.4
    """The queue and the nodes, while a node is about to register or a bound job to start."""
    cloud_poll_s: float = 15.0
    cloud_fast_s: float = 1.0
    """While something of the provider's is about to change."""
    sweep_polls: float = 4.0
    """Leftovers are looked for at every so many polls of the cloud, ..."""
    sweep_fast_s: float = 2.0
    """... and so often while some are waited for."""
    offers_s: float = 300.0
    notices_s: float = 5.0
    """The queues of notices and, where Slurm's state directory is watched, the nodes, while there are spot machines."""
    notices_idle_s: float = 60.0
    image_polls: float = 4.0
    """The versions of images, where a cloud has them, at every so many polls of the cloud."""
    validation_retry_s: float = 0.5
    call_retry_s: float = 2.0
    """First pause before a failed call is repeated; doubles to a minute."""


@dataclass(slots=True)
class _ProviderState:
    """What is known of one provider."""

    view: CloudView
    listing: bool = False
    list_due: float = 0.0
    offers_due: float = 0.0
    last_sweep: float = float("-inf")
    """When leftovers were last asked for."""
    reading_offers: bool = False
    listing_took_s: float = 0.0
    """How long the last listing took, in seconds."""
    calls: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Listing:
    instances: tuple[Instance, ...]
    leftovers: tuple[Leftover, ...] | Exception | None
    """None: not listed this time."""


class Observer:
    """Keeps the last view of every cloud and counts in how many listings in a row something was missing or stray."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        scheduler: Scheduler,
        workers: Workers,
        clock: Clock,
        intervals: PollIntervals,
        claims: Callable[[], tuple[Claim, ...]],
        quarantine: Quarantine,
    ) -> None:
        self._providers = providers
        self._scheduler = scheduler
        self._workers = workers
        self._clock = clock
        self._intervals = intervals
        self._claims = claims
        self._quarantine = quarantine
        never = Unavailable("not read yet", 0.0)
        self._provider_states = {
            name: _ProviderState(CloudView(never, never, never, 0.0, p.idempotency, p.settle_s))
            for name, p in providers.items()
        }
        self._slurm: SlurmView | Unavailable = never
        self._last_busy: dict[str, float] = {}
        """When each node was last seen with a job on it, in burstd's time."""
        self._ever_listed: set[str] = set()
        """Claims whose machine a list has shown."""
        self.missing_sightings: dict[str, Sighting] = {}
        self.orphan_sightings: dict[str, Sighting] = {}

    def cloud_views(self) -> dict[str, CloudView]:
        """The last view of each provider."""
        return {name: watch.view for name, watch in self._provider_states.items()}

    def read_slurm(self) -> SlurmView | Unavailable:
        """Reads Slurm: three commands, whatever its size."""
        read = self._clock.now()
        try:
            # In this order: a job that starts between the two must not look as if it still waited for its node.
            nodes = {node.name: node for node in self._scheduler.nodes()}
            for name, node in nodes.items():
                with self._quarantine.contain_errors("reading Slurm", subject(name)):
                    if node.unreliable_because and subject(name) not in self._quarantine:
                        raise NodeDoubted(node.unreliable_because)
                    nodes[name] = self._with_last_busy(node, read)
            jobs = tuple(self._scheduler.jobs())
            reservations = tuple(self._scheduler.reservations())
            version = "{}.{:02}.{}".format(*self._scheduler.version())
        except (SchedulerUnavailable, SchedulerRefused, ValueError) as error:
            if isinstance(error, ValueError):
                log.error("slurm says something that is not understood", exc_info=error)
            since = self._slurm.since if isinstance(self._slurm, Unavailable) else self._slurm.read_at
            if not isinstance(self._slurm, Unavailable) or not since:
                log.warning("slurm cannot be read", error=str(error))
            self._slurm = Unavailable(str(error), since)
        else:
            if isinstance(self._slurm, Unavailable):
                log.info("slurm is read", jobs=len(jobs), nodes=len(nodes))
            self._slurm = SlurmView(jobs, nodes, reservations, read, version)
        return self._slurm

    def _with_last_busy(self, node: Node, read: float) -> Node:
        """The node with the time at which it was last seen busy, where the clock jumped since Slurm noted its own.

        Else a node that just became idle would be closed at once, or stay for as long as the clock was set back.
        """
        if node.busy:
            self._last_busy[node.name] = read
        reported = node.last_busy if node.last_busy <= read else 0.0
        seen = max(reported, self._last_busy.get(node.name, 0.0))
        return node if seen == node.last_busy else replace(node, last_busy=seen)

    def start_due_listings(self, claims: tuple[Claim, ...]) -> None:
        """Starts the listings that are due, each in its provider's own lane; their results come with ``drain``."""
        now = self._clock.now()
        for name, watch in self._provider_states.items():
            # A cloud that fails is given its pause, whatever is waited for.
            if not watch.failures and any(c.state in _CHANGING and c.offer.provider == name for c in claims):
                watch.list_due = min(watch.list_due, self._earliest_listing(watch))
            if not watch.listing and now >= watch.list_due:
                self._list(name, watch)
            if not watch.reading_offers and now >= watch.offers_due:
                self._read_offers(name, watch)

    def list_soon(self, provider: str) -> None:
        """The next listing of this provider is due at once."""
        if provider in self._provider_states and not self._provider_states[provider].failures:
            self._provider_states[provider].list_due = 0.0

    def next_listing(self, claims: tuple[Claim, ...]) -> float:
        """When the next listing is due, in burstd's time."""
        due = float("inf")
        for name, watch in self._provider_states.items():
            listing = watch.list_due
            if not watch.failures and any(c.state in _CHANGING and c.offer.provider == name for c in claims):
                listing = min(listing, self._earliest_listing(watch))
            due = min(
                due,
                float("inf") if watch.listing else listing,
                float("inf") if watch.reading_offers else watch.offers_due,
            )
        return due

    def _earliest_listing(self, watch: _ProviderState) -> float:
        """While something is about to change. At most a fifth of the time goes to listing: a long list is read less."""
        return watch.view.instances_listed + max(
            self._intervals.cloud_fast_s, min(5 * watch.listing_took_s, self._intervals.cloud_poll_s)
        )

    def _list(self, name: str, watch: _ProviderState) -> None:
        provider, begun = self._providers[name], self._clock.now()
        watch.listing = True
        sweep = self._sweep_due(name, watch, begun)

        def work() -> _Listing:
            return _Listing(tuple(provider.instances()), _list_leftovers(provider) if sweep else None)

        def done(result: _Listing | Exception) -> None:
            watch.listing = False
            watch.calls += 1
            if isinstance(result, Exception):
                self._list_failed(name, watch, result)
                return
            if watch.failures:
                log.info("cloud can be listed again", provider=name)
            watch.failures = 0
            watch.listing_took_s = self._clock.now() - begun
            watch.list_due = begun + self._intervals.cloud_poll_s
            watch.view = replace(watch.view, instances=result.instances, instances_listed=begun)
            if isinstance(result.leftovers, Exception):
                self._sweep_failed(name, watch, result.leftovers)
            elif result.leftovers is not None:
                watch.view = replace(watch.view, leftovers=result.leftovers, leftovers_listed=begun)
            watch.last_sweep = begun if sweep else watch.last_sweep
            self._count_missing_and_orphans(name, watch.view, result)

        self._workers.submit(f"{name}:list", work, done)

    def _sweep_due(self, name: str, watch: _ProviderState, now: float) -> bool:
        """Leftovers are calls of their own, often several: they are listed when one is waited for, else seldom."""
        view, intervals = watch.view, self._intervals
        living = {i.claim_id for i in _or_empty(view.instances) if not i.state.ended} | {
            i.id for i in _or_empty(view.instances) if not i.state.ended
        }
        waited = any(
            c.state is S.TERMINATING and c.offer.provider == name and not living & {c.id, c.instance_id}
            for c in self._claims()
        ) or any(f"{name}/{left.id}" in self.orphan_sightings for left in _or_empty(view.leftovers))
        soon = waited or isinstance(view.leftovers, Unavailable)
        return now >= watch.last_sweep + (
            intervals.sweep_fast_s if soon else intervals.sweep_polls * intervals.cloud_poll_s
        )

    def _sweep_failed(self, name: str, watch: _ProviderState, error: Exception) -> None:
        """Machines are known all the same; only what they leave behind is not."""
        if not isinstance(error, BurstdError):
            log.error("provider failed unexpectedly while listing leftovers", provider=name, exc_info=error)
        elif not isinstance(watch.view.leftovers, Unavailable):
            log.warning("leftovers cannot be listed", provider=name, error=str(error))
        watch.view = replace(
            watch.view, leftovers=Unavailable(str(error) or type(error).__name__, watch.view.leftovers_listed)
        )

    def _list_failed(self, name: str, watch: _ProviderState, error: Exception) -> None:
        if not isinstance(error, BurstdError):
            log.error("provider broke while listing", provider=name, exc_info=error)
        elif not watch.failures:
            log.warning("cloud cannot be listed", provider=name, error=str(error))
        watch.failures += 1
        pause = min(self._intervals.call_retry_s * 2 ** min(watch.failures - 1, 10), self._intervals.cloud_poll_s * 4)
        watch.list_due = self._clock.now() + pause
        # What was seen before is out of date: nothing may be destroyed on it.
        gone = Unavailable(str(error) or type(error).__name__, watch.view.instances_listed)
        watch.view = replace(watch.view, instances=gone, leftovers=gone)

    def _read_offers(self, name: str, watch: _ProviderState) -> None:
        provider = self._providers[name]
        watch.reading_offers = True

        def done(result: tuple[Offer, ...] | Exception) -> None:
            watch.reading_offers = False
            watch.calls += 1
            now = self._clock.now()
            if isinstance(result, Exception):
                if not isinstance(result, BurstdError):
                    log.error("provider broke while telling its offers", provider=name, exc_info=result)
                else:
                    log.warning("offers cannot be read", provider=name, error=str(result))
                watch.offers_due = now + self._intervals.cloud_poll_s
                # Prices do not rot in minutes: the last offers stay in force.
                if isinstance(watch.view.offers, Unavailable):
                    watch.view = replace(watch.view, offers=Unavailable(str(result), watch.view.offers.since))
            else:
                watch.offers_due = now + self._intervals.offers_s
                watch.view = replace(watch.view, offers=result)

        self._workers.submit(f"{name}:list", lambda: tuple(provider.offers()), done)

    def _count_missing_and_orphans(self, name: str, view: CloudView, listing: _Listing) -> None:
        """Counts what is missing and what is stray in one complete listing."""
        claims = {c.id: c for c in self._claims()}
        ownership = Ownership(claims.values(), listing.instances)
        alive = {ownership.claim_of(i) for i in listing.instances if not i.state.ended}
        without_error = {
            ownership.claim_of(i) for i in listing.instances
            if not i.state.ended and i.state is not InstanceState.ERROR
        }  # fmt: skip
        listed = {ownership.claim_of(i) for i in listing.instances}
        self._ever_listed = (self._ever_listed | alive) & claims.keys()
        for claim in claims.values():
            if claim.offer.provider == name:
                with self._quarantine.contain_errors("listing", subject(claim.slot)):
                    self._count_if_missing(claim, view, alive=alive, without_error=without_error, listed=listed)
        for gone in self.missing_sightings.keys() - claims.keys():
            del self.missing_sightings[gone]
        stray = {
            f"{name}/{i.id}"
            for i in listing.instances
            if i.state is not InstanceState.TERMINATED and ownership.is_orphan(i)
        }
        seen = set(stray)
        if isinstance(listing.leftovers, tuple):
            seen |= {f"{name}/{left.id}" for left in listing.leftovers if left.claim_id not in claims}
        else:
            # Not listed this time: what was stray stays so, and is not counted again.
            stray |= self.orphan_sightings.keys() & {f"{name}/{left.id}" for left in _or_empty(view.leftovers)}
        for key in [k for k in self.orphan_sightings if k.startswith(f"{name}/") and k not in stray | seen]:
            del self.orphan_sightings[key]
        for key in seen:
            self.orphan_sightings[key] = _seen_again(self.orphan_sightings.get(key), view.instances_listed)

    def _count_if_missing(
        self, claim: Claim, view: CloudView, *, alive: Set[str], without_error: Set[str], listed: Set[str]
    ) -> None:
        """Counts one claim as missing, or not, in one complete listing."""
        asked = claim.launch_called
        due = claim.state in _EXPECTED and asked is not None and view.instances_listed > asked + view.settle_s
        # Before it was a node, one in error is a launch that the cloud refuses late.
        is_listed = claim.id in (without_error if claim.state in _REGISTERED else alive)
        # A list may lag by minutes: a new machine that it has never shown is waited for while it may boot.
        late = claim.state not in _REGISTERED and claim.id not in self._ever_listed and claim.id not in listed
        # A launch without an answer is absent by right until it was asked for again.
        if is_listed or not due or late or (claim.state is S.LAUNCHING and not claim.instance_id):
            self.missing_sightings.pop(claim.id, None)
        else:
            self.missing_sightings[claim.id] = _seen_again(self.missing_sightings.get(claim.id), view.instances_listed)


def _list_leftovers(provider: Provider) -> tuple[Leftover, ...] | Exception:
    """What the provider says of leftovers; that it cannot is no reason not to know its machines."""
    try:
        return tuple(provider.leftovers())
    except Exception as error:  # noqa: BLE001  the deciding thread reports it
        return error


def _or_empty(things: tuple[_T, ...] | Unavailable) -> tuple[_T, ...]:
    return () if isinstance(things, Unavailable) else things


def _seen_again(seen: Sighting | None, at: float) -> Sighting:
    return Sighting(1, at) if seen is None else Sighting(seen.times + 1, seen.first)
