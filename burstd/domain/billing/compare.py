"""Jobs here, on the site's own nodes, beside there, on machines of clouds: times and costs.

What a job did at a place is measured. For the other place each figure is the mean of like jobs that ran there: those of
the same user, name, number of nodes, CPUs and GPUs. Where none did, others tell, those that ask for GPUs as it does,
or do not: they give the wait, the speed (how long like jobs run there against here) and what an hour of a GPU or CPU
costs. Where no like jobs ran at both places, the job is taken to run as long there as here. What nothing tells is not
known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from itertools import groupby
from operator import attrgetter


class Place(StrEnum):
    """Where a job runs."""

    HERE = "here"
    THERE = "there"

    @property
    def other(self) -> Place:
        """Where else it could run."""
        return Place.THERE if self is Place.HERE else Place.HERE


PLACES = tuple(Place)
LIKENESS = ("user", "name", "nodes", "cpus", "gpus")
"""In which like jobs are the same."""
LIMITS = (
    "Jobs that failed are like jobs too.",
    "Not in the costs: boot charged to an array as a whole, runs at one place of jobs that ended at the other.",
)
"""What the figures do not tell, in sentences."""
PARTIAL = "Sums leave out jobs whose figure is not known: such a sum is not to be compared with one of all jobs."
"""The same of some comparisons."""


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """One run of a job that is over. Times in burstd's seconds since 1970."""

    job: str
    user: str
    name: str
    nodes: int
    cpus: int
    gpus: int
    """Both of all its nodes."""
    place: Place
    submitted: float
    eligible: float
    """From then on it could have begun but for others: what it depends on was over."""
    started: float
    ended: float
    delivered: float
    """When its output was at home; where it has none, ``ended``."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """Of all its runs. There: what was charged, by currency, in millionths. Here: time of nodes, by group of
    ``[site.cost]``, in milliseconds. Empty: that is not on record."""
    counted: bool = True
    """Its figures are wanted; else it only tells of others."""


@dataclass(slots=True)
class Basis:
    """What a figure rests on: of so many jobs it is measured, estimated or not known."""

    measured: int = 0
    like: int = 0
    """Estimated by like jobs, ..."""
    like_jobs: int = 0
    """... of which there are so many."""
    others: int = 0
    """Estimated by others, ..."""
    other_jobs: int = 0
    """... by so many; of ``run`` by so many kinds of like jobs that ran at both places."""
    assumed: int = 0
    """Taken to run as long as at the other place: nothing tells of the speed."""
    unknown: int = 0

    @property
    def known(self) -> int:
        """Of how many jobs it is known."""
        return self.measured + self.like + self.others + self.assumed

    def by_like(self, jobs: int, like_jobs: int) -> None:
        """Of so many jobs more it is estimated by so many like jobs."""
        self.like, self.like_jobs = self.like + jobs, self.like_jobs + like_jobs

    def by_others(self, jobs: int, other_jobs: int) -> None:
        """The same by others."""
        self.others, self.other_jobs = self.others + jobs, self.other_jobs + other_jobs


@dataclass(slots=True)
class TimeFigure:
    """A length of time, summed over the jobs of which it is known."""

    seconds: float = 0.0
    basis: Basis = field(default_factory=Basis)


@dataclass(slots=True)
class CostFigure:
    """A cost, summed over the jobs of which it is known: as ``PlacedRun.costs``."""

    amounts: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    basis: Basis = field(default_factory=Basis)

    def add(self, costs: Mapping[str, int], factor: Decimal = Decimal(1)) -> None:
        """So many times."""
        for key, amount in costs.items():
            self.amounts[key] += amount * factor


@dataclass(slots=True)
class Side:
    """All figures of the jobs at one place."""

    wait: TimeFigure = field(default_factory=TimeFigure)
    """From when they were eligible to their start: boot and staging of input count."""
    run: TimeFigure = field(default_factory=TimeFigure)
    completion: TimeFigure = field(default_factory=TimeFigure)
    """From submission to the end, and until output is at home."""
    cost: CostFigure = field(default_factory=CostFigure)
    """There what is charged; here the time of nodes with a price."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of so many jobs."""

    jobs: int
    here: Side
    there: Side

    @property
    def needs_others(self) -> bool:
        """Whether any figure is neither measured nor told by like jobs."""
        return any(basis.measured + basis.like < self.jobs for basis in self._bases())

    @property
    def limits(self) -> tuple[str, ...]:
        """What its figures do not tell, in sentences."""
        return LIMITS + (PARTIAL,) * any(basis.known and basis.unknown for basis in self._bases())

    def _bases(self) -> Iterator[Basis]:
        for side in (self.here, self.there):
            yield from (figure.basis for figure in (side.wait, side.run, side.completion, side.cost))


