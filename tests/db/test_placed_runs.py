"""Runs that are compared, in each database: with Slurm's times, and what each was charged where it ran."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from sqlalchemy import insert

from burstd.db import RunFilter, Store
from burstd.db.tables import CHARGE
from burstd.domain.billing.compare import Place, PlacedRun, compare
from burstd.domain.billing.costs import month_start
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import DAY_S, WHOLE, ClaimRun, Payer
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.staging import StageState

from .samples import START, ManualClock, planned
from .test_money import CENTS, begin, end
from .test_stagings import transitions_to, waiting

ANN = Payer("17", "ann", "atlas", "burst")
# On a machine for 0.001 a second, of which it had a half; its output was at home 20 s later.
THERE = EndedJob("17", "ann", "atlas", "train", ("burst",), 1, 4, 0, 0.0, START, START + 100, START + 300, burst=True,
                 submitted=START - 5)  # fmt: skip
# On a node of the site for the same price, again after a requeue; when it was submitted is not on record.
HERE = EndedJob("18", "ann", "atlas", "train", ("old",), 1, 4, 0, 0.0, START + 1000, START + 1500, START + 1900,
                burst=False)  # fmt: skip
ALL = RunFilter(START, START + DAY_S)


def write(store: Store, clock: ManualClock) -> None:
    """The machine is up still."""
    begin(store, planned(offer=CENTS), clock=clock)
    store.save_runs([ClaimRun("c1", ANN, clock.time, WHOLE // 2, clock.time + 200, run_start=7)])
    store.make_staging(waiting())
    path = transitions_to(StageState.DELIVERED)
    clock.time = START + 320
    for old, new in pairwise(path):
        store.transition_staging("17", old, new, "so")
    clock.time = START + 5000
    for start, run in ((5, 100), (1500, 400)):
        payer = ANN._replace(job="18")
        at = START + start
        store.save_site_runs((), [SiteRun("old", payer, int(at), at, WHOLE, Decimal("3.60"), "EUR", at + run)])
    store.record_ended_jobs([THERE, HERE])


def test_times_are_slurms_and_costs_those_on_the_bill(store: Store, clock: ManualClock) -> None:
    write(store, clock)
    for _ in range(2):
        # 100 s of boot and half of 200 s of work; both runs of 500 s.
        assert list(store.compared_runs(START, ALL)) == [
            PlacedRun("17", "ann", "train", 1, 4, 0, Place.THERE, START - 5, START, START + 100, START + 300,
                      START + 320, {"EUR": 200_000}),
            PlacedRun("18", "ann", "train", 1, 4, 0, Place.HERE, START + 1000, START + 1000, START + 1500, START + 1900,
                      START + 1900, {"old": 500_000}),
        ]  # fmt: skip
        if store.claims():
            end(store, "c1", clock)
    found = compare(store.compared_runs(START, RunFilter(START, START + DAY_S, "18", "ann")))
    assert (found.jobs, found.there.completion.seconds, found.there.cost.amounts) == (
        1,
        320,
        {"EUR": Decimal(200_000)},
    )
    assert (store.last_run("18"), store.last_run("18", "bob"), store.last_run("19")) == (HERE, None, None)
    assert store.first_run_ended() == THERE.ended


def test_what_is_not_asked_for_only_tells(store: Store, clock: ManualClock) -> None:
    write(store, clock)
    for wanted, jobs in (
        (RunFilter(START, START + 400), ["17"]),
        (RunFilter(START + 400, START + DAY_S), ["18"]),
        (RunFilter(START, START + DAY_S, job="18"), ["18"]),
        (RunFilter(START, START + DAY_S, user="bob"), []),
        (RunFilter(START, START + DAY_S, user="ann", account="atlas"), ["17", "18"]),
        (RunFilter(START, START + DAY_S, account="belle"), []),
    ):
        found = list(store.compared_runs(START, wanted))
        assert [run.job for run in found if run.counted] == jobs, wanted
    assert [run.job for run in store.compared_runs(START + 400, ALL)] == ["18"]
    assert [run.job for run in store.compared_runs(START, ALL, user="ann")] == ["17", "18"]
    assert not [*store.compared_runs(START, ALL, user="bob")]
    assert (store.first_run_ended("ann"), store.first_run_ended("bob")) == (THERE.ended, None)
    another = replace(HERE, id="19")
    for unlike in (
        replace(another, user="bob"), replace(another, name="eval"), replace(another, nodes=2),
        replace(another, gpus=1), replace(another, cpus=8),
    ):  # fmt: skip
        store.record_ended_jobs([unlike])
        assert [run.job for run in store.compared_runs(START, ALL, THERE)] == ["17", "18"], unlike


def test_how_much_nodes_were_used(store: Store, clock: ManualClock) -> None:
    write(store, clock)
    day = START // DAY_S * DAY_S
    use = store.group_uses(["old", "new"], START, clock.time)
    assert {name: (one.since, one.node_s) for name, one in use.items()} == {"old": (START, 500)}
    assert store.group_uses(["old"], day - 9 * DAY_S, clock.time)["old"].since == day
    at = START - DAY_S
    store.save_site_runs([SiteRun("new", ANN, 1, at, WHOLE // 2, Decimal(1), "EUR")], ())
    use = store.group_uses(["new"], day - 9 * DAY_S, clock.time)
    assert (use["new"].since, use["new"].node_s) == (at, (DAY_S + 5000) / 2)


def charge(job: str, day: int, amount: int, corrects: str = "") -> dict[str, object]:
    """One row of ``charge``, of ann's job."""
    named = dict.fromkeys(("account", "partition", "pool", "provider", "cause"), "a")
    return named | {
        "day": day, "claim_id": f"c{day}{corrects}", "number": 0, "kind": "work", "job": job, "user": "ann",
        "currency": "EUR", "amount": amount, "milliseconds": 1, "corrects": corrects,
    }  # fmt: skip


def test_a_job_costs_the_same_alone_and_beside_others(store: Store) -> None:
    """Its number was another job's 40 days before, and is a third one's 40 days later; a correction came late."""
    begun = month_start("2026-06") + 9 * DAY_S
    wanted = replace(THERE, id="1", eligible=begun, started=begun, ended=begun + 300, submitted=begun)
    beside = [
        replace(wanted, id=number, name="y", started=at, ended=at + 300)
        for number, at in (("2", begun - 40 * DAY_S), ("3", begun + 40 * DAY_S))
    ]
    store.record_ended_jobs([wanted, *beside])
    day = int(begun // DAY_S)
    charges = [
        charge("1", day + after, amount) for after, amount in ((-40, 1), (-30, 20), (0, 300), (1, 4000), (40, 50000))
    ]
    late = [charge("1", day + 90, -100, "2026-06"), charge("1", day + 91, 7 * 10**6, "2026-09")]
    with store._database.writing() as session:
        session.connection().execute(insert(CHARGE), charges + late)
    every = RunFilter(begun - 99 * DAY_S, begun + 99 * DAY_S)
    alone, among = (
        [run.costs for run in store.compared_runs(every.since, every, like) if run.job == "1"]
        for like in (wanted, None)
    )
    assert alone == among == [{"EUR": 4220}]
