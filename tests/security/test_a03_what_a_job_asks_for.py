"""A plan comes of every world, whatever one of its jobs asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.slurm.commands.parsing import MAX_COUNT
from burstd.testing.policy.strategies import snapshots
from tests.examples import examples
from tests.planner.test_properties import CHAIN

LATE = 7_258_118_400.0
HOSTS = tuple(f"n{n}" for n in range(60_000))


@pytest.mark.parametrize(
    "asked",
    [
        {
            "nodes": MAX_COUNT,
            "nodes_max": MAX_COUNT,
            "cpus": MAX_COUNT,
            "cpus_per_node": MAX_COUNT,
            "memory_mib": MAX_COUNT,
        },
        {
            "tasks": 4_000_001,
            "array_tasks": "0-4000000",
            "array_job_id": "7",
            "het_job_id": "",
            "nodes": 1,
            "nodes_max": 1,
        },
        {
            "priority": MAX_COUNT,
            "restarts": MAX_COUNT,
            "tasks_limit": MAX_COUNT,
            "het_offset": MAX_COUNT,
            "het_job_id": "7",
        },
        {"time_limit_s": 3.2e9, "start": LATE, "end": LATE, "eligible": LATE, "submitted": LATE},
        {"gres_per_node": (Gres("gpu", "v100", MAX_COUNT),), "gres_per_job": (Gres("gpu", "", MAX_COUNT),)},
        {"constraint": "a*65000", "excluded_nodes": HOSTS, "node_list": HOSTS},
        {"constraint": "(" * 1000, "name": "\n" * 1000, "comment": "burst:" + "=" * 1000, "reason": "x" * 3000},
    ],
    ids=lambda asked: " ".join(asked)[:20],
)
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots())
def test_a_plan_is_made(asked: dict[str, Any], snapshot: Snapshot) -> None:
    assume(isinstance(snapshot.slurm, SlurmView) and snapshot.slurm.jobs)
    assert isinstance(snapshot.slurm, SlurmView)
    first, *rest = sorted(snapshot.slurm.jobs, key=lambda job: job.state is not JobState.PENDING)
    slurm = replace(snapshot.slurm, jobs=(replace(first, **asked), *rest))
    plan = decide(replace(snapshot, slurm=slurm), CHAIN, Tuning())
    assert not plan.target.failed_policies
