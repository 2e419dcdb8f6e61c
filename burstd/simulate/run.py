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
from burstd.domain.slurm.job_history import EndedJob, JobHistory
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.planner.demand.stuck_jobs import stuck_on_burst_since, stuck_since
from burstd.planner.policy_chain import PlannerCache, make_target
from burstd.planner.timeouts import Tuning
from burstd.simulate.report.result import SimulatedJobRun, TimelineSample
from burstd.simulate.traces.window import DAY_S, ReplayJob, Unit, Workload
from burstd.simulate.world.fleet import CLUSTER, CloudFleet, SimulatedMachine
from burstd.simulate.world.market import SITE_PARTITION, Market, StockoutModel
from burstd.simulate.world.queue import BackfillQueue
from burstd.simulate.world.site import OnPremSite
from burstd.simulate.world.slurm_view import SlurmViewBuilder

TIMELINE_SAMPLES = 336
"""In the window; as far apart after it."""
MIN_DECISION_INTERVAL_S = 15.0
"""Least time between two decisions: jobs submitted together are looked at together, as by the daemon."""
MAX_INTERVAL_TICKS = 10
"""Ticks from one look at jobs that have waited for long to the next."""
MAX_INACTIVITY_S = 32 * DAY_S
"""So long policies may let jobs wait with nothing else going on: until the next month's budget."""


class ReplayError(Exception):
    """The replay cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a workload is replayed against. Lengths of time in seconds."""

    nodes: int
    node_size: int
    """GPUs (or CPUs) of each node of the site."""
    market: Market
    staging_s: float = 120.0
    """From a job's submission until its input is in the store; a job without it starts on the site only."""
    tick_s: float = 60.0
    seed: int = 1
    tuning: Tuning = field(default_factory=Tuning)

    def can_run(self, job: ReplayJob, unit: Unit) -> bool:
        """Whether the site or some pool ever can; the same without a cloud, so that chains have the same jobs."""
        on_site = job.nodes <= self.nodes and job.units <= self.node_size
        return on_site or self.market.some_pool_fits(job.nodes, job.units, unit)


@dataclass(slots=True)
class _SubmittedJob:
    """A job that was submitted."""

    job: ReplayJob
    started: float = inf
    ended: float = inf
    site_nodes: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()
    interruptions: int = 0
    """Runs that ended with their machine."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What a run has come to, before it is counted."""

    fleet: CloudFleet
    jobs: tuple[SimulatedJobRun, ...]
    timeline: tuple[TimelineSample, ...]
    impossible: int
    site_unit_s: float
    """Units of the site in use over time, within the window."""
    decisions: int
    elapsed_s: float


