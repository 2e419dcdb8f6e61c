"""Closed months: their charges and their hash stay; what differs later is a correction; all sums stay exact."""

from __future__ import annotations

import csv
import hashlib
import io
import multiprocessing
import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, event, select, text, update

from burstd.db import Cursor, Store
from burstd.db.repositories.bill import BillGrouping
from burstd.db.tables import CHARGE, CLOSED_MONTH
from burstd.domain.billing.closing import COLUMNS, RULE, ClosedMonth, close_month, days_of, month_file, site_month_file
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import DAY_S, WHOLE, ClaimRun, Kind, Payer
from burstd.domain.claim import ClaimState
from burstd.domain.volume import VolumeState

from .opening import open_store
from .samples import ManualClock, planned
from .test_money import ANN, BOB, CENTS, amount, begin, check, end
from .test_volumes import PLANNED, created

S = ClaimState


def at(month: int, day: int, hour: int = 0) -> float:
    return datetime(2026, month, day, hour, tzinfo=UTC).timestamp()


WAIT_S = 5 * DAY_S
SITE_RUN = SiteRun(
    "old", Payer("1", "ann", "atlas", "cpu"), 5, at(10, 31, 22), WHOLE // 2, Decimal("3.60"), "EUR", nodes="n[1-2]"
)
SITE_OVER = replace(SITE_RUN, payer=Payer("2", "bob", "belle", "cpu"), ended=at(11, 1, 1))


def close_months(store: Store) -> list[ClosedMonth]:
    """All that are due."""
    return [*iter(partial(store.close_month, WAIT_S), None)]


def file_of(store: Store, month: str) -> str:
    return "".join(month_file(store.charges_of_days(days_of(month))))


def found_month(store: Store, month: ClosedMonth) -> ClosedMonth:
    """What is on record of it."""
    days = days_of(month.month)
    return close_month(
        month.month, month.closed, store.charges_of_days(days, month.rule), store.site_charges_of_days(days)
    )  # fmt: skip


def site_file_of(store: Store, month: str) -> str:
    return "".join(site_month_file(store.site_charges_of_days(days_of(month))))


def check_unchanged(store: Store) -> None:
    """All closed months are as they were when they were closed."""
    for month in store.closed_months():
        found = found_month(store, month)
        assert replace(found, rule=month.rule) == month


def rows(store: Store, month: str) -> Counter[tuple[str, ...]]:
    """Kind, cause, user, amount and corrected month of its charges."""
    found = list(csv.DictReader(io.StringIO(file_of(store, month))))
    return Counter((r["kind"], r["cause"], r["user"], r["amount"], r["corrects"]) for r in found)


@pytest.fixture
def across(store: Store, clock: ManualClock) -> Store:
    """A machine that began an hour before November and is idle from its boot on."""
    clock.time = at(10, 31, 23)
    begin(store, planned(offer=CENTS), clock=clock)
    return store


def test_a_month_is_closed_when_its_time_has_come_with_what_machines_that_are_up_have_cost_in_it(
    across: Store, clock: ManualClock
) -> None:
    clock.time = at(11, 6) - 1
    assert close_months(across) == []
    before = [across.bill(group, at(10, 1)) for group in ("user", "claim", "day")]
    clock.time = at(11, 6)
    [closed] = close_months(across)
    assert close_months(across) == []
    assert (closed.month, closed.closed, closed.charges) == ("2026-10", clock.time, 2)
    assert closed.totals == {"EUR": Decimal("3.600000")}
    assert across.closed_months() == (closed,)
    assert rows(across, "2026-10") == {
        ("boot", "", "ann", "0.100000", ""): 1, ("idle", "before_first_job", "", "3.500000", ""): 1,
    }  # fmt: skip
    clock.time -= 1
    assert [across.bill(group, at(10, 1)) for group in ("user", "claim", "day")] == before
    assert {line.claims for line in across.bill("claim", at(10, 1))} == {1}
    assert across.job_cost("17") == {"EUR": Decimal("0.100000")}
    check(across, across.claims(), clock.time)
    end(across, "c1", clock)
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)
    clock.time = at(12, 6)
    [november] = close_months(across)
    assert november.month == "2026-11"
    across.purge(clock.time, at(10, 31))
    check_unchanged(across)
    across.purge(clock.time + 1, at(11, 1))
    assert across.closed_months() == (closed, november)
    assert file_of(across, "2026-10").splitlines() == [",".join(COLUMNS)]
    assert file_of(across, "2026-11")


