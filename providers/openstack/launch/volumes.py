"""Volumes to boot from, made before their machines.

A volume that Nova makes by itself bears no mark of ours; one that is made first does. It goes with its server.
States: https://docs.openstack.org/api-ref/block-storage/v3/#volumes-volumes
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from burstd.domain.errors import BadRequest, CloudUnavailable, NoSuchImage, NotFound, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import LaunchRequest
from providers.batch_calls import BatchCall
from providers.cache import CachedValue
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.launch.images import OpenStackImage
from providers.openstack.servers import metadata
from providers.openstack.servers.owned_resources import OwnedResources
from providers.openstack.settings import OpenStackRootVolume, OpenStackSettings

_COMING = ("creating", "downloading")
_READY = "available"
_BROKEN = ("error", "error_deleting", "deleting")
_NO_IMAGE = "Invalid image identifier"
"""In Cinder's refusal of a volume whose image is not there."""
_ZONES_CACHE_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0


class RootVolumes:
    """Of one cluster. Used only where the settings say ``root``."""

    def __init__(
        self,
        cluster: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._owned = OwnedResources(cluster, settings, calls)
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._pause = pause
        self._zones = CachedValue(self._read_zones, _ZONES_CACHE_S, clock)

    def ensure(
        self,
        requests: Sequence[LaunchRequest],
        root: OpenStackRootVolume,
        images: Mapping[str, OpenStackImage],
        again: frozenset[str],
    ) -> dict[str, str | ProviderError]:
        """For each claim the id of a volume that is there or coming, or why it has none.

        ``images`` by claim; ``again``: claims that were asked for before, whose volume may be there. OutcomeUnknown:
        a server uses it, so that an earlier try has made a machine.
        """
        try:
            zones = self._zones.get()
            known = self._earlier(again & {request.claim_id for request in requests})
        except ProviderError as error:
            return {request.claim_id: error for request in requests}
        lacking = [request for request in requests if request.claim_id not in known]
        made = BatchCall(self._settings.side_by_side).call_each(
            lambda request: self._make(request, root, images[request.claim_id], zones), lacking
        )
        known.update((request.claim_id, one) for request, one in zip(lacking, made, strict=True))
        return known

    def wait_until_filled(self, volumes: Mapping[str, str]) -> Iterator[dict[str, str | ProviderError]]:
        """Claims whose volume can be booted from, some at a time as they come, or why it never will.

        All of them are in the end; waits at most the settings' ``volume_timeout_s``, with one list a look.
        """
        waiting = dict(volumes)
        until = self._clock() + self._settings.volume_timeout_s
        pause_s = _FIRST_PAUSE_S
        why = "it is still being filled"
        while waiting:
            states: dict[str, str] = {}
            try:
                states = {one["id"]: one["status"] for one in self._owned.list_volumes()}
            except ProviderError as error:
                why = str(error)
            late = self._clock() >= until
            done = {
                claim: one
                for claim, volume in waiting.items()
                if (one := self._verdict(volume, states.get(volume, _COMING[0]), why if late else "")) is not None
            }
            if done:
                waiting = {claim: volume for claim, volume in waiting.items() if claim not in done}
                yield done
            elif waiting:
                self._pause(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def remove(self, volume_id: str) -> None:
        """That of a claim that has no machine. Cinder refuses while it is being filled: then it is a leftover."""
        with suppress(NotFound):
            self._calls.mutate("block_storage", "DELETE", f"/volumes/{volume_id}", f"delete volume {volume_id}")

    def _verdict(self, volume: str, state: str, late: str) -> str | ProviderError | None:
        """``late``: what is said of one that has not come in time; empty: there is time."""
        if state == _READY:
            return volume
        if state not in _COMING:
            return CloudUnavailable(f"root volume {volume} is in state '{state}': Cinder did not fill it")
        if late:
            limit_s = self._settings.volume_timeout_s
            return CloudUnavailable(f"root volume {volume} was not ready within {limit_s:.0f} s: {late}")
        return None

    def _earlier(self, claims: frozenset[str]) -> dict[str, str | ProviderError]:
        """Of claims that were asked for before. What Cinder could not fill is a leftover."""
        found: dict[str, str | ProviderError] = {}
        for volume in sorted(self._owned.list_volumes(), key=lambda one: str(one["id"])) if claims else ():
            owner = metadata.parse_metadata(volume.get("metadata"))
            state = volume["status"]
            if owner is None or owner.claim not in claims or state in _BROKEN:
                continue
            if state in (_READY, *_COMING):
                found.setdefault(owner.claim, volume["id"])
            else:
                found[owner.claim] = OutcomeUnknown(
                    f"volume {volume['id']} of this claim is in state '{state}': a server has it already"
                )
        return found

    def _make(
        self, request: LaunchRequest, root: OpenStackRootVolume, image: OpenStackImage, zones: frozenset[str]
    ) -> str:
        """Without an answer there may be one, which its mark finds, but surely no server."""
        body: dict[str, Any] = {
            "name": request.name,
            "size": max(root.gib, image.min_disk_gib),
            "imageRef": image.id,
            "metadata": dict(request.tags),
        }
        if root.type:
            body["volume_type"] = root.type
        if request.offer.zone in zones:
            # A cloud whose volumes have zones of their own may want them in their server's.
            body["availability_zone"] = request.offer.zone
        try:
            answer = self._calls.mutate("block_storage", "POST", "/volumes", "make a volume", body={"volume": body})
        except BadRequest as error:
            if _NO_IMAGE in str(error):
                raise NoSuchImage(str(error)) from error
            raise
        except OutcomeUnknown as error:
            raise CloudUnavailable(f"no server was asked for, whether it has a volume is not known: {error}") from error
        return str(answer["volume"]["id"])

    def _read_zones(self) -> frozenset[str]:
        try:
            answer = self._calls.query("block_storage", "/os-availability-zone", "list the zones of volumes")
        except NotFound:
            return frozenset()
        zones = answer["availabilityZoneInfo"]
        return frozenset(one["zoneName"] for one in zones if one.get("zoneState", {}).get("available", True))
