"""Compares the running Slurm with what the configured pools need; each difference says what it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import shards_of_gpus
from burstd.slurm.commands import nodes
from burstd.slurm.commands.controller import controller_hosts, parse_config, slurmctld_version
from burstd.slurm.commands.parsing import (
    expand_hosts,
    parse_count,
    parse_mebibytes,
    parse_records,
    parse_tres,
    text_or_empty,
)
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.projects import (
    NODE_GRES,
    SHARDS,
    WHOLE_OR_SHARED_SINCE,
    is_of_project,
    leaves,
    pair_names,
)
from burstd.slurm.config.render import (
    NODE_PROLOG,
    NODE_PROLOG_FILE,
    POWERED_DOWN,
    PROLOG,
    TASK_PROLOG,
    SlurmConfOptions,
    SlurmConfSetting,
    exclusive_user_partitions,
    fitting_memory,
    gpu_memory_settings,
    node_line,
    required_settings,
)
from burstd.slurm.hostlist import compress

SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
SHOW_CONFIG = ("scontrol", "show", "config")
SHOW_QOS = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,MaxTRESPerJob")
EXCLUSIVE_USER = "ExclusiveUser=YES"

# Settings and words that may be larger, or smaller, than what burstd would write; all others must be equal.
_AT_LEAST = {"ResumeTimeout", "SuspendTime", "TreeWidth", "default_queue_depth", "bf_max_job_test"}
_AT_MOST = {"SuspendTimeout", "bf_interval", "power_save_interval"}
_GIVEN_TWICE = "slurmctld before 23.11 gives a GPU of which shards are in use to a job of whole GPUs as well"
_OTHER_SHARES = {
    "LL_SHARED_GRES": "takes the GPU with the most shards free, so that fewer GPUs stay free for whole use",
    "MULTIPLE_SHARING_GRES_PJ": "gives a job the shards of several GPUs, and burstd starts no node for such a job",
}
"""Words of SelectTypeParameters, and what they make of jobs with shards."""


@dataclass(frozen=True, slots=True)
class SlurmConfFinding:
    """One difference. ``advice``: burstd works, only slower or less comfortably."""

    subject: str
    """``SuspendTime``, ``partition burst``, ``nodes gpu[1-8]``."""
    wanted: str
    found: str
    consequence: str
    """What does not work, without a full stop."""
    remedy: str
    """What to do about it, without a full stop."""
    recommended: bool = False


@dataclass(frozen=True, slots=True)
class RunningSlurm:
    """What slurmctld says of itself: its settings, its partitions' by name, its nodes."""

    config: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, str]]
    nodes: Sequence[Node]
    limits_per_job: Mapping[str, str] = field(default_factory=dict)
    """MaxTRESPerJob of each QOS that a partition has (``gres/gpu=0``)."""


def read_running_slurm(commands: SlurmCommands, pools: Sequence[Pool] = ()) -> RunningSlurm:
    """Asks slurmctld, with three commands, and slurmdbd where partitions have a QOS and pools have shards.

    Raises SchedulerUnavailable, SchedulerRefused.
    """
    partitions = read_partitions(commands)
    limits: dict[str, str] = {}
    qos = any(text_or_empty(fields.get("QoS", "")) for fields in partitions.values())
    if qos and any(pool.shape.shards_per_gpu() for pool in pools):
        lines = (line.split("|") for line in commands(*SHOW_QOS).splitlines())
        limits = {words[0]: words[1] for words in lines if len(words) == 2}
    return RunningSlurm(
        parse_config(commands(*SHOW_CONFIG)),
        partitions,
        nodes.NodeReader(commands, lambda wall: wall).read_all(),
        limits,
    )


def read_partitions(commands: SlurmCommands) -> dict[str, dict[str, str]]:
    """Asks slurmctld for its partitions by name, with one command; where it counts shards, with one more for the GRES
    of their nodes. Raises SchedulerUnavailable.
    """
    found = {f["PartitionName"]: f for f in parse_records(commands(*SHOW_PARTITIONS), "PartitionName")}
    if any(SHARDS in parse_tres(fields.get("TRES", "")) for fields in found.values()):
        for line in commands("sinfo", "-a", "-h", "-o", "%R|%b|%G").splitlines():
            name, _, row = line.partition("|")
            if name in found:
                rows = [found[name].get(NODE_GRES), row.replace("|", " ", 1)]
                found[name][NODE_GRES] = "|".join(filter(None, rows))
    return found


