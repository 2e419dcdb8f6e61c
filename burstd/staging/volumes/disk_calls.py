"""What clouds say of persistent disks, and the calls that change them. For the deciding thread; calls run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import structlog

from burstd.domain.clock import Clock
from burstd.domain.cloud.volume import Disk
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.provider import VolumeProvider
from burstd.domain.volume import UnknownDisk, Volume, VolumeNeed
from burstd.runtime.poller import Poller, RepeatedCall
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

FAST_S = 1.0
"""How often disks are listed while one is about to change, ..."""
IDLE_S = 300.0
"""... and while none is."""
CALL_RETRY_S = 2.0
_MAX_UNKNOWN = 1000


@dataclass(slots=True)
class DiskList:
    """The last complete list of one provider. ``begun`` in burstd's time."""

    begun: float = float("-inf")
    by_volume: dict[str, list[Disk]] = field(default_factory=dict)


class DiskCalls:
    """Lists, and one call at a time for each volume."""

    def __init__(self, providers: Mapping[str, VolumeProvider], workers: Workers, clock: Clock) -> None:
        self.providers = providers
        self._workers, self._clock = workers, clock
        self._lists = {name: DiskList() for name in providers}
        self._fast: frozenset[str] = frozenset()
        self._pollers = {
            name: Poller(
                workers, clock, f"{name}:volumes", f"the disks of {name}",
                interval_s=lambda name=name: FAST_S if name in self._fast else IDLE_S,  # type: ignore[misc]
                retry_s=lambda: CALL_RETRY_S,
            )
            for name in providers
        }  # fmt: skip
        self._calls: dict[str, RepeatedCall] = {}
        self.errors: dict[str, str] = {}
        """By volume, why its last call failed."""

    def poll(self, volumes: Collection[Volume], changing: Collection[str]) -> None:
        """Lists what is due. ``changing``: providers of which a disk is about to change."""
        self._fast = frozenset(changing)
        known = {volume.id for volume in volumes}
        for name, poller in self._pollers.items():
            if name in self._fast:
                poller.hasten(poller.begun + FAST_S)
            provider = self.providers[name]
            if poller.is_due:
                poller.poll(lambda p=provider: list(p.disks()), lambda disks, n=name: self._keep(n, disks))  # type: ignore[misc]
        for volume_id in self._calls.keys() - known:
            del self._calls[volume_id]
            self.errors.pop(volume_id, None)

    def _keep(self, name: str, disks: list[Disk]) -> None:
        by_volume: dict[str, list[Disk]] = {}
        for disk in disks:
            by_volume.setdefault(disk.volume_id, []).append(disk)
        self._lists[name] = DiskList(self._pollers[name].begun, by_volume)

    def disk(self, volume: Volume) -> tuple[Disk | None, float]:
        """The volume's disk in its provider's last complete list, and when that began.

        Where the record has the disk's id, only that disk is it. Else the one with the lowest id of those that bear the
        volume's: the others, which nobody has written to, are shown as unknown.
        """
        listed = self._lists.get(volume.provider, DiskList())
        some = [d for d in listed.by_volume.get(volume.id, ()) if not volume.disk_id or d.id == volume.disk_id]
        return min(some, key=lambda disk: disk.id, default=None), listed.begun

    def is_at_launch(self, provider: str) -> bool:
        """Whether the provider's machines have disks from their launch on only."""
        return provider in self.providers and self.providers[provider].disks_at_launch

    def need(self, volume: Volume) -> VolumeNeed:
        """Where the volume is, or can be made."""
        providers = frozenset({volume.provider} if volume.provider else self.providers)
        return VolumeNeed(volume.name, providers, volume.zone, volume.region)

    def with_error(self, text: str, volume: Volume) -> str:
        """``text`` with why the volume's last call failed, where it did."""
        error = self.errors.get(volume.id, "")
        return f"{text}: {error}" if error else text

    def unknown_disks(self, volumes: Collection[Volume]) -> tuple[UnknownDisk, ...]:
        """What bears the cluster's tag and is not the disk of one of these volumes."""
        disk_ids = {(volume.provider, volume.id): volume.disk_id for volume in volumes}
        return tuple(
            UnknownDisk(name, disk.id, disk.volume_id, disk.zone, disk.size_bytes, disk.attached_to, disk.tags)
            for name, listed in sorted(self._lists.items())
            for volume_id, disks in sorted(listed.by_volume.items())
            for disk in disks
            # Of one that is being created the id is not on record.
            if (name, volume_id) not in disk_ids or disk_ids[name, volume_id] not in ("", disk.id)
        )[:_MAX_UNKNOWN]

    def listing_errors(self) -> list[str]:
        """Why lists cannot be read."""
        return [f"{poller.what} cannot be listed: {poller.error}" for poller in self._pollers.values() if poller.error]

    def is_busy(self, volume: Volume) -> bool:
        """Whether a call of the volume's is under way, or waits after a failure."""
        call = self._calls.get(volume.id)
        return call is not None and call.is_busy(self._clock.now())

    def retry_at_once(self, volume_id: str) -> None:
        """A new step begins: failures of the last one do not put it off."""
        self._calls.pop(volume_id, None)
        self.errors.pop(volume_id, None)

    def call(
        self,
        volume: Volume,
        work: Callable[[], None],
        on_success: Callable[[], None] = lambda: None,
        on_error: Callable[[Exception], None] = lambda _error: None,
        *,
        on_node: bool = False,
    ) -> None:
        """Has ``work`` done, by the cloud or on a node; again after a failure, unless ``on_error`` goes on."""
        call = self._calls.setdefault(volume.id, RepeatedCall())
        call.in_flight = True

        def done(result: Exception | None) -> None:
            if self._calls.get(volume.id) is not call:
                return
            now = self._clock.now()
            if volume.provider in self._pollers:
                self._pollers[volume.provider].hasten(now)
            if not isinstance(result, Exception):
                # The list needs a moment to show it.
                call.succeed(now + CALL_RETRY_S)
                self.errors.pop(volume.id, None)
                on_success()
                return
            call.fail(now, CALL_RETRY_S, at_least_s=getattr(result, "retry_after_s", 0.0), spread=volume.id)
            self.errors[volume.id] = str(result)
            if isinstance(result, BurstdError):
                log.warning("a step of a volume failed", volume=volume.id, name=volume.name, error=str(result))
            else:
                log.error("a step of a volume broke", volume=volume.id, name=volume.name, exc_info=result)
            on_error(result)

        lane = "stage:volumes" if on_node else f"{volume.provider}:volumes"
        self._workers.submit(lane, work, done, user=volume.uid if on_node else None)

    def next_due(self) -> float:
        """When the next list or call is due, in burstd's time."""
        calls = (call.due for call in self._calls.values() if not call.in_flight)
        now = self._clock.now()
        lists = (poller.next_due() for poller in self._pollers.values())
        return min((due for due in (*lists, *calls) if due > now), default=float("inf"))
