"""Reads the queue through one squeue: every field unshortened, whatever users wrote into names and comments."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands.delimiters import Drawn
from burstd.slurm.commands.parsing import gres_of_job, hosts, instant, mebibytes, number, seconds, times, tres, word
from burstd.slurm.commands.reasons import short_reason
from burstd.slurm.commands.run import Commands
from burstd.slurm.hostlist import task_count, task_limit

log = logging.getLogger(__name__)

FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "PriorityLong",
    "Partition", "NumNodes", "MaxNodes", "NumCPUs", "MinCPUs", "NumTasks", "NTPerNode", "MinMemory",
    "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "tres-alloc", "mem-per-tres", "Sockets",
    "OverSubscribe", "Exclusive", "ExcNodes", "TimeLimit", "SubmitTime", "EligibleTime", "StartTime", "EndTime",
    "ReqNodes", "NodeList", "RestartCnt", "Requeue", "UserName", "Account", "QOS", "Reason", "Feature", "Reservation",
    "Licenses", "Dependency", "Comment", "Name",
)  # fmt: skip

EXCLUDED_IN_FORMAT = (24, 5, 0)
"""From this version on squeue's long format knows excluded nodes; before, only its short format does."""
_EXCLUDED = ("%A", "%x")

_COMMENTS = ("JobArrayID", "ArrayJobID", "Comment")
Row = tuple[str, tuple[str, ...]]
"""The text of a row, then the nodes that its job excludes, where those are told apart."""
_STATES = {state.value: state for state in JobState}
_KEPT = "\x1f" + secrets.token_hex(12)
"""Between the fields of rows that are kept; no other process ever sees it."""
_REASON = 200


def read_jobs(
    commands: Commands,
    translate: Callable[[float], float],
    excluded: Mapping[str, tuple[str, ...]] | None = None,
    known: dict[Row, Job] | None = None,
) -> tuple[Job, ...]:
    """Asks Slurm for the whole queue, see ``parse_jobs``. Raises SchedulerUnavailable."""
    drawn = Drawn()
    text = commands("squeue", "--all", "--noheader", "--noconvert", environment=drawn.long_format(FIELDS))
    return parse_jobs(text, drawn, translate, excluded, known)


def read_excluded(commands: Commands) -> dict[str, tuple[str, ...]]:
    """Asks Slurm for excluded nodes by its job numbers, of jobs that exclude any. Raises SchedulerUnavailable."""
    drawn = Drawn()
    text = commands("squeue", "--all", "--noheader", "--states=PENDING", environment=drawn.short_format(_EXCLUDED))
    return parse_excluded(text, drawn)


def read_comments(commands: Commands, job_ids: str) -> dict[str, str]:
    """Asks Slurm for the comments of jobs with commas between, by their ids. Raises SchedulerError."""
    drawn = Drawn()
    text = commands("squeue", "--all", "--noheader", f"--jobs={job_ids}", environment=drawn.long_format(_COMMENTS))
    return parse_comments(text, drawn)


def parse_excluded(text: str, drawn: Drawn) -> dict[str, tuple[str, ...]]:
    """Excluded nodes by Slurm's job number, for jobs that exclude any."""
    found = {}
    for row in drawn.rows(text):
        job, nodes = drawn.cells(row, _EXCLUDED).values()
        if word(nodes):
            found[job] = hosts(nodes)
    return found


def parse_jobs(
    text: str,
    drawn: Drawn,
    translate: Callable[[float], float],
    excluded: Mapping[str, tuple[str, ...]] | None = None,
    known: dict[Row, Job] | None = None,
) -> tuple[Job, ...]:
    """The queue. ``excluded``: what ``parse_excluded`` gave, where it is needed.

    ``known``: the jobs of the last call by their rows. A row that is there again need not be read again, which is most
    of a long queue; it is left with the rows of this call. A job of which a value cannot be read is UNKNOWN, with what
    is wrong as its reason. Raises SchedulerUnavailable where the output is cut off.
    """
    before, excluded = known or {}, excluded or {}
    now: dict[Row, Job] = {}
    found = []
    for shown in drawn.rows(text):
        # The words of this call are not those of the next.
        plain = shown.replace(drawn.field, _KEPT)
        row = (plain, excluded.get(plain.partition(_KEPT)[0], ()))
        job = now[row] = before.get(row) or _job(drawn.cells(shown, FIELDS), translate, row[1])
        found.append(job)
    if known is not None:
        known.clear()
        known.update(now)
    return tuple(found)


def parse_comments(text: str, drawn: Drawn) -> dict[str, str]:
    """Comments by the jobs' ids."""
    rows = (drawn.cells(row, _COMMENTS) for row in drawn.rows(text))
    return {_id(f["JobArrayID"], f["ArrayJobID"]): word(f["Comment"]) for f in rows}


def _id(shown: str, array_job: str) -> str:
    """Of the pending rest of an array, ``3_[5-7]``, the number of the array."""
    return array_job if "[" in shown else shown


def _job(f: Mapping[str, str], translate: Callable[[float], float], excluded: tuple[str, ...]) -> Job:
    try:
        return _read(f, translate, excluded)
    except (ValueError, ArithmeticError) as error:
        return unreadable(_id(f["JobArrayID"], f["ArrayJobID"]), f["UserName"], error)


