"""A cloud in memory and virtual time: what it has, what it was asked for, what it lost. Seen through SimProvider."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, InsufficientCapacity
from burstd.domain.plugins.provider import LaunchRequest, Notice, NoticeKind
from tests.virtual.clock import VirtualClock
from tests.virtual.machines import Machines


@dataclass(frozen=True, slots=True)
class Stock:
    """What the cloud can start of one kind, and how long that takes, in seconds."""

    offer: Offer
    capacity: int
    pending_s: float = 2.0
    """From the launch until it is RUNNING and has an address."""
    boot_s: float = 20.0
    """From then until it answers."""


@dataclass(frozen=True, slots=True)
class LaunchFault:
    """What becomes of one launch that goes wrong."""

    hangs: bool = False
    """It is RUNNING and never answers."""
    error: str = ""
    """It ends in ERROR with these words."""
    validation_error: str = ""
    """It answers, and a proof finds this wrong with it."""


@dataclass(slots=True)
class SimInstance:
    """One instance. Times in seconds since 1970; ``ended`` None: it lives."""

    id: str
    offer: Offer
    tags: Mapping[str, str]
    name: str
    launched: float
    launch_fault: LaunchFault
    state: InstanceState = InstanceState.PENDING
    address: str = ""
    ended: float | None = None
    error: str = ""
    launched_for: str = ""
    """The claim that it was launched for, where no tag says so."""

    @property
    def cluster(self) -> str:
        """Whose it is."""
        return self.tags.get(TAG_CLUSTER, "")

    @property
    def claim_id(self) -> str:
        """What its tag says that it was launched for."""
        return self.tags.get(TAG_CLAIM, "")

    def lived(self, now: float) -> float:
        """Seconds for which it costs."""
        return (self.ended if self.ended is not None else now) - self.launched


@dataclass(slots=True)
class SimLeftover:
    """A volume, port ... of an instance. ``attached_to`` empty: its instance is gone and it was left behind."""

    kind: str
    id: str
    tags: Mapping[str, str]
    attached_to: str


@dataclass(slots=True)
class SimCloud:
    """The cloud as it is, whatever it says. Other clusters' instances are in it as well."""

    clock: VirtualClock
    machines: Machines
    stocks: Sequence[Stock]
    name: str = "cloud"
    stop_s: float = 3.0
    linger_s: float = 20.0
    """How long an instance that has ended is still listed."""
    net: str = "10.1"
    launch_faults: deque[LaunchFault] = field(default_factory=deque)
    """Of the next launches, in order; where there is none a launch goes well."""
    leaks: int = 0
    """So many of the next instances to end leave their volume behind."""
    instances: dict[str, SimInstance] = field(default_factory=dict)
    """All that ever were."""
    leftovers: dict[str, SimLeftover] = field(default_factory=dict)
    pending_notices: list[Notice] = field(default_factory=list)
    """What waits in the queue of notices."""
    _made: int = 0

    def launch(self, request: LaunchRequest) -> SimInstance:
        """Makes an instance, whether or not there is one for this claim. Raises InsufficientCapacity, BadRequest."""
        stock = next((s for s in self.stocks if s.offer.id == request.offer.id), None)
        if stock is None:
            raise BadRequest(f"{self.name} has no type {request.offer.instance_type} in {request.offer.zone}")
        if sum(i.offer.id == request.offer.id and i.ended is None for i in self.instances.values()) >= stock.capacity:
            raise InsufficientCapacity(f"{self.name} has no {request.offer.instance_type} left in {request.offer.zone}")
        self._made += 1
        number = self._made
        fate = self.launch_faults.popleft() if self.launch_faults else LaunchFault()
        made = SimInstance(
            f"i-{self.name}-{number}", stock.offer, dict(request.tags), request.name, self.clock.now(), fate
        )
        self.instances[made.id] = made
        volume = SimLeftover("volume", f"vol-{self.name}-{number}", made.tags, made.id)
        self.leftovers[volume.id] = volume
        self.clock.at(self.clock.now() + stock.pending_s, lambda: self._runs(made, number, stock.boot_s))
        return made

    def _runs(self, instance: SimInstance, number: int, boot_s: float) -> None:
        if instance.state is not InstanceState.PENDING:
            return
        if instance.launch_fault.error:
            instance.state, instance.error = InstanceState.ERROR, instance.launch_fault.error
            return
        instance.state = InstanceState.RUNNING
        instance.address = f"{self.net}.{number // 250}.{number % 250 + 1}"
        answers_in = float("inf") if instance.launch_fault.hangs else boot_s
        self.machines.boot(instance.address, answers_in, validation_error=instance.launch_fault.validation_error)
        for notice in self.pending_notices:
            if notice.instance_id == instance.id:
                self.machines.announce(instance.address, notice)

    def interrupt_spot(self, instance_id: str, notice_s: float | None) -> None:
        """Announces that an instance ends in so many seconds, and ends it then; None: that it may end, no more."""
        instance, now = self.instances[instance_id], self.clock.now()
        if notice_s is None:
            notice = Notice(instance_id, NoticeKind.REBALANCE)
        else:
            notice = Notice(instance_id, NoticeKind.INTERRUPTION, self.clock.wall() + notice_s)
            self.clock.at(now + notice_s, lambda: self.end(instance_id, "spot interruption"))
        self.pending_notices.append(notice)
        self.machines.announce(instance.address, notice)

    def end(self, instance_id: str, error: str = "") -> None:
        """Ends an instance, as asked for, or (``error``) by the cloud's own hand. Nothing for one that has ended."""
        instance = self.instances[instance_id]
        if instance.ended is not None:
            return
        self.machines.end(instance.address)
        instance.ended, instance.error = self.clock.now(), error
        instance.state = InstanceState.TERMINATED if error else InstanceState.STOPPING
        if not error:
            self.clock.at(self.clock.now() + self.stop_s, lambda: self._stopped(instance))
        self._drop_leftovers(instance)

    def _stopped(self, instance: SimInstance) -> None:
        instance.state = InstanceState.TERMINATED

    def _drop_leftovers(self, instance: SimInstance) -> None:
        for thing in [t for t in self.leftovers.values() if t.attached_to == instance.id]:
            if self.leaks > 0:
                self.leaks -= 1
                thing.attached_to = ""
            else:
                del self.leftovers[thing.id]

    def living(self, cluster: str) -> list[SimInstance]:
        """The cluster's instances that have not ended."""
        return [i for i in self.instances.values() if i.ended is None and i.cluster == cluster]

    def listed(self, cluster: str, lag_s: float) -> list[SimInstance]:
        """The cluster's instances that a listing shows: not those of the last ``lag_s``, nor those long gone."""
        now = self.clock.now()
        return [
            i
            for i in self.instances.values()
            if i.cluster == cluster
            and (i.launched <= now - lag_s or lag_s == 0)
            and (i.ended is None or i.ended + self.stop_s + self.linger_s > now)
        ]
