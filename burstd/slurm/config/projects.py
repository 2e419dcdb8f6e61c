"""Slurm's half of a project: its lines of slurm.conf and job_submit.lua, and its commands of sacctmgr.

A project's jobs are submitted to a pair of partitions over the same nodes, and slurmctld decides in which of them a job
runs. The QOS of ``q-NAME`` allows the quota; jobs there preempt those in any ``o-NAME``, whose QOS allows what burstd
has last put there. So quotas hold with burstd dead. docs/adr/0011-projects.md
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction

from burstd.domain.project import LOWEST_TIER, OVER_QUOTA_PREFIX, QUOTA_PREFIX, Project
from burstd.domain.slurm.shape import shards_of_gpus
from burstd.slurm.commands.parsing import expand_hosts, parse_count, parse_node_gres, parse_tres, text_or_empty
from burstd.slurm.hostlist import compress

QUOTA_TIER = 10_000
"""PriorityTier of the partitions for what is within a quota: above that of any over-quota partition."""
GPUS = "gres/gpu"
SHARDS = "gres/shard"
BILLING = "billing"
WEIGHTS = "TRESBillingWeights"
NODE_GRES = "NodeGres"
"""``FEATURES GRES`` of a partition's nodes, different ones with ``|`` between them, where slurmctld counts shards."""
WHOLE_OR_SHARED_SINCE = (23, 11, 0)
"""From this version on slurmctld gives no GPU away both in shards and whole."""
NO_TIME = "00:00:00"
INCLUDED = "burstd-projects.conf"
"""What slurm.conf includes of burstd's spool: the partitions of projects that burstctl has made."""
_MARK = "# project "
"""Before the lines of a project, with its name."""
Words = Mapping[str, str]
Partitions = Mapping[str, Words]
"""Partitions by name, as ``scontrol show partition`` has them, and NODE_GRES."""
Features = Mapping[str, AbstractSet[str]]
"""By node, the features that it has now. Nothing of them need be known where no project names any."""
_IN_SHARDS = re.compile(r"gres/gpu=([0-9]{1,6}),gres/shard=1", re.ASCII)
# What the site's partition allows a job, the pair allows it.
_TAKEN_OVER = (
    "AllocNodes", "AllowGroups", "AllowQos", "DefaultTime", "MaxTime", "MaxNodes", "MinNodes", "OverSubscribe",
    "ExclusiveUser", "DefMemPerCPU", "DefMemPerNode", "MaxMemPerCPU", "MaxMemPerNode", "JobDefaults", "GraceTime",
    "TRESBillingWeights",
)  # fmt: skip
_NOTHING = {"", "NO", "UNLIMITED", "ALL", "0"}


def leaves(projects: Iterable[Project]) -> list[Project]:
    """Those that jobs run in."""
    return [project for project in projects if project.account]


def pair_names(projects: Iterable[Project]) -> frozenset[str]:
    """The partitions, and the QOS, of all of them."""
    return frozenset(name for p in leaves(projects) for name in (p.quota_partition, p.over_quota_partition))


def is_of_project(name: str, partitions: Partitions) -> bool:
    """Whether a partition is one of a project's pair: both have a QOS of their own name, and the same account."""
    bare = name.removeprefix(QUOTA_PREFIX).removeprefix(OVER_QUOTA_PREFIX)
    pair = {prefix + bare: partitions.get(prefix + bare, {}) for prefix in (QUOTA_PREFIX, OVER_QUOTA_PREFIX)}
    accounts = {words.get("AllowAccounts", "ALL") for words in pair.values()}
    return (
        name in pair
        and len(accounts) == 1
        and "ALL" not in accounts
        and all(words.get("QoS") == one for one, words in pair.items())
    )


def projects_without_preemption(partitions: Partitions) -> frozenset[str]:
    """Those whose quota partition preempts nobody now."""
    return frozenset(
        name.removeprefix(QUOTA_PREFIX)
        for name, words in partitions.items()
        if name.startswith(QUOTA_PREFIX)
        and is_of_project(name, partitions)
        and parse_count(words.get("PriorityTier", "")) < QUOTA_TIER
    )


