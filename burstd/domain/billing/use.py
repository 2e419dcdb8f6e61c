"""What each billed millisecond of a machine was, and who is charged for it.

Every millisecond is boot, work of jobs, idle, end, failed or storage. Jobs are charged by weights: the largest of the
shares of CPUs, memory and GPUs of the node that they hold. What a machine costs in a day is split by largest
remainder, so that all charges of a claim add up to its cost, and every sum over them is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from math import inf, lcm
from typing import NamedTuple

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.claim import Cause, Claim, ClaimState

DAY_S = 86400
HOUR_S = 3600.0
WHOLE = 10**6
"""A share of all of a node."""


class Kind(StrEnum):
    """What a machine was paid for."""

    BOOT = "boot"
    """From its launch until it came into service."""
    WORK = "work"
    """Jobs."""
    IDLE = "idle"
    """It was in service, and this part of it was nobody's."""
    END = "end"
    """Its end was asked for."""
    FAILED = "failed"
    """It never came into service for a fault of its own, or left service for one."""
    STORAGE = "storage"
    """It served the data of jobs."""
    VOLUME = "volume"
    """No machine: a volume."""
    TRAFFIC = "traffic"
    """Output of jobs came home from there."""
    SITE = "site"
    """Jobs on nodes of the site's own."""
    SHARED = "shared"
    """In equal parts to those it was made for: claims that ended before use was recorded."""


class IdleCause(StrEnum):
    """Why a machine in service was idle."""

    BEFORE_FIRST_JOB = "before_first_job"
    GAP = "gap"
    """Between two jobs."""
    KEEP_ALIVE = "keep_alive"
    """After the last job, until it was drained."""
    FLOOR = "floor"
    """A policy's minimum or spare nodes."""
    PIN = "pin"
    """``burstctl scale``."""
    FRAGMENT = "fragment"
    """Jobs held a part of the node only."""
    DRAINED = "drained"
    """No job could start on it."""


class IdleMode(StrEnum):
    """Who is charged for idle time and for the end of machines that are open to all."""

    APART = "apart"
    """Nobody: they are lines of their own."""
    BY_USE = "by_use"
    """Those whose jobs ran on the machine, in proportion to their work."""
    TO_CAUSE = "to_cause"
    """Those whom it was made for."""


class Payer(NamedTuple):
    """Who is charged; all empty: nobody."""

    job: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""


NOBODY = Payer()


@dataclass(frozen=True, slots=True)
class ClaimRun:
    """One run of a job on the machine of a claim. Times in seconds since 1970 in burstd's own time."""

    claim_id: str
    payer: Payer
    started: float
    share: int
    """Of the node, in millionths: the largest of its shares of CPUs, memory and GPUs."""
    ended: float | None = None
    """None: it runs."""
    run_start: int = 0
    """``Job.run_start``. With the claim and the job it names the run: ``started`` hangs on two clocks."""


class Charge(NamedTuple):
    """What one payer is charged for one kind of use of a machine, or for traffic of it, in one day (UTC)."""

    day: int
    """Days since 1970."""
    kind: Kind
    cause: str
    """Of idle time; else empty."""
    payer: Payer
    amount: int
    """In millionths of the offer's currency."""
    milliseconds: int
    """Of the time of the machine or volume."""
    corrects: str = ""
    """The closed month (``2026-10``) that it puts right, on the day when that was found; of others empty."""
    bytes_out: int = 0
    """Of traffic; of all else 0."""


WeightedPayer = tuple[Payer, int]
_Use = tuple[Kind, str]
_Weights = dict[tuple[Kind, str, Payer], int]
_Start = tuple[int, int, int, ClaimRun]
"""Milliseconds after the beginning of the bill, as those of the end; a number; the run."""
_BOOT: _Use = (Kind.BOOT, "")
_SERVICE: _Use = (Kind.IDLE, "")
_DRAINED: _Use = (Kind.IDLE, IdleCause.DRAINED)
_END: _Use = (Kind.END, "")
_FRAGMENT: _Use = (Kind.IDLE, IdleCause.FRAGMENT)
_FAILED: _Use = (Kind.FAILED, "")
_LOST: _Use = (Kind.FAILED, "lost")
"""As _FAILED; no job ran on it."""
_UP = frozenset({ClaimState.VALIDATING, ClaimState.READY, ClaimState.IN_SERVICE})
_OPEN_CAUSES = {Cause.FLOOR: IdleCause.FLOOR, Cause.PIN: IdleCause.PIN}


@lru_cache(4096)
def day_text(day: int) -> str:
    """``2026-11-27``."""
    return datetime.fromtimestamp(day * DAY_S, UTC).strftime("%Y-%m-%d")


