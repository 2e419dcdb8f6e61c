"""Finds what is news after each loop, keeps it on record until it is sent, and sends it by the workers' threads."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial

import structlog

from burstd.api.answers.notify import WayTestView
from burstd.db import LoggedEvent, Store, StoreError
from burstd.domain.clock import Clock, backoff_s
from burstd.domain.notification import Delivery, DeliveryState, Notification, NotificationKind
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import ENDED_STATES, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.notify.news import (
    DELIVERED,
    HELD,
    IMPOSSIBLE,
    JOB_EVENTS,
    AlarmWatch,
    HomeOutput,
    ToldAlarm,
    budget_news,
    home_notification,
    job_notification,
    job_of_event,
    start_news,
    stopped_news,
)
from burstd.notify.ways import NotSent, Way, ways, ways_for
from burstd.reconciler.pollers.ingress import CLAIM_WITH_JOBS
from burstd.runtime.workers import Workers
from burstd.settings.notify import NotifySettings

ALARMS_KEY = "notified alarms"
EVENTS_KEY = "notified events"
"""Under which the record keeps the alarms that were told and are not over, and the number of the last event read."""
HOME_KEY = "notified outputs"
"""Output that is home of arrays whose tasks are not all over."""
MAX_WAITING = 1000
"""Deliveries that wait; more are dropped, and logged."""
MAX_AT_ONCE = 20
"""Messages that one way sends until the record is told."""
MAX_TRIES = 12
FIRST_PAUSE_S, MAX_PAUSE_S = 10.0, 600.0
"""Between two tries; doubles. Twelve tries take an hour."""
MAX_FOR_USER = 10
"""Messages of one kind that one user gets in an hour: many idle GPUs do not keep news of lost output back."""
HOUR_S = 3600.0
SAVE_EVERY_S = 60.0
MAX_EVENTS = 1000

log = structlog.get_logger(__name__)


class NotificationService:
    """All but ``test`` and ``alarms`` is for the deciding thread."""

    def __init__(
        self,
        settings: Callable[[], NotifySettings],
        cluster: str,
        store: Store,
        workers: Workers,
        clock: Clock,
        current_alarms: Callable[[], Sequence[str]],
        latest: Callable[[], tuple[Snapshot, Plan] | None],
    ) -> None:
        """``settings``: those in force; ``latest``: snapshot and plan of the last whole loop."""
        self._settings, self._cluster, self._store = settings, cluster, store
        self._workers, self._clock = workers, clock
        self._current_alarms, self._latest = current_alarms, latest
        self._watch: AlarmWatch | None = None
        self._waiting: dict[tuple[str, str], Delivery] = {}
        self._in_flight: set[str] = set()
        self._read_seq = self._saved_seq = 0
        self._saved_at = float("-inf")
        self._impossible: dict[str, LoggedEvent] = {}
        """By job, those that are told of once they have lasted."""
        self._home: dict[str, HomeOutput] = {}
        """By job or array."""
        self._lasting: set[str] = set()
        """Ids of messages of what was so in the last loop already."""
        self._for_user: Counter[tuple[str, str, int]] = Counter()
        """Messages by user, what they tell of, and hour."""
        self._budgets_known: set[str] = set()
        self._fault = ""

    def alarms(self) -> tuple[str, ...]:
        """What needs a person; from any thread."""
        return (self._fault,) if self._fault else ()

    def step(self) -> None:
        """Writes down what is news and begins to send what is due. Errors become an alarm: no loop ends for them."""
        try:
            self._step(self._settings(), self._clock.now())
            self._fault = ""
        except StoreError as error:
            self._watch = None
            self._fault = f"notifications cannot be recorded: {error}"
        except Exception as error:
            self._watch = None
            if not self._fault:
                log.exception("notifications failed")
            self._fault = f"notifications failed: {error!r}; see journalctl -u burstd"

    def _step(self, settings: NotifySettings, now: float) -> None:
        watch = self._watch or self._read_record(now)
        there = ways(settings, self._cluster)
        latest = self._latest()
        if there and latest is not None:
            news: list[Notification] = []
            if settings.alarms:
                alarms = [alarm for alarm in self._current_alarms() if alarm != self._fault]
                news += watch.update(alarms, now, settings.begin_after_s, settings.end_after_s)
            if settings.budgets:
                news += budget_news(latest[1].target.budgets, now, self._budgets_known)
            told_alarms = any(one.kind is NotificationKind.ALARM for one in news)
            news += self._job_news(settings, *latest, now)
            news += self._lasting_news(settings, *latest, now)
            self._record(news, settings, now, save_alarms=told_alarms)
        self._send_due(there, now)

    def _read_record(self, now: float) -> AlarmWatch:
        """What is on record after a start, or after the record could not be written."""
        told = json.loads(self._store.metadata(ALARMS_KEY) or "{}")
        self._waiting = {(one.notification.id, one.way): one for one in self._store.deliveries_waiting()}
        self._read_seq = self._saved_seq = int(self._store.metadata(EVENTS_KEY) or self._store.last_event_seq())
        self._budgets_known, self._impossible, self._lasting = set(), {}, set()
        home = json.loads(self._store.metadata(HOME_KEY) or "{}")
        self._home = {job: HomeOutput(**one) for job, one in home.items()}
        self._saved_at = now
        self._watch = AlarmWatch({key: ToldAlarm(**alarm) for key, alarm in told.items()})
        return self._watch

    def _job_news(self, settings: NotifySettings, snapshot: Snapshot, plan: Plan, now: float) -> list[Notification]:
        last = self._store.last_event_seq()
        if last > self._read_seq and settings.jobs:
            events = self._store.named_events(JOB_EVENTS, after=self._read_seq, limit=MAX_EVENTS)
            self._read_seq = events[-1].seq if len(events) == MAX_EVENTS else last
        else:
            events, self._read_seq = (), max(last, self._read_seq)
        wanted = [(job_of_event(e), e) for e in events if JOB_EVENTS[e.new] in settings.jobs and e.time > now - HOUR_S]
        due: list[tuple[str, LoggedEvent]] = []
        for job, event in wanted:
            if event.new == IMPOSSIBLE:
                self._impossible.setdefault(job, event)
            elif event.new == DELIVERED:
                self._note_home(event, job)
            elif job:
                due.append((job, event))
        lasted = {job: e for job, e in self._impossible.items() if now - e.time >= settings.begin_after_s}
        if lasted:
            verdicts = {r.subject.removeprefix("job:"): r.verdict for r in plan.remarks if r.subject[4:] in lasted}
            due += [(job, event) for job, event in lasted.items() if verdicts.get(job) == IMPOSSIBLE]
            self._impossible = {job: e for job, e in self._impossible.items() if job not in lasted}
        owners = {}
        if due and isinstance(snapshot.slurm, SlurmView):
            owners = {job.id: job.user for job in snapshot.slurm.jobs}
        told = [one for job, event in due if job and (one := self._job_message(event, job, owners)) is not None]
        return [*told, *self._home_news(snapshot)]

    def _note_home(self, event: LoggedEvent, job: str) -> None:
        """``job``: the number that Slurm's hooks have, of a task of an array too; empty: it is about no output."""
        staging = self._store.find_staging(job) if job else None
        if staging is None:
            return
        whole = staging.name.partition("_")[0]
        failed = int(staging.job_state not in ("", JobState.COMPLETED.value))
        one = HomeOutput(staging.user, event.seq, event.time, event.reason, failed=failed)
        self._home[whole] = self._home[whole].joined(one) if whole in self._home else one

    def _home_news(self, snapshot: Snapshot) -> list[Notification]:
        """Of jobs at once, of arrays when no task is in the queue any more."""
        if not self._home or not isinstance(snapshot.slurm, SlurmView):
            return []
        there = {job.array_job_id for job in snapshot.slurm.jobs if job.state not in ENDED_STATES}
        over = {job: home for job, home in self._home.items() if job not in there}
        self._home = {job: home for job, home in self._home.items() if job in there}
        return [home_notification(job, home) for job, home in over.items()]

    def _lasting_news(self, settings: NotifySettings, snapshot: Snapshot, plan: Plan, now: float) -> list[Notification]:
        """Messages of what is so now and was not in the last loop."""
        news: list[Notification] = []
        if isinstance(snapshot.slurm, SlurmView):
            if "start" in settings.jobs:
                news += start_news(
                    snapshot.slurm.jobs, {c.slot for c in snapshot.claims if c.state in CLAIM_WITH_JOBS}, now
                )
            if "budget" in settings.jobs and any(line.stops for line in plan.target.budgets):
                news += stopped_news(plan.target.budgets, {job.id: job for job in snapshot.slurm.jobs}, now)
        before, self._lasting = self._lasting, {one.id for one in news}
        return [one for one in news if one.id not in before]

    def _job_message(self, event: LoggedEvent, job: str, owners: Mapping[str, str]) -> Notification | None:
        staging = self._store.find_staging(job) if event.new == HELD else None
        user = staging.user if staging is not None else owners.get(job) or self._store.job_owner(job)
        if not user:
            return None
        return job_notification(event, staging.name if staging is not None else job, user)

    def _limited(self, message: Notification) -> Notification | None:
        """The message, unless its user has had enough of its kind in this hour; the last one says so."""
        hour = int(message.time // HOUR_S)
        if any(counted != hour for *_, counted in self._for_user):
            self._for_user = Counter({key: count for key, count in self._for_user.items() if key[2] >= hour - 1})
        key = message.user, message.event, hour
        self._for_user[key] += 1
        count = self._for_user[key]
        if count > MAX_FOR_USER:
            log.info("a notification is left out: its user got enough of its kind in this hour", id=message.id)
            return None
        last = "; further messages of this kind and hour are left out"
        return replace(message, text=message.text + last) if count == MAX_FOR_USER else message

    def _record(self, news: Sequence[Notification], settings: NotifySettings, now: float, *, save_alarms: bool) -> None:
        """Writes down what is to be sent, with the marks up to which all was seen, in one transaction."""
        held_back = min((event.seq for event in self._impossible.values()), default=self._read_seq + 1)
        seq = min(self._read_seq, held_back - 1)
        if not news and (seq == self._saved_seq or now - self._saved_at < SAVE_EVERY_S):
            return
        known = self._store.known_notifications([one.id for one in news])
        self._budgets_known |= {one.id for one in news if one.kind is NotificationKind.BUDGET}
        fresh = {one.id: one for one in news if one.id not in known}
        messages = [m for one in fresh.values() if (m := self._limited(one) if one.user else one) is not None]
        deliveries = [Delivery(one, way, due=now) for one in messages for way in ways_for(one, settings)]
        room = max(0, MAX_WAITING - len(self._waiting))
        if len(deliveries) > room:
            log.error("too many notifications wait, and some are dropped", dropped=len(deliveries) - room)
            deliveries = deliveries[:room]
        with self._store.batch():
            self._store.add_deliveries(deliveries)
            if save_alarms and self._watch is not None:
                told = {key: asdict(alarm) for key, alarm in self._watch.told.items()}
                self._store.set_metadata(ALARMS_KEY, json.dumps(told), logged=False)
            self._store.set_metadata(EVENTS_KEY, str(seq), logged=False)
            home = {job: asdict(one) for job, one in self._home.items()}
            self._store.set_metadata(HOME_KEY, json.dumps(home), logged=False)
        self._saved_seq, self._saved_at = seq, now
        self._waiting |= {(one.notification.id, one.way): one for one in deliveries}

    def _send_due(self, there: Mapping[str, Way], now: float) -> None:
        for delivery in tuple(self._waiting.values()):
            if delivery.way not in there:
                self._settle(delivery, DeliveryState.GIVEN_UP, "the settings have this way no more")
        for name, way in there.items():
            if name not in self._in_flight:
                due = [one for one in self._waiting.values() if one.way == name and one.due <= now][:MAX_AT_ONCE]
                if due:
                    self._in_flight.add(name)
                    self._workers.submit(f"notify {name}", partial(_send, way, due), partial(self._tried, name, due))

    def _tried(self, way: str, deliveries: Sequence[Delivery], errors: list[str] | Exception) -> None:
        """Some tries are over. Raises StoreError; then they are not known after a restart, and made again."""
        self._in_flight.discard(way)
        if isinstance(errors, Exception):
            raise errors
        with self._store.batch():
            for delivery, error in zip(deliveries, errors, strict=False):
                if (delivery.notification.id, delivery.way) in self._waiting:
                    self._note_try(delivery, error)

    def _note_try(self, delivery: Delivery, error: str) -> None:
        tries = delivery.tries + 1
        if not error:
            self._settle(delivery, DeliveryState.SENT)
        elif tries >= MAX_TRIES:
            self._settle(replace(delivery, tries=tries), DeliveryState.GIVEN_UP, error)
        else:
            pause = backoff_s(tries, FIRST_PAUSE_S, MAX_PAUSE_S)
            again = replace(delivery, tries=tries, due=self._clock.now() + pause)
            self._waiting[delivery.notification.id, delivery.way] = again
            log.warning("a notification waits for its next try", way=delivery.way, reason=error, in_s=pause)
            self._store.settle_delivery(again, DeliveryState.WAITING)

    def _settle(self, delivery: Delivery, state: DeliveryState, reason: str = "") -> None:
        self._waiting.pop((delivery.notification.id, delivery.way), None)
        if state is DeliveryState.GIVEN_UP:
            log.error("a notification was given up", way=delivery.way, title=delivery.notification.title, reason=reason)
        self._store.settle_delivery(delivery, state)

    def test(self, by: str) -> list[WayTestView]:
        """Sends a test message by each way, all at once; from any thread. Returns when each was sent or failed."""
        now = self._clock.now()
        message = Notification(
            f"test/{now:.3f}", NotificationKind.TEST, "test", now, "test",
            f"this is a test, which {by} asked for by burstctl notify test",
        )  # fmt: skip
        there = ways(self._settings(), self._cluster)
        if not there:
            return []
        with ThreadPoolExecutor(len(there), thread_name_prefix="notify test") as threads:
            tried = {name: threads.submit(_try_way, name, way, message) for name, way in there.items()}
            return [one.result() for one in tried.values()]


def _send(way: Way, deliveries: Sequence[Delivery]) -> list[str]:
    """Sends them in their order until one fails; returns an error for each that was tried, empty where it was sent."""
    errors: list[str] = []
    for delivery in deliveries:
        try:
            way(delivery.notification)
        except NotSent as error:
            return [*errors, str(error)]
        except Exception as error:
            log.exception("a notification failed unexpectedly", way=delivery.way)
            return [*errors, type(error).__name__]
        errors.append("")
    return errors


def _try_way(name: str, way: Way, message: Notification) -> WayTestView:
    begun, error = time.monotonic(), ""
    try:
        way(message)
    except NotSent as caught:
        error = str(caught)
    return WayTestView(way=name, error=error, took_s=round(time.monotonic() - begun, 3))
