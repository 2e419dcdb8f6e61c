"""What was spent by month, and what ended lately: booked with the end of a claim, and kept when it is forgotten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from alembic import command
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from burstd.api.routers.events import slots_when_logged
from burstd.db import ChangeRefused, LoggedEvent, SlotTaken, Store, StoreReader, replay_claims
from burstd.db.codec import record_to_json, to_json_text
from burstd.db.database import database_url, open_engine
from burstd.db.migrate import alembic_config
from burstd.domain.billing.costs import by_month, cost_of
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from tests.examples import examples

from .opening import open_store
from .samples import OFFER, START, ManualClock, offers, planned, words

S = ClaimState
ONE = replace(OFFER, price=Decimal(1))
HOUR = 3600.0
Lived = tuple[Offer, tuple[str, ...], float, float]
"""Offer, projects, seconds before the launch, seconds until the end."""


def at(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


def life(store: Store, clock: ManualClock, claim: Claim, begin: float, end: float) -> None:
    """From launch to GONE, billed from ``begin`` to ``end``; it boots all the time."""
    clock.time = begin
    store.make_claims([claim])
    store.transition_claim(claim.id, S.PLANNED, S.LAUNCHING, "asked", billed_from=begin)
    clock.time = end
    store.transition_claim(claim.id, S.LAUNCHING, S.TERMINATING, "over")
    store.transition_claim(claim.id, S.TERMINATING, S.GONE, "gone")


def sums(store: StoreReader) -> dict[tuple[str, str, str], str]:
    return {(s.kind, s.name, s.month): f"{s.amount:.2f}" for s in store.spending()}


def test_a_life_over_new_year_is_booked_by_month_for_each_who_pays(place: str, clock: ManualClock) -> None:
    shared = replace(planned(offer=ONE, users=("ann", "bob")), accounts=("atlas", "belle", "atlas"))
    expected = {
        ("", "", "2026-12"): "2.00",
        ("", "", "2027-01"): "1.00",
        ("project", "atlas", "2026-12"): "1.00",
        ("project", "atlas", "2027-01"): "0.50",
        ("project", "belle", "2026-12"): "1.00",
        ("project", "belle", "2027-01"): "0.50",
        ("user", "ann", "2026-12"): "1.00",
        ("user", "ann", "2027-01"): "0.50",
        ("user", "bob", "2026-12"): "1.00",
        ("user", "bob", "2027-01"): "0.50",
    }
    with open_store(place, clock) as store:
        life(store, clock, shared, at("2026-12-31T22:00"), at("2027-01-01T01:00"))
        assert sums(store) == expected
        with store.reader() as reader:
            assert reader.spending() == store.spending()
    with open_store(place, clock) as store:
        assert sums(store) == expected
        assert store.purge(clock.time + 1) == 1
        assert sums(store) == expected


def test_what_is_put_right_after_the_end_is_put_right_in_the_sums(store: Store, clock: ManualClock) -> None:
    life(store, clock, planned(offer=ONE), START, START + HOUR)
    store.update_claim("c1", billed_until=START + 1800)
    assert {s.amount for s in store.spending()} == {Decimal("0.500000")}


def test_a_machine_that_never_was_costs_nothing(store: Store) -> None:
    store.make_claims([planned()])
    store.transition_claim("c1", S.PLANNED, S.GONE, "not wanted")
    assert store.spending() == ()


def test_a_batch_that_breaks_books_nothing(store: Store, clock: ManualClock) -> None:
    with pytest.raises(KeyboardInterrupt), store.batch():  # noqa: PT012
        life(store, clock, planned(offer=ONE), START, START + HOUR)
        assert store.spending() != ()
        raise KeyboardInterrupt
    assert store.spending() == ()
    assert store.gone_claims(START) == ()


def test_a_loop_in_which_nothing_ended_gets_the_same_answer(store: Store, clock: ManualClock) -> None:
    life(store, clock, planned(offer=ONE), START, START + HOUR)
    first = store.spending()
    store.make_claims([planned("c2", "gpu002")])
    assert store.spending() is first


def test_what_ended_lately(store: Store, clock: ManualClock) -> None:
    life(store, clock, planned("c1", offer=ONE), START, START + 100)
    assert [gone.claim.id for gone in store.gone_claims(START)] == ["c1"]
    life(store, clock, planned("c2", offer=ONE), START + 200, START + 300)
    found = store.gone_claims(START)
    assert [(gone.at, gone.claim) for gone in found] == [
        (START + 100, store.claim("c1")),
        (START + 300, store.claim("c2")),
    ]
    with store.reader() as reader:
        assert reader.gone_claims(START) == found
    assert [gone.claim.id for gone in store.gone_claims(START + 200)] == ["c2"]
    assert [gone.claim.id for gone in store.gone_claims(START)] == ["c1", "c2"]


@pytest.mark.slow
def test_an_older_database_keeps_its_claims_and_gets_its_sums(place: str, clock: ManualClock) -> None:
    engine = open_engine(database_url(place), writer=True)
    old = [
        name
        for name in record_to_json(planned())
        if name not in ("accounts", "reserved", "egress", "dedicated_by_policy", "in_service_from", "reused_from")
    ]
    gone = replace(planned("c1", offer=ONE, users=("ann", "bob")), state=S.GONE, billed_from=START,
                   billed_until=START + HOUR)  # fmt: skip
    live = replace(planned("c2", "gpu002", offer=ONE), billed_from=START)
    with engine.begin() as connection:
        ready = alembic_config()
        ready.attributes["connection"] = connection
        command.upgrade(ready, "0003")
        for claim in (gone, live):
            plain = record_to_json(claim)
            row = {name: plain[name] for name in old} | {"provider": claim.offer.provider}
            row |= {name: to_json_text(plain[name]) for name in ("offer", "jobs", "users")}
            names = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO claim ({names}) VALUES ({values})"), row)  # noqa: S608
    engine.dispose()
    with open_store(place, clock) as store:
        assert {c.id: c for c in store.find_claims()} == {"c1": gone, "c2": live}
        assert {(s.kind, s.name): s.amount for s in store.spending()} == {
            ("", ""): 1, ("user", "ann"): Decimal("0.5"), ("user", "bob"): Decimal("0.5"),
        }  # fmt: skip


def test_a_log_of_before_is_replayed() -> None:
    plain = record_to_json(planned())
    for name in ("accounts", "reserved", "egress"):
        del plain[name]
    assert replay_claims([LoggedEvent(1, START, "claim:c1", "", "planned", "", "demand", {"claim": plain})]) == {
        "c1": planned()
    }


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(offers, st.lists(words.filter(bool), max_size=2).map(tuple), st.floats(0, 9e6), st.floats(0, 9e6)),
        max_size=6,
    ),
    st.booleans(),
)
def test_the_sums_are_what_the_claims_have_cost(lives: list[Lived], forget: bool) -> None:
    clock = ManualClock()
    with Store.open(":memory:", clock) as store:
        expected: dict[tuple[str, str], Decimal] = {}
        for number, (offer, payers, wait, length) in enumerate(lives):
            claim = replace(planned(f"c{number}", f"n{number}", offer=offer), accounts=payers)
            begin = clock.time + wait
            with suppress(ChangeRefused):
                life(store, clock, claim, begin, begin + length)
            past = 0.0
            for month, seconds in by_month(begin, begin + length):
                key = month, offer.currency.replace("\0", "\N{REPLACEMENT CHARACTER}")
                # What its cost grew by in the month.
                grown = cost_of(offer.price, past + seconds) - cost_of(offer.price, past)
                expected[key] = expected.get(key, Decimal(0)) + grown
                past += seconds
        if forget:
            store.purge(clock.time + 1)
        total = {(s.month, s.currency): s.amount for s in store.spending() if not s.kind}
        assert total == {key: amount for key, amount in expected.items() if amount}
        by_project = sum(s.amount for s in store.spending() if s.kind == "project")
        named = sum(amount for amount in total.values()) if all(payers for _, payers, _, _ in lives) else by_project
        assert by_project == named


@pytest.mark.parametrize(
    ("since", "until", "months"),
    [
        ("2026-11-03T00:00", "2026-11-03T01:00", [("2026-11", HOUR)]),
        ("2026-11-30T23:59:59", "2026-12-01T00:00:01", [("2026-11", 1.0), ("2026-12", 1.0)]),
        ("2026-12-31T00:00", "2027-02-01T00:00", [("2026-12", 86400.0), ("2027-01", 31 * 86400.0)]),
        ("2026-11-03T01:00", "2026-11-03T00:00", []),
    ],
)
def test_months(since: str, until: str, months: list[tuple[str, float]]) -> None:
    assert list(by_month(at(since), at(until))) == months


def test_a_machine_that_is_handed_over_is_booked_to_both_without_a_seam(store: Store, clock: ManualClock) -> None:
    store.adopt_claim(replace(planned("c1", offer=ONE, users=("ann",)), state=S.DRAINING, billed_from=START,
                              launch_called=START, in_service_from=START))  # fmt: skip
    clock.time += 1000.001
    onward = replace(planned("", "cpu001", offer=ONE, users=("bob",)), pool="cpu", jobs=("18",), reason="for job 18")
    store.hand_over_claim("c1", S.DRAINING, onward, "c2")
    with pytest.raises(SlotTaken):
        store.hand_over_claim("c1", S.VALIDATING, onward, "c3")
    events = list(store.events(subject="claim:c1"))
    named = slots_when_logged(store, [store.claim("c1")])
    assert [named[event.seq] for event in events] == ["gpu001"] * (len(events) - 1) + ["cpu001"]
    assert len(events) > 1
    clock.time += 500.002
    claim = store.claim("c1")
    assert (claim.state, claim.pool, claim.slot, claim.reused_from, claim.in_service_from) == (
        S.VALIDATING, "cpu", "cpu001", "gpu001", None,
    )  # fmt: skip
    store.transition_claim("c1", S.VALIDATING, S.TERMINATING, "over")
    store.transition_claim("c1", S.TERMINATING, S.GONE, "it is gone")
    both = {c.id: c for c in store.find_claims()}
    assert (both["c2"].billed_from, both["c2"].billed_until, both["c1"].billed_until) == (
        START, both["c1"].billed_from, clock.now(),
    )  # fmt: skip
    spent = {(s.kind, s.name): s.amount for s in store.spending()}
    parts = [cost_of(ONE.price, 1000.001), cost_of(ONE.price, 500.002)]
    # The first had no job in that time, the second boots.
    assert spent == {("", ""): sum(parts), ("user", "bob"): parts[1]}
    assert sum(line.cost for line in store.bill("pool", START, clock.now())) == sum(parts)
    assert replay_claims(store.events()) == both
