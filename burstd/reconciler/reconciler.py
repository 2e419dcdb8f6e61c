"""One loop: results in, observe, decide, apply. The heart of the daemon, without a thread or a timer of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

import structlog

from burstd.db import StoreError
from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import NoAnswer, SchedulerUnavailable
from burstd.domain.job_use import JobUse
from burstd.domain.mounts import MountsView
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.quote import Quote, UsablePartition
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StagingView
from burstd.domain.storage_node import StorageNodeView
from burstd.domain.volume import ON_MACHINE, VolumeNeed
from burstd.planner import isolation
from burstd.planner.decide import decide
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.homes import home_alarms
from burstd.planner.lifecycle.adoption import doubt_alarm, unlisted_slots
from burstd.planner.lifecycle.launch_failures import LAUNCH
from burstd.planner.lifecycle.listing import listing_breakers
from burstd.planner.policy_chain import make_target
from burstd.reconciler.context import LoopContext
from burstd.reconciler.decisions import QuarantiningDecider, RuntimeConfig
from burstd.reconciler.executor import Executor
from burstd.reconciler.machines.idle_gpus import CAUSE as IDLE_GPUS
from burstd.reconciler.machines.place_history import PlaceHistory
from burstd.reconciler.machines.progress import ProgressTable
from burstd.reconciler.machines.storage_nodes import StorageNodeNeeds
from burstd.reconciler.observer import Observer
from burstd.reconciler.policy_guard import copies_for_trial
from burstd.reconciler.pollers.claim_runs import ClaimRunRecorder
from burstd.reconciler.pollers.image_versions import ImageVersionPoller
from burstd.reconciler.pollers.ingress import JobIngress
from burstd.reconciler.pollers.job_comments import JobCommenting
from burstd.reconciler.pollers.job_history import JobHistoryRecorder
from burstd.reconciler.pollers.launch_failures import LaunchFailures
from burstd.reconciler.pollers.life_signs import LifeSigns
from burstd.reconciler.pollers.own_node_faults import OwnNodeFaults
from burstd.reconciler.pollers.project_usage import ProjectUsage
from burstd.reconciler.pollers.projects import ProjectSync
from burstd.reconciler.pollers.site_history import SITE_HISTORY_SUBJECT, SiteHistoryRecorder
from burstd.reconciler.pollers.site_runs import SiteRunRecorder
from burstd.reconciler.pollers.spot_notices import SpotNoticePoller
from burstd.reconciler.quarantine import LOOP_ERRORS
from burstd.reconciler.what_if import ThrottledQuestions
from burstd.runtime.clock import clock_alarm

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

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], leaving: Mapping[str, float]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. ``claims``: storage nodes are among them.

        ``leaving``: by the id in the queue, when running jobs are requeued for others.
        """
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

    def volume_needs(self) -> Mapping[str, VolumeNeed]:
        """The jobs whose turn it is to have their volume, and what their machine must be."""
        ...


class MountSubsystem(Protocol):
    """Mounts, as the reconciler sees them (burstd.mounts)."""

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], *, doubt: bool = False) -> float:
        """Begins what is due; returns when the next is, in burstd's time. ``doubt``: the record may lack machines."""
        ...

    def view(self) -> MountsView:
        """How the mounts stand."""
        ...

    def alarms(self) -> Sequence[str]:
        """What needs a person."""
        ...


