"""What users write into their jobs ends no line about them, and no list of what they could ask for instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView
from burstd.planner.explain.job_comment import MAX_COMMENT_LENGTH, JobComments
from burstd.planner.explain.job_options import job_variants
from tests.planner.worlds import job, make_snapshot
from tests.security.fuzz import fuzzed

_TEXT = st.text(max_size=60) | st.sampled_from(
    ["in 99999999999999 d", "in 999999 d 999999 h", f"in {'9' * 5000} s", "in ٣ d", "starts in 5 s", "a" * 100_000]
)
_NUMBER = st.integers(0, 2**70)


def line(reason: str, verdict: str = "wait") -> str:
    found = JobComments(make_snapshot(job()), Plan(remarks=(Remark("x", "job:1", verdict, reason),))).comment_for(
        job(), ""
    )
    return found.text if found else ""


@pytest.mark.parametrize("digits", [6, 7, 18, 5000])
def test_a_time_that_no_calendar_has_is_left_as_it_is(digits: int) -> None:
    assert line(f"no node has the feature in {'9' * digits} d").startswith("waits: no node has the feature ")


@fuzzed
@given(_TEXT, st.sampled_from(["wait", "impossible", "boot", "covered"]))
def test_fuzz_job_line(reason: str, verdict: str) -> None:
    text = line(reason, verdict)
    assert len(text) <= MAX_COMMENT_LENGTH
    assert "\n" not in text


@fuzzed
@given(
    constraint=st.text("ab&|*[]()!@,0123456789 ", max_size=40),
    gres=st.lists(st.tuples(st.text("ag:", max_size=5), st.text(max_size=5), _NUMBER), max_size=3),
    memory=_NUMBER, nodes=st.integers(0, 2**40), cpus=_NUMBER, limit=st.floats(0, 1e12),
)  # fmt: skip
def test_fuzz_job_options(
    constraint: str, gres: list[tuple[str, str, int]], memory: int, nodes: int, cpus: int, limit: float
) -> None:
    asked = job(
        constraint=constraint, gres_per_node=tuple(Gres(*one) for one in gres), memory_mib=memory, nodes=nodes,
        cpus=cpus, time_limit_s=limit,
    )  # fmt: skip
    snapshot = make_snapshot(asked)
    assert isinstance(snapshot.slurm, SlurmView)
    for some in job_variants(asked, snapshot, snapshot.slurm, by_time=True):
        assert 0 < len(some) < 100


def test_a_long_constraint_has_few_options() -> None:
    asked = job(constraint="&".join(f"f{n}" for n in range(2000)))
    snapshot = make_snapshot(asked)
    assert isinstance(snapshot.slurm, SlurmView)
    assert sum(len(some) for some in job_variants(asked, snapshot, snapshot.slurm, by_time=False)) < 20
