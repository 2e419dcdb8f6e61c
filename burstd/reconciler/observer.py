"""Takes the snapshot: the clouds in their own threads, Slurm at each loop, the store last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BurstdError, SchedulerRefused, SchedulerUnavailable
from burstd.domain.plugins.provider import Provider, ShellProvider
from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.domain.slurm.node import Node, with_shards_in_use, with_suspended_jobs
from burstd.domain.snapshot import NOT_READ_YET, CloudView, SlurmView, Unavailable
from burstd.planner.isolation import node_subject as subject
from burstd.planner.lifecycle.ownership import Ownership
from burstd.reconciler.context import LoopContext
from burstd.reconciler.machines.progress import ProgressTable, seen_again
from burstd.runtime.poller import Poller

_T = TypeVar("_T")

log = structlog.get_logger(__name__)

_EXPECTED = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING})
_REGISTERED = frozenset({S.READY, S.IN_SERVICE, S.DRAINING})
_CHANGING = frozenset({S.LAUNCHING, S.BOOTING, S.TERMINATING})


class NodeDoubted(BurstdError):
    """Slurm's data of a node is not plausible."""


@dataclass(slots=True)
class _ProviderState:
    """What is known of one provider."""

    provider: Provider
    view: CloudView
    listing: Poller
    offers: Poller
    last_sweep: float = float("-inf")
    """When leftovers were last asked for."""
    listing_took_s: float = 0.0
    """How long the last listing took, in seconds."""


@dataclass(frozen=True, slots=True)
class _Listing:
    instances: tuple[Instance, ...]
    leftovers: tuple[Leftover, ...] | Exception | None
    """None: not listed this time."""


