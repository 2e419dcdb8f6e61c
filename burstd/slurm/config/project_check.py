"""What a running Slurm lacks of the projects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX, Project, gpu_number, gpus_text
from burstd.share import share_path
from burstd.slurm.commands.parsing import expand_hosts, parse_count, parse_records, parse_tres
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import SlurmConfFinding, read_partitions
from burstd.slurm.config.projects import (
    BILLING,
    GPUS,
    QUOTA_TIER,
    WEIGHTS,
    Partitions,
    counted_shards,
    gpu_limit,
    leaves,
    node_shards,
    partition_pair,
    project_nodes,
    projects_lua_line,
    shards_in_force,
    tres_change,
)
from burstd.slurm.hostlist import compress

INCLUDED = "burstd-projects.conf"
"""What slurm.conf includes of burstd's spool."""
_NOBODY = "users=root"
"""Without it the associations of all users of the accounts are shown."""


@dataclass(frozen=True, slots=True)
class ProjectState:
    """What slurmctld holds."""

    partitions: Partitions
    gpu_limits: Mapping[str, Fraction | None]
    """GPUs that GrpTRES of a QOS allows, as its partition counts them; None: any number."""
    accounts: frozenset[str]
    """Of those that were asked for, those that have an association in this cluster."""


def read_project_state(commands: SlurmCommands, projects: Iterable[Project]) -> ProjectState:
    """Asks slurmctld, with two commands, and not slurmdbd. Raises SchedulerUnavailable."""
    accounts = f"accounts={','.join(project.account for project in leaves(projects))}"
    text = commands("scontrol", "--oneliner", "show", "assoc_mgr", "flags=qos,assoc", accounts, _NOBODY)
    known = frozenset(f.get("Account", "") for f in parse_records(text, "ClusterName"))
    partitions = read_partitions(commands)
    shards = {name: shards_in_force(words) for name, words in partitions.items()}
    return ProjectState(partitions, parse_qos_limits(text, shards), known)


def parse_qos_limits(text: str, shards: Mapping[str, int] = MappingProxyType({})) -> dict[str, Fraction | None]:
    """GPUs that each QOS allows, of ``scontrol -o show assoc_mgr``: ``QOS=q-a(2) ... GrpTRES=...,gres/gpu=4(0)``.

    ``shards``: by QOS, those of a GPU in which its ``billing`` counts; left out or 0: whole GPUs count.
    """
    limits: dict[str, Fraction | None] = {}
    for fields in parse_records(text, "QOS"):
        name = fields["QOS"].rpartition("(")[0]
        of_gpu = shards.get(name, 0)
        limit = parse_tres(fields.get("GrpTRES", "")).get(BILLING if of_gpu else GPUS, "N").partition("(")[0]
        limits[name] = Fraction(parse_count(limit), of_gpu or 1) if limit.isdecimal() else None
    return limits


def projects_findings(
    projects: Iterable[Project], config: Mapping[str, str], commands: SlurmCommands
) -> Iterator[SlurmConfFinding]:
    """Of these projects, and of pairs of partitions of others. ``config``: what slurmctld says of its settings.

    Asks slurmctld; job_submit.lua is looked for on this host. Raises SchedulerUnavailable.
    """
    projects = leaves(projects)
    conf = Path(config.get("SLURM_CONF", "") or "/etc/slurm/slurm.conf")
    if projects:
        state = read_project_state(commands, projects)
        for project in projects:
            yield from project_findings(project, state)
            yield from _parts(project, state)
        yield from _preempted(projects, state)
        shared = [p.name for p in projects if shards_in_force(state.partitions.get(p.over_quota_partition, {}))]
        yield from _lua(projects, shared, conf.parent)
    yield from _unwritten(read_partitions(commands), conf)