class JobUseSubsystem(Protocol):
    """What fetches the figures of jobs, as the reconciler sees it (pollers/job_use.py)."""

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. Raises StoreError."""
        ...

    def uses(self) -> Mapping[str, JobUse]:
        """What running jobs have used so far, without series."""
        ...

    def awaited(self) -> frozenset[str]:
        """Claims whose machine is asked for the last figures of a job."""
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
        context: LoopContext,
        config: RuntimeConfig,
        staging: StagingSubsystem | None = None,
        comments: JobCommenting | None = None,
        mounts: MountSubsystem | None = None,
        projects: ProjectSync | None = None,
        job_use: JobUseSubsystem | None = None,
    ) -> None:
        """Calls nothing yet."""
        self.config = config
        self._context, self._store = context, context.store
        self._staging = staging
        self._mounts = mounts
        self._projects = projects
        self._job_use = job_use
        self._project_usage = ProjectUsage(context.store)
        self._comments = comments
        self._data_views: Mapping[str, StagingView] = {}
        """The last state of staging."""
        self._staging_due = self._mounts_due = self._job_use_due = self._due = float("inf")
        self._process_start = context.clock.now()
        """When the process began, or went on after a sleep."""
        self._questions = ThrottledQuestions()
        self._decider = QuarantiningDecider(context.quarantine, lambda: self.config)
        self._progress = ProgressTable()
        self._observer = Observer(context, self._progress)
        self._storage_needs = StorageNodeNeeds(context.store)
        self._place_history = PlaceHistory(context.store)
        self._own_node_faults = OwnNodeFaults(context.store)
        self._image_poller = ImageVersionPoller(context)
        self._notice_poller = SpotNoticePoller(context)
        self._launch_failures = LaunchFailures(context)
        self._life_signs = LifeSigns(context)
        self._history = JobHistoryRecorder(context, self._slots)
        self._claim_runs = ClaimRunRecorder(context)
        self._site_runs = SiteRunRecorder(context, self._slots)
        self._site_history = SiteHistoryRecorder(context, self._history.take_started, self._claim_runs.running)
        self._executor = Executor(context, self._progress, self._observer, self._image_poller.versions, self._pools,
                                  projects)  # fmt: skip
        self.head_clock = self._executor.head_clock
        self.ingress = JobIngress(context)
        self.latest: tuple[Snapshot, Plan] | None = None
        self.between_decisions = threading.Event()
        """Set while no decision is being made: who can wait lets this thread have the processor."""
        self.between_decisions.set()
        """Of the last whole loop."""
        self.queue_is_watched = False
        """True while a wake source reports changes of the queue, which then needs no polling."""
        self.alarms: tuple[str, ...] = ()
        """What keeps the loop from doing its work, ..."""
        self.alarm: str = ""
        """... and all of it in one line; empty: nothing."""

    def _pools(self) -> Mapping[str, Pool]:
        """Of Slurm's nodes and of storage nodes."""
        nodes = self._staging.store_nodes() if self._staging is not None else ()
        return {**self.config.pools, **{node.pool.name: node.pool for node in nodes}}

    def _store_nodes(self, storage: Sequence[Claim], now: float) -> tuple[StorageNodeView, ...]:
        configured = self._staging.store_nodes() if self._staging is not None else ()
        return self._storage_needs.with_needs(
            configured, storage, self._slots(), self._decider.last.affordable_inputs, now
        )

    def _record_runs(self, snapshot: Snapshot) -> None:
        with self._context.quarantine.contain_errors("step", "runs on machines"):
            self._claim_runs.record(snapshot)
        with self._context.quarantine.contain_errors("step", "runs on the site's nodes"):
            self._site_runs.record(snapshot.slurm, self.config.tuning.site_costs)

    def _slots(self) -> set[str]:
        return {slot for pool in self.config.pools.values() for slot in pool.slots}

    def step(self) -> float:
        """One loop. Returns seconds until the next is due if nothing wakes it before; 0: at once."""
        self._note_sleep()
        pause = self._step()
        self._due = self._context.clock.now() + pause
        return pause

    def _note_sleep(self) -> None:
        """After SIGSTOP, or on a machine that was suspended, time without a loop does not count."""
        late = self._context.clock.now() - self._due
        if late > SLEEP_DETECTED_S:
            log.warning("burstd did not run, and begins to count anew", seconds=round(late))
            self._process_start = self._context.clock.now()

    def _step(self) -> float:
        try:
            changed = self._context.workers.run_callbacks(self._quarantine_queue)
            self._store.check_lock()
            self._store.expire_scale_overrides()
            snapshot = self.observe()
            if self._staging is not None:
                snapshot = self._step_staging(snapshot, self._staging)
            if self._mounts is not None:
                snapshot = self._step_mounts(snapshot, self._mounts)
            if self._projects is not None:
                snapshot = self._step_projects(snapshot, self._projects)
            if self._job_use is not None:
                snapshot = self._step_job_use(snapshot, self._job_use)
            self._notice_poller.acknowledge_settled(snapshot)
            snapshot = self._step_ended_jobs(snapshot)
            self._record_runs(snapshot)
            self.between_decisions.clear()
            try:
                snapshot, result = self._decider.decide(snapshot)
            finally:
                self.between_decisions.set()
            plan = result.plan
            self.latest = (snapshot, plan)
            self._record_use(snapshot, plan)
            with self._context.quarantine.contain_errors("step", "routes"):
                self.ingress.close_finished(snapshot)
            changed += self._executor.apply(plan)
            changed += self._settle_doubt(snapshot, plan)
            # After the deeds: thousands of new remarks take most of a second, and no launch should wait for them.
            # What is said of idle GPUs and failed launches is an event already.
            self._store.record_remarks(plan.remarks, _JobOwners(snapshot).owner, without_event={IDLE_GPUS, LAUNCH})
            if self._comments is not None:
                self._comments.step(snapshot, plan)
            self._life_signs.step(snapshot)
        except SchedulerUnavailable as error:
            log.warning("slurm stopped answering, the rest of the plan waits", error=str(error))
            return self._context.intervals.poll_s
        except StoreError as error:
            # Nothing is asked of a cloud that was not written down first: no space means no launch.
            self._raise_alarms([f"the record cannot be written: {error}"])
            return STORE_RETRY_S
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm; the next loop tries again
            self._context.quarantine.add_subject(LOOP_SUBJECT, "step", error)
            self._raise_alarms(self._context.quarantine.alarms())
            return self._context.intervals.tick_s
        self._raise_alarms(self._found_alarms(snapshot, plan, result.alarms))
        return 0.0 if changed else self._seconds_until_due(snapshot, plan.target.wake_at)

    def _found_alarms(self, snapshot: Snapshot, plan: Plan, of_decision: Sequence[str]) -> list[str]:
        clock = clock_alarm(self._context.clock.wall(), self._context.clock.now())
        failed = [alarm for alarm in (doubt_alarm(snapshot), clock, self.head_clock.why_wrong()) if alarm]
        failed += [*self._context.quarantine.alarms(), *of_decision, *home_alarms(plan.remarks)]
        failed += self._staging.alarms() if self._staging is not None else []
        failed += self._mounts.alarms() if self._mounts is not None else []
        failed += self._projects.alarms() if self._projects is not None else []
        failed += self._notice_poller.alarms()
        failed += self._image_poller.alarms()
        failed += self._life_signs.alarms()
        failed += self._context.validator.alarms()
        return [*failed, *self._executor.slurm.alarms(self._context.clock.now())]

    def _record_use(self, snapshot: Snapshot, plan: Plan) -> None:
        """What is kept of this loop for later: use by projects, faults of own nodes, a sample of the site."""
        self._project_usage.add(plan.target.shares, snapshot.now, self.config.fair_share, since=self._process_start)
        with self._context.quarantine.contain_errors("step", "faults of own nodes"):
            self._own_node_faults.record(snapshot)
        with self._context.quarantine.contain_errors("step", SITE_HISTORY_SUBJECT):
            self._site_history.step(snapshot, plan)

    def _settle_doubt(self, snapshot: Snapshot, plan: Plan) -> int:
        """Ends the doubt once every machine is seen and adopted. Returns 1 where it ends."""
        if (
            not snapshot.record_doubt
            or plan.actions
            or self._context.quarantine.alarms()
            or isinstance(snapshot.slurm, Unavailable)
        ):
            return 0
        if unlisted_slots(snapshot):
            return 0
        for cloud in snapshot.clouds.values():
            if (
                isinstance(cloud.instances, Unavailable)
                or cloud.instances_listed <= self._process_start + cloud.settle_s
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
        self._context.quarantine.add_subject(
            isolation.cloud_subject(provider)
            if provider in self._context.providers
            else f"the results of {queue_name}",
            "result",
            error,
        )

    def _step_staging(self, snapshot: Snapshot, staging: StagingSubsystem) -> Snapshot:
        """With what staging says. Where burstd fails on it, what it said last counts: nodes with output stay kept."""
        with self._context.quarantine.contain_errors("step", "staging"):
            claims = (*snapshot.claims, *snapshot.storage_claims)
            self._staging_due = staging.step(snapshot.slurm, claims, snapshot.leaving())
            nodes = self._store_nodes(snapshot.storage_claims, snapshot.now)
            self._data_views = staging.views()
            return replace(
                snapshot, data=self._data_views, storage_nodes=nodes, volume_needs=staging.volume_needs(),
                claims_with_volume=frozenset(v.claim_id for v in self._store.volumes() if v.state in ON_MACHINE),
            )  # fmt: skip
        self._staging_due = self._context.clock.now() + self._context.intervals.tick_s
        # Nothing is let go, or begun, on data that may be out of date.
        return replace(snapshot, data=self._data_views, paused=snapshot.paused or "burstd fails on staging")

    def _step_mounts(self, snapshot: Snapshot, mounts: MountSubsystem) -> Snapshot:
        with self._context.quarantine.contain_errors("step", "mounts"):
            self._mounts_due = mounts.step(snapshot.slurm, snapshot.claims, doubt=bool(snapshot.record_doubt))
            return replace(snapshot, mounts=mounts.view())
        self._mounts_due = self._context.clock.now() + self._context.intervals.tick_s
        return snapshot

    def _step_job_use(self, snapshot: Snapshot, job_use: JobUseSubsystem) -> Snapshot:
        with self._context.quarantine.contain_errors("step", "figures of jobs"):
            self._job_use_due = job_use.step(snapshot.slurm, snapshot.claims)
            state = replace(snapshot.runtime_state, last_figures_awaited=job_use.awaited())
            return replace(snapshot, job_use=job_use.uses(), runtime_state=state)
        self._job_use_due = self._context.clock.now() + self._context.intervals.tick_s
        return snapshot

    def _step_ended_jobs(self, snapshot: Snapshot) -> Snapshot:
        placements = self.latest[1].target.placements if self.latest is not None else {}
        snapshot = self._launch_failures.step(snapshot, placements)
        return replace(snapshot, history=self._history.record_ended_jobs(snapshot.slurm))

    def _step_projects(self, snapshot: Snapshot, projects: ProjectSync) -> Snapshot:
        """Where burstd fails on projects nothing is said of them: limits stay, and Slurm keeps the quotas."""
        with self._context.quarantine.contain_errors("step", "projects"):
            nodes = None if isinstance(snapshot.slurm, Unavailable) else snapshot.slurm.nodes
            view = projects.step(self.config.projects, nodes)
            how = self.config.fair_share
            usage = self._project_usage.usage(snapshot.now, how)
            return replace(snapshot, projects=replace(view, fair_share=how, usage=usage))
        return snapshot

    def _raise_alarms(self, alarms: Sequence[str]) -> None:
        self.alarms, alarm = tuple(alarms), "; ".join(alarms)
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
        now = self._context.clock.now()
        claims = self._store.claims()
        self._observer.start_due_listings(claims)
        self._notice_poller.poll(claims)
        self._image_poller.poll(self._pools().values())
        storage = tuple(c for c in claims if c.cause is Cause.STORAGE)
        bound = {}
        if not isinstance(slurm, Unavailable):
            bound = {r.job_id: r.nodes for r in slurm.reservations if r.job_id}
            self._executor.slurm.excluded_nodes.forget(slurm.jobs, slurm.read_at)
            self._executor.slurm.forget_held_jobs(slurm.jobs)
        machines = self._executor.adopter.find_unknown(clouds, claims)
        snapshot = Snapshot(
            now=now,
            cluster=self._context.cluster,
            pools=self.config.pools,
            slurm=slurm,
            clouds=clouds,
            claims=tuple(c for c in claims if c.cause is not Cause.STORAGE),
            pins=tuple(p for p in self._store.scale_overrides() if p.until is None or p.until > now),
            drained_slots=frozenset(held.slot for held in self._store.drained_slots()),
            drained_by={held.slot: held.by for held in self._store.drained_slots()},
            breakers=self._store.breakers(),
            places=self._place_history.records(now, self.config.bad_places),
            recent_launches=self._store.recent_launches(now - HOUR_S),
            paused=self._store.metadata(PAUSED_KEY),
            bound=bound,
            runtime_state=self._runtime_state(claims, bound, now),
            interruptions=self._executor.slurm.interruptions.interrupted_runs(
                () if isinstance(slurm, Unavailable) else slurm.jobs
            ),
            interruptions_not_spot=self._executor.slurm.interruptions.not_spot(),
            data=self._data_views,
            storage_claims=storage,
            storage_nodes=self._store_nodes(storage, now),
            images=self._image_poller.versions(),
            spent=self._store.spending(),
            ended_claims=self._store.gone_claims(now - HOUR_S),
            history=self._history.history(),
            output_retention_cost=self.config.tuning.output_retention_cost,
            rates=self.config.tuning.rates,
            unrecorded_instances=machines.unknown,
            foreign_tags=machines.foreign,
            record_doubt=self._store.metadata(DOUBT_KEY),
        )
        self.head_clock.forget_machines({claim.id for claim in claims}, now)
        clock_breakers = self.head_clock.clock_breakers(self._context.providers, now)
        return replace(snapshot, breakers=(*snapshot.breakers, *listing_breakers(snapshot), *clock_breakers))

    def _runtime_state(self, claims: Sequence[Claim], bound: Mapping[str, object], now: float) -> RuntimeState:
        self._progress.follow(claims, now)
        state = self._executor.slurm.runtime_state(now, bound, self._progress.runtime_state(now))
        return replace(
            state,
            process_start=self._process_start,
            notices=self._notice_poller.notices_by_claim(claims),
            stuck_on_burst_since=dict(self._decider.last.stuck_on_burst_since),
            stuck_since=dict(self._decider.last.stuck_since),
            boot_durations=dict(self._decider.last.boot_durations),
            limited_jobs=dict(self._decider.last.limited_jobs),
            missing_homes=tuple(self._context.validator.missing_homes()),
            stages_data=self._staging is not None,
        )

    def preview(self) -> tuple[Snapshot, Plan]:
        """What the next loop would do; changes nothing."""
        snapshot = self.observe()
        snapshot = isolation.without_subjects(
            snapshot, isolation.with_affected_nodes(snapshot, self._context.quarantine.quarantined_subjects(snapshot))
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
        return self._questions.smallest_changes(*self.latest, job_id, self._trial_target())

    def quote_jobs(self, jobs: Sequence[Job], usable: Collection[UsablePartition]) -> tuple[Quote, ...]:
        """What jobs would meet that are not submitted, by the last snapshot; changes nothing. Raises NoAnswer."""
        if self.latest is None:
            raise NoAnswer("burstd has just started and has not read Slurm and the clouds yet; try again soon")
        costs = self.config.tuning.site_costs
        return self._questions.quote_jobs(*self.latest, jobs, usable, self._trial_target(), costs)

    def _trial_target(self) -> Callable[[Snapshot], Target]:
        config, tuning = self.config, self.config.tuning
        copies = cache(lambda: copies_for_trial(config.policies))  # A question that is refused needs none.
        return lambda seen: make_target(seen, copies(), tuning.output_retention_s, tuning.spot_interruptions)

    def _seconds_until_due(self, snapshot: Snapshot, recheck_at: float) -> float:
        """Until the next thing that no hint tells of; ``look_at``: when the next job begins to count."""
        now = self._context.clock.now()
        # Nobody tells when a node registers or a bound job starts.
        change_is_near = bool(snapshot.bound) or any(
            c.state in (ClaimState.VALIDATING, ClaimState.READY) for c in snapshot.claims
        )
        slurm = (
            self._context.intervals.slurm_fast_s
            if change_is_near
            else self._context.intervals.tick_s
            if self.queue_is_watched
            else self._context.intervals.poll_s
        )
        # A machine may tell Slurm by itself that it ends, or that its GPUs have a fault.
        tells = any(claim.offer.spot or claim.offer.shape.gpus() for claim in snapshot.claims)
        slurm = min(slurm, self._context.intervals.notices_s) if tells else slurm
        pins = min((pin.until for pin in snapshot.pins if pin.until is not None), default=float("inf"))
        every = (*snapshot.claims, *snapshot.storage_claims)
        due = min(
            self._progress.next_retry(now),
            self._observer.next_listing(every),
            self._notice_poller.next_poll(every),
            self._image_poller.next_poll(),
            pins,
            self._staging_due,
            self._mounts_due,
            self._job_use_due,
            recheck_at,
            self._storage_needs.next_idle_end(snapshot.storage_claims, snapshot.storage_nodes, now),
            now + slurm,
        )
        return max(0.0, due - now)

    def reload(self, config: RuntimeConfig) -> None:
        """New pools, policies and times from the next loop on."""
        self.config = replace(config)
        self._context.quarantine.clear()