def project_nodes(project: Project, partitions: Partitions, features: Features) -> list[str]:
    """The nodes of its node group, each once."""
    named = (partitions.get(name, {}).get("Nodes", "") for name in project.partitions)
    wanted, nodes = frozenset(project.features), dict.fromkeys(n for text in named for n in expand_hosts(text) if n)
    return [node for node in nodes if not wanted or wanted <= features.get(node, frozenset())]


def node_shards(project: Project, partitions: Partitions) -> frozenset[int]:
    """How many shards the GPUs of the project's nodes have, where slurmctld counts shards."""
    texts = (text for name in project.partitions for text in partitions.get(name, {}).get(NODE_GRES, "").split("|"))
    rows = (text.rpartition(" ") for text in texts)
    wanted = frozenset(project.features)
    return shards_of_gpus(parse_node_gres(gres) for features, _, gres in rows if wanted <= {*features.split(",")})


def counted_shards(project: Project, partitions: Partitions) -> int:
    """The shards of a GPU in which Slurm is to count what the project has.

    0: whole GPUs, as there are no shards, or GPUs of different numbers of them.
    """
    numbers = node_shards(project, partitions)
    return next(iter(numbers)) if len(numbers) == 1 else 0


def shards_in_force(partition: Words) -> int:
    """The shards of a GPU in which Slurm counts what runs in a project's partition; 0: it counts whole GPUs."""
    found = _IN_SHARDS.fullmatch(partition.get(WEIGHTS, ""))
    return int(found[1]) if found else 0


def partition_pair(project: Project, partitions: Partitions, features: Features) -> dict[str, dict[str, str]]:
    """By name, what the project's two partitions are to have, in Slurm's words. Limits are those of its first one."""
    shown = partitions.get(project.partitions[0], {}) if project.partitions else {}
    limits = {key: shown[key] for key in _TAKEN_OVER if text_or_empty(shown.get(key, "")) not in _NOTHING}
    # So 26.05 says it.
    match shown.get("Exclusive"):
        case "NODE":
            limits["OverSubscribe"] = "EXCLUSIVE"
        case "USER":
            limits["ExclusiveUser"] = "YES"
    if limits.get("MinNodes") == "1":
        del limits["MinNodes"]
    if shards := counted_shards(project, partitions):
        limits[WEIGHTS] = f"{GPUS}={shards},{SHARDS}=1"
    nodes = compress(project_nodes(project, partitions, features))

    def partition(name: str, tier: int, preempt: str) -> dict[str, str]:
        words = {"PriorityTier": str(tier), "PreemptMode": preempt, "QOS": name, "AllowAccounts": project.account}
        return {"Nodes": nodes, **words, **limits, "State": "UP"}

    quota, over = project.quota_partition, project.over_quota_partition
    pair = {quota: partition(quota, QUOTA_TIER, "OFF"), over: partition(over, LOWEST_TIER, "REQUEUE")}
    pair[quota].pop("GraceTime", None)
    return pair


def project_mark(project: Project) -> str:
    """The line before those of its partitions."""
    return _MARK + project.name


def marked_projects(lines: Iterable[str]) -> list[str]:
    """The projects whose lines these are."""
    return [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]


def project_partition_lines(projects: Sequence[Project], partitions: Partitions, features: Features) -> list[str]:
    """The PartitionName lines of the pairs; a comment for a project whose nodes are not known."""
    lines = []
    for project in leaves(projects):
        lines.append(project_mark(project))
        if not project_nodes(project, partitions, features):
            lines.append(f"# slurmctld shows no node of {project.node_group}: print these lines again where it does")
            continue
        for name, words in partition_pair(project, partitions, features).items():
            # What is JobDefaults= to scontrol has no such word before it in slurm.conf.
            shown = (v.replace(",", " ") if key == "JobDefaults" else f"{key}={v}" for key, v in words.items())
            lines.append(" ".join([f"PartitionName={name}", *shown]))
    return lines


