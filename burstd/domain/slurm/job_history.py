"""Jobs that have ended, as far as they tell of jobs like them: how long these will run, and how long they will wait.

Jobs are alike in several degrees, from those of one user with one name and one request down to all jobs. An estimate
is the mean of the latest runs of the closest degree in which enough are known. Where jobs have a time limit it is the
share of it that counts, as users know which of their jobs are long: one with twice the limit is expected to run twice
as long, unless enough are known with the very same limit. Of a job that runs already only those
tell that ran at least as long: with run times as they are on clusters (many short ones, few very long ones), a job
that has run long will run long.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from zlib import crc32

from burstd.domain.slurm.job import Job

RUNS = 256
"""So many of the latest runs of each group are kept, and up to FRESH more, ..."""
FRESH = 32
SHELVES, GROUPS = 256, 160
"""... and so many groups on each of so many shelves: about 40,000 in all, those that were longest without news go."""
MIN_RUNS = 8
"""So many runs make an estimate."""
MIN_LONGER_RUNS = 3
"""So many runs that lasted longer make one of a job that runs already."""
RECENT = 50
"""Waits change with the queue: only so many of the latest count."""
QUANTILES = (0.125, 0.375, 0.625, 0.875)
"""Shares of like jobs that have ended by the times of ``SimilarJobs.spread``."""
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One run of a job that is over. Times in burstd's seconds since 1970."""

    id: str
    user: str
    account: str
    name: str
    partitions: tuple[str, ...]
    nodes: int
    cpus: int
    gpus: int
    """Of all its nodes."""
    time_limit_s: float
    """0: unlimited, or not known."""
    eligible: float
    started: float
    ended: float
    burst: bool
    """It ran on nodes of burstd's."""
    submitted: float | None = None
    """Slurm sets it anew when it requeues a job. None: burstd did not write it down then."""

    @property
    def run_s(self) -> float:
        """How long it ran."""
        return max(0.0, self.ended - self.started)

    @property
    def wait_s(self) -> float:
        """How long it waited."""
        return max(0.0, self.started - self.eligible)


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """A length of time that is expected of a job, in seconds, and from how many jobs like it that comes."""

    seconds: float
    jobs: int
    basis: str
    """Which jobs count as like it: ``jobs of ada with 2 GPUs``."""


GroupKey = tuple[str, ...]
"""A degree of likeness and its words: ``("user", "ada", "2 GPUs")``."""
_NONE: tuple[float, ...] = ()


class _Group:
    """The latest runs of one group. What is worked out from them is kept; it changes nothing."""

    __slots__ = ("_fresh", "_longer", "_mean", "_old", "_sorted", "_wait", "runs", "waits")

    def __init__(
        self, old: tuple[float, ...] = _NONE, fresh: tuple[float, ...] = _NONE, waits: tuple[float, ...] = _NONE
    ) -> None:
        """``old``, then ``fresh``: how long they ran, the latest last; shares of their limits where they had one."""
        self._old = old
        self._fresh = fresh
        self.runs = len(old) + len(fresh)
        """How many."""
        self.waits = waits
        """How long those waited that ran on nodes of the site."""
        self._mean = self._wait = -1.0
        self._sorted: list[float] = []
        self._longer: list[float] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Group) and (self._old, self._fresh, self.waits) == (
            other._old, other._fresh, other.waits,
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]  # compared by what it holds

    def and_one(self, run: float, waits: tuple[float, ...]) -> _Group:
        """With one run more: few are copied."""
        old, fresh = self._old, (*self._fresh, run)
        if len(fresh) == FRESH:
            old, fresh = (*old, *fresh)[-RUNS:], _NONE
        return _Group(old, fresh, (*self.waits[-RECENT:], *waits)[-RECENT:] if waits else self.waits)

    def mean(self) -> float:
        if self._mean < 0:
            self._mean = (sum(self._old) + sum(self._fresh)) / self.runs
        return self._mean

    def mean_wait(self) -> float:
        if self._wait < 0:
            self._wait = sum(self.waits) / len(self.waits)
        return self._wait

    def longer_than(self, elapsed: float) -> tuple[int, float]:
        """How many ran longer, and how long these did on average."""
        first = self._first(elapsed)
        count = len(self._sorted) - first
        return count, self._longer[first] / count if count else 0.0

    def spread(self, elapsed: float) -> list[float]:
        """How long those ran that ran longer: one time for each of QUANTILES. Empty where they are not enough."""
        first = self._first(elapsed)
        runs = self._sorted
        count = len(runs) - first
        if not count or (elapsed > 0 and count < MIN_LONGER_RUNS):
            return []
        return [runs[first + int(share * count)] for share in QUANTILES]

    def _first(self, elapsed: float) -> int:
        if not self._sorted:
            runs, sums = sorted((*self._old, *self._fresh)), [0.0]
            for run in reversed(runs):
                sums.append(sums[-1] + run)
            # The policy that asks may be interrupted anywhere: what says that all is there comes last.
            self._longer, self._sorted = sums[::-1], runs
        return bisect_left(self._sorted, elapsed)


