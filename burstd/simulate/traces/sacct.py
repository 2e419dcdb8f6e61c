"""Traces that Slurm's ``sacct -X -P --format=...`` writes: a header line, then a row for each job, with ``|`` between.

Columns may come in any order. Needed: JobID, Submit, State, and Elapsed, ElapsedRaw or both of Start and End. The rest
helps where it is there: Eligible, AllocTRES, ReqTRES, AllocNodes, NNodes, ReqNodes, AllocCPUS, NCPUS, ReqCPUS, ReqMem,
Timelimit, TimelimitRaw, User, Account, Partition, JobName, Constraints. Columns that are not known are passed over.

People choose names, and with a ``|`` or a line end in one they would write rows of others: what ``sacct --delimiter``
was given is taken from the header, where JobID is the first column and the delimiter has no letters; names then may be
in any column but the last.

Times are as Slurm's time formats write them; those without a zone are taken as UTC, which ``TZ=UTC sacct`` makes true.
A job is replayed with what it had (Alloc...), since its run time belongs to that; where it is not told, with what it
asked for. It counts from when it was eligible: until then it waited for its begin time, a dependency or a hold, and not
for a node. Jobs that failed, were cancelled or timed out count as long as they ran: they took their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from burstd.simulate.traces.trace_job import Trace, TraceJob, TraceLines, UnreadableLine, parse_trace_time

FORMAT = "sacct"
_DELIMITER = "|"
_FIRST = re.compile(r"JobID(?:%-?[0-9]++)?([^A-Za-z%]{2,64})[A-Za-z]")
_LONGEST = 1 << 20
_NEEDED = (("jobid",), ("submit",), ("state",), ("elapsedraw", "elapsed", "start"), ("elapsedraw", "elapsed", "end"))
_JOB = re.compile(r"(\d+)(?:_\d+)?(?:\+(\d+))?")
_STEP = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?\.\w+")
_REST_OF_ARRAY = re.compile(r"\d+_\[.*\]")
_LENGTH = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NO_TIME = {"", "Unknown", "None", "N/A"}
_NO_LIMIT = {"", "UNLIMITED", "Partition_Limit", "INVALID"}
_LATER = "{} jobs count from when they were eligible, not from their submission (dependency, begin time, hold)"
_STEPS = "{} rows of steps left out (sacct -X writes none)"
_NEVER_RAN = "{} jobs that never ran (pending, or cancelled before they began) left out"
_RUNNING = "{} jobs that still ran when the trace was written end there"
_AGAIN = "{} earlier runs of jobs that were requeued left out: the last one counts"
_RESIZED = "{} rows of jobs that changed their size joined to one job each, of its largest size"
_HET = "{} components of heterogeneous jobs joined to one job each"
_NO_GPUS = "neither AllocTRES nor ReqTRES among the columns: all jobs count as jobs without GPUs"


class _SacctRow(NamedTuple):
    job: TraceJob
    state: str
    start: float
    """0: not told."""


def is_header(line: str) -> bool:
    """Whether a file that begins with this line is one."""
    return delimiter_of(line) in line and "jobid" in _columns(line)


def read(lines: TraceLines) -> Trace:
    """Raises TraceError, see ``Lines.trace``."""
    rows = iter(lines)
    header = next(rows, "")
    delimiter, columns = delimiter_of(header), _columns(header)
    if delimiter != _DELIMITER:
        rows = _join_line_ends(rows, delimiter, len(columns))
    for names in _NEEDED:
        if not set(names) & set(columns):
            wanted = "sacct -X -P --format=JobID,Submit,Eligible,Start,End,Elapsed,State,... (with its header line)"
            raise lines.error(f"expected a column {' or '.join(names)}, as {wanted} writes them")
    jobs: dict[str, _SacctRow] = {}
    for line in rows:
        try:
            found = _job(dict(zip(columns, _values(line, columns, delimiter), strict=True)), lines)
        except (ValueError, OverflowError) as error:
            lines.reject_line(str(error))
            continue
        if found is not None:
            known = jobs.get(found.job.id)
            jobs[found.job.id] = found if known is None else _joined(known, found, lines)
    notes = [] if {"alloctres", "reqtres"} & set(columns) else [_NO_GPUS]
    return lines.build_trace(FORMAT, _het_joined((row.job for row in jobs.values()), lines), notes)


def delimiter_of(header: str) -> str:
    """``|``, or what ``sacct --delimiter`` was given, where JobID is the first column and it has no letters."""
    found = _FIRST.match(header)
    return found[1] if found is not None else _DELIMITER


def _columns(header: str) -> list[str]:
    return [re.sub(r"%-?[0-9]+$", "", column.strip()).lower() for column in header.split(delimiter_of(header))]


def _join_line_ends(lines: Iterable[str], delimiter: str, columns: int) -> Iterator[str]:
    """Rows of which the values hold line ends, which only a delimiter that nobody could foresee makes plain."""
    row, size = "", 0
    for line in lines:
        row, size = (f"{row}\n{line}" if row else line), size + line.count(delimiter)
        if size >= columns - 1 or len(row) > _LONGEST:
            yield row
            row, size = "", 0
    if row:
        yield row


def _values(row: str, columns: Sequence[str], delimiter: str) -> list[str]:
    """A job's name may have a ``|`` in it: the row is whole where that column is the last."""
    values = row.split(delimiter, len(columns) - 1)
    if len(values) != len(columns):
        raise UnreadableLine(f"expected {len(columns)} values, as many as columns, found {len(values)}")
    return values