def test_what_differs_later_is_a_correction_on_the_first_day_of_the_first_open_month(
    across: Store, clock: ManualClock
) -> None:
    clock.time = at(11, 6)
    close_months(across)
    begun = at(10, 31, 23) + 100
    across.save_runs([ClaimRun("c1", ANN, begun, WHOLE, begun + 500)])  # seen late
    clock.time = at(11, 7)
    end(across, "c1", clock)
    across.update_claim("c1", billed_until=at(10, 31, 23) + 2600)  # the cloud's late word
    expected = {
        ("work", "", "ann", "0.500000", "2026-10"): 1, ("idle", "before_first_job", "", "-3.500000", "2026-10"): 1,
        ("idle", "keep_alive", "", "3.000000", "2026-10"): 1,
        ("idle", "keep_alive", "", "-1.000000", "2026-10"): 1,
    }  # fmt: skip
    assert {key: n for key, n in rows(across, "2026-11").items() if key[-1]} == expected
    lines = {line.key: line for line in across.bill("user", at(11, 1))}
    assert {(p.kind, p.corrects): str(p.cost) for p in lines["ann"].parts} == {("work", "2026-10"): "0.500000"}
    assert [line.key for line in across.bill("day", at(11, 1))] == ["2026-11-01"]
    assert across.job_cost("17") == {"EUR": Decimal("0.600000")}
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)
    clock.time = at(12, 6)
    close_months(across)
    across.update_claim("c1", billed_until=at(10, 31, 23) + 1600)
    assert rows(across, "2026-12") == {("idle", "keep_alive", "", "-1.000000", "2026-10"): 1}
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)


def test_corrections_of_a_machine_that_is_up_stay_in_one_month_and_are_closed_with_it(
    across: Store, clock: ManualClock
) -> None:
    clock.time = at(11, 6)
    close_months(across)
    begun = at(10, 31, 23) + 100
    across.save_runs([ClaimRun("c1", ANN, begun, WHOLE, begun + 500)])  # seen late
    for clock.time in (at(11, 7), at(12, 3), at(12, 6)):
        if clock.time == at(12, 6):
            close_months(across)
        [ann] = [line for line in across.bill("user", at(11, 1), at(12, 1)) if line.key == "ann"]
        assert [(part.corrects, str(part.cost)) for part in ann.parts] == [("2026-10", "0.500000")]
        assert not any(part.corrects for line in across.bill("day", at(11, 2)) for part in line.parts)
    corrections = {
        ("work", "", "ann", "0.500000", "2026-10"): 1, ("idle", "before_first_job", "", "-3.500000", "2026-10"): 1,
        ("idle", "keep_alive", "", "3.000000", "2026-10"): 1,
    }  # fmt: skip
    assert {key: n for key, n in rows(across, "2026-11").items() if key[-1]} == corrections
    check(across, across.claims(), clock.time)
    across.save_runs([ClaimRun("c1", BOB, at(11, 20), WHOLE, at(11, 21))])
    clock.time = at(12, 7)
    end(across, "c1", clock)
    assert {key[-1] for key in rows(across, "2026-12")} == {"", "2026-11", "2026-10"}
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)


