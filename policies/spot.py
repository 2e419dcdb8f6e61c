"""When to risk spot machines, which are cheaper and may be taken back at any moment.

Use it where a pool's offers have both markets: without it the cheapest offer wins, whatever runs on it. A job gets spot
machines only if Slurm may requeue it, if it is short and small enough to lose, and if they save enough against the
cheapest machine on demand; not after it has lost some already, and not of a kind that was just taken back from others.
(``spot_interruptions`` in ``[daemon]`` only puts machines on demand first; this policy leaves the others out.)

    [policies.spot]
    max_run_s = 14400
    max_nodes = 1
    min_saving_percent = 20
    max_share_percent = 80
    [policies.spot.pools.gpu]
    max_run_s = 3600
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import ceil, inf, isfinite

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.billing.rates import Rates
from burstd.domain.claim import USABLE, Cause
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import PolicyPlugin, Target, Want, gang_units, without_offers
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot


class SpotPoolSettings(BaseModel):
    """What a pool has otherwise; what is left out is as for all pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_run_s: float | None = Field(default=None, gt=0)
    max_nodes: int | None = Field(default=None, ge=0)
    min_saving_percent: float | None = Field(default=None, ge=0, le=100)


class SpotSettings(BaseModel):
    """``[policies.spot]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_run_s: float = Field(default=14400, gt=0)
    """A job that is expected to run longer than so many seconds is kept off spot machines."""
    max_nodes: int = Field(default=1, ge=0)
    """So is one of more nodes than this: when one machine goes, all of its work is lost."""
    min_saving_percent: float = Field(default=20, ge=0, le=100)
    """Least saving against the cheapest machine on demand that the job could have."""
    max_share_percent: float = Field(default=100, ge=0, le=100)
    """At most such a part of all nodes is spot."""
    interruptions: int = Field(default=2, ge=0)
    """A job that has lost so many machines gets no more spot ones; 0: it makes no difference."""
    kind_interruptions: int = Field(default=3, ge=0)
    """After so many machines of one type in one zone were taken back within an hour, no more of them; 0: as before."""
    without_requeue: bool = False
    """True: also jobs that Slurm must not run again, which are then lost with their machine."""
    pools: dict[str, SpotPoolSettings] = {}


@dataclass(frozen=True, slots=True)
class SpotPolicy:
    """The policy."""

    settings: SpotSettings
    name: str = "spot"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes spot offers out of wants that should not risk it, and wants away that are left with none."""
        if not any(offer.spot for offers in target.offers.values() for offer in offers):
            return target
        refused = self._wants(snapshot, target)
        kinds = self._kinds(snapshot)
        dearest: dict[tuple[str, int], dict[str, tuple[Decimal, str]]] = {}

        def refusal(want: Want, offer: Offer) -> str:
            if not offer.spot:
                return ""
            if why := refused.get(id(want), "") or kinds.get(_kind(offer), ""):
                return why
            key = (want.pool, id(want.offers))
            if key not in dearest:
                dearest[key] = self._dearest(want, snapshot.rates)
            currency, price = snapshot.rates.price(offer)
            most, why = dearest[key].get(currency, (price, ""))
            return why if price > most else ""

        return without_offers(target, self.name, refusal, lambda want: (want.pool, refused.get(id(want))))

    def _wants(self, snapshot: Snapshot, target: Target) -> dict[int, str]:
        """By the identity of the want, why it is to have no spot machines at all."""
        asked = {job for want in target.wants for job in want.jobs}
        rows: dict[str, Job] = {}
        if isinstance(snapshot.slurm, SlurmView):
            rows = {job.id: job for job in snapshot.slurm.jobs if job.id in asked}
        there = [claim for claim in snapshot.claims if claim.state in USABLE]
        nodes, spot = len(there), sum(1 for claim in there if claim.offer.spot)
        refused: dict[int, str] = {}
        for unit in gang_units(target.wants):
            more = sum(want.nodes for want in unit)
            why = self._risky(snapshot, unit, rows, more) or self._too_many(spot, nodes, more)
            nodes += more
            if why:
                refused |= dict.fromkeys((id(want) for want in unit), why)
            elif all(want.offers and want.offers[0].spot for want in unit):
                spot += more
        return refused

    def _risky(self, snapshot: Snapshot, unit: tuple[Want, ...], rows: Mapping[str, Job], nodes: int) -> str:
        if unit[0].cause is not Cause.DEMAND:
            return ""
        limits = [self.settings.pools.get(want.pool, SpotPoolSettings()) for want in unit]
        most = min(self.settings.max_nodes if own.max_nodes is None else own.max_nodes for own in limits)
        longest = min(self.settings.max_run_s if own.max_run_s is None else own.max_run_s for own in limits)
        if nodes > most:
            return f"no spot for jobs of more than {most} node(s): one lost node loses the work of all"
        for job in (rows[job] for want in unit for job in want.jobs if job in rows):
            if not job.requeue and not self.settings.without_requeue:
                return f"no spot for job {job.id}: Slurm must not requeue it (--no-requeue)"
            none: frozenset[int] = frozenset()
            cut, not_spot = snapshot.interruptions.get(job.id, none), snapshot.interruptions_not_spot.get(job.id, none)
            lost = len(cut - not_spot)
            if self.settings.interruptions and lost >= self.settings.interruptions:
                return f"no spot for job {job.id}: its nodes were interrupted {lost} time(s)"
            expected = _expected(snapshot, job, longest)
            if expected > longest:
                runs = f"is expected to run {expected / 60:.0f} min" if isfinite(expected) else "has no time limit"
                return f"no spot for job {job.id}: the job {runs}, the limit is {longest / 60:.0f} min"
        return ""

    def _too_many(self, spot: int, nodes: int, more: int) -> str:
        most = self.settings.max_share_percent
        # Rounded up: the first machine may be spot wherever some may.
        if spot + more <= ceil(most * (nodes + more) / 100):
            return ""
        return f"no more spot: {spot} of {nodes} nodes are spot, the limit is {most:g} %"

    def _kinds(self, snapshot: Snapshot) -> dict[tuple[str, ...], str]:
        """Kinds of spot machines that were taken back too often within the hour."""
        least = self.settings.kind_interruptions
        taken: dict[tuple[str, ...], int] = {}
        gone = (one.claim for one in snapshot.ended_claims)
        for claim in (*gone, *(claim for claim in snapshot.claims if claim.state not in USABLE)):
            if claim.offer.spot and claim.spot_interrupted:
                taken[_kind(claim.offer)] = taken.get(_kind(claim.offer), 0) + 1
        return {
            kind: f"{times} spot nodes of type {kind[3]} in zone {kind[2]} were interrupted within an hour"
            for kind, times in taken.items()
            if least and times >= least
        }

    def _dearest(self, want: Want, rates: Rates) -> dict[str, tuple[Decimal, str]]:
        """By currency, what a spot machine for the want may cost at most, and what is said of dearer ones."""
        own = self.settings.pools.get(want.pool, SpotPoolSettings()).min_saving_percent
        least = self.settings.min_saving_percent if own is None else own
        found: dict[str, tuple[Decimal, str]] = {}
        for offer in want.offers:
            currency, price = rates.price(offer)
            if not offer.spot and (currency not in found or price < found[currency][0]):
                why = f"spot saves less than {least:g} % against {offer.price} {offer.currency} on demand"
                found[currency] = (price, why)
        factor = 1 - Decimal(str(least)) / 100
        return {currency: (price * factor, why) for currency, (price, why) in found.items()}


def _expected(snapshot: Snapshot, job: Job, enough: float) -> float:
    """Seconds that a job is expected to run, or its time limit where that is short enough; infinite: nobody knows."""
    if 0 < job.time_limit_s <= enough:
        # The outlook of one job is that of the whole queue: it is asked for only where it matters.
        return job.time_limit_s
    outlook = snapshot.outlook.get(job.id)
    if outlook is not None and outlook.run_basis != "none":
        return outlook.run_s
    return job.time_limit_s or inf


def _kind(offer: Offer) -> tuple[str, ...]:
    return offer.provider, offer.region, offer.zone, offer.instance_type


plugin = PolicyPlugin("spot", SpotSettings, SpotPolicy)
