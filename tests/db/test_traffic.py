"""Charges of traffic: one for each output that came home, to its owner; nothing that happens later changes it."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import event, text

from burstd.db import Store
from burstd.db.database import database_url, open_engine
from burstd.db.migrate import alembic_config
from burstd.domain.billing.use import DAY_S, WHOLE, Charge, ClaimRun, Kind, Payer, day_text
from burstd.domain.claim import ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.staging import StageState

from .opening import open_store
from .samples import ManualClock, planned
from .test_closed_months import at, check_unchanged, close_months, rows
from .test_money import ANN, CENTS, begin, charges, check, end
from .test_stagings import transitions_to, waiting

S = ClaimState
PRICED = replace(CENTS, egress_price=Decimal("0.09"))
GB = 10**9


def deliver(store: Store, job: str, slot: str = "gpu001", *, size: int = GB, queue_id: str = "") -> None:
    """A job's output, from its beginning until it is home."""
    store.make_staging(waiting(job))
    states = transitions_to(StageState.DELIVERING)
    for old, new in pairwise(states):
        store.transition_staging(job, old, new, "so", nodes=(slot,))
    store.deliver_staging(job, "home", size + 5, size, Payer(queue_id or job, "ann", "proj", "asked"))


def traffic(store: Store, clock: ManualClock) -> list[tuple[str, Charge]]:
    lines = charges(store, clock.time)
    return [(line.id, line.charge) for line in lines if line.charge.kind is Kind.TRAFFIC]


def spent(store: Store) -> dict[tuple[str, str], str]:
    return {(one.kind, one.name): str(one.amount) for one in store.spending()}