def charges_by_use(
    claim: Claim,
    states: Sequence[tuple[float, ClaimState]],
    runs: Iterable[ClaimRun],
    made_for: Sequence[WeightedPayer],
    until: float,
    idle: IdleMode = IdleMode.APART,
) -> list[Charge]:
    """What a claim has cost by ``until``, or by the end of its bill. The amounts add up to its cost by then.

    ``states``: when it came into which state, in the order of the log. ``runs``: of jobs on its slot, in any order.
    ``made_for``: see ``payers_made_for``.
    """
    span = _span(claim, until)
    if span is None:
        return []
    begin, length = span
    starts, ends = _cut(runs, begin, length)
    phases = _phases(claim, states, begin)
    edges = {0, *(at for at, _ in phases), *_day_edges(begin, length)}
    points = {*edges, *(one[0] for one in starts), *(one[0] for one in ends), length}
    first, last = (starts[0][0], ends[-1][0]) if starts else (length, 0)
    by_day: defaultdict[int, _Weights] = defaultdict(lambda: defaultdict(int))
    nobody = _nobody_pays(claim, made_for, idle)
    work = _Work(whole=claim.dedicated)
    place = begun = over = 0
    weights, phase = by_day[_day(begin, 0)], phases[0][1]
    for at, to in pairwise(sorted(at for at in points if 0 <= at <= length)):
        while over < len(ends) and ends[over][0] <= at:
            work.end(ends[over][1])
            over += 1
        if at in edges:
            weights = by_day[_day(begin, at)]
            work.put_into(weights)
            while place + 1 < len(phases) and phases[place + 1][0] <= at:
                place += 1
            phase = phases[place][1]
        while begun < len(starts) and starts[begun][0] <= at:
            work.begin(*starts[begun][2:])
            begun += 1
        use = phase
        if claim.cause is Cause.STORAGE:
            use = use if use[0] is Kind.FAILED else (Kind.STORAGE, "")
        elif work.running and use != _LOST:  # A job that is bound to its node begins before that is in service.
            if free := work.add(to - at):
                _spread(weights, _FRAGMENT, nobody, free)
            continue
        if use == _SERVICE:
            use = (Kind.IDLE, _idle_cause(claim, at, first, last))
        if use[0] is Kind.FAILED:
            use = _FAILED
        payers = made_for if use[0] is Kind.BOOT else nobody if use[0] in (Kind.IDLE, Kind.END) else ()
        _spread(weights, use, payers, (to - at) * WHOLE)
    work.put_into({})
    if idle is IdleMode.BY_USE and not claim.dedicated:
        _charge_by_use(by_day, made_for)
    return [*_priced(claim, begin, length, by_day)]


def charges_per_hour(
    claim: Claim, running: Iterable[ClaimRun], made_for: Sequence[WeightedPayer], idle: IdleMode
) -> list[Charge]:
    """What it costs in an hour in which it stays as it is. ``running``: the runs on it now."""
    began = None if claim.in_service_from is None else 0.0
    steady = replace(claim, billed_from=0.0, billed_until=HOUR_S, in_service_from=began)
    runs = [replace(run, started=0.0, ended=None) for run in running]
    return charges_by_use(steady, ((0.0, claim.state),), runs, made_for, HOUR_S, idle)


def shared_charges(claim: Claim) -> list[Charge]:
    """The whole cost of a claim whose use is not on record, in equal parts to those it was made for."""
    span = None if claim.billed_until is None else _span(claim, claim.billed_until)
    if span is None:
        return []
    begin, length = span
    by_day: defaultdict[int, _Weights] = defaultdict(lambda: defaultdict(int))
    use: _Use = _FAILED if claim.overhead else (Kind.SHARED, "")
    payers = () if claim.overhead else _equal_parts_of(claim)
    for at, to in pairwise(sorted({0, length, *_day_edges(begin, length)})):
        _spread(by_day[_day(begin, at)], use, payers, (to - at) * WHOLE)
    return [*_priced(claim, begin, length, by_day)]


def payers_made_for(claim: Claim, owners: Mapping[str, Payer]) -> list[WeightedPayer]:
    """Those whom a claim was made for, its jobs in equal parts. ``owners``: by job, as far as they are known.

    One who is not of the claim had a job of the same number before. Where the owner of one is not known, users and
    accounts have equal parts. Empty: it was made for nobody.
    """
    found = [owners.get(job) or owners.get(job.partition("_")[0].partition("+")[0]) for job in claim.jobs]
    known = [
        (owner._replace(job=job), 1)
        for job, owner in zip(claim.jobs, found, strict=True)
        if owner and owner.user in claim.users and (not owner.account or owner.account in claim.accounts)
    ]
    return known if known and len(known) == len(claim.jobs) else _equal_parts_of(claim)


