"""What ended jobs tell of jobs like them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.slurm import job_history
from burstd.domain.slurm.job_history import MIN_RUNS, RECENT, RUNS, EndedJob, JobHistory
from burstd.domain.slurm.shape import Gres
from tests.examples import examples

from .worlds import job

ASKS = job(
    "1", user="ada", account="lab", name="train_7", cpus=2, gres_per_node=(Gres("gpu", "", 2),), time_limit_s=7200.0
)  # fmt: skip


def ended(run_s: float = 100.0, number: int = 1, **fields: Any) -> EndedJob:
    """One like ASKS."""
    base = EndedJob(str(number), "ada", "lab", f"train_{number}", ("p",), 1, 2, 2, 7200.0, 0.0, 50.0, 50.0, False)
    return replace(base, **{"ended": 50.0 + run_s, **fields})


def several(run_s: float, count: int = MIN_RUNS, **fields: Any) -> list[EndedJob]:
    return [ended(run_s, number, **fields) for number in range(count)]


@pytest.mark.parametrize(
    ("differs", "basis"),
    [
        ({}, "jobs train_# of ada with 2 GPUs"),
        ({"name": "other"}, "jobs of ada with 2 GPUs and the same time limit"),
        ({"user": "bob"}, "jobs with 2 GPUs and the same time limit"),
        ({"name": "other", "time_limit_s": 3600.0, "ended": 200.0}, "jobs of ada with 2 GPUs"),
        ({"user": "bob", "time_limit_s": 3600.0, "ended": 200.0}, "jobs of lab with 2 GPUs"),
        ({"user": "bob", "account": "other", "time_limit_s": 3600.0, "ended": 200.0}, "jobs with 2 GPUs"),
        ({"gpus": 4}, "jobs of all users"),
    ],
)
def test_the_closest_jobs_of_which_enough_are_known_tell(differs: dict[str, Any], basis: str) -> None:
    found = JobHistory.from_jobs(several(300, **differs)).run_s(ASKS)
    assert found is not None
    assert found.seconds == pytest.approx(300)
    assert (found.jobs, found.basis) == (MIN_RUNS, basis)


def test_too_few_tell_nothing() -> None:
    assert JobHistory.from_jobs(several(300, MIN_RUNS - 1)).run_s(ASKS) is None
    assert JobHistory().run_s(ASKS) is None
    assert JobHistory().wait_s(ASKS) is None


def test_jobs_without_gpus_are_alike_by_their_cpus() -> None:
    known = JobHistory.from_jobs(several(300, gpus=0, cpus=12, user="", account="", time_limit_s=0.0))
    asks = job("1", user="", cpus=16)
    found = known.run_s(asks)
    assert found is not None
    assert found.basis == "jobs with up to 16 CPUs"


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [(0, 1450), (50, 1450), (600, 2000 * 12 / 13 + 1000 / 13), (1500, 2000), (2500, 5000), (4000, 7200)],
)
def test_what_has_run_long_will_run_long(elapsed: float, expected: float) -> None:
    runs = [*several(100, 4), *several(1000, 1), *several(2000, 12)]
    mean = (4 * 100 + 1000 + 12 * 2000) / 17
    found = JobHistory.from_jobs(runs).run_s(ASKS, elapsed)
    assert found is not None
    assert found.seconds == pytest.approx(mean if expected == 1450 else expected)


def test_no_job_is_expected_to_run_beyond_its_limit() -> None:
    found = JobHistory.from_jobs(several(9000)).run_s(ASKS)
    assert found is not None
    assert found.seconds == 7200


def test_waits_are_those_of_late_and_of_the_site() -> None:
    burst = several(10, 20, burst=True, eligible=-10_000.0)
    long_ago = several(10, 2 * RECENT, eligible=-1000.0)
    of_late = several(10, RECENT, eligible=20.0)
    found = JobHistory.from_jobs([*long_ago, *of_late, *burst]).wait_s(ASKS)
    assert found is not None
    assert (found.seconds, found.jobs) == (30, RECENT)
    assert JobHistory.from_jobs(burst).wait_s(ASKS) is None


def test_it_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_history, "GROUPS", 4)
    known = JobHistory.from_jobs(ended(number=n, user=f"u{n}", account=f"a{n}", gpus=n) for n in range(3000))
    assert all(len(shelf) <= 4 for shelf in known._shelves)
    same = JobHistory.from_jobs(several(100, 5 * RUNS))
    found = same.run_s(ASKS)
    assert found is not None
    assert RUNS <= found.jobs < RUNS + job_history.FRESH


_jobs = st.lists(
    st.builds(
        ended, st.floats(0, 1e5), st.integers(0, 3), user=st.sampled_from(["ada", "bob", ""]),
        gpus=st.integers(0, 2), time_limit_s=st.sampled_from([0.0, 60.0]), burst=st.booleans(),
    ),
    max_size=80,
)  # fmt: skip


@settings(max_examples=examples(50))
@given(jobs=_jobs, cuts=st.lists(st.integers(0, 80), max_size=3))
def test_in_pieces_it_is_the_same_and_older_ones_stay_as_they_were(jobs: list[EndedJob], cuts: list[int]) -> None:
    known, seen = JobHistory(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(jobs)], strict=True):
        known = known.with_ended(jobs[start:end])
        seen.append((known, jobs[:end]))
    for value, some in seen:
        assert value == JobHistory.from_jobs(some)
