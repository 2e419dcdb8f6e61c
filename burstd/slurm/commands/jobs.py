"""Reads the queue through one squeue: every field unshortened, whatever users wrote into names and comments."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b

from burstd.domain.slurm.job import ENDED_STATES, PENDING_STATES, Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands.delimiters import RandomDelimiters
from burstd.slurm.commands.parsing import (
    expand_hosts,
    format_exit_code,
    multiply_gres,
    parse_count,
    parse_duration,
    parse_job_gres,
    parse_mebibytes,
    parse_timestamp,
    parse_tres,
    text_or_empty,
)
from burstd.slurm.commands.reasons import short_reason
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import task_count, task_limit

log = logging.getLogger(__name__)

QUEUE_FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "PriorityLong",
    "Partition", "NumNodes", "MaxNodes", "NumCPUs", "MinCPUs", "NumTasks", "NTPerNode", "MinMemory",
    "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "tres-alloc", "mem-per-tres", "Sockets",
    "OverSubscribe", "Exclusive", "ExcNodes", "TimeLimit", "SubmitTime", "EligibleTime", "StartTime", "EndTime",
    "exit_code", "PreemptTime", "ReqNodes", "NodeList", "RestartCnt", "Requeue", "BatchFlag", "UserName", "Account",
    "QOS", "Reason", "Feature", "Reservation", "Licenses", "Dependency", "WorkDir", "STDOUT", "Comment", "Name",
)  # fmt: skip

EXCLUDED_NODES_SINCE = (24, 5, 0)
"""From this version on squeue's long format knows excluded nodes; before, only its short format does."""
_EXCLUDED = ("%A", "%x")

_COMMENTS = ("JobArrayID", "ArrayJobID", "Comment")
QueueRow = tuple[bytes, tuple[str, ...]]
"""The digest of a row, then the nodes that its job excludes, where those are told apart."""
_STATES = {state.value: state for state in JobState}
_DIGEST_DELIMITER = "\x1f" + secrets.token_hex(8)
"""Between the fields of rows in their digests; no other process ever sees it."""
_REASON = 200


def read_jobs(
    commands: SlurmCommands,
    translate: Callable[[float], float],
    excluded: Mapping[str, tuple[str, ...]] | None = None,
    cached: dict[QueueRow, Job] | None = None,
) -> tuple[Job, ...]:
    """Asks Slurm for all jobs that it knows, also those that have ended, see ``parse_jobs``.

    Raises SchedulerUnavailable.
    """
    delimiters = RandomDelimiters()
    text = commands(
        "squeue", "--all", "--noheader", "--noconvert", "--states=all", environment=delimiters.long_format(QUEUE_FIELDS)
    )
    return parse_jobs(text, delimiters, translate, excluded, cached)


def read_job(commands: SlurmCommands, job_id: str) -> tuple[Job, ...]:
    """Asks Slurm for one job that has not ended, of a het job all components; times are by the system's clock.

    Before EXCLUDED_NODES_SINCE without the nodes that it excludes. Raises SchedulerError.
    """
    delimiters = RandomDelimiters()
    words = ("squeue", "--all", "--noheader", "--noconvert", f"--jobs={job_id}")
    return parse_jobs(commands(*words, environment=delimiters.long_format(QUEUE_FIELDS)), delimiters, float)


def read_excluded_nodes(commands: SlurmCommands) -> dict[str, tuple[str, ...]]:
    """Asks Slurm for excluded nodes by its job numbers, of jobs that exclude any. Raises SchedulerUnavailable."""
    delimiters = RandomDelimiters()
    text = commands("squeue", "--all", "--noheader", "--states=PENDING", environment=delimiters.short_format(_EXCLUDED))
    return parse_excluded_nodes(text, delimiters)


def read_comments(commands: SlurmCommands, job_ids: str) -> dict[str, str]:
    """Asks Slurm for the comments of jobs with commas between, by their ids. Raises SchedulerError."""
    delimiters = RandomDelimiters()
    text = commands("squeue", "--all", "--noheader", f"--jobs={job_ids}", environment=delimiters.long_format(_COMMENTS))
    return parse_comments(text, delimiters)


def read_state(commands: SlurmCommands, job_id: str) -> JobState:
    """Asks Slurm for the state of one job, also of one that has ended. Raises SchedulerError."""
    delimiters, fields = RandomDelimiters(), ("State",)
    text = commands(
        "squeue", "--all", "--noheader", "--states=all", f"--jobs={job_id}", environment=delimiters.long_format(fields)
    )
    shown = [delimiters.split_fields(row, fields)["State"] for row in delimiters.split_rows(text)]
    return _STATES.get(shown[0], JobState.UNKNOWN) if shown else JobState.UNKNOWN


