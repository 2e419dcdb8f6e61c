"""Calm: how fast a pool grows and shrinks, what to do when nodes come and go, and what to do when starting fails.

Use it where a burst of jobs, a cloud that is short of machines, or jobs that come every few minutes would make nodes
flicker. Absolute numbers are the business of ``limits``; this is about change.

- A pool starts within a minute at most ``start_nodes``, or ``growth_percent`` of the nodes that it has, whichever is
  more, and lets go ``release_per_minute``. A job of more nodes goes alone; those behind it wait until it has gone.
- One that has let nodes go and started them again ``flaps`` times within ``flap_s`` keeps idle ones ``flap_keep_s``.
- Where an offer failed and its breaker has run out, one machine tries it; the others wait for that one, or take another
  offer.
- A pool, or an offer, that failed too often within the hour rests for ``rest_s`` after each failure.

    [policies.throttle]
    start_nodes = 10
    growth_percent = 100
    release_per_minute = 20
    pool_failures = 20
    [policies.throttle.pools.gpu]
    start_nodes = 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.claim import USABLE, Claim, ClaimState
from burstd.domain.clock import until_text
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import (
    NodeRelease,
    PolicyPlugin,
    Remark,
    Target,
    Want,
    gang_units,
    remarks_on_dropped_wants,
    without_offers,
)
from burstd.domain.snapshot import CircuitBreaker, SlurmView, Snapshot

MINUTE_S = 60.0
_COMING = frozenset({ClaimState.PLANNED, ClaimState.LAUNCHING, ClaimState.BOOTING, ClaimState.VALIDATING})
_LEAVING = frozenset({ClaimState.DRAINING, ClaimState.TERMINATING})


class ThrottlePoolSettings(BaseModel):
    """What a pool has otherwise; what is left out is as for all pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start_nodes: int | None = Field(default=None, ge=1)
    growth_percent: float | None = Field(default=None, ge=0)
    release_per_minute: int | None = Field(default=None, ge=1)


