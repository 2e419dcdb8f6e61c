"""Figures of a large site, as its history keeps them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from burstd.domain.site_history import STARTED, WAIT_MAX_S, WAIT_S, Part


def walk(chance: random.Random, before: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The figures of a minute later: each walks at random."""
    found = {}
    for subject, measures in before.items():
        found[subject] = {
            name: max(1, value + chance.randint(0, 900_000) if name.startswith("spent") else
                      value + chance.choice((-step, 0, 0, 0, step)))
            for name, value in measures.items()
            for step in [10_000 if "." in name else 60 if name.startswith("wait") else 1]
        }  # fmt: skip
    return found


def busy_site() -> dict[Part, dict[str, dict[str, int]]]:
    """20 pools, 5 providers and 200 projects."""
    waits = {STARTED: 3, WAIT_S: 1800, WAIT_MAX_S: 1200, "waits_below_256": 1, "waits_below_2048": 2}
    jobs = {"jobs_pending": 40, "jobs_running": 30, "gpus_pending": 90, "gpus_running": 60}
    phases = {f"machines_{name}": 5 for name in ("booting", "ready", "busy", "idle", "leaving", "failed")}
    money = {"money_per_hour.EUR": 12_340_000, "money_per_hour.USD": 12_340_000}
    pools, clouds = [f"pool/gpu-a100-{n}" for n in range(20)], [f"provider/cloud-{n}" for n in range(5)]
    return {
        Part.SITE: {"site": {**jobs, **waits, "gpus_used": 400, "gpus_free": 30, "gpus_idle": 20},
                    **{pool: dict(waits) for pool in pools}},
        Part.MACHINES: {"site": {**phases, **money, "spent.EUR": 10**12, "spent.USD": 10**11},
                        **{pool: {**phases, **money, "wanted": 20} for pool in pools},
                        **{cloud: {**phases, **money} for cloud in clouds}},
        Part.PROJECTS: {f"project/physics-{n:03}": {**jobs, **waits, "share": 8, "money_per_hour.EUR": 3_060_000}
                        for n in range(200)},
    }  # fmt: skip
