"""The slurm.conf and gres.conf lines that the configured pools need. burstd/slurm/config/check.py compares them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import Project
from burstd.slurm.config.projects import (
    GPUS,
    INCLUDED,
    SHARDS,
    Features,
    Partitions,
    counted_shards,
    leaves,
    pair_names,
    project_partition_lines,
    projects_lua_line,
    sacctmgr_commands,
)
from burstd.slurm.hostlist import compress

YEAR_S = 31_536_000
"""SuspendTime: long enough that slurmctld never powers a node down by itself, yet power saving is on."""
PROLOG = "PrologSlurmctld"
"""Runs on the head before each job; newer versions take several lines of it."""
NODE_PROLOG, TASK_PROLOG = "Prolog", "TaskProlog"
"""Run on a node before each job, and before each task. Newer versions take several lines of the first."""
NODE_PROLOG_FILE, TASK_PROLOG_FILE = "/etc/burstd/true", "/etc/burstd/task-prolog"
"""On burstd's nodes."""
NODE_PROLOG_FILES = "/[eu][ts][cr]/b*/true"
"""That file, and /usr/bin/true, which every node has: slurmd drains a node on which it finds none."""
POWERED_DOWN = "power saving may switch the site's own machines off"
CLOUD_NODES_SHOWN_SINCE = (23, 2, 0)
"""From this version on powered-down CLOUD nodes are always shown."""


@dataclass(frozen=True, slots=True)
class SlurmConfOptions:
    """What the fragment is made from, beside the pools. Times in seconds.

    ``version`` is slurmctld's. ``programs`` are the folder with burstd-resume, burstd-suspend and their like.
    ``keep_partitions`` are partitions of machines of the site's own, which power saving must leave alone.
    ``devices`` gives, for a GRES name, the device files of gres.conf with ``{}`` for the range of numbers.
    ``configless``: nodes get their configuration from slurmctld. ``staging``: burstd stages the data of jobs.
    ``prolog``: burstd shows trees of the site on its nodes before jobs start. ``workdir_partitions``: those in which
    burstd stages the working directory of every batch job, ``brokered_partitions`` those in which jobs may require
    machines by their comment. ``projects`` share the nodes of
    ``partitions``, which are the running ones; ``features`` are those of these nodes.
    ``default_memory_mib``: what a job that names no memory asks for, by DefMemPerNode or DefMemPerCPU of all
    partitions; 0: no such setting. ``default_gpu_memory_mib``: the same for each GPU. ``made_projects``: those that
    burstctl has made, whose partitions are in the file ``kept_lines``.
    """

    version: tuple[int, int, int] = (22, 5, 0)
    programs: str = "/opt/burstd/bin"
    onprem_partitions: tuple[str, ...] = ()
    resume_timeout_s: int = 900
    suspend_timeout_s: int = 30
    devices: Mapping[str, str] = field(default_factory=lambda: {"gpu": "/dev/nvidia{}"})
    configless: bool = False
    staging: bool = False
    prolog: bool = False
    workdir_partitions: tuple[str, ...] = ()
    brokered_partitions: tuple[str, ...] = ()
    projects: tuple[Project, ...] = ()
    partitions: Partitions = field(default_factory=dict)
    features: Features = field(default_factory=dict)
    default_memory_mib: int = 0
    default_gpu_memory_mib: int = 0
    made_projects: tuple[str, ...] = ()
    kept_lines: str = ""


@dataclass(frozen=True, slots=True)
class SlurmConfSetting:
    """One global setting of slurm.conf.

    ``words`` are what the value must hold, among others where ``merge`` is True: the site's own words stay. ``breaks``
    says what does not work without it. ``advice`` marks what only makes burstd slower.
    """

    name: str
    values: tuple[str, ...]
    consequence: str
    merge: bool = False
    recommended: bool = False

    @property
    def line(self) -> str:
        """As slurm.conf has it."""
        return f"{self.name}={','.join(self.values)}"


