"""From a loop to a message: on record before it is sent, tried again, sent about once whatever happens, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.db import Store, StoreFull
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.notification import Delivery, DeliveryState, Notification, NotificationKind
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import Directives, StageState, Staging
from burstd.notify import service as service_module
from burstd.notify import ways as ways_module
from burstd.notify.service import MAX_FOR_USER, MAX_TRIES, NotificationService
from burstd.runtime.workers import ThreadWorkers
from burstd.settings.notify import MailSettings, NotifySettings
from tests.api.world import JOBS, NOW, OTHER_USER, SLURM, SNAPSHOT, USER, FixedClock, job

from .servers import Inbox, mail_server

BUDGET = BudgetLine("project", "a", "month", "EUR", Decimal(100), Decimal(85), Decimal(0))
SKY = "provider sky cannot be read: no answer"


class Rig:
    """burstd, as far as notifications see it, with mail to a server that the test orders faults of."""

    def __init__(self, place: Path, port: int) -> None:
        self.clock = FixedClock(NOW)
        self.settings = NotifySettings(
            mail=MailSettings(host="127.0.0.1", port=port, to=("ops@example.org",)),
            jobs=("cannot_start", "output", "spot"),
        )
        self.alarms: list[str] = []
        self.budgets: list[BudgetLine] = []
        self.remarks: tuple[Remark, ...] = ()
        self.jobs: tuple[Job, ...] = JOBS
        self.place = place
        self.start()

    def start(self) -> None:
        self.store = Store.open(self.place, self.clock)
        self.workers = ThreadWorkers(lambda: None, 2)
        self.service = NotificationService(
            lambda: self.settings, "ada", self.store, self.workers, self.clock, lambda: self.alarms, self.latest
        )

    def kill(self) -> None:
        """What kill -9 leaves: the record, and nothing of what came back from threads."""
        self.workers.close()
        self.store.close()

    def latest(self) -> tuple[Snapshot, Plan]:
        snapshot = replace(SNAPSHOT, slurm=replace(SLURM, jobs=self.jobs))
        return snapshot, Plan((), Target(budgets=tuple(self.budgets)), self.remarks)

    def loop(self, seconds: float = 0.0) -> None:
        """One loop so much later, and all that it began."""
        self.begin(seconds)
        self.finish()

    def begin(self, seconds: float = 0.0) -> None:
        self.clock.time += seconds
        self.workers.run_callbacks()
        self.service.step()

    def finish(self) -> None:
        while self.workers.calls_under_way():
            threading.Event().wait(0.002)
        self.workers.run_callbacks()

    def states(self) -> dict[str, int]:
        query = "SELECT state, count(*) FROM notification GROUP BY state"
        with self.store._database.engine.connect() as connection:
            return {row[0]: row[1] for row in connection.exec_driver_sql(query)}


@pytest.fixture
def mail() -> Iterator[Inbox]:
    with mail_server() as inbox:
        yield inbox


@pytest.fixture
def rig(mail: Inbox, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "burstd.db", mail.port)
    yield made
    mail.freed.set()
    made.kill()


def titles(mail: Inbox) -> list[str]:
    return [str(one["Subject"]).removeprefix("burstd on ada: ") for _, one in mail.mails]


def test_an_alarm_and_its_end_are_told_once_also_over_restarts(rig: Rig, mail: Inbox) -> None:
    rig.alarms = [SKY]
    for _ in range(20):
        rig.loop(15)
    assert titles(mail) == ["alarm: provider sky cannot be read"]
    for _ in range(3):
        rig.kill()
        rig.start()
        rig.loop(30)
        rig.loop(100)
    rig.alarms = []
    for _ in range(60):
        rig.loop(15)
    assert titles(mail) == [f"{title}: provider sky cannot be read" for title in ("alarm", "alarm is over")]
    assert rig.states() == {"sent": 2}


def test_a_budget_is_told_once_a_month_also_over_restarts(rig: Rig, mail: Inbox) -> None:
    rig.budgets = [BUDGET]
    for _ in range(3):
        rig.loop(10)
        rig.loop(10)
        rig.kill()
        rig.start()
    assert titles(mail) == ["80 % of a budget are used"]
    rig.budgets = [replace(BUDGET, spent=Decimal(101))]
    rig.loop(10)
    rig.loop(31 * 86400)
    assert titles(mail)[1:] == ["a budget is used up"] * 2


def test_what_fails_is_tried_again_and_given_up_after_an_hour(rig: Rig, mail: Inbox) -> None:
    rig.budgets = [BUDGET]
    mail.faults = [450, 450]
    rig.loop()
    rig.loop(9)
    assert len(mail.faults) == 1, "not before its pause is over"
    for _ in range(4):
        rig.loop(10)
    assert len(mail.mails) == 1
    mail.faults = [450] * 99
    begin = rig.clock.time
    rig.budgets = [replace(BUDGET, spent=Decimal(96))]
    while rig.states() != {"sent": 1, "given up": 1}:
        rig.loop(15)
        assert rig.clock.time < begin + 4500
    assert len(mail.faults) == 99 - MAX_TRIES
    assert rig.clock.time > begin + 3500


def test_killed_before_it_is_marked_it_comes_again_with_the_same_id(rig: Rig, mail: Inbox) -> None:
    rig.budgets = [BUDGET]
    rig.begin()
    while not mail.mails:
        threading.Event().wait(0.002)
    rig.kill()
    rig.start()
    rig.loop()
    assert titles(mail) == ["80 % of a budget are used"] * 2
    assert len({one["Message-ID"] for _, one in mail.mails}) == 1
    rig.kill()
    rig.start()
    rig.loop(100)
    assert len(mail.mails) == 2


def test_killed_before_it_is_sent_it_is_not_lost(rig: Rig, mail: Inbox) -> None:
    mail.faults = [0]
    rig.budgets = [BUDGET]
    rig.begin()
    rig.kill()
    mail.freed.set()
    rig.budgets = []
    rig.start()
    rig.loop(5)
    assert titles(mail) == ["80 % of a budget are used"]


def test_a_server_that_hangs_holds_up_neither_loops_nor_other_ways(
    rig: Rig, mail: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(ways_module, "TIMEOUT_S", 600.0)
    hook, out = tmp_path / "hook", tmp_path / "out"
    hook.write_text(f"#!/bin/sh\ncat >> {out}\n")
    hook.chmod(0o755)
    rig.settings = rig.settings.model_copy(update={"program": hook, "program_timeout_s": 300.0})
    mail.faults = [0]
    rig.budgets = [replace(BUDGET, name=str(n)) for n in range(3)]
    rig.begin()
    while rig.workers.calls_under_way() != {"notify mail": 1}:
        rig.begin(1)
        threading.Event().wait(0.02)
    assert len(out.read_text().splitlines()) == 3
    assert mail.mails == []
    mail.freed.set()
    rig.finish()
    for _ in range(4):
        rig.loop(15)
    assert len(mail.mails) == 3


def impossible(job: str, user: str) -> Callable[[Rig], None]:
    def happens(rig: Rig) -> None:
        remark = Remark("placement", f"job:{job}", "impossible", "no pool has\r\nSubject: four h100")
        rig.remarks = (*rig.remarks, remark)
        rig.store.record_remarks([remark], lambda _: user)

    return happens


def test_users_are_told_of_their_jobs(rig: Rig, mail: Inbox) -> None:
    rig.loop()
    impossible("104", USER)(rig)
    rig.store.log_event("job:101", new="interrupted", reason="gpu1 is taken back", cause="spot", data={"run": 0})
    rig.store.log_event("job:102", new="interrupted", reason="gpu2 is taken back", cause="spot", data={"run": 0})
    rig.loop(10)
    assert sorted(titles(mail)) == ["the machine of job 101 is taken back", "the machine of job 102 is taken back"]
    rig.loop(60)
    rig.loop(60)
    told = {to[0]: str(one["Subject"]) for to, one in mail.mails if "cannot" in str(one["Subject"])}
    assert told == {USER: "burstd on ada: job 104 cannot start"}
    assert {to[0] for to, _ in mail.mails} == {USER, OTHER_USER}
    # Once for each, whatever the log repeats.
    rig.store.log_event("job:101", new="interrupted", reason="again", cause="spot", data={"run": 0})
    impossible("104", USER)(rig)
    rig.kill()
    rig.start()
    for _ in range(5):
        rig.loop(60)
    assert len(mail.mails) == 3


def test_users_are_told_of_starts_and_budgets_once_also_over_restarts(rig: Rig, mail: Inbox) -> None:
    rig.settings = rig.settings.model_copy(update={"jobs": ("start", "budget"), "budgets": False})
    rig.loop()
    assert mail.mails == [], "these jobs have run for long"
    for _ in range(3):
        rig.jobs = (*JOBS[1:], replace(JOBS[0], start=NOW), job("108", USER))
        rig.budgets = [replace(BUDGET, stops=("108", "104", "103"))]
        rig.loop(1)
        rig.loop(1)
        rig.kill()
        rig.start()
    assert sorted((to[0], str(one["Subject"]).removeprefix("burstd on ada: ")) for to, one in mail.mails) == [
        (OTHER_USER, "a budget has too little left for your jobs"),
        (USER, "a budget has too little left for your jobs"),
        (USER, "job 101 has started"),
    ]
    rig.loop(31 * 86400)
    assert len(mail.mails) == 5


def deliver(rig: Rig, number: str, state: JobState, array_task: str = "") -> None:
    made = Staging(number, USER, 1, 1, Directives(), StageState.WAITING, NOW, NOW, array_task=array_task)
    rig.store.make_staging(made)
    rig.store.transition_staging(number, StageState.WAITING, StageState.HELD, "tried")
    rig.store.transition_staging(number, StageState.HELD, StageState.DELIVERING, "tried", job_state=state.value)
    rig.store.transition_staging(number, StageState.DELIVERING, StageState.DELIVERED, "9 bytes of output are home")


def test_users_are_told_of_output_that_is_home_once_an_array(rig: Rig, mail: Inbox) -> None:
    rig.settings = rig.settings.model_copy(update={"jobs": ("output_home",)})
    tasks = [job(f"200_{n}", USER, JobState.STAGE_OUT, array_job_id="200") for n in range(3)]
    rig.jobs = (*JOBS, *tasks)
    rig.loop()
    deliver(rig, "200", JobState.COMPLETED, "200_0")
    deliver(rig, "201", JobState.FAILED, "200_1")
    deliver(rig, "300", JobState.TIMEOUT)
    rig.loop(1)
    assert titles(mail) == ["the output of job 300 is home"]
    assert "9 bytes of output are home; the job had failed; see " in mail.mails[0][1].get_content()
    rig.kill()
    rig.start()
    rig.jobs = (*JOBS, tasks[2])
    rig.loop(7200)
    deliver(rig, "202", JobState.COMPLETED, "200_2")
    rig.loop(1)
    assert len(mail.mails) == 1
    rig.jobs = (*JOBS, replace(tasks[2], state=JobState.COMPLETED))
    for _ in range(3):
        rig.loop(1)
        rig.kill()
        rig.start()
    assert titles(mail)[1:] == ["the output of job 200 is home"]
    assert "the output of 3 tasks is home; 1 of them had failed; see " in mail.mails[1][1].get_content()


def test_a_job_that_can_start_after_all_is_not_told_of(rig: Rig, mail: Inbox) -> None:
    rig.loop()
    impossible("104", USER)(rig)
    rig.loop(10)
    rig.remarks = (Remark("placement", "job:104", "wait", "room"),)
    for _ in range(4):
        rig.loop(60)
    assert mail.mails == []


def test_what_is_not_asked_for_is_not_told(rig: Rig, mail: Inbox) -> None:
    rig.settings = rig.settings.model_copy(update={"jobs": ("output",), "alarms": False, "budgets": False})
    rig.alarms, rig.budgets = [SKY], [BUDGET]
    rig.loop()
    impossible("104", USER)(rig)
    rig.store.log_event("job:101", new="interrupted", reason="x", cause="spot", data={"run": 0})
    for _ in range(10):
        rig.loop(60)
    assert (mail.mails, rig.states()) == ([], {})


def test_a_user_gets_few_and_the_queue_is_bounded(rig: Rig, mail: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loop()
    for number in range(3 * MAX_FOR_USER):
        rig.store.log_event(f"job:{number}", new="interrupted", reason="gone", cause="spot", data={"user": USER})
    for _ in range(2 * MAX_FOR_USER):
        rig.loop(1)
    assert len(mail.mails) == MAX_FOR_USER
    assert "further messages of this kind and hour are left out" in mail.mails[-1][1].get_content()
    impossible("104", USER)(rig)
    for _ in range(10):
        rig.loop(60)
    assert "job 104 cannot start" in mail.mails[-1][1]["subject"]
    monkeypatch.setattr(service_module, "MAX_WAITING", 5)
    mail.faults = [450] * 99
    rig.budgets = [replace(BUDGET, name=str(n)) for n in range(50)]
    rig.loop(1)
    assert rig.states()["waiting"] == 5


def test_a_way_that_the_settings_lose_is_given_up(rig: Rig, mail: Inbox) -> None:
    mail.faults = [450]
    rig.budgets = [BUDGET]
    rig.loop()
    rig.settings = NotifySettings()
    rig.loop(20)
    assert rig.states() == {"given up": 1}
    assert mail.mails == []


def test_a_record_that_cannot_be_written_is_an_alarm_and_nothing_is_lost(
    rig: Rig, mail: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.budgets = [BUDGET]

    def full(_: object) -> Any:
        raise StoreFull("no space")

    with monkeypatch.context() as broken:
        broken.setattr(rig.store, "add_deliveries", full)
        rig.loop()
        assert rig.service.alarms() == ("notifications cannot be recorded: no space",)
    rig.loop(5)
    assert rig.service.alarms() == ()
    assert len(mail.mails) == 1


def test_the_test_says_what_came_of_each_way(rig: Rig, mail: Inbox) -> None:
    rig.settings = rig.settings.model_copy(update={"program": Path("/nonexistent/hook")})
    found = {one.way: one.error for one in rig.service.test("root")}
    assert found == {"program": "/nonexistent/hook cannot be run (No such file or directory)", "mail": ""}
    assert titles(mail) == ["test"]
    assert rig.states() == {}
    rig.settings = NotifySettings()
    assert rig.service.test("root") == []


def test_what_was_sent_is_forgotten_after_two_months(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with Store.open(tmp_path / "burstd.db", clock) as store:
        one = Delivery(Notification("x", NotificationKind.BUDGET, "80", NOW, "t", "\ud800\0"), "mail")
        store.add_deliveries([one])
        assert store.deliveries_waiting()[0].notification.title == "t"
        store.settle_delivery(one, DeliveryState.SENT)
        assert (store.deliveries_waiting(), store.known_notifications(["x", "y"])) == ([], {"x"})
        clock.time += 63 * 86400
        store.add_deliveries([])
        assert store.known_notifications(["x"]) == set()
