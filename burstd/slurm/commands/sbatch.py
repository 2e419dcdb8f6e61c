"""What a script and sbatch's options ask for, in Slurm's own reading.

``sbatch --test-only -v`` reads the script, SBATCH_* variables and the command line by its own rules of precedence, and
prints each option that is set before it asks slurmctld whether such a job could start. Nothing is submitted, and no
line of the script is read here. It goes to slurmctld as at any sbatch. An option that is not set has its partition's
default, or Slurm's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from burstd.domain.errors import BurstdError
from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.quote import UsablePartition
from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands.parsing import (
    expand_hosts,
    multiply_gres,
    parse_count,
    parse_duration,
    parse_job_gres,
    parse_mebibytes,
    parse_records,
    text_or_empty,
)
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import task_count

TEST_ONLY = ("sbatch", "--test-only", "-v")
"""The user's words follow."""
_BEGIN, _END = "sbatch: defined options", "sbatch: end of defined options"
_OPTION = re.compile(r"sbatch: ([a-z][a-z-]{0,40}) *: (.*)")
_LOADED = re.compile(r"sbatch: (?:debug|select/|auth/|hash/|cred/|warning:|-{5})", re.IGNORECASE)
"""Lines of sbatch that are no answer."""
_NO_NODE = "Requested node configuration is not available"
_CPU_OF_TASK = re.compile(r"(?:^|,)cpu[:=]([0-9]{1,9})")
_DELAYS = ("hold", "begin", "dependency", "reservation", "licenses")
"""Options for which a job may wait however many nodes are free."""
Options = Mapping[str, str]
"""By their long names without dashes, as sbatch prints their values."""


class SbatchFailed(BurstdError):
    """sbatch does not understand its words or the script; the message is its own."""


@dataclass(frozen=True, slots=True)
class SbatchAnswer:
    """What ``sbatch --test-only -v`` says."""

    components: tuple[Options, ...]
    """The options that are set: of a het job one mapping a component."""
    message: str
    """slurmctld's answer: ``Job 14 to start at ... on nodes cl1 in partition burst``, or why it refuses the job.

    Empty where no node could start it now, which slurmctld says of every node without a machine too (``Requested node
    configuration is not available``).
    """
    refused: bool


_LINES = 3
"""So many of the last lines are told: before slurmctld's stand those of the site's own plugins."""


def parse_answer(text: str, status: int) -> SbatchAnswer:
    """Of its standard error and exit status. Raises SbatchFailed."""
    found: list[Options] = []
    last: dict[str, str] | None = None
    rest: list[str] = []
    for line in text.split("\n"):
        if line == _BEGIN:
            last = {}
        elif line == _END and last is not None:
            found.append(last)
            last = None
        elif last is not None:
            if match := _OPTION.fullmatch(line):
                last[match[1]] = match[2].strip()
        elif line.strip() and not _LOADED.match(line):
            rest.append(line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("fatal: ").strip())
    if not found:
        raise SbatchFailed("sbatch: " + (" ".join(rest[:_LINES]) or f"exit status {status}"))
    if rest and _NO_NODE in rest[-1]:
        return SbatchAnswer(tuple(found), "", refused=False)
    return SbatchAnswer(tuple(found), "; ".join(rest[-_LINES:] if status else rest[-1:]), status != 0)


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """What a partition gives a job that does not ask for it. MiB and seconds; 0: nothing, or no limit."""

    time_limit_s: float = 0.0
    memory_mib: int = 0
    memory_per_cpu: bool = False
    exclusive_user: bool = False
    exclusive: bool = False
    """Jobs get whole nodes."""
    record: Mapping[str, str] = field(default_factory=dict, compare=False)
    """As ``scontrol show partition`` has it."""

    def refusal(self, job: Job, groups: Collection[str], host: str) -> str:
        """The setting for which Slurm starts no such job in it; empty: none is known.

        ``groups``: of its user. ``host``: on which he submits. What a QOS or an association allows is not looked at.
        """
        limit_s = parse_duration(self._word("MaxTime"))
        least, most = parse_count(self._word("MinNodes")), parse_count(self._word("MaxNodes"))
        refused = {
            "State": self._word("State") not in ("", "UP"),
            "RootOnly": self._word("RootOnly") == "YES",
            "AllowGroups": not self._allows("AllowGroups", groups),
            "AllocNodes": self._word("AllocNodes") not in ("", "ALL")
            and host not in expand_hosts(self._word("AllocNodes")),
            "AllowAccounts": bool(job.account) and not self._allows("AllowAccounts", (job.account,)),
            "DenyAccounts": bool(job.account) and job.account in self._word("DenyAccounts").split(","),
            # Which QOS a job gets that names none is not known here.
            "AllowQos": not self._allows("AllowQos", (job.qos,)),
            "DenyQos": bool(self._word("DenyQos")) and (not job.qos or job.qos in self._word("DenyQos").split(",")),
            "MaxTime": limit_s > 0 and not 0 < job.time_limit_s <= limit_s,
            "MinNodes": 0 < job.nodes_max < least,
            "MaxNodes": 0 < most < job.nodes,
        }
        return next((f"{key}={self.record.get(key, '')}" for key, is_so in refused.items() if is_so), "")

    def _word(self, key: str) -> str:
        return text_or_empty(self.record.get(key, ""))

    def _allows(self, key: str, names: Collection[str]) -> bool:
        allowed = self._word(key)
        return allowed in ("", "ALL") or not set(names).isdisjoint(allowed.split(","))