def test_what_closed_months_have_of_a_machine_that_is_handed_over_moves_in_the_month_in_which_it_is(
    across: Store, clock: ManualClock
) -> None:
    def spent() -> dict[str, str]:
        return {one.month: str(one.amount) for one in across.spending() if not one.kind}

    def costs(group: BillGrouping) -> dict[str, str]:
        return {line.key: str(line.cost) for line in across.bill(group, at(11, 1), min(clock.time, at(12, 1)))}

    def pools(since: float, until: float) -> set[tuple[str, Decimal]]:
        lines, _ = across.charge_page(since, until, Cursor(clock.time), 1000)
        return {(pool, amount(line for line in lines if line.pool == pool)) for pool in {line.pool for line in lines}}

    clock.time = at(11, 6)
    close_months(across)
    clock.time = at(11, 10)
    across.transition_claim("c1", S.IN_SERVICE, S.DRAINING, "idle")
    across.hand_over_claim("c1", S.DRAINING, planned("x", "gpu002", offer=CENTS, pool="other"), "c0")
    assert costs("claim") == {"c0": "781.200000", "c1": "-3.600000"}
    assert costs("pool") == {"gpu": "777.600000"}
    assert pools(at(10, 1), at(11, 1)) == {("gpu", Decimal("3.6"))}, "the closed month stays in its pool"
    assert pools(at(11, 1), at(11, 10)) == {("gpu", Decimal("777.6"))}
    assert costs("user") == {"": "777.600000", "ann": "0.000000"}
    assert spent() == {"2026-10": "3.600000", "2026-11": "777.600000"}
    check(across, across.find_claims(), clock.time)
    for old, new in ((S.VALIDATING, S.READY), (S.READY, S.IN_SERVICE)):
        across.transition_claim("c1", old, new, "so")
    clock.time = at(11, 11)
    assert {line.key: line.claims for line in across.bill("pool", at(10, 1))} == {"gpu": 2, "other": 1}
    clock.time = at(12, 6)
    [november] = close_months(across)
    assert november.totals == {"EUR": Decimal("2592.000000")}
    assert costs("pool") == {"gpu": "777.600000", "other": "1814.400000"}
    end(across, "c1", clock)
    assert spent() == {"2026-10": "3.600000", "2026-11": "2592.000000", "2026-12": "432.000000"}
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)


def test_a_machine_that_is_found_after_the_month_was_closed_is_all_correction(store: Store, clock: ManualClock) -> None:
    clock.time = at(10, 1)
    begin(store, planned("c0", "n0", offer=CENTS), clock=clock)
    end(store, "c0", clock)
    clock.time = at(11, 6)
    [closed] = close_months(store)
    began = at(10, 31, 23)
    store.adopt_claim(
        replace(planned("c1", offer=CENTS), state=S.TERMINATING, billed_from=began, in_service_from=began)
    )
    for _ in range(2):
        [line] = [line for line in store.bill("claim", at(11, 1)) if line.key == "c1"]
        assert [p.cost for p in line.parts if p.corrects == "2026-10"] == [Decimal("3.600000")]
        check(store, store.find_claims(), clock.time)
        if store.claims():
            store.transition_claim("c1", S.TERMINATING, S.GONE, "gone")
    assert store.closed_months() == (closed,)
    check_unchanged(store)


@pytest.mark.parametrize(("state", "waits"), [(S.TERMINATING, True), (S.DRAINING, False)])
def test_a_month_waits_for_machines_whose_end_was_asked_for_in_it(
    across: Store, clock: ManualClock, state: ClaimState, waits: bool
) -> None:
    across.transition_claim("c1", S.IN_SERVICE, S.DRAINING, "idle")
    if state is S.TERMINATING:
        across.transition_claim("c1", S.DRAINING, S.TERMINATING, "idle")
    clock.time = at(12, 1)
    assert [month.month for month in close_months(across)] == ([] if waits else ["2026-10"])
    if waits:
        across.transition_claim("c1", S.TERMINATING, S.GONE, "gone", billed_until=at(10, 31, 23) + 500)
        [closed] = close_months(across)
        assert closed.totals == {"EUR": Decimal("0.500000")}


def test_months_are_closed_one_after_the_other_also_those_without_charges(store: Store, clock: ManualClock) -> None:
    clock.time = at(12, 30)
    assert close_months(store) == []
    clock.time = at(8, 3)
    begin(store, planned(offer=CENTS), clock=clock)
    end(store, "c1", clock)
    clock.time = at(11, 20)
    closed = close_months(store)
    assert [(month.month, month.charges) for month in closed] == [("2026-08", 1), ("2026-09", 0), ("2026-10", 0)]
    assert closed[1].sha256 == hashlib.sha256((",".join(COLUMNS) + "\n").encode()).hexdigest()


def test_months_that_a_clock_which_was_ahead_closed_are_open_again(across: Store, clock: ManualClock) -> None:
    begin(across, planned("c2", "n2", offer=CENTS), clock=clock)
    ahead_s = at(12, 20) - clock.time
    clock.time += ahead_s
    close_months(across)
    assert len(across.closed_months()) == 2
    end(across, "c2", clock)
    across.update_claim("c2", billed_from=at(10, 31, 23) + 200)
    clock.time -= ahead_s
    across.shift_late_times(clock.time, ahead_s)
    assert across.closed_months() == ()
    assert not any(part.corrects for line in across.bill("claim", 0) for part in line.parts)
    check(across, across.find_claims(), clock.time)
    clock.time = at(11, 6)
    close_months(across)
    check(across, across.find_claims(), clock.time)
    check_unchanged(across)