@dataclass(frozen=True, slots=True)
class SimilarJobs:
    """The groups of one job, the closest first."""

    _groups: tuple[tuple[GroupKey, _Group], ...]
    _limit_s: float

    def run_s(self, elapsed_s: float = 0.0) -> DurationEstimate | None:
        """As JobHistory.run_s."""
        if not self._groups:
            return None
        seconds, count, key = self._run_estimate(elapsed_s)
        return DurationEstimate(seconds, count, _basis_text(key))

    def spread(self, elapsed_s: float = 0.0) -> tuple[float, ...]:
        """How long in all it may run that has run for so long: a time for each of QUANTILES; empty: no job tells.

        Run times differ by orders of magnitude. Of many jobs some end soon, which their means do not show.
        """
        if not self._groups:
            return ()
        unit, elapsed_s = self._limit_s or 1.0, max(0.0, elapsed_s)
        for _, group in self._groups:
            if shares := group.spread(elapsed_s / unit):
                found = [unit * share for share in shares]
                break
        else:
            # Half of them double their age, as in ``run_s``: a Pareto distribution with exponent 1.
            found = [elapsed_s / (1 - share) for share in QUANTILES]
        if self._limit_s:
            limit = max(self._limit_s, elapsed_s)
            found = [min(run, limit) for run in found]
        return tuple(found)

    def _run_estimate(self, elapsed_s: float) -> tuple[float, int, GroupKey]:
        unit, (key, group) = self._limit_s or 1.0, self._groups[0]
        seconds, count = (unit * group.mean(), group.runs) if elapsed_s <= 0 else (2 * elapsed_s, 0)
        for longer_key, longer in self._groups if elapsed_s > 0 else ():
            ran_longer, mean = longer.longer_than(elapsed_s / unit)
            if ran_longer >= MIN_LONGER_RUNS:
                key, seconds, count = longer_key, unit * mean, ran_longer
                break
        if 0 < self._limit_s < seconds:
            seconds = max(self._limit_s, elapsed_s)
        return seconds, count, key


