"""One chain of policies over one window: a queue, a site, clouds, and the decision code, on a virtual clock.

The decision code is burstd's own (core.chain). It is asked when a job that was submitted has to wait or one has lost
its machine, and when an offer turned out to be sold out; a tick after a machine came up or fell idle, and tick by tick
while machines are idle, or jobs wait for which none is on its way (of those the youngest sets the pace: a tenth of its
age, between one tick and ten).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from math import inf
from time import process_time

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job_history import EndedJob, History
from burstd.domain.snapshot import Progress, Snapshot
from burstd.planner.demand.stuck_jobs import covered_since, tried_since
from burstd.planner.policy_chain import Memory, make_target
from burstd.planner.timeouts import Tuning
from burstd.simulate.report.result import JobRun, Sample
from burstd.simulate.traces.window import DAY_S, ReplayJob, Workload
from burstd.simulate.world.fleet import CLUSTER, Fleet, Machine
from burstd.simulate.world.market import SITE_PARTITION, Market, Weather
from burstd.simulate.world.queue import Queue
from burstd.simulate.world.site import Site
from burstd.simulate.world.slurm_view import Seen

SAMPLES = 336
"""In the window; as far apart after it."""
GAP_S = 15.0
"""Least time between two decisions: jobs submitted together are looked at together, as by the daemon."""
SLOWEST = 10
"""Ticks from one look at jobs that have waited for long to the next."""
PATIENCE_S = 32 * DAY_S
"""So long policies may let jobs wait with nothing else going on: until the next month's budget."""


class ReplayError(Exception):
    """The replay cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class World:
    """What a workload is replayed against. Lengths of time in seconds."""

    nodes: int
    size: int
    """GPUs (or CPUs) of each node of the site."""
    market: Market
    staging_s: float = 120.0
    """From a job's submission until its input is in the store; a job without it starts on the site only."""
    tick_s: float = 60.0
    seed: int = 1
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(slots=True)
class _Life:
    """A job that was submitted."""

    job: ReplayJob
    started: float = inf
    ended: float = inf
    places: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()
    lost: int = 0
    """Runs that ended with their machine."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a run has come to, before it is counted."""

    fleet: Fleet
    jobs: tuple[JobRun, ...]
    timeline: tuple[Sample, ...]
    impossible: int
    site_unit_s: float
    """Units of the site in use over time, within the window."""
    decisions: int
    elapsed_s: float


