"""A month of the lab, worked out by hand from what its cloud and its Slurm know, beside what burstd's bill says.

Of the cloud: from when to when each machine was there, and its price. Of Slurm: when which job ran where, with what.
Of burstd: when it put each node in service, for which jobs. None of the code that makes the bill is used.
"""

from __future__ import annotations

import csv
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from burstd.db import StoreReader
from burstd.domain.claim import ClaimState
from burstd.domain.slurm.shape import Gres
from tests.api.fake_backend import serving_api
from tests.api.world import FixedClock
from tests.cli.conftest import Run
from tests.crash.clouds import CLUSTER, SimKit
from tests.crash.world import World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

BEGIN, END = (datetime(2027, month, 1, tzinfo=UTC).timestamp() for month in (2, 3))
DAY_S = 86400
EVENINGS = (9, 28)
"""Days of February on which jobs are submitted, from ten minutes before midnight (UTC) on."""
Sums = dict[tuple[str, str], Fraction]
"""By user and kind; all that is nobody's is one kind."""


def spec(dice: random.Random) -> JobSpec:
    gpus = dice.choice((0, 0, 1, 2))
    return JobSpec(
        user=dice.choice(("ann", "bob")),
        account="atlas",
        cpus_per_node=dice.choice((1, 2, 4)),
        memory_mib=dice.choice((0, 500, 6000)),
        gres_per_node=(Gres("gpu", "v100", gpus),) if gpus else (),
        run_s=dice.uniform(100, 900),
    )


def share(job: JobSpec) -> Fraction:
    """Of a node: 4 CPUs, 8000 MiB, and 2 GPUs in pool gpu."""
    gpus = sum(gres.count for gres in job.gres_per_node)
    return max(Fraction(job.cpus_per_node, 4), Fraction(job.memory_mib, 8000), Fraction(gpus, 2))


def by_hand(world: World, submitted: list[str]) -> Sums:
    sums: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    clouds = [kit.cloud for kit in world.kits.values() if isinstance(kit, SimKit)]
    jobs = {job: world.slurm.job(job) for job in submitted}
    ours = [one for cloud in clouds for one in cloud.instances.values() if one.cluster == CLUSTER]
    for machine in [one for one in ours if one.launched < END]:
        claim = world.store.claim(machine.claim_id)
        begin, end = machine.launched, min(machine.ended or END, END)
        second = Fraction(machine.offer.price) / 3600
        opened = next(e.time for e in world.store.claim_events(claim.id) if e.new == ClaimState.IN_SERVICE)
        sums["", ""] += second * Fraction(end - begin)
        for job_id in claim.jobs:
            boot = second * Fraction(min(opened, end) - begin) / len(claim.jobs)
            sums[jobs[job_id].spec.user, "boot"] += boot
            sums["", ""] -= boot
        here = [
            job for job in jobs.values() if claim.slot in job.nodes and begin <= job.started < (machine.ended or END)
        ]
        edges = sorted({min(at, end) for job in here for at in (job.started, job.ended)})
        for at, to in pairwise(edges):
            shares = {job.id: share(job.spec) for job in here if job.started <= at and to <= job.ended}
            for job_id, part in shares.items():
                work = second * Fraction(to - at) * part / max(1, sum(shares.values()))
                sums[jobs[job_id].spec.user, "work"] += work
                sums["", ""] -= work
    return dict(sums)


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Path, Sums]]:
    dice = random.Random(7)  # noqa: S311
    with memory_folder() as folder:
        world, submitted = World(folder, alpha="sim"), list[str]()
        for day in EVENINGS:
            world.kill()
            world.clock.advance_to(BEGIN + day * DAY_S - 600)
            world.start()
            for _ in range(6):
                submitted.append(world.slurm.submit(spec(dice)))
                world.run(dice.uniform(0, 200))
            world.run_until(lambda: not world.slurm.active and not world.claims(), 7200)
        sums = by_hand(world, submitted)
        world.kill()
        now = FixedClock(END + DAY_S)
        with StoreReader.open(world.path, now) as record, serving_api(record) as (backend, path):
            backend.clock = now
            yield path, sums


def test_the_bill_is_what_is_worked_out_by_hand(lab: tuple[Path, Sums], run: Run) -> None:
    path, sums = lab
    assert sums.keys() == {("ann", "boot"), ("ann", "work"), ("bob", "boot"), ("bob", "work"), ("", "")}
    assert min(sums.values()) > Fraction(1, 100)
    month = ("bill", "--month", "2027-02")
    for form, user, kind, cost in (("csv", "user", "kind", "cost"), ("focus", "x_User", "x_Kind", "BilledCost")):
        found: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for row in csv.DictReader(run(*month, "--format", form, socket=path).out.splitlines()):
            found[row[user], row[kind] if row[user] else ""] += Fraction(row[cost])
        assert found.keys() == sums.keys()
        assert max(abs(found[key] - sums[key]) for key in sums) < Fraction(1, 10_000), form
    shown = run(*month, socket=path).out
    assert shown.startswith(f"{float(sum(sums.values())):.2f} EUR from 2027-02-01 00:00 UTC to 2027-03-01 00:00 UTC")
    for user, name in (("ann", "ann"), ("bob", "bob"), ("", r"\(nobody's\)")):
        total = sum(amount for (payer, _), amount in sums.items() if payer == user)
        assert re.search(rf"^{name} +{float(total):.2f} EUR", shown, re.MULTILINE), shown