def parse_excluded_nodes(text: str, delimiters: RandomDelimiters) -> dict[str, tuple[str, ...]]:
    """Excluded nodes by Slurm's job number, for jobs that exclude any."""
    found = {}
    for row in delimiters.split_rows(text):
        job, nodes = delimiters.split_fields(row, _EXCLUDED).values()
        if text_or_empty(nodes):
            found[job] = expand_hosts(nodes)
    return found


def parse_jobs(
    text: str,
    delimiters: RandomDelimiters,
    translate: Callable[[float], float],
    excluded: Mapping[str, tuple[str, ...]] | None = None,
    cached: dict[QueueRow, Job] | None = None,
) -> tuple[Job, ...]:
    """The queue. ``excluded``: what ``parse_excluded_nodes`` gave, where it is needed.

    ``cached``: the jobs of the last call by their rows. A row that is there again need not be read again, which is most
    of a long queue; it is left with the rows of this call. A job of which a value cannot be read is UNKNOWN, with what
    is wrong as its reason. Raises SchedulerUnavailable where the output is cut off.
    """
    before, excluded = cached or {}, excluded or {}
    now: dict[QueueRow, Job] = {}
    found = []
    for shown in delimiters.split_rows(text):
        # The words of this call are not those of the next.
        plain = shown.replace(delimiters.field_delimiter, _DIGEST_DELIMITER)
        # Its digest, as all rows of a long queue take a hundred megabytes.
        digest = blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        row = (digest, excluded.get(plain.partition(_DIGEST_DELIMITER)[0], ()) if excluded else ())
        job = now[row] = before.get(row) or _job_or_unreadable(
            delimiters.split_fields(shown, QUEUE_FIELDS), translate, row[1]
        )
        found.append(job)
    if cached is not None:
        cached.clear()
        cached.update(now)
    return tuple(found)


def parse_comments(text: str, delimiters: RandomDelimiters) -> dict[str, str]:
    """Comments by the jobs' ids."""
    rows = (delimiters.split_fields(row, _COMMENTS) for row in delimiters.split_rows(text))
    return {_queue_id(f["JobArrayID"], f["ArrayJobID"]): text_or_empty(f["Comment"]) for f in rows}


def _queue_id(shown: str, array_job: str) -> str:
    """Of the pending rest of an array, ``3_[5-7]``, the number of the array."""
    return array_job if "[" in shown else shown


def _job_or_unreadable(f: Mapping[str, str], translate: Callable[[float], float], excluded: tuple[str, ...]) -> Job:
    try:
        return _parse_job(f, translate, excluded)
    except (ValueError, ArithmeticError) as error:
        found = unreadable_job(_queue_id(f["JobArrayID"], f["ArrayJobID"]), f["UserName"], error)
        state = _STATES.get(f["State"])
        return replace(found, state=state) if state in ENDED_STATES else found


def unreadable_job(job_id: str, user: str, error: Exception) -> Job:
    """Stands for a job of which a value cannot be read: nothing is booted for it."""
    why = str(error)[:_REASON]
    log.warning("job %s is passed over: what it asks for cannot be read: %s", job_id, why)
    return Job(job_id, user, JobState.UNKNOWN, (), 0.0, reason=f"burstd cannot read what it asks for: {why}")


def _parse_job(f: Mapping[str, str], translate: Callable[[float], float], excluded: tuple[str, ...]) -> Job:
    shown, state = f["JobArrayID"], _STATES.get(f["State"], JobState.UNKNOWN)
    array_job, tasks = "", ""
    if "_" in shown:
        array_job = f["ArrayJobID"]
        # "3_[5]" is the pending rest of an array with one task left, "3_5" is that task on its own.
        tasks = text_or_empty(f["ArrayTaskID"]) if "[" in shown else ""
    asked = parse_tres(f["tres-alloc"])
    nodes, nodes_max = _nodes(f, asked)
    cpus = max(1, parse_count(f["NumCPUs"]), parse_count(asked.get("cpu", "")))
    per_node, per_job = _gres(f)
    memory, per_cpu = _memory(
        f, max(1, parse_count(asked.get("node", ""))), cpus, parse_mebibytes(asked.get("mem", "")), (per_node, per_job)
    )
    return Job(
        id=_queue_id(shown, array_job),
        user=f["UserName"],
        state=state,
        partitions=tuple(filter(None, f["Partition"].split(","))),
        submitted=parse_timestamp(f["SubmitTime"], translate),
        name=f["Name"],
        account=text_or_empty(f["Account"]),
        qos=text_or_empty(f["QOS"]),
        reason=short_reason(text_or_empty(f["Reason"])),
        priority=parse_count(f["PriorityLong"]),
        array_job_id=array_job,
        array_tasks=tasks.partition("%")[0],
        tasks=task_count(tasks) if tasks else 1,
        tasks_limit=task_limit(tasks),
        het_job_id=text_or_empty(f["HetJobID"]),
        het_offset=parse_count(f["HetJobOffset"]),
        nodes=nodes,
        nodes_max=nodes_max,
        cpus=cpus,
        cpus_per_node=parse_count(f["MinCPUs"]),
        memory_mib=memory,
        memory_per_cpu=per_cpu,
        memory_whole=not memory and parse_mebibytes(asked.get("mem", "")) > 0,
        gres_per_node=per_node,
        gres_per_job=per_job,
        constraint=text_or_empty(f["Feature"]),
        exclusive=_exclusive(f),
        exclusive_user=(f["Exclusive"] or f["OverSubscribe"]) == "USER",
        time_limit_s=parse_duration(f["TimeLimit"]),
        start=parse_timestamp(f["StartTime"], translate),
        run_start=int(parse_timestamp(f["StartTime"], float)) if state not in PENDING_STATES else 0,
        end=parse_timestamp(f["EndTime"], translate),
        exit_code=format_exit_code(f["exit_code"]) if state in ENDED_STATES else "",
        preempted_at=parse_timestamp(f["PreemptTime"], translate) if state is JobState.RUNNING else 0.0,
        eligible=parse_timestamp(f["EligibleTime"], translate),
        # A job that was requeued shows the nodes that it had, until it gets others.
        node_list=expand_hosts(f["ReqNodes"] if state in PENDING_STATES else f["NodeList"]),
        excluded_nodes=expand_hosts(f["ExcNodes"]) or excluded,
        reservation=text_or_empty(f["Reservation"]),
        licenses=text_or_empty(f["Licenses"]),
        dependency=text_or_empty(f["Dependency"]),
        comment=text_or_empty(f["Comment"]),
        restarts=parse_count(f["RestartCnt"]),
        number=f["JobID"],
        requeue=f["Requeue"] != "0",
        batch=f["BatchFlag"] != "0",
        work_dir=f["WorkDir"],
        output_dir=_output_dir(f["STDOUT"], f["WorkDir"]),
    )