def compare_slurm_conf(
    pools: Sequence[Pool], options: SlurmConfOptions, running: RunningSlurm
) -> list[SlurmConfFinding]:
    """Every difference, those that break something first. The version is the running one's."""
    version = slurmctld_version(running.config) or options.version
    known = replace(options, version=version, partitions=running.partitions)
    found = [
        *(f for s in required_settings(pools, known) for f in _setting(s, running)),
        *_selection(pools, running),
        *(f for pool in pools for f in _nodes(pool, running)),
        *_shards(pools, running, known.version),
        *_counted(known, running),
        *_partitions(pools, known, running),
        *_kept_partitions(known, running),
        *_exposed_nodes(pools, running),
        *_strange_partitions(pools, known, running),
        *_submission(running),
        *_controllers(running),
    ]
    return sorted(found, key=lambda f: f.recommended)


def mount_faults(pools: Sequence[Pool], options: SlurmConfOptions, running: RunningSlurm) -> list[str]:
    """What keeps the running Slurm from showing trees as [mounts] has them, with the remedy; a sentence each."""
    found = compare_slurm_conf(pools, replace(options, prolog=True), running)
    ours = (f for f in found if f.subject == PROLOG or f.wanted == EXCLUSIVE_USER)
    return [f"{f.subject}: {f.consequence}: {f.remedy}" for f in ours if not f.recommended]


def gpu_memory_faults(pool: Pool, commands: SlurmCommands) -> list[str]:
    """What keeps the running Slurm from limiting GPU memory as the pool has it, with the remedy; a sentence each.

    Raises SchedulerUnavailable, SchedulerRefused.
    """
    if pool.gpu_memory_limit == "none":
        return []
    running = RunningSlurm(parse_config(commands(*SHOW_CONFIG)), {}, ())
    found = (f for setting in gpu_memory_settings([pool]) for f in _setting(setting, running))
    return [f"{f.subject}: {f.consequence}: {f.remedy}" for f in found if not f.recommended]


