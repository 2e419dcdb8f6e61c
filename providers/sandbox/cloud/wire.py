"""What goes over the wire between the cloud server and its clients, and nothing that a real cloud would not tell."""

from __future__ import annotations

from decimal import Decimal
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from providers.sandbox.cloud.disks import SandboxDisk
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog
from providers.sandbox.cloud.inventory.resources import (
    AttachedResource,
    BillRow,
    ResourcePage,
    SandboxInstanceState,
    SandboxLaunchRequest,
    SandboxMachine,
)


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True)


class OfferView(_Wire):
    """One thing that is sold. ``memory_mib`` in MiB, ``price`` in ``currency`` for an hour."""

    region: str
    zone: str
    type: str
    spot: bool
    price: Decimal
    currency: str
    cpus: int
    memory_mib: int
    gpu_type: str
    gpus: int
    fabric: str = ""


class LaunchBody(_Wire):
    """A request to launch: see ``Request``."""

    token: str
    name: str
    zone: str
    type: str
    image: str
    spot: bool = False
    user_data: str = ""
    tags: dict[str, str] = {}

    def request(self) -> SandboxLaunchRequest:
        """As the cloud takes it."""
        return SandboxLaunchRequest(**self.model_dump())


class InstanceView(_Wire):
    """An instance. Times in seconds since 1970."""

    id: str
    name: str
    zone: str
    type: str
    image: str
    spot: bool
    state: SandboxInstanceState
    tags: dict[str, str]
    address: str
    price: Decimal
    created: float
    error: str
    interrupted_at: float | None

    @classmethod
    def from_machine(cls, machine: SandboxMachine) -> InstanceView:
        """Of a machine of the cloud; a pending one tells no address yet."""
        request = machine.request
        return cls(
            id=machine.id,
            name=request.name,
            zone=request.zone,
            type=request.type,
            image=request.image,
            spot=request.spot,
            state=machine.state,
            tags=dict(request.tags),
            address="" if machine.state is SandboxInstanceState.PENDING else machine.address,
            price=machine.price,
            created=machine.created,
            error=machine.error,
            interrupted_at=machine.interrupted_at,
        )


class ResourceView(_Wire):
    """A volume or a port."""

    id: str
    kind: str
    tags: dict[str, str]
    created: float
    attached_to: str

    @classmethod
    def from_resource(cls, part: AttachedResource) -> ResourceView:
        """Of a part of the cloud."""
        return cls(**part.to_json())


class DiskBody(_Wire):
    """A request for a disk."""

    zone: str
    size_bytes: int
    tags: dict[str, str] = {}


class AttachBody(_Wire):
    """The instance that a disk is attached to, or detached from."""

    instance: str


class DiskView(_Wire):
    """A disk. ``ready`` False: it is on its way into a machine, or out of one."""

    id: str
    zone: str
    size_bytes: int
    tags: dict[str, str]
    attached_to: str
    device_path: str
    ready: bool

    @classmethod
    def from_disk(cls, disk: SandboxDisk, *, ready: bool) -> DiskView:
        """Of a disk of the cloud."""
        return cls(
            id=disk.id,
            zone=disk.zone,
            size_bytes=disk.size_bytes,
            tags=dict(disk.tags),
            attached_to=disk.attached_to,
            device_path=disk.device_path,
            ready=ready,
        )


V = TypeVar("V", InstanceView, ResourceView, DiskView)


class PageView(_Wire, Generic[V]):
    """A part of a list, and the marker of the next, empty at the end."""

    items: list[V]
    next: str = ""


def instances_page_view(page: ResourcePage[SandboxMachine]) -> PageView[InstanceView]:
    """A page of instances."""
    return PageView[InstanceView](items=[InstanceView.from_machine(m) for m in page.items], next=page.next)


def resources_page_view(page: ResourcePage[AttachedResource]) -> PageView[ResourceView]:
    """A page of volumes or ports."""
    return PageView[ResourceView](items=[ResourceView.from_resource(p) for p in page.items], next=page.next)


def disks_page_view(page: ResourcePage[tuple[SandboxDisk, bool]]) -> PageView[DiskView]:
    """A page of disks."""
    return PageView[DiskView](items=[DiskView.from_disk(d, ready=ready) for d, ready in page.items], next=page.next)


def offer_views(catalog: SandboxCatalog, sold: list[tuple[str, str, bool, Decimal]]) -> list[OfferView]:
    """What the cloud offers, with the shapes."""
    views = []
    for zone, name, spot, price in sold:
        kind = catalog.type(name)
        if kind is not None:
            shape = {"cpus": kind.cpus, "memory_mib": kind.memory_mib, "gpus": kind.gpus}
            place = {"region": catalog.region, "zone": zone, "type": name, "currency": catalog.currency}
            said = {"gpu_type": kind.gpu_type, "fabric": kind.fabric}
            views.append(OfferView.model_validate({**place, **shape, **said, "spot": spot, "price": price}))
    return views


class QuotaView(_Wire):
    """Instances."""

    limit: int
    used: int


class SuppliesView(_Wire):
    """What a launch needs: each image, with what is wrong with it (empty: nothing), and addresses that are free."""

    images: dict[str, str]
    free_addresses: int


class NoticeView(_Wire):
    """An announcement: ``kind`` is interruption or rebalance, ``deadline`` in seconds since 1970."""

    instance: str
    kind: str
    deadline: float | None
    receipt: str


class ReceiptsBody(_Wire):
    """Announcements to acknowledge."""

    receipts: list[str]


class BillRowView(_Wire):
    """What one instance has cost: when it was made and ran, seconds that it ran, price for an hour, cost."""

    instance: str
    name: str
    zone: str
    type: str
    spot: bool
    tags: dict[str, str]
    created: float
    started: float | None
    ended: float | None
    seconds: float
    price: Decimal
    cost: Decimal

    @classmethod
    def from_row(cls, row: BillRow) -> BillRowView:
        """Of a row of the cloud."""
        return cls(
            instance=row.instance,
            name=row.name,
            zone=row.zone,
            type=row.type,
            spot=row.spot,
            tags=dict(row.tags),
            created=row.created,
            started=row.started,
            ended=row.ended,
            seconds=row.seconds,
            price=row.price,
            cost=row.cost,
        )


class BillView(_Wire):
    """The bill so far."""

    currency: str
    total: Decimal
    rows: list[BillRowView]


class FaultBody(BaseModel):
    """A fault to order: see ``Fault``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FaultKind
    calls: list[str] = ["launch"]
    zones: str = "*"
    types: str = "*"
    names: str = "*"
    count: int | None = None
    seconds: float = 0.0
    id: str = ""

    def fault(self) -> SandboxFault:
        """As the cloud takes it."""
        return SandboxFault(**{**self.model_dump(), "calls": tuple(self.calls)})


class LaunchCallView(_Wire):
    """One launch call: when, for which token and name, and what came of it (an id, or a refusal's code)."""

    time: float
    token: str
    name: str
    outcome: str


class CallsView(_Wire):
    """Calls since the cloud was made, by kind, and each launch."""

    counts: dict[str, int]
    launches: list[LaunchCallView]
