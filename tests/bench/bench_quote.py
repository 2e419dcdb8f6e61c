"""How right quotes are, and what one takes: ``python -m tests.bench.bench_quote [--trace FILE --start DAY --days N]``.

Replays queues on a site without a cloud, where jobs wait for nodes, and in a cloud without a site, where machines boot
in the same time each. Of each 300 jobs, drawn from all but the first quarter, are quoted as they are submitted. Printed
are the shares of jobs that started from p10 to p90 of the way quoted, before p10 and after p90; the real wait as a
multiple of the median quoted; how many of those that waited for a minute or longer started from p10 to p90; and, of
jobs whose like all ran as long as they, how many have a cost on the bill within a tenth of the one quoted. The queues
are made ones, of users with few kinds of jobs each, or a window of a trace.

Then the processor time of a quote with 10,000 jobs pending, beside one decision from cold on the same queue.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from math import inf
from pathlib import Path
from statistics import median
from time import process_time

from burstd.domain.billing.settlements import SpendTotals
from burstd.domain.billing.use import Charge, Kind
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.quote import QuotedWay, UsablePartition
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.quote import quote_jobs
from burstd.planner.policy_chain import make_target
from burstd.settings import PluginRegistry, Settings
from burstd.simulate.policy_chains import make_policy_chain
from burstd.simulate.run import ReplayRun, Scenario
from burstd.simulate.traces.read import read_trace
from burstd.simulate.traces.trace_job import Trace, TraceJob
from burstd.simulate.traces.window import ReplayJob, Workload, common_limit, cut_window, nodes_for_load, seeded_random
from burstd.simulate.world.market import PARTITION, SITE_PARTITION, OfferTerms, default_market
from tests.bench.bench_decide import queue, queue_snapshot

START = 1_507_420_800.0  # 2017-10-08 00:00 UTC
NODE_GPUS = 8
SEEDS, LOADS = (11, 12, 13), (0.7, 0.95)
"""Others than those by which the factors of start_range.py were chosen (1 to 10)."""
QUOTED = 300
PENDING, SLOTS, ROUNDS = 10_000, 4_000, 5


def made_trace(jobs: int, seed: int) -> Trace:
    """Jobs of 12 users with three kinds each, of which one always runs as long; waves of a day and of bursts."""
    random = seeded_random(seed, "quotes")
    kinds = [
        (f"user{u}", f"kind{k}", random.choice((1, 1, 1, 2, 2, 4, 8)), random.lognormvariate(7.5, 1.0), k)
        for u in range(12)
        for k in range(3)
    ]
    at, found = START, []
    for number in range(jobs):
        at += random.expovariate(1 / (60 if random.random() < 0.7 else 900))
        user, name, gpus, typical, kind = random.choice(kinds)
        run = typical if kind == 0 else min(7 * 86400.0, typical * random.lognormvariate(0, 0.8))
        limit = common_limit(2.5 * typical * (1 if kind == 0 else 2))
        found.append(
            TraceJob(
                str(number), at, round(min(run, limit), 1), gpus=gpus, user=user, account="lab", name=name,
                time_limit_s=limit,
            )
        )  # fmt: skip
    return Trace(tuple(found), "made")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that was quoted: the way that it took, as quoted, and what came of it."""

    number: int
    way: QuotedWay
    known_length: bool
    """All jobs like it that are known ran as long as it."""
    submitted: float
    started: float
    cost: Decimal
    """What its machines cost while it ran, by its share of them, and while they booted for it."""

    def hit(self) -> bool:
        """The start lies in the range."""
        start = self.way.start
        return start is not None and start.p10 <= self.started <= start.p90

    def cost_error(self) -> float:
        """Of the real cost."""
        return float(abs((self.way.expected or Decimal(0)) - self.cost) / self.cost)


class _Charges(SpendTotals):
    """What jobs are charged, in millionths: boot and work."""

    def __init__(self) -> None:
        super().__init__()
        self.by_job: Counter[int] = Counter()

    def add(self, charges: Iterable[Charge], currency: str) -> None:
        found = list(charges)
        for charge in found:
            if charge.payer.job and charge.kind in (Kind.BOOT, Kind.WORK):
                self.by_job[int(charge.payer.job)] += charge.amount
        super().add(found, currency)


class QuotedRun(ReplayRun):
    """A replay in which the jobs of these numbers are quoted as they are submitted."""

    def __init__(
        self, workload: Workload, scenario: Scenario, policies: Sequence[Policy] | None, numbers: Collection[int]
    ) -> None:
        super().__init__(workload, scenario, policies)
        self._numbers = numbers
        self.quoted: dict[int, tuple[QuotedWay, bool]] = {}
        self._chain = policies
        self._charges = self.fleet.spent = _Charges()

    def _submit(self, job: ReplayJob) -> None:
        if job.number in self._numbers:
            self._quote(job)
        super()._submit(job)

    def _quote(self, job: ReplayJob) -> None:
        snapshot = self._snapshot()
        partition = SITE_PARTITION if self._chain is None else PARTITION
        asked = Job(
            "", job.user, JobState.PENDING, (partition,), 0.0, name=job.name, account=job.account, nodes=job.nodes,
            cpus=job.total_units, gres_per_node=(Gres("gpu", "", job.units),), time_limit_s=job.limit_s,
        )  # fmt: skip

        def decide(seen: Snapshot) -> Target:
            return make_target(seen, self._chain or (), spot_interruptions=self._scenario.tuning.spot_interruptions)

        (found,) = quote_jobs(snapshot, Plan(), [asked], (UsablePartition(partition),), decide)
        way = next((way for way in found.ways if way.taken and not way.options), None)
        if way is not None:
            spread = snapshot.history.similar_jobs(asked).spread()
            known = bool(spread) and max(abs(run - job.run_s) for run in spread) < 0.01 * job.run_s
            self.quoted[job.number] = way, known

    def outcomes(self) -> list[Outcome]:
        """Of all quoted jobs that have started where they were quoted. Once the replay has run."""
        costs = self._charges.by_job
        return [
            Outcome(number, way, known, life.job.submitted, life.started, Decimal(costs[number]) / 1_000_000)
            for number, (way, known) in self.quoted.items()
            if (life := self._lives[number]).started < inf and bool(way.pool) is bool(life.slots)
        ]


