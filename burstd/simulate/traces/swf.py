"""Traces in the Standard Workload Format, version 2.2, as the Parallel Workloads Archive has them.

A line is a job, with 18 numbers: 1 job, 2 submitted (seconds since the log's start), 3 wait, 4 run time (s),
5 processors that it had, 6 CPU time, 7 memory used, 8 processors asked for, 9 time asked for (s), 10 memory asked for
(KiB for each processor), 11 status, 12 user, 13 group, 14 program, 15 queue, 16 partition, 17 job that it follows,
18 think time. -1 stands for unknown. Lines that begin with ``;`` are comments; ``; Name: value`` in the head describes
the machine.

A job is replayed with the processors it had, since its run time belongs to them; where these are unknown, with those it
asked for. Failed jobs (status 0) and cancelled ones (5) count as long as they ran: they took their place. Lines with
status 2, 3 and 4 tell pieces of a job that has a line for the whole as well, and are left out.
"""

from __future__ import annotations

import re

from burstd.simulate.traces.trace_job import MAX_VALUE, Trace, TraceJob, TraceLines, UnreadableLine

FORMAT = "swf"
_FIELDS = 18
_HEADER = re.compile(r"^;\s*(\w+)\s*:\s*(.*?)\s*$")
_NAMED = re.compile(r"^(\d+)\s*[:,]?\s*(\S+)")
_PIECES = {2.0, 3.0, 4.0}
_NEVER_RAN = "{} jobs without a run time (cancelled before they began) left out"
_LEFT_OUT_PIECES = "{} lines that tell pieces of a job left out: the line of the whole counts"
_FOLLOWERS = "{} jobs that followed another one are submitted when they were, whenever that one ends"


def is_row(line: str) -> bool:
    """Whether the line may be one of a job."""
    values = line.split()
    return len(values) >= _FIELDS and all(re.fullmatch(r"-?[\d.]+", value) for value in values[:_FIELDS])


def read(lines: TraceLines) -> Trace:
    """Raises TraceError, see ``Lines.trace``."""
    head: dict[str, str] = {}
    queues: dict[str, str] = {}
    jobs: dict[str, TraceJob] = {}
    start = 0.0
    for line in lines:
        if line.lstrip().startswith(";"):
            _note(line.lstrip(), head, queues)
            start = _number(head.get("UnixStartTime", ""))
            continue
        try:
            job = _job(line, start, queues, lines)
        except (ValueError, OverflowError) as error:
            lines.reject_line(str(error))
            continue
        if job is not None and job.id in jobs:
            lines.reject_line(f"expected each job once, found job {job.id} again")
        elif job is not None:
            jobs[job.id] = job
    notes = [] if start else ["no UnixStartTime in the head: the first second of the trace is taken as 1970-01-01 UTC"]
    nodes, cpus = (int(_number(head.get(key, ""))) for key in ("MaxNodes", "MaxProcs"))
    return lines.build_trace(FORMAT, jobs.values(), notes, nodes=nodes, cpus=cpus)


def _note(line: str, head: dict[str, str], queues: dict[str, str]) -> None:
    found = _HEADER.match(line)
    if found is None:
        return
    named = _NAMED.match(found[2])
    if found[1] == "Queue" and named is not None:
        queues[named[1]] = named[2]
    head.setdefault(found[1], found[2])


def _number(text: str) -> float:
    """Of a header; 0: there is none (``-1``, or words)."""
    found = re.match(r"[0-9]+", text)
    return min(float(found[0]), MAX_VALUE) if found else 0.0


def _job(line: str, start: float, queues: dict[str, str], lines: TraceLines) -> TraceJob | None:
    values = line.split()
    if len(values) < _FIELDS:
        raise UnreadableLine(f"expected {_FIELDS} numbers, found {len(values)} words")
    try:
        number = [float(value) for value in values[:_FIELDS]]
    except ValueError:
        raise UnreadableLine(f"expected {_FIELDS} numbers, found {line[:60]!r}") from None
    submitted, run_s, had, asked = number[1], number[3], number[4], number[7]
    if submitted < 0:
        raise UnreadableLine(f"expected the second of submission as second number, found {values[1]}")
    if number[10] in _PIECES:
        lines.count_note(_LEFT_OUT_PIECES)
        return None
    if run_s <= 0:
        lines.count_note(_NEVER_RAN)
        return None
    cpus = int(had if had > 0 else max(0.0, asked))
    memory = number[9] if number[9] > 0 else 0.0
    if number[16] > 0:
        lines.count_note(_FOLLOWERS)
    return TraceJob(
        id=values[0], submitted=start + submitted, run_s=run_s, cpus=cpus,
        memory_mib=-int(-memory * max(1, cpus) // 1024), time_limit_s=max(0.0, number[8]),
        user=_name(values[11]), account=_name(values[12]), name=_name(values[13]),
        partition=queues.get(values[14], _name(values[14])),
    )  # fmt: skip


def _name(value: str) -> str:
    return "" if value.startswith("-") else value