def _output_dir(pattern: str, work_dir: str) -> str:
    """What is sure of it: the part before the first directory whose name has a symbol."""
    if pattern in ("", "(null)"):
        return ""
    fixed = pattern.partition("%")[0].rpartition("/")[0]
    inside = not fixed.startswith("/") or fixed == work_dir or fixed.startswith(f"{work_dir}/")
    return "" if fixed == "/dev" else work_dir if inside else fixed


def _nodes(f: Mapping[str, str], asked: Mapping[str, str]) -> tuple[int, int]:
    """Fewest and most nodes; most is 0 where there is no limit.

    NumNodes is Slurm's guess, made for the nodes that it knows: what was asked for stands in the TRES. MaxNodes shows
    the guess where no limit was given, so a limit of the same number cannot be told from none: it counts as one where
    the guess is no more than what was asked for, since one node then is enough.
    """
    guess, most, per_node = parse_count(f["NumNodes"]), parse_count(f["MaxNodes"]), parse_count(f["NTPerNode"])
    fewest = max(1, parse_count(asked.get("node", "")), -(-parse_count(f["NumTasks"]) // per_node) if per_node else 0)
    return fewest, 0 if most == guess and guess > fewest else max(most, fewest)


def _exclusive(f: Mapping[str, str]) -> bool:
    """Whole nodes. From 26.05 on ``Exclusive`` tells; before, ``OverSubscribe=NO`` meant just that."""
    return f["Exclusive"] == "NODE" if f["Exclusive"] else f["OverSubscribe"] == "NO"


def _gres(f: Mapping[str, str]) -> tuple[tuple[Gres, ...], tuple[Gres, ...]]:
    """GRES for each node and for the whole job. Slurm takes --gpus-per-socket only with --sockets-per-node."""
    sockets = max(1, parse_count(f["Sockets"]))
    per_node = parse_job_gres(f["tres-per-node"]) + multiply_gres(parse_job_gres(f["tres-per-socket"]), sockets)
    per_job = parse_job_gres(f["tres-per-job"])
    # --ntasks-per-gpu and --gpus-per-task both give the number for a job that names it already.
    if not per_node and not per_job:
        per_job = multiply_gres(parse_job_gres(f["tres-per-task"]), max(1, parse_count(f["NumTasks"])))
    return per_node, per_job


def _memory(
    f: Mapping[str, str], nodes: int, cpus: int, total: int, gres: tuple[tuple[Gres, ...], tuple[Gres, ...]]
) -> tuple[int, bool]:
    """Memory in MiB, and whether it is for each CPU: squeue does not say, but the total that Slurm counts does.

    MinMemory is no help with --mem-per-gpu: 22.05 leaves it at 0, later versions show the memory of one GPU.
    """
    for of_each in parse_job_gres(f["mem-per-tres"]):
        per_node, per_job = (sum(g.count for g in some if g.name == of_each.name) for some in gres)
        return of_each.count * (per_node or -(-per_job // nodes)), False
    asked = parse_mebibytes(f["MinMemory"])
    return asked, total != asked * nodes and total >= asked * cpus
