"""The bill: every grouping adds up to what machines cost, also while they run, after a restart and a correction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import get_args

import pytest
from alembic import command
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.db import ChargeLine, Cursor, Store, StoreReader
from burstd.db.database import database_url, open_engine
from burstd.db.migrate import alembic_config
from burstd.db.repositories.bill import BillGrouping, BillLine
from burstd.db.tables import CLAIM
from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import WHOLE, ClaimRun, IdleMode, Kind, Payer
from burstd.domain.claim import Claim, ClaimState
from tests.examples import examples

from .opening import open_store
from .samples import OFFER, START, ManualClock, planned, prices

S = ClaimState
ANN, BOB = Payer("17", "ann", "atlas", "gpu"), Payer("18", "bob", "belle", "gpu")
CENTS = replace(OFFER, price=Decimal("3.60"))
"""0.001 a second."""


def begin(store: Store, claim: Claim, *, boot_s: float = 100.0, clock: ManualClock) -> None:
    """Billed from now on, and in service after its boot."""
    store.make_claims([claim])
    store.transition_claim(claim.id, S.PLANNED, S.LAUNCHING, "asked", billed_from=clock.time)
    clock.time += boot_s
    for old, new in ((S.LAUNCHING, S.BOOTING), (S.BOOTING, S.VALIDATING), (S.VALIDATING, S.READY),
                     (S.READY, S.IN_SERVICE)):  # fmt: skip
        store.transition_claim(claim.id, old, new, "so")


def end(store: Store, claim_id: str, clock: ManualClock, *, end_s: float = 0.0) -> None:
    store.transition_claim(claim_id, S.IN_SERVICE, S.DRAINING, "idle")
    store.transition_claim(claim_id, S.DRAINING, S.TERMINATING, "idle")
    clock.time += end_s
    store.transition_claim(claim_id, S.TERMINATING, S.GONE, "gone")


def bill(store: StoreReader, group: BillGrouping, user: str = "") -> dict[str, str]:
    return {line.key: str(line.cost) for line in store.bill(group, START, None, user)}


def charges(store: StoreReader, now: float, user: str = "", rows: int = 3) -> Iterator[ChargeLine]:
    """Each charge, page by page."""
    cursor: Cursor | None = Cursor(now)
    while cursor is not None:
        lines, cursor = store.charge_page(0.0, now, cursor, rows, user)
        yield from lines


def amount(lines: Iterable[ChargeLine]) -> Decimal:
    return sum((line.charge.amount for line in lines), 0) * MICRO


def check(store: Store, claims: Sequence[Claim], now: float) -> None:
    """All groupings add up to the cost of the claims, and users' own bills to their lines of the whole one."""
    every = [*charges(store, now)]
    traffic = [line for line in every if line.charge.kind is Kind.TRAFFIC]
    whole = amount(traffic) + sum(
        cost_of(c.offer.price, max(0.0, (now if c.billed_until is None else c.billed_until) - c.billed_from))
        for c in claims
        if c.billed_from is not None
    )
    groups = get_args(BillGrouping)
    bills = store.bills(groups, 0.0, now)
    for lines in bills.values():
        assert sum(line.cost for line in lines) == whole
        assert all(line.cost == sum(part.cost for part in line.parts) for line in lines)
    for user in ("ann", "bob"):
        charged_to = sum(line.cost for line in bills["user"] if line.key == user)
        for own in store.bills(groups, 0.0, now, user).values():
            assert sum(line.cost for line in own) == charged_to
    daily = store.daily_costs(0.0)
    for line in bills["day"]:
        day = datetime.fromisoformat(f"{line.key}T00:00+00:00").timestamp() // 86400
        assert daily[line.currency][int(day)] * MICRO == line.cost
    assert sum(sum(days.values()) for days in daily.values()) * MICRO == whole
    assert amount(every) == whole
    by_pool: defaultdict[tuple[str, str], int] = defaultdict(int)
    for charged in every:
        by_pool[charged.pool, charged.currency] += charged.charge.amount
    assert {key: sum_ * MICRO for key, sum_ in by_pool.items()} == {
        (line.key, line.currency): line.cost for line in bills["pool"]
    }
    for user in ("ann", "bob"):
        assert [*charges(store, now, user)] == [line for line in every if line.charge.payer.user == user]
    long: tuple[BillGrouping, ...] = ("job", "claim")
    for group in long:
        for limit in (1, 2, len(bills[group])):
            check_others(bills[group], store.bill(group, 0.0, limit=limit), limit)
    gone = {claim.id for claim in claims if claim.state is S.GONE}
    closed = sum(line.cost for line in bills["claim"] if line.key in gone)
    booked = closed + amount(line for line in traffic if line.id not in gone)
    assert sum(spent.amount for spent in store.spending() if not spent.kind) == booked
    if len(gone) == len(claims):
        pairs: tuple[tuple[str, BillGrouping], ...] = (("user", "user"), ("project", "account"))
        for kind, group in pairs:
            spent: defaultdict[str, Decimal] = defaultdict(Decimal)
            for one in store.spending():
                if one.kind == kind and one.amount:
                    spent[one.name] += one.amount
            assert spent == {line.key: line.cost for line in bills[group] if line.key and line.cost}


