"""The two clouds of the crash tests, seen alike: the simulator's, and the sandbox cloud without its boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Protocol

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import InsufficientCapacity, QuotaExceeded, RateLimited
from burstd.domain.plugins.provider import Idempotency, LaunchRequest, Notice, NoticeKind, Provider
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.client import DirectApi
from providers.sandbox.cloud import faults as sandbox
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxInstanceState, SandboxLaunchRequest, SandboxMachine
from providers.sandbox.provider import SandboxProvider
from tests.doubles.immediate_disks import ImmediateDisks
from tests.virtual.batches import BatchProvider
from tests.virtual.clock import Alarm, VirtualClock
from tests.virtual.cloud import LaunchFault, SimCloud, SimInstance, Stock
from tests.virtual.machines import Machines
from tests.virtual.provider import Faults, SimProvider

CLUSTER = "site"
NEIGHBOUR = "other"
CPU = Shape(4, 8000)
GPU = Shape(4, 8000, (Gres("gpu", "v100", 2),))
_NEIGHBOURS = {TAG_CLUSTER: NEIGHBOUR, TAG_CLAIM: "claim-0001"}
"""A neighbour's claims are numbered as ours are."""


@dataclass(frozen=True, slots=True)
class KitInstance:
    """One of our instances, alive or not."""

    id: str
    provider: str
    claim_id: str
    address: str
    ran: bool
    """It has been RUNNING."""
    alive: bool
    where: tuple[str, str] = ("", "")
    """Zone and type."""


class CloudKit(Protocol):
    """One cloud: what is so in it, and how it fails."""

    @property
    def provider(self) -> Provider:
        """burstd's side of it."""
        ...

    def launched_instances(self) -> list[KitInstance]:
        """All our instances that ever were."""
        ...

    def leftovers(self) -> list[str]:
        """Our volumes, ports ... that there are."""
        ...

    def neighbour_untouched(self) -> bool:
        """The neighbour's instance has not been touched."""
        ...

    def end_instance(self, instance_id: str) -> None:
        """The cloud ends it by its own hand."""
        ...

    def interrupt_spot(self, instance_id: str, notice_s: float | None) -> None:
        """It announces that it ends in so many seconds (None: that it may end soon), and ends it then."""
        ...

    def misreport(self, instance_id: str, state: str) -> None:
        """Listings leave it out (``omitted``), or say a state that is not so."""
        ...

    def fail(self, kind: str, n: int) -> None:
        """One of FAULTS; ``n``, 1 to 3, is how often or which."""
        ...

    def heal(self) -> None:
        """All is well again."""
        ...


FAULTS = (
    "down", "list down", "answers lost", "requests lost", "requests late", "launch refused", "bad boot",
    "ending fails", "ending ignored", "things leak",
)  # fmt: skip
_REFUSALS = (InsufficientCapacity("none left"), QuotaExceeded("no more of it"), RateLimited("slower", retry_after_s=7))
_LAUNCH_FAULTS = (LaunchFault(hangs=True), LaunchFault(error="no host found"), LaunchFault(validation_error="1 GPU"))


