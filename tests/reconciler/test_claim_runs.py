"""Which jobs run on which machines is written down as they come and go, for the bill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy import select

from burstd.db import Store
from burstd.db.tables import CLAIM_RUN
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner.demand.job_requirements import dominant_share
from burstd.reconciler.pollers.claim_runs import ClaimRunRecorder
from burstd.reconciler.quarantine import Quarantine
from tests.db.samples import START, ManualClock, planned
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.reconciler.context import LoopContext

NODE = Node("gpu001", "MIXED", cpus=8, memory_mib=16000, gres=(Gres("gpu", "v100", 4),), cpus_allocated=2)
IDLE = replace(NODE, state="IDLE", cpus_allocated=0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as opened:
        yield opened


def job(job_id: str = "17", **fields: Any) -> Job:
    base = Job(job_id, "ann", JobState.RUNNING, ("gpu",), START, account="atlas", cpus=2, start=START + 10,
               run_start=int(START) + 10, node_list=("gpu001", "site1"))  # fmt: skip
    return replace(base, **fields)


AGAIN = job(restarts=1, start=START + 25, run_start=int(START) + 25)
NEXT = job("18", start=START + 11, run_start=int(START) + 11)


def ended(end: float, **fields: Any) -> Job:
    return job(state=JobState.COMPLETED, end=START + end, **fields)


def snap(
    at: float, *jobs: Job, over: tuple[Job, ...] = (), node: Node = NODE, claim_id: str = "c1", created: float = 0
) -> Snapshot:
    claim: Claim = replace(planned(claim_id), state=ClaimState.IN_SERVICE, billed_from=START + created)
    # Slurm's times become burstd's by two clocks: a little otherwise at each look.
    told = [tuple(replace(j, start=j.start + at * 1e-6, end=j.end + at * 1e-6) for j in some) for some in (jobs, over)]
    slurm = SlurmView(told[0], {node.name: node}, (), START + at, ended=told[1])
    return Snapshot(START + at, "site", {}, slurm, {}, (claim,))


def recorder(store: Store) -> ClaimRunRecorder:
    return ClaimRunRecorder(cast("LoopContext", SimpleNamespace(store=store, quarantine=Quarantine(VirtualClock()))))


def on_record(store: Store) -> list[tuple[str, float, float | None, int]]:
    columns = (CLAIM_RUN.c.job, CLAIM_RUN.c.started, CLAIM_RUN.c.ended, CLAIM_RUN.c.share)
    rows = store._rows(select(*columns).order_by(CLAIM_RUN.c.started, CLAIM_RUN.c.job))
    return [
        (row["job"], round(row["started"] - START, 2), None if row["ended"] is None else round(row["ended"] - START, 2),
         row["share"])
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "looks", "runs"),
    [
        ("it runs", [snap(20, job()), snap(30, job())], [("17", 10, None)]),
        ("it waits, or its output is on its way", [snap(20, job(state=JobState.PENDING)),
                                                   snap(30, job(state=JobState.STAGE_OUT))], []),
        ("slurmctld tells when it ended", [snap(20, job()), snap(60, over=(ended(45),))], [("17", 10, 45)]),
        ("it came and went between two looks", [snap(20), snap(60, over=(ended(45),)), snap(70, over=(ended(45),))],
         [("17", 10, 45)]),
        ("it was on the machine before", [snap(90, over=(ended(45),), created=60)], []),
        ("slurmctld has forgotten it, and its node is idle",
         [snap(20, job()), snap(900, node=replace(IDLE, last_busy=START + 333))], [("17", 10, 333)]),
        ("slurmctld has forgotten it, and its node is busy", [snap(20, job()), snap(900)], [("17", 10, 20)]),
        ("another was on its node since", [snap(20, job()), snap(900, over=(ended(890, id="18", run_start=9),),
                                                                  node=replace(IDLE, last_busy=START + 890))],
         [("17", 10, 20), ("18", 10, 890)]),
        ("burstd's clock was put right meanwhile",
         [snap(60, over=(ended(45),)), snap(70, over=(ended(75, start=START + 40),))], [("17", 10, 45)]),
        ("cancelled while it waited", [snap(20), snap(60, over=(ended(50, start=START + 50, node_list=()),))], []),
        ("requeued, and cancelled then", [snap(20), snap(60, over=(ended(50.00001, start=START + 50),))], []),
        ("it begins anew", [snap(20, job()), snap(30, AGAIN)], [("17", 10, 20), ("17", 25, None)]),
        ("Slurm counts a requeue before its end",
         [snap(20, job()), snap(30, job(state=JobState.COMPLETING, restarts=1))], [("17", 10, None)]),
        ("the clock was set back", [snap(20, job()), snap(30, job(start=START - 3000))], [("17", 10, None)]),
        ("slurm is away", [snap(20, job()), replace(snap(30), slurm=Unavailable("no", 0.0)), snap(40, job())],
         [("17", 10, None)]),
        ("two", [snap(20, job(), NEXT), snap(30, NEXT, over=(ended(29),))],
         [("17", 10, 29), ("18", 11, None)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_written_down(
    store: Store, case: str, looks: list[Snapshot], runs: list[tuple[str, float, float | None]], restarted: bool
) -> None:
    one = recorder(store)
    for snapshot in looks:
        one.record(snapshot)
        one = recorder(store) if restarted else one
    assert [run[:3] for run in on_record(store)] == runs, case


@pytest.mark.parametrize(
    ("asks", "share"),
    [
        ({"cpus": 4}, 1 / 4),  # spread over two nodes
        ({"cpus": 2, "memory_mib": 8000}, 1 / 2),
        ({"cpus": 2, "memory_mib": 1000, "memory_per_cpu": True, "node_list": ("gpu001",)}, 1 / 4),
        ({"gres_per_node": (Gres("gpu", "", 3),)}, 3 / 4),
        ({"gres_per_job": (Gres("gpu", "", 2),)}, 1 / 4),
        ({"exclusive": True}, 1),
        ({"memory_whole": True}, 1),
    ],
)
def test_the_largest_share_counts(asks: dict[str, Any], share: float) -> None:
    one = job(**asks)
    assert float(dominant_share(one, NODE, len(one.node_list))) == pytest.approx(share)
