"""What Slurm knows of one job beyond the queue: owner, folders, files, how it ended. ``scontrol show job``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from burstd.model.errors import SchedulerRefused
from burstd.slurm.commands import Commands
from burstd.slurm.hostlist import expand

# Without -o each of these stands on a line of its own, whatever blanks its path has.
_LINE = re.compile(r"^   (WorkDir|StdErr|StdOut)=(.*)$", re.MULTILINE)
_UID = re.compile(r"^(.*)\((\d+)\)$")


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
    restarts: int = 0
    name: str = ""
    seconds: float = 0.0
    """How long it ran, or has been running."""


def job_facts(commands: Commands, job_id: str) -> JobFacts | None:
    """Asks Slurm; None: it does not know the job (any more). Raises SchedulerUnavailable."""
    try:
        text = commands("scontrol", "show", "job", job_id)
    except SchedulerRefused:
        return None
    for block in text.split("\n\n"):
        facts = parse(block)
        if facts is not None and facts.job_id == job_id:
            return facts
    return None


def parse(block: str) -> JobFacts | None:
    """One job of ``scontrol show job``'s text."""
    lines = dict(_LINE.findall(block))
    words = dict(word.split("=", 1) for word in _LINE.sub("", block).split() if "=" in word)
    user, group = _UID.match(words.get("UserId", "")), _UID.match(words.get("GroupId", ""))
    if "JobId" not in words or user is None or group is None:
        return None
    queue_id = words["JobId"]
    if words.get("ArrayTaskId", "").isdigit():
        queue_id = f"{words['ArrayJobId']}_{words['ArrayTaskId']}"
    elif "HetJobOffset" in words and "HetJobId" in words:
        queue_id = f"{words['HetJobId']}+{words['HetJobOffset']}"
    nodes = words.get("NodeList", "")
    return JobFacts(
        job_id=words["JobId"],
        queue_id=queue_id,
        user=user[1],
        uid=int(user[2]),
        gid=int(group[2]),
        account=words.get("Account", "").replace("(null)", ""),
        partitions=tuple(p for p in words.get("Partition", "").split(",") if p),
        state=_end(words),
        exit_code=words.get("ExitCode", ""),
        nodes=tuple(expand(nodes)) if nodes not in ("", "(null)", "None", "None assigned") else (),
        work_dir=lines.get("WorkDir", ""),
        std_out=lines.get("StdOut", ""),
        std_err=lines.get("StdErr", ""),
        restarts=int(words.get("Restarts", "0") or 0),
        name=words.get("JobName", ""),
        seconds=_seconds(words.get("RunTime", "")),
    )


def _seconds(text: str) -> float:
    """``1-02:03:04`` in seconds; 0 for what is no length of time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return 0.0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _end(words: Mapping[str, str]) -> str:
    """The job's state. While its output is staged out, Slurm shows only that; exit and reason tell how it ended."""
    state, reason = words.get("JobState", ""), words.get("Reason", "")
    if state != "STAGE_OUT":
        return state
    status, _, signal = words.get("ExitCode", "0:0").partition(":")
    if reason in _ENDS:
        return _ENDS[reason]
    return "FAILED" if status != "0" else "COMPLETED" if signal in ("", "0") else "CANCELLED"


_ENDS = {"TimeLimit": "TIMEOUT", "NodeDown": "NODE_FAIL", "OutOfMemory": "OUT_OF_MEMORY"}