@dataclass(frozen=True, slots=True)
class SubmitDefaults:
    """What Slurm takes for options that are not set."""

    partition: str = ""
    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)
    memory_is_consumed: bool = True
    """Slurm counts memory: a job that asks for none, where there is no default, gets all of its nodes'."""
    account: str = ""
    enforced: str = ""
    """AccountingStorageEnforce."""

    def qos_of(self, job: Job) -> set[str]:
        """The QOS of a job, ``normal`` where it names none, and of its partitions but those of projects."""
        records = [(name, self.partitions[name].record) for name in job.partitions if name in self.partitions]
        own = (record for name, record in records if not name.startswith((QUOTA_PREFIX, OVER_QUOTA_PREFIX)))
        return {job.qos or "normal", *(record.get("QoS", "") for record in own)}


def read_defaults(commands: SlurmCommands, user: str) -> SubmitDefaults:
    """Asks Slurm for its partitions, its settings and the user's default account.

    Raises SchedulerUnavailable, SchedulerRefused.
    """
    settings = commands("scontrol", "show", "config")
    account = ""
    if _setting(settings, "AccountingStorageType").endswith("slurmdbd"):
        account = commands("sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount").strip()
    return parse_defaults(commands("scontrol", "-o", "show", "partition"), settings, account)


def parse_defaults(partitions: str, settings: str, account: str = "") -> SubmitDefaults:
    """Of what ``scontrol show partition`` and ``scontrol show config`` print."""
    site = _memory({key: _setting(settings, key) for key in ("DefMemPerNode", "DefMemPerCPU")})
    found: dict[str, PartitionLimits] = {}
    default = ""
    for record in parse_records(partitions, "PartitionName"):
        name = record["PartitionName"]
        memory, per_cpu = _memory(record) if _memory(record)[0] else site
        limit = text_or_empty(record.get("DefaultTime", ""))
        found[name] = PartitionLimits(
            parse_duration(record.get("MaxTime", "") if limit in ("", "NONE") else limit),
            memory,
            per_cpu,
            # Since 26.05 Exclusive tells.
            record.get("ExclusiveUser") == "YES" or record.get("Exclusive") == "USER",
            record.get("Exclusive") == "NODE" or record.get("OverSubscribe") == "EXCLUSIVE",
            record,
        )
        if record.get("Default") == "YES":
            default = name
    consumes_memory = "MEMORY" in _setting(settings, "SelectTypeParameters").upper()
    return SubmitDefaults(default, found, consumes_memory, account, _setting(settings, "AccountingStorageEnforce"))


def requested_job(options: Options, defaults: SubmitDefaults, name: str = "") -> Job:
    """The job as Slurm's queue would show it once submitted; its id, user and times are empty.

    ``name``: where none is set. Of an array it is the row of all its tasks.
    """
    partitions = tuple(filter(None, options.get("partition", defaults.partition).split(",")))
    given = defaults.partitions.get(partitions[0] if partitions else "", PartitionLimits())
    nodes, most = _nodes(options.get("nodes", ""))
    per_node, per_job = _gres(options)
    gpus = _count_gpus(per_job) or max(1, nodes) * _count_gpus(per_node)
    tasks = _tasks(options, max(1, nodes), gpus)
    of_task = options.get("tres-per-task", "")
    if not per_node and not per_job:
        of_each = _named_gpus(options.get("gpus-per-task", "")) or parse_job_gres(of_task)
        per_job = multiply_gres(of_each, tasks)
        gpus = _count_gpus(per_job)
    cpu = _CPU_OF_TASK.search(of_task)
    cpus_per_task = max(1, parse_count(options.get("cpus-per-task", "") or (cpu[1] if cpu else "")))
    cpus = max(tasks * cpus_per_task, gpus * parse_count(options.get("cpus-per-gpu", "")))
    memory, per_cpu = _asked_memory(options, gpus, max(1, nodes)) or (given.memory_mib, given.memory_per_cpu)
    limit, exclusive = options.get("time", ""), options.get("exclusive", "")
    array = options.get("array", "").partition("%")[0]
    return Job(
        id="",
        user="",
        state=JobState.PENDING,
        partitions=partitions,
        submitted=0.0,
        name=options.get("job-name", name),
        account=options.get("account", defaults.account),
        qos=options.get("qos", ""),
        tasks=max(1, task_count(array)),
        nodes=max(1, nodes),
        nodes_max=most,
        cpus=cpus,
        cpus_per_node=max(
            parse_count(options.get("mincpus", "")),
            cpus_per_task * max(1, parse_count(options.get("ntasks-per-node", ""))),
        ),
        memory_mib=memory,
        memory_per_cpu=per_cpu,
        memory_whole=not memory and defaults.memory_is_consumed,
        gres_per_node=per_node,
        gres_per_job=per_job,
        constraint=options.get("constraint", ""),
        # What a job says itself stands in the queue: --exclusive=user also where the partition gives whole nodes.
        exclusive=exclusive == "exclusive" or (given.exclusive and exclusive != "user"),
        exclusive_user=exclusive == "user" or (given.exclusive_user and not given.exclusive),
        time_limit_s=parse_duration(limit) if limit else given.time_limit_s,
        node_list=expand_hosts(options.get("nodelist", "")),
        excluded_nodes=expand_hosts(options.get("exclude", "")),
        comment=options.get("comment", ""),
        requeue="no-requeue" not in options,
    )


