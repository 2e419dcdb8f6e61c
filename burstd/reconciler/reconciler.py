"""One loop: results in, observe, decide, apply. The heart of the daemon, without a thread or a timer of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from burstd.db import Store, StoreError
from burstd.db.record_mark import DOUBT
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import Provider
from burstd.domain.plugins.scheduler import Scheduler
from burstd.domain.plugins.validator import Prover
from burstd.domain.slurm.option_change import Change
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.domain.staging import DataView
from burstd.domain.storage_node import StoreNode
from burstd.planner import isolation
from burstd.planner.decide import decide
from burstd.planner.forecast.outlook import outlooks
from burstd.planner.lifecycle.adoption import doubt_alarm, unlisted
from burstd.planner.lifecycle.listing import closed_to_launches
from burstd.planner.policy_chain import make_target
from burstd.reconciler.decisions import Decisions, Rules
from burstd.reconciler.executor import Executor
from burstd.reconciler.machines.adopter import Adopter
from burstd.reconciler.machines.circuit_breakers import Trust
from burstd.reconciler.machines.interruptions import Interruptions
from burstd.reconciler.machines.launcher import Launcher
from burstd.reconciler.machines.storage_nodes import StorageNodes
from burstd.reconciler.machines.terminator import Terminator
from burstd.reconciler.memory import Memory
from burstd.reconciler.observer import Observer, Pace
from burstd.reconciler.policy_guard import for_trial
from burstd.reconciler.pollers.image_versions import ImageDesk
from burstd.reconciler.pollers.job_comments import Commenting
from burstd.reconciler.pollers.job_history import HistoryDesk
from burstd.reconciler.pollers.spot_notices import NoticeDesk
from burstd.reconciler.quarantine import MEANT, Holds
from burstd.reconciler.what_if import Trials
from burstd.runtime.clock import HeadClock, clock_alarm
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

STORE_RETRY_S = 5.0
HOUR_S = 3600.0
_DIGITS = re.compile(r"\d+")
ASLEEP_S = 30.0
"""A loop that comes so much later than it was due comes after a sleep."""
LOOP = "the loop"
PAUSED = "paused"
"""Key under which the store keeps why an administrator holds burstd; empty: he does not."""


class Data(Protocol):
    """Staging, as the reconciler sees it (burstd.staging)."""

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Begins what is due; returns when the next is, in burstd's time. ``claims``: storage nodes are among them."""
        ...

    def views(self) -> Mapping[str, DataView]:
        """How the data of each job stands."""
        ...

    def alarms(self) -> Sequence[str]:
        """What needs a person."""
        ...

    def store_nodes(self) -> Sequence[StoreNode]:
        """The stores whose storage node burstd launches, as the settings have them."""
        ...