def _unwritten(partitions: Partitions, conf: Path) -> Iterator[SlurmConfFinding]:
    """Partitions that scontrol made: slurmctld ends their jobs where slurm.conf and what it includes lack them.

    A project's have a QOS of their own name. burstctl may have made it, and burstd.toml does not know it.
    """
    lines = _lines(conf)
    names = {line.partition(" ")[0] for line in lines}
    for name, words in partitions.items():
        pair = words.get("QoS") == name and name.startswith((QUOTA_PREFIX, OVER_QUOTA_PREFIX))
        if lines and pair and f"PartitionName={name}" not in names:
            yield SlurmConfFinding(
                f"partition {name}", f"its line in {conf}", "made by scontrol",
                "scontrol reconfigure ends all of its jobs",
                f"add the line, or 'Include {INCLUDED}' as docs/projects.md says, before scontrol reconfigure",
            )  # fmt: skip


def _lines(conf: Path) -> list[str]:
    """Of slurm.conf, with the files that it includes; none where it is not on this host."""
    try:
        lines = conf.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    included = [words[1] for line in lines if len(words := line.split()) == 2 and words[0].lower() == "include"]
    return [*lines, *(line for name in included for line in _lines(conf.parent / name))]


def _lua(projects: Sequence[Project], shared: Sequence[str], folder: Path) -> Iterator[SlurmConfFinding]:
    """The table of projects, in burstd's file or in one that calls it."""
    line, breaks = projects_lua_line(projects, shared), "jobs do not get the partitions of their account's project"
    for name in ("burstd_job_submit.lua", "job_submit.lua"):
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        if line in lines:
            return
        tables = [text for text in lines if text.startswith("local projects = {")]
        if tables:
            yield SlurmConfFinding(
                f"{folder / name}", line, tables[0], breaks, "put the line there and run scontrol reconfigure"
            )
            return
    yield SlurmConfFinding(
        f"{folder}/job_submit.lua", line, "no such line, or no file that can be read", breaks,
        f"copy {share_path('config', 'slurm', 'job_submit.lua')} there and put the line into it",
    )  # fmt: skip


def _preempted(projects: Iterable[Project], state: ProjectState) -> Iterator[SlurmConfFinding]:
    """Partitions of the site over nodes of projects, whose jobs are victims of quotas."""
    for name in dict.fromkeys(name for project in projects for name in project.partitions):
        there = state.partitions.get(name, {})
        if there and there.get("PreemptMode") != "OFF":
            yield SlurmConfFinding(
                f"partition {name}", "PreemptMode=OFF", f"PreemptMode={there.get('PreemptMode')}",
                "jobs there of accounts without a project are requeued when a project asks for its quota",
                "leave it, or set PreemptMode=OFF; then such jobs keep GPUs from projects", recommended=True,
            )  # fmt: skip


def _parts(project: Project, state: ProjectState) -> Iterator[SlurmConfFinding]:
    """A quota in parts of a GPU that Slurm cannot keep, and GPUs of which it counts no parts."""
    numbers = sorted(node_shards(project, state.partitions))
    nodes = " and ".join(project.partitions)
    if len(numbers) > 1:
        yield SlurmConfFinding(
            f"nodes of {nodes}", "the same number of shards of each GPU that has any",
            f"GPUs of {' and '.join(map(str, numbers))} shards",
            f"the quota of project {project.name} counts whole GPUs only, and its jobs of shards are beyond it",
            "put nodes of each kind into a partition of their own, with projects of their own", recommended=True,
        )  # fmt: skip
    shards = counted_shards(project, state.partitions) or 1
    kept = Fraction(int(project.quota * shards), shards)
    if kept != project.quota:
        yield SlurmConfFinding(
            f"quota of project {project.name}", f"a multiple of {gpus_text(Fraction(1, shards))}",
            gpus_text(project.quota), f"it is rounded down to {gpus_text(kept)}: a GPU of {nodes} "
            + (f"has {shards} shards" if shards > 1 else "has no shards that Slurm counts"),
            f"set projects.{project.name}.quota to {gpu_number(kept)} or {gpu_number(kept + Fraction(1, shards))}",
            recommended=True,
        )  # fmt: skip


