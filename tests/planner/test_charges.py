"""What each millisecond of a machine is charged as, and to whom: by hand, and sums over random histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.use import (
    NOBODY,
    WHOLE,
    Charge,
    ClaimRun,
    IdleMode,
    Payer,
    charges_by_use,
    day_text,
    equal_parts,
    payers_made_for,
    shared_charges,
)
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape
from tests.examples import examples

S = ClaimState
START = datetime(2026, 11, 27, 10, tzinfo=UTC).timestamp()
HOUR = 3600.0
OFFER = Offer("aws", "r", "z", "m8", False, Shape(8, 16384), Decimal("3.60"))
"""0.001 a second."""
ADA, BOB = Payer("17", "ada", "atlas", "gpu"), Payer("18", "bob", "belle", "gpu")


def claim(**fields: object) -> Claim:
    made = Claim("c1", "site", "gpu", "gpu1", OFFER, Cause.DEMAND, S.GONE, START, START, jobs=("17",), users=("ada",),
                 accounts=("atlas",), billed_from=START, in_service_from=START + 120,
                 billed_until=START + 3720)  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


LIFE = ((START - 1, S.PLANNED), (START, S.LAUNCHING), (START + 60, S.BOOTING), (START + 120, S.IN_SERVICE),
        (START + 3620, S.DRAINING), (START + 3680, S.TERMINATING))  # fmt: skip


def run(payer: Payer, since: float, until: float | None, share: float = 1.0) -> ClaimRun:
    ended = None if until is None else START + until
    return ClaimRun("c1", payer, START + since, round(share * WHOLE), ended)


def charged(some: list[Charge]) -> dict[tuple[str, str, str], str]:
    sums: Counter[tuple[str, str, str]] = Counter()
    for one in some:
        sums[one.kind, one.cause, one.payer.user] += one.amount
    return {key: str(amount * MICRO) for key, amount in sorted(sums.items())}


RUNS = [run(ADA, 220, 2020, 0.5), run(BOB, 1420, 2020, 0.25), run(BOB, 2320, 2420)]


def test_a_life_by_hand() -> None:
    assert charged(charges_by_use(claim(), LIFE, RUNS, [(ADA, 1)], START + 9999)) == {
        ("boot", "", "ada"): "0.120000",
        ("idle", "before_first_job", ""): "0.100000",
        ("work", "", "ada"): "0.900000",
        ("work", "", "bob"): "0.250000",  # 600 s of a quarter, 100 s of all
        ("idle", "fragment", ""): "0.750000",  # 1200 s of a half, 600 s of a quarter
        ("idle", "gap", ""): "0.300000",
        ("idle", "keep_alive", ""): "1.200000",
        ("idle", "drained", ""): "0.060000",
        ("end", "", ""): "0.040000",
    }


@pytest.mark.parametrize(
    ("idle", "fields", "ada", "bob"),
    [
        (IdleMode.TO_CAUSE, {}, "3.470000", "0.250000"),
        # 2.45 of idle time and end, in the proportion of 0.90 to 0.25, and the boot.
        (IdleMode.BY_USE, {}, "2.937392", "0.782608"),
        # Nobody else may use it: its jobs have all of it.
        (IdleMode.APART, {"dedicated_by_policy": True}, "3.420000", "0.300000"),
    ],
)
def test_who_is_charged_for_idle_time(idle: IdleMode, fields: dict[str, bool], ada: str, bob: str) -> None:
    sums = Counter[str]()
    for one in charges_by_use(claim(**fields), LIFE, RUNS, [(ADA, 1)], START + 9999, idle):
        sums[one.payer.user] += one.amount
    assert {user: str(amount * MICRO) for user, amount in sums.items()} == {"ada": ada, "bob": bob}


@pytest.mark.parametrize(
    ("fields", "states", "expected"),
    [
        # It never came into service, for a fault of its own: nobody pays.
        ({"error": "boot_timeout", "in_service_from": None}, ((START, S.LAUNCHING), (START + 900, S.FAILED)),
         {("failed", "", ""): "3.720000"}),
        # It was well until its fault was found.
        ({"error": "health"}, LIFE,
         {("boot", "", "ada"): "0.120000", ("failed", "", ""): "0.100000",
          ("idle", "before_first_job", ""): "3.500000"}),
        # Nothing that Slurm still shows on a lost machine is work.
        ({"error": "lost"}, (*LIFE[:4], (START + 220, S.LOST), (START + 3620, S.TERMINATING)),
         {("boot", "", "ada"): "0.120000", ("failed", "", ""): "3.500000",
          ("idle", "before_first_job", ""): "0.100000"}),
        # Taken back by its cloud.
        ({"error": "interrupted"}, LIFE,
         {("boot", "", "ada"): "0.120000", ("end", "", ""): "0.040000", ("idle", "before_first_job", ""): "3.500000",
          ("idle", "drained", ""): "0.060000"}),
        ({"cause": Cause.FLOOR, "jobs": (), "users": (), "accounts": ()}, LIFE,
         {("boot", "", ""): "0.120000", ("end", "", ""): "0.040000", ("idle", "drained", ""): "0.060000",
          ("idle", "floor", ""): "3.500000"}),
        ({"cause": Cause.STORAGE, "jobs": ()}, LIFE, {("storage", "", ""): "3.720000"}),
        # It was handed over: its log is with the claim that has its machine now.
        ({}, (), {("boot", "", "ada"): "0.120000", ("idle", "before_first_job", ""): "3.600000"}),
    ],
)  # fmt: skip
def test_machines_without_work(
    fields: dict[str, object], states: tuple[tuple[float, ClaimState], ...], expected: dict[tuple[str, str, str], str]
) -> None:
    runs = [run(BOB, 500, None)] if fields.get("error") == "lost" else []
    assert charged(
        charges_by_use(claim(**fields), states, runs, payers_made_for(claim(**fields), {}), START * 2)
    ) == dict(sorted(expected.items()))


def test_more_than_all_of_a_node_is_scaled_and_each_day_has_its_own() -> None:
    late = START + 14 * HOUR - 60
    made = claim(billed_from=late, in_service_from=late, billed_until=late + 120)
    runs = [replace(run(ADA, 0, None), share=WHOLE), replace(run(BOB, 0, None), share=WHOLE)]
    found = charges_by_use(made, ((late, S.IN_SERVICE),), runs, [(ADA, 1)], late + 999)
    assert [(day_text(one.day), one.payer.user, one.amount, one.milliseconds) for one in found] == [
        ("2026-11-27", "ada", 30000, 30000),
        ("2026-11-27", "bob", 30000, 30000),
        ("2026-11-28", "ada", 30000, 30000),
        ("2026-11-28", "bob", 30000, 30000),
    ]


def test_whom_a_claim_was_made_for() -> None:
    two = claim(jobs=("17", "18", "19"), users=("ada", "bob"), accounts=("atlas", "belle"))
    known = {"17": ADA, "18": BOB}
    assert payers_made_for(replace(two, jobs=("17_3", "18")), known) == [(ADA._replace(job="17_3"), 1), (BOB, 1)]
    # Equal parts for users and for accounts; nobody sees a job as his that may be another's.
    assert payers_made_for(two, known) == [(Payer("", "ada", "atlas"), 1), (Payer("", "bob", "belle"), 1)]
    # Job 17 was somebody else's before Slurm gave its number again.
    for stranger in (BOB._replace(job="17"), ADA._replace(account="belle")):
        assert payers_made_for(claim(), {"17": stranger}) == [(Payer("17", "ada", "atlas"), 1)]
    assert equal_parts((), (), ()) == []
    assert charged(shared_charges(replace(two, billed_until=START + 100))) == {
        ("shared", "", "ada"): "0.050000", ("shared", "", "bob"): "0.050000",
    }  # fmt: skip


moments = st.one_of(st.integers(-5, 10**4).map(float), st.floats(-1e3, 4e6))
payers = st.builds(Payer, st.sampled_from(["1", "2_3", "4+0"]), st.sampled_from(["ada", "bob"]),
                   st.sampled_from(["", "atlas"]), st.sampled_from(["p", "q"]))  # fmt: skip
histories = st.tuples(
    st.builds(
        claim,
        offer=st.decimals(0, 1000, places=4).map(lambda price: replace(OFFER, price=price)),
        cause=st.sampled_from(Cause),
        jobs=st.sampled_from([(), ("1",), ("1", "2")]),
        error=st.sampled_from(["", "health", "lost", "boot", "unwanted", "interrupted"]),
        billed_from=moments.map(lambda at: START + at),
        in_service_from=st.none() | moments.map(lambda at: START + at),
        billed_until=st.none() | moments.map(lambda at: START + at),
        dedicated_by_policy=st.booleans(),
        reused_from=st.sampled_from(["", "gpu9"]),
    ),
    st.lists(st.tuples(moments.map(lambda at: START + at), st.sampled_from(S)), max_size=9),
    st.lists(
        st.builds(ClaimRun, st.just("c1"), payers, moments.map(lambda at: START + at), st.integers(1, 3 * WHOLE),
                  st.none() | moments.map(lambda at: START + at)),
        max_size=20,
    ),
)  # fmt: skip


@settings(max_examples=examples(300))
@given(histories, moments, st.sampled_from(IdleMode))
def test_charges_add_up_to_the_cost(
    history: tuple[Claim, list[tuple[float, ClaimState]], list[ClaimRun]], until: float, idle: IdleMode
) -> None:
    """Whatever the log says: clocks that were set back, runs outside of the bill, days and months that end."""
    made, states, runs = history
    end = START + until if made.billed_until is None else min(START + until, made.billed_until)
    seconds = max(0.0, end - (made.billed_from or 0.0))
    found = charges_by_use(made, states, runs, payers_made_for(made, {}), START + until, idle)
    assert sum(one.amount for one in found) * MICRO == cost_of(made.offer.price, seconds)
    assert sum(one.milliseconds for one in found) == round(float(f"{seconds:.3f}") * 1000)
    assert all(one.amount >= 0 and one.milliseconds >= 0 for one in found)
    assert len({one[:4] for one in found}) == len(found)
    if idle is IdleMode.BY_USE and any(one.kind == "work" for one in found):
        assert not any(one.kind in ("idle", "end") and one.payer == NOBODY for one in found)