def test_what_a_clock_which_was_ahead_corrected_is_of_the_first_day_that_is_open_again(
    across: Store, clock: ManualClock
) -> None:
    clock.time = at(11, 2)
    end(across, "c1", clock)
    begin(across, planned("c2", offer=CENTS), clock=clock)
    end(across, "c2", clock)
    clock.time = at(11, 6)
    [october] = close_months(across)
    ahead_s = at(12, 20) - clock.time
    clock.time += ahead_s
    [_] = close_months(across)
    across.update_claim("c1", billed_until=at(10, 31, 23) + 1000)
    across.update_claim("c2", billed_until=at(11, 2) + 50)
    assert {key[-1] for key in rows(across, "2026-12")} == {"2026-10", "2026-11"}
    across.purge(clock.time)
    clock.time -= ahead_s
    across.shift_late_times(clock.time, ahead_s)
    assert across.closed_months() == (october,)
    assert rows(across, "2026-12") == {}
    assert sum(line.cost for line in across.bill("user", 0.0)) == Decimal("1.050000")
    check_unchanged(across)


def test_charges_stay_as_long_as_their_machines_are_on_record(across: Store, clock: ManualClock) -> None:
    began = clock.time - 100
    begin(across, planned("c2", "n2", offer=CENTS), clock=clock)
    end(across, "c2", clock)
    for clock.time in (at(11, 6), at(12, 6)):
        close_months(across)
        assert across.purge(at(11, 2), at(11, 2)) == (1 if clock.time == at(11, 6) else 0)
        whole = sum(line.cost for line in across.bill("claim", 0.0))
        assert whole == Decimal("0.1") + Decimal(int(clock.time - began)) / 1000
    end(across, "c1", clock)
    across.purge(at(11, 2), at(12, 2))
    across.update_claim("c1", billed_until=clock.time - 10)
    assert {key[-1] for key in rows(across, "2026-12")} == {""}
    check_unchanged(across)
    across.purge(clock.time + 1, at(12, 2))
    assert file_of(across, "2026-11") == ",".join(COLUMNS) + "\n"
    assert rows(across, "2026-12")


