"""Compute goes to the data: machines near the store that has a job's input, and no upload that is not worth it.

Use it where jobs stage data and a pool has offers of several regions or providers: reading input across regions is slow
and is billed by the gigabyte. ``near`` names for each store the offers beside it, by patterns of their names
(``provider/region/zone/type/market``). They come first, or (``far_per_gib``) where the whole job is cheaper there. Only
input that is not in the store yet counts as upload: what is staged is free. Jobs without data are left alone.

    [policies.data_locality]
    max_gib = 500
    far = "last"
    far_per_gib = "0.02"
    [policies.data_locality.near]
    site-s3 = ["aws/eu-central-1/*"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import PolicyPlugin, Remark, Target, Want, without_jobs, without_offers
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StagingView
from burstd.domain.units import size_text

GIB = 2**30


class DataLocalitySettings(BaseModel):
    """``[policies.data_locality]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    near: dict[str, tuple[str, ...]] = {}
    """Store: patterns of the offers near it; a store that is not named is near to all."""
    far: Literal["last", "never"] = "last"
    """What becomes of the other offers."""
    far_per_gib: Decimal | None = Field(default=None, ge=0)
    """Price of a GiB of input to a machine that is not near, in the offers' currency: the whole job's price decides."""
    max_gib: float | None = Field(default=None, ge=0)
    """A job with more input that is still to be sent is not burst; none: any size."""
    rate_mib_s: float | None = Field(default=None, gt=0)
    """Speed of an upload where burstd cannot tell when it will be over."""
    worth_it: bool = True
    """A job that would have ended on nodes of the site before its input is in the store is not burst."""


@dataclass(frozen=True, slots=True)
class DataLocalityPolicy:
    """The policy."""

    settings: DataLocalitySettings
    name: str = "data_locality"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes jobs and offers away, or puts offers in another order, where the data says so."""
        if not snapshot.data:
            return target
        target = without_jobs(target, self.name, snapshot, lambda _, job: self._not_burst(snapshot, job))
        where = {id(want): found for want in target.wants if (found := self._input(snapshot, want))}
        if not where:
            return target
        if self.settings.far == "never":

            def refusal(want: Want, offer: Offer) -> str:
                found = where.get(id(want))
                return (
                    "" if found is None or found.near(offer) else f"not near store {found.store}, which has the input"
                )

            return without_offers(target, self.name, refusal, grouping_key=lambda want: where.get(id(want)))
        return self._nearest_first(snapshot, target, where)

    def _not_burst(self, snapshot: Snapshot, job: Job) -> str:
        """Why a job is left to the site's own nodes."""
        view = _view(snapshot.data, job.id)
        if view is None or (not view.bytes_left and not view.ready_at):
            return ""
        most = self.settings.max_gib
        if most is not None and view.bytes_left > most * GIB:
            return (
                f"{size_text(view.bytes_left)} of its input are not uploaded yet; the limit is {size_text(most * GIB)}"
            )
        ready = self._ready(snapshot.now, view)
        outlook = snapshot.outlook.get(job.id) if self.settings.worth_it and ready is not None else None
        if outlook is None or ready is None or "none" in (outlook.run_basis, outlook.local_basis):
            return ""
        here = outlook.local_start + outlook.run_s
        if ready < here:
            return ""
        return (
            f"its input reaches the store in {(ready - snapshot.now) / 60:.0f} min; the job is expected to end on"
            f" premises in {(here - snapshot.now) / 60:.0f} min"
        )

    def _ready(self, now: float, view: StagingView) -> float | None:
        """When its input will be in the store; None: nobody knows."""
        if view.ready_at:
            return view.ready_at
        return now + view.bytes_left / 2**20 / self.settings.rate_mib_s if self.settings.rate_mib_s else None

    def _input(self, snapshot: Snapshot, want: Want) -> _Input | None:
        """The store with most of the input of a want's jobs, where the settings say what is near it."""
        sizes: dict[str, int] = {}
        for job in want.jobs:
            view = _view(snapshot.data, job)
            if view is not None and view.store in self.settings.near:
                sizes[view.store] = sizes.get(view.store, 0) + view.size
        if not sizes:
            return None
        store = max(sizes, key=lambda name: (sizes[name], name))
        return _Input(store, sizes[store], self.settings.near[store])

    def _nearest_first(self, snapshot: Snapshot, target: Target, where: Mapping[int, _Input]) -> Target:
        wants: list[Want] = []
        remarks: list[Remark] = []
        for want in target.wants:
            found = where.get(id(want))
            offers = want.offers
            if found is not None:
                cost = self._cost(snapshot, want, found)
                # Jobs that have lost spot machines have those on demand first, and keep them there.
                dearer = snapshot.rates.dearer
                steady = any(not a.spot and b.spot and dearer(a, b) for a, b in pairwise(offers))
                offers = tuple(sorted(offers, key=lambda offer: (steady and offer.spot, cost(offer))))
            if found is None or offers == want.offers:
                wants.append(want)
                continue
            why = f"{offers[0].id} before {want.offers[0].id}" if offers[0] != want.offers[0] else "near offers first"
            reason = f"{why} for {want.reason}: store {found.store} has {size_text(found.size)} of its input"
            wants.append(replace(want, offers=offers))
            remarks.append(Remark(self.name, f"pool:{want.pool}", "order", reason))
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks)) if remarks else target

    def _cost(self, snapshot: Snapshot, want: Want, found: _Input) -> Callable[[Offer], Decimal]:
        """What offers are sorted by: the price of the whole job with its transfer, or whether they are near."""
        price = self.settings.far_per_gib
        runs: list[float] = []
        if price is not None:
            runs = [outlook.run_s for job in want.jobs if (outlook := snapshot.outlook.get(job)) is not None]
        if price is None or not runs:
            return lambda offer: Decimal(0 if found.near(offer) else 1)
        hours = Decimal(min(max(runs), 1e9)) * want.nodes / 3600
        moved = Decimal(found.size) / GIB * price
        return lambda offer: snapshot.rates.price(offer)[1] * hours + (0 if found.near(offer) else moved)


@dataclass(frozen=True, slots=True)
class _Input:
    """The input of a want's jobs, and the patterns of the offers near its store."""

    store: str
    size: int
    patterns: tuple[str, ...]

    def near(self, offer: Offer) -> bool:
        return _any(self.patterns, offer.id)


def _view(data: Mapping[str, StagingView], job_id: str) -> StagingView | None:
    """The data of a job, or of the array (``12_7``) or het job (``12+1``) that it belongs to."""
    return data.get(job_id) or data.get(job_id.partition("_")[0]) or data.get(job_id.partition("+")[0])


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


plugin = PolicyPlugin("data_locality", DataLocalitySettings, DataLocalityPolicy)