def _job(row: Mapping[str, str], lines: TraceLines) -> _SacctRow | None:
    """None: it is no job that ran."""
    name = row["jobid"]
    if _STEP.fullmatch(name):
        lines.count_note(_STEPS)
        return None
    state = row["state"].partition(" ")[0]
    if state == "PENDING" or _REST_OF_ARRAY.fullmatch(name):
        lines.count_note(_NEVER_RAN)
        return None
    if _JOB.fullmatch(name) is None:
        raise UnreadableLine(f"expected a job's number as JobID, found {name!r}")
    run_s = _run_s(row)
    if run_s <= 0:
        lines.count_note(_NEVER_RAN)
        return None
    submitted, eligible, start = (_moment(row, column) for column in ("submit", "eligible", "start"))
    if not submitted:
        raise UnreadableLine(f"expected the time of submission as Submit, found {row['submit']!r}")
    if eligible > submitted:
        lines.count_note(_LATER)
        # The row of a run that was requeued tells when the job is eligible again.
        submitted = min(eligible, start or eligible)
    if state == "RUNNING":
        lines.count_note(_RUNNING)
    had = _tres(row.get("alloctres", "")) or _tres(row.get("reqtres", ""))
    nodes = _first(row, "allocnodes", "nnodes", "reqnodes") or int(had.get("node", 0))
    cpus = _first(row, "alloccpus", "ncpus", "reqcpus") or int(had.get("cpu", 0))
    types = [key.removeprefix("gres/gpu:") for key in had if key.startswith("gres/gpu:")]
    gpus = had.get("gres/gpu", 0) or sum(had[f"gres/gpu:{kind}"] for kind in types)
    job = TraceJob(
        id=name, submitted=submitted, run_s=run_s, nodes=nodes, cpus=cpus, gpus=int(gpus),
        memory_mib=int(had.get("mem", 0)) or _memory(row.get("reqmem", ""), nodes, cpus),
        time_limit_s=_limit_s(row), user=row.get("user", ""), account=row.get("account", ""),
        partition=row.get("partition", "").partition(",")[0], name=row.get("jobname", ""),
        gpu_type=types[0] if len(types) == 1 else "", constraint=row.get("constraints", ""),
    )  # fmt: skip
    return _SacctRow(job, state, start)


def _run_s(row: Mapping[str, str]) -> float:
    if "elapsedraw" in row:
        return _seconds(row["elapsedraw"]) if row["elapsedraw"] else 0.0
    if "elapsed" in row:
        return _length_s(row["elapsed"]) if row["elapsed"] else 0.0
    start, end = _moment(row, "start"), _moment(row, "end")
    return end - start if start and end else 0.0


def _limit_s(row: Mapping[str, str]) -> float:
    if row.get("timelimitraw", "").isdecimal():
        return float(row["timelimitraw"]) * 60
    text = row.get("timelimit", "")
    return 0.0 if text in _NO_LIMIT else _length_s(text)