def required_settings(pools: Sequence[Pool], options: SlurmConfOptions) -> tuple[SlurmConfSetting, ...]:
    """The global settings that burstd needs or recommends."""
    gres = tuple(sorted({g.name for p in pools for g in p.shape.gres}))
    folder = options.programs.rstrip("/")
    asked = "what Slurm asks for by itself (an administrator's power_up, a lost gate) is not served"
    off = f"{asked}, and with no such program power saving is off and no slot is ever free again"
    found = [
        SlurmConfSetting("ResumeProgram", (f"{folder}/burstd-resume",), off),
        SlurmConfSetting("SuspendProgram", (f"{folder}/burstd-suspend",), off),
        SlurmConfSetting(
            "ResumeFailProgram",
            (f"{folder}/burstd-resumefail",),
            "burstd hears only at its next look that Slurm gave a node up",
        ),
        SlurmConfSetting(
            "ResumeTimeout",
            (str(options.resume_timeout_s),),
            "Slurm gives nodes up that are still booting, or waits too long for dead ones",
        ),
        SlurmConfSetting(
            "SuspendTimeout", (str(options.suspend_timeout_s),), "a slot is not free again as soon as its node went"
        ),
        SlurmConfSetting(
            "SuspendTime", (str(YEAR_S),), "slurmctld powers nodes down by itself; when nodes go is burstd's to decide"
        ),
        SlurmConfSetting(
            "SuspendRate", ("0",), "of many nodes that go at once, Slurm lets one a second go", recommended=True
        ),
        SlurmConfSetting(
            "ResumeRate", ("0",), "Slurm asks for no more than 300 nodes a minute by itself", recommended=True
        ),
        SlurmConfSetting(
            "SlurmctldParameters",
            ("idle_on_node_suspend", "power_save_interval=1", *(["enable_configless"] if options.configless else [])),
            "a slot is stuck after its node went, and power changes take ten seconds longer"
            + (", or slurmd does not start, as it gets no configuration" if options.configless else ""),
            merge=True,
        ),
        SlurmConfSetting(
            "TreeWidth", ("65533",), "messages to cloud nodes go through other cloud nodes that may be gone"
        ),
        SlurmConfSetting(
            "SchedulerParameters",
            ("batch_sched_delay=0", "default_queue_depth=10000", "bf_max_job_test=10000", "bf_interval=5"),
            "a job deep in the queue waits up to minutes after its node is ready",
            merge=True,
            recommended=True,
        ),
        SlurmConfSetting(
            "ReturnToService",
            ("2",),
            "a node stays DOWN that came back, or whose slurmd registered twice at its boot ('Node unexpectedly "
            "rebooted'), and its job waits",
        ),
    ]
    if options.version < CLOUD_NODES_SHOWN_SINCE:
        found.append(
            SlurmConfSetting(
                "PrivateData", ("cloud",), "neither burstd nor users see a slot that has no machine", merge=True
            )
        )
    if options.onprem_partitions:
        found.append(
            SlurmConfSetting(
                "SuspendExcParts",
                options.onprem_partitions,
                POWERED_DOWN,
                merge=True,
            )
        )
    if options.staging:
        found.append(
            SlurmConfSetting(
                "BurstBufferType",
                ("burst_buffer/lua",),
                "jobs with #BURST lines start without their data; burst_buffer.lua and burst_buffer.conf must lie "
                "beside slurm.conf before slurmctld is restarted",
            )
        )
    if options.prolog:
        found.append(
            SlurmConfSetting(
                PROLOG,
                (f"{folder}/burstd-prolog",),
                "jobs start before the trees of [mounts] are there",
            )
        )
    found += gpu_memory_settings(pools)
    projects = leaves(options.projects)
    if options.workdir_partitions or options.brokered_partitions or projects:
        found.append(SlurmConfSetting("JobSubmitPlugins", ("lua",), _lua_consequence(options), merge=True))
    if projects:
        found += _PROJECT_SETTINGS
        in_shards = any(counted_shards(project, options.partitions) for project in projects)
        found.append(_counted_tres((GPUS, SHARDS) if in_shards else (GPUS,)))
    if gres:
        found.append(SlurmConfSetting("GresTypes", gres, "slurmctld does not know the slots' GRES", merge=True))
    return tuple(found)


def gpu_memory_settings(pools: Sequence[Pool]) -> list[SlurmConfSetting]:
    """What slurm.conf must have where pools limit jobs to their shards' part of a GPU's memory."""
    limits = {pool.gpu_memory_limit for pool in pools}
    unlimited = "no machine becomes a node of a pool with gpu_memory_limit, as nothing limits its jobs"
    found = []
    if limits - {"none"}:
        files = f"it names {NODE_PROLOG_FILE} on nodes of burstd, and /usr/bin/true, which does nothing, on every node"
        found.append(SlurmConfSetting(NODE_PROLOG, (NODE_PROLOG_FILES,), f"{unlimited}; {files}"))
    if "mps" in limits:
        link = f"'mkdir -p /etc/burstd; ln -s /bin/true {TASK_PROLOG_FILE}'"
        first = f"before you set it run {link} on each node that is not burstd's, or its tasks fail"
        found.append(SlurmConfSetting(TASK_PROLOG, (TASK_PROLOG_FILE,), f"{unlimited}; {first}"))
    if "dmem" in limits:
        found += [
            SlurmConfSetting("PrologFlags", ("Contain",), "a job loses its limit between two steps", merge=True),
            SlurmConfSetting("ProctrackType", ("proctrack/cgroup",), "jobs have no cgroup, which has the limit"),
        ]
    return found


