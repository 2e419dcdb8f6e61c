"""What every provider with persistent disks must do. Derive from it beside ProviderContract, with the same world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from burstd.domain.cloud.instance import TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest, LaunchDisk
from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import Provider, VolumeProvider
from burstd.testing.cloud_world import (
    CLUSTER,
    OTHER_CLUSTER,
    CloudWorld,
    launch_request,
    live_instances,
    prepare_and_launch,
    terminate_all,
)


class VolumeContract:
    """A disk outlives the machines that it is attached to, and nobody takes it for what one of them left."""

    @pytest.fixture
    def world(self) -> CloudWorld:
        """To be overridden."""
        raise NotImplementedError

    def test_a_disk_is_no_leftover(self, world: CloudWorld) -> None:
        """It is found by its tag, in pages, by its own cluster alone; orphan removal does not touch it."""
        provider, neighbour = _provider(world, CLUSTER), _provider(world, OTHER_CLUSTER)
        made = [_make_disk(world, provider, f"v{n}", (n + 1) * world.disk_bytes) for n in range(world.page + 1)]
        assert len({disk.id for disk in made}) == world.page + 1
        assert list(neighbour.disks()) == []
        assert [left for left in provider.leftovers() if left.id in {disk.id for disk in made}] == []
        left = [Leftover(kind, disk.id, provider.name, "") for disk in made for kind in ("volume", "disk")]
        for one in left:
            try:
                provider.remove([one])
            except BadRequest:
                continue
        assert {disk.id for disk in provider.disks()} == {disk.id for disk in made}
        with pytest.raises(BadRequest):
            neighbour.delete_disk(made[0].id)
        assert {disk.id for disk in provider.disks()} == {disk.id for disk in made}
        _delete(world, provider, made)

    def test_it_moves_from_machine_to_machine(self, world: CloudWorld) -> None:
        """Each call may be repeated, on one that is attached nothing but a detachment works, and the end of its machine
        leaves it."""
        provider = _provider(world, CLUSTER)
        disk = _make_disk(world, provider, "v1", world.disk_bytes)
        first, other = _machine(world, provider, "c1", disk), _machine(world, provider, "c2")
        _attach(world, provider, disk, first.id)
        provider.attach_disk(disk.id, first.id)
        with pytest.raises(BadRequest):
            provider.delete_disk(disk.id)
        provider.terminate([first.id])
        world.until(lambda: [i.id for i in live_instances(provider)] == [other.id])
        world.until(lambda: _is_free(provider, disk))
        second = other
        if provider.disks_at_launch:
            with pytest.raises(BadRequest):
                provider.attach_disk(disk.id, other.id)
            second = _machine(world, provider, "c3", disk)
        _attach(world, provider, disk, second.id)
        for force in (False, True):
            provider.detach_disk(disk.id, second.id, force=force)
        if provider.disks_at_launch:
            provider.terminate([second.id])
        world.until(lambda: _is_free(provider, disk))
        provider.detach_disk(disk.id, second.id, force=False)
        terminate_all(world, provider)
        assert [one.id for one in provider.disks()] == [disk.id]
        _delete(world, provider, [disk])

    def test_a_disk_of_no_zone_is_a_bad_request(self, world: CloudWorld) -> None:
        """Nothing is made."""
        provider = _provider(world, CLUSTER)
        offer = world.offer(provider)
        with pytest.raises(BadRequest):
            provider.create_disk(_request(world, "v1", "no-such-zone", offer.region, world.disk_bytes))
        assert list(provider.disks()) == []


class _DiskProvider(Provider, VolumeProvider):
    """Both."""


def _provider(world: CloudWorld, cluster: str) -> _DiskProvider:
    provider = world.provider(cluster)
    assert isinstance(provider, VolumeProvider)
    return provider  # type: ignore[return-value]


def _machine(world: CloudWorld, provider: _DiskProvider, word: str, disk: Disk | None = None) -> Instance:
    """One that runs; launched with the disk where there is no other way to have it."""
    request = launch_request(world, provider, word)
    if disk is not None and provider.disks_at_launch:
        request = replace(request, disks=(LaunchDisk(disk.id, "/run/burst-volumes/7/corpus"),))
    (outcome,) = prepare_and_launch(provider, [request])
    made = outcome.result
    assert isinstance(made, Instance), outcome
    world.until(lambda: any(i.id == made.id and i.state is InstanceState.RUNNING for i in provider.instances()))
    return made


def _request(world: CloudWorld, word: str, zone: str, region: str, size: int) -> DiskRequest:
    volume_id = world.claim(word)
    tags = {TAG_VOLUME_CLUSTER: CLUSTER, TAG_VOLUME: volume_id, "burstd-volume-name": "corpus"}
    return DiskRequest(volume_id, zone, size, tags, region)


def _make_disk(world: CloudWorld, provider: _DiskProvider, word: str, size: int) -> Disk:
    offer = world.offer(provider)
    zone = "" if provider.disks_at_launch else offer.zone
    request = _request(world, word, zone, offer.region, size)
    provider.create_disk(request)
    found: list[Disk] = []

    def ready() -> bool:
        found[:] = [disk for disk in provider.disks() if disk.volume_id == request.volume_id]
        return bool(found) and found[0].ready

    world.until(ready)
    (disk,) = found
    assert (disk.zone, disk.size_bytes, disk.attached_to, disk.error) == (zone, size, "", "")
    assert disk.tags[TAG_VOLUME_CLUSTER] == CLUSTER
    assert TAG_CLUSTER not in disk.tags
    return disk


def _attach(world: CloudWorld, provider: _DiskProvider, disk: Disk, instance_id: str) -> None:
    provider.attach_disk(disk.id, instance_id)

    def attached() -> bool:
        (now,) = [one for one in provider.disks() if one.id == disk.id]
        has_device = bool(now.device_paths) != provider.disks_at_launch
        return now.ready and now.attached_to == instance_id and has_device

    world.until(attached)


def _is_free(provider: _DiskProvider, disk: Disk) -> bool:
    return any(one.id == disk.id and one.ready and not one.attached_to for one in provider.disks())


def _delete(world: CloudWorld, provider: _DiskProvider, disks: Sequence[Disk]) -> None:
    for disk in disks:
        provider.delete_disk(disk.id)
    world.until(lambda: not list(provider.disks()))
    provider.delete_disk(disks[0].id)
