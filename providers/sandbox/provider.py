"""The provider of the sandbox cloud: burstd's side of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER, Disk, DiskRequest
from burstd.domain.errors import (
    BadRequest,
    NotFound,
    ProviderError,
)
from burstd.domain.plugins.provider import (
    Finding,
    Idempotency,
    LaunchOutcome,
    LaunchRequest,
    Notice,
    NoticeKind,
    Provider,
    ProviderPlugin,
    Quota,
)
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.checks import CheckedSandbox, check
from providers.sandbox.client import CloudApi, HttpApi
from providers.sandbox.cloud import wire
from providers.sandbox.errors import mutate, query

RESOURCE_KINDS = ("volume", "port")
_NOTICE_PROGRAM = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V", wire.InstanceView, wire.ResourceView, wire.DiskView)


class SandboxSettings(BaseModel):
    """``[providers.NAME]`` of kind ``sandbox``. Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "http://10.77.0.1:8470"
    token_file: Path = Field(default=Path("/etc/burstd/sandbox.token"), json_schema_extra={"secret": True})
    egress_gb: Annotated[Decimal, Field(ge=0)] = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves the sandbox, which has no price for it itself."""
    image: str = "debian"
    """Of pools whose rules name none."""
    timeout_s: Annotated[float, Field(gt=0)] = 10.0
    settle_s: Annotated[float, Field(ge=0)] = 5.0
    """Longer than the cloud's list lag."""
    page: Annotated[int, Field(ge=1, le=1000)] = 100


