"""What decisions are told of jobs' data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.staging import DataView, Directives, Staging
from burstd.domain.staging import StageState as S
from burstd.planner.staging.transfer_schedule import Measured, Rates
from burstd.staging.controller.job_runs import Life, Run
from burstd.staging.controller.snapshot_view import views

NOW = 1_000_000.0
RATES = Rates({("s3", "in"): Measured(2000.0, 10.0)})


def row(state: S, **fields: Any) -> Staging:
    base = Staging("7", "ada", 1000, 1000, Directives(), state, NOW - 30, NOW - 60, store="s3")
    return replace(base, **fields)


@pytest.mark.parametrize(
    ("case", "staging", "size", "expected"),
    [
        ("all of it is still to be sent", row(S.WAITING), 4000, DataView(S.WAITING, NOW + 20, size=4000, left=4000)),
        ("nobody has looked", row(S.WAITING), None, DataView(S.WAITING, 0.0)),
        ("sent, and nobody measures it", row(S.SENDING), 4000, DataView(S.SENDING, NOW + 20, size=4000, left=4000)),
        ("it is there", row(S.STAGED), 4000, DataView(S.STAGED, 0.0, size=4000)),
        ("sent before a restart", row(S.STAGED, bytes_in=4000), None, DataView(S.STAGED, 0.0, size=4000)),
    ],
)
def test_how_much_there_is_and_is_to_come(case: str, staging: Staging, size: int | None, expected: DataView) -> None:
    found = views([staging], lambda job_id: Run(job_id, Life(size=size)), RATES, NOW, lambda _, __: 0.0)
    assert found == {"7": replace(expected, since=NOW - 30, store="s3")}, case