_PROJECT_SETTINGS = (
    SlurmConfSetting("AccountingStorageType", ("accounting_storage/slurmdbd",), "there are no QOS, which hold quotas"),
    SlurmConfSetting("AccountingStorageEnforce", ("limits",), "Slurm does not keep any quota", merge=True),
    SlurmConfSetting("PreemptType", ("preempt/partition_prio",), "no project gets its quota back from others"),
    SlurmConfSetting("PreemptMode", ("REQUEUE",), "no project gets its quota back from others", merge=True),
    SlurmConfSetting("JobRequeue", ("1",), "jobs beyond a quota are cancelled where they should be requeued"),
    SlurmConfSetting(
        "SchedulerParameters",
        ("preempt_youngest_first",),
        "jobs that ran for long are preempted before those that have just begun",
        merge=True,
        recommended=True,
    ),
)


def _counted_tres(tres: tuple[str, ...]) -> SlurmConfSetting:
    breaks = "Slurm does not count the GPUs of projects"
    if SHARDS in tres:
        breaks += ", or does not start, as their partitions weigh shards"
    return SlurmConfSetting("AccountingStorageTRES", tres, breaks, merge=True)


def _lua_consequence(options: SlurmConfOptions) -> str:
    parts = []
    if options.workdir_partitions:
        parts.append("working directories are staged only where a script says '#BURST workdir'")
    if options.brokered_partitions:
        parts.append("Slurm may start a job on a node that is free and not what its comment requires")
    if leaves(options.projects):
        parts.append("jobs do not get the partitions of their account's project")
    lines = " and ".join(job_submit_lines(options))
    return f"{' and '.join(parts)}; job_submit.lua must lie beside slurm.conf with {lines}"


def job_submit_lines(options: SlurmConfOptions) -> list[str]:
    """The lines of job_submit.lua that are not as it comes with burstd."""
    lines = []
    if options.workdir_partitions:
        lines.append(workdir_lua_line(options.workdir_partitions))
    if options.brokered_partitions:
        lines.append(brokered_lua_line(options.brokered_partitions))
    if leaves(options.projects):
        shared = [p.name for p in options.projects if counted_shards(p, options.partitions)]
        lines.append(projects_lua_line(options.projects, shared))
    return lines


def job_submit_text(template: str, options: SlurmConfOptions) -> str:
    """job_submit.lua as it comes with burstd, with the lines of this site."""
    lines = {line.partition("=")[0]: line for line in job_submit_lines(options)}
    lines["local client "] = f'local client = "{options.programs.rstrip("/")}/burstd-stage"'
    return "\n".join(lines.get(line.partition("=")[0], line) for line in template.splitlines()) + "\n"


def node_line(pool: Pool) -> str:
    """The NodeName line of a pool's slots."""
    shape = pool.shape
    words = [f"NodeName={compress(pool.slots)}", f"CPUs={shape.cpus}", f"RealMemory={shape.memory_mib}"]
    if shape.gres:
        words.append("Gres=" + ",".join(str(g) for g in shape.gres))
    if shape.features:
        words.append("Feature=" + ",".join(sorted(shape.features)))
    return " ".join([*words, "State=CLOUD"])


def workdir_lua_line(partitions: Sequence[str]) -> str:
    """The line of job_submit.lua that names partitions in which working directories are staged."""
    return _lua_list("staged", partitions)


def brokered_lua_line(partitions: Sequence[str]) -> str:
    """The line of job_submit.lua that names partitions in which jobs may require machines by their comment."""
    return _lua_list("brokered", partitions)


def _lua_list(name: str, partitions: Sequence[str]) -> str:
    names = ", ".join(f'"{partition}"' for partition in partitions)
    return f"local {name} = {{ {names} }}" if names else f"local {name} = {{}}"


def partition_lines(
    pools: Sequence[Pool],
    whole_nodes: Collection[str] = (),
    without: Collection[str] = (),
    default_memory_mib: int = 0,
    default_gpu_memory_mib: int = 0,
) -> list[str]:
    """One PartitionName line for each other partition that has slots. ``whole_nodes``: where a job shares no node."""
    slots: dict[str, list[str]] = {}
    for pool in pools:
        for partition in pool.partitions:
            slots.setdefault(partition, []).extend(pool.slots)
    exclusive = exclusive_user_partitions(pools)
    lines = []
    for name in (name for name in slots if name not in without):
        words = [f"PartitionName={name}", f"Nodes={compress(slots[name])}"]
        if name in whole_nodes:
            words.append("OverSubscribe=EXCLUSIVE")
        elif name in exclusive:
            words.append("ExclusiveUser=YES")
        if fitting := fitting_memory(pools, name, default_memory_mib, default_gpu_memory_mib):
            words.append(fitting)
        lines.append(" ".join([*words, "MaxTime=INFINITE", "State=UP"]))
    return lines