class Run:
    """One replay. To be run once."""

    def __init__(
        self, workload: Workload, world: World, policies: Sequence[Policy] | None, history: History | None = None
    ) -> None:
        """``policies`` None: there is no cloud."""
        self._workload = workload
        self._world = world
        self._policies = policies
        market = world.market if policies is not None else Market((), ())
        self._site = Site(world.nodes, world.size)
        weather = Weather(market.wares, world.seed, workload.window.start)
        self.fleet = Fleet(market, weather, workload.unit, world.seed)
        self._queue = Queue(self._site, self.fleet, world.staging_s, self._started)
        burst = dict.fromkeys(partition for pool in market.pools for partition in pool.partitions)
        self._seen = Seen(self._site, workload.unit, (SITE_PARTITION, *burst), world.staging_s if burst else 0.0)
        self._history = history if history is not None else History()
        self._progress = Progress()
        self._interruptions: dict[str, frozenset[int]] = {}
        self._lives: dict[int, _Life] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self._next_look = inf
        self._ask = self._freed = False
        self._served: list[int] = []
        """Jobs for which machines have come up in this moment."""
        self._decided = -inf
        self._now = self._stirred = workload.window.start
        self._sampled = workload.window.start
        self._timeline: list[Sample] = []
        self._site_unit_s = 0.0
        self._memory = Memory()
        self._decisions = 0

    def run(self) -> Course:
        """Until every job has ended, or nothing will start those that are left. Raises ReplayError."""
        began = process_time()
        possible = [job for job in self._workload.jobs if self._can_ever(job)]
        at = 0
        while True:
            arrival = possible[at].submitted if at < len(possible) else inf
            event = self._events[0][0] if self._events else inf
            now = min(arrival, event, self._next_look)
            if now == inf or (now == self._next_look < min(arrival, event) == inf and self._given_up(now)):
                break
            self._sample_until(now)
            self._now = now
            while self._events and self._events[0][0] <= now:
                self._handle(*heappop(self._events)[2:])
            first = at
            while at < len(possible) and possible[at].submitted <= now:
                self._submit(possible[at])
                at += 1
            self._start_jobs(possible[first:at])
            if self._policies is None:
                continue
            if self._ask:
                self._next_look = min(self._next_look, max(now, self._decided + GAP_S))
            if self.fleet.idle or any(number in self._queue.waiting for number in self._served):
                self._next_look = min(self._next_look, now + self._world.tick_s)
            self._served.clear()
            if now >= self._next_look:
                self._decide(self._policies)
        self._sample_until(self._now)
        self.fleet.settle(self._now)
        jobs = tuple(self._job_run(life) for life in self._lives.values())
        impossible = len(self._workload.jobs) - len(possible)
        return Course(
            self.fleet, jobs, tuple(self._timeline), impossible, self._site_unit_s, self._decisions,
            process_time() - began,
        )  # fmt: skip

    def _can_ever(self, job: ReplayJob) -> bool:
        """The same without a cloud, so that chains are compared over the same jobs."""
        market, unit = self._world.market, self._workload.unit
        return self._site.can_ever(job.nodes, job.units) or market.can_ever(job.nodes, job.units, unit)

    def _given_up(self, now: float) -> bool:
        """Nothing has happened for so long, and nothing is to come, but that policies are asked again and again."""
        return not self._queue.waiting or now - self._stirred > PATIENCE_S

    # Events.

    def _push(self, at: float, what: str, subject: object) -> None:
        self._count += 1
        heappush(self._events, (at, self._count, what, subject))

    def _handle(self, what: str, subject: object) -> None:
        if isinstance(subject, Machine):
            if self.fleet.machines.get(subject.claim.slot) is subject:
                self._booted(subject) if what == "boot" else self._lost(subject)
        elif isinstance(subject, tuple):
            number, lost = subject
            if self._lives[number].lost == lost:
                self._ended(self._lives[number])
        elif isinstance(subject, ReplayJob) and subject.number in self._queue.waiting:
            self._seen.staged(subject)
            # It may start on a machine that is open for others.
            self._freed = self._freed or bool(self.fleet.machines)
            self._serve_late(subject)

    def _serve_late(self, job: ReplayJob) -> None:
        """A machine of its own may have waited for its input."""
        word = str(job.number)
        for machine in list(self.fleet.machines.values()):
            claim = machine.claim
            if claim.private and claim.state is ClaimState.OPEN and word in claim.jobs:
                self._serve([machine] if not claim.gang else self._gang_open(claim.gang))
                return

    def _gang_open(self, word: str) -> list[Machine]:
        return [m for m in self.fleet.machines.values() if m.claim.gang == word and m.claim.state is ClaimState.OPEN]

    def _submit(self, job: ReplayJob) -> None:
        self._lives[job.number] = _Life(job)
        self._queue.add(job)
        self._seen.pending(job)

    def _start_jobs(self, fresh: Sequence[ReplayJob]) -> None:
        if self._freed:
            self._freed = False
            self._queue.work_off(self._now)
        else:
            for job in fresh:
                self._queue.try_one(job, self._now)
        for job in fresh:
            if job.number in self._queue.waiting:
                self._ask = True
                if self._world.staging_s and self._policies is not None:
                    self._push(job.submitted + self._world.staging_s, "staged", job)

    def _started(self, job: ReplayJob, places: tuple[int, ...], slots: tuple[str, ...]) -> None:
        """The queue has started a job."""
        life = self._lives[job.number]
        life.started, life.places, life.slots, self._stirred = self._now, places, slots, self._now
        self._seen.running(job, self._now, places, slots)
        self._push(self._now + job.run_s, "end", (job.number, life.lost))
        if job.nodes > 1:
            for machine in self.fleet.gang(str(job.number)):
                # What was kept for it is not needed for it any more.
                if machine.claim.state is ClaimState.READY:
                    self._open(machine)

    def _ended(self, life: _Life) -> None:
        job, now = life.job, self._now
        life.ended = now
        self._leave_site(life)
        own = [one for slot in life.slots if (one := self.fleet.machines[slot]).claim.private]
        self.fleet.give(life.slots, job.number, now)
        if own:
            self._serve(own)
        row = self._seen.over(job)
        self._history = self._history.with_ended(
            (
                EndedJob(
                    row.id, row.user, row.account, row.name, row.partitions, row.nodes, row.cpus,
                    sum(g.count for g in row.gres_per_node) * row.nodes, row.time_limit_s, row.eligible, life.started,
                    now, bool(life.slots),
                ),
            )
        )  # fmt: skip
        self._freed = True

    def _leave_site(self, life: _Life) -> None:
        if life.places:
            job, window = life.job, self._workload.window
            self._site.give(life.places, job.units, life.started + job.limit_s)
            inside = min(self._now, window.end) - max(life.started, window.start)
            self._site_unit_s += max(0.0, inside) * job.total

    def _booted(self, machine: Machine) -> None:
        self.fleet.ready(machine, self._now)
        claim = machine.claim
        group = self.fleet.gang(claim.gang) if claim.gang else [machine]
        numbers = [int(word) for word in claim.jobs]
        job = next((self._queue.waiting[n] for n in numbers if n in self._queue.waiting), None)
        if job is not None and any(one.claim.state is not ClaimState.READY for one in group):
            return
        group = [one for one in group if one.claim.state is ClaimState.READY]
        for one in group:
            self._open(one)
        if claim.private:
            self._serve(group)
        elif job is not None and self._bound(job, group):
            self._bind(job, group)
        self._served += numbers

    def _bind(self, job: ReplayJob, group: Sequence[Machine]) -> None:
        slots = tuple(one.claim.slot for one in group[: job.nodes])
        self._queue.remove(job)
        self.fleet.take(slots, job, self._now)
        self._started(job, (), slots)

    def _serve(self, group: Sequence[Machine]) -> None:
        """Starts jobs on machines that are for them only, and ends these with the last of them, as core.private."""
        own = [j for word in group[0].claim.jobs if (j := self._queue.waiting.get(int(word))) is not None]
        for job in own:
            room = [one for one in group if one.free >= job.units]
            if len(room) >= job.nodes and self._now >= job.submitted + self._world.staging_s:
                self._bind(job, room)
        if not any(job.number in self._queue.waiting for job in own):
            for one in group:
                if not one.jobs:
                    self.fleet.release(one, self._now)

    def _bound(self, job: ReplayJob, group: Sequence[Machine]) -> bool:
        """Whether these machines are given to the job alone, as core.gate does it."""
        if len(group) < job.nodes or any(one.free < job.units for one in group):
            return False
        if self._now < job.submitted + self._world.staging_s:
            return False
        ahead = sum(1 for number in self._queue.waiting if number < job.number)
        return job.nodes > 1 or ahead > self._world.tuning.bind_depth

    def _open(self, machine: Machine) -> None:
        self.fleet.open(machine, self._now)
        self._freed = True

    def _lost(self, machine: Machine) -> None:
        for number in self.fleet.lose(machine, self._now):
            life = self._lives[number]
            word = str(number)
            self._interruptions[word] = self._interruptions.get(word, frozenset()) | {life.lost}
            life.lost += 1
            life.started, life.slots = inf, ()
            self._seen.over(life.job)
            self._queue.add(life.job)
            self._seen.pending(life.job, life.lost)
        self._freed = self._ask = True
        self._stirred = self._now

    # Decisions.

    def _decide(self, policies: Sequence[Policy]) -> None:
        """Asks until no offer turns out to be sold out."""
        self._ask, self._decided = False, self._now
        while True:
            self.fleet.make_room(self._queue.wanted)
            snapshot = self._snapshot()
            most = self._world.tuning.spot_interruptions
            target = make_target(snapshot, policies, spot_interruptions=most, memory=self._memory)
            self._decisions += 1
            if target.failed:
                failed = target.failed[0]
                raise ReplayError(f"policy {failed.name} failed {_day(self._now)}: {failed.error}")
            self._remember(snapshot, target)
            if self._apply(target):
                break
        self._next_look = self._when_next(target)

    def _apply(self, target: Target) -> bool:
        """Releases and launches; False: an offer was sold out."""
        by_claim = {machine.claim.id: machine for machine in self.fleet.machines.values()} if target.releases else {}
        for release in target.releases:
            self.fleet.release(by_claim[release.claim_id], self._now)
        done = True
        for want in target.wants:
            made = self.fleet.launch(want, self._now)
            for machine in made:
                self._push(self._now + self.fleet.boot_s(machine), "boot", machine)
                if machine.lost_at < inf:
                    self._push(machine.lost_at, "lost", machine)
            done = done and bool(made)
        if target.wants or target.releases:
            self._stirred = self._now
        return done

    def _remember(self, snapshot: Snapshot, target: Target) -> None:
        progress = self._progress
        if target.placed or progress.covered_since or progress.tried_since:
            covered = covered_since(progress.covered_since, snapshot, target)
            tried = tried_since(progress.tried_since, snapshot, target)
            self._progress = Progress(covered_since=covered, tried_since=tried)

    def _snapshot(self) -> Snapshot:
        fleet, now = self.fleet, self._now
        return Snapshot(
            now=now, cluster=CLUSTER, pools=dict(fleet.slots.pools),
            slurm=self._seen.view(self._queue, fleet.slots.nodes, now), clouds=fleet.clouds, claims=fleet.claims(),
            breakers=fleet.breakers, launched=fleet.launched(now), gone=fleet.gone(now),
            spent=fleet.spent.spent(),
            progress=Progress(
                booted=dict(fleet.booted), covered_since=self._progress.covered_since,
                tried_since=self._progress.tried_since,
            ),
            data=dict(self._seen.data), interruptions=dict(self._interruptions), history=self._history,
        )  # fmt: skip

    def _when_next(self, target: Target) -> float:
        tick, now = self._world.tick_s, self._now
        look = target.look_at
        if self.fleet.idle:
            look = min(look, now + tick)
        closed = [b.until for b in self.fleet.breakers if b.until > now]
        coming = {word for want in target.wants for word in want.jobs}
        for number, job in reversed(self._queue.waiting.items()):
            if str(number) not in coming and str(number) not in target.placed:
                look = min(look, now + min(max(tick, 0.1 * (now - job.submitted)), SLOWEST * tick), *closed)
                break
        return max(look, now + 1.0)

    # What it has come to.

    def _sample_until(self, now: float) -> None:
        window = self._workload.window
        step = (window.end - window.start) / SAMPLES
        while self._sampled <= now and (self._sampled <= window.end or self._queue.waiting):
            fleet, busy = self.fleet, len(self.fleet.machines)
            busy = sum(1 for machine in fleet.machines.values() if machine.jobs)
            waiting = len(self._queue.waiting)
            self._timeline.append(Sample(self._sampled, waiting, self._site.busy, len(fleet.machines), busy))
            self._sampled += step

    def _job_run(self, life: _Life) -> JobRun:
        job = life.job
        return JobRun(
            job.id, job.submitted, life.started, life.ended, job.total, job.nodes, bool(life.slots), life.lost
        )


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("on %Y-%m-%d at %H:%M:%S UTC of the trace")
