"""Readers of traces: what a row becomes, what is left out, and what is said of files that cannot be read."""

from __future__ import annotations

import gzip
import os
import threading
import time
from pathlib import Path

import pytest

from burstd.simulate.traces.read import AUTO, Trace, TraceError, TraceJob, read_trace
from tests.lab.patience import processor_s

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
SACCT = "JobID|Submit|Eligible|Elapsed|State|AllocTRES|ReqTRES|Timelimit|User|Account|Partition|Constraints|JobName\n"
MIDNIGHT = 1_772_323_200.0  # 2026-03-01 00:00 UTC
SWF_HEAD = "; Version: 2.2\n; UnixStartTime: 1000\n; MaxNodes: 128 (4 of them for login)\n; MaxProcs: 512\n"


def read_text(text: str, folder: Path, kind: str = AUTO) -> Trace:
    file = folder / "trace"
    file.write_text(text, encoding="utf-8")
    return read_trace(file, kind)


def sacct_row(job: str = "7", **values: str) -> str:
    row = {
        "Submit": "2026-03-01T00:00:00", "Eligible": "2026-03-01T00:00:00", "Elapsed": "01:00:00",
        "State": "COMPLETED", "AllocTRES": "cpu=8,mem=16G,node=2", "ReqTRES": "", "Timelimit": "02:00:00",
        "User": "ada", "Account": "bio", "Partition": "gpu", "Constraints": "", "JobName": "train",
    } | values  # fmt: skip
    return "|".join([job, *(row[column] for column in SACCT.strip().split("|")[1:])]) + "\n"


def swf_row(*changed: tuple[int, str]) -> str:
    """Values by their number in the definition, from 1."""
    values = dict(enumerate(["1", "60", "5", "3600", "16", "-1", "-1", "32", "7200", "2048", "1"], start=1))
    values |= {12: "3", 13: "4", 14: "9", 15: "2", 16: "1", 17: "-1", 18: "-1"} | dict(changed)
    return " ".join(values.values()) + "\n"


def one(trace: Trace) -> TraceJob:
    (job,) = trace.jobs
    return job


def test_csv_with_gpus_in_the_order_of_submission(tmp_path: Path) -> None:
    rows = (
        "2017-10-09 07:01:55,66.0,8,528.0,11cb48\n2017-10-09 06:13:03,0.0,1,0.0,6214e9\n2017-10-09 06:00:00,5,1,5,x\n"
    )
    trace = read_text(PHILLY + rows, tmp_path)
    assert (trace.format, trace.notes) == ("philly", ("1 jobs with a duration of 0 left out",))
    assert [job.account for job in trace.jobs] == ["x", "11cb48"]
    assert trace.jobs[1] == TraceJob("1", 1_507_532_515.0, 66.0, gpus=8, account="11cb48")


def test_swf(tmp_path: Path) -> None:
    trace = read_text(SWF_HEAD + "; Queue: 2 batch\n" + swf_row(), tmp_path)
    assert (trace.format, trace.nodes, trace.cpus, trace.notes) == ("swf", 128, 512, ())
    assert one(trace) == TraceJob(
        "1", 1060.0, 3600.0, cpus=16, memory_mib=32, time_limit_s=7200.0, user="3", account="4", name="9",
        partition="batch",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([(5, "-1")], {"cpus": 32, "memory_mib": 64}),
        ([(5, "-1"), (8, "-1")], {"cpus": 0}),
        ([(9, "-1"), (10, "-1"), (12, "-1")], {"time_limit_s": 0.0, "memory_mib": 0, "user": ""}),
        ([(11, "0")], {"run_s": 3600.0}),
        ([(11, "5")], {"run_s": 3600.0}),
        ([(4, "0.5")], {"run_s": 0.5}),
    ],
    ids=["requested", "unknown-size", "unknown", "failed", "cancelled-while-running", "fraction"],
)
def test_swf_rows(changed: list[tuple[int, str]], expected: dict[str, object], tmp_path: Path) -> None:
    job = one(read_text(SWF_HEAD + swf_row(*changed), tmp_path))
    assert {name: getattr(job, name) for name in expected} == expected


