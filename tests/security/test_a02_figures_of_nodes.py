"""A node may say what it likes of its jobs: what is kept is bounded, of the right kind, and its own."""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.api.job_use_plot import job_use_svg
from burstd.db.codec import to_json, to_json_text
from burstd.domain.job_use import JobUse, NodeUse
from burstd.node.errors import CommandFailed
from burstd.node.job_use import MAX_JOB_BYTES, read_figures
from tests.security.fuzz import fuzzed

NOW = 1_800_000_000.0
SERIES = {"start": 1.0, "every": 10.0, "mean": [1.0, None], "peak": [1.0, None]}
GPU = {
    "uuid": "GPU-1", "index": 0, "model": "A100", "memory_mib": 9, "mean": 1.0, "peak": 2.0, "memory_peak_mib": 1,
    "seen_s": 1.0, "known_s": 1.0, "idle_s": 1.0, "idle_now_s": 0.0, "at": 2.0, "series": SERIES,
}  # fmt: skip
JOB: dict[str, Any] = {
    "number": 7, "start": 1.0, "at": 2.0, "ended": False, "suspended_s": 0.0, "cpus": 1, "memory_mib": 1,
    "shared": False,
    "cpu": [1.0, 1.0, "x"], "cpus_peak": 1.0, "cpus_now": 1.0, "read_now_mib_s": 0.0, "memory_mean_mib": 1.0,
    "memory_peak_mib": 1.0, "read": None, "written": [1.0, 1.0, ""], "gpus": [GPU], "cpu_series": SERIES,
    "memory_series": SERIES,
}  # fmt: skip


def said(job: object, run: str = "7-5") -> str:
    packed = base64.b64encode(zlib.compress(json.dumps(job).encode())).decode()
    return f"uptime 100.00\nsampler running\nuse {run} {packed}\n"


def test_what_a_sampler_writes_is_read() -> None:
    assert read_figures(said(JOB), "cl1", NOW).runs["7-5"].gpus[0].uuid == "GPU-1"


LIES: dict[str, Any] = {
    "no_number": {**JOB, "cpus_peak": math.nan}, "no end": {**JOB, "at": math.inf}, "a debt": {**JOB, "cpus": -1},
    "a flag": {**JOB, "cpus": True}, "a text": {**JOB, "cpus": "1"}, "too much": {**JOB, "memory_mib": 1 << 70},
    "a thousand GPUs": {**JOB, "gpus": [GPU] * 1000}, "200 %": {**JOB, "gpus": [{**GPU, "mean": 200.0}]},
    "a model with an escape": {**JOB, "gpus": [{**GPU, "model": "\x1b[31m"}]},
    "one GPU twice": {**JOB, "gpus": [GPU, GPU]},
    **{f"{name} of {value}": {**JOB, "gpus": [{**GPU, name: value}]}
       for name in ("seen_s", "known_s", "idle_s", "idle_now_s", "at") for value in (-1.0, math.nan, math.inf)},
    **{f"a series with {name} {value}": {**JOB, "cpu_series": {**SERIES, name: value}}
       for name in ("start", "every") for value in (-1.0, math.nan, math.inf)},
    "a year for each point": {**JOB, "cpu_series": {**SERIES, "every": 4e7}},
    "a UUID of its own": {**JOB, "gpus": [{**GPU, "uuid": "<script>"}]},
    "too many points": {**JOB, "cpu_series": {**SERIES, "mean": [1.0] * 5000}},
    "no length": {**JOB, "cpu_series": {**SERIES, "every": 0.0}}, "nothing": {}, "a list": [], "none": None,
    "deep": "[" * 100_000, "a bomb": {**JOB, "more": "x" * (10 * MAX_JOB_BYTES)},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_what_no_sampler_writes_is_refused(lie: str) -> None:
    found = read_figures(said(LIES[lie]) + said(JOB, "8-5").splitlines()[2], "cl1", NOW)
    assert (found.unreadable, list(found.runs)) == (("7-5",), ["8-5"])


@pytest.mark.parametrize(
    "line",
    ["use 7-5 !!!!", "use 07-5 eJw=", "use ../x eJw=", f"use 7-5 {'A' * 300_000}", "use 7-5", "use 7 eJw=", "\x00"],
)
def test_lines_of_another_kind_are_left_out(line: str) -> None:
    found = read_figures(f"uptime 100.00\nsampler running\n{line}\n" + said(JOB, "8-5").splitlines()[2], "cl1", NOW)
    assert list(found.runs) == ["8-5"]


def test_times_are_never_ahead_of_burstd_s() -> None:
    node = read_figures(said({**JOB, "at": 1e9, "gpus": [{**GPU, "at": 1e9}]}), "cl1", NOW).runs["7-5"]
    assert (node.sampled_at, node.gpus[0].sampled_at) == (NOW, NOW)


def test_no_time_is_ahead_of_burstd_s_or_longer_than_the_job() -> None:
    """The machine booted 100 s ago, the job began 90 s ago."""
    late, long = {**SERIES, "start": 1e14, "mean": [1.0] * 9, "peak": [1.0] * 9}, {**SERIES, "mean": [1.0] * 2000}
    gpu = {**GPU, "seen_s": 1e15, "known_s": 1e15, "idle_s": 1e15, "idle_now_s": 1e15, "series": late}
    job = {**JOB, "start": 10.0, "gpus": [gpu], "cpu_series": late, "memory_series": {**long, "peak": [1.0] * 2000}}
    node = read_figures(said(job), "cl1", NOW).runs["7-5"]
    (found,) = node.gpus
    assert (found.seen_s, found.idle_s, found.idle_now_s) == (90.0, 90.0, 90.0)
    series = (found.series, node.cpu_series, node.memory_series)
    assert [(one.start, len(one.mean)) for one in series if one is not None] == [(NOW, 1), (NOW, 1), (NOW - 99, 10)]
    picture = job_use_svg(JobUse("7", "7", 0, "ada", "lab", "burst", (node,), 1, NOW))
    assert "Job 7 from 2027-01-15 07:58 UTC, 1 min 49 s" in picture
    known = {**job, "gpus": [{**gpu, "known_s": 5.0}]}
    assert read_figures(said(known), "cl1", NOW).runs["7-5"].gpus[0].idle_s == 5.0


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))


@fuzzed
@given(field=st.sampled_from(sorted(JOB)), gpu_field=st.sampled_from(sorted(GPU)), value=ANYTHING)
def test_fuzz_any_field_of_a_node_s_figures_is_refused_or_can_be_kept(
    field: str, gpu_field: str, value: object
) -> None:
    for job in ({**JOB, field: value}, {**JOB, "gpus": [{**GPU, gpu_field: value}]}):
        for node in read_figures(said(job), "cl1", NOW).runs.values():
            assert isinstance(node, NodeUse)
            job_use_svg(JobUse("7", "7", 0, "ada", "lab", "burst", (node,), 1, NOW))
            # Without NaN, and with texts that a database takes.
            to_json_text(to_json(node)).encode()


@fuzzed
@given(text=st.text(max_size=200))
def test_fuzz_any_answer_is_figures_or_refused(text: str) -> None:
    for answer in (text, f"uptime 1.00\nsampler running\n{text}"):
        try:
            assert read_figures(answer, "cl1", NOW).runs == {}
        except CommandFailed:
            continue
