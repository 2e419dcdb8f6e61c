"""Jobs that ran on nodes of the site and left the queue: what they cost there, beside clouds, and who is told."""

from __future__ import annotations

import os
import pwd
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.db import Store, StoreReader
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import WHOLE, Payer
from burstd.domain.slurm.job_history import EndedJob
from tests.db.samples import ManualClock

from .client import ApiTestClient
from .fake_backend import serving_api
from .world import NOW, OTHER_USER, USER, FixedClock

HOUR = 3600.0


def run(job: str, user: str, hours: float, ended: float | None = NOW) -> SiteRun:
    """At 2.60 an hour until now."""
    payer = Payer(job, user, "a", "p")
    return SiteRun("gpu", payer, int(hours), NOW - hours * HOUR, WHOLE, Decimal("2.60"), "EUR", ended)


def test_runs_that_go_on_tasks_and_components_count_and_another_users_do_not(tmp_path: Path) -> None:
    with Store.open(tmp_path / "burstd.db", ManualClock(NOW)) as store:
        store.save_site_runs(
            [run("7_2", USER, 1, None)],
            [run("7", USER, 2), run("7_1", USER, 3), run("7", OTHER_USER, 4), run("71", USER, 5)],
        )
        with StoreReader.open(store.location, FixedClock()) as reader:
            hours = {user: reader.job_site_cost("7", user).get("EUR", Decimal(0)) / Decimal("2.60")
                     for user in ("", USER, OTHER_USER)}  # fmt: skip
            assert hours == {"": 10, USER: 6, OTHER_USER: 4}
            assert reader.job_site_cost("7_1") == {"EUR": Decimal("7.80")}
            assert reader.job_site_cost("8") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_who_ran_it_and_administrators_see_what_it_cost(tmp_path: Path) -> None:
    """Also where nothing but its run is on record; job 8 is said to be another's since."""
    with Store.open(tmp_path / "burstd.db", ManualClock(NOW)) as store:
        store.record_ended_jobs([
            EndedJob(job, USER, "a", "x", ("p",), 1, 4, 0, 0.0, NOW - HOUR, NOW - HOUR, NOW, burst=False)
            for job in ("7", "8")
        ])  # fmt: skip
        store.save_site_runs((), [run("7", USER, 1), run("8", USER, 1)])
        store.log_event("job:8", new="held", reason="its data", cause="staging", data={"user": OTHER_USER})
        with StoreReader.open(store.location, FixedClock()) as reader, serving_api(reader) as (_, path):
            told = {}
            for user in ("root", USER, OTHER_USER):
                for job in ("7", "8"):
                    with ApiTestClient(path, pwd.getpwnam(user).pw_uid) as client:
                        told[user, job] = client.request("GET", f"/v1/jobs/{job}")
    assert {key: status for key, (status, _) in told.items()} == {
        ("root", "7"): 200, ("root", "8"): 200, (USER, "7"): 200, (USER, "8"): 403,
        (OTHER_USER, "7"): 403, (OTHER_USER, "8"): 200,
    }  # fmt: skip
    own = [{"amount": "2.600000", "currency": "EUR"}]
    assert {key: said["site_cost"] for key, (status, said) in told.items() if status == 200 and not said["cost"]} == {
        ("root", "7"): own, ("root", "8"): own, (USER, "7"): own, (OTHER_USER, "8"): [],
    }  # fmt: skip
