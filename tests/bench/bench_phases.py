"""How soon GPUs change hands among projects: ``python -m tests.bench.bench_phases [--release trixie]`` (root).

The six phases of docs/projects.md on sixteen GPUs of a real Slurm in boxes, with burstd: seconds from the change until
every project runs what it is to have, and jobs that were restarted for it. The peer of the seconds is slurmctld's own
preemption: the phase in which burstd is dead; that of the restarts is the least possible number. Then the same
submissions on plain Slurm: one partition, fair share in proportion to the quotas, no projects, and the number of phases
in which every project runs its part within ``--patience`` seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

from providers.sandbox.boxes.boot.description import BoxFile
from tests.e2e.phases import QUOTAS, SIX_PHASES, Phase, Phases, ProjectQueue, projects_on, settings
from tests.e2e.sites import site_up
from tests.lab.cluster import Cluster
from tests.lab.slurm_files import VERSIONS, job_submit_lua

FAIR_SHARE = """
PriorityType=priority/multifactor
PriorityWeightFairshare=100000
PriorityCalcPeriod=1
"""
POLL_S = 0.1


def with_projects(release: str, turns: int) -> dict[str, list[tuple[float, int]]]:
    """By phase, seconds and restarts of each turn."""
    projects, found = projects_on("onprem"), defaultdict(list)
    with site_up(release, projects=projects.values(), onprem_gpus=8, settings=settings(projects)) as site:
        phases = Phases(site, projects, _say)
        for _ in range(turns):
            phases.clear()
            for phase in SIX_PHASES:
                found[phase.what].append(phases.play(phase))
    return found


def with_fair_share(release: str, patience_s: float) -> dict[str, list[int]]:
    """By phase, what the projects ran when every one ran its part, or when the time was over."""
    projects, found = projects_on("onprem"), {}
    # Jobs stay in the partition that they are submitted to.
    lua = BoxFile("/etc/slurm/job_submit.lua", job_submit_lua())
    with Cluster(
        release, projects=list(projects.values()), onprem_gpus=8, head_files=[lua], extra_conf=FAIR_SHARE
    ) as cluster:
        for name, quota in QUOTAS.items():
            cluster.sh(f"sacctmgr -i modify account {projects[name].account} set fairshare={quota}")
        queue = ProjectQueue(cluster, projects)
        for phase in SIX_PHASES:
            phase.change(queue)
            deadline = time.monotonic() + patience_s
            while queue.running() != list(phase.expected) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            found[phase.what] = queue.running()
        queue.clear()
    return found


def _row(phase: Phase, turns: list[tuple[float, int]], peer_s: float, plain: list[int]) -> str:
    seconds, restarts = [s for s, _ in turns], [r for _, r in turns]
    middle = statistics.median(seconds)
    times = f"{min(seconds):5.1f} {middle:5.1f} {max(seconds):5.1f} {middle / peer_s:6.1f}"
    ratio = f"{max(restarts) / phase.least:.2f}" if phase.least else "-"
    met = "met" if plain == list(phase.expected) else _shown(plain)
    counts = f"{min(restarts):5}-{max(restarts)} {phase.least:5} {ratio:>5}"
    return f"{phase.what:26} {_shown(phase.expected):>8} {times} {counts}   {met}"


def _shown(gpus: Sequence[int]) -> str:
    return "/".join(map(str, gpus))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_phases", description=__doc__)
    parser.add_argument("--release", default="trixie", choices=sorted(VERSIONS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--patience", type=float, default=10.0, help="seconds a phase, of plain Slurm")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    ours = with_projects(asked.release, asked.turns)
    plain = with_fair_share(asked.release, asked.patience)
    (dead,) = (phase for phase in SIX_PHASES if not phase.burstd_runs)
    peer_s = statistics.median(seconds for seconds, _ in ours[dead.what])
    _say(f"{asked.release}, {asked.turns} turns, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    _say(f"{'':26} {'a/b/c/d':>8}   min   med   max  ratio   restarts least ratio   plain Slurm")
    for phase in SIX_PHASES:
        _say(_row(phase, ours[phase.what], peer_s, plain[phase.what]))
    met = sum(plain[phase.what] == list(phase.expected) for phase in SIX_PHASES)
    _say(f"plain Slurm meets {met} of {len(SIX_PHASES)} phases within {asked.patience:g} s each")


if __name__ == "__main__":
    main()
