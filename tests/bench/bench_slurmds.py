"""A hundred real slurmds woken and let go in one go: ``python -m tests.bench.bench_slurmds [--nodes 100]`` (root).

Each node is a box of its own with sshd, munged and slurmd, made by the sandbox cloud; burstd is the real one, beside a
real slurmctld. One job wants all of them at once. Seconds of each phase, burstd's loops, processor time and memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Shape
from tests.bench.soak import DaemonMeter, quantile
from tests.e2e.sites import QUICK, cloud_inventory, restarts, site_up, wait_all_gone
from tests.lab.prometheus import SETTINGS
from tests.lab.site import Site
from tests.lab.slurm_files import VERSIONS

PATIENCE_S = 900.0
ANSWERED = ("validating", "ready", "in_service")


def states(site: Site) -> dict[str, int]:
    """How many claims are in which state."""
    found: dict[str, int] = {}
    for node in site.api("/v1/nodes")["nodes"]:
        found[node["state"]] = found.get(node["state"], 0) + 1
    return found


class Phases:
    """Prints what each took."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._meter = DaemonMeter(site)
        self._meter.read()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits, and prints a line."""
        begun = time.monotonic()
        self._site.wait(condition, PATIENCE_S, what)
        seconds, use = time.monotonic() - begun, self._meter.read()
        median, slow = (1000 * quantile(use.histogram, part) for part in (0.5, 0.99))
        held = f"{use.cpu_s:8.1f} {use.rss_mib:6.0f} {use.threads:8}"
        _say(f"{what:34} {seconds:8.1f} {use.loops:6} {median:8.0f} {slow:8.0f} {held}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_slurmds", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--release", default="trixie", choices=sorted(VERSIONS))
    asked = parser.parse_args()
    number = asked.nodes
    rule = OfferRule("sandbox", ("c1*",), image="node")
    shape = Shape(1, 300, (), frozenset({"cloud"}))
    pool = Pool("small", tuple(f"s{i}" for i in range(1, number + 1)), ("burst",), shape, (rule,))
    types = (
        '[[cloud.types]]\nname = "c1.small"\ncpus = 1\nmemory_mib = 600\nprice = "0.10"\n'
        f'[cloud.capacity.north]\n"c1.small" = {number}\n'
    )
    # What boots on two processors a hundred at a time takes as long as they need for it.
    daemon = {"boot_timeout_s": PATIENCE_S, "validation_timeout_s": PATIENCE_S}
    load = os.getloadavg()[0]
    with site_up(
        asked.release, pools=[pool], types=types, cloud=f"boot_seconds = 0.3\nquota = {number}",
        settings=QUICK + SETTINGS, daemon=daemon,
        extra_conf="SlurmdTimeout=900\nResumeTimeout=1800\n",
    ) as site:  # fmt: skip
        heads = f"{'loops':>6} {'p50 ms':>8} {'p99 ms':>8} {'cpu s':>8} {'MiB':>6} {'threads':>8}"
        _say(f"{'phase':34} {'seconds':>8} {heads}")
        phases = Phases(site)
        job = site.submit(f"-p burst -N{number} --exclusive --mem=100 -t60", "srun hostname; sleep 600")
        phases.until("all are asked for", lambda: sum(states(site).values()) == number)
        phases.until("all have answered", lambda: sum(states(site).get(s, 0) for s in ANSWERED) == number)
        phases.until("all are open", lambda: states(site) == {"in_service": number})
        phases.until("the job runs on all", lambda: site.job(job)["JobState"] == "RUNNING")
        site.cluster.sh(f"scancel {job}")
        phases.until("all are gone", lambda: not site.api("/v1/nodes")["nodes"] and not cloud_inventory(site).alive)
        made = wait_all_gone(site)
        _say(
            f"{number} slurmds, {sum(map(len, made.by_claim.values()))} machines, restarts {restarts(site, [job])[job]}"
        )
        _say(f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
