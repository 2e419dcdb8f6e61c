"""How much later a job starts whose node shows three trees: ``python -m tests.bench.bench_job_start`` (root).

A site in boxes with two pools of one kind, on whose nodes burstd is ready; only one pool has ``[mounts]``: the user's
home and project, and software of everybody, which makes two streams. ``srun`` of one task, in turn: on a node without
mounts, on a node that shows nothing (*cold*: mounts are made), and on one where the user has a job already (*warm*).
From ``srun`` to the first line of the task, in seconds.
"""

from __future__ import annotations

import argparse
import statistics

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Shape
from tests.e2e.sites import MISSED_SOON, QUICK, STATE, site_up
from tests.lab import programs
from tests.lab.site import Site

POOLS = tuple(
    Pool(name, (f"{name}1",), (name,), Shape(2, 1000, (), frozenset({"cloud"}))) for name in ("bare", "cold", "warm")
)
SETTINGS = (
    QUICK.replace("keep_alive_s = 2", "keep_alive_s = 86400")
    + """
[mounts.trees]
home = { path = "/home/{user}", pools = ["cold", "warm"] }
project = { path = "/project/{user}", pools = ["cold", "warm"] }
software = { path = "/opt/software", read_only = true, public = true, pools = ["cold", "warm"] }
"""
)
SRUN = "cd /; begun=$(date +%s%N); echo $(($(srun -p {} -t5 --mem=100 date +%s%N) - begun))"


def streams(site: Site, wanted: int) -> bool:
    """Whether so many streams last."""
    return len(site.cluster.sh(f"ls {STATE}/mounts 2>/dev/null || true").split()) == wanted


def start_s(site: Site, partition: str) -> float:
    """From srun to the task."""
    return int(site.cluster.sh(SRUN.format(partition), "ada", timeout_s=120)) / 1e9


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_job_start", description=__doc__)
    parser.add_argument("--jobs", type=int, default=11, help="of each kind")
    parser.add_argument("--release", default="bookworm")
    asked = parser.parse_args()
    prolog = f"{MISSED_SOON}\nPrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
    times: dict[str, list[float]] = {pool.name: [] for pool in POOLS}
    with site_up(asked.release, pools=POOLS, settings=SETTINGS, extra_conf=prolog) as site:
        site.cluster.sh("mkdir -p /opt/software/tool /project/ada; chown ada: /project/ada")
        for name in times:  # the nodes boot
            start_s(site, name)
        held = site.submit("-p warm -t60 --mem=100", "sleep 3600")
        site.wait_job(held, ("RUNNING",))
        for _ in range(asked.jobs):
            for name, seconds in times.items():
                site.wait(lambda: streams(site, 2), 30, "the streams of the job that stays")
                seconds.append(start_s(site, name))
        site.cluster.sh("scancel -u ada")
    bare = statistics.median(times["bare"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        figures = f"{name}: {median:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {median - bare:.2f} s later"
        print(figures)  # noqa: T201 - the figures


if __name__ == "__main__":
    main()
