"""What decisions are told of jobs' data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.staging import Directives, Staging, StagingView
from burstd.domain.staging import StageState as S
from burstd.planner.staging.transfer_schedule import DecayedThroughput, TransferRates
from burstd.staging.controller.job_runs import StagingCycle, StagingRun
from burstd.staging.controller.snapshot_view import data_views

NOW = 1_000_000.0
RATES = TransferRates({("s3", "in"): DecayedThroughput(2000.0, 10.0)})


def row(state: S, **fields: Any) -> Staging:
    base = Staging("7", "ada", 1000, 1000, Directives(), state, NOW - 30, NOW - 60, store="s3")
    return replace(base, **fields)


@pytest.mark.parametrize(
    ("case", "staging", "size", "expected"),
    [
        (
            "all of it is still to be sent",
            row(S.WAITING),
            4000,
            StagingView(S.WAITING, NOW + 20, size=4000, bytes_left=4000),
        ),
        ("nobody has looked", row(S.WAITING), None, StagingView(S.WAITING, 0.0)),
        (
            "sent, and nobody measures it",
            row(S.UPLOADING),
            4000,
            StagingView(S.UPLOADING, NOW + 20, size=4000, bytes_left=4000),
        ),
        ("it is there", row(S.STAGED), 4000, StagingView(S.STAGED, 0.0, size=4000)),
        ("sent before a restart", row(S.STAGED, bytes_in=4000), None, StagingView(S.STAGED, 0.0, size=4000)),
    ],
)
def test_how_much_there_is_and_is_to_come(case: str, staging: Staging, size: int | None, expected: StagingView) -> None:
    found = data_views(
        [staging], lambda job_id: StagingRun(job_id, StagingCycle(input_bytes=size)), RATES, NOW, lambda _, __: 0.0
    )
    assert found == {"7": replace(expected, since=NOW - 30, store="s3")}, case
