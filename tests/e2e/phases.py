"""Four projects on sixteen GPUs: the phases of docs/projects.md, who runs how much in each, and what it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from burstd.domain.project import BurstOverQuota, Project
from burstd.slurm.projects import SlurmProjects
from tests.lab.cluster import Cluster
from tests.lab.site import Site

QUOTAS = {"a": 4, "b": 2, "c": 2, "d": 8}
PATIENCE_S = 90.0


def projects_on(*partitions: str, burst: BurstOverQuota = BurstOverQuota.NEVER) -> dict[str, Project]:
    """The four, on these partitions of the site."""
    return {
        name: Project(name, f"team-{name}", Fraction(quota), partitions=partitions, burst_over_quota=burst)
        for name, quota in QUOTAS.items()
    }


def settings(projects: Mapping[str, Project], keep_alive_s: int = 2) -> str:
    """The sections of burstd.toml."""
    idle = f'[policies]\nchain = ["backlog", "idle"]\n[policies.idle]\nkeep_alive_s = {keep_alive_s}\n'
    return idle + "".join(
        f'[projects.{p.name}]\naccount = "{p.account}"\nquota = {p.quota}\npartitions = {list(p.partitions)}\n'
        f'burst_over_quota = "{p.burst_over_quota.value}"\n'
        for p in projects.values()
    )


class ProjectQueue:
    """Slurm's queue with jobs of projects, of one GPU each."""

    def __init__(self, cluster: Cluster, projects: Mapping[str, Project]) -> None:
        self.cluster = cluster
        self._projects = projects

    def submit_jobs(self, name: str, gpus: int, words: str = "") -> str:
        """Jobs of a project for so many GPUs more; the array's id."""
        more = f"{words} --mem=1 --gres=gpu:1 --array=1-{gpus} -o /dev/null"
        command = f"sbatch --parsable -A {self._projects[name].account} {more} --wrap 'sleep 1000'"
        return self.cluster.sh(command, "ada").strip()

    def submit_together(self, names: str, gpus: int) -> None:
        """One decision sees the jobs of all of them for the first time."""
        arrays = [self.submit_jobs(name, gpus, "--hold") for name in names]
        self.cluster.sh(f"scontrol release {','.join(arrays)}")

    def leave(self, *names: str) -> None:
        """Cancels all jobs of these projects."""
        # scancel takes one account.
        self.cluster.sh("; ".join(f"scancel -A {self._projects[name].account}" for name in names))

    def clear(self) -> None:
        """Cancels all jobs; returns when they are gone."""
        self.cluster.sh("scancel -u ada")
        # Jobs that go on after SIGTERM take half a minute on a machine with nothing else to do.
        self.cluster.wait(lambda: not self.cluster.sh("squeue -h"), 180, "an empty queue")

    def running(self) -> list[int]:
        """GPUs that run, of a, b, c and d."""
        found = Counter(self.cluster.sh("squeue -h -r -t R -o %a").split())
        return [found[project.account] for project in self._projects.values()]

    def restarts(self) -> dict[str, int]:
        """How often each job of the queue was started again."""
        rows = self.cluster.sh("squeue -h -r -O JobArrayID,RestartCnt").splitlines()
        return {job: int(count) for job, count in map(str.split, rows)}


@dataclass(frozen=True, slots=True)
class Phase:
    """A change, and what each project is to run then."""

    what: str
    expected: Sequence[int]
    least: int
    """So many jobs must be restarted for it."""
    change: Callable[[ProjectQueue], object]
    burstd_runs: bool = True


SIX_PHASES = (
    Phase("d idle", [8, 4, 4, 0], 0, lambda queue: queue.submit_together("abc", 16)),
    Phase("d asks for 4", [6, 3, 3, 4], 4, lambda queue: queue.submit_jobs("d", 4)),
    Phase("d asks for 8", [4, 2, 2, 8], 4, lambda queue: queue.submit_jobs("d", 4)),
    Phase("d leaves", [8, 4, 4, 0], 0, lambda queue: queue.leave("d")),
    Phase("d asks for 8, burstd dead", [4, 2, 2, 8], 8, lambda queue: queue.submit_jobs("d", 8), burstd_runs=False),
    Phase("d leaves again", [8, 4, 4, 0], 0, lambda queue: queue.leave("d")),
    Phase("b leaves", [11, 0, 5, 0], 0, lambda queue: queue.leave("b")),
)
"""The table of docs/projects.md; d leaves twice."""


class Phases(ProjectQueue):
    """The same with burstd beside it."""

    def __init__(self, site: Site, projects: Mapping[str, Project], figure: Callable[[str], None]) -> None:
        super().__init__(site.cluster, projects)
        self.site = site
        self._figure = figure
        self._slurm = SlurmProjects(site.cluster.commands())

    def clear(self) -> None:
        """Cancels all jobs; returns when burstd has taken note."""
        super().clear()
        self.site.wait(lambda: self.limits() == [0, 0, 0, 0], 60, "no limit of jobs that are gone")

    def limits(self) -> list[Fraction | None]:
        """What slurmctld allows each project beyond its quota."""
        limits = self._slurm.read(self._projects).limits
        return [limits[name].gpus for name in self._projects]

    def tiers(self) -> list[int]:
        """Of the over-quota partitions."""
        limits = self._slurm.read(self._projects).limits
        return [limits[name].tier for name in self._projects]

    def measure(
        self, what: str, expected: Sequence[int], change: Callable[[], object], *, written: bool = True
    ) -> tuple[float, int]:
        """Makes a change and waits until each project runs what it is to have, and nothing is on its way any more.

        Seconds until it ran so, and how many jobs were restarted. ``written``: burstd can write limits.
        """
        expected = list(expected)
        before, begun = self.restarts(), time.monotonic()
        change()
        self.site.wait(lambda: self.running() == expected, PATIENCE_S, f"{what}: {expected}")
        seconds = time.monotonic() - begun
        beyond = [max(0, gpus - quota) for gpus, quota in zip(expected, QUOTAS.values(), strict=True)]

        def settled() -> bool:
            limits = [gpus for gpus in self.limits() if gpus is not None]
            divided = sum(limits) == sum(beyond) or not written
            moving = self.cluster.sh("squeue -h -r -t CG,CF -o %i")
            return not moving and divided and self.running() == expected

        self.site.wait(settled, PATIENCE_S, f"{what}: settled at {expected}, {self.limits()}")
        return seconds, sum(count - before.get(job, 0) for job, count in self.restarts().items())

    def settle(
        self, what: str, expected: Sequence[int], least: int, change: Callable[[], object], *, written: bool = True
    ) -> None:
        """The same where ``least`` jobs must be restarted; half as many more may be."""
        self._judge(what, least, *self.measure(what, expected, change, written=written))

    def _judge(self, what: str, least: int, seconds: float, restarts: int) -> None:
        self._figure(f"projects, {self.site.release}: {what}: {seconds:.1f} s, {restarts} restarts (at least {least})")
        assert restarts <= 1.5 * least, f"{what}: {restarts} jobs were restarted, {least} would have done"

    def play(self, phase: Phase) -> tuple[float, int]:
        """One of the six; where burstd is to be dead in it, it is back afterwards."""
        if not phase.burstd_runs:
            self.site.kill_burstd("KILL")
        found = self.measure(phase.what, phase.expected, lambda: phase.change(self), written=phase.burstd_runs)
        if not phase.burstd_runs:
            self.site.start_burstd()
        return found

    def six_phases(self) -> None:
        """All of them, one after the other."""
        for phase in SIX_PHASES:
            self._judge(phase.what, phase.least, *self.play(phase))
