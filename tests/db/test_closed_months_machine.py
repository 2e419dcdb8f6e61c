"""Whatever happens to machines, records and clocks: charges add up, closed months stay, nothing is corrected twice."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from math import ceil

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from burstd.db import Store
from burstd.db.repositories import site_runs
from burstd.db.repositories.bill import BillGrouping
from burstd.db.repositories.charges import (
    charges_of,
    charges_so_far,
    volume_charges_on_record,
    volume_charges_so_far,
)
from burstd.domain.billing.closing import ClosedMonth
from burstd.domain.billing.costs import MICRO, month_start, next_month
from burstd.domain.billing.site_runs import SiteRun, site_charges
from burstd.domain.billing.traffic import traffic_cost
from burstd.domain.billing.use import DAY_S, WHOLE, Charge, ClaimRun, IdleMode, Kind, day_text
from burstd.domain.billing.volumes import volume_charges
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.volume import VolumeState
from tests.examples import examples

from .samples import ManualClock, planned
from .test_closed_months import WAIT_S, at, found_month
from .test_money import ANN, BOB, begin, charges, check, end
from .test_traffic import PRICED, deliver
from .test_volumes import PLANNED, created

S, V = ClaimState, VolumeState
GROUPS: tuple[BillGrouping, ...] = ("pool", "user")
slots, days, parts = st.integers(0, 2), st.floats(0, 40), st.floats(0, 1)


@dataclass
class Known:
    """What is known beside the record."""

    number: int = 0
    closed: tuple[ClosedMonth, ...] = ()
    purged: Counter[str] = field(default_factory=Counter)
    """Cost of machines that are on record no longer, by month, in millionths."""
    outlived: Counter[str] = field(default_factory=Counter)
    """Their charges that are still on record, by pool, ..."""
    outlived_volumes: int = 0
    """... and those of volumes."""
    traffic: Counter[int] = field(default_factory=Counter)
    """What was charged for output that came home, by day, in millionths."""
    site: int = 0
    """What is on record of runs on nodes of the site that are over."""


def month_sums(charges: Iterable[Charge]) -> Counter[str]:
    """By the month that they are for."""
    found: Counter[str] = Counter()
    for one in charges:
        found[one.corrects or day_text(one.day)[:7]] += one.amount
    return found


def payer_sums(charges: Iterable[Charge]) -> dict[tuple[str, ...], int]:
    found: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for one in charges:
        found[one.corrects or day_text(one.day)[:7], one.kind, one.cause, *one.payer] += one.amount
    return {key: amount for key, amount in found.items() if amount}


class Months(RuleBasedStateMachine):
    """One site, from the life of its machines to that of its record."""

    @initialize(idle=st.sampled_from(IdleMode))
    def open(self, idle: IdleMode) -> None:
        self.clock, self.known, self.ahead_s = ManualClock(at(1, 20)), Known(), 0.0
        self.backup: tuple[bytes, Known, float] | None = None
        self.store = Store.open(":memory:", self.clock)
        self.store.idle_mode = idle
        begin(self.store, self._new(), clock=self.clock)
        self.site_run(1, begun=True)
        self.close_a_month()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            if not self.known.purged and not self.store.volumes(gone=True) and not self.known.outlived_volumes:
                check(self.store, self.store.find_claims(), self.clock.time)
            self.store.close()

    def _claim(self, which: int) -> Claim | None:
        live = self.store.claims()
        return live[which % len(live)] if live else None

    def _new(self) -> Claim:
        self.known.number += 1
        pool = f"pool{self.known.number % 3}"
        return replace(
            planned(f"c{self.known.number}", f"n{self.known.number}", offer=PRICED, pool=pool), accounts=("atlas",)
        )

    @rule(passed=days)
    def wait(self, passed: float) -> None:
        self.clock.time += passed * DAY_S

    @rule(passed=days)
    def launch(self, passed: float) -> None:
        if len(self.store.claims()) < 4:
            begin(self.store, self._new(), clock=self.clock)
            self.clock.time += passed * DAY_S

    @rule(slot=slots, since=parts, length=days, share=st.sampled_from([WHOLE, WHOLE // 3]))
    def run(self, slot: int, since: float, length: float, share: int) -> None:
        claim = self._claim(slot)
        if claim is not None and claim.billed_from is not None:
            begun = claim.billed_from + since * (self.clock.time - claim.billed_from)
            self.known.number += 1
            ran = ClaimRun(claim.id, ANN if slot else BOB, begun, share, begun + length * DAY_S, self.known.number)
            self.store.save_runs([ran])

    @rule(slot=slots)
    def end(self, slot: int) -> None:
        claim = self._claim(slot)
        if claim is not None:
            end(self.store, claim.id, self.clock, end_s=30)

    @rule(which=st.integers(0, 9), size=st.integers(0, 10**13))
    def output_comes_home(self, which: int, size: int) -> None:
        claims = self.store.find_claims()
        if claims:
            self.known.number += 1
            deliver(self.store, str(self.known.number), claims[which % len(claims)].slot, size=size)
            amount = int(traffic_cost(PRICED.egress_price, size) / MICRO)
            self.known.traffic[int(self.clock.time // DAY_S)] += amount
            self.clock.time += 1  # A bill until midnight has nothing of that moment.

    @rule(slot=slots)
    def hand_over(self, slot: int) -> None:
        claim = self._claim(slot)
        if claim is not None:
            self.store.transition_claim(claim.id, S.IN_SERVICE, S.DRAINING, "idle")
            new = self._new()
            self.store.hand_over_claim(claim.id, S.DRAINING, new, f"former-{new.id}")
            self.clock.time += 10
            for old, to in ((S.VALIDATING, S.READY), (S.READY, S.IN_SERVICE)):
                self.store.transition_claim(claim.id, old, to, "so")

    @rule()
    def close_a_month(self) -> None:
        """Its bill stays what it was just before."""
        month, _ = self.store.awaited_claims()
        if not month:
            return
        self.clock.time = max(self.clock.time, month_start(next_month(month)) + WAIT_S)
        window = month_start(month), month_start(next_month(month))

        def costs() -> list[dict[tuple[str, bool], Decimal]]:
            return [
                {(line.key, line.volumes): line.cost for line in self.store.bill(group, *window) if line.cost}
                for group in GROUPS
            ] + [
                {(line.key, False): line.cost for line in self.store.site_bill(group, *window) if line.cost}
                for group in GROUPS
            ]

        before = costs()
        if self.store.close_month(WAIT_S) and self.store.idle_mode is not IdleMode.BY_USE:
            assert costs() == before

    @rule(since=days, begun=st.booleans(), again=st.booleans())
    def site_run(self, since: float, *, begun: bool, again: bool = False) -> None:
        """One that is seen late, and begins, or one that ends, or both; ``again``: it runs after all."""
        open_runs = self.store.open_site_runs()
        if open_runs and not begun:
            run = open_runs[0]
        else:
            self.known.number += 1
            payer, started = ANN._replace(job=f"{self.known.number}"), self.clock.time - since * DAY_S
            run = SiteRun("old", payer, self.known.number, started, WHOLE // 3, Decimal("0.0123457"), "EUR", nodes="n1")
        if begun:
            self.store.save_site_runs([run], [])
        else:
            run = replace(run, ended=max(run.started, self.clock.time - since * DAY_S / 2))
            assert run.ended is not None
            self.store.save_site_runs([], [run])
            if again:
                self.store.save_site_runs([replace(run, ended=None)], [])
                return
            self.known.site += sum(one.amount for one in site_charges(run, run.ended))

    @rule(passed=days)
    def make_volume(self, passed: float) -> None:
        self.known.number += 1
        volume = replace(PLANNED, id=f"v{self.known.number}", name=f"v{self.known.number}")
        made = created(self.store, self.clock, volume, price="0.0001370137", currency="USD")
        self.clock.time += passed * DAY_S
        self.store.update_volume(made.id, settled_until=self.clock.time)

    @rule(which=st.integers(0, 3))
    def end_volume(self, which: int) -> None:
        if live := self.store.volumes():
            volume_id = live[which % len(live)].id
            self.store.transition_volume(volume_id, V.AVAILABLE, V.REMOVING, "given up")
            self.clock.time += 30
            self.store.transition_volume(volume_id, V.REMOVING, V.GONE, "not listed")

    @rule(which=st.integers(0, 3), part=parts, what=st.sampled_from(["billed_from", "billed_until", "price"]))
    def late_word_on_volume(self, which: int, part: float, what: str) -> None:
        if not (volumes := self.store.volumes(gone=True)):
            return
        volume = volumes[which % len(volumes)]
        assert volume.billed_from is not None
        length = (self.clock.time if volume.billed_until is None else volume.billed_until) - volume.billed_from
        if what == "price":
            self.store.update_volume(volume.id, price=Decimal(f"{part:.10f}"))
        elif what == "billed_from":
            self.store.update_volume(volume.id, billed_from=volume.billed_from + length * part / 3 - 3 * DAY_S)
        elif volume.billed_until is not None:
            self.store.update_volume(volume.id, billed_until=volume.billed_from + length * part)

    @rule(which=st.integers(0, 9), part=parts, begins=st.booleans())
    def late_word(self, which: int, part: float, begins: bool) -> None:
        """On the beginning or the end of a machine."""
        some = [claim for claim in self.store.find_claims() if claim.billed_from is not None]
        if not some:
            return
        claim = some[which % len(some)]
        assert claim.billed_from is not None
        length = (self.clock.time if claim.billed_until is None else claim.billed_until) - claim.billed_from
        if begins:
            self.store.update_claim(claim.id, billed_from=claim.billed_from + length * part / 3)
        elif claim.billed_until is not None:
            self.store.update_claim(claim.id, billed_until=claim.billed_from + length * part)

    @precondition(lambda self: not self.ahead_s)
    @rule(kept=days, charges_kept=days)
    def purge(self, kept: float, charges_kept: float) -> None:
        now = self.clock.time
        before, charges_before = now - kept * DAY_S, now - (kept + charges_kept) * DAY_S
        over = [claim for claim in self.store.find_claims(states=[S.GONE]) if claim.since < before]
        with self.store._database.reading() as connection:
            for costs in charges_of(connection, over, now, self.store.idle_mode).values():
                self.known.purged.update(month_sums(costs))
        site = self._site_on_record()
        assert self.store.purge(before, charges_before) == len(over)
        self.known.site -= site - self._site_on_record()
        on_record = {claim.id for claim in self.store.find_claims()}
        on_record |= {volume.id for volume in self.store.volumes(gone=True)}
        self.known.outlived.clear()
        self.known.outlived_volumes = 0
        for one in self.store.charges_of_days(range(10**5)):
            if one.machine not in on_record and one.charge.kind is Kind.VOLUME:
                self.known.outlived_volumes += one.charge.amount
            elif one.machine not in on_record:
                self.known.outlived[one.pool] += one.charge.amount

    @precondition(lambda self: not self.ahead_s)
    @rule(ahead=st.floats(1, 100))
    def clock_jumps_ahead(self, ahead: float) -> None:
        self.ahead_s = ahead * DAY_S
        self.clock.time += self.ahead_s

    @precondition(lambda self: self.ahead_s)
    @rule()
    def confirm_clock(self) -> None:
        self.clock.time -= self.ahead_s
        self.store.shift_late_times(self.clock.time, self.ahead_s)
        self.ahead_s = 0.0
        today = int(self.clock.time // DAY_S)
        self.known.traffic = sum((Counter({min(day, today): n}) for day, n in self.known.traffic.items()), Counter())
        closed = self.store.closed_months()
        assert closed == self.known.closed[: len(closed)]
        self.known.closed = closed
        self.backup = None

    def _raw(self) -> sqlite3.Connection:
        with self.store._database.reading() as connection:
            found = connection.connection.driver_connection
        assert isinstance(found, sqlite3.Connection)
        return found

    @rule()
    def back_up(self) -> None:
        self.backup = self._raw().serialize(), deepcopy(self.known), self.ahead_s

    @precondition(lambda self: self.backup is not None)
    @rule()
    def put_old_backup_back(self) -> None:
        assert self.backup is not None
        content, known, self.ahead_s = self.backup
        self.known = replace(deepcopy(known), number=self.known.number)
        self._raw().deserialize(content)
        self.store._forget()
        self.store._answers.clear()

    @invariant()
    def all_is_exact(self) -> None:
        if not hasattr(self, "store"):
            return
        store, now, claims = self.store, self.clock.time, self.store.find_claims()
        live = [claim for claim in claims if claim.state is not S.GONE]
        for month in store.closed_months():
            found = found_month(store, month)
            whole_month = (found.charges, found.totals, found.sha256) == (month.charges, month.totals, month.sha256)
            assert whole_month or not found.charges, "all are there, or none is kept any more"
            site = (found.site_charges, found.site_totals, found.site_sha256)
            assert site == (month.site_charges, month.site_totals, month.site_sha256) or not found.site_charges
        assert store.closed_months()[: len(self.known.closed)] == self.known.closed
        self.known.closed = store.closed_months()
        with store._database.reading() as connection:
            cost = charges_of(connection, claims, now, store.idle_mode)
            known = charges_so_far(connection, live, now, store.idle_mode)
        whole, spent = self.known.outlived.copy(), self.known.purged.copy()
        spent.update(self._traffic(whole, {claim.id for claim in claims}))
        for claim in claims:
            whole[claim.pool] += sum(one.amount for one in cost[claim.id])
            if claim.state is S.GONE:
                spent.update(month_sums(cost[claim.id]))
            else:
                kept, more = known[claim.id]
                of_time = (one.charge for one in kept if one.charge.kind is not Kind.TRAFFIC)
                assert payer_sums(chain(of_time, more)) == payer_sums(cost[claim.id])
        bill = [line for line in store.bill("pool", 0.0) if line.cost]
        shown = {line.key: int(line.cost / MICRO) for line in bill if not line.volumes}
        assert shown == {pool: amount for pool, amount in whole.items() if amount}
        by_pool: Counter[str] = Counter()
        of_volumes = 0
        for line in charges(store, now, rows=1000):
            if line.charge.kind is Kind.VOLUME:
                of_volumes += line.charge.amount
            else:
                by_pool[line.pool] += line.charge.amount
        assert {pool: amount for pool, amount in by_pool.items() if amount} == shown
        assert sum(int(line.cost / MICRO) for line in bill if line.volumes) == of_volumes == self._cost_of_volumes()
        self._check_site()
        today = ceil(now / DAY_S)
        assert all(one.charge.day < today for one in store.charges_of_days(range(10**5)) if one.charge.corrects)
        booked = {
            one.month: one.amount / MICRO
            for one in store.spending()
            if one.currency == "EUR" and not one.kind and one.amount
        }
        assert booked == {month: Decimal(amount) for month, amount in spent.items() if amount}

    def _site_on_record(self) -> int:
        return sum(one.charge.amount for one in self.store.site_charges_of_days(range(10**5)))

    def _check_site(self) -> None:
        """Runs are charged for what they have cost, month by month, also those that go on."""
        runs, now = self.store.open_site_runs(), self.clock.time
        with self.store._database.reading() as connection:
            more = {run.payer.job: cost for run, cost in site_runs.charges_so_far(connection, runs, now)}
        kept: defaultdict[str, list[Charge]] = defaultdict(list)
        for one in self.store.site_charges_of_days(range(10**5)):
            kept[one.charge.payer.job].append(one.charge)
        for run in runs:
            assert payer_sums([*kept[run.payer.job], *more[run.payer.job]]) == payer_sums(site_charges(run, now))
        going_on = sum(one.amount for run in runs for one in site_charges(run, now))
        for group in GROUPS:
            shown = sum(int(line.cost / MICRO) for line in self.store.site_bill(group, 0.0, now))
            assert shown == self.known.site + going_on
        assert sum(one.charge.amount for one in self.store.site_charges(range(10**5))) == self.known.site + going_on

    def _traffic(self, whole: Counter[str], machines: Collection[str]) -> Counter[str]:
        """What was charged for it in each month. ``whole`` gets, by pool, what is on record of these machines."""
        by_day: Counter[int] = Counter()
        for one in self.store.charges_of_days(range(10**5)):
            if one.charge.kind is Kind.TRAFFIC:
                by_day[one.charge.day] += one.charge.amount
                whole[one.pool] += one.charge.amount if one.machine in machines else 0
        assert all(self.known.traffic[day] == amount for day, amount in by_day.items())
        by_month: Counter[str] = Counter()
        for day, amount in self.known.traffic.items():
            by_month[day_text(day)[:7]] += amount
        return by_month

    def _cost_of_volumes(self) -> int:
        """Those that live are charged for what they have cost, month by month."""
        store, now, volumes = self.store, self.clock.time, self.store.volumes(gone=True)
        live = [volume for volume in volumes if volume.state is not V.GONE]
        with store._database.reading() as connection:
            kept, more = volume_charges_on_record(connection, live), volume_charges_so_far(connection, live, now)
        for volume in live:
            charged = payer_sums(chain((one.charge for one in kept[volume.id]), more[volume.id]))
            assert charged == payer_sums(volume_charges(volume, now))
        costs = [one.amount for volume in volumes for one in volume_charges(volume, now)]
        return sum(costs) + self.known.outlived_volumes


Months.TestCase.settings = settings(
    max_examples=examples(6),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
TestMonths = pytest.mark.slow(Months.TestCase)