def window(trace: Trace, start: float | None = None, days: float | None = None, seed: int = 1) -> Workload:
    """The part of a trace that is replayed."""
    return cut_window(trace, start, days, NODE_GPUS, "gpu", seed)


def replayed(workload: Workload, jobs: int, *, cloud: bool, load: float = 1.0, seed: int = 1) -> list[Outcome]:
    """The outcomes of so many jobs, drawn from all but the first quarter, which the history comes from."""
    market = default_market("gpu", OfferTerms(Decimal("2.50")))
    chain = make_policy_chain("idle", Settings(cluster="replay"), (), PluginRegistry.installed()) if cloud else None
    nodes, size = (1, 1) if cloud else (nodes_for_load(workload, load, NODE_GPUS), NODE_GPUS)
    scenario = Scenario(nodes, size, market, staging_s=0.0, seed=seed)
    count = len(workload.jobs)
    later = range(count // 4 + 1, count + 1)
    numbers = frozenset(seeded_random(seed, "quoted").sample(later, min(jobs, len(later))))
    run = QuotedRun(workload, scenario, None if chain is None or chain.policies is None else chain.policies(), numbers)
    run.run()
    return run.outcomes()


def hits_text(title: str, found: Sequence[Outcome]) -> str:
    """A row of the table."""
    ranges = [(one.way.start, one) for one in found if one.way.start is not None]
    early = sum(one.started < start.p10 for start, one in ranges)
    late = sum(one.started > start.p90 for start, one in ranges)
    ratios = [
        (one.started - one.submitted) / (start.p50 - one.submitted)
        for start, one in ranges
        if start.p50 - one.submitted >= 60
    ]
    waited = [one for one in found if one.started - one.submitted >= 60]
    known = [one for one in found if one.known_length and one.cost]
    near = sum(one.cost_error() <= 0.1 for one in known)
    return (
        f"{title:24}{len(found):6}{sum(map(Outcome.hit, found)) / len(found):8.0%}{early / len(found):8.0%}"
        f"{late / len(found):8.0%}{median(ratios) if ratios else 0:9.2f}"
        f"{f'{sum(map(Outcome.hit, waited))} of {len(waited)}':>13}" + (f"{near:8} of {len(known)}" if known else "")
    )


def time_quotes() -> str:
    """Milliseconds of processor time, least and most of some rounds."""
    rows = tuple(
        replace(job, partitions=("burst", "onprem"), memory_mib=100) for job in queue(50, PENDING, lambda _: 1)
    )
    snapshot = queue_snapshot(rows, SLOTS, 0.5)
    assert isinstance(snapshot.slurm, SlurmView)
    op = {
        name: replace(node, cpus_allocated=0, state="IDLE", gres=(Gres("gpu", "", 4),))
        for name, node in snapshot.slurm.nodes.items()
        if name.startswith("op")
    }
    snapshot = replace(snapshot, slurm=replace(snapshot.slurm, nodes={**snapshot.slurm.nodes, **op}))
    target = make_target(snapshot, ())
    plan = Plan((), target, target.remarks)

    def decide(seen: Snapshot) -> Target:
        return make_target(seen, ())

    asked = replace(rows[0], id="", partitions=("burst", "onprem"), time_limit_s=7200.0)
    usable = UsablePartition("burst"), UsablePartition("onprem")
    quotes = _timed(lambda: quote_jobs(snapshot, plan, [asked], usable, decide))
    decisions = _timed(lambda: decide(snapshot))
    return (
        f"{PENDING:,} pending: a quote {min(quotes):.0f} to {max(quotes):.0f} ms, "
        f"a decision from cold {min(decisions):.0f} to {max(decisions):.0f} ms, "
        f"ratio {min(quotes) / min(decisions):.1f}"
    )


def _timed(work: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(ROUNDS):
        began = process_time()
        work()
        found.append((process_time() - began) * 1000)
    return found


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file that 'burstctl simulate --trace' reads; else made queues")
    parser.add_argument("--start", type=datetime.fromisoformat, help="first day of the window (UTC), as 2026-11-01")
    parser.add_argument("--days", type=float, help="length of the window")
    given = parser.parse_args()
    start = given.start and given.start.replace(tzinfo=UTC).timestamp()
    _say(f"{'':24}{'jobs':>6}{'hits':>8}{'before':>8}{'after':>8}{'real/p50':>9}{'waited':>13}{'cost':>8}")
    for seed in SEEDS if given.trace is None else (1,):
        trace = made_trace(4 * QUOTED, seed) if given.trace is None else read_trace(given.trace)
        workload = window(trace, start, given.days, seed)
        for load in LOADS:
            found = replayed(workload, QUOTED, cloud=False, load=load, seed=seed)
            _say(hits_text(f"queue {seed}, site at {load:.0%}", found))
        _say(hits_text(f"queue {seed}, cloud", replayed(workload, QUOTED, cloud=True, seed=seed)))
    _say(time_quotes())


if __name__ == "__main__":
    main()
