"""The machines of the replay: claims from their launch to their end, as Slurm and burstd see them, and their bill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from burstd.domain.billing.settlements import SpendTotals
from burstd.domain.billing.use import WHOLE, ClaimRun, Payer, charges_by_use, payers_made_for
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import Want
from burstd.domain.snapshot import CircuitBreaker, CloudView, EndedClaim, RecentLaunch
from burstd.planner.offers.offers import alternative_offers, breakers_closed_by, next_breaker
from burstd.planner.offers.planned_claim import planned_claim
from burstd.simulate.traces.window import HOUR_S, ReplayJob, Unit, seeded_random
from burstd.simulate.world.market import Market, StockoutModel, size_of
from burstd.simulate.world.slots import SimulatedSlots

CLUSTER = "replay"
REMEMBERED_BOOTS = 20
"""So many of a pool's latest boots are kept in mind, as by the daemon."""


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    """One life of one machine. Units are GPUs or CPUs."""

    claim: Claim
    size: int
    free: int
    jobs: dict[int, tuple[int, float, Payer]] = field(default_factory=dict)
    """Units, start and who is charged, by job."""
    runs: list[ClaimRun] = field(default_factory=list)
    """Of jobs that are over."""
    exclusive_user: bool = False
    """It runs jobs of one user at a time."""
    user: str = ""
    """Whose job came last."""
    busy_from: float = 0.0
    last_busy: float = 0.0
    lost_at: float = float("inf")

    def admits(self, user: str) -> bool:
        """True where its users do not keep a job of this one off."""
        return not (self.exclusive_user and self.jobs) or self.user == user


@dataclass(slots=True)
class FleetBill:
    """What was paid for, and what of it was used. Seconds, of machines and of their units."""

    machine_s: float = 0.0
    busy_machine_s: float = 0.0
    unit_s: float = 0.0
    busy_unit_s: float = 0.0
    cost: Decimal = Decimal(0)
    launches: int = 0
    interruptions: int = 0
    stockouts: int = 0


