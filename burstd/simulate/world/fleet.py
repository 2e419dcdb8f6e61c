"""The machines of the replay: claims from their launch to their end, as Slurm and burstd see them, and their bill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from burstd.domain.billing.settlements import Sums
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Want
from burstd.domain.snapshot import Breaker, CloudView, Gone, Launched
from burstd.planner.offers.budget_reserve import reserve_of
from burstd.planner.offers.offers import mended_by, next_breaker, others_of
from burstd.simulate.traces.window import HOUR_S, ReplayJob, Unit, seeded
from burstd.simulate.world.market import Market, Weather, size_of
from burstd.simulate.world.slots import Slots

CLUSTER = "replay"
BOOTS = 20
"""So many of a pool's latest boots are kept in mind, as by the daemon."""


@dataclass(slots=True, eq=False)
class Machine:
    """One life of one machine. Units are GPUs or CPUs."""

    claim: Claim
    size: int
    free: int
    jobs: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Units and start by job."""
    busy_from: float = 0.0
    last_busy: float = 0.0
    lost_at: float = float("inf")


@dataclass(slots=True)
class Bill:
    """What was paid for, and what of it was used. Seconds, of machines and of their units."""

    machine_s: float = 0.0
    busy_machine_s: float = 0.0
    unit_s: float = 0.0
    busy_unit_s: float = 0.0
    cost: Decimal = Decimal(0)
    launches: int = 0
    interruptions: int = 0
    stockouts: int = 0


class Fleet:
    """All machines, and the slots that they have in Slurm."""

    def __init__(self, market: Market, weather: Weather, unit: Unit, seed: int) -> None:
        self.bill = Bill()
        self.slots = Slots(market.pools, unit)
        self.machines: dict[str, Machine] = {}
        """By slot."""
        self.breakers: tuple[Breaker, ...] = ()
        self.booted: dict[str, tuple[float, ...]] = {}
        self.idle: dict[str, None] = {}
        """Slots of open machines without a job."""
        offers: dict[str, list[Offer]] = {}
        for ware in market.wares:
            offers.setdefault(ware.offer.provider, []).append(ware.offer)
        self.clouds = {provider: CloudView(tuple(some), ()) for provider, some in offers.items()}
        self._weather = weather
        self._seed = seed
        self._sizes = {pool.name: size_of(pool.shape, unit) for pool in market.pools}
        self._by_free: list[dict[str, None]] = [{} for _ in range(max(self._sizes.values(), default=0) + 1)]
        self._launched: deque[Launched] = deque()
        self._gone: deque[Gone] = deque()
        self.spent = Sums()

    # What Slurm's queue asks (queue.Machines).

    def find(self, nodes: int, units: int) -> tuple[str, ...]:
        """Open machines with room for a job, the fullest first; empty: there are not so many."""
        found: list[str] = []
        for slots in self._by_free[units:]:
            for slot in slots:
                found.append(slot)
                if len(found) == nodes:
                    return tuple(found)
        return ()

    def take(self, slots: tuple[str, ...], job: ReplayJob, now: float) -> None:
        """Puts a job there."""
        for slot in slots:
            machine = self.machines[slot]
            if not machine.jobs:
                machine.busy_from = now
                self.idle.pop(slot, None)
            machine.jobs[job.number] = (job.units, now)
            self._fill(machine, machine.free - job.units)

    def give(self, slots: Iterable[str], number: int, now: float) -> None:
        """Takes it away again."""
        for slot in slots:
            machine = self.machines[slot]
            units, since = machine.jobs.pop(number)
            self.bill.busy_unit_s += units * (now - since)
            machine.last_busy = now
            if not machine.jobs:
                self.bill.busy_machine_s += now - machine.busy_from
                self.idle[slot] = None
            self._fill(machine, machine.free + units)

    # What the decision wants.

    def launch(self, want: Want, now: float) -> list[Machine]:
        """The machines of a want: all of them, or none where every offer is sold out. Breakers are set as by burstd."""
        pool = self.slots.pools[want.pool]
        for offer in (want.offers[0], *others_of(pool, want.offers)):
            if self._weather.sold_out(offer, now):
                self.bill.stockouts += 1
                self._fail(offer, "capacity", now, "sold out")
                continue
            mended = mended_by(self.breakers, offer, ready=False) if self.breakers else ()
            self.breakers = tuple(b for b in self.breakers if b not in mended)
            return [self._launch(want, slot, offer, now) for slot in want.slots]
        return []

    def _launch(self, want: Want, slot: str, offer: Offer, now: float) -> Machine:
        self.bill.launches += 1
        reserved, egress = reserve_of(want, offer, ())
        claim = Claim(
            id=f"claim-{self.bill.launches}", cluster=CLUSTER, pool=want.pool, slot=slot, offer=offer, cause=want.cause,
            state=ClaimState.BOOTING, created=now, since=now, reason=want.reason, jobs=want.jobs, users=want.users,
            gang=want.gang, instance_id=f"machine-{self.bill.launches}", launch_called=now, billed_from=now, attempts=1,
            accounts=want.accounts, reserved=reserved, egress=egress, alone=want.alone,
        )  # fmt: skip
        size = self._sizes[want.pool]
        machine = Machine(claim, size, size)
        losses = self._weather.ware(offer).losses_per_hour
        if losses:
            machine.lost_at = now + seeded(self._seed, claim.id).expovariate(losses / HOUR_S)
        self.machines[slot] = machine
        self._launched.append(Launched(now, want.pool, offer.provider, want.users))
        return machine

    def boot_s(self, machine: Machine) -> float:
        """How long it takes to boot."""
        return self._weather.ware(machine.claim.offer).boot_s

    def ready(self, machine: Machine, now: float) -> None:
        """It has booted; nobody may use it yet."""
        claim = machine.claim
        self.booted[claim.pool] = (*self.booted.get(claim.pool, ()), now - claim.created)[-BOOTS:]
        if self.breakers:
            mended = mended_by(self.breakers, claim.offer, ready=True)
            self.breakers = tuple(b for b in self.breakers if b not in mended)
        self._turn(machine, ClaimState.READY, now)

    def open(self, machine: Machine, now: float) -> None:
        """Slurm may put jobs on it; where it is for its own jobs only, those that are bound to it."""
        self._turn(machine, ClaimState.OPEN, now)
        machine.claim = replace(machine.claim, opened=now)
        self.idle[machine.claim.slot] = None
        if not machine.claim.private:
            self._by_free[machine.free][machine.claim.slot] = None
        self._fill(machine, machine.free)

    def gang(self, word: str) -> list[Machine]:
        """Machines of a gang that are not open yet."""
        return [m for m in self.machines.values() if m.claim.gang == word and m.claim.state is not ClaimState.OPEN]

    def release(self, machine: Machine, now: float) -> None:
        """Ends an idle machine."""
        self._end(machine, now)

    def lose(self, machine: Machine, now: float) -> list[int]:
        """The cloud takes it back: the jobs that were on it, which have left all their other machines as well."""
        self.bill.interruptions += 1
        self._fail(machine.claim.offer, "interrupted", now, "taken back")
        lost = list(machine.jobs)
        for number in lost:
            self.give([slot for slot, other in self.machines.items() if number in other.jobs], number, now)
        self._end(machine, now)
        return lost

    def settle(self, now: float) -> None:
        """Ends what is left when the replay is over."""
        for machine in list(self.machines.values()):
            for number in list(machine.jobs):
                self.give([machine.claim.slot], number, now)
            self._end(machine, now)

    # What the snapshot shows.

    def claims(self) -> tuple[Claim, ...]:
        """All that live."""
        return tuple(machine.claim for machine in self.machines.values())

    def launched(self, now: float) -> tuple[Launched, ...]:
        """Launches of the last hour."""
        while self._launched and self._launched[0].at <= now - HOUR_S:
            self._launched.popleft()
        return tuple(self._launched)

    def gone(self, now: float) -> tuple[Gone, ...]:
        """Claims that ended within the last hour."""
        while self._gone and self._gone[0].at <= now - HOUR_S:
            self._gone.popleft()
        return tuple(self._gone)

    def make_room(self, wanted: Mapping[int, int]) -> None:
        """Sees to it that pools that grow have slots for all nodes that are waited for, by their units."""
        claimed: dict[str, int] = dict.fromkeys(self._sizes, 0)
        for machine in self.machines.values():
            claimed[machine.claim.pool] += 1
        self.slots.fit(wanted, claimed, self.machines)

    def _turn(self, machine: Machine, state: ClaimState, now: float) -> None:
        machine.claim = replace(machine.claim, state=state, since=now)

    def _fill(self, machine: Machine, free: int) -> None:
        slot = machine.claim.slot
        if not machine.claim.private:
            del self._by_free[machine.free][slot]
            self._by_free[free][slot] = None
        machine.free = free
        self.slots.up(slot, machine.claim.pool, machine.size - free, machine.last_busy)

    def _end(self, machine: Machine, now: float) -> None:
        claim = machine.claim
        slot = claim.slot
        del self.machines[slot]
        self.idle.pop(slot, None)
        self._by_free[machine.free].pop(slot, None)
        self.slots.down(slot)
        paid = now - claim.created
        self.bill.machine_s += paid
        self.bill.unit_s += paid * machine.size
        self.bill.cost += claim.offer.price * Decimal(paid) / 3600
        gone = replace(claim, state=ClaimState.GONE, since=now, billed_until=now)
        self._gone.append(Gone(now, gone))
        self.spent.add(gone)

    def _fail(self, offer: Offer, cause: str, now: float, error: str) -> None:
        fresh = next_breaker(None, offer, cause, now, error)
        old = next((b for b in self.breakers if (b.key, b.cause) == (fresh.key, cause)), None)
        others = tuple(b for b in self.breakers if b is not old)
        self.breakers = (*others, next_breaker(old, offer, cause, now, error) if old else fresh)