class ThrottleSettings(BaseModel):
    """``[policies.throttle]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start_nodes: int = Field(default=10, ge=1)
    """So many nodes of a pool may be started within 60 seconds, whatever is there."""
    growth_percent: float = Field(default=100, ge=0)
    """Or so many of each hundred that the pool has ready; 100: it may double."""
    release_per_minute: int | None = Field(default=None, ge=1)
    """Most nodes of a pool that are let go within 60 seconds; none: all that are idle."""
    flaps: int = Field(default=3, ge=0)
    """Nodes let go and started again that make a pool keep its idle ones; 0: never."""
    flap_s: float = Field(default=1800, gt=0, le=3600)
    """Within so many seconds."""
    flap_keep_s: float = Field(default=1800, ge=0)
    """Seconds that an idle node of such a pool stays."""
    half_open: bool = True
    """One machine tries an offer that failed before others follow."""
    pool_failures: int = Field(default=0, ge=0)
    """Failed machines within an hour that pause a pool; 0: any number."""
    offer_failures: int = Field(default=0, ge=0)
    """Failed machines within an hour that pause an offer; 0: any number."""
    rest_s: float = Field(default=600, gt=0, le=3600)
    """Seconds from the last failure for which they stay paused."""
    pools: dict[str, ThrottlePoolSettings] = {}


_Key = tuple[str, str]
"""Key and cause of a breaker."""


@dataclass(slots=True)
class _Failures:
    times: int = 0
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class ThrottlePolicy:
    """The policy."""

    settings: ThrottleSettings
    name: str = "throttle"
    last: ClassVar[int] = 2
    """Asked behind all that may take machines away: what they refuse is neither a start nor a trial."""

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes away what comes too fast, or by an offer that is not to be trusted; keeps what would go too fast."""
        if not isinstance(snapshot.slurm, SlurmView):
            return target
        if self.settings.pool_failures or self.settings.offer_failures:
            target = self._resting(snapshot, target)
        if self.settings.half_open:
            target = self._half_open(snapshot, target)
        target = self._limit_growth(snapshot, target)
        if self.settings.flaps and target.releases:
            target = self._flapping(snapshot, target)
        return self._limit_releases(snapshot, target)

    def _settings_for(self, pool: str) -> tuple[int, float, int | None]:
        all_, own = self.settings, self.settings.pools.get(pool, ThrottlePoolSettings())
        return (
            all_.start_nodes if own.start_nodes is None else own.start_nodes,
            all_.growth_percent if own.growth_percent is None else own.growth_percent,
            all_.release_per_minute if own.release_per_minute is None else own.release_per_minute,
        )

    def _resting(self, snapshot: Snapshot, target: Target) -> Target:
        pools: dict[str, _Failures] = {}
        offers: dict[str, _Failures] = {}
        going = [(c.since, c) for c in snapshot.claims if c.state not in USABLE]
        for at, claim in (*((one.at, one.claim) for one in snapshot.ended_claims), *going):
            if not _failed(claim):
                continue
            for found in (pools.setdefault(claim.pool, _Failures()), offers.setdefault(claim.offer.id, _Failures())):
                found.times += 1
                found.last = max(found.last, at)
        resting_pools = self._resting_reasons(pools, self.settings.pool_failures, snapshot.now)
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        for unit in gang_units(target.wants):
            why = next((f"pool {w.pool} {resting_pools[w.pool]}" for w in unit if w.pool in resting_pools), "")
            out += [(want, why) for want in unit if why]
            wants += () if why else unit
        target = replace(
            target, wants=tuple(wants), remarks=(*target.remarks, *remarks_on_dropped_wants(out, self.name))
        )
        resting_offers = self._resting_reasons(offers, self.settings.offer_failures, snapshot.now)
        return (
            without_offers(
                target, self.name, lambda _, offer: _resting_reason(offer, resting_offers), grouping_key=lambda _: ""
            )
            if resting_offers
            else target
        )

    def _resting_reasons(self, found: dict[str, _Failures], least: int, now: float) -> dict[str, str]:
        return {
            name: f"paused {until_text(failures.last + self.settings.rest_s)}:"
            f" {failures.times} nodes failed within an hour"
            for name, failures in found.items()
            if least and failures.times >= least and now - failures.last < self.settings.rest_s
        }

    def _half_open(self, snapshot: Snapshot, target: Target) -> Target:
        breakers = [b for b in snapshot.breakers if b.until <= snapshot.now and b.key.count("/") in (4, 5)]
        if not breakers:
            return target
        known: dict[tuple[str, str], tuple[CircuitBreaker, ...]] = {}

        def breakers_of(offer: Offer, pool: str) -> tuple[CircuitBreaker, ...]:
            if (offer.id, pool) not in known:
                known[offer.id, pool] = tuple(b for b in breakers if _covers(b, offer, pool))
            return known[offer.id, pool]

        probed_by: dict[_Key, str] = {}
        for claim in snapshot.claims:
            if claim.state in _COMING:
                begun = [_key(b) for b in breakers_of(claim.offer, claim.pool) if claim.created >= b.until]
                probed_by |= dict.fromkeys(begun, claim.slot)
        probes: dict[int, frozenset[_Key]] = {}
        for unit in gang_units(target.wants):
            keys = frozenset(_key(b) for want in unit if want.offers for b in breakers_of(want.offers[0], want.pool))
            many = sum(want.nodes for want in unit) > 1
            elsewhere = many and all(any(not breakers_of(offer, want.pool) for offer in want.offers) for want in unit)
            if keys and not elsewhere and keys.isdisjoint(probed_by):
                probes |= dict.fromkeys((id(want) for want in unit), keys)
                probed_by |= dict.fromkeys(keys, f"the node for {unit[0].reason}")

        def refusal(want: Want, offer: Offer) -> str:
            open_breakers = breakers_of(offer, want.pool)
            if {_key(b) for b in open_breakers} <= probes.get(id(want), frozenset()):
                return ""
            last = max(open_breakers, key=lambda b: b.until)
            who = next((probed_by[_key(b)] for b in open_breakers if _key(b) in probed_by), "one node")
            error = f": {last.error}" if last.error else ""
            return f"{last.key} failed {last.failures} time(s) ({last.cause}{error}); {who} tries it first"

        return without_offers(target, self.name, refusal, grouping_key=lambda want: probes.get(id(want)))

    def _limit_growth(self, snapshot: Snapshot, target: Target) -> Target:
        started: dict[str, int] = {}
        there: dict[str, int] = {}
        waiting_reasons: dict[str, str] = {}
        for launch in snapshot.recent_launches:
            if launch.at > snapshot.now - MINUTE_S:
                started[launch.pool] = started.get(launch.pool, 0) + 1
        for claim in snapshot.claims:
            if claim.state in USABLE - _COMING:
                there[claim.pool] = there.get(claim.pool, 0) + 1
            elif claim.state is ClaimState.PLANNED and claim.launch_called is None:
                # It will be started at once: it counts before the record of launches has it.
                started[claim.pool] = started.get(claim.pool, 0) + 1
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        for unit in gang_units(target.wants):
            more: dict[str, int] = {}
            for want in unit:
                more[want.pool] = more.get(want.pool, 0) + want.nodes
            why = next((waiting_reasons[pool] for pool in more if pool in waiting_reasons), "")
            why = why or next((w for p, nodes in more.items() if (w := self._too_fast(p, nodes, started, there))), "")
            if why:
                out += [(want, why) for want in unit]
                if sum(more.values()) > 1:
                    # Those behind it would use up the rate in each minute, and it would never have one of its own.
                    first = f"growth limit: {unit[0].reason} is next, after a minute with fewer launches"
                    waiting_reasons |= {pool: waiting_reasons.get(pool, f"pool {pool}: {first}") for pool in more}
                continue
            for pool, nodes in more.items():
                started[pool] = started.get(pool, 0) + nodes
            wants += unit
        gone = remarks_on_dropped_wants(out, self.name)
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *gone)) if gone else target

    def _too_fast(self, pool: str, nodes: int, started: dict[str, int], there: dict[str, int]) -> str:
        least, percent, _ = self._settings_for(pool)
        most, begun = max(least, int(there.get(pool, 0) * percent / 100)), started.get(pool, 0)
        # A job of more nodes than that goes alone.
        if begun + nodes <= most or not begun:
            return ""
        return f"pool {pool}: growth limit, {begun} of {most} node(s) started in the last minute"

    def _flapping(self, snapshot: Snapshot, target: Target) -> Target:
        claims = {claim.id: claim for claim in snapshot.claims}
        pools = {release.pool: self._flaps(snapshot, release.pool) for release in target.releases}
        keep_reasons: dict[str, str] = {}
        for release in target.releases:
            claim, times = claims.get(release.claim_id), pools[release.pool]
            if claim is None or times < self.settings.flaps or snapshot.node_drained(claim):
                continue
            idle = snapshot.now - snapshot.idle_since(claim)
            if idle < self.settings.flap_keep_s:
                keep_reasons[claim.id] = (
                    f"pool {claim.pool} terminated {times} node(s) and started as many within"
                    f" {self.settings.flap_s / 60:.0f} min: {claim.slot} stays for"
                    f" {self.settings.flap_keep_s / 60:.0f} min"
                )
        return self._without_releases(target, keep_reasons)

    def _flaps(self, snapshot: Snapshot, pool: str) -> int:
        """Launches that followed a node's end, each node counted once."""
        since = snapshot.now - self.settings.flap_s
        ends = [
            g.at
            for g in snapshot.ended_claims
            if g.claim.pool == pool and g.claim.in_service_from and not _failed(g.claim)
        ]
        starts = sorted(launch.at for launch in snapshot.recent_launches if launch.pool == pool and launch.at > since)
        ends = sorted(end for end in ends if end > since)
        found = 0
        for start in starts:
            if found < len(ends) and ends[found] <= start:
                found += 1
        return found

    def _limit_releases(self, snapshot: Snapshot, target: Target) -> Target:
        since = snapshot.now - MINUTE_S
        going: dict[str, int] = {}
        for claim in snapshot.claims:
            if claim.state in _LEAVING and claim.since > since and not _failed(claim):
                going[claim.pool] = going.get(claim.pool, 0) + 1
        for one in snapshot.ended_claims:
            if one.at > since and not _failed(one.claim):
                going[one.claim.pool] = going.get(one.claim.pool, 0) + 1
        keep_reasons: dict[str, str] = {}
        for release in target.releases:
            most = self._settings_for(release.pool)[2]
            if most is not None and going.get(release.pool, 0) >= most:
                keep_reasons[release.claim_id] = f"pool {release.pool} terminates at most {most} node(s) a minute"
            else:
                going[release.pool] = going.get(release.pool, 0) + 1
        return self._without_releases(target, keep_reasons)

    def _without_releases(self, target: Target, keep_reasons: dict[str, str]) -> Target:
        if not keep_reasons:
            return target
        releases: Iterable[NodeRelease] = (r for r in target.releases if r.claim_id not in keep_reasons)
        remarks = (Remark(self.name, f"claim:{claim_id}", "keep", reason) for claim_id, reason in keep_reasons.items())
        return replace(target, releases=tuple(releases), remarks=(*target.remarks, *remarks))


def _resting_reason(offer: Offer, resting_offers: Mapping[str, str]) -> str:
    return f"offer {offer.id} {resting_offers[offer.id]}" if offer.id in resting_offers else ""


def _key(breaker: CircuitBreaker) -> _Key:
    return breaker.key, breaker.cause


def _covers(breaker: CircuitBreaker, offer: Offer, pool: str) -> bool:
    fields = (offer.provider, offer.region, offer.zone, offer.instance_type, offer.market, pool)
    # One without a pool holds for all.
    return all(w in ("*", f.replace("/", "%2F")) for w, f in zip(breaker.key.split("/"), fields, strict=False))


def _failed(claim: Claim) -> bool:
    """Not where it just ended, its cloud took it back (policy ``spot``), or the settings changed."""
    return bool(claim.error) and claim.error != "pool" and not claim.spot_interrupted


plugin = PolicyPlugin("throttle", ThrottleSettings, ThrottlePolicy)
