"""Volumes of users: joins the turns of jobs and the steps of volumes. In the deciding thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.db import Store
from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.provider import Provider, VolumeProvider
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging
from burstd.domain.volume import UnknownDisk, Volume
from burstd.domain.volume import VolumeState as S
from burstd.planner.staging.volume_life import HolderPhase, VolumeLimits, holder_phase
from burstd.runtime.workers import Workers
from burstd.staging.volumes.disk_calls import DiskCalls
from burstd.staging.volumes.node_mounts import VolumeMounts
from burstd.staging.volumes.steps import VolumeSteps
from burstd.staging.volumes.turns import VolumeTurns

_CHANGING = frozenset({S.CREATING, S.ATTACHING, S.DETACHING, S.REMOVING})


@dataclass(frozen=True, slots=True)
class VolumeRules:
    """What the settings say. ``prices``: by provider, of one GiB for a month."""

    prices: Mapping[str, Decimal]
    limits: VolumeLimits


class VolumeController:
    """``step`` brings every volume on."""

    def __init__(
        self,
        *,
        cluster: str,
        store: Store,
        workers: Workers,
        clock: Clock,
        providers: Mapping[str, Provider],
        mounts: VolumeMounts,
        pools: Callable[[], Mapping[str, Pool]],
        rules: VolumeRules,
    ) -> None:
        able = {n: p for n, p in providers.items() if n in rules.prices and isinstance(p, VolumeProvider)}
        self._store = store
        self._calls = calls = DiskCalls(able, workers, clock)
        self._steps = VolumeSteps(cluster, store, clock, providers, calls, mounts, rules.prices)
        self.turns = VolumeTurns(store, clock, pools, calls, self._steps, rules.limits)

    def reload(self, rules: VolumeRules) -> None:
        """Goes by other rules."""
        self._steps.prices, self.turns.limits = rules.prices, rules.limits

    @property
    def is_on(self) -> bool:
        """Whether any provider has volumes."""
        return bool(self._calls.providers)

    def unknown_disks(self) -> tuple[UnknownDisk, ...]:
        """Disks with the cluster's volume tag that are not on record."""
        return self._calls.unknown_disks(self.turns.volumes)

    def errors(self) -> Mapping[str, str]:
        """By volume, why its last step failed."""
        return dict(self._calls.errors)

    def step(self, rows: Sequence[Staging], slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Brings every volume on by what is due; returns when the next is, in burstd's time."""
        turns, steps = self.turns, self._steps
        turns.volumes = self._store.volumes()
        named = [row for row in rows if row.directives.volume is not None]
        if not turns.volumes and not named and not self._calls.providers:
            return float("inf")
        if self._store.metadata(DOUBT_KEY):
            # What the record says of volumes and machines may be long over.
            return float("inf")
        turns.rows = tuple(named)
        steps.observe_claims(claims)
        if isinstance(slurm, SlurmView):
            turns.give(slurm)
        stagings = {row.job_id: row for row in named}
        # What is held was told why.
        told = {row.job_id for row in named if row.state is T.HELD}
        steps.faults = {job: why for job, why in steps.faults.items() if job in stagings and job not in told}
        for volume in turns.volumes:
            steps.advance(volume, stagings.get(volume.job_id))
        turns.volumes = self._store.volumes()
        steps.forget_mounts(turns.volumes)
        changing = {volume.provider for volume in turns.volumes if volume.state in _CHANGING}
        self._calls.poll(turns.volumes, changing)
        return self._calls.next_due()

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [*self._calls.listing_errors()]
        found += [f"volume {v.name} of {v.user}: {v.error}" for v in self.turns.volumes if v.error]
        if unknown := self.unknown_disks():
            shown = ", ".join(f"{disk.id} of {disk.provider}" for disk in unknown[:3])
            found.append(
                f"{len(unknown)} disks with this cluster's volume tag are not on record ({shown}): burstd never "
                "removes them; see burstctl volume list"
            )
        return found

    def remove(self, volume: Volume, by: str) -> str:
        """Gives a volume up for good; why that is refused, or empty."""
        if volume.state is S.REMOVING:
            return ""
        if volume.job_id or volume.state is not S.AVAILABLE:
            return (
                f"volume {volume.name} is {volume.state.value}"
                + (f" and job {volume.job_id}'s" if volume.job_id else "")
                + ": it can be removed when no job has it"
            )
        waiting = [row.job_id for row in self._rows_naming(volume) if holder_phase(row) is HolderPhase.WAITING]
        if waiting:
            return f"jobs wait for volume {volume.name}: {', '.join(waiting)}; cancel them first"
        self._store.transition_volume(volume.id, S.AVAILABLE, S.REMOVING, f"{by} gave it up", by, error="")
        self._calls.retry_at_once(volume.id)
        return ""

    def held_jobs(self, volume: Volume) -> tuple[str, ...]:
        """Jobs that ask for a volume and are held before their start: they do not keep it from being removed."""
        before_start = (T.WAITING, T.FETCHING)
        return tuple(r.job_id for r in self._rows_naming(volume) if r.state is T.HELD and r.resume in before_start)

    def _rows_naming(self, volume: Volume) -> list[Staging]:
        named = ((row, row.directives.volume) for row in self.turns.rows if row.uid == volume.uid)
        return [row for row, line in named if line is not None and line.name == volume.name]
