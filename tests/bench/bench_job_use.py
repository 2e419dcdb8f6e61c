"""What figures of jobs cost the thread that decides: python -m tests.bench.bench_job_use

4,000 machines with a job each, 10,000 jobs that wait; machines answer at once. Processor time of that thread, in ms: of
a step where nothing is due, of the answers that may come between two steps, and of the end of a job on many nodes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from math import sin
from pathlib import Path
from statistics import median
from typing import Any, Self

from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse, Series
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView
from burstd.node.job_use import NodeFigures
from burstd.reconciler.pollers import job_use
from burstd.settings.sampler import SamplerSettings
from tests.db.samples import START, ManualClock, planned

MACHINES, PENDING, CHANGED, ROUNDS = 4000, 10_000, 20, 30
ANSWERS, WIDE = 180, 2000
POINTS = tuple(round(50 + 50 * sin(n * n), 2) for n in range(360))
SERIES = Series(START, 10.0, POINTS, POINTS[::-1])


class AtOnce:
    """Workers whose machines answer before the next step."""

    def __init__(self) -> None:
        self.answered: list[Any] = []

    def submit(self, _lane: str, work: Any, done: Any, **_: object) -> None:
        self.answered.append((work, done))

    def answer(self) -> None:
        answered, self.answered = self.answered, []
        for work, done in answered:
            done(work())


class NoShell:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def jobs() -> tuple[Job, ...]:
    running = (
        Job(str(n), "ada", JobState.RUNNING, ("burst",), START, start=START, run_start=int(START), node_list=(f"g{n}",))
        for n in range(MACHINES)
    )
    return (*running, *(Job(str(MACHINES + n), "ada", JobState.PENDING, ("burst",), START) for n in range(PENDING)))


def with_series(node: str, gpus: int) -> NodeUse:
    gpu = GpuUse("", 0, "A100", GpuShare.WHOLE, 1.0, 2.0, 5, 81920, 100.0, 90.0, 90.0, START + 100, series=SERIES)
    return NodeUse(
        node, 4, 999, START + 1, START + 100, 50.0, 0.5, 1.5, 300, 310, 12, 3, 0.5, 0.0,
        tuple(replace(gpu, uuid=f"GPU-{n}", index=n) for n in range(gpus)), cpu_series=SERIES, memory_series=SERIES,
    )  # fmt: skip


def spent_ms(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began)


def new_poller(store: Store, workers: AtOnce, clock: ManualClock, **settings: float) -> job_use.JobUsePoller:
    return job_use.JobUsePoller(
        store, workers, clock, lambda _: NoShell(), SamplerSettings(**settings), None, None,  # type: ignore[arg-type, return-value]
    )  # fmt: skip


def answers(gpus: int) -> None:
    """As many as may come in one loop, each with the whole series of a job."""
    clock, workers = ManualClock(), AtOnce()

    def fetch(_shell: object, node: str, *_: object, **__: object) -> NodeFigures:
        return NodeFigures("running", {f"{node[1:]}-1": with_series(node, gpus)}, ())

    job_use.fetch_figures = fetch  # type: ignore[attr-defined, assignment]
    claims = tuple(replace(planned(f"c{n}", f"g{n}"), state=ClaimState.IN_SERVICE) for n in range(ANSWERS))
    queue = jobs()[:ANSWERS]
    spent = []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "burstd.db"), clock) as store:
        poller = new_poller(store, workers, clock)
        for _ in range(6):
            clock.time += 200
            poller.step(SlurmView(queue, {}, (), clock.now()), claims)
            fetched, workers.answered = [(work(), done) for work, done in workers.answered], []

            def take(fetched: list[tuple[Any, Any]] = fetched) -> None:
                for answer, done in fetched:
                    done(answer)
                poller.save()

            spent.append(spent_ms(take))
    sys.stdout.write(f"{ANSWERS} answers of nodes with {gpus} GPUs: {median(spent[1:]):.0f} ms\n")


def wide_end() -> None:
    """The longest step of those that write it; all machines are gone."""
    clock, workers = ManualClock(), AtOnce()
    run = JobUse("7", "7", 0, "ada", "lab", "burst", (), WIDE, START, run_start=int(START))
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "burstd.db"), clock) as store:
        for n in range(0, WIDE, 100):
            store.save_job_uses([replace(run, nodes=tuple(with_series(f"g{m:04}", 8) for m in range(n, n + 100)))])
        spent_one = [
            spent_ms(lambda n=n: store.save_job_uses([replace(run, nodes=(with_series(f"g{n:04}", 0),))]))  # type: ignore[misc]
            for n in range(20)
        ]
        clock.time += 900
        poller = new_poller(store, workers, clock)
        names = tuple(f"g{n:04}" for n in range(WIDE))
        job = replace(jobs()[0], id="7", node_list=names)
        poller.step(SlurmView((job,), {}, (), clock.now()), ())
        spent = []
        while poller.uses() or store.open_job_uses():
            spent.append(spent_ms(lambda: poller.step(SlurmView((), {}, (), clock.now()), ())))
    sys.stdout.write(f"one of {WIDE} nodes of a run: {median(spent_one):.1f} ms\n")
    steps_ms = f"{median(spent):.0f} ms each, {max(spent):.0f} ms at most, {sum(spent):.0f} ms in all"
    sys.stdout.write(f"end of a run on {WIDE} nodes, in {len(spent)} steps: {steps_ms}\n")


def main() -> None:
    steps()
    for gpus in (0, 4, 8):
        answers(gpus)
    wide_end()


def steps() -> None:
    clock, workers = ManualClock(), AtOnce()

    def fetch(_shell: object, node: str, *_: object, **__: object) -> NodeFigures:
        use = NodeUse(node, 4, 999, START + 1, clock.now(), 50.0, 0.5, 1.5, 300, 310)
        return NodeFigures("running", {f"{node[1:]}-1": use}, ())

    job_use.fetch_figures = fetch  # type: ignore[attr-defined, assignment]
    claims = tuple(replace(planned(f"c{n}", f"g{n}"), state=ClaimState.IN_SERVICE) for n in range(MACHINES))
    base = jobs()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "burstd.db"), clock) as store:
        poller = new_poller(store, workers, clock, collect_s=3600.0)

        def step(queue: tuple[Job, ...], claims: Any, after: float) -> float:
            clock.time += after
            slurm = SlurmView(queue, {}, (), clock.now())
            began = time.process_time()
            poller.step(slurm, claims)
            poller.uses()
            poller.awaited()
            spent = time.process_time() - began
            workers.answer()
            return 1000 * spent

        while len(poller.uses()) < MACHINES:
            step(base, claims, 15.0)
        changed = [(*map(replace, base[:CHANGED]), *base[CHANGED:]) for _ in range(ROUNDS)]
        few = [(*map(replace, claims[:CHANGED]), *claims[CHANGED:]) for _ in range(ROUNDS)]
        read_again = [tuple(map(replace, claims)) for _ in range(ROUNDS)]
        for what, cases in (
            ("nothing has changed", [(base, claims)] * ROUNDS),
            (f"{CHANGED} jobs have changed", [(queue, claims) for queue in changed]),
            (f"{CHANGED} claims have changed", [(base, some) for some in few]),
            ("all claims were read again", [(base, some) for some in read_again]),
        ):
            spent = median(step(queue, some, 0.1) for queue, some in cases)
            sys.stdout.write(f"{what}: {spent:.2f} ms\n")


if __name__ == "__main__":
    main()
