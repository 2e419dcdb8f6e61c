"""When to burst: only when enough jobs wait, or when one has waited long enough.

Use it to keep single short jobs from starting machines, and to give the site's own nodes a chance to free up. With the
defaults nothing is held back. ``min_jobs`` jobs that have all waited ``min_age_s`` seconds start machines; a job that
has waited ``max_age_s`` does so alone.

    [policies.backlog]
    min_jobs = 3
    min_age_s = 60
    max_age_s = 900
    [policies.backlog.pools.gpu]
    min_jobs = 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from burstd.domain.claim import Cause
from burstd.domain.clock import until_text
from burstd.domain.plugins.policy import PolicyPlugin, Target, Want, gang_units, remarks_on_dropped_wants
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot


class BacklogPoolSettings(BaseModel):
    """What a pool has otherwise; what is left out is as for all pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_jobs: int | None = Field(default=None, ge=1)
    min_age_s: float | None = Field(default=None, ge=0)
    max_age_s: float | None = Field(default=None, ge=0)


class BacklogSettings(BaseModel):
    """``[policies.backlog]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_jobs: int = Field(default=1, ge=1)
    """Fewest waiting jobs (array tasks counted) that start machines of a pool."""
    min_age_s: float = Field(default=0, ge=0)
    """Seconds that a job must have waited to count."""
    max_age_s: float | None = Field(default=None, ge=0)
    """Seconds after which a job starts machines however few wait; none: never."""
    pools: dict[str, BacklogPoolSettings] = {}

    def delays_any_pool(self) -> bool:
        """Whether they keep any pool's machines waiting."""
        some = ((self.min_jobs, self.min_age_s), *((own.min_jobs, own.min_age_s) for own in self.pools.values()))
        return any((jobs or 1) > 1 or (age or 0) > 0 for jobs, age in some)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for whose, own in (
            ("", BacklogPoolSettings()),
            *((f" of pool {name}", own) for name, own in self.pools.items()),
        ):
            least = self.min_age_s if own.min_age_s is None else own.min_age_s
            most = self.max_age_s if own.max_age_s is None else own.max_age_s
            if most is not None and most < least:
                raise ValueError(f"'max_age_s'{whose} ({most:g}) is less than 'min_age_s' ({least:g})")
        return self


@dataclass(frozen=True, slots=True)
class BacklogPolicy:
    """The policy."""

    settings: BacklogSettings
    name: str = "backlog"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes away wants whose jobs are too few or too young."""
        if not isinstance(snapshot.slurm, SlurmView) or not self.settings.delays_any_pool():
            return target
        asked = {job for want in target.wants for job in want.jobs}
        jobs = {job.id: job for job in snapshot.slurm.jobs if job.id in asked}
        full = self._full_pools(snapshot, target)
        depth = self._depth(target, jobs, snapshot.now)
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        for unit in gang_units(target.wants):
            reason = next((r for want in unit if (r := self._refusal(want, jobs, depth, full, snapshot.now))), "")
            if reason:
                out += [(want, reason) for want in unit]
            else:
                wants += unit
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks_on_dropped_wants(out, self.name)))

    def _settings_for(self, pool: str) -> tuple[int, float, float | None]:
        all_, own = self.settings, self.settings.pools.get(pool, BacklogPoolSettings())
        return (
            all_.min_jobs if own.min_jobs is None else own.min_jobs,
            all_.min_age_s if own.min_age_s is None else own.min_age_s,
            all_.max_age_s if own.max_age_s is None else own.max_age_s,
        )

    def _depth(self, target: Target, jobs: Mapping[str, Job], now: float) -> dict[str, int]:
        """Jobs (array tasks counted) of each pool that have waited long enough."""
        counted: dict[str, set[str]] = {}
        for want in target.wants:
            _, min_age, _ = self._settings_for(want.pool)
            old = {job for job in want.jobs if job in jobs and _age(jobs[job], now) >= min_age}
            counted.setdefault(want.pool, set()).update(old)
        return {pool: sum(jobs[job].tasks for job in some) for pool, some in counted.items()}

    @staticmethod
    def _full_pools(snapshot: Snapshot, target: Target) -> set[str]:
        """Pools of which every free slot is wanted: more jobs than these would wait there too."""
        wanted: dict[str, int] = {}
        for want in target.wants:
            wanted[want.pool] = wanted.get(want.pool, 0) + want.nodes
        return {pool for pool, nodes in wanted.items() if nodes >= len(snapshot.free_slots(snapshot.pools[pool]))}

    def _refusal(
        self, want: Want, jobs: Mapping[str, Job], depth: Mapping[str, int], full: set[str], now: float
    ) -> str:
        if want.cause is not Cause.DEMAND:
            return ""
        min_jobs, min_age, max_age = self._settings_for(want.pool)
        age = max((_age(jobs[job], now) for job in want.jobs if job in jobs), default=0.0)
        if max_age is not None and age >= max_age:
            return ""
        if age < min_age:
            first = until_text(now - age + min_age)
            return f"pool {want.pool} starts nodes for jobs that have waited {min_age:g} s: {first}"
        if depth.get(want.pool, 0) < min_jobs and want.pool not in full:
            return f"pool {want.pool} starts nodes for {min_jobs} waiting jobs ({depth.get(want.pool, 0)} so far)"
        return ""


def _age(job: Job, now: float) -> float:
    """Seconds since it could have started."""
    return max(0.0, now - max(job.submitted, job.eligible))


plugin = PolicyPlugin("backlog", BacklogSettings, BacklogPolicy)
