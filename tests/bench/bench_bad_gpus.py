"""A hundred boots of which a fifth have a bad GPU, on a real Slurm: ``python -m tests.bench.bench_bad_gpus`` (root).

Two waves of jobs, a machine for each. In the first, machines come from the cheaper zone, where every second one is
bad; these are replaced from the other zone. In the second, all come from the other zone. No job meets a bad GPU (it
would fail), and what the bad machines cost is in the bill's overhead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.e2e.bad_gpus import COMMAND, NAME, boots_of, check_overhead, pool, run_jobs
from tests.e2e.sites import QUICK, restarts, site_up, wait_all_gone

BREAKER_S = 300.0


def main() -> None:
    """Prints what came of the machines."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_bad_gpus", description=__doc__)
    parser.add_argument("--jobs", type=int, default=40, help="in each wave; two and a half times as many boots")
    parser.add_argument("--release", default="bookworm")
    asked = parser.parse_args()
    types = f'[[cloud.types]]\nname = "t.{NAME}"\ncpus = 2\nmemory_mib = 2048\nprice = "1.00"\n'
    types += 'gpu_type = "v100"\ngpus = 1\n'
    for zone in ("north", "south"):
        types += f'[cloud.capacity.{zone}]\n"t.{NAME}" = {asked.jobs}\n'
    settings = QUICK + f"[node]\ncommands = [{json.dumps(COMMAND)}]\n"
    cloud = f"boot_seconds = 0.3\nquota = {2 * asked.jobs}\n"
    with site_up(asked.release, pools=[pool(asked.jobs)], types=types, settings=settings, cloud=cloud) as site:
        began = time.monotonic()
        jobs = [run_jobs(site, asked.jobs)]
        wait_all_gone(site, 300)
        # Then only its record keeps the zone from being taken first.
        site.wait(
            lambda: not any(p["breakers"] for p in site.burstctl_json("status")["providers"]), BREAKER_S, "no breaker"
        )
        sys.stdout.write(site.burstctl("provider", "offers", "sandbox").stdout)
        jobs.append(run_jobs(site, asked.jobs))
        wait_all_gone(site, 300)
        seconds = time.monotonic() - began
        first, both = boots_of(site, jobs[:1]), boots_of(site, jobs)
        assert len(both.bad) == len(first.bad) == asked.jobs // 2
        assert len(both.good) == 2 * asked.jobs
        assert Counter(both.good) - Counter(first.good) == {"south": asked.jobs}
        assert not any(restarts(site, jobs).values())
        sys.stdout.write(
            f"{len(both.good) + len(both.bad)} boots, {len(both.bad)} with a bad GPU, {len(both.good)} jobs, none of "
            f"them on a bad one, in {seconds:.0f} s; good machines by zone: first wave {dict(Counter(first.good))}, "
            f"both {dict(Counter(both.good))}; overhead {check_overhead(site, both.bad)}\n"
        )
        sys.stdout.write(site.burstctl("bill", "--by", "pool").stdout)


if __name__ == "__main__":
    main()