class SandboxProvider:
    """A cloud of boxes on one machine. Launches are idempotent by the claim's id, which is the token."""

    idempotency = Idempotency.TOKEN
    disks_at_launch = False

    def __init__(
        self, name: str, cluster: str, api: CloudApi, *, image: str = "debian", settle_s: float = 5.0, page: int = 100,
        url: str = "", egress_price: Decimal = Decimal(0),
    ) -> None:  # fmt: skip
        self.name = name
        self._url = url
        self._egress_price = egress_price
        self.settle_s = settle_s
        self._cluster = cluster
        self._api = api
        self._image = image
        self._page = page
        self._cluster_tags = {TAG_CLUSTER: cluster}
        self._disk_tags = {TAG_VOLUME_CLUSTER: cluster}

    def offers(self) -> Sequence[Offer]:
        """What is sold, in one call."""
        return [
            Offer(
                self.name,
                o.region,
                o.zone,
                o.type,
                o.spot,
                _shape(o),
                o.price,
                o.currency,
                Hardware(fabric=o.fabric),
                egress_price=self._egress_price,
            )
            for o in query(self._api.offers)
        ]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call for each, some side by side."""
        return self._side_by_side(self._launch, requests)

    def _launch(self, request: LaunchRequest) -> LaunchOutcome:
        offer = request.offer
        body = wire.LaunchBody(
            token=request.claim_id,
            name=request.name,
            zone=offer.zone,
            type=offer.instance_type,
            image=request.image or self._image,
            spot=offer.spot,
            user_data=request.user_data,
            tags={**request.tags, TAG_CLUSTER: self._cluster, TAG_CLAIM: request.claim_id},
        )
        try:
            return LaunchOutcome(request.claim_id, self._instance(mutate(lambda: self._api.launch(body))))
        except ProviderError as error:
            return LaunchOutcome(request.claim_id, error)

    def instances(self) -> Iterator[Instance]:
        """Ours, page by page."""
        return map(self._instance, self._pages(self._api.instances))

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """One call for each, some side by side; the first error is raised when all were tried."""
        errors = self._side_by_side(lambda i: _error_of(lambda: self._api.terminate(i)), instance_ids)
        _raise_first(errors)

    def leftovers(self) -> Iterator[Leftover]:
        """Our volumes and ports, those in use too, page by page."""
        return chain.from_iterable(map(self._leftovers, RESOURCE_KINDS))

    def _leftovers(self, kind: str) -> Iterator[Leftover]:
        for part in self._pages(lambda *page: self._api.list_resources(kind, *page)):
            yield Leftover(kind, part.id, self.name, part.tags.get(TAG_CLAIM, ""), part.attached_to)

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks first whether they are ours: a few pages, then one call for each."""
        wanted = {(left.kind, left.id) for left in leftovers}
        owned = self._among(wanted, self._cluster_tags)
        foreign = self._among(wanted - owned, {}) if wanted - owned else set()
        if foreign:
            listed = ", ".join(f"{kind} {part_id}" for kind, part_id in sorted(foreign))
            raise BadRequest(f"{listed} does not bear the tag of cluster {self._cluster}")
        _raise_first([_error_of(lambda k=kind, p=part: self._api.remove(k, p)) for kind, part in sorted(owned)])  # type: ignore[misc]

    def _among(self, wanted: set[tuple[str, str]], tags: Mapping[str, str]) -> set[tuple[str, str]]:
        """Those of the wanted parts that are there with these tags."""
        kinds = sorted({kind for kind, _ in wanted} & set(RESOURCE_KINDS))
        there = (
            p for kind in kinds for p in self._pages(lambda *page, k=kind: self._api.list_resources(k, *page), tags)
        )
        return wanted & {(part.kind, part.id) for part in there}

    def disks(self) -> Iterator[Disk]:
        """Our persistent disks, page by page."""
        for disk in self._pages(self._api.disks, self._disk_tags):
            yield Disk(
                disk.id, disk.tags.get(TAG_VOLUME, ""), disk.zone, disk.size_bytes, disk.ready, disk.attached_to,
                (disk.device_path,), tags=disk.tags,
            )  # fmt: skip

    def create_disk(self, request: DiskRequest) -> None:
        """One call, which knows no token."""
        tags = {**request.tags, **self._disk_tags, TAG_VOLUME: request.volume_id}
        mutate(
            lambda: self._api.create_disk(wire.DiskBody(zone=request.zone, size_bytes=request.size_bytes, tags=tags))
        )

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        """One call."""
        mutate(lambda: self._api.attach_disk(disk_id, wire.AttachBody(instance=instance_id)))

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:  # noqa: ARG002 - it never waits
        """One call."""
        mutate(lambda: self._api.detach_disk(disk_id, wire.AttachBody(instance=instance_id)))

    def delete_disk(self, disk_id: str) -> None:
        """Looks first whether it is ours."""
        found = next((d for d in self._pages(self._api.disks, {}) if d.id == disk_id), None)
        if found is None:
            return
        if not self._disk_tags.items() <= found.tags.items():
            raise BadRequest(f"disk {disk_id} does not bear the volume tag of cluster {self._cluster}")
        _raise_first([_error_of(lambda: self._api.remove_disk(disk_id))])

    def console(self, instance_id: str) -> str:
        """The console's output so far."""
        return query(lambda: self._api.console(instance_id))

    def quotas(self) -> Sequence[Quota]:
        """The limit of instances."""
        quota = query(self._api.quota)
        return [Quota("instances", quota.limit, quota.used)]

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        """Whether launching would work."""
        return check(CheckedSandbox(self._api, self._url, self._image, images))

    def cloud_time(self) -> float:
        """By an answer of the server."""
        return query(self._api.time)

    @property
    def notice_markets(self) -> frozenset[str]:
        """Every sandbox has a queue."""
        return frozenset({"spot"})

    def notices(self) -> Sequence[Notice]:
        """What was announced of our instances."""
        said = query(lambda: self._api.notices(self._cluster_tags))
        return [Notice(n.instance, NoticeKind(n.kind), n.deadline, n.receipt) for n in said]

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """In one call."""
        mutate(lambda: self._api.acknowledge([notice.receipt for notice in notices]))

    def watch_script(self) -> str:
        """Asks the cloud at its own address; which machine asks it knows by the sender's."""
        return shlex.join(["exec", "python3", "-c", _NOTICE_PROGRAM, f"{self._url.rstrip('/')}/self/notice"]) + "\n"

    def close(self) -> None:
        """Gives connections back."""
        self._api.close()

    def _pages(
        self,
        read: Callable[[Mapping[str, str], int, str], wire.PageView[V]],
        tags: Mapping[str, str] | None = None,
    ) -> Iterator[V]:
        marker = ""
        while True:
            wanted = self._cluster_tags if tags is None else tags
            page = query(lambda: read(wanted, self._page, marker))  # noqa: B023 - called at once
            yield from (item for item in page.items if wanted.items() <= item.tags.items())
            marker = page.next
            if not marker:
                return

    def _instance(self, view: wire.InstanceView) -> Instance:
        return Instance(
            id=view.id,
            provider=self.name,
            state=InstanceState(view.state.value),
            claim_id=view.tags.get(TAG_CLAIM, ""),
            tags=view.tags,
            name=view.name,
            zone=view.zone,
            instance_type=view.type,
            spot=view.spot,
            address=view.address,
            launched=view.created,
            error=view.error,
        )

    def _side_by_side(self, call: Callable[[T], R], things: Sequence[T]) -> list[R]:
        if len(things) < 2 or self._api.parallel < 2:
            return [call(thing) for thing in things]
        with ThreadPoolExecutor(min(len(things), self._api.parallel)) as pool:
            return list(pool.map(call, things))


def _shape(offer: wire.OfferView) -> Shape:
    gres = (Gres("gpu", offer.gpu_type, offer.gpus),) if offer.gpus else ()
    return Shape(offer.cpus, offer.memory_mib, gres)


def _error_of(call: Callable[[], None]) -> ProviderError | None:
    """The error of a call that ends something, none when it is gone already."""
    try:
        mutate(call)
    except NotFound:
        return None
    except ProviderError as error:
        return error
    return None


def _raise_first(errors: Sequence[ProviderError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


def _make(name: str, cluster: str, settings: SandboxSettings) -> Provider:
    api = HttpApi(settings.url, settings.token_file, settings.timeout_s)
    return SandboxProvider(
        name, cluster, api, image=settings.image, settle_s=settings.settle_s, page=settings.page, url=settings.url,
        egress_price=settings.egress_gb,
    )  # fmt: skip


plugin = ProviderPlugin("sandbox", SandboxSettings, _make)