def _seconds(text: str) -> float:
    if not text.isdecimal():
        raise UnreadableLine(f"expected seconds as ElapsedRaw, found {text!r}")
    return float(text)


@cache
def _length_s(text: str) -> float:
    """``MM:SS``, ``HH:MM:SS``, ``DD-HH:MM:SS``."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UnreadableLine(f"expected a length of time like 1-02:03:04, found {text!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _moment(row: Mapping[str, str], column: str) -> float:
    """Also seconds since 1970, as ``SLURM_TIME_FORMAT=%s`` has them written; 0: none."""
    text = row.get(column, "")
    if text in _NO_TIME:
        return 0.0
    if text.isdecimal():
        return float(text)
    try:
        return parse_trace_time(text)
    except ValueError:
        raise UnreadableLine(
            f"expected a time like 2026-03-01T09:30:00 as {column.capitalize()}, found {text!r}"
        ) from None


def _first(row: Mapping[str, str], *columns: str) -> int:
    return next((int(row[c]) for c in columns if row.get(c, "").isdecimal() and row[c] != "0"), 0)


@cache
def _tres(text: str) -> Mapping[str, float]:
    """``billing=8,cpu=8,gres/gpu:a100=2,mem=64G,node=1``; memory in MiB."""
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals:
            found[name] = float(_memory(value, 1, 1)) if name == "mem" else _count(value, part)
    return found


def _count(value: str, part: str) -> float:
    """Energy, file systems and the like may have suffixes (``fs/disk=3G``); these are not needed."""
    try:
        return float(value)
    except ValueError:
        if not part.startswith(("cpu=", "node=", "gres/gpu")):
            return 0.0
        raise UnreadableLine(f"expected TRES like cpu=8,gres/gpu=2, found {part!r}") from None


def _memory(text: str, nodes: int, cpus: int) -> int:
    """MiB over all nodes of ``4000M``, or ``4Gn`` and ``2Gc`` (each node, each CPU), as Slurm before 21.08 wrote it."""
    if not text or text == "?":
        return 0
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise UnreadableLine(f"expected memory like 4000M, found {text!r}")
    times = {"": 1, "n": max(1, nodes), "c": max(1, cpus)}[found[3]]
    return int(float(found[1]) * _MIB[found[2]] * times)


def _joined(known: _SacctRow, again: _SacctRow, lines: TraceLines) -> _SacctRow:
    """Two rows of one id: a job that was requeued (``sacct -D``), or one that changed its size while it ran.

    Of the latter the second row is submitted when the size changed, and begins, in Slurm 22.05, when the job began.
    """
    if "RESIZING" not in {known.state, again.state}:
        lines.count_note(_AGAIN)
        return known if known.job.submitted > again.job.submitted else again
    lines.count_note(_RESIZED)
    rows = (known, again)
    larger = max((row.job for row in rows), key=lambda job: (job.gpus, job.cpus))
    run_s, start = max(row.job.run_s for row in rows), min(row.start for row in rows)
    if start:
        run_s = max(row.start + row.job.run_s for row in rows) - start
    whole = replace(larger, submitted=min(row.job.submitted for row in rows), run_s=run_s)
    return _SacctRow(whole, again.state if known.state == "RESIZING" else known.state, start)


def _het_joined(jobs: Iterable[TraceJob], lines: TraceLines) -> Iterator[TraceJob]:
    """The components of a heterogeneous job (``123+0``, ``123+1``) start together: one job of the sum of them."""
    leaders: dict[str, TraceJob] = {}
    for job in jobs:
        leader, plus, _ = job.id.partition("+")
        if not plus:
            yield job
            continue
        lines.count_note(_HET)
        one = leaders.get(leader)
        leaders[leader] = replace(job, id=leader) if one is None else _sum(one, job)
    yield from leaders.values()


def _sum(one: TraceJob, other: TraceJob) -> TraceJob:
    return replace(
        one, run_s=max(one.run_s, other.run_s), nodes=one.nodes + other.nodes, cpus=one.cpus + other.cpus,
        gpus=one.gpus + other.gpus, memory_mib=one.memory_mib + other.memory_mib,
        gpu_type=one.gpu_type or other.gpu_type,
    )  # fmt: skip