def test_output_is_charged_to_its_owner_on_the_day_on_which_it_came(store: Store, clock: ManualClock) -> None:
    begin(store, planned(offer=PRICED), clock=clock)
    store.save_runs([ClaimRun("c1", ANN, clock.time, WHOLE)])
    clock.time += 2 * DAY_S
    deliver(store, "17")
    day = int(clock.time // DAY_S)
    assert traffic(store, clock) == [("c1", Charge(day, Kind.TRAFFIC, "", ANN, 90_000, 0, "", GB))]
    assert spent(store) == {("", ""): "0.090000", ("project", "atlas"): "0.090000", ("user", "ann"): "0.090000"}
    assert store.staging("17").bytes_out == GB + 5
    check(store, store.find_claims(), clock.time)
    end(store, "c1", clock)
    check(store, store.find_claims(), clock.time)
    [line] = store.bill("claim", 0.0)
    assert (line.claims, {part.kind: str(part.cost) for part in line.parts}[Kind.TRAFFIC]) == (1, "0.090000")
    assert store.job_cost("17")["EUR"] == sum(one.cost for one in store.bill("job", 0.0) if one.key == "17")


@pytest.mark.parametrize(
    ("runs", "queue_id", "machine", "payer"),
    [
        ({"c2": ANN._replace(job="17_3")}, "17_3", "c2", ANN._replace(job="17_3")),
        ({"c1": ANN, "c2": ANN}, "17", "c2", ANN),
        ({"c1": ANN}, "17", "c1", ANN),
        ({}, "17", "c1", Payer("17", "ann", "proj", "asked")),
        ({"c2": ANN._replace(user="bob")}, "17", "c1", Payer("17", "ann", "proj", "asked")),
    ],
    ids=["task of an array", "ran twice", "another machine came since", "no run on record", "a number given again"],
)
def test_of_which_machine_it_is(
    store: Store, clock: ManualClock, runs: dict[str, Payer], queue_id: str, machine: str, payer: Payer
) -> None:
    for name, jobs in (("c1", ("17",)), ("c2", ("4",))):
        begin(store, planned(name, offer=PRICED, jobs=jobs), clock=clock)
        if name in runs:
            store.save_runs([ClaimRun(name, runs[name], clock.time, WHOLE, clock.time + 1)])
        end(store, name, clock)
    deliver(store, "17", queue_id=queue_id)
    assert [(name, charge.payer) for name, charge in traffic(store, clock)] == [(machine, payer)]


@pytest.mark.parametrize(
    ("offer", "slot", "size"), [(CENTS, "gpu001", GB), (PRICED, "own1", GB), (PRICED, "gpu001", 0)]
)
def test_what_costs_nothing_is_not_charged(
    store: Store, clock: ManualClock, offer: Offer, slot: str, size: int
) -> None:
    begin(store, planned(offer=offer), clock=clock)
    deliver(store, "17", slot, size=size)
    assert (traffic(store, clock), store.spending()) == ([], ())


def test_nothing_of_a_machine_changes_it(store: Store, clock: ManualClock) -> None:
    """Its end, its hand-over, a late word on it, months that are closed, and that it is forgotten."""
    clock.time = at(10, 30)
    begin(store, planned(offer=PRICED), clock=clock)
    deliver(store, "17")
    before = traffic(store, clock)
    store.transition_claim("c1", S.IN_SERVICE, S.DRAINING, "idle")
    store.hand_over_claim("c1", S.DRAINING, planned("c2", "cpu001", offer=PRICED, pool="cpu"), "former")
    for old, new in ((S.VALIDATING, S.READY), (S.READY, S.IN_SERVICE)):
        store.transition_claim("c1", old, new, "so")
    assert traffic(store, clock) == before
    clock.time = at(11, 6, 1)
    close_months(store)
    assert rows(store, "2026-10")["traffic", "", "ann", "0.090000", ""] == 1
    end(store, "c1", clock)
    store.update_claim("c1", billed_until=clock.time - DAY_S)
    deliver(store, "18", "cpu001")
    check_unchanged(store)
    later = traffic(store, clock)
    assert [day_text(charge.day) for _, charge in later] == ["2026-10-30", "2026-11-06"]
    check(store, store.find_claims(), clock.time)
    store.purge(clock.time + 1)
    assert [charge for _, charge in traffic(store, clock)] == [charge for _, charge in later]
    check_unchanged(store)


def test_a_clock_that_was_ahead_is_put_right(store: Store, clock: ManualClock) -> None:
    clock.time = at(10, 30)
    begin(store, planned(offer=PRICED), clock=clock)
    clock.time += 100 * DAY_S
    deliver(store, "17")
    clock.time -= 100 * DAY_S
    store.shift_late_times(clock.time, 100 * DAY_S)
    assert [day_text(charge.day) for _, charge in traffic(store, clock)] == ["2026-10-30"]
    assert {one.month for one in store.spending() if one.amount} == {"2026-10"}


def _deliver_and_die(place: str, statement: int) -> None:
    store = Store.open(place, ManualClock(at(11, 1, 1)))
    left = statement

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os._exit(9)

    event.listen(store._database.engine, "before_cursor_execute", count)
    event.listen(store._database.engine, "commit", count)
    if store.staging("17").state is StageState.DELIVERING:
        store.deliver_staging("17", "home", GB, GB, ANN)
    os._exit(0)


@pytest.mark.slow
def test_killed_at_any_statement_it_is_charged_once_with_the_end_of_its_way(tmp_path: Path) -> None:
    place, clock = str(tmp_path / "burstd.db"), ManualClock(at(10, 31))
    with Store.open(place, clock) as store:
        begin(store, planned(offer=PRICED), clock=clock)
        store.make_staging(waiting("17"))
        states = transitions_to(StageState.DELIVERING)
        for old, new in pairwise(states):
            store.transition_staging("17", old, new, "so", nodes=("gpu001",))
    fork = multiprocessing.get_context("fork")
    statement, code, met = 0, None, set[bool]()
    while code != 0:
        statement += 1
        child = fork.Process(target=_deliver_and_die, args=(place, statement))
        child.start()
        child.join()
        code = child.exitcode
        with Store.open(place, ManualClock(at(11, 1, 1))) as store:
            home = store.staging("17").state is StageState.DELIVERED
            met.add(home)
            assert len(traffic(store, ManualClock(at(11, 1, 1)))) == home
            assert spent(store).get(("user", "ann")) == ("0.090000" if home else None)
    assert met == {False, True}
    assert statement > 5


def test_bytes_that_budgets_counted_before_are_dropped(place: str, clock: ManualClock) -> None:
    engine = open_engine(database_url(place), writer=True)
    with engine.begin() as connection:
        ready = alembic_config()
        ready.attributes["connection"] = connection
        command.upgrade(ready, "0024")
        insert = "INSERT INTO spent VALUES ('', '', '2026-10', :currency, :provider, :amount, :bytes)"
        connection.execute(text(insert), {"currency": "EUR", "provider": "", "amount": "1.5", "bytes": 0})
        connection.execute(text(insert), {"currency": "", "provider": "aws", "amount": "0", "bytes": 7})
    engine.dispose()
    with open_store(place, clock) as store:
        assert [(one.currency, one.amount) for one in store.spending()] == [("EUR", Decimal("1.5"))]
