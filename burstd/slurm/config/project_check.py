"""What a running Slurm lacks of the projects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX, Project
from burstd.share import share_path
from burstd.slurm.commands.nodes import NodeReader
from burstd.slurm.commands.parsing import expand_hosts, parse_count, parse_records, parse_tres
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import SlurmConfFinding, read_partitions
from burstd.slurm.config.projects import (
    GPUS,
    INCLUDED,
    QUOTA_TIER,
    Features,
    Partitions,
    leaves,
    partition_pair,
    project_nodes,
    projects_lua_line,
)
from burstd.slurm.hostlist import compress

_NOBODY = "users=root"
"""Without it the associations of all users of the accounts are shown."""


@dataclass(frozen=True, slots=True)
class ProjectState:
    """What slurmctld holds."""

    partitions: Partitions
    gpu_limits: Mapping[str, Fraction | None]
    """GPUs that GrpTRES of a QOS allows; None: any number."""
    accounts: frozenset[str]
    """Of those that were asked for, those that have an association in this cluster."""
    features: Features


def read_project_state(
    commands: SlurmCommands, projects: Iterable[Project], features: Features | None = None
) -> ProjectState:
    """Asks slurmctld, with two commands, and not slurmdbd. Raises SchedulerUnavailable.

    ``features`` of nodes are asked for as well where they are not given and a project names some.
    """
    projects = leaves(projects)
    accounts = f"accounts={','.join(project.account for project in projects)}"
    text = commands("scontrol", "--oneliner", "show", "assoc_mgr", "flags=qos,assoc", accounts, _NOBODY)
    known = frozenset(f.get("Account", "") for f in parse_records(text, "ClusterName"))
    if features is None:
        features = read_features(commands, projects)
    return ProjectState(read_partitions(commands), parse_qos_limits(text), known, features)


def read_features(commands: SlurmCommands, projects: Iterable[Project]) -> Features:
    """By node; asks slurmctld where a project names features. Raises SchedulerUnavailable."""
    if not any(project.features for project in projects):
        return {}
    return {node.name: node.features for node in NodeReader(commands, lambda wall: wall).read_all()}


def parse_qos_limits(text: str) -> dict[str, Fraction | None]:
    """GPUs that each QOS allows, of ``scontrol -o show assoc_mgr``: ``QOS=q-a(2) ... GrpTRES=...,gres/gpu=4(0)``."""
    limits: dict[str, Fraction | None] = {}
    for fields in parse_records(text, "QOS"):
        limit = parse_tres(fields.get("GrpTRES", "")).get(GPUS, "N").partition("(")[0]
        limits[fields["QOS"].rpartition("(")[0]] = Fraction(parse_count(limit)) if limit.isdecimal() else None
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
        yield from _preempted(projects, state)
        yield from _lua(projects, conf.parent)
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


def _lua(projects: Sequence[Project], folder: Path) -> Iterator[SlurmConfFinding]:
    """The table of projects, in burstd's file or in one that calls it."""
    line, breaks = projects_lua_line(projects), "jobs do not get the partitions of their account's project"
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
    nodes = project_nodes(project, state.partitions, state.features)
    if project.features and not nodes:
        yield SlurmConfFinding(
            f"nodes of {' and '.join(project.partitions)}", f"nodes with feature {' and '.join(project.features)}",
            "none", f"no job of project {project.name} starts",
            f"correct projects.{project.name}.features, or give nodes these features in slurm.conf",
        )  # fmt: skip
        return
    for name, words in partition_pair(project, state.partitions, state.features).items():
        yield from _partition(project, name, words, nodes, state)
        if name not in state.gpu_limits:
            yield SlurmConfFinding(
                f"QOS {name}", f"the limit of partition {name}", "not there",
                f"nothing limits what project {project.name} runs in {name}",
                "run the sacctmgr lines of burstctl slurm-config, then scontrol reconfigure",
            )  # fmt: skip
    quota = state.gpu_limits.get(project.quota_partition, project.quota)
    if quota != int(project.quota):
        yield SlurmConfFinding(
            f"QOS {project.quota_partition}", f"GrpTRES={GPUS}={int(project.quota)}",
            "no limit" if quota is None else f"{GPUS}={quota}",
            f"Slurm keeps another quota for project {project.name} than burstd",
            f"run sacctmgr modify qos {project.quota_partition} set GrpTRES={GPUS}={int(project.quota)}",
        )  # fmt: skip


def _partition(
    project: Project, name: str, words: Mapping[str, str], nodes: Sequence[str], state: ProjectState
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
    if name == project.quota_partition and parse_count(there.get("PriorityTier", "")) < QUOTA_TIER:
        yield SlurmConfFinding(
            subject, f"PriorityTier={QUOTA_TIER}", f"PriorityTier={there.get('PriorityTier')}",
            f"project {project.name} does not get its quota back from others",
            f"set PriorityTier={QUOTA_TIER} in its line of slurm.conf and run scontrol reconfigure",
        )  # fmt: skip
    if set(nodes) != set(expand_hosts(there.get("Nodes", ""))):
        yield SlurmConfFinding(
            subject, f"Nodes={compress(nodes)}", f"Nodes={there.get('Nodes', '')}",
            f"project {project.name} shares other nodes than burstd divides",
            "make its line of slurm.conf agree and run scontrol reconfigure",
        )  # fmt: skip
