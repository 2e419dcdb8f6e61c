"""Policies on windows of a trace, and how long a year takes: ``python tests/bench/bench_simulate.py TRACE``.

TRACE is the CSV of the Philly trace (see docs/policies.md). Prints, for four windows of 14 days at two loads, mean and
95th percentile of the wait beside cloud GPU-hours, of each chain with its shipped settings, and whether wait_aware
keeps what is said of it; then the time that one core takes for a year of 100,000 jobs: those of the trace, and its
first ones again, stretched evenly over 365 days. ``--chain`` adds chains, ``--year`` and ``--windows`` do one part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from burstd.simulate.report.result import Figures
from burstd.simulate.study import Study, prepare_study
from burstd.simulate.traces.read import read_trace
from burstd.simulate.traces.trace_job import Trace

STARTS = ("2017-10-02", "2017-10-16", "2017-10-30", "2017-11-13")
"""The days on which jobs came at all, at least 8,000 in 14 days; one window after the other."""
LOADS = (0.8, 1.0)
OURS = "wait_aware,idle"
CHAINS = ("never", "immediate", "aged:600", "aged:1800", "aged:3600", OURS)
YEAR_JOBS, YEAR_S = 100_000, 365 * 86400.0


def window(path: Path, start: str, load: float, chains: Sequence[str], found: Trace | None = None) -> list[Figures]:
    """The figures of each chain."""
    at = datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()
    study = Study(path, chains=tuple(chains), start=at, load=load, days=14.0 if found is None else None)
    return [result.figures for result in prepare_study(study, trace=found).run_study().results]


def year(trace: Trace) -> Trace:
    """So many jobs in a year."""
    jobs = sorted(trace.jobs, key=lambda job: job.submitted)
    first, span = jobs[0].submitted, jobs[-1].submitted - jobs[0].submitted + 1.0
    many = [
        replace(job, id=f"{job.id}-{turn}", submitted=job.submitted + turn * span)
        for turn in range(-(-YEAR_JOBS // len(jobs)))
        for job in jobs
    ][:YEAR_JOBS]
    stretch = YEAR_S / (many[-1].submitted - first)
    return Trace(tuple(replace(j, submitted=first + (j.submitted - first) * stretch) for j in many), trace.format)


def _row(chain: str, one: Figures) -> str:
    return (
        f"  {chain:24}{one.mean_wait_s / 60:8.1f}{one.p95_wait_s / 60:8.1f}{one.max_wait_s / 3600:8.1f}"
        f"{one.bounded_slowdown:9.2f}{one.cloud_gpu_hours:10.0f}{one.cost:11.0f}{one.waste * 100:7.1f}"
        f"{one.elapsed_s:8.0f}"
    )


def _verdict(chains: Sequence[str], figures: Sequence[Figures]) -> str:
    by_chain = dict(zip(chains, figures, strict=True))
    ours, immediate = by_chain[OURS], by_chain["immediate"]
    aged = [one for chain, one in by_chain.items() if chain.startswith("aged:")]
    fewer = 1 - ours.cloud_gpu_hours / immediate.cloud_gpu_hours
    longer = (ours.mean_wait_s - immediate.mean_wait_s) / 60
    better = all(ours.mean_wait_s < a.mean_wait_s and ours.cloud_gpu_hours < a.cloud_gpu_hours for a in aged)
    kept = fewer >= 0.4 and longer <= 3 and better
    return (
        f"  {'kept' if kept else 'NOT KEPT'}: {fewer:.0%} fewer GPU-hours than immediate, mean wait {longer:+.1f} min;"
        f" {'better' if better else 'not better'} than every aged in both"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _windows(path: Path, chains: Sequence[str], processes: int) -> None:
    heads = ("mean min", "p95 min", "max h", "slowdown", "GPU-h", "EUR", "waste%", "CPU s")
    _say(" " * 26 + "".join(f"{h:>{w}}" for h, w in zip(heads, (8, 8, 8, 9, 10, 11, 7, 8), strict=True)))
    with ProcessPoolExecutor(processes) as pool:
        cases = [(start, load) for start in STARTS for load in LOADS]
        found = [pool.submit(window, path, start, load, chains) for start, load in cases]
        for (start, load), future in zip(cases, found, strict=True):
            figures = future.result()
            _say(f"14 days from {start}, load {load}: {figures[0].jobs} jobs")
            for chain, one in zip(chains, figures, strict=True):
                _say(_row(chain, one))
            _say(_verdict(chains, figures))


def _year(path: Path, chains: Sequence[str]) -> None:
    whole = year(read_trace(path))
    for chain in chains:
        (one,) = window(path, "2017-09-04", 1.0, [chain], whole)
        _say(f"a year of {len(whole.jobs)} jobs, {chain}: {one.elapsed_s:.0f} s, {one.decisions} decisions")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--chain", action="append", default=[])
    parser.add_argument("--year", action="store_true")
    parser.add_argument("--windows", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    both = given.year == given.windows
    if given.windows or both:
        _windows(given.trace, (*CHAINS, *given.chain), given.processes)
    if given.year or both:
        _year(given.trace, ("immediate", OURS, *given.chain))


if __name__ == "__main__":
    main()
