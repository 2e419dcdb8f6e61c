"""Jobs that leave the queue are learned from, and nothing that is learned is lost with the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from burstd.db import Store, StoreFull
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.reconciler.pollers.job_history import JobHistoryRecorder
from burstd.reconciler.quarantine import Quarantine
from tests.db.samples import ManualClock
from tests.virtual.clock import VirtualClock

if TYPE_CHECKING:
    from burstd.reconciler.context import LoopContext

BORN = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as opened:
        yield opened


def runs(job_id: str = "1", **fields: Any) -> Job:
    base = Job(
        job_id, "ada", JobState.RUNNING, ("gpu",), BORN - 500, "train", "lab", nodes=2, cpus=8,
        gres_per_node=(Gres("gpu", "v100", 2),), time_limit_s=3600.0, start=BORN - 300, eligible=BORN - 400,
        node_list=("a", "b"),
    )  # fmt: skip
    made = replace(base, **fields)
    return replace(made, run_start=int(made.start))


CANCELLED = runs(start=BORN + 4, end=BORN + 4 + 1e-6)


def queue(at_s: float, *jobs: Job) -> SlurmView:
    return SlurmView(jobs, {}, (), BORN + at_s)


def over(at_s: float, *jobs: Job) -> SlurmView:
    """Nothing is in the queue any more; slurmctld still knows these jobs."""
    # Slurm's times become burstd's by two clocks: a little otherwise at each look.
    told = (replace(j, state=JobState.COMPLETED, start=j.start + at_s * 1e-6, end=j.end + at_s * 1e-6) for j in jobs)
    return replace(queue(at_s), ended=tuple(told))


def recorder(store: Store) -> JobHistoryRecorder:
    context = SimpleNamespace(store=store, quarantine=Quarantine(VirtualClock()))
    return JobHistoryRecorder(cast("LoopContext", context), lambda: {"burst1", "b"})


def recorded(store: Store, *looks: SlurmView | Unavailable) -> tuple[EndedJob, ...]:
    job_recorder = recorder(store)
    for slurm in looks:
        job_recorder.record_ended_jobs(slurm)
    return store.ended_jobs(99)


def test_a_job_that_ran_and_is_gone_has_ended(store: Store) -> None:
    (found,) = recorded(store, queue(0, runs()), queue(10))
    assert found == EndedJob(
        "1", "ada", "lab", "train", ("gpu",), 2, 8, 4, 3600.0, BORN - 400, BORN - 300, BORN + 10, burst=True,
        submitted=BORN - 500,
    )  # fmt: skip
    assert (found.run_s, found.wait_s) == (310, 100)


@pytest.mark.parametrize(
    ("case", "looks", "ends"),
    [
        ("still running", (queue(0, runs()), queue(10, runs())), []),
        ("never ran", (queue(0, runs(state=JobState.PENDING, start=BORN + 5)), queue(10)), []),
        ("begins anew", (queue(0, runs()), queue(10, runs(state=JobState.PENDING, restarts=1))), []),
        ("slurm is away", (queue(0, runs()), Unavailable("no", BORN), queue(20)), [20]),
        ("the same look twice", (queue(0, runs()), queue(0)), []),
        ("it was completing, and slurm says since when",
         (queue(0, runs()), queue(10, runs(state=JobState.COMPLETING, end=BORN + 4)), queue(20)), [4]),
        ("slurmctld still tells when", (queue(0, runs()), over(1000, runs(end=BORN + 7))), [7]),
        ("it came and went between two looks",
         (queue(0), over(9, runs(end=BORN + 4)), over(20, runs(end=BORN + 4))), [4]),
        ("cancelled while it waited",
         (queue(0), over(9, CANCELLED), over(20, replace(CANCELLED, node_list=()))), []),
        ("it ended before burstd looked", (over(9, runs(end=BORN + 4)), over(20, runs(end=BORN + 4))), []),
        ("nobody looked for as long as matters", (queue(0, runs()), queue(1000)), []),
        ("nobody looked, but it ran for long", (queue(0, runs(start=BORN - 90_000)), queue(1000)), [500]),
    ],
)  # fmt: skip
def test_what_is_learned(
    store: Store, case: str, looks: tuple[SlurmView | Unavailable, ...], ends: list[float]
) -> None:
    assert [round(job.ended - BORN, 2) for job in recorded(store, *looks)] == ends, case


def test_predictions_survive_a_restart(store: Store) -> None:
    some = [runs(str(n)) for n in range(20)]
    before = recorder(store)
    before.record_ended_jobs(queue(0, *some))
    known = before.record_ended_jobs(queue(10))
    after = recorder(store).history()
    assert known == after
    found = after.run_s(some[0])
    assert found is not None
    assert found.jobs == 20
    assert found.seconds == pytest.approx(310)


def test_what_cannot_be_written_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    of = recorder(store)
    of.record_ended_jobs(queue(0, runs()))
    with monkeypatch.context() as full:
        full.setattr(store, "record_ended_jobs", _full)
        with pytest.raises(StoreFull):
            of.record_ended_jobs(queue(10))
    assert of.record_ended_jobs(queue(12)) == recorder(store).history()
    assert [job.ended for job in store.ended_jobs(9)] == [BORN + 12]


def _full(_: object) -> None:
    raise StoreFull("no space")