@dataclass(slots=True)
class _Sums:
    """Over runs."""

    jobs: int = 0
    held_s: float = 0.0
    wait_s: float = 0.0
    run_s: float = 0.0
    delivery_s: float = 0.0
    work: float = 0.0
    """Seconds of GPUs, or of CPUs where they have none."""
    priced: int = 0
    """So many have costs, ..."""
    priced_work: float = 0.0
    costs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, run: PlacedRun) -> None:
        seconds = run.ended - run.started
        work = seconds * (run.gpus or run.cpus)
        self.jobs += 1
        self.held_s += run.eligible - run.submitted
        self.wait_s += run.started - run.eligible
        self.run_s += seconds
        self.delivery_s += run.delivered - run.ended
        self.work += work
        if run.costs:
            self.priced += 1
            self.priced_work += work
            for key, amount in run.costs.items():
                self.costs[key] += amount

    def take_in(self, other: _Sums) -> None:
        for name in ("jobs", "held_s", "wait_s", "run_s", "delivery_s", "work", "priced", "priced_work"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for key, amount in other.costs.items():
            self.costs[key] += amount

    @property
    def after_eligible_s(self) -> float:
        return self.wait_s + self.run_s + self.delivery_s


@dataclass(slots=True)
class _Others:
    """Of all runs of one place, with GPUs or without; and what waits for them to be known."""

    runs: _Sums = field(default_factory=_Sums)
    pairs: int = 0
    """Kinds of like jobs that ran at both places, ..."""
    pairs_s: float = 0.0
    """... and the sum of how long they ran here, on average each."""
    jobs: int = 0
    """Of which no like job ran here: they ran at the other place, ..."""
    held_s: float = 0.0
    run_s: float = 0.0
    """... so long there."""
    unpriced: int = 0
    """Jobs whose cost is wanted, ..."""
    work: float = 0.0
    """... for so much work here, ..."""
    other_work: float = 0.0
    """... and for so much at the other place."""


def compare(runs: Iterable[PlacedRun], *, by_others: bool = True) -> Comparison:
    """The jobs with a counted run, by these runs: in the order of LIKENESS, then of job and start.

    Of a job that ran several times at one place the last run counts. Little is kept beside the sums. Without
    ``by_others`` only like jobs tell.
    """
    sides = {place: Side() for place in PLACES}
    others: defaultdict[tuple[Place, bool], _Others] = defaultdict(_Others)
    jobs = 0
    for (*_, gpus), some in groupby(runs, key=attrgetter(*LIKENESS)):
        jobs += _add_like(some, sides, {place: others[place, gpus > 0] for place in PLACES})
    for (place, with_gpus), known in sorted(others.items()):
        if by_others:
            _add_by_others(sides[place], known, others[place.other, with_gpus])
        else:
            _add_unknown(sides[place], known)
    return Comparison(jobs, sides[Place.HERE], sides[Place.THERE])


def _add_like(runs: Iterable[PlacedRun], sides: Mapping[Place, Side], others: Mapping[Place, _Others]) -> int:
    """Adds jobs that are alike: what is measured, and what they tell of each other. Returns how many are counted."""
    known, own, missing = ({place: _Sums() for place in PLACES} for _ in range(3))
    jobs = 0
    for _, some in groupby(runs, key=attrgetter("job")):
        last = {run.place: run for run in some}
        for place, run in last.items():
            known[place].add(run)
        if any(run.counted for run in last.values()):
            jobs += 1
            for place in PLACES:
                if place in last:
                    own[place].add(last[place])
                else:
                    missing[place].add(last[place.other])
    for place in PLACES:
        others[place].runs.take_in(known[place])
        _add_measured(sides[place], own[place])
        _add_missing(sides[place], others[place], known[place], own[place], missing[place])
    if all(known[place].run_s > 0 for place in PLACES):
        for place in PLACES:
            others[place].pairs += 1
            others[place].pairs_s += known[place].run_s / known[place].jobs
    return jobs


def _add_measured(side: Side, own: _Sums) -> None:
    for figure, seconds in (
        (side.wait, own.wait_s), (side.run, own.run_s), (side.completion, own.held_s + own.after_eligible_s),
    ):  # fmt: skip
        figure.seconds += seconds
        figure.basis.measured += own.jobs
    side.cost.add(own.costs)
    side.cost.basis.measured += own.priced


def _add_missing(side: Side, others: _Others, known: _Sums, own: _Sums, missing: _Sums) -> None:
    """What is not measured: by like jobs, or put down for others to tell. ``missing`` ran at the other place."""
    unpriced, work, other_work = own.jobs - own.priced, own.work - own.priced_work, missing.work
    if missing.jobs and known.jobs:
        times = missing.jobs / known.jobs
        for figure, seconds in (
            (side.wait, known.wait_s * times), (side.run, known.run_s * times),
            (side.completion, missing.held_s + known.after_eligible_s * times),
        ):  # fmt: skip
            figure.seconds += seconds
            figure.basis.by_like(missing.jobs, known.jobs)
        work, other_work = work + known.work * times, 0.0
    elif missing.jobs:
        others.jobs += missing.jobs
        others.held_s += missing.held_s
        others.run_s += missing.run_s
    if (unpriced := unpriced + missing.jobs) and known.priced:
        side.cost.add(known.costs, Decimal(unpriced) / known.priced)
        side.cost.basis.by_like(unpriced, known.priced)
    elif unpriced:
        others.unpriced += unpriced
        others.work += work
        others.other_work += other_work


def _add_unknown(side: Side, known: _Others) -> None:
    """What only others would tell."""
    for figure in (side.wait, side.run, side.completion):
        figure.basis.unknown += known.jobs
    side.cost.basis.unknown += known.unpriced


def _add_by_others(side: Side, known: _Others, other: _Others) -> None:
    """What only others tell. ``other``: of the other place."""
    runs, speed = known.runs, known.pairs_s / other.pairs_s if known.pairs else 1.0
    if known.jobs:
        run_s = known.run_s * speed
        side.run.seconds += run_s
        if known.pairs:
            side.run.basis.by_others(known.jobs, known.pairs)
        else:
            side.run.basis.assumed += known.jobs
        if runs.jobs:
            times = known.jobs / runs.jobs
            side.wait.seconds += runs.wait_s * times
            side.completion.seconds += known.held_s + run_s + (runs.wait_s + runs.delivery_s) * times
        for figure in (side.wait, side.completion):
            if runs.jobs:
                figure.basis.by_others(known.jobs, runs.jobs)
            else:
                figure.basis.unknown += known.jobs
    if known.unpriced and runs.priced_work > 0:
        side.cost.add(runs.costs, Decimal(known.work + known.other_work * speed) / Decimal(runs.priced_work))
        side.cost.basis.by_others(known.unpriced, runs.priced)
    else:
        side.cost.basis.unknown += known.unpriced