class SimKit:
    """The simulator's cloud."""

    def __init__(
        self,
        clock: VirtualClock,
        machines: Machines,
        name: str,
        on_terminate: Callable[[str, str], None],
        *,
        idempotency: Idempotency,
        lag_s: float,
        capacity: tuple[int, int] = (4, 3),
        prices: tuple[str, str] = ("1.5", "5.0"),
        batches: bool = False,
        spot: bool = False,
    ) -> None:
        stocks = [
            Stock(Offer(name, "r1", "z1", f"{kind}.m", False, shape, Decimal(price)), capacity_left, boot_s=boot_s)
            for kind, shape, price, capacity_left, boot_s in zip(
                ("cpu", "gpu"), (CPU, GPU), prices, capacity, (25.0, 30.0), strict=True
            )
        ]
        if batches:
            elsewhere = Offer(name, "r1", "z2", "cpu.m", False, CPU, Decimal("1.2"))
            stocks.append(Stock(elsewhere, 1, boot_s=25.0))
        if spot:
            cheap = [replace(s, offer=replace(s.offer, spot=True, price=s.offer.price / 2)) for s in stocks]
            stocks += cheap
        self.cloud = SimCloud(clock, machines, stocks, name, net="10.1" if name == "alpha" else "10.2")
        self._watch = on_terminate
        self._lag_s = lag_s
        kind = BatchProvider if batches else SimProvider
        self.provider = kind(self.cloud, CLUSTER, idempotency=idempotency, watch=self._on_terminate)
        self.provider.faults.list_lag_s = lag_s
        self._neighbour = self.cloud.launch(LaunchRequest("claim-0001", "n", stocks[0].offer, "", "", _NEIGHBOURS))

    def _on_terminate(self, instance: SimInstance) -> None:
        self._watch(instance.id, instance.address)

    def launched_instances(self) -> list[KitInstance]:
        """See CloudKit."""
        return [
            KitInstance(
                i.id,
                self.cloud.name,
                i.claim_id or i.launched_for,
                i.address,
                bool(i.address),
                i.ended is None,
                (i.offer.zone, i.offer.instance_type),
            )
            for i in self.cloud.instances.values()
            if i.cluster == CLUSTER
        ]

    def leftovers(self) -> list[str]:
        """See CloudKit."""
        return [t.id for t in self.cloud.leftovers.values() if t.tags[TAG_CLUSTER] == CLUSTER]

    def neighbour_untouched(self) -> bool:
        """See CloudKit."""
        return self._neighbour.ended is None

    def end_instance(self, instance_id: str) -> None:
        """See CloudKit."""
        self.cloud.end(instance_id, "spot interruption")

    def interrupt_spot(self, instance_id: str, notice_s: float | None) -> None:
        """See CloudKit."""
        self.cloud.interrupt_spot(instance_id, notice_s)

    def misreport(self, instance_id: str, state: str) -> None:
        """See CloudKit."""
        if state == "omitted":
            self.provider.faults.omitted.add(instance_id)
        else:
            self.provider.faults.misreported_states[instance_id] = InstanceState(state)

    def fail(self, kind: str, n: int) -> None:
        """See CloudKit."""
        faults = self.provider.faults
        match kind:
            case "down":
                faults.down = n > 1
            case "list down":
                faults.list_down = n > 1
            case "answers lost":
                faults.lost_answers = n
            case "requests lost":
                faults.lost_requests = n
            case "requests late":
                faults.late_requests.append(1.5 * n)
            case "launch refused":
                faults.refuse.append(_REFUSALS[n - 1])
            case "bad boot":
                self.cloud.launch_faults.append(_LAUNCH_FAULTS[n - 1])
            case "ending fails":
                faults.terminate_errors = n
            case "ending ignored":
                faults.terminate_ignored = n
            case "things leak":
                self.cloud.leaks = n
            case _:
                raise ValueError(kind)

    def heal(self) -> None:
        """See CloudKit."""
        self.provider.faults = Faults(list_lag_s=self._lag_s)
        self.cloud.launch_faults.clear()
        self.cloud.leaks = 0