def test_two_users_on_one_machine(place: str, clock: ManualClock) -> None:
    claim = replace(planned(offer=CENTS), accounts=("atlas",))
    with open_store(place, clock) as store:
        begin(store, claim, clock=clock)
        store.save_runs([ClaimRun("c1", ANN, clock.time, WHOLE // 2), ClaimRun("c1", BOB, clock.time, WHOLE // 4)])
        clock.time += 1000
        assert bill(store, "user") == {"ann": "0.600000", "bob": "0.250000", "": "0.250000"}
        check(store, store.claims(), clock.time)
    with open_store(place, clock) as store:
        assert [run.payer for run in store.open_runs()] == [ANN, BOB]
        store.save_runs([replace(run, ended=clock.time) for run in store.open_runs()])
        clock.time += 500
        end(store, "c1", clock, end_s=40)
        expected = {"ann": "0.600000", "bob": "0.250000", "": "0.790000"}
        assert bill(store, "user") == expected
        assert bill(store, "job") == {"17": "0.600000", "18": "0.250000", "": "0.790000"}
        assert bill(store, "account", "ann") == {"atlas": "0.600000"}
        assert store.job_cost("17") == {"EUR": Decimal("0.600000")}
        [nobody] = [line for line in store.bill("user", START) if not line.key]
        assert {(part.kind, part.cause): str(part.cost) for part in nobody.parts} == {
            ("idle", "fragment"): "0.250000", ("idle", "keep_alive"): "0.500000", ("end", ""): "0.040000",
        }  # fmt: skip
        check(store, store.find_claims(), clock.time)
        with store.reader() as reader:
            assert bill(reader, "user") == expected
        assert store.purge(clock.time + 1) == 1
        assert bill(store, "user") == expected, "charges outlive their machines"
        store.purge(clock.time + 1, clock.time + 40 * 86400)
        assert bill(store, "user") == {}
        assert sum(spent.amount for spent in store.spending() if not spent.kind) == Decimal("1.640000")


def test_a_machine_that_ends_while_pages_are_read_is_once_on_them(store: Store, clock: ManualClock) -> None:
    for n in range(3):
        begin(store, planned(f"c{n}", f"gpu00{n}", offer=CENTS, jobs=(f"1{n}",)), clock=clock)
    end(store, "c0", clock)
    moment, whole = clock.time, sum(line.cost for line in store.bill("user", START))
    for ended in (set(), {"c1"}, {"c1", "c2"}):
        for claim_id in sorted(ended & {claim.id for claim in store.claims()}):
            clock.time += 10
            end(store, claim_id, clock)
        cursor: Cursor | None = Cursor(moment)
        found: list[ChargeLine] = []
        while cursor is not None:
            lines, cursor = store.charge_page(START, moment, cursor, 1)
            found += lines
        assert amount(found) == whole
        assert len({(line.id, line.charge) for line in found}) == len(found)


def test_a_task_of_an_array_costs_what_it_is_charged_itself(store: Store, clock: ManualClock) -> None:
    begin(store, planned(offer=CENTS), clock=clock)
    store.save_runs([ClaimRun("c1", ANN._replace(job="17_1"), clock.time, WHOLE)])
    clock.time += 200
    for _ in range(2):
        assert [store.job_cost(job) for job in ("17_1", "17_2", "17", "1")] == [
            {"EUR": Decimal("0.200000")}, {}, {"EUR": Decimal("0.300000")}, {},
        ]  # fmt: skip
        if store.claims():
            end(store, "c1", clock)


def test_whoever_had_a_job_of_the_same_number_before_is_charged_nothing(store: Store, clock: ManualClock) -> None:
    begin(store, planned(offer=CENTS), clock=clock)
    store.save_runs([ClaimRun("c1", BOB._replace(job="17"), clock.time, WHOLE, clock.time + 10)])
    clock.time += 10
    end(store, "c1", clock)
    assert bill(store, "user") == {"ann": "0.100000", "bob": "0.010000"}


def test_a_run_is_on_record_once_however_clocks_move(store: Store, clock: ManualClock) -> None:
    begin(store, planned(offer=CENTS), clock=clock)
    run = ClaimRun("c1", ANN, clock.time, WHOLE, run_start=7)
    clock.time += 100
    for seen in (run, replace(run, started=run.started + 1e-6), replace(run, started=run.started - 60)):
        store.save_runs([seen])
    store.save_runs([replace(run, ended=clock.time), replace(run, run_start=8, started=clock.time)])
    assert store.open_runs() == (replace(run, run_start=8, started=clock.time),)
    assert {one.ended for one in store.runs_of_jobs({"17"})} == {None, clock.time}
    assert store.runs_of_jobs({"18"}) == ()
    assert bill(store, "user") == {"ann": "0.200000"}


def test_what_a_later_correction_changes_is_changed_in_the_bill(store: Store, clock: ManualClock) -> None:
    begin(store, planned(offer=CENTS), clock=clock)
    clock.time += 200
    end(store, "c1", clock, end_s=50)
    store.update_claim("c1", billed_until=clock.time - 100)
    assert bill(store, "user") == {"ann": "0.100000", "": "0.150000"}
    check(store, store.find_claims(), clock.time)


@pytest.mark.slow
def test_claims_of_before_are_shared_as_they_were_then(place: str, clock: ManualClock) -> None:
    engine = open_engine(database_url(place), writer=True)
    gone = replace(planned("c1", offer=CENTS, jobs=("17", "18"), users=("ann", "bob")), state=S.GONE, since=START + 600,
                   accounts=("atlas",), billed_from=START, billed_until=START + 600)  # fmt: skip
    with engine.begin() as connection:
        ready = alembic_config()
        ready.attributes["connection"] = connection
        command.upgrade(ready, "0018")
        row = {column.name: getattr(gone, column.name, gone.offer.provider) for column in CLAIM.c}
        connection.execute(CLAIM.insert(), [row])
    engine.dispose()
    with open_store(place, clock) as store:
        assert bill(store, "user") == {"ann": "0.300000", "bob": "0.300000"}
        assert bill(store, "account") == {"atlas": "0.600000"}
        assert {part.kind for line in store.bill("job", START) for part in line.parts} == {"shared"}
        store.update_claim("c1", billed_until=START + 300)
        assert bill(store, "job") == {"": "0.300000"}, "whose is which is not known"


def check_others(every: Sequence[BillLine], shown: Sequence[BillLine], limit: int) -> None:
    """The dearest lines are as they are among all, the others of a currency are one."""
    assert shown[:limit] == every[:limit]
    left: defaultdict[str, list[BillLine]] = defaultdict(list)
    for line in every[limit:]:
        left[line.currency].append(line)
    assert [(line.currency, line.others, line.cost, line.key) for line in shown[limit:]] == [
        (currency, len(lines), sum(line.cost for line in lines), "") for currency, lines in sorted(left.items())
    ]
    for other in shown[limit:]:
        assert other.cost == sum(part.cost for part in other.parts)
        assert round(other.seconds * 1000) == round(sum(line.seconds for line in left[other.currency]) * 1000)


lives = st.lists(
    st.tuples(prices, st.floats(0, 5000), st.floats(0, 3e6), st.booleans(),
              st.lists(st.tuples(st.sampled_from([ANN, BOB]), st.floats(0, 2e6), st.none() | st.floats(0, 2e6),
                                 st.integers(1, WHOLE)), max_size=4)),
    max_size=4,
)  # fmt: skip


@settings(max_examples=examples(30))
@given(lives, st.sampled_from(IdleMode), st.integers(0, 3))
def test_every_grouping_adds_up(lives: list[tuple[object, ...]], idle: IdleMode, alive: int) -> None:
    clock = ManualClock()
    with Store.open(":memory:", clock) as store:
        store.idle_mode = idle
        for number, (price, boot_s, length, requeued, runs) in enumerate(lives):
            name = f"c{number}"
            claim = replace(planned(name, f"n{number}", offer=replace(OFFER, price=price)), accounts=("atlas",))  # type: ignore[arg-type]
            begin(store, claim, boot_s=boot_s, clock=clock)  # type: ignore[arg-type]
            store.save_runs(
                [
                    ClaimRun(name, payer, clock.time + since, share, None if ran is None else clock.time + since + ran)
                    for payer, since, ran, share in {run[0]: run for run in runs}.values()  # type: ignore[attr-defined]
                ]
            )
            clock.time += length  # type: ignore[operator]
            if requeued:
                store.transition_claim(name, S.IN_SERVICE, S.DRAINING, "held")
                clock.time += 100
                store.transition_claim(name, S.DRAINING, S.READY, "released")
                store.transition_claim(name, S.READY, S.IN_SERVICE, "so")
            if number != alive:
                end(store, name, clock, end_s=30)
        check(store, store.find_claims(), clock.time)


def test_currencies_are_kept_apart(store: Store, clock: ManualClock) -> None:
    yen = replace(OFFER, currency="JPY", price=Decimal("9.00"), provider="aws")
    of_nobody = planned("c3", "n3", users=(), jobs=())
    store.make_claims([planned("c1", "n1"), *(planned(f"c{n}", f"n{n}", offer=yen) for n in (2, 4)), of_nobody])
    for claim_id in ("c1", "c2", "c3", "c4"):
        store.transition_claim(claim_id, S.PLANNED, S.LAUNCHING, "asked", billed_from=START)
    clock.time += 3600
    assert [(b.key, b.currency, b.cost, b.seconds, b.claims) for b in store.bill("user", START)] == [
        ("", "EUR", Decimal("3.06"), 3600, 1),
        ("ann", "JPY", Decimal("18.00"), 7200, 2),
        ("ann", "EUR", Decimal("3.06"), 3600, 1),
    ]
    assert [(b.key, b.cost, b.claims) for b in store.bill("provider", START)] == [
        ("sandbox", Decimal("6.12"), 2),
        ("aws", Decimal("18.00"), 2),
    ]
    assert [b.key for b in store.bill("claim", START)] == ["c1", "c2", "c3", "c4"], "by turns"
    assert [b.key for b in store.bill("day", START)] == ["2023-11-14", "2023-11-14"]
    for limit in (1, 2, 3, 4):
        check_others(store.bill("claim", START), store.bill("claim", START, limit=limit), limit)
    for claim_id in ("c1", "c2", "c3", "c4"):
        for old, new in ((S.LAUNCHING, S.TERMINATING), (S.TERMINATING, S.GONE)):
            store.transition_claim(claim_id, old, new, "so", billed_until=clock.time)
    for limit in (1, 2, 3, 4):
        check_others(store.bill("claim", START), store.bill("claim", START, limit=limit), limit)