def test_the_hash_is_that_of_a_file_which_anybody_can_write(across: Store, clock: ManualClock) -> None:
    nasty = '=1+"ö",\n'
    across.save_runs([ClaimRun("c1", ANN._replace(account=nasty), clock.time, WHOLE // 2, clock.time + 1000)])
    clock.time = at(11, 6)
    [closed] = close_months(across)
    with across._database.reading() as connection:
        stored = connection.execute(text("SELECT * FROM charge")).mappings().all()
    lines = []
    for row in stored:
        day = datetime.fromtimestamp(row["day"] * 86400, UTC).date().isoformat()
        names = [
            row[n]
            for n in (
                "claim_id",
                "kind",
                "cause",
                "job",
                "user",
                "account",
                "partition",
                "pool",
                "provider",
                "currency",
            )
        ]
        cells = [
            day,
            *names,
            f"{row['amount'] // 10**6}.{row['amount'] % 10**6:06}",
            str(row["milliseconds"]),
            row["corrects"],
        ]
        quoted = ['"' + cell.replace('"', '""') + '"' if set(cell) & set('",\r\n') else cell for cell in cells]
        lines.append((cells, ",".join(quoted) + "\n"))
    head = "date,machine,kind,cause,job,user,account,partition,pool,provider,currency,amount,milliseconds,corrects\n"
    body = head + "".join(line for _, line in sorted(lines))
    assert hashlib.sha256(body.encode()).hexdigest() == closed.sha256
    assert closed.charges == len(lines) == 4


def test_a_charge_that_somebody_changed_shows(across: Store, clock: ManualClock) -> None:
    clock.time = at(11, 6)
    close_months(across)
    check_unchanged(across)
    with across._database.writing() as session:
        session.connection().execute(update(CHARGE).where(CHARGE.c.number == 0).values(user="bob"))
    with pytest.raises(AssertionError):
        check_unchanged(across)


def test_volumes_are_closed_with_the_month_and_corrected_as_machines_are(store: Store, clock: ManualClock) -> None:
    """One that lives, and one that ended in October; both cost 0.001 a second."""

    def volumes(since: float, until: float) -> Decimal:
        return sum((line.cost for line in store.bill("user", since, until) if line.volumes), Decimal(0))

    clock.time = at(10, 31, 23)
    created(store, clock, price="3.60")
    created(store, clock, replace(PLANNED, id="v2", name="v2"), price="3.60")
    clock.time += 1000
    store.transition_volume("v2", VolumeState.AVAILABLE, VolumeState.REMOVING, "given up")
    store.transition_volume("v2", VolumeState.REMOVING, VolumeState.GONE, "not listed")
    october = (at(10, 1), at(11, 1))
    clock.time = at(11, 6)
    before = store.bills(("user", "account", "provider", "job", "claim", "day"), *october)
    [closed] = close_months(store)
    assert store.bills(("user", "account", "provider", "job", "claim", "day"), *october) == before
    assert closed.totals == {"EUR": Decimal("4.600000")}
    assert closed.totals["EUR"] == volumes(*october)
    assert rows(store, "2026-10") == {
        ("volume", "", "ann", "3.600000", ""): 1, ("volume", "", "ann", "1.000000", ""): 1,
    }  # fmt: skip
    assert {line.claims for line in store.bill("user", *october)} == {2}
    store.update_volume("v1", price=Decimal("7.20"))
    store.update_volume("v2", billed_until=at(10, 31, 23) + 400)
    for clock.time, cost in ((at(11, 7), "1036.800000"), (at(12, 6), "5184.000000")):
        close_months(store)
        until = min(clock.time, at(12, 1))
        [line] = store.bill("user", at(11, 1), until)
        assert {part.corrects: str(part.cost) for part in line.parts} == {"2026-10": "3.000000", "": cost}
        lines, _ = store.charge_page(at(11, 1), until, Cursor(clock.time), 1000)
        assert amount(lines) == line.cost
        assert store.volume_costs(at(11, 1)) == {"EUR": volumes(at(11, 1), clock.time) / MICRO}
        check_unchanged(store)
    assert len(store.closed_months()) == 2
    store.transition_volume("v1", VolumeState.AVAILABLE, VolumeState.REMOVING, "given up")
    store.transition_volume("v1", VolumeState.REMOVING, VolumeState.GONE, "not listed")
    whole = volumes(0.0, clock.time)
    assert store.purge(clock.time + 1) == 0
    assert store.volumes(gone=True) == ()
    assert volumes(0.0, clock.time) == whole
    lines, _ = store.charge_page(*october, Cursor(clock.time), 1000)
    assert (amount(lines), {line.charge.kind for line in lines}) == (Decimal("4.6"), {Kind.VOLUME})
    check_unchanged(store)


def test_nodes_of_the_site_are_closed_in_a_file_of_their_own_and_corrected(store: Store, clock: ManualClock) -> None:
    """A run that goes on over the month's end, and one that is seen late; each costs 3.60 an hour."""
    clock.time = at(11, 6)
    store.save_site_runs([SITE_RUN], [])
    october, november = (at(10, 1), at(11, 1)), (at(11, 1), clock.time)
    before = [store.site_bill(group, *october) for group in ("user", "job", "day", "pool")]
    [closed] = close_months(store)
    assert [store.site_bill(group, *october) for group in ("user", "job", "day", "pool")] == before
    assert (closed.charges, closed.site_charges, closed.site_totals) == (0, 1, {"EUR": Decimal("7.200000")})
    assert site_file_of(store, "2026-10") == (
        "date,group,nodes,job,run,user,account,partition,currency,amount,milliseconds,corrects\n"
        "2026-10-31,old,n[1-2],1,5,ann,atlas,cpu,EUR,7.200000,3600000,\n"
    )
    assert hashlib.sha256(site_file_of(store, "2026-10").encode()).hexdigest() == closed.site_sha256
    assert store.charged_site_runs({"1", "2"}) == set(), "a run that goes on is not over"
    store.save_site_runs([], [SITE_OVER])  # seen late
    store.save_site_runs([], [replace(SITE_RUN, ended=at(10, 31, 23))])
    assert store.charged_site_runs({"1", "2"}) == {("1", 5), ("2", 5)}
    assert store.open_site_runs() == []
    assert {line.key: str(line.cost) for line in store.site_bill("user", *november)} == {
        "ann": "-3.600000", "bob": "10.800000",
    }  # fmt: skip
    assert store.job_site_cost("1") == {"EUR": Decimal("3.600000")}
    corrections = [row for row in csv.DictReader(io.StringIO(site_file_of(store, "2026-11"))) if row["corrects"]]
    assert [(row["job"], row["date"], row["amount"], row["corrects"]) for row in corrections] == [
        ("1", "2026-11-01", "-3.600000", "2026-10"), ("2", "2026-11-01", "7.200000", "2026-10"),
    ]  # fmt: skip
    check_unchanged(store)
    store.save_site_runs([SITE_RUN], [])  # it runs after all
    store.save_site_runs([], [replace(SITE_RUN, ended=at(10, 31, 23) + 1800)])
    assert store.job_site_cost("1") == {"EUR": Decimal("5.400000")}
    check_unchanged(store)


def test_runs_that_ended_by_a_clock_that_was_ahead_are_charged_on_the_true_day(
    store: Store, clock: ManualClock
) -> None:
    clock.time = at(10, 31, 23)
    store.save_site_runs([SITE_RUN], [])
    clock.time += 50 * DAY_S
    assert [month.month for month in close_months(store)] == ["2026-10", "2026-11"]
    store.save_site_runs([], [replace(SITE_RUN, ended=clock.time), replace(SITE_OVER, ended=clock.time)])
    clock.time -= 50 * DAY_S
    sums = store.site_bill("user", 0.0, clock.time + 60 * DAY_S)
    store.shift_late_times(clock.time, 50 * DAY_S)
    assert store.site_bill("user", 0.0, clock.time) == sums
    assert [line.key for line in store.site_bill("day", 0.0, clock.time + 60 * DAY_S)] == ["2026-10-31"]
    clock.time = at(11, 6)
    assert [month.month for month in close_months(store)] == ["2026-10"]
    check_unchanged(store)


def test_months_that_were_closed_without_volumes_keep_their_hash(place: str) -> None:
    """The database of a burstd of before: volumes had no charges on record, and were in no closed month."""
    clock = ManualClock(at(10, 31, 23))
    with open_store(place, clock) as store:
        begin(store, planned(offer=CENTS), clock=clock)
        end(store, "c1", clock)
        created(store, clock, price="0.1370137")
        created(store, clock, replace(PLANNED, id="v2", name="v2"), price="0.1370137")
        store.save_site_runs([SITE_RUN], [SITE_OVER])
        clock.time = at(11, 3, 5) + 0.25
        store.transition_volume("v2", VolumeState.AVAILABLE, VolumeState.REMOVING, "given up")
        store.transition_volume("v2", VolumeState.REMOVING, VolumeState.GONE, "not listed")
        clock.time = at(11, 6)
        close_months(store)
        bills = store.bills(("user", "account", "provider"), 0.0, clock.time)
        site = store.site_bill("day", 0.0, clock.time)
        former = close_month("2026-10", clock.time, store.charges_of_days(days_of("2026-10"), 1), ())
        with store._database.engine.begin() as connection:
            now = connection.execute(select(CHARGE).where(CHARGE.c.kind == Kind.VOLUME).order_by(CHARGE.c.day)).all()
            connection.execute(delete(CHARGE).where(CHARGE.c.kind == Kind.VOLUME))
            write_former_site(connection)
            values = {"rule": 1, "charges": former.charges, "totals": former.totals, "sha256": former.sha256}
            connection.execute(update(CLOSED_MONTH).values(values))
            for later in ("DROP INDEX ix_staging_array_task", "ALTER TABLE staging DROP COLUMN array_task"):
                connection.execute(text(later))
            connection.execute(text("ALTER TABLE charge DROP COLUMN bytes_out"))  # of a later revision
            for table in ("relayed_call", "leader", "head"):
                connection.execute(text(f"DROP TABLE {table}"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0022'"))
    with open_store(place, clock) as store:
        [month] = store.closed_months()
        assert month == replace(former, rule=1, site_charges=0, site_totals={}, site_sha256="")
        assert found_month(store, month).sha256 == former.sha256
        assert store.site_bill("day", 0.0, clock.time) == site
        assert store.open_site_runs() == [replace(SITE_RUN, nodes="")]
        assert {*connection_rows(store)} == {*map(tuple, now)}
        assert store.bills(("user", "account", "provider"), 0.0, clock.time) == bills
        store.update_volume("v1", billed_from=at(10, 31, 22))
        assert [key for key in rows(store, "2026-11") if key[-1]] == [("volume", "", "ann", "0.140819", "2026-10")]
        clock.time = at(12, 6)
        [november] = close_months(store)
        assert (november.rule, november.site_charges) == (RULE, 31)
        assert "2026-10" not in site_file_of(store, "2026-11")
        assert found_month(store, november) == november


def write_former_site(connection: Connection) -> None:
    """The tables of a burstd of schema 0022, where runs that go on had no charges."""
    rows = connection.execute(text("SELECT * FROM site_charge WHERE job = '2'")).mappings().all()
    connection.execute(text("DROP TABLE site_charge"))
    connection.execute(text("ALTER TABLE site_run DROP COLUMN nodes"))
    for name in ("charges", "totals", "sha256"):
        connection.execute(text(f"ALTER TABLE closed_month DROP COLUMN site_{name}"))
    names = (
        "job",
        "node_group",
        "run_start",
        "user",
        "account",
        "partition",
        "currency",
        "day",
        "amount",
        "milliseconds",
    )
    texts = {"job", "node_group", "user", "account", "partition", "currency"}
    columns = ", ".join(f'"{name}" {"TEXT" if name in texts else "BIGINT"} NOT NULL' for name in names)
    connection.execute(text(f"CREATE TABLE site_charge ({columns}, PRIMARY KEY (day, job, node_group, run_start))"))
    connection.execute(text("CREATE INDEX ix_site_charge_job ON site_charge (job)"))
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(f":{name}" for name in names)
    insert_row = text(f"INSERT INTO site_charge ({quoted}) VALUES ({values})")  # noqa: S608
    connection.execute(insert_row, [dict(row) for row in rows])


def connection_rows(store: Store) -> list[tuple[object, ...]]:
    """All charges of volumes."""
    with store._database.reading() as connection:
        return [*map(tuple, connection.execute(select(CHARGE).where(CHARGE.c.kind == Kind.VOLUME)))]


def _close_and_die(place: str, statement: int) -> None:
    clock = ManualClock(at(12, 6))
    store = Store.open(place, clock)
    left = statement

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os._exit(9)

    event.listen(store._database.engine, "before_cursor_execute", count)
    event.listen(store._database.engine, "commit", count)
    close_months(store)
    os._exit(0)


@pytest.mark.slow
def test_killed_at_any_statement_of_a_closing_it_is_done_once_and_whole(tmp_path: Path) -> None:
    place, clock = str(tmp_path / "burstd.db"), ManualClock(at(10, 31, 23))
    with Store.open(place, clock) as store:
        begin(store, planned(offer=CENTS), clock=clock)
        begin(store, planned("c2", "n2", offer=CENTS), clock=clock)
        end(store, "c2", clock)
        created(store, clock, price="3.60")
        created(store, clock, replace(PLANNED, id="v2", name="v2"), price="3.60")
        store.transition_volume("v2", VolumeState.AVAILABLE, VolumeState.REMOVING, "given up")
        clock.time += 1000
        store.transition_volume("v2", VolumeState.REMOVING, VolumeState.GONE, "not listed")
        store.save_site_runs([SITE_RUN], [])
    fork = multiprocessing.get_context("fork")
    statement, code, met = 0, None, set[int]()
    while code != 0:
        statement += 1
        child = fork.Process(target=_close_and_die, args=(place, statement))
        child.start()
        child.join()
        code = child.exitcode
        with Store.open(place, ManualClock(at(12, 6))) as store:
            check_unchanged(store)
            met.add(len(store.closed_months()))
            assert len(store.events(subject="bill:2026-10")) == (1 if store.closed_months() else 0)
    assert met == {0, 1, 2}
    with Store.open(place, ManualClock(at(12, 6))) as store:
        assert [month.totals for month in store.closed_months()] == [
            {"EUR": Decimal("8.100000")}, {"EUR": Decimal("5184.000000")},
        ]  # fmt: skip
        assert [month.site_totals for month in store.closed_months()] == [
            {"EUR": Decimal("7.200000")}, {"EUR": Decimal("2592.000000")},
        ]  # fmt: skip
