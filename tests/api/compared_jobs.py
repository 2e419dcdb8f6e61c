"""The example of docs/money.md: a job of ada's that ran on a node of the site, two like it that ran there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from burstd.db import Store, StoreReader
from burstd.domain.billing.site_cost import HourCost, NodeGroup, SiteCosts
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import DAY_S, WHOLE, ClaimRun, Payer
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView
from tests.db.samples import OFFER, ManualClock, planned
from tests.db.test_money import begin, end

from .fake_backend import PLAN, FakeBackend, serving_api
from .world import NOW, SNAPSHOT, FixedClock

GPU = NodeGroup("gpu", ("own[0-9]*",), HourCost("EUR", Decimal("2.45"), Decimal("0.15")))
MIDNIGHT = NOW // DAY_S * DAY_S
BEGUN = MIDNIGHT - DAY_S
"""Four nodes, a half of which is used since then."""


def ran(job: str, name: str, wait_s: float, run_s: float, *, burst: bool) -> EndedJob:
    start = MIDNIGHT + wait_s
    return EndedJob(
        job, "ada", "atlas", name, ("p",), 1, 16, 0, 0.0, MIDNIGHT, start, start + run_s, burst, submitted=MIDNIGHT
    )


@contextmanager
def compared_jobs(name: str = "train.sh") -> Iterator[StoreReader]:
    """Job 17 ran here for two hours, 18 and 19 there."""
    clock = ManualClock(MIDNIGHT)
    with (
        tempfile.TemporaryDirectory(prefix="burstd-") as folder,
        Store.open(Path(folder) / "burstd.db", clock) as store,
    ):
        jobs = [
            ran("17", name, 11_400, 7200, burst=False),
            ran("18", name, 240, 5400, burst=True),
            ran("19", name, 360, 6000, burst=True),
        ]
        store.record_ended_jobs(jobs)
        for job, price in zip(jobs[1:], ("4.00", "3.84"), strict=True):
            clock.time = job.started
            claim = planned(f"c{job.id}", jobs=(), users=(), offer=replace(OFFER, price=Decimal(price)), at=job.started)
            begin(store, claim, boot_s=0, clock=clock)
            payer = Payer(job.id, "ada", "atlas", "p")
            store.save_runs([ClaimRun(claim.id, payer, job.started, WHOLE, job.ended)])
            clock.time = job.ended
            end(store, claim.id, clock)
        full = Decimal("2.60")
        store.save_site_runs((), [
            SiteRun("gpu", Payer("17", "ada", "atlas", "p"), 1, jobs[0].started, WHOLE, full, "EUR", jobs[0].ended),
            SiteRun("gpu", Payer("1", "bob", "belle", "p"), 1, BEGUN, 2 * WHOLE, 2 * full, "EUR", NOW - 3600),
        ])  # fmt: skip
        with StoreReader.open(store.location, FixedClock()) as reader:
            yield reader


def give_nodes(backend: FakeBackend) -> None:
    """The nodes of the group, and its prices."""
    slurm = SNAPSHOT.slurm
    assert isinstance(slurm, SlurmView)
    nodes = {name: Node(name, "IDLE", partitions=("p",), cpus=16) for name in ("own1", "own2", "own3", "own4")}
    backend.loop = (replace(SNAPSHOT, slurm=replace(slurm, nodes={**slurm.nodes, **nodes})), PLAN)
    backend.site_costs = lambda: SiteCosts((GPU,))


@contextmanager
def serving_compared_jobs(name: str = "train.sh") -> Iterator[tuple[FakeBackend, Path]]:
    """A daemon with that record, and its control socket."""
    with compared_jobs(name) as reader, serving_api(reader) as (backend, path):
        give_nodes(backend)
        yield backend, path