class CloudFleet:
    """All machines, and the slots that they have in Slurm."""

    def __init__(self, market: Market, stockouts: StockoutModel, unit: Unit, seed: int) -> None:
        self.bill = FleetBill()
        self.slots = SimulatedSlots(market.pools, unit)
        self.users_matter = any(pool.exclusive_user for pool in market.pools)
        self.machines: dict[str, SimulatedMachine] = {}
        """By slot."""
        self.breakers: tuple[CircuitBreaker, ...] = ()
        self.booted: dict[str, tuple[float, ...]] = {}
        self.idle: dict[str, None] = {}
        """Slots of open machines without a job."""
        offers: dict[str, list[Offer]] = {}
        for ware in market.market_offers:
            offers.setdefault(ware.offer.provider, []).append(ware.offer)
        self.clouds = {provider: CloudView(tuple(some), ()) for provider, some in offers.items()}
        self._stockouts = stockouts
        self._seed = seed
        self._sizes = {pool.name: size_of(pool.shape, unit) for pool in market.pools}
        self._by_free: list[dict[str, None]] = [{} for _ in range(max(self._sizes.values(), default=0) + 1)]
        self._launched: deque[RecentLaunch] = deque()
        self._gone: deque[EndedClaim] = deque()
        self.spent = SpendTotals()

    # What Slurm's queue asks (queue.Machines).

    def find_slots(self, job: ReplayJob) -> tuple[str, ...]:
        """Open machines with room for a job, the fullest first; empty: there are not so many."""
        found: list[str] = []
        for slots in self._by_free[job.units :]:
            for slot in slots:
                if self.users_matter and not self.machines[slot].admits(job.user):
                    continue
                found.append(slot)
                if len(found) == job.nodes:
                    return tuple(found)
        return ()

    def allocate(self, slots: tuple[str, ...], job: ReplayJob, now: float) -> None:
        """Puts a job there."""
        for slot in slots:
            machine = self.machines[slot]
            if not machine.jobs:
                machine.busy_from = now
                self.idle.pop(slot, None)
            machine.jobs[job.number] = (job.units, now, Payer(str(job.number), job.user, job.account))
            machine.user = job.user
            self._set_free(machine, machine.free - job.units)

    def deallocate(self, slots: Iterable[str], number: int, now: float) -> None:
        """Takes it away again."""
        for slot in slots:
            machine = self.machines[slot]
            units, since, payer = machine.jobs.pop(number)
            share = min(WHOLE, units * WHOLE // machine.size)
            machine.runs.append(ClaimRun(machine.claim.id, payer, since, max(1, share), now))
            self.bill.busy_unit_s += units * (now - since)
            machine.last_busy = now
            if not machine.jobs:
                self.bill.busy_machine_s += now - machine.busy_from
                self.idle[slot] = None
            self._set_free(machine, machine.free + units)

    # What the decision wants.

    def launch(self, want: Want, now: float) -> list[SimulatedMachine]:
        """The machines of a want: all of them, or none where every offer is sold out. Breakers are set as by burstd."""
        pool = self.slots.pools[want.pool]
        for offer in (want.offers[0], *alternative_offers(pool, want.offers)):
            if self._stockouts.is_sold_out(offer, now):
                self.bill.stockouts += 1
                self._record_failure(offer, "capacity", now, "sold out")
                continue
            mended = breakers_closed_by(self.breakers, offer, ready=False) if self.breakers else ()
            self.breakers = tuple(b for b in self.breakers if b not in mended)
            return [self._launch(want, slot, offer, now) for slot in want.slots]
        return []

    def _launch(self, want: Want, slot: str, offer: Offer, now: float) -> SimulatedMachine:
        self.bill.launches += 1
        claim = replace(
            planned_claim(want, slot, offer, CLUSTER, now), id=f"claim-{self.bill.launches}", state=ClaimState.BOOTING,
            instance_id=f"machine-{self.bill.launches}", launch_called=now, billed_from=now, attempts=1,
        )  # fmt: skip
        size = self._sizes[want.pool]
        machine = SimulatedMachine(claim, size, size, exclusive_user=self.slots.pools[want.pool].exclusive_user)
        losses = self._stockouts.market_offer(offer).losses_per_hour
        if losses:
            machine.lost_at = now + seeded_random(self._seed, claim.id).expovariate(losses / HOUR_S)
        self.machines[slot] = machine
        self._launched.append(RecentLaunch(now, want.pool, offer.provider, want.users))
        return machine

    def boot_s(self, machine: SimulatedMachine) -> float:
        """How long it takes to boot."""
        return self._stockouts.market_offer(machine.claim.offer).boot_s

    def mark_ready(self, machine: SimulatedMachine, now: float) -> None:
        """It has booted; nobody may use it yet."""
        claim = machine.claim
        self.booted[claim.pool] = (*self.booted.get(claim.pool, ()), now - claim.created)[-REMEMBERED_BOOTS:]
        if self.breakers:
            mended = breakers_closed_by(self.breakers, claim.offer, ready=True)
            self.breakers = tuple(b for b in self.breakers if b not in mended)
        self._set_state(machine, ClaimState.READY, now)

    def put_in_service(self, machine: SimulatedMachine, now: float) -> None:
        """Slurm may put jobs on it; where it is for its own jobs only, those that are bound to it."""
        self._set_state(machine, ClaimState.IN_SERVICE, now)
        machine.claim = replace(machine.claim, in_service_from=now)
        self.idle[machine.claim.slot] = None
        if not machine.claim.dedicated:
            self._by_free[machine.free][machine.claim.slot] = None
        self._set_free(machine, machine.free)

    def gang_not_in_service(self, gang_name: str) -> list[SimulatedMachine]:
        """Machines of a gang that are not open yet."""
        return [
            m
            for m in self.machines.values()
            if m.claim.gang == gang_name and m.claim.state is not ClaimState.IN_SERVICE
        ]

    def release(self, machine: SimulatedMachine, now: float) -> None:
        """Ends an idle machine."""
        self._terminate(machine, now)

    def interrupt(self, machine: SimulatedMachine, now: float) -> list[int]:
        """The cloud takes it back: the jobs that were on it, which have left all their other machines as well."""
        self.bill.interruptions += 1
        self._record_failure(machine.claim.offer, "interrupted", now, "taken back")
        lost = list(machine.jobs)
        for number in lost:
            self.deallocate([slot for slot, other in self.machines.items() if number in other.jobs], number, now)
        self._terminate(machine, now)
        return lost

    def terminate_all(self, now: float) -> None:
        """Ends what is left when the replay is over."""
        for machine in list(self.machines.values()):
            for number in list(machine.jobs):
                self.deallocate([machine.claim.slot], number, now)
            self._terminate(machine, now)

    # What the snapshot shows.

    def claims(self) -> tuple[Claim, ...]:
        """All that live."""
        return tuple(machine.claim for machine in self.machines.values())

    def launched(self, now: float) -> tuple[RecentLaunch, ...]:
        """Launches of the last hour."""
        while self._launched and self._launched[0].at <= now - HOUR_S:
            self._launched.popleft()
        return tuple(self._launched)

    def gone(self, now: float) -> tuple[EndedClaim, ...]:
        """Claims that ended within the last hour."""
        while self._gone and self._gone[0].at <= now - HOUR_S:
            self._gone.popleft()
        return tuple(self._gone)

    def resize_pools(self, wanted: Mapping[int, int]) -> None:
        """Sees to it that pools that grow have slots for all nodes that are waited for, by their units."""
        claimed: dict[str, int] = dict.fromkeys(self._sizes, 0)
        for machine in self.machines.values():
            claimed[machine.claim.pool] += 1
        self.slots.resize_pools(wanted, claimed, self.machines)

    def _set_state(self, machine: SimulatedMachine, state: ClaimState, now: float) -> None:
        machine.claim = replace(machine.claim, state=state, since=now)

    def _set_free(self, machine: SimulatedMachine, free: int) -> None:
        slot = machine.claim.slot
        if not machine.claim.dedicated:
            del self._by_free[machine.free][slot]
            self._by_free[free][slot] = None
        machine.free = free
        self.slots.mark_in_service(slot, machine.claim.pool, machine.size - free, machine.last_busy)

    def _terminate(self, machine: SimulatedMachine, now: float) -> None:
        claim = machine.claim
        slot = claim.slot
        del self.machines[slot]
        self.idle.pop(slot, None)
        self._by_free[machine.free].pop(slot, None)
        self.slots.mark_powered_down(slot)
        paid = now - claim.created
        self.bill.machine_s += paid
        self.bill.unit_s += paid * machine.size
        self.bill.cost += claim.offer.price * Decimal(paid) / 3600
        gone = replace(claim, state=ClaimState.GONE, since=now, billed_until=now)
        self._gone.append(EndedClaim(now, gone))
        made_for = payers_made_for(gone, {run.payer.job: run.payer for run in machine.runs})
        states = ((claim.created, ClaimState.LAUNCHING),)
        self.spent.add(charges_by_use(gone, states, machine.runs, made_for, now), claim.offer.currency)

    def _record_failure(self, offer: Offer, cause: str, now: float, error: str) -> None:
        fresh = next_breaker(None, offer, cause, now, error)
        old = next((b for b in self.breakers if (b.key, b.cause) == (fresh.key, cause)), None)
        others = tuple(b for b in self.breakers if b is not old)
        self.breakers = (*others, next_breaker(old, offer, cause, now, error) if old else fresh)