_EMPTY = _Group()
_Shelf = dict[GroupKey, _Group]


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What jobs that have ended tell. Immutable and of bounded size; an empty one tells nothing.

    ``with_ended`` copies the shelves that it changes and shares the others.
    """

    _shelves: tuple[_Shelf, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self._shelves)

    @classmethod
    def from_jobs(cls, ended: Iterable[EndedJob]) -> JobHistory:
        """From jobs in the order in which they ended."""
        return cls().with_ended(ended)

    def with_ended(self, some: Iterable[EndedJob]) -> JobHistory:
        """The same and more jobs, in the order in which they ended."""
        shelves = list(self._shelves) or [_Shelf() for _ in range(SHELVES)]
        own: set[int] = set()
        none = True
        for job in some:
            none = False
            run, wait_s = job.run_s / (job.time_limit_s or 1.0), () if job.burst else (job.wait_s,)
            size = _size(job.gpus, job.cpus)
            for shelf, key in _keys(job.user, job.account, job.name, size, job.nodes, job.time_limit_s):
                if shelf not in own:
                    shelves[shelf] = dict(shelves[shelf])
                    own.add(shelf)
                _add(shelves[shelf], key, run, wait_s)
        return self if none else JobHistory(tuple(shelves))

    def run_s(self, job: Job, elapsed_s: float = 0.0) -> DurationEstimate | None:
        """How long the job will run in all, given that it has run for so long; None: no job tells.

        Not more than its time limit. What all have outlived that are known is as likely to double its age as not.
        """
        return self.similar_jobs(job).run_s(elapsed_s)

    def similar_jobs(self, job: Job) -> SimilarJobs:
        """What is known of jobs like this one, for many questions about the same request."""
        return SimilarJobs(
            tuple([known for known in self._groups_of(job) if known[1].runs >= MIN_RUNS]), job.time_limit_s
        )

    def wait_s(self, job: Job) -> DurationEstimate | None:
        """How long jobs like it waited of late for nodes of the site; None: no job tells."""
        for key, group in self._groups_of(job):
            if len(group.waits) >= MIN_RUNS:
                return DurationEstimate(group.mean_wait(), len(group.waits), _basis_text(key))
        return None

    def _groups_of(self, job: Job) -> list[tuple[GroupKey, _Group]]:
        """The groups of which there are any, the closest first."""
        if not self._shelves:
            return []
        size, shelves = _size(requested_gpus(job), job.cpus), self._shelves
        keys = _keys(job.user, job.account, job.name, size, job.nodes, job.time_limit_s)
        return [(key, group) for place, key in keys if (group := shelves[place].get(key)) is not None]


def requested_gpus(job: Job) -> int:
    """GPUs that a job asks for, over all its nodes."""
    each = sum(g.count for g in job.gres_per_node if g.name == "gpu")
    return each * max(1, job.nodes) + sum(g.count for g in job.gres_per_job if g.name == "gpu")


def _size(gpus: int, cpus: int) -> str:
    """GPUs, or CPUs up to the next power of two where there are none."""
    return f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else f"up to {1 << max(0, cpus - 1).bit_length()} CPUs"


@lru_cache(maxsize=8192)
def _keys(
    user: str, account: str, name: str, size: str, nodes: int, limit_s: float
) -> tuple[tuple[int, GroupKey], ...]:
    """The groups of a job, the closest first, each with the number of its shelf.

    Numbers in names say which of many alike it is: they do not count.
    """
    on, limit, kind = f"{max(1, nodes)} nodes", f"{limit_s:.0f}", "limited" if limit_s else "unlimited"
    keys: list[GroupKey] = []
    if user and name:
        keys.append(("name", user, size, on, limit, _DIGITS.sub("#", name)))
    if user and limit_s:
        keys.append(("limit", user, size, on, limit))
    if limit_s:
        keys.append(("all with limit", size, on, limit))
    if user:
        keys.append(("user", user, size, kind))
    if account:
        keys.append(("account", account, size, kind))
    keys += (("size", size, on, kind), ("all", kind))
    return tuple((_shelf_number(key), key) for key in keys)


def _shelf_number(key: GroupKey) -> int:
    """The same in every process, unlike ``hash``: which groups are forgotten hangs on it."""
    return crc32("\0".join(key).encode("utf-8", "surrogateescape")) % SHELVES


def _basis_text(key: GroupKey) -> str:
    kind, *words = key
    if kind == "name":
        return f"jobs {words[4]} of {words[0]} with {words[1]}"
    if kind == "limit":
        return f"jobs of {words[0]} with {words[1]} and the same time limit"
    if kind == "all with limit":
        return f"jobs with {words[0]} and the same time limit"
    if kind in ("user", "account"):
        return f"jobs of {words[0]} with {words[1]}"
    return f"jobs with {words[0]}" if kind == "size" else "jobs of all users"


def _add(shelf: _Shelf, key: GroupKey, run: float, wait_s: tuple[float, ...]) -> None:
    group = shelf.pop(key, None)
    if group is None:
        if len(shelf) >= GROUPS:
            del shelf[next(iter(shelf))]
        group = _EMPTY
    shelf[key] = group.and_one(run, wait_s)