class Observer:
    """Keeps the last view of every cloud and counts in how many listings in a row something was missing or stray."""

    def __init__(self, context: LoopContext, progress: ProgressTable) -> None:
        self._context = context
        self._progress = progress
        never = Unavailable(NOT_READ_YET, 0.0)
        self._provider_states = {
            name: _ProviderState(
                p,
                CloudView(
                    never,
                    never,
                    never,
                    0.0,
                    p.idempotency,
                    p.settle_s,
                    machines_outlive_nodes=not isinstance(p, ShellProvider),
                ),
                *self._pollers(name),
            )
            for name, p in context.providers.items()
        }
        self._slurm: SlurmView | Unavailable = never
        self._last_busy: dict[str, float] = {}
        """When each node was last seen with a job on it, in burstd's time."""

    def cloud_views(self) -> dict[str, CloudView]:
        """The last view of each provider."""
        return {name: watch.view for name, watch in self._provider_states.items()}

    def read_slurm(self) -> SlurmView | Unavailable:
        """Reads Slurm: three commands, whatever its size; a fourth while pending jobs want licences."""
        read = self._context.clock.now()
        try:
            # In this order: a job that starts between the two must not look as if it still waited for its node.
            nodes = {node.name: node for node in self._context.scheduler.nodes()}
            for name, node in nodes.items():
                with self._context.quarantine.contain_errors("reading Slurm", subject(name)):
                    if node.unreliable_because and subject(name) not in self._context.quarantine:
                        raise NodeDoubted(node.unreliable_because)
                    nodes[name] = self._with_last_busy(node, read)
            jobs = tuple(self._context.scheduler.jobs())
            ended = tuple(self._context.scheduler.ended_jobs())
            reservations = tuple(self._context.scheduler.reservations())
            licences = self._free_licences(jobs)
            version = "{}.{:02}.{}".format(*self._context.scheduler.version())
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
            seen = with_suspended_jobs(with_shards_in_use(nodes, jobs), jobs)
            self._slurm = SlurmView(jobs, seen, reservations, read, version, ended, licences)
        return self._slurm

    def _free_licences(self, jobs: Sequence[Job]) -> Mapping[str, int]:
        """None where nobody waits for some, or slurmctld does not say: then they limit nothing."""
        if not any(job.licenses for job in jobs if job.state in PENDING_STATES):
            return {}
        try:
            return self._context.scheduler.licenses()
        except (SchedulerUnavailable, SchedulerRefused) as error:
            log.warning("licences cannot be read", error=str(error))
            return {}

    def _with_last_busy(self, node: Node, read: float) -> Node:
        """The node with the time at which it was last seen busy, where the clock jumped since Slurm noted its own.

        Else a node that just became idle would be closed at once, or stay for as long as the clock was set back.
        """
        if node.busy:
            self._last_busy[node.name] = read
        reported = node.last_busy if node.last_busy <= read else 0.0
        seen = max(reported, self._last_busy.get(node.name, 0.0))
        return node if seen == node.last_busy else replace(node, last_busy=seen)

    def _pollers(self, name: str) -> tuple[Poller, Poller]:
        """Of its machines, and of its offers."""
        context, pace = self._context, self._context.intervals
        return (
            Poller(
                context.workers, context.clock, f"{name}:list", f"machines of {name}",
                interval_s=lambda: pace.cloud_poll_s, retry_s=lambda: pace.call_retry_s,
                most_s=lambda: 4 * pace.cloud_poll_s,
            ),
            Poller(
                context.workers, context.clock, f"{name}:list", f"offers of {name}",
                interval_s=lambda: pace.offers_s, retry_s=lambda: pace.cloud_poll_s, most_s=lambda: pace.cloud_poll_s,
            ),
        )  # fmt: skip

    def start_due_listings(self, claims: tuple[Claim, ...]) -> None:
        """Starts the listings that are due, each in its provider's own lane; their results come with ``drain``."""
        self._hasten_listings(claims)
        for name, watch in self._provider_states.items():
            if watch.listing.is_due:
                self._list(name, watch)
            watch.offers.poll(
                lambda provider=watch.provider: tuple(provider.offers()),  # type: ignore[misc]
                partial(self._keep_offers, watch), partial(self._offers_failed, watch),
            )  # fmt: skip

    def _hasten_listings(self, claims: tuple[Claim, ...]) -> None:
        for name, watch in self._provider_states.items():
            if any(c.state in _CHANGING and c.offer.provider == name for c in claims):
                watch.listing.hasten(self._earliest_listing(watch))

    def list_soon(self, provider: str) -> None:
        """The next listing of this provider is due at once."""
        if provider in self._provider_states:
            self._provider_states[provider].listing.hasten(0.0)

    def next_listing(self, claims: tuple[Claim, ...]) -> float:
        """When the next listing is due, in burstd's time."""
        self._hasten_listings(claims)
        every = [poller for watch in self._provider_states.values() for poller in (watch.listing, watch.offers)]
        return min((poller.next_due() for poller in every), default=float("inf"))

    def _earliest_listing(self, watch: _ProviderState) -> float:
        """While something is about to change. At most a fifth of the time goes to listing: a long list is read less."""
        return watch.view.instances_listed + max(
            self._context.intervals.cloud_fast_s, min(5 * watch.listing_took_s, self._context.intervals.cloud_poll_s)
        )

    def _list(self, name: str, watch: _ProviderState) -> None:
        begun = self._context.clock.now()
        sweep = self._sweep_due(name, watch, begun)

        def read() -> _Listing:
            return _Listing(tuple(watch.provider.instances()), _list_leftovers(watch.provider) if sweep else None)

        def keep(result: _Listing) -> None:
            watch.listing_took_s = self._context.clock.now() - begun
            watch.view = replace(watch.view, instances=result.instances, instances_listed=begun)
            if isinstance(result.leftovers, Exception):
                self._sweep_failed(name, watch, result.leftovers)
            elif result.leftovers is not None:
                watch.view = replace(watch.view, leftovers=result.leftovers, leftovers_listed=begun)
            watch.last_sweep = begun if sweep else watch.last_sweep
            self._count_missing_and_orphans(name, watch.view, result)

        def fail(error: Exception) -> None:
            # What was seen before is out of date: nothing may be destroyed on it.
            gone = Unavailable(str(error) or type(error).__name__, watch.view.instances_listed)
            watch.view = replace(watch.view, instances=gone, leftovers=gone)

        watch.listing.poll(read, keep, fail)

    def _sweep_due(self, name: str, watch: _ProviderState, now: float) -> bool:
        """Leftovers are calls of their own, often several: they are listed when one is waited for, else seldom."""
        view, intervals = watch.view, self._context.intervals
        living = {i.claim_id for i in _or_empty(view.instances) if not i.state.ended} | {
            i.id for i in _or_empty(view.instances) if not i.state.ended
        }
        waited = any(
            c.state is S.TERMINATING and c.offer.provider == name and not living & {c.id, c.instance_id}
            for c in self._context.store.claims()
        ) or any(self._progress.orphan_sighting(f"{name}/{left.id}") for left in _or_empty(view.leftovers))
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

    def _keep_offers(self, watch: _ProviderState, offers: tuple[Offer, ...]) -> None:
        watch.view = replace(watch.view, offers=offers)

    def _offers_failed(self, watch: _ProviderState, error: Exception) -> None:
        # Prices do not rot in minutes: the last offers stay in force.
        if isinstance(watch.view.offers, Unavailable):
            watch.view = replace(watch.view, offers=Unavailable(str(error), watch.view.offers.since))

    def _count_missing_and_orphans(self, name: str, view: CloudView, listing: _Listing) -> None:
        """Counts what is missing and what is stray in one complete listing."""
        claims = {c.id: c for c in self._context.store.claims()}
        ownership = Ownership(claims.values(), listing.instances)
        alive = {ownership.claim_of(i) for i in listing.instances if not i.state.ended}
        without_error = {
            ownership.claim_of(i) for i in listing.instances
            if not i.state.ended and i.state is not InstanceState.ERROR
        }  # fmt: skip
        listed = {ownership.claim_of(i) for i in listing.instances}
        for claim_id in alive & claims.keys():
            self._progress.claims[claim_id].ever_listed = True
        for claim in claims.values():
            if claim.offer.provider == name:
                with self._context.quarantine.contain_errors("listing", subject(claim.slot)):
                    self._count_if_missing(claim, view, alive=alive, without_error=without_error, listed=listed)
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
            stray |= {f"{name}/{left.id}" for left in _or_empty(view.leftovers)}
        self._progress.count_orphans(f"{name}/", seen, kept=stray | seen, at=view.instances_listed)

    def _count_if_missing(
        self, claim: Claim, view: CloudView, *, alive: Set[str], without_error: Set[str], listed: Set[str]
    ) -> None:
        """Counts one claim as missing, or not, in one complete listing."""
        asked = claim.launch_called
        due = claim.state in _EXPECTED and asked is not None and view.instances_listed > asked + view.settle_s
        # Before it was a node, one in error is a launch that the cloud refuses late.
        is_listed = claim.id in (without_error if claim.state in _REGISTERED else alive)
        # A list may lag by minutes: a new machine that it has never shown is waited for while it may boot.
        progress = self._progress.claims[claim.id]
        late = claim.state not in _REGISTERED and not progress.ever_listed and claim.id not in listed
        # A launch without an answer is absent by right until it was asked for again.
        if is_listed or not due or late or (claim.state is S.LAUNCHING and not claim.instance_id):
            progress.missing = None
        else:
            progress.missing = seen_again(progress.missing, view.instances_listed)


def _list_leftovers(provider: Provider) -> tuple[Leftover, ...] | Exception:
    """What the provider says of leftovers; that it cannot is no reason not to know its machines."""
    try:
        return tuple(provider.leftovers())
    except Exception as error:  # noqa: BLE001  the deciding thread reports it
        return error


def _or_empty(things: tuple[_T, ...] | Unavailable) -> tuple[_T, ...]:
    return () if isinstance(things, Unavailable) else things