def _equal_parts_of(claim: Claim) -> list[WeightedPayer]:
    """Whose which of the jobs is, is not known: where there are several users none of the jobs is named."""
    return equal_parts(claim.jobs if len(set(claim.users)) <= 1 else (), claim.users, claim.accounts)


def equal_parts(*names: Sequence[str]) -> list[WeightedPayer]:
    """Payers with weights by which all jobs (users, accounts) have equal parts; empty: there are none."""
    lists = [tuple(dict.fromkeys(some)) or ("",) for some in names]
    whole = lcm(*map(len, lists))
    cuts = sorted({whole * n // len(some) for some in lists for n in range(len(some) + 1)})
    parts = [
        (Payer(*(some[at * len(some) // whole] for some in lists)), to - at) for at, to in pairwise(cuts)
    ]  # fmt: skip
    return parts if any(payer != NOBODY for payer, _ in parts) else []


def _ms(seconds: float) -> int:
    """To a thousandth, as ``cost_of`` takes them."""
    return round(round(seconds, 3) * 1000)


def _day(begin: float, at: int) -> int:
    """The day of a moment ``at`` milliseconds after the beginning."""
    return int((begin + (at + 0.5) / 1000) // DAY_S)


def _day_edges(begin: float, length: int) -> Iterator[int]:
    day = _day(begin, 0) + 1
    while (at := _ms(day * DAY_S - begin)) < length:
        if at > 0:
            yield at
        day += 1


def _span(claim: Claim, until: float) -> tuple[float, int] | None:
    """When its bill began, and how long it is in milliseconds; None: it costs nothing."""
    if claim.billed_from is None:
        return None
    end = until if claim.billed_until is None else min(until, claim.billed_until)
    length = _ms(end - claim.billed_from)
    return (claim.billed_from, length) if length > 0 else None


def _phases(claim: Claim, states: Sequence[tuple[float, ClaimState]], begin: float) -> list[tuple[int, _Use]]:
    """From which millisecond on it was what, but for jobs; the first from 0 on."""
    opened = claim.in_service_from is not None or claim.reused_from
    if claim.overhead and not opened:
        return [(0, _LOST)]
    known = [(at, state) for at, state in states if state is not ClaimState.GONE]
    found, at = [(0, _use_of(claim, known[0][1], begin) if known else _BOOT)], 0
    if claim.in_service_from is not None and all(state is not ClaimState.IN_SERVICE for _, state in known):
        # As of a machine that was handed over: its log is with the claim that has it now.
        known = sorted([*known, (claim.in_service_from, ClaimState.IN_SERVICE)], key=lambda one: one[0])
    last_up = max((n for n, (_, state) in enumerate(known) if state in _UP), default=-1)
    faulty = claim.failed
    for n, (time, state) in enumerate(known):
        at = max(at, _ms(time - begin))
        use = _use_of(claim, state, time)
        if state in (ClaimState.LOST, ClaimState.FAILED):
            found.append((at, _LOST if faulty else _END))
            break
        found.append((at, _FAILED if faulty and n > last_up and use in (_DRAINED, _END) else use))
    return found


def _use_of(claim: Claim, state: ClaimState, time: float) -> _Use:
    if state is ClaimState.TERMINATING:
        return _END
    if state is ClaimState.DRAINING:
        return _DRAINED
    began = inf if claim.in_service_from is None else claim.in_service_from
    return _SERVICE if state is ClaimState.IN_SERVICE or time >= began else _BOOT


def _idle_cause(claim: Claim, at: int, first: int, last: int) -> IdleCause:
    if claim.cause in _OPEN_CAUSES:
        return _OPEN_CAUSES[claim.cause]
    if at < first:
        return IdleCause.BEFORE_FIRST_JOB
    return IdleCause.KEEP_ALIVE if at >= last else IdleCause.GAP


def _cut(runs: Iterable[ClaimRun], begin: float, length: int) -> tuple[list[_Start], list[tuple[int, int]]]:
    """The runs within the bill, in the order of their beginnings; their ends and numbers in the order of these."""
    starts = []
    for number, run in enumerate(runs):
        since = max(0, _ms(run.started - begin))
        end = length if run.ended is None else min(length, _ms(run.ended - begin))
        if since < end:
            starts.append((since, end, number, run))
    starts.sort(key=lambda one: one[:3])
    return starts, sorted(one[1:3] for one in starts)


class _Work:
    """The weights of runs.

    A run that has its share of the node, and no less, is added up when it ends, or its day does.
    """

    def __init__(self, *, whole: bool) -> None:
        """``whole``: the jobs have all of the node, however little they asked for."""
        self._whole = whole
        self._weights: dict[tuple[Kind, str, Payer], int] = {}
        self.running: dict[int, tuple[tuple[Kind, str, Payer], int]] = {}
        """Key among the weights, and share."""
        self._new: list[int] = []
        """Those of ``running`` that have no place among the weights so far; it is in the order of their beginnings."""
        self._total = 0
        """Of their shares."""
        self._worked = 0
        """Milliseconds so far in which they had their shares, ..."""
        self._counted: dict[int, int] = {}
        """... and how many of these are in the weights of each run."""

    def put_into(self, weights: dict[tuple[Kind, str, Payer], int]) -> None:
        """From now on it adds to these."""
        if weights is not self._weights:
            for number in self.running:
                self._count(number)
            self._weights, self._new = weights, [*self.running]

    def begin(self, number: int, run: ClaimRun) -> None:
        """A run begins."""
        self.running[number] = ((Kind.WORK, "", run.payer), run.share)
        self._new.append(number)
        self._total += run.share
        self._counted[number] = self._worked

    def end(self, number: int) -> None:
        """A run ends."""
        self._count(number)
        self._total -= self.running.pop(number)[1]

    def _count(self, number: int) -> None:
        key, share = self.running[number]
        if since := self._worked - self._counted[number]:
            self._weights[key] += share * since
            self._counted[number] = self._worked

    def add(self, length: int) -> int:
        """They go on for so many milliseconds. Returns the weight of what is free beside them."""
        for number in self._new:
            if number in self.running:
                self._weights.setdefault(self.running[number][0], 0)
        self._new.clear()
        if not self._whole and self._total <= WHOLE:
            self._worked += length
            return length * (WHOLE - self._total)
        for key, share in self.running.values():
            self._weights[key] += length * share * WHOLE // self._total
        return 0


def _nobody_pays(claim: Claim, made_for: Sequence[WeightedPayer], idle: IdleMode) -> Sequence[WeightedPayer]:
    """Who is charged for what no job used. Those whom a dedicated one was made for: no one else may use it."""
    return made_for if claim.dedicated or idle is IdleMode.TO_CAUSE else ()


def _spread(weights: _Weights, use: _Use, payers: Sequence[WeightedPayer], weight: int) -> None:
    every = payers or [(NOBODY, 1)]
    if len(every) == 1:
        weights[(*use, every[0][0])] += weight
        return
    for (payer, _), part in zip(every, _split(weight, [part for _, part in every]), strict=True):
        weights[(*use, payer)] += part


def _charge_by_use(by_day: Mapping[int, _Weights], made_for: Sequence[WeightedPayer]) -> None:
    """Puts idle time and the end down to those who worked on the machine; where nobody did, whom it was made for."""
    work: defaultdict[Payer, int] = defaultdict(int)
    for weights in by_day.values():
        for (kind, _, payer), weight in weights.items():
            if kind is Kind.WORK:
                work[payer] += weight
    payers = [*work.items()] or made_for
    for weights in by_day.values():
        for kind, cause, payer in [*weights]:
            if kind in (Kind.IDLE, Kind.END) and payer == NOBODY:
                _spread(weights, (kind, cause), payers, weights.pop((kind, cause, payer)))


def _priced(claim: Claim, begin: float, length: int, by_day: Mapping[int, _Weights]) -> Iterator[Charge]:
    """The cost of a day is what the cost of the claim grew by in it."""
    before, at = 0, 0
    for day in sorted(by_day):
        to = min(length, _ms((day + 1) * DAY_S - begin))
        cost = int(cost_of(claim.offer.price, to / 1000) / MICRO)
        uses = sorted(by_day[day].items())
        weights = [weight for _, weight in uses]
        amounts, times = _split(cost - before, weights), _split(to - at, weights)
        for ((kind, cause, payer), _), amount, milliseconds in zip(uses, amounts, times, strict=True):
            if amount or milliseconds:
                yield Charge(day, kind, cause, payer, amount, milliseconds)
        before, at = cost, to


def _split(whole: int, weights: Sequence[int]) -> list[int]:
    """By largest remainder; of equal ones the first. The parts add up to the whole."""
    total = sum(weights)
    if not total:
        return [whole, *[0] * (len(weights) - 1)]
    parts = [divmod(whole * weight, total) for weight in weights]
    left = whole - sum(part for part, _ in parts)
    order = sorted(range(len(parts)), key=lambda n: -parts[n][1])
    more = set(order[:left])
    return [part + (n in more) for n, (part, _) in enumerate(parts)]