def qos_pair(
    project: Project, shards: int = 0, version: tuple[int, int, int] = WHOLE_OR_SHARED_SINCE
) -> dict[str, dict[str, str]]:
    """By name, what the project's two QOS are to have, in sacctmgr's words. The second one's GrpTRES is burstd's.

    Jobs without GPUs would preempt others within any quota. ``shards``: those of a GPU in which Slurm counts. A
    slurmctld that gives a GPU away twice is to run no job of whole GPUs there.
    """
    least = BILLING if shards else GPUS
    both = {"MaxTRESPerJob": f"{GPUS}=0" if version < WHOLE_OR_SHARED_SINCE else ""} if shards else {}
    quota = {"GrpTRES": gpu_limit(project.quota, shards), "MinTRESPerJob": f"{least}=1"}
    return {
        project.quota_partition: quota | both,
        project.over_quota_partition: {"PreemptExemptTime": _duration(project.min_runtime_s)} | both,
    }


def qos_description(project: Project) -> str:
    """Marks a QOS that was made for the project. sacctmgr keeps descriptions in lower case."""
    return f"burstd project {project.name}".lower()


def sacctmgr_commands(
    project: Project, partitions: Partitions, version: tuple[int, int, int]
) -> Iterator[tuple[str, ...]]:
    """What makes the account and the QOS of a project that has neither."""
    yield add_account(project)
    shards = counted_shards(project, partitions)
    for name, words in qos_pair(project, shards, version).items():
        yield add_qos(project, name, words, shards)


def add_account(project: Project, cluster: str = "") -> tuple[str, ...]:
    """The command, for one cluster or all that slurmdbd knows; users are for the site to add."""
    words = [f"Cluster={cluster}"] * bool(cluster) + [f"Description={qos_description(project)}", "Organization=burstd"]
    return "sacctmgr", "-i", "add", "account", project.account, *words


def add_qos(project: Project, name: str, words: Words, shards: int) -> tuple[str, ...]:
    """The command. ``words``: of ``qos_pair``. What runs beyond the quota is nothing until burstd says so."""
    words = {"GrpTRES": gpu_limit(Fraction(0), shards), **words}
    shown = (f"{key}={value}" for key, value in words.items() if value)
    return "sacctmgr", "-i", "add", "qos", name, f"Description={qos_description(project)}", *shown


def gpu_limit(gpus: Fraction | None, shards: int = 0) -> str:
    """A value for GrpTRES: whole GPUs, or ``shards`` of each, rounded down; None: no limit."""
    return f"{BILLING if shards else GPUS}={-1 if gpus is None else int(gpus * (shards or 1))}"


def tres_change(value: str, there: str) -> str:
    """What sacctmgr is to set so that GPUs have this limit, and none of those that are there in other words."""
    gone = [name for name in (GPUS, BILLING) if name in parse_tres(there) and name not in parse_tres(value)]
    return ",".join([*(f"{name}=-1" for name in gone), *filter(None, [value])])


def projects_lua_line(projects: Iterable[Project], shared: Iterable[str] = ()) -> str:
    """The line of job_submit.lua that names the projects by their accounts. ``shared``: see projects_lua_table."""
    return f"local projects = {projects_lua_table(projects, shared)}"


def projects_lua_table(projects: Iterable[Project], shared: Iterable[str] = ()) -> str:
    """The projects by their accounts, as job_submit.lua has them. ``shared``: those of which Slurm counts shards."""
    rows = []
    in_shards = frozenset(shared)
    for project in leaves(projects):
        nodes = ", ".join(f'["{name}"] = true' for name in project.partitions)
        more = ", shards = true" if project.name in in_shards else ""
        if project.interactive_max_s is not None:
            more += f", minutes = {max(1, int(project.interactive_max_s // 60))}"
        rows.append(f'["{project.account}"] = {{ name = "{project.name}", shares = {{ {nodes} }}{more} }}')
    return f"{{ {', '.join(rows)} }}" if rows else "{}"


def _duration(seconds: float) -> str:
    """``1-02:03:04``, as sacctmgr prints it."""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{secs:02}"
