"""A trace as CSV with the columns ``timestamp,duration,num_gpus,gpu_time,cluster``: deep-learning jobs with their GPUs.

``timestamp``: time of submission, UTC where it names no zone; ``duration``: seconds; ``num_gpus``: over all nodes;
``gpu_time``: the product of both, not needed; ``cluster``: whose job it was, taken as the account.
"""

from __future__ import annotations

from collections.abc import Sequence

from burstd.simulate.traces.trace_job import Trace, TraceJob, TraceLines, UnreadableLine, parse_trace_time

FORMAT = "philly"
_NEEDED = ("timestamp", "duration", "num_gpus")
_EXAMPLE = "2017-10-09 07:01:55,66.0,8"
_NEVER_RAN = "{} jobs with a duration of 0 left out"


def is_header(line: str) -> bool:
    """Whether a file that begins with this line is one."""
    return set(_NEEDED) <= {column.strip() for column in line.split(",")}


def read(lines: TraceLines) -> Trace:
    """Raises TraceError, see ``Lines.trace``."""
    rows = iter(lines)
    columns = [column.strip() for column in next(rows, "").split(",")]
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise lines.error(f"the first line must name the columns; missing: {', '.join(missing)}")
    jobs = []
    for row in rows:
        try:
            job = _job(columns, row, lines.line_number - 1)
        except UnreadableLine as error:
            lines.reject_line(str(error))
        except (ValueError, OverflowError):
            lines.reject_line(f"expected a time, seconds and a number of GPUs like {_EXAMPLE}, found {row[:60]!r}")
        else:
            if job.run_s:
                jobs.append(job)
            else:
                lines.count_note(_NEVER_RAN)
    return lines.build_trace(FORMAT, jobs)


def _job(columns: Sequence[str], row: str, number: int) -> TraceJob:
    values = row.split(",")
    if len(values) != len(columns):
        raise UnreadableLine(f"expected {len(columns)} values, as many as columns, found {len(values)}")
    found = dict(zip(columns, values, strict=True))
    run_s, gpus = float(found["duration"]), int(found["num_gpus"])
    if not 0 <= run_s < 1e9:
        raise UnreadableLine(f"expected a duration in seconds, found {found['duration']!r}")
    if gpus < 0:
        raise UnreadableLine(f"expected a number of GPUs, found {found['num_gpus']!r}")
    return TraceJob(
        str(number), parse_trace_time(found["timestamp"]), run_s, gpus=gpus, account=found.get("cluster", "")
    )
