"""What projects add to a decision: ``python -m tests.bench.bench_projects``.

10,000 jobs of 100 projects, of which 1,000 run; milliseconds of processor time of a decision without projects, with
them, and while fifty jobs are requeued for others; then the division of 1,000 projects alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from burstd.domain.plan import SetProjectLimits
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.projects.division import divide
from burstd.planner.timeouts import Tuning
from tests.planner.worlds import NOW, make_snapshot, node, offer, pool

PROJECTS, NODES, WAITING = 100, 125, 9000


def _site() -> Snapshot:
    """Every GPU is in use by the first half of the projects; all of them wait."""
    names = [f"p{number}" for number in range(PROJECTS)]
    partitions = ("gpu", *(f"{label}-{name}" for name in names for label in "qo"))
    gpus = (Gres("gpu", "", 8),)
    jobs = [
        Job(
            str(k), "ada", JobState.RUNNING, (f"{'q' if k < 4 * NODES else 'o'}-{names[k * 7 % (PROJECTS // 2)]}",),
            NOW - 5000, start=NOW - 4000 + k, node_list=(f"n{k // 8}",), gres_per_node=(Gres("gpu", "", 1),),
        )
        for k in range(8 * NODES)
    ]  # fmt: skip
    jobs += [
        Job(
            str(10_000 + k), f"u{k % 40}", JobState.PENDING, (f"q-{names[k % PROJECTS]}", f"o-{names[k % PROJECTS]}"),
            NOW - 600 - k, reason="Resources", eligible=NOW - 600, gres_per_node=(Gres("gpu", "", 1 + k % 3),),
        )
        for k in range(WAITING)
    ]  # fmt: skip
    nodes = [
        node(f"n{n}", state="MIXED", partitions=partitions, cpus=16, cpus_allocated=8, gres=gpus, gres_used=gpus)
        for n in range(NODES)
    ]
    cloud = pool("cloud", 100, Shape(8, 8000, (Gres("gpu", "", 4),)), partitions=partitions)
    return make_snapshot(*jobs, nodes=tuple(nodes), pools=(cloud,), offers=(offer(shape=cloud.shape),))


def _ms(work: Callable[[], object]) -> float:
    found = []
    for _ in range(5):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found) * 1000


def main() -> None:
    """Prints the figures."""
    without, tuning = _site(), Tuning()
    projects = {f"p{n}": Project(f"p{n}", f"p{n}", Fraction(6), partitions=("gpu",)) for n in range(PROJECTS)}
    asked = replace(without, projects=ProjectsView(projects, dict.fromkeys(projects, OverQuotaLimits(Fraction(0), 1))))
    steps = decide(asked, (), tuning).actions
    limits = {name: some for step in steps if isinstance(step, SetProjectLimits) for name, some in step.limits}
    settled = replace(asked, projects=replace(asked.projects, limits={**asked.projects.limits, **limits}))
    base = _ms(lambda: decide(without, (), tuning))
    for name, snapshot in (("with projects", asked), ("while jobs are requeued", settled)):
        took = _ms(lambda snapshot=snapshot: decide(snapshot, (), tuning))  # type: ignore[misc]
        sys.stdout.write(
            f"{name:24} {took:6.0f} ms, {took - base:6.0f} ms more than without ({took / base:.1f} times)\n"
        )
    thousand = {f"p{n}": Project(f"p{n}", quota=Fraction(n % 40)) for n in range(1000)}
    demands = {name: Fraction(n % 60) for n, name in enumerate(thousand)}
    took = _ms(lambda: divide(thousand, demands, Fraction(9000)))
    sys.stdout.write(f"{'division, 1,000 projects':24} {took:6.0f} ms\n")


if __name__ == "__main__":
    main()