def test_swf_leaves_out_pieces_and_jobs_that_never_ran(tmp_path: Path) -> None:
    rows = [swf_row(), swf_row((1, "2"), (4, "-1"), (11, "5")), *(swf_row((11, status)) for status in "234")]
    trace = read_text("".join(rows), tmp_path)
    assert one(trace).submitted == 60.0
    assert trace.notes == (
        "no UnixStartTime in the head: the first second of the trace is taken as 1970-01-01 UTC",
        "1 jobs without a run time (cancelled before they began) left out",
        "3 lines that tell pieces of a job left out: the line of the whole counts",
    )


def test_sacct(tmp_path: Path) -> None:
    tres = "billing=9,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=1.50G,node=2"
    trace = read_text(SACCT + sacct_row(AllocTRES=tres, Constraints="nvme", JobName="a|b"), tmp_path)
    assert (trace.format, trace.notes) == ("sacct", ())
    assert one(trace) == TraceJob(
        "7", MIDNIGHT, 3600.0, nodes=2, cpus=8, gpus=4, memory_mib=1536, time_limit_s=7200.0, user="ada",
        account="bio", partition="gpu", name="a|b", gpu_type="a100", constraint="nvme",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"AllocTRES": "", "ReqTRES": "cpu=2,gres/gpu=1,node=1"}, {"cpus": 2, "gpus": 1, "nodes": 1, "gpu_type": ""}),
        ({"AllocTRES": "cpu=2,gres/gpu:a100=1,gres/gpu:v100=1,fs/disk=3G"}, {"gpus": 2, "gpu_type": ""}),
        ({"Elapsed": "1-02:03:04"}, {"run_s": 93_784.0}),
        ({"Elapsed": "02:30"}, {"run_s": 150.0}),
        ({"Timelimit": "UNLIMITED"}, {"time_limit_s": 0.0}),
        ({"Timelimit": "7-00:00:00"}, {"time_limit_s": 604_800.0}),
        ({"Eligible": "2026-03-01T06:00:00"}, {"submitted": MIDNIGHT + 6 * 3600}),
        ({"Eligible": "Unknown"}, {"submitted": MIDNIGHT}),
        ({"Submit": "1772323200", "Eligible": "1772323200"}, {"submitted": MIDNIGHT}),
        ({"Submit": "2026-03-01T02:00:00+0200", "Eligible": ""}, {"submitted": MIDNIGHT}),
        ({"State": "CANCELLED by 1000"}, {"run_s": 3600.0}),
        ({"State": "TIMEOUT"}, {"run_s": 3600.0}),
        ({"Partition": "gpu,burst"}, {"partition": "gpu"}),
    ],
    ids=[
        "asked-for",
        "two-types",
        "days",
        "minutes",
        "no-limit",
        "limit",
        "eligible-later",
        "never-eligible",
        "seconds-since-1970",
        "zone",
        "cancelled",
        "timeout",
        "partitions",
    ],
)
def test_sacct_rows(values: dict[str, str], expected: dict[str, object], tmp_path: Path) -> None:
    job = one(read_text(SACCT + sacct_row(**values), tmp_path))
    assert {name: getattr(job, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("columns", "row", "expected"),
    [
        ("JobID|Submit|State|Start|End", "7|{0}|FAILED|{0}|2026-03-01T00:10:00", {"run_s": 600.0}),
        ("jobid|state|submit|elapsedraw|", "7|FAILED|{0}|90|", {"run_s": 90.0}),
        ("JobID%20|Submit|State|ElapsedRaw|NNodes|NCPUS|ReqMem", "7|{0}|FAILED|90|2|8|4Gn", {"memory_mib": 8192}),
        ("JobID|Submit|State|ElapsedRaw|NNodes|NCPUS|ReqMem", "7|{0}|FAILED|90|2|8|500M", {"memory_mib": 500}),
        ("JobID|Submit|State|ElapsedRaw|TimelimitRaw", "7|{0}|FAILED|90|60", {"time_limit_s": 3600.0}),
    ],
    ids=["start-and-end", "seconds", "memory-of-nodes", "memory", "limit"],
)  # fmt: skip
def test_sacct_columns(columns: str, row: str, expected: dict[str, object], tmp_path: Path) -> None:
    trace = read_text(f"{columns}\n{row.format('2026-03-01T00:00:00')}\n", tmp_path)
    job = one(trace)
    assert {name: getattr(job, name) for name in expected} == expected
    assert any("without GPUs" in note for note in trace.notes)


def test_sacct_leaves_out_what_did_not_run_and_joins_what_is_one_job(tmp_path: Path) -> None:
    rows = [
        sacct_row("1_[4-9%2]", State="PENDING", Elapsed="00:00:00"),
        sacct_row("2", State="CANCELLED by 0", Elapsed="00:00:00"),
        sacct_row("1_3"), sacct_row("1_3.batch"), sacct_row("1_3.0"),
        sacct_row("3", State="NODE_FAIL", Elapsed="05:00"),
        sacct_row("3", Submit="2026-03-01T01:00:00", Eligible="2026-03-01T01:02:00"),
        sacct_row("4", State="RESIZING", AllocTRES="cpu=4,node=1"), sacct_row("4", AllocTRES="cpu=8,node=2"),
        sacct_row("5+0", AllocTRES="cpu=8,gres/gpu:a100=2,node=1"), sacct_row("5+1", AllocTRES="cpu=4,node=3"),
        sacct_row("6", State="RUNNING"),
    ]  # fmt: skip
    trace = read_text(SACCT + "".join(rows), tmp_path)
    jobs = {job.id: job for job in trace.jobs}
    assert sorted(jobs) == ["1_3", "3", "4", "5", "6"]
    assert (jobs["3"].submitted, jobs["3"].run_s) == (MIDNIGHT + 3720, 3600.0)
    assert (jobs["4"].submitted, jobs["4"].run_s, jobs["4"].cpus) == (MIDNIGHT, 3600.0, 8)
    assert (jobs["5"].nodes, jobs["5"].cpus, jobs["5"].gpus, jobs["5"].gpu_type) == (4, 12, 2, "a100")
    assert [note.partition(" ")[0] for note in trace.notes] == ["2", "2", "1", "1", "1", "1", "2"]


@pytest.mark.parametrize("began", ["00:00:10", "00:04:10"], ids=["with-the-job", "with-the-new-size"])
def test_a_job_that_shrank_ran_from_its_first_start_to_its_end(began: str, tmp_path: Path) -> None:
    rows = (
        "3|2026-03-01T00:00:00|2026-03-01T00:00:10|2026-03-01T00:04:10|RESIZING|cpu=2,gres/gpu=2,node=2",
        f"3|2026-03-01T00:04:10|2026-03-01T{began}|2026-03-01T00:20:10|COMPLETED|cpu=1,gres/gpu=1,node=1",
    )
    job = one(read_text("JobID|Submit|Start|End|State|AllocTRES\n" + "\n".join(rows), tmp_path))
    assert (job.submitted, job.run_s, job.gpus, job.nodes) == (MIDNIGHT, 1200.0, 2, 2)


def test_a_job_is_not_eligible_after_its_start(tmp_path: Path) -> None:
    row = "2|2026-03-01T00:00:00|2026-03-01T00:07:00|2026-03-01T00:05:00|REQUEUED|60"
    assert one(read_text(f"JobID|Submit|Eligible|Start|State|ElapsedRaw\n{row}", tmp_path)).submitted == MIDNIGHT + 300


@pytest.mark.parametrize("kind", [AUTO, "philly"])
def test_compressed_files_and_pipes(kind: str, tmp_path: Path) -> None:
    packed = gzip.compress(f"\ufeff{PHILLY}2026-03-01T00:00:00Z,5,2,10,x\n".encode())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[packed])
    writer.start()
    assert one(read_trace(pipe, kind)).submitted == MIDNIGHT
    writer.join()
    (tmp_path / "cut.csv.gz").write_bytes(packed[:-9])
    with pytest.raises(TraceError, match=r"cut\.csv\.gz is damaged: .* was it copied whole"):
        read_trace(tmp_path / "cut.csv.gz", kind)