def usable_partitions(
    options: Options, defaults: SubmitDefaults, groups: Collection[str], host: str
) -> list[UsablePartition]:
    """Those that the job may name, as PartitionLimits.refusal tells."""
    found = []
    for name, limits in defaults.partitions.items():
        job = requested_job({**options, "partition": name}, defaults)
        if not limits.refusal(job, groups, host):
            found.append(UsablePartition.for_job(name, job))
    return found


def refusals(job: Job, defaults: SubmitDefaults, groups: Collection[str], host: str) -> list[str]:
    """Settings of the job's own partitions for which Slurm does not start it there: ``MaxTime=01:00:00 of debug``."""
    known = [(name, defaults.partitions[name]) for name in job.partitions if name in defaults.partitions]
    found = [(name, why) for name, limits in known if (why := limits.refusal(job, groups, host))]
    # Of a job that names no QOS slurmctld's own answer tells.
    return [f"{why} of {name}" for name, why in found if job.qos or "Qos=" not in why]


def delays(options: Options) -> list[str]:
    """Options for which the job may wait besides, as sbatch takes them: ``--begin=2026-11-28T04:00:00``."""
    return [f"--{key}" + ("" if options[key] == "set" else f"={options[key]}") for key in _DELAYS if key in options]


def _setting(text: str, key: str) -> str:
    match = re.search(rf"^{key}\s*=\s*(.*)$", text, re.MULTILINE)
    return text_or_empty(match[1]) if match else ""


def _memory(record: Mapping[str, str]) -> tuple[int, bool]:
    per_cpu = parse_mebibytes(record.get("DefMemPerCPU", ""))
    return (per_cpu, True) if per_cpu else (parse_mebibytes(record.get("DefMemPerNode", "")), False)


def _nodes(text: str) -> tuple[int, int]:
    """Fewest and most; 0: not asked for. ``2-4``, ``4``, and ``1,2,4`` or ``2-8:2`` of later versions."""
    numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", text.partition(":")[0])]
    return (numbers[0], numbers[-1]) if numbers else (0, 0)


def _tasks(options: Options, nodes: int, gpus: int) -> int:
    per_node, per_gpu = (parse_count(options.get(key, "")) for key in ("ntasks-per-node", "ntasks-per-gpu"))
    return max(1, parse_count(options.get("ntasks", "")) or gpus * per_gpu or nodes * max(1, per_node))


def _gres(options: Options) -> tuple[tuple[Gres, ...], tuple[Gres, ...]]:
    """GRES of each node and of the whole job, as the reader of the queue has them."""
    sockets = max(1, parse_count(options.get("sockets-per-node", "")))
    per_node = (
        parse_job_gres(options.get("gres", ""))
        + _named_gpus(options.get("gpus-per-node", ""))
        + multiply_gres(_named_gpus(options.get("gpus-per-socket", "")), sockets)
    )
    per_job = _named_gpus(options.get("gpus", ""))
    return per_node, per_job


def _count_gpus(gres: Sequence[Gres]) -> int:
    return sum(g.count for g in gres if g.name == "gpu")


def _named_gpus(text: str) -> tuple[Gres, ...]:
    """``2``, ``v100:2``, ``a100:1,v100:1``."""
    return parse_job_gres(",".join(f"gres/gpu:{part}" for part in text.split(",") if part))


def _asked_memory(options: Options, gpus: int, nodes: int) -> tuple[int, bool] | None:
    if "mem" in options:
        return parse_mebibytes(options["mem"].rstrip("?")), False
    if "mem-per-cpu" in options:
        return parse_mebibytes(options["mem-per-cpu"].rstrip("?")), True
    if "mem-per-gpu" in options:
        return parse_mebibytes(options["mem-per-gpu"].rstrip("?")) * -(-gpus // nodes), False
    return None