class ReplayRun:
    """One replay. To be run once."""

    def __init__(
        self,
        workload: Workload,
        scenario: Scenario,
        policies: Sequence[Policy] | None,
        history: JobHistory | None = None,
    ) -> None:
        """``policies`` None: there is no cloud."""
        self._workload = workload
        self._scenario = scenario
        self._policies = policies
        market = scenario.market if policies is not None else Market((), ())
        self._site = OnPremSite(scenario.nodes, scenario.node_size)
        stockouts = StockoutModel(market.market_offers, scenario.seed, workload.window.start)
        self.fleet = CloudFleet(market, stockouts, workload.unit, scenario.seed)
        self._queue = BackfillQueue(self._site, self.fleet, scenario.staging_s, self._started)
        burst = dict.fromkeys(partition for pool in market.pools for partition in pool.partitions)
        self._slurm_view = SlurmViewBuilder(
            self._site, workload.unit, (SITE_PARTITION, *burst), scenario.staging_s if burst else 0.0
        )
        self._history = history if history is not None else JobHistory()
        self._progress = RuntimeState()
        self._interruptions: dict[str, frozenset[int]] = {}
        self._lives: dict[int, _SubmittedJob] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self._next_decision = inf
        self._decision_due = self._capacity_freed = False
        self._served_jobs: list[int] = []
        """Jobs for which machines have come up in this moment."""
        self._decided = -inf
        self._now = self._last_activity = workload.window.start
        self._sampled = workload.window.start
        self._timeline: list[TimelineSample] = []
        self._site_unit_s = 0.0
        self._memory = PlannerCache()
        self._decisions = 0

    def run(self) -> ReplayOutcome:
        """Until every job has ended, or nothing will start those that are left. Raises ReplayError."""
        began = process_time()
        possible = [job for job in self._workload.jobs if self._scenario.can_run(job, self._workload.unit)]
        at = 0
        while True:
            arrival = possible[at].submitted if at < len(possible) else inf
            event = self._events[0][0] if self._events else inf
            now = min(arrival, event, self._next_decision)
            if now == inf or (now == self._next_decision < min(arrival, event) == inf and self._given_up(now)):
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
            if self._decision_due:
                self._next_decision = min(self._next_decision, max(now, self._decided + MIN_DECISION_INTERVAL_S))
            if self.fleet.idle or any(number in self._queue.waiting for number in self._served_jobs):
                self._next_decision = min(self._next_decision, now + self._scenario.tick_s)
            self._served_jobs.clear()
            if now >= self._next_decision:
                self._decide(self._policies)
        self._sample_until(self._now)
        self.fleet.terminate_all(self._now)
        jobs = tuple(self._job_run(life) for life in self._lives.values())
        impossible = len(self._workload.jobs) - len(possible)
        return ReplayOutcome(
            self.fleet, jobs, tuple(self._timeline), impossible, self._site_unit_s, self._decisions,
            process_time() - began,
        )  # fmt: skip

    def _given_up(self, now: float) -> bool:
        """Nothing has happened for so long, and nothing is to come, but that policies are asked again and again."""
        return not self._queue.waiting or now - self._last_activity > MAX_INACTIVITY_S

    # Events.

    def _push(self, at: float, what: str, subject: object) -> None:
        self._count += 1
        heappush(self._events, (at, self._count, what, subject))

    def _handle(self, what: str, subject: object) -> None:
        if isinstance(subject, SimulatedMachine):
            if self.fleet.machines.get(subject.claim.slot) is subject:
                self._booted(subject) if what == "boot" else self._interrupted(subject)
        elif isinstance(subject, tuple):
            number, lost = subject
            if self._lives[number].interruptions == lost:
                self._ended(self._lives[number])
        elif isinstance(subject, ReplayJob) and subject.number in self._queue.waiting:
            self._slurm_view.mark_staged(subject)
            # It may start on a machine that is open for others.
            self._capacity_freed = self._capacity_freed or bool(self.fleet.machines)
            self._start_after_staging(subject)

    def _start_after_staging(self, job: ReplayJob) -> None:
        """A machine of its own may have waited for its input."""
        word = str(job.number)
        for machine in list(self.fleet.machines.values()):
            claim = machine.claim
            if claim.dedicated and claim.state is ClaimState.IN_SERVICE and word in claim.jobs:
                self._start_on_dedicated([machine] if not claim.gang else self._gang_in_service(claim.gang))
                return

    def _gang_in_service(self, word: str) -> list[SimulatedMachine]:
        return [
            m for m in self.fleet.machines.values() if m.claim.gang == word and m.claim.state is ClaimState.IN_SERVICE
        ]

    def _submit(self, job: ReplayJob) -> None:
        self._lives[job.number] = _SubmittedJob(job)
        self._queue.add(job)
        self._slurm_view.add_pending(job)

    def _start_jobs(self, fresh: Sequence[ReplayJob]) -> None:
        if self._capacity_freed:
            self._capacity_freed = False
            self._queue.backfill_pass(self._now)
        else:
            for job in fresh:
                self._queue.start_if_possible(job, self._now)
        for job in fresh:
            if job.number in self._queue.waiting:
                self._decision_due = True
                if self._scenario.staging_s and self._policies is not None:
                    self._push(job.submitted + self._scenario.staging_s, "staged", job)

    def _started(self, job: ReplayJob, site_nodes: tuple[int, ...], slots: tuple[str, ...]) -> None:
        """The queue has started a job."""
        life = self._lives[job.number]
        life.started, life.site_nodes, life.slots, self._last_activity = self._now, site_nodes, slots, self._now
        self._slurm_view.mark_running(job, self._now, site_nodes, slots)
        self._push(self._now + job.run_s, "end", (job.number, life.interruptions))
        if job.nodes > 1:
            for machine in self.fleet.gang_not_in_service(str(job.number)):
                # What was kept for it is not needed for it any more.
                if machine.claim.state is ClaimState.READY:
                    self._put_in_service(machine)

    def _ended(self, life: _SubmittedJob) -> None:
        job, now = life.job, self._now
        life.ended = now
        self._leave_site(life)
        own = [one for slot in life.slots if (one := self.fleet.machines[slot]).claim.dedicated]
        self.fleet.deallocate(life.slots, job.number, now)
        if own:
            self._start_on_dedicated(own)
        row = self._slurm_view.remove_ended(job)
        self._history = self._history.with_ended(
            (
                EndedJob(
                    row.id, row.user, row.account, row.name, row.partitions, row.nodes, row.cpus,
                    sum(g.count for g in row.gres_per_node) * row.nodes, row.time_limit_s, row.eligible, life.started,
                    now, bool(life.slots),
                ),
            )
        )  # fmt: skip
        self._capacity_freed = True

    def _leave_site(self, life: _SubmittedJob) -> None:
        if life.site_nodes:
            job, window = life.job, self._workload.window
            self._site.deallocate(life.site_nodes, job.units, life.started + job.limit_s)
            inside = min(self._now, window.end) - max(life.started, window.start)
            self._site_unit_s += max(0.0, inside) * job.total_units

    def _booted(self, machine: SimulatedMachine) -> None:
        self.fleet.mark_ready(machine, self._now)
        claim = machine.claim
        group = self.fleet.gang_not_in_service(claim.gang) if claim.gang else [machine]
        numbers = [int(word) for word in claim.jobs]
        job = next((self._queue.waiting[n] for n in numbers if n in self._queue.waiting), None)
        if job is not None and any(one.claim.state is not ClaimState.READY for one in group):
            return
        group = [one for one in group if one.claim.state is ClaimState.READY]
        for one in group:
            self._put_in_service(one)
        if claim.dedicated:
            self._start_on_dedicated(group)
        elif job is not None and self._may_bind(job, group):
            self._bind(job, group)
        self._served_jobs += numbers

    def _bind(self, job: ReplayJob, group: Sequence[SimulatedMachine]) -> None:
        slots = tuple(one.claim.slot for one in group[: job.nodes])
        self._queue.remove(job)
        self.fleet.allocate(slots, job, self._now)
        self._started(job, (), slots)

    def _start_on_dedicated(self, group: Sequence[SimulatedMachine]) -> None:
        """Starts jobs on machines that are for them only, and ends these with the last of them, as core.private."""
        own = [j for word in group[0].claim.jobs if (j := self._queue.waiting.get(int(word))) is not None]
        for job in own:
            usable = [one for one in group if one.free >= job.units]
            if len(usable) >= job.nodes and self._now >= job.submitted + self._scenario.staging_s:
                self._bind(job, usable)
        if not any(job.number in self._queue.waiting for job in own):
            for one in group:
                if not one.jobs:
                    self.fleet.release(one, self._now)

    def _may_bind(self, job: ReplayJob, group: Sequence[SimulatedMachine]) -> bool:
        """Whether these machines are given to the job alone, as core.gate does it."""
        if len(group) < job.nodes or any(one.free < job.units for one in group):
            return False
        if self._now < job.submitted + self._scenario.staging_s:
            return False
        ahead = sum(1 for number in self._queue.waiting if number < job.number)
        return job.nodes > 1 or ahead > self._scenario.tuning.bind_depth

    def _put_in_service(self, machine: SimulatedMachine) -> None:
        self.fleet.put_in_service(machine, self._now)
        self._capacity_freed = True

    def _interrupted(self, machine: SimulatedMachine) -> None:
        for number in self.fleet.interrupt(machine, self._now):
            life = self._lives[number]
            word = str(number)
            self._interruptions[word] = self._interruptions.get(word, frozenset()) | {life.interruptions}
            life.interruptions += 1
            life.started, life.slots = inf, ()
            self._slurm_view.remove_ended(life.job)
            self._queue.add(life.job)
            self._slurm_view.add_pending(life.job, life.interruptions)
        self._capacity_freed = self._decision_due = True
        self._last_activity = self._now

    # Decisions.

    def _decide(self, policies: Sequence[Policy]) -> None:
        """Asks until no offer turns out to be sold out."""
        self._decision_due, self._decided = False, self._now
        while True:
            self.fleet.resize_pools(self._queue.wanted)
            snapshot = self._snapshot()
            most = self._scenario.tuning.spot_interruptions
            target = make_target(snapshot, policies, spot_interruptions=most, cache=self._memory)
            self._decisions += 1
            if target.failed_policies:
                failed = target.failed_policies[0]
                raise ReplayError(f"policy {failed.name} failed {_day(self._now)}: {failed.error}")
            self._remember(snapshot, target)
            if self._apply(target):
                break
        self._next_decision = self._next_decision_time(target)

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
            self._last_activity = self._now
        return done

    def _remember(self, snapshot: Snapshot, target: Target) -> None:
        progress = self._progress
        if target.placements or progress.stuck_since or progress.stuck_on_burst_since:
            stuck = stuck_since(progress.stuck_since, snapshot, target)
            tried = stuck_on_burst_since(progress.stuck_on_burst_since, snapshot, target)
            self._progress = RuntimeState(stuck_since=stuck, stuck_on_burst_since=tried)

    def _snapshot(self) -> Snapshot:
        fleet, now = self.fleet, self._now
        return Snapshot(
            now=now,
            cluster=CLUSTER,
            pools=dict(fleet.slots.pools),
            slurm=self._slurm_view.build_view(self._queue, fleet.slots.nodes, now),
            clouds=fleet.clouds,
            claims=fleet.claims(),
            breakers=fleet.breakers,
            recent_launches=fleet.launched(now),
            ended_claims=fleet.gone(now),
            spent=fleet.spent.spent(),
            runtime_state=RuntimeState(
                boot_durations=dict(fleet.booted),
                stuck_since=self._progress.stuck_since,
                stuck_on_burst_since=self._progress.stuck_on_burst_since,
            ),
            data=dict(self._slurm_view.pending_inputs),
            interruptions=dict(self._interruptions),
            history=self._history,
        )

    def _next_decision_time(self, target: Target) -> float:
        tick, now = self._scenario.tick_s, self._now
        look = target.wake_at
        if self.fleet.idle:
            look = min(look, now + tick)
        closed = [b.until for b in self.fleet.breakers if b.until > now]
        coming = {word for want in target.wants for word in want.jobs}
        for number, job in reversed(self._queue.waiting.items()):
            if str(number) not in coming and str(number) not in target.placements:
                look = min(look, now + min(max(tick, 0.1 * (now - job.submitted)), MAX_INTERVAL_TICKS * tick), *closed)
                break
        return max(look, now + 1.0)

    # What it has come to.

    def _sample_until(self, now: float) -> None:
        window = self._workload.window
        step = (window.end - window.start) / TIMELINE_SAMPLES
        while self._sampled <= now and (self._sampled <= window.end or self._queue.waiting):
            fleet, busy = self.fleet, len(self.fleet.machines)
            busy = sum(1 for machine in fleet.machines.values() if machine.jobs)
            waiting = len(self._queue.waiting)
            self._timeline.append(TimelineSample(self._sampled, waiting, self._site.busy, len(fleet.machines), busy))
            self._sampled += step

    def _job_run(self, life: _SubmittedJob) -> SimulatedJobRun:
        job = life.job
        return SimulatedJobRun(
            job.id,
            job.submitted,
            life.started,
            life.ended,
            job.total_units,
            job.nodes,
            bool(life.slots),
            life.interruptions,
            life.site_nodes,
        )


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("on %Y-%m-%d at %H:%M:%S UTC of the trace")
