"""One loop: results in, observe, decide, apply. The heart of the daemon, without a thread or a timer of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from burstd.db import Store, StoreError
from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import NodeValidator
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StagingView
from burstd.domain.storage_node import StorageNodeView
from burstd.planner import isolation
from burstd.planner.decide import decide
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.lifecycle.adoption import doubt_alarm, unlisted_slots
from burstd.planner.lifecycle.listing import listing_breakers
from burstd.planner.policy_chain import make_target
from burstd.reconciler.decisions import QuarantiningDecider, RuntimeConfig
from burstd.reconciler.executor import Executor
from burstd.reconciler.machines.adopter import Adopter
from burstd.reconciler.machines.circuit_breakers import CircuitBreakers
from burstd.reconciler.machines.interruptions import Interruptions
from burstd.reconciler.machines.launcher import Launcher
from burstd.reconciler.machines.storage_nodes import StorageNodeNeeds
from burstd.reconciler.machines.terminator import Terminator
from burstd.reconciler.memory import LoopState
from burstd.reconciler.observer import Observer, PollIntervals
from burstd.reconciler.policy_guard import copies_for_trial
from burstd.reconciler.pollers.image_versions import ImageVersionPoller
from burstd.reconciler.pollers.job_comments import JobCommenting
from burstd.reconciler.pollers.job_history import JobHistoryRecorder
from burstd.reconciler.pollers.spot_notices import SpotNoticePoller
from burstd.reconciler.quarantine import LOOP_ERRORS, Quarantine
from burstd.reconciler.what_if import ThrottledWhatIf
from burstd.runtime.clock import HeadClockMonitor, clock_alarm
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

STORE_RETRY_S = 5.0
HOUR_S = 3600.0
_DIGITS = re.compile(r"\d+")
SLEEP_DETECTED_S = 30.0
"""A loop that comes so much later than it was due comes after a sleep."""
LOOP_SUBJECT = "the loop"
PAUSED_KEY = "paused"
"""Key under which the store keeps why an administrator has put burstd on hold; empty: it is not."""


class StagingSubsystem(Protocol):
    """Staging, as the reconciler sees it (burstd.staging)."""

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. ``claims``: storage nodes are among them."""
        ...

    def views(self) -> Mapping[str, StagingView]:
        """How the data of each job stands."""
        ...

    def alarms(self) -> Sequence[str]:
        """What needs a person."""
        ...

    def store_nodes(self) -> Sequence[StorageNodeView]:
        """The stores whose storage node burstd launches, as the settings have them."""
        ...