def project_findings(project: Project, state: ProjectState) -> Iterator[SlurmConfFinding]:
    """What is not as the project needs it, the worst first."""
    for name in project.partitions:
        if name not in state.partitions:
            yield SlurmConfFinding(
                f"partition {name}", f"a partition whose nodes project {project.name} shares", "not there",
                f"no job of project {project.name} starts there", f"correct projects.{project.name}.partitions",
            )  # fmt: skip
    if project.account not in state.accounts:
        yield SlurmConfFinding(
            f"account {project.account}", f"the account of project {project.name}", "not there",
            f"nobody can submit jobs of project {project.name}",
            f"correct projects.{project.name}.account, or run sacctmgr add account {project.account}",
        )  # fmt: skip
    for name, words in partition_pair(project, state.partitions).items():
        yield from _partition(project, name, words, state)
        if name not in state.gpu_limits:
            yield SlurmConfFinding(
                f"QOS {name}", f"the limit of partition {name}", "not there",
                f"nothing limits what project {project.name} runs in {name}",
                "run the sacctmgr lines of burstctl slurm-config, then scontrol reconfigure",
            )  # fmt: skip
    name = project.quota_partition
    shards = shards_in_force(state.partitions.get(name, {}))
    wanted = gpu_limit(project.quota, shards)
    quota = state.gpu_limits.get(name, project.quota)
    found = "no limit" if quota is None else gpu_limit(quota, shards)
    if found != wanted:
        yield SlurmConfFinding(
            f"QOS {name}", f"GrpTRES={wanted}", found,
            f"Slurm keeps another quota for project {project.name} than burstd",
            f"run sacctmgr modify qos {name} set GrpTRES={tres_change(wanted, f'{GPUS}=0' if shards else '')}",
        )  # fmt: skip


def _partition(
    project: Project, name: str, words: Mapping[str, str], state: ProjectState
) -> Iterator[SlurmConfFinding]:
    there, subject = state.partitions.get(name), f"partition {name}"
    if there is None:
        yield SlurmConfFinding(
            subject, f"the partition of project {project.name}", "not there",
            f"jobs of project {project.name} are refused",
            "add its line of burstctl slurm-config to slurm.conf and run scontrol reconfigure",
        )  # fmt: skip
        return
    wrong = {
        "AllowAccounts": f"other accounts use what is for project {project.name}, or its own cannot",
        "PreemptMode": "jobs within a quota are preempted, or those beyond it are not",
        "State": "no job of the partition starts",
    }
    found = {key: there.get(key, "not set") for key in wrong}
    found["QOS"] = there.get("QoS", "not set")
    wrong["QOS"] = f"nothing limits what project {project.name} runs in {name}"
    for key, consequence in wrong.items():
        if found[key] != words[key]:
            yield SlurmConfFinding(
                subject, f"{key}={words[key]}", f"{key}={found[key]}", consequence,
                f"set {key}={words[key]} in its line of slurm.conf and run scontrol reconfigure",
            )  # fmt: skip
    counted, wanted = shards_in_force(there), counted_shards(project, state.partitions)
    if counted != wanted:
        weights = words.get(WEIGHTS) or "(null)"
        yield SlurmConfFinding(
            subject, f"{WEIGHTS}={weights}", f"{WEIGHTS}={there.get(WEIGHTS, '(null)')}",
            f"the quota of project {project.name} counts other parts of GPUs than its nodes have",
            f"set {WEIGHTS}={weights} in its line of slurm.conf, run scontrol reconfigure, then burstctl project set "
            f"{project.name}, which changes the QOS",
        )  # fmt: skip
    if name == project.quota_partition and parse_count(there.get("PriorityTier", "")) < QUOTA_TIER:
        yield SlurmConfFinding(
            subject, f"PriorityTier={QUOTA_TIER}", f"PriorityTier={there.get('PriorityTier')}",
            f"project {project.name} does not get its quota back from others",
            f"set PriorityTier={QUOTA_TIER} in its line of slurm.conf and run scontrol reconfigure",
        )  # fmt: skip
    nodes = project_nodes(project, state.partitions)
    if set(nodes) != set(expand_hosts(there.get("Nodes", ""))):
        yield SlurmConfFinding(
            subject, f"Nodes={compress(nodes)}", f"Nodes={there.get('Nodes', '')}",
            f"project {project.name} shares other nodes than burstd divides",
            "make its line of slurm.conf agree and run scontrol reconfigure",
        )  # fmt: skip
