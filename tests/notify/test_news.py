"""What is news: alarms that last, budgets once a month, jobs' events."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from burstd.db import LoggedEvent
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.slurm.job import Job, JobState
from burstd.notify.news import (
    AlarmWatch,
    ToldAlarm,
    alarm_key,
    budget_news,
    job_notification,
    job_of_event,
    start_news,
    stopped_news,
)

SKY = "provider sky cannot be read: no answer within 10 s"


def told(watch: AlarmWatch, steps: list[tuple[float, list[str]]]) -> list[tuple[float, str]]:
    """When which beginnings and ends are told, with 60 s before the one and 600 s before the other."""
    return [(at, news.event) for at, alarms in steps for news in watch.update(alarms, at, 60, 600)]


def test_an_alarm_is_told_once_it_lasts_and_its_end_once_it_is_over() -> None:
    watch = AlarmWatch({})
    steps = [(at, [SKY] if at < 300 else []) for at in map(float, range(0, 1200, 20))]
    assert told(watch, steps) == [(60, "begin"), (900, "end")]
    assert watch.told == {}


def test_what_flaps_is_told_once() -> None:
    watch = AlarmWatch({})
    short = [(float(at), [SKY] if at % 100 < 50 else []) for at in range(0, 3000, 10)]
    assert told(watch, short) == []
    slow = [(5000.0 + at, [SKY] if at % 600 < 300 else []) for at in range(0, 6000, 10)]
    assert told(watch, slow) == [(5060, "begin")]
    watch = AlarmWatch(watch.told)  # burstd starts again
    assert told(watch, [(11_000.0, []), (11_500.0, []), (11_590.0, [SKY]), (11_600.0, [])]) == []
    assert told(watch, [(12_200.0, [])]) == [(12_200, "end")]


def test_alarms_that_differ_in_numbers_or_behind_the_colon_are_one() -> None:
    assert alarm_key(SKY) == alarm_key("provider sky cannot be read: 503 from 10.0.0.7")
    assert alarm_key("last loop 130.5 s ago; see x") == alarm_key("last loop 9 s ago; see x")
    assert alarm_key(SKY) != alarm_key("provider wind cannot be read: no answer")
    watch = AlarmWatch({alarm_key(SKY): ToldAlarm(SKY, 1.0)})
    assert told(watch, [(float(at), [f"provider sky cannot be read: {at}"]) for at in range(0, 900, 30)]) == []


LINE = BudgetLine("project", "a", "month", "EUR", Decimal(100), Decimal(70), Decimal(5))


def events(lines: list[BudgetLine], now: float, known: set[str]) -> list[str]:
    found = list(budget_news(lines, now, known))
    known |= {one.id for one in found}
    return [one.event for one in found]


def test_a_budget_is_told_of_at_each_level_once_a_month() -> None:
    known: set[str] = set()
    steps = ["70", "79.9", "80", "81", "75", "80", "96", "94", "85", "100", "97", "130", "10", "82"]
    now = 1_790_000_000.0
    found = [events([replace(LINE, spent=Decimal(spent), committed=Decimal(0))], now, known) for spent in steps]
    assert found == [[], [], ["80"], [], [], [], ["95"], [], [], ["spent"], [], [], [], []]
    assert events([replace(LINE, spent=Decimal(90))], now + 31 * 86400, known) == ["95"]
    fresh = replace(LINE, kind="user", name="ada")
    assert events([fresh, replace(fresh, spent=Decimal(95), fault="no price"), replace(fresh, limit=Decimal(0))],
                  now, known) == []  # fmt: skip
    (text,) = [one.text for one in budget_news([replace(LINE, committed=Decimal(40))], now, set())]
    assert text == (
        "budget of project a (month): 110 % of 100.00 EUR are used: 70.00 spent, 40.00 promised to machines; no "
        "machine is started on it"
    )


@pytest.mark.parametrize(
    ("subject", "old", "new", "job"),
    [("job:12", "", "interrupted", "12"), ("job:12_3", "wait", "impossible", "12_3"),
     ("stage:12", "delivering", "held", "12"), ("stage:12", "collecting", "held", "12"),
     ("stage:12", "uploading", "held", ""), ("stage:12", "delivering", "delivered", "12"),
     ("stage:12", "collecting", "delivered", ""), ("job:12", "delivering", "delivered", ""),
     ("job:12", "", "held", ""), ("claim:c1", "", "impossible", ""),
     ("pool:gpu", "", "impossible", ""), ("job:12", "", "boot", ""), ("job:x\r\ny", "", "interrupted", "")],
)  # fmt: skip
def test_jobs_of_events(subject: str, old: str, new: str, job: str) -> None:
    assert job_of_event(LoggedEvent(1, 5.0, subject, old, new, "why", "", {})) == job


@pytest.mark.parametrize(
    ("new", "title"),
    [
        ("idle gpus", "job 12 does not use its GPUs"),
        ("idle gpus: time limit shortened", "the time limit of job 12 is shortened"),
        ("idle gpus: requeued", "job 12 is requeued"),
        ("idle gpus: cancelled", "job 12 is cancelled"),
        ("idle gpus refused", "job 12 goes on as it was"),
    ],
)
def test_each_event_of_idle_gpus_is_told(new: str, title: str) -> None:
    event = LoggedEvent(7, 5.0, "job:12", "", new, "its GPU has been idle for 30 min", "idle_gpus", {"run": 0})
    assert job_of_event(event) == "12"
    found = job_notification(event, "12", "ada")
    assert (found.id, found.event, found.title) == ("job/12/idle_gpus/7", "idle_gpus", title)
    assert found.text.startswith("its GPU has been idle for 30 min; see burstctl job show 12; ")


def test_titles_hold_nothing_of_users() -> None:
    event = LoggedEvent(7, 5.0, "job:12", "", "interrupted", "<b>\r\nmachine", "spot", {"run": 2})
    found = job_notification(event, "12", "ada")
    assert (found.id, found.title, found.user) == ("job/12/spot/2", "the machine of job 12 is taken back", "ada")


def running(job_id: str, node: str, start: float = 100.0, **fields: str) -> Job:
    return Job(job_id, "ada", JobState.RUNNING, ("burst",), 0.0, start=start, node_list=(node,), **fields)  # type: ignore[arg-type]


def test_of_jobs_that_start_on_nodes_of_burstd_their_users_are_told_once_an_array() -> None:
    jobs = [
        running("11", "gpu1"),
        running("12_7", "gpu2", array_job_id="12"),
        running("12_8", "gpu3", array_job_id="12"),
        running("13", "cn1"),
        running("14", "gpu1", start=-3500.0),
        replace(running("15", "gpu1"), state=JobState.CONFIGURING),
    ]
    found = [*start_news(jobs, {"gpu1", "gpu2", "gpu3"}, 100.0)]
    assert {one.id: (one.user, one.title, one.text) for one in found} == {
        "job/11/start": ("ada", "job 11 has started", "it runs on gpu1; see burstctl job show 11"),
        "job/12/start": (
            "ada",
            "job 12 has started",
            "12_7 is the first of it to run, on gpu2; see burstctl job show 12_7",
        ),
    }


def test_users_whose_jobs_a_budget_stops_are_told_once_a_month() -> None:
    jobs = {name: Job(name, user, JobState.PENDING, ("burst",), 0.0) for name, user in
            [(str(n), "ada") for n in range(7)] + [("7", "bob")]}  # fmt: skip
    line = replace(LINE, spent=Decimal("98.5"), committed=Decimal(1), stops=(*jobs, "8"))
    month = 30 * 86400.0
    assert [(one.id, one.user, one.text) for one in stopped_news([LINE, line], jobs, month)] == [
        ("job/budget/project/a/month/EUR/1970-01/ada", "ada",
         ("budget of project a (month): 0.50 of 100.00 EUR are left, too little for what waits (0, 1, 2, 3, 4 and 2 "
         "more); see burstctl explain 0")),
        ("job/budget/project/a/month/EUR/1970-01/bob", "bob",
         ("budget of project a (month): 0.50 of 100.00 EUR are left, too little for what waits (7); see burstctl "
         "explain 7")),
    ]  # fmt: skip
    assert [one.id for one in stopped_news([line], {"7": jobs["7"]}, 2 * month)] == [
        "job/budget/project/a/month/EUR/1970-03/bob"
    ]
