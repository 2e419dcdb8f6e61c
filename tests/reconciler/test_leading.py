"""A head that is not sure that it leads changes neither clouds nor Slurm, and goes on looking."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

import pytest

from burstd.daemon.leading import CHANGING_CALLS, guard_commands, guard_provider
from burstd.db import NotLeading
from burstd.domain.errors import BurstdError, OutcomeUnknown, SchedulerUnavailable
from burstd.metrics.provider_calls import CALLS

ASKING_CALLS = {"offers", "prepare", "instances", "leftovers", "notices", "images", "routes", "disks", "quotas"}


def test_each_call_to_a_cloud_is_one_that_asks_or_one_that_changes() -> None:
    assert set(CALLS) - set(CHANGING_CALLS) == ASKING_CALLS
    assert set(CHANGING_CALLS) <= set(CALLS)


def unsure() -> None:
    raise NotLeading("the server does not answer")


class Cloud:
    def __init__(self) -> None:
        self.ended: list[str] = []

    def instances(self) -> list[str]:
        return ["i-1"]

    def terminate(self, ids: Sequence[str]) -> None:
        self.ended += ids


class SlottedCloud:
    __slots__ = ()

    def terminate(self, ids: Sequence[str]) -> None: ...


def test_a_cloud_is_asked_to_change_something_by_a_head_that_is_sure() -> None:
    leading, cloud = True, Cloud()

    def sure() -> None:
        if not leading:
            unsure()

    guard_provider("sky", cloud, sure)  # type: ignore[arg-type]
    cloud.terminate(["i-1"])
    leading = False
    with pytest.raises(OutcomeUnknown, match="not asked: the server does not answer"):
        cloud.terminate(["i-2"])
    assert (cloud.ended, cloud.instances()) == (["i-1"], ["i-1"])
    with pytest.raises(BurstdError, match="sky has __slots__"):
        guard_provider("sky", SlottedCloud(), sure)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("squeue --all --states=all", True),
        ("sinfo --all --noheader --Node", True),
        ("sacct -n -X", True),
        ("sbatch --test-only -v", True),
        ("scontrol --version", True),
        ("scontrol --all --oneliner --detail show node", True),
        ("sacctmgr -nP show qos where name=a", True),
        ("scontrol update NodeName=n1 State=POWER_DOWN", False),
        ("scontrol requeue incomplete 17", False),
        ("scontrol delete ReservationName=show", False),
        ("scancel --signal=TERM 17", False),
        ("sacctmgr -i add account show", False),
    ],
)
def test_slurm_is_changed_by_a_head_that_is_sure(command: str, asks: bool) -> None:
    run: list[str] = []

    def note(argv: Sequence[str], _: Mapping[str, str], __: float) -> subprocess.CompletedProcess[str]:
        run.append(" ".join(argv))
        return subprocess.CompletedProcess(argv, 0, "", "")

    guarded = guard_commands(note, unsure)
    if asks:
        guarded(command.split(), {}, 1.0)
    else:
        with pytest.raises(SchedulerUnavailable, match="not asked"):
            guarded(command.split(), {}, 1.0)
    assert run == ([command] if asks else [])
    guard_commands(note, lambda: None)(command.split(), {}, 1.0)
    assert run[-1] == command