class _Owners:
    """Whose job a subject is. Few are asked for in most loops."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._slurm = snapshot.slurm
        self._known: dict[str, str] | None = None

    def of(self, subject: str) -> str:
        if self._known is None:
            jobs = () if isinstance(self._slurm, Unavailable) else self._slurm.jobs
            self._known = {f"job:{job.id}": job.user for job in jobs}
        return self._known.get(subject, "")


class Reconciler:
    """Brings what is nearer to what should be, one step a call. All state that matters is in the store."""

    def __init__(
        self,
        *,
        cluster: str,
        rules: Rules,
        pace: Pace,
        store: Store,
        scheduler: Scheduler,
        providers: Mapping[str, Provider],
        prover: Prover,
        workers: Workers,
        clock: Clock,
        user_data: Callable[[Pool, str], str],
        new_id: Callable[[], str],
        made_here: Callable[[str], bool],
        stage: Data | None = None,
        comments: Commenting | None = None,
        holds: Holds | None = None,
    ) -> None:
        """``new_id`` gives ids of claims, ``made_here`` tells those it gave; ``holds`` is shared with ``comments``."""
        self.rules = rules
        self._holds = holds or Holds(clock)
        self._providers = frozenset(providers)
        self._data: Mapping[str, DataView] = {}
        """As staging last told it."""
        self._comments = comments
        self._stage = stage
        self._stage_due = self._due = float("inf")
        self._cluster = cluster
        self._pace = pace
        self._store = store
        self._workers = workers
        self._clock = clock
        self._memory = Memory(pace, clock.now())
        self._trials = Trials()
        self._decisions = Decisions(self._holds, self._memory, lambda: self.rules)
        self._observer = Observer(providers, scheduler, workers, clock, pace, store.claims, self._holds)
        self._prover = prover
        self._storage = StorageNodes(store)
        self._images = ImageDesk(providers, workers, clock, pace)
        trust = Trust(store, clock, self._images.known)
        terminator = Terminator(
            store=store, providers=providers, workers=workers, clock=clock,
            memory=self._memory, observer=self._observer, holds=self._holds,
        )  # fmt: skip
        launcher = Launcher(
            cluster=cluster, store=store, providers=providers, workers=workers, clock=clock, memory=self._memory,
            user_data=user_data, pools=self._pools, new_id=new_id, trust=trust, holds=self._holds,
        )  # fmt: skip
        self._notices = NoticeDesk(providers, workers, clock, pace, self._holds)
        self._past = HistoryDesk(store, self._slots, self._holds)
        self._interruptions = Interruptions(store, scheduler, self._memory, self._holds)
        self._adopter = Adopter(store, new_id, made_here)
        self.head = HeadClock()
        self._executor = Executor(
            store=store, scheduler=scheduler, providers=providers, prover=prover, workers=workers, clock=clock,
            memory=self._memory, trust=trust, launcher=launcher, terminator=terminator,
            interruptions=self._interruptions, adopter=self._adopter, head=self.head, holds=self._holds,
            pools=self._pools,
        )  # fmt: skip
        self.latest: tuple[Snapshot, Plan] | None = None
        """Of the last whole loop."""
        self.watching = False
        """True while hints tell of changes in the queue, so that it need not be polled."""
        self.alarm: str = ""
        """What keeps the loop from doing its work; empty: nothing."""

    def _pools(self) -> Mapping[str, Pool]:
        """Of Slurm's nodes and of storage nodes."""
        nodes = self._stage.store_nodes() if self._stage is not None else ()
        return {**self.rules.pools, **{node.pool.name: node.pool for node in nodes}}

    def _store_nodes(self, storage: Sequence[Claim], now: float) -> tuple[StoreNode, ...]:
        configured = self._stage.store_nodes() if self._stage is not None else ()
        return self._storage.look(configured, storage, self._slots(), self._memory.payable, now)

    def _slots(self) -> set[str]:
        return {slot for pool in self.rules.pools.values() for slot in pool.slots}

    def step(self) -> float:
        """One loop. Returns seconds until the next is due if nothing wakes it before; 0: at once."""
        self._note_sleep()
        pause = self._step()
        self._due = self._clock.now() + pause
        return pause

    def _note_sleep(self) -> None:
        """After SIGSTOP, or on a machine that was suspended, no time counts in which nobody looked."""
        late = self._clock.now() - self._due
        if late > ASLEEP_S:
            log.warning("burstd did not run, and begins to count anew", seconds=round(late))
            self._memory.born = self._clock.now()

    def _step(self) -> float:
        try:
            changed = self._workers.drain(self._lane_broke)
            self._store.expire_pins()
            snapshot = self.observe()
            if self._stage is not None:
                snapshot = self._staged(snapshot, self._stage)
            self._notices.settle(snapshot)
            snapshot = replace(snapshot, history=self._past.look(snapshot.slurm))
            snapshot, thought = self._decisions.decide(snapshot)
            plan = thought.plan
            self.latest = (snapshot, plan)
            self._memory.tried_since = thought.tried_since
            self._memory.covered_since = thought.covered_since
            self._memory.booted = thought.booted
            self._memory.payable = thought.payable
            changed += self._executor.apply(plan)
            changed += self._settle_doubt(snapshot, plan)
            # After the deeds: thousands of new remarks take most of a second, and no launch should wait for them.
            self._store.record_remarks(plan.remarks, _Owners(snapshot).of)
            if self._comments is not None:
                self._comments.step(snapshot, plan)
        except SchedulerUnavailable as error:
            log.warning("slurm stopped answering, the rest of the plan waits", error=str(error))
            return self._pace.poll_s
        except StoreError as error:
            # Nothing is asked of a cloud that was not written down first: no space means no launch.
            self._raise_alarm(f"the record cannot be written: {error}")
            return STORE_RETRY_S
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm; the next loop tries again
            self._holds.broke(LOOP, "step", error)
            self._raise_alarm("; ".join(self._holds.alarms()))
            return self._pace.tick_s
        clock = clock_alarm(self._clock.wall(), self._clock.now())
        failed = [word for word in (doubt_alarm(snapshot), clock, self.head.wrong()) if word]
        failed += [*self._holds.alarms(), *thought.alarms]
        failed += self._stage.alarms() if self._stage is not None else []
        failed += self._notices.alarms()
        failed += self._images.alarms()
        failed += self._prover.alarms()
        self._raise_alarm("; ".join([*failed, *self._memory.alarms(self._clock.now())]))
        return 0.0 if changed else self._rest(snapshot, plan.target.look_at)

    def _settle_doubt(self, snapshot: Snapshot, plan: Plan) -> int:
        """Ends the doubt once every machine is seen and adopted. Returns 1 where it ends."""
        if not snapshot.doubt or plan.actions or self._holds.alarms() or isinstance(snapshot.slurm, Unavailable):
            return 0
        if unlisted(snapshot):
            return 0
        for cloud in snapshot.clouds.values():
            if isinstance(cloud.instances, Unavailable) or cloud.listed <= self._memory.born + cloud.settle_s:
                return 0
            if isinstance(cloud.offers, Unavailable):
                return 0
        log.warning("every machine is on record again", claims=len(snapshot.claims))
        return self.confirm_record("burstd")

    def confirm_record(self, by: str) -> int:
        """Trusts the record as it is. Returns 1 where it was in doubt."""
        doubt = self._store.meta(DOUBT)
        self._store.set_meta(DOUBT, "", by)
        return int(bool(doubt))

    def _lane_broke(self, lane: str, error: Exception) -> None:
        """A result that burstd fails on, and not on one job or node of it."""
        if isinstance(error, MEANT):
            raise error
        provider = lane.partition(":")[0]
        self._holds.broke(
            isolation.cloud(provider) if provider in self._providers else f"the results of {lane}", "result",
                          error)  # fmt: skip

    def _staged(self, snapshot: Snapshot, stage: Data) -> Snapshot:
        """With what staging says. Where burstd fails on it, what it said last counts: nodes with output stay kept."""
        with self._holds.guard("step", "staging"):
            self._stage_due = stage.step(snapshot.slurm, (*snapshot.claims, *snapshot.storage))
            nodes = self._store_nodes(snapshot.storage, snapshot.now)
            self._data = stage.views()
            return replace(snapshot, data=self._data, store_nodes=nodes)
        self._stage_due = self._clock.now() + self._pace.tick_s
        # Nothing is let go, or begun, on data that may be out of date.
        return replace(snapshot, data=self._data, paused=snapshot.paused or "burstd fails on staging")

    def _raise_alarm(self, alarm: str) -> None:
        # What differs in its numbers only, as costs do, is no news.
        if alarm and _DIGITS.sub("0", alarm) != _DIGITS.sub("0", self.alarm):
            log.error("alarm", alarm=alarm)
        elif self.alarm and not alarm:
            log.info("alarm is over", alarm=self.alarm)
        self.alarm = alarm

    def observe(self) -> Snapshot:
        """Clouds first, then Slurm, the store last: a claim written meanwhile must not look like an orphan."""
        clouds = self._observer.clouds()
        slurm = self._observer.slurm()
        now = self._clock.now()
        claims = self._store.claims()
        self._observer.look_at_clouds(claims)
        self._notices.look(claims)
        self._images.look(self._pools().values())
        storage = tuple(c for c in claims if c.cause is Cause.STORAGE)
        bound = {}
        if not isinstance(slurm, Unavailable):
            bound = {r.job_id: r.nodes for r in slurm.reservations if r.job_id}
            for job_id in bound:
                self._memory.bound_since.setdefault(job_id, now)
        strangers = self._adopter.strangers(clouds, claims)
        snapshot = Snapshot(
            now=now,
            cluster=self._cluster,
            pools=self.rules.pools,
            slurm=slurm,
            clouds=clouds,
            claims=tuple(c for c in claims if c.cause is not Cause.STORAGE),
            pins=tuple(p for p in self._store.pins() if p.until is None or p.until > now),
            held_slots=frozenset(held.slot for held in self._store.held()),
            breakers=self._store.breakers(),
            launched=self._store.launched(now - HOUR_S),
            paused=self._store.meta(PAUSED),
            bound=bound,
            progress=replace(self._memory.progress(self._observer, now), notices=self._notices.waiting(claims)),
            interruptions=self._interruptions.of(() if isinstance(slurm, Unavailable) else slurm.jobs),
            data=self._data,
            storage=storage,
            store_nodes=self._store_nodes(storage, now),
            images=self._images.known(),
            spent=self._store.spent(),
            gone=self._store.gone(now - HOUR_S),
            history=self._past.history(),
            keep_cost=self.rules.tuning.keep_node_cost,
            unknown=strangers.unknown,
            foreign=strangers.foreign,
            doubt=self._store.meta(DOUBT),
        )
        self.head.forget({claim.id for claim in claims}, now)
        closed = self.head.closed_to_launches(self._providers, now)
        return replace(snapshot, breakers=(*snapshot.breakers, *closed_to_launches(snapshot), *closed))

    def preview(self) -> tuple[Snapshot, Plan]:
        """What the next loop would do; does nothing."""
        snapshot = self.observe()
        snapshot = isolation.without(snapshot, isolation.untouched(snapshot, self._holds.held(snapshot)))
        snapshot = replace(snapshot, outlook=outlooks(snapshot))
        return snapshot, decide(snapshot, for_trial(self.rules.policies), self.rules.tuning)

    def compare(self, policies: Sequence[Policy]) -> tuple[Snapshot, Plan, Plan]:
        """What the next loop would do, and what it would do by these policies; does nothing."""
        snapshot, plan = self.preview()
        return snapshot, plan, decide(snapshot, policies, self.rules.tuning)

    def what_if(self, job_id: str) -> tuple[Change, ...]:
        """The smallest changes with which a job of the last look would start; does nothing."""
        if self.latest is None:
            return ()
        policies, tuning = for_trial(self.rules.policies), self.rules.tuning
        return self._trials.changes(
            *self.latest,
            job_id,
            lambda seen: make_target(seen, policies, tuning.keep_node_s, tuning.spot_interruptions),
        )

    def _rest(self, snapshot: Snapshot, look_at: float) -> float:
        """Until the next thing that no hint tells of; ``look_at``: when the next job begins to count."""
        now = self._clock.now()
        # Nobody tells when a node registers or a bound job starts.
        brisk = bool(snapshot.bound) or any(c.state in (ClaimState.PROVING, ClaimState.READY) for c in snapshot.claims)
        slurm = self._pace.slurm_fast_s if brisk else self._pace.tick_s if self.watching else self._pace.poll_s
        # A machine may tell Slurm by itself that it ends.
        slurm = min(slurm, self._pace.notices_s) if any(c.offer.spot for c in snapshot.claims) else slurm
        pins = min((pin.until for pin in snapshot.pins if pin.until is not None), default=float("inf"))
        every = (*snapshot.claims, *snapshot.storage)
        due = min(
            self._memory.due(now), self._observer.due(every), self._notices.due(every), self._images.due(), pins,
            self._stage_due, look_at, self._storage.due(snapshot.storage, snapshot.store_nodes, now), now + slurm,
        )  # fmt: skip
        return max(0.0, due - now)

    def reload(self, rules: Rules) -> None:
        """New pools, policies and times from the next loop on."""
        self.rules = replace(rules)
        self._holds.clear()
