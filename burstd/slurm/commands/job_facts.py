"""What Slurm knows of one job beyond the queue: owner, folders, files, how it ended. One squeue, see drawn.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.delimiters import RandomDelimiters
from burstd.slurm.commands.parsing import format_exit_code, parse_count, parse_duration, text_or_empty
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import HostlistError, expand

JOB_FACTS_FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "exit_code", "RestartCnt",
    "TimeUsed", "UserID", "UserName", "GroupID", "NodeList", "Partition", "Account", "Reason", "WorkDir", "STDOUT",
    "STDERR", "Name",
)  # fmt: skip
_UNKNOWN = "invalid job id"
_NO_TASK = 0xFFFFFFFE
"""What Slurm puts for ``%a`` in the files of a job that is no array's task."""
_WIDEST = 10
"""What Slurm makes of a larger width than this, as in ``%99j``."""
_LONGEST_PATH = 4095
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_SYMBOL = re.compile(r"%(%|([0-9]*)([AabJjNnstux]))")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job, one array task or one component of a het job."""

    job_id: str
    """The number that Slurm's hooks use: of an array's task its own."""
    queue_id: str
    """As in the queue: ``123_7`` for an array's task, ``123+1`` for a component."""
    user: str
    uid: int
    gid: int
    account: str
    partitions: tuple[str, ...]
    state: str
    """Slurm's name: ``RUNNING``, ``TIMEOUT`` ...; during stage-out that of the job's end."""
    exit_code: str
    """``0:0``: exit status and signal."""
    nodes: tuple[str, ...]
    work_dir: str
    std_out: str
    std_err: str
    """Absolute; empty where it has none of its own, or its path is longer than a path can be."""
    restarts: int = 0
    name: str = ""
    run_seconds: float = 0.0
    """How long it ran, or has been running."""


def read_job_facts(commands: SlurmCommands, job_id: str) -> JobFacts | None:
    """Asks Slurm, by either id of ``JobFacts``; None: it does not know it (any more). Raises SchedulerUnavailable."""
    found = read_job_parts(commands, job_id)
    return next((facts for facts in found if job_id in (facts.job_id, facts.queue_id)), None)


def read_job_parts(commands: SlurmCommands, job_id: str) -> list[JobFacts]:
    """All that Slurm knows of a job, or of the array or het job that it is of. Raises SchedulerUnavailable."""
    if re.fullmatch(r"[0-9]{1,10}([_+][0-9]{1,10})?", job_id) is None:
        return []
    delimiters = RandomDelimiters()
    argv = ("squeue", "--all", "--noheader", "--states=all", f"--jobs={job_id}")
    try:
        text = commands(*argv, environment=delimiters.long_format(JOB_FACTS_FIELDS))
    except SchedulerRefused as error:
        if _UNKNOWN in str(error).lower():
            return []
        raise SchedulerUnavailable(str(error)) from None
    return parse_job_facts(text, delimiters)


def parse_job_facts(text: str, delimiters: RandomDelimiters) -> list[JobFacts]:
    """Every job that such a squeue shows. Raises SchedulerUnavailable where one has no owner or its nodes are none."""
    return [_facts(delimiters.split_fields(row, JOB_FACTS_FIELDS)) for row in delimiters.split_rows(text)]


def _facts(f: Mapping[str, str]) -> JobFacts:
    job_id, queue_id = f["JobID"], f["JobID"]
    if f["ArrayTaskID"].isdecimal():
        queue_id = f"{f['ArrayJobID']}_{f['ArrayTaskID']}"
    elif f["HetJobID"].isdecimal() and f["HetJobID"] != "0":
        queue_id = f"{f['HetJobID']}+{f['HetJobOffset']}"
    try:
        uid, gid, nodes = int(f["UserID"]), int(f["GroupID"]), tuple(expand(text_or_empty(f["NodeList"])))
    except (ValueError, HostlistError):
        raise SchedulerUnavailable(f"squeue does not tell owner and nodes of job {job_id} as expected") from None
    status = format_exit_code(f["exit_code"])
    return JobFacts(
        job_id=job_id,
        queue_id=queue_id,
        user=f["UserName"],
        uid=uid,
        gid=gid,
        account=text_or_empty(f["Account"]),
        partitions=tuple(p for p in f["Partition"].split(",") if p),
        state=_final_state(f["State"], f["Reason"], status),
        exit_code=status,
        nodes=nodes,
        work_dir=f["WorkDir"],
        std_out=_output_path(f["STDOUT"], f, nodes),
        std_err=_output_path(f["STDERR"], f, nodes),
        restarts=parse_count(f["RestartCnt"]),
        name=f["Name"],
        run_seconds=parse_duration(f["TimeUsed"]),
    )


def _final_state(state: str, reason: str, exit_code: str) -> str:
    """The job's state. While its output is staged out, Slurm shows only that; exit and reason tell how it ended."""
    if state != "STAGE_OUT":
        return state
    status, _, signal = exit_code.partition(":")
    if reason in _STATE_BY_REASON:
        return _STATE_BY_REASON[reason]
    return "FAILED" if status != "0" else "COMPLETED" if signal in ("", "0") else "CANCELLED"


_STATE_BY_REASON = {
    "TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY", "JobLaunchFailure": "FAILED",
}  # fmt: skip


def _output_path(pattern: str, f: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    """A file of the batch script, as slurmstepd names it (fname_create2): squeue shows its pattern."""
    if pattern in ("", "(null)"):
        return ""
    array, task, job = parse_count(f["ArrayJobID"]), _NO_TASK, parse_count(f["JobID"])
    if f["ArrayTaskID"].isdecimal():
        task = parse_count(f["ArrayTaskID"])
    texts = {"N": nodes[0] if nodes else "", "s": "batch", "u": f["UserName"], "x": f["Name"]}
    numbers = {"A": array or job, "J": job, "a": task, "b": task % 10, "j": job, "n": 0, "t": 0}

    def symbol(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        width, letter = min(int(found[2].lstrip("0")[:2] or 0), _WIDEST), found[3]
        return str(numbers[letter]).zfill(width) if letter in numbers else texts[letter]

    # A backslash anywhere has Slurm take the rest as it is.
    path = _ESCAPED.sub(r"\1", pattern) if "\\" in pattern else _SYMBOL.sub(symbol, pattern)
    if not path.startswith("/"):
        path = f"{f['WorkDir'].rstrip('/')}/{path}"
    return path if len(path) <= _LONGEST_PATH else ""
