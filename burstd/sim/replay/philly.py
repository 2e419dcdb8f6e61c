"""A trace as CSV with the columns ``timestamp,duration,num_gpus,gpu_time,cluster``: deep-learning jobs with their GPUs.

``timestamp``: time of submission, UTC where it names no zone; ``duration``: seconds; ``num_gpus``: over all nodes;
``gpu_time``: the product of both, not needed; ``cluster``: whose job it was, taken as the account.
"""

from __future__ import annotations

from burstd.sim.replay.rows import BadLine, Lines, Trace, TraceJob, moment

FORMAT = "philly"
_NEEDED = ("timestamp", "duration", "num_gpus")
_NEVER_RAN = "{} jobs with a duration of 0 left out"


def is_header(line: str) -> bool:
    """Whether a file that begins with this line is one."""
    return set(_NEEDED) <= {column.strip() for column in line.split(",")}


def read(lines: Lines) -> Trace:
    """Raises TraceError, see ``Lines.trace``."""
    rows = iter(lines)
    columns = [column.strip() for column in next(rows, "").split(",")]
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise lines.error(f"the first line must name the columns; missing: {', '.join(missing)}")
    submitted, duration, gpus = (columns.index(name) for name in _NEEDED)
    account = columns.index("cluster") if "cluster" in columns else -1
    jobs = []
    for row in rows:
        try:
            values = row.split(",")
            if len(values) != len(columns):
                raise BadLine(f"expected {len(columns)} values, as many as columns, found {len(values)}")
            run_s = float(values[duration])
            if not 0 <= run_s < 1e9:
                raise BadLine(f"expected a duration in seconds, found {values[duration]!r}")
            if not run_s:
                lines.count(_NEVER_RAN)
                continue
            job = TraceJob(
                str(lines.at - 1), moment(values[submitted]), run_s, gpus=_count(values[gpus]),
                account=values[account] if account >= 0 else "",
            )  # fmt: skip
        except ValueError as error:
            lines.bad(str(error))
        else:
            jobs.append(job)
    return lines.trace(FORMAT, jobs)


def _count(text: str) -> int:
    found = int(text)
    if found < 0:
        raise BadLine(f"expected a number of GPUs, found {text!r}")
    return found
