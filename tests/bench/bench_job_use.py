"""What a step of the figures of jobs costs where nothing of that is due: python -m tests.bench.bench_job_use

4,000 machines with a job each, 10,000 jobs that wait; machines answer at once. Processor time of one step, in ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Self

from burstd.db import Store
from burstd.domain.claim import ClaimState
from burstd.domain.job_use import NodeUse
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView
from burstd.node.job_use import NodeFigures
from burstd.reconciler.pollers import job_use
from burstd.settings.sampler import SamplerSettings
from tests.db.samples import START, ManualClock, planned

MACHINES, PENDING, CHANGED, ROUNDS = 4000, 10_000, 20, 30


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


def main() -> None:
    clock, workers = ManualClock(), AtOnce()

    def fetch(_shell: object, node: str, *_: object, **__: object) -> NodeFigures:
        use = NodeUse(node, 4, 999, START + 1, clock.now(), 50.0, 0.5, 1.5, 300, 310)
        return NodeFigures("running", {f"{node[1:]}-1": use}, ())

    job_use.fetch_figures = fetch  # type: ignore[attr-defined, assignment]
    claims = tuple(replace(planned(f"c{n}", f"g{n}"), state=ClaimState.IN_SERVICE) for n in range(MACHINES))
    base = jobs()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "burstd.db"), clock) as store:
        poller = job_use.JobUsePoller(
            store, workers, clock, lambda _: NoShell(), SamplerSettings(collect_s=3600.0), None, None,  # type: ignore[arg-type, return-value]
        )  # fmt: skip

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
