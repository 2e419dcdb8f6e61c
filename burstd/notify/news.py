"""What is worth a notification: alarms that begin and end, budgets that run out, what becomes of users' jobs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal

from burstd.db import LoggedEvent
from burstd.domain.billing.costs import BudgetLine, month_of
from burstd.domain.idle_gpus import IdleAct
from burstd.domain.notification import Notification, NotificationKind
from burstd.domain.slurm.comment import IDLE_ALLOWED
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.staging import StageState
from burstd.reconciler.machines import idle_gpus

LEVELS = ((Decimal(1), "spent"), (Decimal("0.95"), "95"), (Decimal("0.8"), "80"))
"""Parts of a budget that are told of, the largest first."""
INTERRUPTED, HELD, IMPOSSIBLE = "interrupted", "held", "impossible"
DELIVERED = StageState.DELIVERED.value
_IDLE_GPUS: Mapping[str, str] = {
    idle_gpus.WARNED: "job {job} does not use its GPUs",
    idle_gpus.EVENTS[IdleAct.SHORTEN]: "the time limit of job {job} is shortened",
    idle_gpus.EVENTS[IdleAct.REQUEUE]: "job {job} is requeued",
    idle_gpus.EVENTS[IdleAct.CANCEL]: "job {job} is cancelled",
    idle_gpus.REFUSED: "job {job} goes on as it was",
}
JOB_EVENTS: Mapping[str, str] = {
    INTERRUPTED: "spot", HELD: "output", IMPOSSIBLE: "cannot_start", DELIVERED: "output_home",
    **dict.fromkeys(_IDLE_GPUS, "idle_gpus"),
}  # fmt: skip
"""Words of the log, and what users are told of by the setting ``jobs``."""
_NUMBERS = re.compile(r"\d+(\.\d+)?")
_OLD_STATES = {HELD: (StageState.COLLECTING, StageState.DELIVERING), DELIVERED: (StageState.DELIVERING,)}
"""Of a job's data, before what is told of it."""
_STARTED_S = 3600.0
"""Of a job that has run for longer nobody is told that it starts."""
_SHOWN = 5
"""Jobs or nodes that a text names."""
_JOB = re.compile(r"[0-9][0-9_+]{0,40}")


@dataclass(frozen=True, slots=True)
class ToldAlarm:
    """An alarm whose beginning was told, and whose end was not."""

    text: str
    since: float


def alarm_key(text: str) -> str:
    """What makes two alarms the same: what stands before the first colon, but for numbers such as ages and costs."""
    return _NUMBERS.sub("#", text.partition(": ")[0])[:200]


class AlarmWatch:
    """Which alarms have begun and ended for good. ``told`` is to be kept on record."""

    def __init__(self, told: Mapping[str, ToldAlarm]) -> None:
        self.told = dict(told)
        self._began: dict[str, float] = {}
        self._missing: dict[str, float] = {}

    def update(self, alarms: Iterable[str], now: float, begin_after_s: float, end_after_s: float) -> list[Notification]:
        """What is news now. An alarm that comes and goes within these times is no news."""
        there: dict[str, str] = {}
        for text in alarms:
            there.setdefault(alarm_key(text), text)
        self._began = {key: self._began.get(key, now) for key in there}
        self._missing = {key: self._missing.get(key, now) for key in self.told.keys() - there.keys()}
        begun = [k for k, since in self._began.items() if k not in self.told and now - since >= begin_after_s]
        ended = [key for key, since in self._missing.items() if now - since >= end_after_s]
        news: list[Notification] = []
        for key in begun:
            self.told[key] = ToldAlarm(there[key], self._began[key])
            news.append(_alarm("begin", key, self.told[key], self._began[key]))
        for key in ended:
            alarm, over = self.told.pop(key), self._missing.pop(key)
            news.append(_alarm("end", key, alarm, over))
        return news


def _alarm(event: str, key: str, alarm: ToldAlarm, time: float) -> Notification:
    title = "alarm" if event == "begin" else "alarm is over"
    return Notification(
        f"alarm/{event}/{alarm.since:.3f}/{key}", NotificationKind.ALARM, event, time, title, alarm.text
    )


def budget_news(budgets: Iterable[BudgetLine], now: float, known: Collection[str]) -> Iterator[Notification]:
    """A notification for each budget that has passed a level of which nobody was told this month.

    ``known``: ids of notifications that were made. Of several levels passed at once only the highest is told.
    """
    for line in budgets:
        if line.fault or line.limit <= 0:
            continue
        used = line.spent + line.committed
        for level, event in LEVELS:
            about = f"{_budget_id(line, now)}/{event}"
            if about in known:
                break
            if used >= level * line.limit:
                title = "a budget is used up" if event == "spent" else f"{event} % of a budget are used"
                yield Notification(
                    about, NotificationKind.BUDGET, event, now, title,
                    f"{_budget_name(line)}: {100 * used / line.limit:.0f} % of {line.limit:.2f} "
                    f"{line.currency} are used: {line.spent:.2f} spent, {line.committed:.2f} promised to machines"
                    + ("; no machine is started on it" if event == "spent" else ""),
                    data={"budget": _payer_name(line), "period": line.period, "limit": str(line.limit),
                          "spent": str(line.spent), "committed": str(line.committed), "currency": line.currency},
                )  # fmt: skip
                break