def _setting(setting: SlurmConfSetting, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    if setting.name in (PROLOG, NODE_PROLOG, TASK_PROLOG):
        yield from _prolog(setting, running)
        return
    value = text_or_empty(running.config.get(setting.name, ""))
    if not setting.merge:
        wanted = setting.values[0]
        shown = value.removesuffix(" sec").removesuffix(" nodes/min")
        if not value_matches(setting.name, wanted, shown):
            more = " or more" if setting.name in _AT_LEAST else " or less" if setting.name in _AT_MOST else ""
            remedy = f"set {setting.line}{more}"
            yield SlurmConfFinding(
                setting.name, wanted + more, value or "not set", setting.consequence, remedy, setting.recommended
            )
        return
    there = dict(_key_and_value(w) for w in value.split(","))
    lacking = [w for w in setting.values if not entry_matches(w, there)]
    if lacking:
        missing = ",".join(lacking)
        remedy = f"add {missing} to {setting.name}, and remove other values of the same keys"
        yield SlurmConfFinding(
            setting.name, missing, value or "not set", setting.consequence, remedy, setting.recommended
        )


def _prolog(setting: SlurmConfSetting, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    """Newer versions of Slurm name every line; what a program of the site's own calls, nothing tells."""
    name, wanted = setting.name, setting.values[0]
    called = NODE_PROLOG_FILE if name == NODE_PROLOG else wanted
    values = [text_or_empty(running.config.get(name, ""))]
    several = [value for key, value in running.config.items() if key.startswith(f"{name}[")]
    there = [value for value in (*values, *several) if text_or_empty(value)]
    if not there:
        remedy = f"set {setting.line} and run scontrol reconfigure"
        yield SlurmConfFinding(name, wanted, "not set", setting.consequence, remedy)
    elif wanted not in there and not (name == PROLOG and any(_program(value) == _program(wanted) for value in there)):
        remedy = f"let {there[0]} call {called}, and fail where it fails"
        if several:
            remedy = f"add the line {setting.line}, or {remedy}"
        yield SlurmConfFinding(
            name,
            f"{wanted}, or a program that calls {'it' if called == wanted else called}",
            ", ".join(there),
            f"burstctl check cannot tell whether {there[0]} calls {_program(called)}; without it {setting.consequence}",
            remedy,
            recommended=True,
        )


def _program(path: str) -> str:
    """Its name, in whichever folder it lies."""
    return path.rpartition("/")[2]


def _key_and_value(text: str) -> tuple[str, str]:
    name, _, value = text.strip().partition("=")
    return name, value


def entry_matches(wanted: str, there: Mapping[str, str]) -> bool:
    """Whether the word, ``key`` or ``key=value``, is among those of a setting."""
    name, value = _key_and_value(wanted)
    return name in there and (not value or value_matches(name, value, there[name]))


def value_matches(name: str, wanted: str, found: str) -> bool:
    """Whether the value of a setting, or of a word with this key, serves as well as the wanted one."""
    if name in _AT_LEAST:
        return found.isdecimal() and parse_count(found) >= parse_count(wanted)
    if name in _AT_MOST:
        return found.isdecimal() and parse_count(found) <= parse_count(wanted)
    if name.endswith("Program"):
        return _program(found) == _program(wanted)
    return found == wanted


def _selection(pools: Sequence[Pool], running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    select = text_or_empty(running.config.get("SelectType", ""))
    if any(p.shape.gpus() for p in pools) and select != "select/cons_tres":
        yield SlurmConfFinding(
            "SelectType",
            "select/cons_tres",
            select or "not set",
            "jobs cannot request GPUs with --gpus and similar options",
            "set SelectType=select/cons_tres, with no jobs running",
        )


def _nodes(pool: Pool, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    known = {n.name: n for n in running.nodes}
    missing = [s for s in pool.slots if s not in known]
    if missing:
        yield SlurmConfFinding(
            f"nodes {compress(missing)}",
            node_line(pool),
            "not there",
            f"slots of pool {pool.name} cannot be used",
            "add the line to slurm.conf and restart slurmctld",
        )
    wrong: dict[tuple[str, str, str], list[str]] = {}
    for slot in pool.slots:
        if slot in known:
            for difference in _differences(pool, known[slot]):
                wrong.setdefault(difference, []).append(slot)
    for (wanted, found, breaks), slots in wrong.items():
        yield SlurmConfFinding(
            f"nodes {compress(slots)}",
            wanted,
            found,
            breaks,
            "put the NodeName line of burstctl slurm-config into slurm.conf and restart slurmctld; or, where "
            f"slurm.conf is right, make pool {pool.name} in burstd.toml agree with it and run burstctl config reload",
        )


def _differences(pool: Pool, node: Node) -> Iterator[tuple[str, str, str]]:
    """What was wanted, what was found, what it breaks."""
    shape = pool.shape
    if "CLOUD" not in node.flags:
        yield "State=CLOUD", node.state, "Slurm marks a slot without a machine DOWN"
    if node.cpus != shape.cpus:
        yield f"CPUs={shape.cpus}", f"CPUs={node.cpus}", "burstd and Slurm plan with different CPU counts"
    if node.memory_mib != shape.memory_mib:
        yield (
            f"RealMemory={shape.memory_mib}",
            f"RealMemory={node.memory_mib}",
            "burstd and Slurm plan with different memory sizes",
        )
    if sorted(node.gres) != sorted(shape.gres):
        wanted, found = (",".join(map(str, sorted(g))) or "none" for g in (shape.gres, node.gres))
        yield f"Gres={wanted}", f"Gres={found}", "burstd boots nodes for jobs that Slurm does not start there"
    lacking = shape.features - node.features
    if lacking:
        yield (
            f"Feature={','.join(sorted(lacking))}",
            f"Feature={','.join(sorted(node.features)) or 'none'}",
            "jobs with such a constraint cannot start there",
        )


def _shards(pools: Sequence[Pool], running: RunningSlurm, version: tuple[int, int, int]) -> Iterator[SlurmConfFinding]:
    """Before 23.11 slurmctld gives a GPU of which shards are in use to a job of whole GPUs as well."""
    shared = {slot: pool.name for pool in pools if pool.shape.shards_per_gpu() for slot in pool.slots}
    if not shared:
        return
    words = text_or_empty(running.config.get("SelectTypeParameters", "")).split(",")
    for word, does in _OTHER_SHARES.items():
        if word in words:
            yield SlurmConfFinding(
                "SelectTypeParameters", f"no {word}", ",".join(words), f"burstd plans without it: slurmctld {does}",
                f"remove {word} from SelectTypeParameters and restart slurmctld", recommended=True,
            )  # fmt: skip
    if version >= WHOLE_OR_SHARED_SINCE:
        return
    enforce = running.config.get("AccountingStorageEnforce", "none")
    kinds: dict[str, dict[str, str]] = {}
    for name, fields in running.partitions.items():
        its_pools = {shared[host] for host in expand_hosts(fields.get("Nodes", "")) if host in shared}
        limits = parse_tres(running.limits_per_job.get(text_or_empty(fields.get("QoS", "")), ""))
        refused = next((kind for kind in ("gres/gpu", "gres/shard") if limits.get(kind) == "0"), "")
        if its_pools and not (refused and "limits" in enforce):
            yield SlurmConfFinding(
                f"partition {name}",
                "a QOS with MaxTRESPerJob=gres/gpu=0, or gres/shard=0, and AccountingStorageEnforce=limits",
                f"QOS {fields.get('QoS', 'N/A')}, AccountingStorageEnforce={enforce}",
                _GIVEN_TWICE,
                "set AccountingStorageEnforce=limits and AccountingStorageTRES=gres/gpu,gres/shard, and restart "
                "slurmctld; sacctmgr add qos shards MaxTRESPerJob=gres/gpu=0 Flags=DenyOnLimit (or, for whole GPUs, "
                f"gres/shard=0); add QOS=shards to the PartitionName line of {name}; or upgrade Slurm to 23.11",
            )
        for pool in its_pools if refused else ():
            kinds.setdefault(pool, {})[refused] = name
    for pool, partitions in kinds.items():
        if len(partitions) > 1:
            names = " and ".join(sorted(partitions.values()))
            yield SlurmConfFinding(
                f"pool {pool}",
                "partitions that all refuse whole GPUs, or all refuse shards",
                f"partitions {names} have its nodes, and each refuses the other kind",
                _GIVEN_TWICE,
                f"keep the nodes of pool {pool} in one of these partitions; or upgrade Slurm to 23.11",
            )


def _counted(options: SlurmConfOptions, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    """Shards of projects' nodes that slurmctld does not count."""
    tres = running.config.get("AccountingStorageTRES", "")
    of_projects = {name for project in leaves(options.projects) for name in project.partitions}
    there = (node.gres for node in running.nodes if not of_projects.isdisjoint(node.partitions))
    if SHARDS not in tres.split(",") and shards_of_gpus(there):
        yield SlurmConfFinding(
            "AccountingStorageTRES", SHARDS, tres or "not set",
            "quotas of projects count whole GPUs only, and jobs of shards are beyond every quota",
            f"add {SHARDS} to AccountingStorageTRES and restart slurmctld; then follow what burstctl check says",
            recommended=True,
        )  # fmt: skip


def _submission(running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    """slurmctld takes jobs from any host with the cluster's key, which rented nodes have."""
    unlimited = sorted(name for name, fields in running.partitions.items() if fields.get("AllocNodes") == "ALL")
    if unlimited:
        yield SlurmConfFinding(
            "AllocNodes",
            "the hosts where users log in, in each partition",
            f"ALL in {', '.join(unlimited)}",
            "processes on a rented node can submit jobs to the site's own partitions",
            "set AllocNodes=HOSTS in each PartitionName line; jobs on other hosts then cannot submit jobs",
            recommended=True,
        )


def _controllers(running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    """Short names of slurmctld's hosts: nodes in a cloud often ask another DNS, or have no line in /etc/hosts."""
    names = [name for name, address in controller_hosts(running.config).items() if not address and "." not in name]
    if names:
        yield SlurmConfFinding(
            "SlurmctldHost", f"an address beside the name: {names[0]}(ADDRESS)", ", ".join(names),
            f"a machine that does not know the name {names[0]} boots, and does not become a node",
            f"write SlurmctldHost={names[0]}(ADDRESS) and restart slurmctld, or let the images know the name",
            recommended=True,
        )  # fmt: skip


def default_memory(settings: Mapping[str, str]) -> int:
    """MiB that a job of one CPU asks for where it names none, by a partition's settings or all; 0: all of a node."""
    return parse_mebibytes(settings.get("DefMemPerCPU", "")) or parse_mebibytes(settings.get("DefMemPerNode", ""))


def default_gpu_memory(settings: Mapping[str, str]) -> int:
    """MiB that a job asks for with each GPU where it names no memory, by JobDefaults; 0: nothing is set."""
    return parse_mebibytes(
        dict(map(_key_and_value, settings.get("JobDefaults", "").split(","))).get("DefMemPerGPU", "")
    )


def _partitions(pools: Sequence[Pool], options: SlurmConfOptions, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    whole_nodes, of_projects = options.workdir_partitions, pair_names(options.projects)
    wanted: dict[str, list[str]] = {}
    for pool in pools:
        for name in pool.partitions:
            wanted.setdefault(name, []).extend(pool.slots)
    for name, slots in wanted.items():
        fields = running.partitions.get(name)
        if fields is None and name in of_projects:
            continue  # see project_check.py
        if fields is None:
            yield SlurmConfFinding(
                f"partition {name}",
                f"PartitionName={name} Nodes={compress(slots)}",
                "not there",
                "users cannot submit jobs to the cloud",
                "add the line to slurm.conf and run scontrol reconfigure",
            )
            continue
        missing = set(slots) - set(expand_hosts(fields.get("Nodes", "")))
        if missing and name not in of_projects:
            yield SlurmConfFinding(
                f"partition {name}",
                f"Nodes={compress(slots)}",
                f"Nodes={fields.get('Nodes', '')}",
                f"no job of the partition can use {compress(missing)}",
                "add them to the partition's Nodes",
            )
        if fields.get("State", "UP") != "UP":
            yield SlurmConfFinding(
                f"partition {name}",
                "State=UP",
                f"State={fields['State']}",
                "no job of the partition starts",
                f"scontrol update partitionname={name} state=up",
            )
        asked = default_memory(fields) or default_memory(running.config)
        asked_gpu = default_gpu_memory(fields) or default_gpu_memory(running.config)
        if fitting := fitting_memory(pools, name, asked, asked_gpu):
            by_gpu = fitting.startswith("DefMemPerGPU")
            yield SlurmConfFinding(
                f"partition {name}",
                fitting,
                f"{asked_gpu} MiB with each GPU" if by_gpu else f"{asked} MiB for a job that names no memory",
                "no node of the partition has so much, so such jobs never start",
                f"add {fitting} to the partition's line in slurm.conf, and run scontrol reconfigure",
            )
        if name in whole_nodes and not _gives_whole_nodes(fields):
            yield SlurmConfFinding(
                f"partition {name}",
                "OverSubscribe=EXCLUSIVE",
                next((f"{key}={fields[key]}" for key in ("Exclusive", "OverSubscribe") if key in fields), "not set"),
                "Slurm starts two jobs on one node, and burstd refuses the second one that has the same working "
                "directory",
                "add OverSubscribe=EXCLUSIVE to the PartitionName line and run scontrol reconfigure",
            )
        if name in exclusive_user_partitions(pools) and not _keeps_users_apart(fields):
            yield SlurmConfFinding(
                f"partition {name}",
                EXCLUSIVE_USER,
                next((f"{key}={fields[key]}" for key in ("ExclusiveUser", "Exclusive") if key in fields), "not set"),
                "Slurm starts jobs of different users on one node, and each finds the other's trees of [mounts] there",
                "add ExclusiveUser=YES to the PartitionName line and run scontrol reconfigure",
            )
        idle = fields.get("SuspendTime", "")
        if parse_count(idle) and not value_matches("SuspendTime", "31536000", idle):
            yield SlurmConfFinding(
                f"partition {name}",
                "no SuspendTime in the partition",
                f"SuspendTime={idle}",
                "slurmctld powers down nodes that burstd still uses",
                "remove SuspendTime from the PartitionName line",
            )


def _kept_partitions(options: SlurmConfOptions, running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    missing = sorted(set(options.onprem_partitions) - running.partitions.keys())
    if missing:
        yield SlurmConfFinding(
            "keep_partitions",
            "partitions of the site's own nodes",
            f"Slurm has no partition {' and no partition '.join(missing)}",
            "nothing keeps power saving from powering down the site's own nodes",
            "name them as Slurm does, in slurm.keep_partitions of burstd.toml and in SuspendExcParts of slurm.conf",
        )


def spared_nodes(value: str) -> set[str]:
    """The nodes of SuspendExcNodes, without those of a group of which Slurm spares only so many (``n[1-9]:2``)."""
    return {node for node in expand_hosts(value) if ":" not in node}


def _exposed_nodes(pools: Sequence[Pool], running: RunningSlurm) -> Iterator[SlurmConfFinding]:
    """The site's own nodes in pools' partitions that power saving does not leave alone."""
    slots = {slot for pool in pools for slot in pool.slots}
    spared = spared_nodes(running.config.get("SuspendExcNodes", ""))
    for name in text_or_empty(running.config.get("SuspendExcParts", "")).split(","):
        spared.update(expand_hosts(running.partitions.get(name, {}).get("Nodes", "")))
    joined = (running.partitions.get(name, {}) for pool in pools for name in pool.partitions)
    own = {node for fields in joined for node in expand_hosts(fields.get("Nodes", ""))} - slots - spared
    if own:
        nodes = compress(sorted(own))
        yield SlurmConfFinding(
            "SuspendExcNodes", nodes, running.config.get("SuspendExcNodes", "not set"), POWERED_DOWN,
            f"add {nodes} to SuspendExcNodes and restart slurmctld", recommended=True,
        )  # fmt: skip


def _strange_partitions(
    pools: Sequence[Pool], options: SlurmConfOptions, running: RunningSlurm
) -> Iterator[SlurmConfFinding]:
    """Partitions that no pool names and that have slots all the same: Nodes=ALL takes in every NodeName."""
    named = {name for pool in pools for name in pool.partitions} | pair_names(options.projects)
    slots = {slot for pool in pools for slot in pool.slots}
    for name, fields in running.partitions.items():
        taken = slots.intersection(expand_hosts(fields.get("Nodes", "")))
        if taken and name not in named and not is_of_project(name, running.partitions):
            yield SlurmConfFinding(
                f"partition {name}",
                "the site's own nodes alone",
                f"Nodes={fields['Nodes']}",
                f"its jobs start on rented nodes ({compress(taken)}) while these are up, and wait for slots without a "
                "machine; burstd starts none for them",
                "list the site's own nodes in the PartitionName line, in the place of Nodes=ALL, and run scontrol "
                f"reconfigure; or, where the jobs may burst, add {name} to the pool's partitions in burstd.toml",
            )


def _gives_whole_nodes(fields: Mapping[str, str]) -> bool:
    """Since 26.05 ``Exclusive`` tells; before, ``OverSubscribe``."""
    return fields.get("Exclusive") == "NODE" or fields.get("OverSubscribe") == "EXCLUSIVE"


def _keeps_users_apart(fields: Mapping[str, str]) -> bool:
    """Since 26.05 ``Exclusive`` tells; before, ``ExclusiveUser``, or ``OverSubscribe`` where jobs get whole nodes."""
    return _gives_whole_nodes(fields) or fields.get("Exclusive") == "USER" or fields.get("ExclusiveUser") == "YES"