def fitting_memory(pools: Sequence[Pool], partition: str, default_mib: int, default_gpu_mib: int) -> str:
    """``DefMemPerCPU=900``, where a job that names no memory fits no node of a partition's pools; else empty.

    ``DefMemPerGPU=900``, where that is so of a job of one GPU. Slurm takes one of the two.
    """
    shapes = [pool.shape for pool in pools if partition in pool.partitions]
    if default_mib > max(shape.memory_mib for shape in shapes):
        return f"DefMemPerCPU={min(shape.memory_mib // shape.cpus for shape in shapes)}"
    with_gpus = [shape for shape in shapes if shape.gpus()]
    if with_gpus and default_gpu_mib > max(shape.memory_mib for shape in with_gpus):
        return f"DefMemPerGPU={min(shape.memory_mib // shape.gpus() for shape in with_gpus)}"
    return ""


def exclusive_user_partitions(pools: Sequence[Pool]) -> frozenset[str]:
    """Partitions with slots that run jobs of one user at a time."""
    return frozenset(partition for pool in pools if pool.exclusive_user for partition in pool.partitions)


def slurm_conf_fragment(pools: Sequence[Pool], options: SlurmConfOptions) -> str:
    """The lines to put into slurm.conf, with comments for the administrator."""
    lines = [
        "# For burstd. A setting that slurm.conf has already must stand there once only:",
        "# where the lines below say 'merge', add the words to those that are there.",
    ]
    for setting in required_settings(pools, options):
        note = " merge:" if setting.merge else ""
        note += " recommended:" if setting.recommended else ""
        lines.append(f"#{note} without it {setting.consequence}")
        lines.append(setting.line)
    for pool in pools:
        lines.append(f"# pool {pool.name}")
        lines.append(node_line(pool))
    lines.append(
        "# A partition that slurm.conf has already: add the nodes to its Nodes instead, and name the site's own"
    )
    lines.append("# nodes in it in SuspendExcNodes.")
    lines += partition_lines(
        pools,
        options.workdir_partitions,
        pair_names(options.projects),
        options.default_memory_mib,
        options.default_gpu_memory_mib,
    )
    lines += _project_lines(options)
    return "\n".join(lines) + "\n"


def _project_lines(options: SlurmConfOptions) -> list[str]:
    projects = leaves(options.projects)
    made = [
        f"# 'burstctl project' has made {', '.join(options.made_projects)}: burstd keeps the lines in",
        f"# {options.kept_lines}. Before slurm.conf has the next line, link this file as",
        f"# {INCLUDED} beside it.",
        f"Include {INCLUDED}",
    ]
    return [*(_written_lines(projects, options) if projects else ()), *(made if options.made_projects else ())]


def _written_lines(projects: Sequence[Project], options: SlurmConfOptions) -> list[str]:
    """Of projects of burstd.toml."""
    head = ["# Projects. Before their partitions there must be their accounts and QOS:"]
    commands = [c for project in projects for c in sacctmgr_commands(project, options.partitions, options.version)]
    accounting = [f"#   {shlex.join(command)}" for command in commands]
    return [*head, *accounting, *project_partition_lines(projects, options.partitions, options.features)]


def gres_conf_lines(pools: Sequence[Pool], options: SlurmConfOptions) -> str:
    """The lines to put into gres.conf."""
    lines = []
    for pool in pools:
        first = 0
        if pool.mig:
            # Which device files a part has is known once its GPU is cut.
            lines.append(f"NodeName={compress(pool.slots)} AutoDetect=nvml")
        for gres in pool.shape.gres:
            if pool.mig and gres.name == "gpu":
                continue
            words = [f"NodeName={compress(pool.slots)}", f"Name={gres.name}"]
            if gres.type:
                words.append(f"Type={gres.type}")
            device = options.devices.get(gres.name)
            if device is None:
                words.append(f"Count={gres.count}")
            else:
                last = first + gres.count - 1
                words.append("File=" + device.format(f"[{first}-{last}]" if gres.count > 1 else str(first)))
                first = last + 1
            lines.append(" ".join(words))
    return "\n".join(lines) + ("\n" if lines else "")