def _payer_name(line: BudgetLine) -> str:
    return f"{line.kind} {line.name}".strip() or "the whole site"


def _budget_name(line: BudgetLine) -> str:
    return f"budget of {_payer_name(line)} ({line.period})"


def _budget_id(line: BudgetLine, now: float) -> str:
    return f"budget/{line.kind}/{line.name}/{line.period}/{line.currency}/{month_of(now)}"


def stopped_news(budgets: Iterable[BudgetLine], jobs: Mapping[str, Job], now: float) -> Iterator[Notification]:
    """What users are told whose jobs wait because a budget has too little left: one message a user, budget and month.

    ``jobs``: those in the queue, by id.
    """
    for line in budgets:
        of_user: dict[str, list[str]] = {}
        for job in filter(None, map(jobs.get, line.stops)):
            of_user.setdefault(job.user, []).append(job.id)
        for user, stopped in of_user.items():
            yield Notification(
                f"job/{_budget_id(line, now)}/{user}", NotificationKind.JOB, "budget", now,
                "a budget has too little left for your jobs",
                f"{_budget_name(line)}: {max(line.left, Decimal(0)):.2f} of {line.limit:.2f} {line.currency} are left, "
                f"too little for what waits ({_some(stopped)}); see burstctl explain {stopped[0]}",
                user, {"budget": _payer_name(line), "jobs": _some(stopped)},
            )  # fmt: skip


def start_news(jobs: Iterable[Job], slots: Set[str], now: float) -> Iterator[Notification]:
    """What users are told whose jobs have started on nodes of burstd's: one message a job, array or het job.

    ``slots``: nodes with a machine.
    """
    told: set[str] = set()
    for job in jobs:
        if job.state is not JobState.RUNNING or now - job.start >= _STARTED_S or slots.isdisjoint(job.node_list):
            continue
        whole = job.array_job_id or job.het_job_id or job.id
        if whole in told:
            continue
        told.add(whole)
        first = f"{job.id} is the first of it to run, on " if job.id != whole else "it runs on "
        yield Notification(
            f"job/{whole}/start", NotificationKind.JOB, "start", now, f"job {whole} has started",
            f"{first}{_some(job.node_list)}; see burstctl job show {job.id}", job.user, {"job": job.id},
        )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


@dataclass(frozen=True, slots=True)
class HomeOutput:
    """Output of a job, or of tasks of an array so far, that is home and of which its user was not told yet."""

    user: str
    seq: int
    """Of the last event that said so, and its time and words."""
    time: float
    reason: str
    jobs: int = 1
    """Tasks whose output is home."""
    failed: int = 0
    """Of them, those that did not end well."""

    def joined(self, later: HomeOutput) -> HomeOutput:
        """With that of one more task."""
        return replace(later, jobs=self.jobs + later.jobs, failed=self.failed + later.failed)


def home_notification(job: str, home: HomeOutput) -> Notification:
    """What the owner of a job, or of an array, is told once all its output is home."""
    text = home.reason if home.jobs == 1 else f"the output of {home.jobs} tasks is home"
    if home.failed:
        text += "; the job had failed" if home.jobs == 1 else f"; {home.failed} of them had failed"
    return Notification(
        f"job/{job}/output_home/{home.seq}", NotificationKind.JOB, "output_home", home.time,
        f"the output of job {job} is home", f"{text}; see burstctl stage status --all", home.user, {"job": job},
    )  # fmt: skip


def job_of_event(event: LoggedEvent) -> str:
    """The job that an event is about and of which its owner is told; empty: it is none of those."""
    kind, _, job = event.subject.partition(":")
    wanted = "stage" if event.new in _OLD_STATES else "job"
    if kind != wanted or event.new not in JOB_EVENTS or not _JOB.fullmatch(job):
        return ""
    return job if event.old in _OLD_STATES.get(event.new, (event.old,)) else ""


def job_notification(event: LoggedEvent, job: str, user: str) -> Notification:
    """What the owner of a job is told of an event of ``job_of_event``."""
    told = JOB_EVENTS[event.new]
    title = {
        "spot": f"the machine of job {job} is taken back",
        "output": f"the output of job {job} could not be delivered",
        "cannot_start": f"job {job} cannot start",
        "idle_gpus": _IDLE_GPUS.get(event.new, "").format(job=job),
    }[told]
    remedy = {
        "spot": "Slurm starts the job again unless it may not be requeued",
        "output": "the output is kept; see burstctl stage status",
        "cannot_start": f"see burstctl explain {job}",
        "idle_gpus": f"see burstctl job show {job}; the comment 'burst: {IDLE_ALLOWED}' exempts a job",
    }[told]
    # Once for each run that is interrupted and each event of idle GPUs, once a day for output that is held again and
    # again, else once.
    number = {"spot": event.data.get("run", 0), "output": int(event.time // 86400), "idle_gpus": event.seq}.get(told, 0)
    return Notification(
        f"job/{job}/{told}/{number}",
        NotificationKind.JOB, told, event.time, title, f"{event.reason}; {remedy}", user, {"job": job},
    )  # fmt: skip
