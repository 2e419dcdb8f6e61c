"""The look at a job's files at sbatch: one deadline, one at a time, and a share of slurmctld's time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.submission import submit_check as module
from burstd.staging.submission.submit_check import (
    BURST_S,
    REST_FACTOR,
    SubmitCheck,
    SubmitCheckRules,
    SubmitCheckThrottle,
)
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerTimeout, start_user_worker
from tests.transfer.ground import USER, give_to_user, root_only, user_folder


def test_one_look_at_a_time_and_a_tenth_of_the_time() -> None:
    now = 1000.0
    turns = SubmitCheckThrottle(lambda: now)
    with turns.admit(1) as first, turns.admit(1) as second, turns.admit(2) as other:
        assert (first, second, other) == (True, False, True)
    looked = 0.0
    for _ in range(1000):
        with turns.admit(1) as may:
            now += 0.5 if may else 0.1
            looked += 0.5 * may
    assert looked <= BURST_S + (now - 1000.0) / REST_FACTOR + 0.5
    with turns.admit(2) as other:
        assert other
    now += 3600
    with turns.admit(1) as may:
        assert may


def make_submit_check(open_worker: Callable[[Account, float], UserWorker], seconds: float) -> SubmitCheck:
    use = StorageUse("x", 0, None)
    rules = SubmitCheckRules(seconds, None, lambda _name: None)
    return SubmitCheck(rules, open_worker, lambda *_: pytest.fail("no objects"), lambda *_: (use, use))


@root_only
@pytest.mark.boxes
def test_a_worker_that_its_user_stops_costs_the_deadline_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "account", lambda _uid: Account("someone", USER, USER, (USER,), "/"))
    # Its start is not part of the deadline: under load that alone takes longer.
    worker = start_user_worker(USER, USER, home="/")
    assert worker._child is not None
    os.kill(worker._child.pid, signal.SIGSTOP)
    measured = Mock(wraps=worker.measure_source)
    monkeypatch.setattr(worker, "measure_source", measured)

    def stopped(_who: Account, deadline: float) -> UserWorker:
        worker.set_deadline(deadline)
        return worker

    with user_folder() as place:
        (place / "a").write_text("a")
        give_to_user(place)
        lines = "".join(f"#BURST stage_in {place}/a as a{n}\n" for n in range(200))
        said = make_submit_check(stopped, 0.5)(StageCall("check", "1", USER, USER, text=lines))
    assert said.result == "ok", "it is looked at again when it is staged"
    assert measured.call_count <= 1, "the deadline is one for all lines"
    assert worker._child is None, "it has been ended"


@root_only
@pytest.mark.boxes
def test_all_requests_of_a_worker_have_one_deadline() -> None:
    with user_folder() as place:
        give_to_user(place)
        with start_user_worker(USER, USER, deadline=time.monotonic() + 30) as worker:
            worker.destination_space(str(place))
            worker.set_deadline(time.monotonic() - 1)
            assert worker._child is not None
            os.kill(worker._child.pid, signal.SIGSTOP)
            with pytest.raises(UserWorkerTimeout):
                worker.destination_space(str(place))


def test_nothing_is_looked_at_while_the_user_rests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "account", lambda _uid: Account("someone", USER, USER, (USER,), "/"))

    def none(_who: Account, _deadline: float) -> UserWorker:
        raise AssertionError("no hand is needed")

    check = make_submit_check(none, 0.5)
    with check._throttle.admit(USER):
        text = f"#BURST stage_in {tmp_path}/none\n#BURST stage_out a to /there\n"
        assert check(StageCall("check", "1", USER, USER, text=text)).result == "ok"
        home = StageCall("check", "2", USER, USER, text="#BURST workdir\n", info={"work_dir": "/"})
        refused = check(home)
        assert (refused.result, "/ is your home directory" in refused.text) == ("refused", True), "no look is needed"
    assert check._is_announced(USER, "/there/a"), "what it brings is counted on all the same"


@root_only
@pytest.mark.boxes
def test_nobody_learns_what_anothers_jobs_will_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "account", lambda uid: Account(f"u{uid}", uid, uid, (uid,), "/"))
    with user_folder() as place:
        give_to_user(place)
        place.chmod(0o777)
        check = make_submit_check(lambda who, _deadline: start_user_worker(who.uid, who.gid, home="/"), 5.0)
        his = StageCall("check", "1", USER, USER, text=f"#BURST stage_out a to {place}/b\n")
        assert check(his).result == "ok"
        after = f"#BURST stage_in {place}/b/a\n"
        assert check(StageCall("check", "2", USER, USER, text=after)).result == "ok", "his own may count on it"
        assert check(StageCall("check", "3", USER + 1, USER + 1, text=after)).result == "refused"
