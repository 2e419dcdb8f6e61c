"""Which row an id stands for."""

from __future__ import annotations

import pytest

from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Gres
from burstd.planner.explain.job_lookup import find_job, request_text

from .worlds import job

QUEUE = (
    job("9_1", array_job_id="9", state=JobState.RUNNING),
    job("9", array_job_id="9", array_tasks="4-6,8%2", tasks=4),
    job("12_3", array_job_id="12", state=JobState.RUNNING),
    job("7+0", het_job_id="7"),
    job("7+1", het_job_id="7"),
)


@pytest.mark.parametrize(
    ("job_id", "row"),
    [
        ("9", "9"),
        ("9_1", "9_1"),
        ("9_5", "9"),
        ("9_[4-6,8%2]", "9"),
        ("9_[4]", "9"),  # as it was a moment ago
        ("12_[1-2]", None),
        ("9_2", None),  # it has ended
        ("12", "12_3"),
        ("7", "7+0"),
        ("7+1", "7+1"),
        ("1", None),
        ("", None),
        ("_", None),
    ],
)
def test_which_row_an_id_stands_for(job_id: str, row: str | None) -> None:
    found = find_job(QUEUE, job_id)
    assert (found.id if found is not None else None) == row


def test_what_it_asks_for() -> None:
    asked = job(
        nodes=2, cpus=16, memory_mib=2048, memory_per_cpu=True, gres_per_job=(Gres("gpu", "a100", 4),), exclusive=True,
        constraint="ib", tasks=3, time_limit_s=5400.0, dependency="afterok:5",
    )  # fmt: skip
    assert request_text(asked) == (
        "2 nodes, 16 CPUs in all, 2 GiB per CPU, gpu:a100:4 in all, constraint ib, whole nodes, 3 array tasks, 90 min,"
        " after afterok:5"
    )