def test_few_lines_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    trace = read_text(SACCT + sacct_row() + "8|2026-03-01T0", tmp_path)
    assert one(trace).id == "7"
    told = f"1 lines cannot be read and are left out, the first: {tmp_path}/trace:3: expected 13 values, "
    assert trace.notes[0].startswith(told)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"trace:1: no trace of a format that is known: expected the output of sacct"),
        ("hello\nworld\n", r"trace:1: no trace of a format that is known.*found 'hello'"),
        (PHILLY, r"trace: no job in it that ran$"),
        (SACCT + sacct_row(Elapsed="00:00:00"), r"no job in it that ran: 1 jobs that never ran"),
        ("JobID|Submit|State\n1|x|y\n", r"trace:1: expected a column elapsedraw or elapsed or start"),
        (SACCT + sacct_row() + "x\n" * 6, r"trace:3: expected 13 values.*\(6 of 8 lines cannot be read\)"),
        (SACCT + sacct_row(AllocTRES="cpu=many"), r"trace:2: expected TRES like cpu=8,gres/gpu=2, found 'cpu=many'"),
        (SACCT + sacct_row(Submit="yesterday"), r"trace:2: expected a time like .* as Submit, found 'yesterday'"),
        (SACCT + sacct_row("x7"), r"trace:2: expected a job's number as JobID, found 'x7'"),
        (PHILLY + "2026-03-01 00:00:00,-5,1,5,x\n", r"trace:2: expected a duration in seconds, found '-5'"),
        (PHILLY + "2026-03-01 00:00:00,nan,1,5,x\n", r"trace:2: expected a duration in seconds, found 'nan'"),
        (PHILLY + "2026-03-01 00:00:00,long,1,5,x\n", r"trace:2: expected a time, seconds and a number of GPUs like"),
        (SACCT + sacct_row(Elapsed="long"), r"trace:2: expected a length of time like 1-02:03:04, found 'long'"),
        (SWF_HEAD + swf_row((4, "long")), r"trace:5: expected 18 numbers, found '1 60"),
        (SWF_HEAD + swf_row((2, "-1")), r"trace:5: expected the second of submission"),
    ],
    ids=["empty", "unknown", "no-job", "none-ran", "column", "many", "tres", "time", "id", "duration", "nan", "seconds",
        "length", "numbers", "submitted"],
)  # fmt: skip
def test_messages_name_file_line_and_what_was_expected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message):
        read_text(text, tmp_path)


def test_a_format_that_is_named_is_taken(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace:1: the first line must name the columns; missing: timestamp"):
        read_text(SACCT + sacct_row(), tmp_path, "philly")
    with pytest.raises(TraceError, match=r"no format 'slurm' of traces; there are auto, swf, sacct, philly"):
        read_text(SACCT, tmp_path, "slurm")
    with pytest.raises(TraceError, match=r"nowhere cannot be read: No such file"):
        read_trace(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_seconds(tmp_path: Path) -> None:
    rows = (sacct_row(str(n), Submit=f"2026-03-{n % 28 + 1:02}T00:00:{n % 60:02}") for n in range(100_000))
    text = SACCT + "".join(rows)
    begun = time.process_time()
    assert len(read_text(text, tmp_path).jobs) == 100_000
    assert time.process_time() - begun < processor_s(5.0)  # 1.3 s on an idle machine
