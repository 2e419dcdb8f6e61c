"""The policy schedule: when its windows are open, and what holds in them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

import policies.schedule
from burstd.domain.claim import Cause
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import OfferRule
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.snapshot import CloudView, Pin, Unavailable
from burstd.planner.policy_chain import make_target

from .worlds import NOW, claim, job, last_verdict, make_snapshot, offer, pool, wants

OFFICE = {"cron": "0 8 * * mon-fri", "length": "10h"}
ALWAYS = {"cron": "* * * * *", "length": "1h"}


def schedule(timezone: str = "Europe/Berlin", **windows: dict[str, Any]) -> Policy:
    settings = policies.schedule.ScheduleSettings.model_validate({"timezone": timezone, "windows": windows})
    return policies.schedule.plugin.make(settings)


def moment(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def at(now: float, policy: Policy, jobs: int = 2, **fields: Any) -> Target:
    """A world at another moment, with jobs that would each get a machine."""
    waiting = [job(str(n), exclusive=True, submitted=now - 60, eligible=now - 60) for n in range(1, jobs + 1)]
    return make_target(replace(make_snapshot(*waiting, **fields), now=now), (policy,))


@pytest.mark.parametrize(
    ("case", "window", "now", "closed"),
    [
        ("a second before", OFFICE, "2026-11-23T07:59:59", False),
        ("it begins", OFFICE, "2026-11-23T08:00:00", True),
        ("a second before its end", OFFICE, "2026-11-23T17:59:59", True),
        ("it is over", OFFICE, "2026-11-23T18:00:00", False),
        ("no weekday", OFFICE, "2026-11-22T12:00:00", False),
        ("weekdays count from Sunday, as in crontab", {"cron": "0 8 * * 0", "length": "1h"}, "2026-11-22T08:30", True),
        ("and end with it", {"cron": "0 8 * * 6-7", "length": "1h"}, "2026-11-22T08:30", True),
        ("Sunday to Tuesday", {"cron": "0 8 * * 0-2", "length": "1h"}, "2026-11-24T08:30", True),
        ("not on Wednesday", {"cron": "0 8 * * 0-2", "length": "1h"}, "2026-11-25T08:30", False),
        ("over midnight", {"cron": "0 20 * * *", "length": "12h"}, "2026-11-23T07:59", True),
        ("summer time", {"cron": "0 8 * * *", "length": 3600}, "2026-07-01T08:30", True),
        ("the hour that comes twice", {"cron": "0 2 * * *", "length": "1h"}, "2026-10-25T02:30", True),
        ("the hour that is left out", {"cron": "0 22 * * *", "length": "8h"}, "2026-03-29T06:59", True),
        ("so long, whatever clocks do", {"cron": "0 22 * * *", "length": "8h"}, "2026-03-29T07:00", False),
        ("every quarter of an hour", {"cron": "*/15 * * * *", "length": "5min"}, "2026-11-23T09:34:59", True),
        ("and not between", {"cron": "*/15 * * * *", "length": "5min"}, "2026-11-23T09:35:00", False),
        ("before a date", {"begin": "2026-12-01T08:00", "end": "2026-12-02"}, "2026-12-01T07:59:59", False),
        ("from a date on", {"begin": "2026-12-01T08:00", "end": "2026-12-02"}, "2026-12-01T08:00", True),
        ("until a date", {"begin": "2026-12-01T08:00", "end": "2026-12-02"}, "2026-12-02T00:00", False),
        ("another zone's date", {"begin": "2026-12-01T08:00Z", "end": "2026-12-02"}, "2026-12-01T08:30", False),
    ],
)
def test_windows_open_and_close(case: str, window: dict[str, Any], now: str, closed: bool) -> None:
    found = at(moment(now), schedule(night={**window, "burst": False}))
    assert (len(found.wants) == 0) == closed, case


@pytest.mark.parametrize(
    ("weekdays", "days"),
    [
        ("*", "sun mon tue wed thu fri sat"),
        ("1-5/2", "mon wed fri"),
        ("*/2", "sun tue thu sat"),
        ("0-2/2", "sun tue"),
        ("MON-fri/2", "mon wed fri"),
        ("6-7", "sun sat"),
        ("fri-mon", "sun mon fri sat"),
        ("5-0,2", "sun tue fri sat"),
    ],
)
def test_weekdays_are_those_of_crontab(weekdays: str, days: str) -> None:
    names = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
    policy = schedule(all={"cron": f"0 8 * * {weekdays}", "length": "1h", "burst": False})
    found = [at(moment(f"2026-11-{22 + n}T08:30"), policy).wants == () for n in range(7)]
    assert [name for name, closed in zip(names, found, strict=True) if closed] == days.split()


@pytest.mark.parametrize(
    "bound", [{"burst": False}, {"max_nodes": 0}, {"providers": ["!sky"]}], ids=["shut", "none", "elsewhere"]
)
@pytest.mark.parametrize("order", [1, -1])
def test_no_window_starts_nodes_against_another(bound: dict[str, Any], order: int) -> None:
    windows = {"bound": {**ALWAYS, **bound}, "warm": {**ALWAYS, "min_nodes": 2}}
    found = at(NOW, schedule("UTC", **dict(list(windows.items())[::order])), jobs=0)
    assert found.wants == ()


def test_a_node_of_a_jobs_own_is_none_of_the_warm_ones() -> None:
    own = claim("cpu1", S.IN_SERVICE, jobs=("7",), dedicated_by_policy=True)
    found = at(NOW, schedule(warm={**ALWAYS, "min_nodes": 1}), jobs=0, claims=(own,))
    assert [w.cause for w in found.wants] == [Cause.FLOOR]


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-11-23T08:30", "Mon 2026-11-23 18:00 CET"),
        ("2026-11-23T17:59", "Mon 2026-11-23 18:00 CET"),
    ],
)
def test_a_job_is_told_until_when(now: str, until: str) -> None:
    found = at(moment(now), schedule(office={**OFFICE, "burst": False}))
    assert last_verdict(found) == ("wait", f"schedule window office allows no launches until {until}")


def test_a_window_that_opens_again_while_it_is_open_lasts_longer() -> None:
    found = at(moment("2026-11-23T08:50"), schedule(all={"cron": "*/20 * * * *", "length": "2h", "burst": False}))
    assert last_verdict(found)[1].endswith("until Mon 2026-11-23 10:40 CET")


@pytest.mark.parametrize(
    ("case", "window", "there", "nodes"),
    [
        ("nothing holds", {}, 0, 3),
        ("another pool", {"pools": ["gpu*"], "burst": False}, 0, 3),
        ("this pool", {"pools": ["c*"], "burst": False}, 0, 0),
        ("most nodes", {"max_nodes": 2}, 0, 2),
        ("of these some are there", {"max_nodes": 2}, 1, 1),
        ("most nodes of another pool", {"pools": ["gpu"], "max_nodes": 0}, 0, 3),
        ("a provider", {"providers": ["sky"]}, 0, 3),
        ("not this provider", {"providers": ["!sky"]}, 0, 0),
    ],
)
def test_what_holds_in_a_window(case: str, window: dict[str, Any], there: int, nodes: int) -> None:
    claims = tuple(claim(f"cpu{n}", S.TERMINATING) for n in range(1, there + 1))
    found = at(NOW, schedule(all={**ALWAYS, **window}), jobs=3, claims=claims)
    assert sum(w.nodes for w in found.wants) == nodes, case


def test_only_some_users_and_accounts() -> None:
    policy = schedule(night={**ALWAYS, "accounts": ["phys-*", "!phys-students"], "users": ["!eve"]})
    rows = [
        job("1", account="phys-a"), job("2", account="phys-students"), job("3", account="chem"),
        job("4", account="phys-a", user="eve"),
    ]  # fmt: skip
    found = make_target(make_snapshot(*rows), (policy,))
    assert [(w.jobs, w.users, w.accounts) for w in found.wants] == [(("1",), ("ada",), ("phys-a",))]
    assert "allows no launches for account phys-students" in last_verdict(found, "2")[1]
    assert "allows no launches for account chem" in last_verdict(found, "3")[1]
    assert "allows no launches for user eve" in last_verdict(found, "4")[1]


def test_the_next_provider_where_one_is_left_out() -> None:
    two = pool(rules=(OfferRule("sky"), OfferRule("sea")))
    snapshot = make_snapshot(job(), pools=(two,))
    sea = replace(offer(price="5"), provider="sea")
    snapshot = replace(snapshot, clouds={**snapshot.clouds, "sea": CloudView((sea,), ())})
    found = make_target(snapshot, (schedule(day={**ALWAYS, "providers": ["sea"]}),))
    assert [[o.provider for o in w.offers] for w in found.wants] == [["sea"]]
    assert [(out.offer, out.by) for out in found.wants[0].excluded_offers] == [("sky/r1/a/small/on-demand", "schedule")]


def test_warm_nodes_are_kept_and_started() -> None:
    there = claim("cpu1", S.IN_SERVICE)
    found = make_target(make_snapshot(claims=(there,)), (schedule(warm={**ALWAYS, "min_nodes": 2}),))
    assert (found.releases, [(w.cause, w.nodes) for w in found.wants]) == ((), [(Cause.FLOOR, 1)])
    assert [(r.subject, r.verdict) for r in found.remarks if r.by == "schedule"] == [
        ("claim:c-cpu1", "keep"), ("pool:cpu", "add"),
    ]  # fmt: skip
    enough = make_target(make_snapshot(claims=(there,)), (schedule(warm={**ALWAYS, "min_nodes": 1}),))
    assert (enough.releases, enough.wants) == ((), ())


def test_an_administrator_has_the_last_word() -> None:
    pin = Pin("cpu", 1, "floor", None, "root", NOW)
    found = make_target(make_snapshot(pins=(pin,)), (schedule(shut={**ALWAYS, "burst": False}),))
    assert [w.cause for w in found.wants] == [Cause.PIN]


def test_a_gang_is_not_split() -> None:
    found = make_target(make_snapshot(job(nodes=3, cpus=3)), (schedule(all={**ALWAYS, "max_nodes": 2}),))
    assert wants(found) == []


def test_nothing_is_done_while_slurm_is_silent() -> None:
    silent = replace(make_snapshot(job()), slurm=Unavailable("slurmctld does not answer", NOW - 30))
    assert make_target(silent, (schedule(all={**ALWAYS, "min_nodes": 2}),)).wants == ()


@pytest.mark.parametrize(
    ("window", "fault"),
    [
        ({"cron": "0 25 * * *", "length": "1h"}, "is no cron expression"),
        ({"cron": "0 8 * *", "length": "1h"}, "it has 4"),
        ({"cron": "0 8 * * mon-xyz", "length": "1h"}, "'xyz' is no weekday"),
        ({"cron": "0 8 * * 8", "length": "1h"}, "'8' is no weekday"),
        ({"cron": "0 8 * * 5-2", "length": "1h"}, "end before they begin"),
        ({"cron": "0 8 * * 1/2", "length": "1h"}, "'1/2' is no weekday"),
        ({"cron": "0 8 * * */0", "length": "1h"}, "is no weekday"),
        ({**OFFICE, "burst": False, "min_nodes": 1}, "leave one of them out"),
        ({**OFFICE, "max_nodes": 1, "min_nodes": 2}, "less than 'min_nodes'"),
        ({"cron": "0 8 1 * mon", "length": "1h"}, "make two windows"),
        ({"cron": "0 8 31 2 *", "length": "1h"}, "never comes round"),
        ({"cron": "0 8 * * *"}, "'length' must say"),
        ({"cron": "0 8 * * *", "length": "1w"}, "a number and a unit"),
        ({"burst": False}, "either 'cron' and 'length', or"),
        ({"begin": "2026-12-01"}, "both 'begin' and 'end'"),
        ({"begin": "2026-12-02", "end": "2026-12-01"}, "ends before it begins"),
        ({**OFFICE, "no_such_key": 1}, "Extra inputs"),
    ],
)
def test_wrong_windows_are_named(window: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        schedule(bad=window)


def test_an_unknown_time_zone_is_named() -> None:
    with pytest.raises(ValidationError, match="time zone that this machine knows"):
        schedule("Europe/Atlantis")