def unreadable(job_id: str, user: str, error: Exception) -> Job:
    """Stands for a job of which a value cannot be read: nothing is booted for it."""
    why = str(error)[:_REASON]
    log.warning("job %s is passed over: what it asks for cannot be read: %s", job_id, why)
    return Job(job_id, user, JobState.UNKNOWN, (), 0.0, reason=f"burstd cannot read what it asks for: {why}")


def _read(f: Mapping[str, str], translate: Callable[[float], float], excluded: tuple[str, ...]) -> Job:
    shown = f["JobArrayID"]
    array_job, tasks = "", ""
    if "_" in shown:
        array_job = f["ArrayJobID"]
        # "3_[5]" is the pending rest of an array with one task left, "3_5" is that task on its own.
        tasks = word(f["ArrayTaskID"]) if "[" in shown else ""
    asked = tres(f["tres-alloc"])
    nodes, nodes_max = _nodes(f, asked)
    cpus = max(1, number(f["NumCPUs"]), number(asked.get("cpu", "")))
    per_node, per_job = _gres(f)
    memory, per_cpu = _memory(
        f, max(1, number(asked.get("node", ""))), cpus, mebibytes(asked.get("mem", "")), (per_node, per_job)
    )
    return Job(
        id=_id(shown, array_job),
        user=f["UserName"],
        state=_STATES.get(f["State"], JobState.UNKNOWN),
        partitions=tuple(filter(None, f["Partition"].split(","))),
        submitted=instant(f["SubmitTime"], translate),
        name=f["Name"],
        account=word(f["Account"]),
        qos=word(f["QOS"]),
        reason=short_reason(word(f["Reason"])),
        priority=number(f["PriorityLong"]),
        array_job_id=array_job,
        array_tasks=tasks.partition("%")[0],
        tasks=task_count(tasks) if tasks else 1,
        tasks_limit=task_limit(tasks),
        het_job_id=word(f["HetJobID"]),
        het_offset=number(f["HetJobOffset"]),
        nodes=nodes,
        nodes_max=nodes_max,
        cpus=cpus,
        cpus_per_node=number(f["MinCPUs"]),
        memory_mib=memory,
        memory_per_cpu=per_cpu,
        memory_whole=not memory and mebibytes(asked.get("mem", "")) > 0,
        gres_per_node=per_node,
        gres_per_job=per_job,
        constraint=word(f["Feature"]),
        exclusive=_exclusive(f),
        time_limit_s=seconds(f["TimeLimit"]),
        start=instant(f["StartTime"], translate),
        end=instant(f["EndTime"], translate),
        eligible=instant(f["EligibleTime"], translate),
        node_list=hosts(f["NodeList"]) or hosts(f["ReqNodes"]),
        excluded_nodes=hosts(f["ExcNodes"]) or excluded,
        reservation=word(f["Reservation"]),
        licenses=word(f["Licenses"]),
        dependency=word(f["Dependency"]),
        comment=word(f["Comment"]),
        restarts=number(f["RestartCnt"]),
        requeue=f["Requeue"] != "0",
    )


def _nodes(f: Mapping[str, str], asked: Mapping[str, str]) -> tuple[int, int]:
    """Fewest and most nodes; most is 0 where there is no limit.

    NumNodes is Slurm's guess, made for the nodes that it knows: what was asked for stands in the TRES. MaxNodes shows
    the guess where no limit was given, so a limit of the same number cannot be told from none: it counts as one where
    the guess is no more than what was asked for, since one node then is enough.
    """
    guess, most, per_node = number(f["NumNodes"]), number(f["MaxNodes"]), number(f["NTPerNode"])
    fewest = max(1, number(asked.get("node", "")), -(-number(f["NumTasks"]) // per_node) if per_node else 0)
    return fewest, 0 if most == guess and guess > fewest else max(most, fewest)


def _exclusive(f: Mapping[str, str]) -> bool:
    """Whole nodes. From 26.05 on ``Exclusive`` tells; before, ``OverSubscribe=NO`` meant just that."""
    return f["Exclusive"] == "NODE" if f["Exclusive"] else f["OverSubscribe"] == "NO"


def _gres(f: Mapping[str, str]) -> tuple[tuple[Gres, ...], tuple[Gres, ...]]:
    """GRES for each node and for the whole job. Slurm takes --gpus-per-socket only with --sockets-per-node."""
    sockets = max(1, number(f["Sockets"]))
    per_node = gres_of_job(f["tres-per-node"]) + times(gres_of_job(f["tres-per-socket"]), sockets)
    per_job = gres_of_job(f["tres-per-job"])
    # --ntasks-per-gpu and --gpus-per-task both give the number for a job that names it already.
    if not per_node and not per_job:
        per_job = times(gres_of_job(f["tres-per-task"]), max(1, number(f["NumTasks"])))
    return per_node, per_job


def _memory(
    f: Mapping[str, str], nodes: int, cpus: int, total: int, gres: tuple[tuple[Gres, ...], tuple[Gres, ...]]
) -> tuple[int, bool]:
    """Memory in MiB, and whether it is for each CPU: squeue does not say, but the total that Slurm counts does.

    MinMemory is no help with --mem-per-gpu: 22.05 leaves it at 0, later versions show the memory of one GPU.
    """
    for of_each in gres_of_job(f["mem-per-tres"]):
        per_node, per_job = (sum(g.count for g in some if g.name == of_each.name) for some in gres)
        return of_each.count * (per_node or -(-per_job // nodes)), False
    asked = mebibytes(f["MinMemory"])
    return asked, total != asked * nodes and total >= asked * cpus
