"""What a running Slurm lacks of the projects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.project import Project, gpu_number, gpus_text
from burstd.share import share_path
from burstd.slurm.commands.nodes import NodeReader
from burstd.slurm.commands.parsing import expand_hosts, parse_count, parse_records, parse_tres
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import SlurmConfFinding, read_partitions
from burstd.slurm.config.projects import (
    BILLING,
    GPUS,
    INCLUDED,
    NO_TIME,
    QUOTA_TIER,
    WEIGHTS,
    Features,
    Partitions,
    counted_shards,
    gpu_limit,
    is_of_project,
    leaves,
    node_shards,
    partition_pair,
    project_nodes,
    projects_lua_line,
    qos_pair,
    shards_in_force,
    tres_change,
)
from burstd.slurm.hostlist import compress

UNWRITTEN_REMEDY = f"add their lines, or 'Include {INCLUDED}' as docs/projects.md says, before scontrol reconfigure"
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
    features: Features
    written: Partitions
    """Partitions as slurm.conf has them, with keys in lower case; none where it is not on this host."""

    @property
    def unwritten(self) -> list[str]:
        """Partitions of projects, known to burstd or not, that scontrol made: slurm.conf lacks them."""
        pairs = [name for name in self.partitions if is_of_project(name, self.partitions)]
        return [name for name in pairs if self.written and name not in self.written]


def read_project_state(
    commands: SlurmCommands, projects: Iterable[Project], features: Features | None = None, conf: Path | None = None
) -> ProjectState:
    """Asks slurmctld, with two commands, and not slurmdbd. ``conf``: slurm.conf. Raises SchedulerUnavailable.

    ``features`` of nodes are asked for as well where they are not given and a project names some.
    """
    projects = leaves(projects)
    partitions = read_partitions(commands)
    written = {} if conf is None else _written_partitions(conf)
    if not projects:
        return ProjectState(partitions, {}, frozenset(), {}, written)
    if features is None:
        features = read_features(commands, projects)
    words = ("flags=qos,assoc", f"accounts={','.join(project.account for project in projects)}", _NOBODY)
    text = commands("scontrol", "--oneliner", "show", "assoc_mgr", *words)
    known = frozenset(f.get("Account", "") for f in parse_records(text, "ClusterName"))
    shards = {name: shards_in_force(words) for name, words in partitions.items()}
    return ProjectState(partitions, parse_qos_limits(text, shards), known, features, written)


def read_features(commands: SlurmCommands, projects: Iterable[Project]) -> Features:
    """By node; asks slurmctld where a project names features. Raises SchedulerUnavailable."""
    if not any(project.features for project in projects):
        return {}
    return {node.name: node.features for node in NodeReader(commands, lambda wall: wall).read_all()}


def slurm_conf(config: Mapping[str, str]) -> Path:
    """Where slurmctld has its slurm.conf. ``config``: what it says of its settings."""
    return Path(config.get("SLURM_CONF", "") or "/etc/slurm/slurm.conf")


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

    Asks slurmctld, and slurmdbd where there are projects; job_submit.lua is looked for on this host. Raises
    SchedulerUnavailable.
    """
    projects = leaves(projects)
    conf = slurm_conf(config)
    state = read_project_state(commands, projects, conf=conf)
    for project in projects:
        yield from project_findings(project, state)
    if projects:
        for project in projects:
            yield from _parts(project, state)
        yield from _preempted(projects, state)
        shared = [p.name for p in projects if shards_in_force(state.partitions.get(p.over_quota_partition, {}))]
        yield from _lua(projects, shared, conf.parent)
    for name in state.unwritten:
        yield SlurmConfFinding(
            f"partition {name}", f"its line in {conf}", "made by scontrol",
            "scontrol reconfigure ends all of its jobs",
            UNWRITTEN_REMEDY.replace("their lines", "the line"),
        )  # fmt: skip
    try:
        yield from min_runtime_findings(projects, commands)
    except SchedulerUnavailable as error:
        yield SlurmConfFinding(
            "slurmdbd", "an answer", str(error), "minimum run times of projects are not compared",
            "start slurmdbd and check again",
        )  # fmt: skip


def min_runtime_findings(projects: Iterable[Project], commands: SlurmCommands) -> Iterator[SlurmConfFinding]:
    """What Slurm has of other minimum run times. slurmctld shows none of them: asks slurmdbd. Raises
    SchedulerUnavailable.
    """
    wanted = {p.over_quota_partition: (p, qos_pair(p)[p.over_quota_partition]["PreemptExemptTime"]) for p in projects}
    if not wanted:
        return
    where = f"name={','.join(wanted)}"
    text = commands("sacctmgr", "-nP", "show", "qos", "where", where, "format=Name,PreemptExemptTime")
    for line in text.splitlines():
        name, _, found = line.partition("|")
        project, value = wanted[name]
        if (found or NO_TIME) != value:
            yield SlurmConfFinding(
                f"QOS {name}", f"PreemptExemptTime={value}", f"PreemptExemptTime={found}",
                f"Slurm keeps another min_runtime_s for project {project.name} than burstd",
                f"run sacctmgr modify qos {name} set PreemptExemptTime={value}",
            )  # fmt: skip


def _written_partitions(conf: Path) -> dict[str, dict[str, str]]:
    """The PartitionName lines of slurm.conf and of what it includes."""
    found: dict[str, dict[str, str]] = {}
    for line in _lines(conf):
        words = {key.lower(): value for key, _, value in (word.partition("=") for word in line.split())}
        # Lines of other things are under no name.
        found |= dict.fromkeys(words.get("partitionname", "").split(","), words)
    return found


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
    counted, wanted = shards_in_force(there), counted_shards(project, state.partitions)
    if counted != wanted:
        weights = words.get(WEIGHTS) or "(null)"
        how = f"set {WEIGHTS}={weights} in" if words.get(WEIGHTS) else f"remove {WEIGHTS} from"
        yield SlurmConfFinding(
            subject, f"{WEIGHTS}={weights}", f"{WEIGHTS}={there.get(WEIGHTS, '(null)')}",
            f"the quota of project {project.name} counts other parts of GPUs than its nodes have",
            f"{how} its line of slurm.conf, run scontrol reconfigure, then burstctl project set "
            f"{project.name}, which changes the QOS",
        )  # fmt: skip
    # What burstd writes ends with scontrol reconfigure; of a project that waits for machines it may be less.
    tiers = [state.written[name].get("prioritytier", "1")] if name in state.written else []
    tiers += [] if project.reclaim_after_s else [there.get("PriorityTier", "")]
    lowest = min(map(parse_count, tiers), default=QUOTA_TIER)
    if name == project.quota_partition and lowest < QUOTA_TIER:
        yield SlurmConfFinding(
            subject, f"PriorityTier={QUOTA_TIER}", f"PriorityTier={lowest}",
            f"project {project.name} does not get its quota back from others",
            f"set PriorityTier={QUOTA_TIER} in its line of slurm.conf and run scontrol reconfigure",
        )  # fmt: skip
    if set(nodes) != set(expand_hosts(there.get("Nodes", ""))):
        yield SlurmConfFinding(
            subject, f"Nodes={compress(nodes)}", f"Nodes={there.get('Nodes', '')}",
            f"project {project.name} shares other nodes than burstd divides",
            "make its line of slurm.conf agree and run scontrol reconfigure",
        )  # fmt: skip