class SandboxKit(ImmediateDisks):
    """The sandbox cloud and its provider, in this process, with virtual machines for boxes."""

    def __init__(
        self,
        clock: VirtualClock,
        machines: Machines,
        name: str,
        on_terminate: Callable[[str, str], None],
        *,
        lag_s: float,
        capacity: tuple[int, int] = (3, 2),
        spot: bool = False,
    ) -> None:
        cheap = (Decimal("0.5"), Decimal("2.0")) if spot else (None, None)
        types = (
            SandboxInstanceType("cpu.m", CPU.cpus, CPU.memory_mib, Decimal("1.0"), spot_price=cheap[0]),
            SandboxInstanceType("gpu.m", GPU.cpus, GPU.memory_mib, Decimal("4.0"), cheap[1], gpu_type="v100", gpus=2),
        )
        catalog = SandboxCatalog(
            types, {"z1": dict(zip(("cpu.m", "gpu.m"), capacity, strict=True))}, addresses="10.3.0.0/20",
            boot_s=2.0, stop_s=3.0, list_lag_s=lag_s, ended_shown_s=20.0,
        )  # fmt: skip
        self._clock = clock
        self._machines = machines
        self._alarm: Alarm | None = None
        self._name = name
        self.cloud = SandboxCloud(catalog, clock.now, self, changed=self._changed)
        self.provider: SandboxProvider = SandboxProvider(
            name, CLUSTER, _TerminateWatchingApi(self.cloud, on_terminate), settle_s=10.0, page=2
        )
        place = SandboxLaunchRequest("neighbour", "n", "z1", "cpu.m", "debian", tags=_NEIGHBOURS)
        self._neighbour = self.cloud.launch(place).id

    # What a Backend does.

    def start(self, machine: SandboxMachine) -> None:
        """A virtual machine boots."""
        self._machines.boot(machine.address, float("inf") if machine.hangs else 20.0)

    def stop(self, machine: SandboxMachine) -> None:
        """It is switched off."""
        self._machines.end(machine.address)

    def console(self, machine: SandboxMachine) -> str:
        """It writes nothing."""
        del machine
        return ""

    def _changed(self) -> None:
        self._alarm_at(self._clock.now())

    def _alarm_at(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._clock.at(when, self._due)

    def _due(self) -> None:
        self._alarm = None
        due = self.cloud.advance()
        if due is not None:
            self._alarm_at(max(due, self._clock.now()))

    # What a test sees and orders.

    def launched_instances(self) -> list[KitInstance]:
        """See CloudKit."""
        return [
            KitInstance(
                m.id,
                self._name,
                m.request.tags[TAG_CLAIM],
                m.address,
                m.started is not None,
                m.state not in (SandboxInstanceState.STOPPING, SandboxInstanceState.TERMINATED),
                (m.request.zone, m.request.type),
            )
            for m in self.cloud.machines()
            if m.request.tags[TAG_CLUSTER] == CLUSTER
        ]

    def leftovers(self) -> list[str]:
        """See CloudKit."""
        ours = {TAG_CLUSTER: CLUSTER}
        return [p.id for kind in ("volume", "port") for p in self.cloud.list_resources(kind, ours, limit=1000).items]

    def neighbour_untouched(self) -> bool:
        """See CloudKit."""
        return any(
            m.id == self._neighbour and m.state is SandboxInstanceState.RUNNING for m in self.cloud.machines()
        ) or (self._clock.now() < 1_800_000_000.0 + 2.0)

    def end_instance(self, instance_id: str) -> None:
        """See CloudKit."""
        self.cloud.interrupt(instance_id)

    def interrupt_spot(self, instance_id: str, notice_s: float | None) -> None:
        """See CloudKit."""
        if notice_s is None:
            self.cloud.recommend_rebalance(instance_id)
            notice = Notice(instance_id, NoticeKind.REBALANCE)
        else:
            self.cloud.interrupt(instance_id, notice_s)
            notice = Notice(instance_id, NoticeKind.INTERRUPTION, self._clock.now() + notice_s)
        machine = next(m for m in self.cloud.machines() if m.id == instance_id)
        self._machines.announce(machine.address, notice)

    def misreport(self, instance_id: str, state: str) -> None:
        """The sandbox tells the truth about machines that run."""
        del instance_id, state

    def fail(self, kind: str, n: int) -> None:
        """See CloudKit. What the sandbox cannot do is left out."""
        fault, k = sandbox.SandboxFault, sandbox.FaultKind
        orders: Sequence[sandbox.SandboxFault] = ()
        match kind:
            case "down" | "list down":
                if n > 1:
                    calls = ("*",) if kind == "down" else ("list", "volumes")
                    orders = [fault(k.UNAVAILABLE, calls=calls, id=kind)]
                else:
                    self.cloud.cancel_fault(kind)
            case "answers lost":
                orders = [fault(k.LOSE_ANSWER, count=n)]
            case "requests lost":
                orders = [fault(k.ERROR, count=n)]
            case "launch refused":
                orders = [fault((k.CAPACITY, k.QUOTA, k.RATE_LIMIT)[n - 1], count=1, seconds=7.0)]
            case "bad boot":
                orders = [fault((k.BOOT_HANG, k.BOOT_FAIL, k.LIE)[n - 1], count=1, seconds=60.0)]
            case "ending fails":
                orders = [fault((k.ERROR, k.UNAVAILABLE, k.LOSE_ANSWER)[n - 1], calls=("terminate", "remove"), count=n)]
            case "things leak":
                orders = [fault(k.LEAK_VOLUME, count=n), fault(k.LEAK_PORT, count=1)]
            case _:
                orders = ()
        for one in orders:
            self.cloud.inject_fault(one)

    def heal(self) -> None:
        """See CloudKit."""
        self.cloud.cancel_fault()


class _TerminateWatchingApi(DirectApi):
    def __init__(self, cloud: SandboxCloud, ends: Callable[[str, str], None]) -> None:
        super().__init__(cloud)
        self._ends = ends
        self._watched = cloud

    def terminate(self, instance_id: str) -> None:
        """See CloudApi; whose end it is, is looked at first."""
        for machine in self._watched.machines():
            if machine.id == instance_id and machine.state is SandboxInstanceState.RUNNING:
                self._ends(machine.id, machine.address)
        super().terminate(instance_id)