class _JobOwners:
    """Whose job a subject is. Few are asked for in most loops."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._slurm = snapshot.slurm
        self._users: dict[str, str] | None = None

    def owner(self, subject: str) -> str:
        if self._users is None:
            jobs = () if isinstance(self._slurm, Unavailable) else self._slurm.jobs
            self._users = {f"job:{job.id}": job.user for job in jobs}
        return self._users.get(subject, "")


class Reconciler:
    """Brings what is nearer to what should be, one step a call. All state that matters is in the store."""

    def __init__(
        self,
        *,
        cluster: str,
        config: RuntimeConfig,
        intervals: PollIntervals,
        store: Store,
        scheduler: Scheduler,
        providers: Mapping[str, Provider],
        validator: NodeValidator,
        workers: Workers,
        clock: Clock,
        user_data: Callable[[Pool, str], str],
        new_id: Callable[[], str],
        is_authentic: Callable[[str], bool],
        staging: StagingSubsystem | None = None,
        comments: JobCommenting | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        """``new_id`` gives ids of claims, ``made_here`` tells those it gave; ``holds`` is shared with ``comments``."""
        self.config = config
        self._quarantine = quarantine or Quarantine(clock)
        self._providers = frozenset(providers)
        self._data_views: Mapping[str, StagingView] = {}
        """The last state of staging."""
        self._comments = comments
        self._staging = staging
        self._staging_due = self._due = float("inf")
        self._cluster = cluster
        self._intervals = intervals
        self._store = store
        self._workers = workers
        self._clock = clock
        self._loop_state = LoopState(intervals, clock.now())
        self._what_if = ThrottledWhatIf()
        self._decider = QuarantiningDecider(self._quarantine, self._loop_state, lambda: self.config)
        self._observer = Observer(providers, scheduler, workers, clock, intervals, store.claims, self._quarantine)
        self._validator = validator
        self._storage_needs = StorageNodeNeeds(store)
        self._image_poller = ImageVersionPoller(providers, workers, clock, intervals)
        breakers = CircuitBreakers(store, clock, self._image_poller.versions)
        terminator = Terminator(
            store=store, providers=providers, workers=workers, clock=clock,
            loop_state=self._loop_state, observer=self._observer, quarantine=self._quarantine,
        )  # fmt: skip
        launcher = Launcher(
            cluster=cluster,
            store=store,
            providers=providers,
            workers=workers,
            clock=clock,
            loop_state=self._loop_state,
            user_data=user_data,
            pools=self._pools,
            new_id=new_id,
            breakers=breakers,
            quarantine=self._quarantine,
        )
        self._notice_poller = SpotNoticePoller(providers, workers, clock, intervals, self._quarantine)
        self._history = JobHistoryRecorder(store, self._slots, self._quarantine)
        self._interruptions = Interruptions(store, scheduler, self._loop_state, self._quarantine)
        self._adopter = Adopter(store, new_id, is_authentic)
        self.head_clock = HeadClockMonitor()
        self._executor = Executor(
            store=store,
            scheduler=scheduler,
            providers=providers,
            validator=validator,
            workers=workers,
            clock=clock,
            loop_state=self._loop_state,
            breakers=breakers,
            launcher=launcher,
            terminator=terminator,
            interruptions=self._interruptions,
            adopter=self._adopter,
            head_clock=self.head_clock,
            quarantine=self._quarantine,
            pools=self._pools,
        )
        self.latest: tuple[Snapshot, Plan] | None = None
        """Of the last whole loop."""
        self.queue_is_watched = False
        """True while a wake source reports changes of the queue, which then needs no polling."""
        self.alarm: str = ""
        """What keeps the loop from doing its work; empty: nothing."""

    def _pools(self) -> Mapping[str, Pool]:
        """Of Slurm's nodes and of storage nodes."""
        nodes = self._staging.store_nodes() if self._staging is not None else ()
        return {**self.config.pools, **{node.pool.name: node.pool for node in nodes}}

    def _store_nodes(self, storage: Sequence[Claim], now: float) -> tuple[StorageNodeView, ...]:
        configured = self._staging.store_nodes() if self._staging is not None else ()
        return self._storage_needs.with_needs(
            configured, storage, self._slots(), self._loop_state.affordable_inputs, now
        )

    def _slots(self) -> set[str]:
        return {slot for pool in self.config.pools.values() for slot in pool.slots}

    def step(self) -> float:
        """One loop. Returns seconds until the next is due if nothing wakes it before; 0: at once."""
        self._note_sleep()
        pause = self._step()
        self._due = self._clock.now() + pause
        return pause

    def _note_sleep(self) -> None:
        """After SIGSTOP, or on a machine that was suspended, time without a loop does not count."""
        late = self._clock.now() - self._due
        if late > SLEEP_DETECTED_S:
            log.warning("burstd did not run, and begins to count anew", seconds=round(late))
            self._loop_state.process_start = self._clock.now()

    def _step(self) -> float:
        try:
            changed = self._workers.run_callbacks(self._quarantine_queue)
            self._store.expire_scale_overrides()
            snapshot = self.observe()
            if self._staging is not None:
                snapshot = self._step_staging(snapshot, self._staging)
            self._notice_poller.acknowledge_settled(snapshot)
            snapshot = replace(snapshot, history=self._history.record_ended_jobs(snapshot.slurm))
            snapshot, result = self._decider.decide(snapshot)
            plan = result.plan
            self.latest = (snapshot, plan)
            self._loop_state.stuck_on_burst_since = result.stuck_on_burst_since
            self._loop_state.stuck_since = result.stuck_since
            self._loop_state.boot_durations = result.boot_durations
            self._loop_state.affordable_inputs = result.affordable_inputs
            changed += self._executor.apply(plan)
            changed += self._settle_doubt(snapshot, plan)
            # After the deeds: thousands of new remarks take most of a second, and no launch should wait for them.
            self._store.record_remarks(plan.remarks, _JobOwners(snapshot).owner)
            if self._comments is not None:
                self._comments.step(snapshot, plan)
        except SchedulerUnavailable as error:
            log.warning("slurm stopped answering, the rest of the plan waits", error=str(error))
            return self._intervals.poll_s
        except StoreError as error:
            # Nothing is asked of a cloud that was not written down first: no space means no launch.
            self._raise_alarm(f"the record cannot be written: {error}")
            return STORE_RETRY_S
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm; the next loop tries again
            self._quarantine.add_subject(LOOP_SUBJECT, "step", error)
            self._raise_alarm("; ".join(self._quarantine.alarms()))
            return self._intervals.tick_s
        clock = clock_alarm(self._clock.wall(), self._clock.now())
        failed = [alarm for alarm in (doubt_alarm(snapshot), clock, self.head_clock.why_wrong()) if alarm]
        failed += [*self._quarantine.alarms(), *result.alarms]
        failed += self._staging.alarms() if self._staging is not None else []
        failed += self._notice_poller.alarms()
        failed += self._image_poller.alarms()
        failed += self._validator.alarms()
        self._raise_alarm("; ".join([*failed, *self._loop_state.alarms(self._clock.now())]))
        return 0.0 if changed else self._seconds_until_due(snapshot, plan.target.wake_at)

    def _settle_doubt(self, snapshot: Snapshot, plan: Plan) -> int:
        """Ends the doubt once every machine is seen and adopted. Returns 1 where it ends."""
        if (
            not snapshot.record_doubt
            or plan.actions
            or self._quarantine.alarms()
            or isinstance(snapshot.slurm, Unavailable)
        ):
            return 0
        if unlisted_slots(snapshot):
            return 0
        for cloud in snapshot.clouds.values():
            if (
                isinstance(cloud.instances, Unavailable)
                or cloud.instances_listed <= self._loop_state.process_start + cloud.settle_s
            ):
                return 0
            if isinstance(cloud.offers, Unavailable):
                return 0
        log.warning("every machine is on record again", claims=len(snapshot.claims))
        return self.confirm_record("burstd")

    def confirm_record(self, by: str) -> int:
        """Confirms the record as it is. Returns 1 where it was in doubt."""
        doubt = self._store.metadata(DOUBT_KEY)
        self._store.set_metadata(DOUBT_KEY, "", by)
        return int(bool(doubt))

    def _quarantine_queue(self, queue_name: str, error: Exception) -> None:
        """A result that burstd fails on, and not on one job or node of it."""
        if isinstance(error, LOOP_ERRORS):
            raise error
        provider = queue_name.partition(":")[0]
        self._quarantine.add_subject(
            isolation.cloud_subject(provider) if provider in self._providers else f"the results of {queue_name}",
            "result",
            error,
        )

    def _step_staging(self, snapshot: Snapshot, staging: StagingSubsystem) -> Snapshot:
        """With what staging says. Where burstd fails on it, what it said last counts: nodes with output stay kept."""
        with self._quarantine.contain_errors("step", "staging"):
            self._staging_due = staging.step(snapshot.slurm, (*snapshot.claims, *snapshot.storage_claims))
            nodes = self._store_nodes(snapshot.storage_claims, snapshot.now)
            self._data_views = staging.views()
            return replace(snapshot, data=self._data_views, storage_nodes=nodes)
        self._staging_due = self._clock.now() + self._intervals.tick_s
        # Nothing is let go, or begun, on data that may be out of date.
        return replace(snapshot, data=self._data_views, paused=snapshot.paused or "burstd fails on staging")

    def _raise_alarm(self, alarm: str) -> None:
        # What differs in its numbers only, as costs do, is no news.
        if alarm and _DIGITS.sub("0", alarm) != _DIGITS.sub("0", self.alarm):
            log.error("alarm", alarm=alarm)
        elif self.alarm and not alarm:
            log.info("alarm is over", alarm=self.alarm)
        self.alarm = alarm

    def observe(self) -> Snapshot:
        """Clouds first, then Slurm, the store last: a claim written meanwhile must not count as an orphan."""
        clouds = self._observer.cloud_views()
        slurm = self._observer.read_slurm()
        now = self._clock.now()
        claims = self._store.claims()
        self._observer.start_due_listings(claims)
        self._notice_poller.poll(claims)
        self._image_poller.poll(self._pools().values())
        storage = tuple(c for c in claims if c.cause is Cause.STORAGE)
        bound = {}
        if not isinstance(slurm, Unavailable):
            bound = {r.job_id: r.nodes for r in slurm.reservations if r.job_id}
            for job_id in bound:
                self._loop_state.bound_since.setdefault(job_id, now)
        machines = self._adopter.find_unknown(clouds, claims)
        snapshot = Snapshot(
            now=now,
            cluster=self._cluster,
            pools=self.config.pools,
            slurm=slurm,
            clouds=clouds,
            claims=tuple(c for c in claims if c.cause is not Cause.STORAGE),
            pins=tuple(p for p in self._store.scale_overrides() if p.until is None or p.until > now),
            drained_slots=frozenset(held.slot for held in self._store.drained_slots()),
            breakers=self._store.breakers(),
            recent_launches=self._store.recent_launches(now - HOUR_S),
            paused=self._store.metadata(PAUSED_KEY),
            bound=bound,
            runtime_state=replace(
                self._loop_state.progress(self._observer, now), notices=self._notice_poller.notices_by_claim(claims)
            ),
            interruptions=self._interruptions.interrupted_runs(() if isinstance(slurm, Unavailable) else slurm.jobs),
            data=self._data_views,
            storage_claims=storage,
            storage_nodes=self._store_nodes(storage, now),
            images=self._image_poller.versions(),
            spent=self._store.spending(),
            ended_claims=self._store.gone_claims(now - HOUR_S),
            history=self._history.history(),
            output_retention_cost=self.config.tuning.output_retention_cost,
            unrecorded_instances=machines.unknown,
            foreign_tags=machines.foreign,
            record_doubt=self._store.metadata(DOUBT_KEY),
        )
        self.head_clock.forget_machines({claim.id for claim in claims}, now)
        clock_breakers = self.head_clock.clock_breakers(self._providers, now)
        return replace(snapshot, breakers=(*snapshot.breakers, *listing_breakers(snapshot), *clock_breakers))

    def preview(self) -> tuple[Snapshot, Plan]:
        """What the next loop would do; changes nothing."""
        snapshot = self.observe()
        snapshot = isolation.without_subjects(
            snapshot, isolation.with_affected_nodes(snapshot, self._quarantine.quarantined_subjects(snapshot))
        )
        snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
        return snapshot, decide(snapshot, copies_for_trial(self.config.policies), self.config.tuning)

    def compare_policies(self, policies: Sequence[Policy]) -> tuple[Snapshot, Plan, Plan]:
        """What the next loop would do, and what it would do by these policies; changes nothing."""
        snapshot, plan = self.preview()
        return snapshot, plan, decide(snapshot, policies, self.config.tuning)

    def what_if(self, job_id: str) -> tuple[OptionChange, ...]:
        """The smallest changes with which a job of the last snapshot would start; changes nothing."""
        if self.latest is None:
            return ()
        policies, tuning = copies_for_trial(self.config.policies), self.config.tuning
        return self._what_if.smallest_changes(
            *self.latest,
            job_id,
            lambda seen: make_target(seen, policies, tuning.output_retention_s, tuning.spot_interruptions),
        )

    def _seconds_until_due(self, snapshot: Snapshot, recheck_at: float) -> float:
        """Until the next thing that no hint tells of; ``look_at``: when the next job begins to count."""
        now = self._clock.now()
        # Nobody tells when a node registers or a bound job starts.
        change_is_near = bool(snapshot.bound) or any(
            c.state in (ClaimState.VALIDATING, ClaimState.READY) for c in snapshot.claims
        )
        slurm = (
            self._intervals.slurm_fast_s
            if change_is_near
            else self._intervals.tick_s
            if self.queue_is_watched
            else self._intervals.poll_s
        )
        # A machine may tell Slurm by itself that it ends.
        slurm = min(slurm, self._intervals.notices_s) if any(c.offer.spot for c in snapshot.claims) else slurm
        pins = min((pin.until for pin in snapshot.pins if pin.until is not None), default=float("inf"))
        every = (*snapshot.claims, *snapshot.storage_claims)
        due = min(
            self._loop_state.next_retry(now),
            self._observer.next_listing(every),
            self._notice_poller.next_poll(every),
            self._image_poller.next_poll(),
            pins,
            self._staging_due,
            recheck_at,
            self._storage_needs.next_idle_end(snapshot.storage_claims, snapshot.storage_nodes, now),
            now + slurm,
        )
        return max(0.0, due - now)

    def reload(self, config: RuntimeConfig) -> None:
        """New pools, policies and times from the next loop on."""
        self.config = replace(config)
        self._quarantine.clear()
