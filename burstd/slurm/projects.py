"""Reads and writes what Slurm holds of projects: accounts, pairs of partitions and their tiers, QOS and their limits.

slurmctld enforces all of it by itself. It is asked with scontrol (some 10 ms). What asks slurmdbd, with sacctmgr, says
so here: 0.4 s a command on 22.05, 0.06 s from 24.11 on, for a worker thread.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

from burstd.domain.errors import SchedulerRefused
from burstd.domain.project import LOWEST_TIER, OVER_QUOTA_PREFIX, QUOTA_PREFIX, OverQuotaLimits, Project, ProjectsView
from burstd.slurm.commands.controller import parse_config, slurmctld_version
from burstd.slurm.commands.parsing import expand_hosts, parse_count, parse_tres
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import SlurmConfFinding, read_partitions
from burstd.slurm.config.project_check import (
    ProjectState,
    min_runtime_findings,
    project_findings,
    read_features,
    read_project_state,
    slurm_conf,
)
from burstd.slurm.config.projects import (
    BILLING,
    GPUS,
    QUOTA_TIER,
    WEIGHTS,
    WHOLE_OR_SHARED_SINCE,
    Features,
    Words,
    add_account,
    add_qos,
    counted_shards,
    gpu_limit,
    leaves,
    pair_names,
    partition_pair,
    project_mark,
    project_nodes,
    project_partition_lines,
    projects_lua_table,
    projects_without_preemption,
    qos_description,
    qos_pair,
    shards_in_force,
    tres_change,
)

_KEPT = "# Partitions of projects that burstctl has made. burstd writes this file."
_AT_ONCE = 4
"""So many sacctmgr take as long as one."""
_COMPARED = ("AllowAccounts", "PreemptMode", "State")
Command = tuple[str, ...]


class SlurmProjects:
    """Through Slurm's commands, from any thread. Every method raises SchedulerUnavailable, those that write also
    SchedulerRefused.
    """

    def __init__(self, commands: SlurmCommands | None = None, table: Path | None = None) -> None:
        """``table``: the file with the projects that job_submit.lua reads at each submission. Beside it, with the end
        ``.conf``, there are the partitions of projects that burstd has made, for slurm.conf to include.
        """
        self._commands = commands or SlurmCommands()
        self._table = table
        self._conf: Path | None = None
        """slurm.conf, once slurmctld has said where it is."""

    def read(self, projects: Mapping[str, Project], features: Features | None = None) -> ProjectsView:
        """What slurmctld enforces now, with two commands, or three where it counts shards. slurmdbd is not asked.

        ``features`` of nodes are asked for with one more where they are not given and a project names some.
        """
        if not leaves(projects.values()):
            return ProjectsView(projects)
        if self._conf is None:
            self._conf = slurm_conf(parse_config(self._commands("scontrol", "show", "config")))
        state = read_project_state(self._commands, projects.values(), features, self._conf)
        limits: dict[str, OverQuotaLimits] = {}
        grace_s: dict[str, float] = {}
        faults: dict[str, str] = {}
        shards: dict[str, int] = {}
        for project in leaves(projects.values()):
            name = project.over_quota_partition
            if of_gpu := shards_in_force(state.partitions.get(name, {})):
                shards[project.name] = of_gpu
            if name in state.partitions and name in state.gpu_limits:
                tier = parse_count(state.partitions[name].get("PriorityTier", ""))
                limits[project.name] = OverQuotaLimits(state.gpu_limits[name], tier)
                grace_s[project.name] = float(parse_count(state.partitions[name].get("GraceTime", "")))
            for fault in project_findings(project, state):
                faults.setdefault(project.name, _fault_text(fault))
        return ProjectsView(
            projects, limits, faults, projects_without_preemption(state.partitions), tuple(state.unwritten),
            shards=shards,
            grace_s={name: some for name, some in grace_s.items() if some},
        )  # fmt: skip

    def min_runtime_faults(self, projects: Mapping[str, Project]) -> dict[str, str]:
        """By project, that Slurm keeps another minimum run time, and the remedy. Asks slurmdbd."""
        names = {project.over_quota_partition: name for name, project in projects.items()}
        found = min_runtime_findings(leaves(projects.values()), self._commands)
        return {names[fault.subject.removeprefix("QOS ")]: _fault_text(fault) for fault in found}

    def write_table(self, projects: Collection[Project], shared: Collection[str] = ()) -> None:
        """Has job_submit.lua know these projects from the next submission on. ``shared``: those of which Slurm counts
        shards. Raises OSError.
        """
        if self._table is None or not (projects or self._table.exists()):
            return
        _replace(self._table, f"return {projects_lua_table(projects, shared)}\n")

    def set_tiers(self, tiers: Mapping[str, int]) -> None:
        """Sets PriorityTier of over-quota partitions, by project. ``scontrol reconfigure`` takes it back."""
        for name, tier in tiers.items():
            # Slurm takes one partition a command.
            self._commands("scontrol", "update", f"PartitionName={OVER_QUOTA_PREFIX}{name}", f"PriorityTier={tier}")

    def set_quota_preemption(self, preempt: Collection[str], wait: Collection[str]) -> None:
        """Has the quota partitions of these projects preempt those beyond quotas, or nobody for the time being.

        What slurm.conf says comes back with a restart of slurmctld and with ``scontrol reconfigure``.
        """
        refused: SchedulerRefused | None = None
        for name, tier in {**dict.fromkeys(preempt, QUOTA_TIER), **dict.fromkeys(wait, LOWEST_TIER)}.items():
            try:
                self._commands("scontrol", "update", f"PartitionName={QUOTA_PREFIX}{name}", f"PriorityTier={tier}")
            except SchedulerRefused as error:
                # One partition that has gone keeps nobody else's quota back.
                refused = error
        if refused is not None:
            raise refused

    def restore_preemption(self) -> list[str]:
        """Has all quotas preempt those beyond quotas; returns the projects, known here or not, whose did not."""
        without_preemption = sorted(projects_without_preemption(read_partitions(self._commands)))
        self.set_quota_preemption(without_preemption, ())
        return without_preemption

    def set_caps(self, caps: Mapping[str, Fraction | None]) -> None:
        """Sets the GPUs that over-quota QOS allow, by project; None: any number. Asks slurmdbd."""
        by_limit: dict[str, list[str]] = {}
        partitions = read_partitions(self._commands)
        for name, gpus in caps.items():
            qos = OVER_QUOTA_PREFIX + name
            by_limit.setdefault(gpu_limit(gpus, shards_in_force(partitions.get(qos, {}))), []).append(qos)

        def modify(limit: str) -> None:
            where = f"name={','.join(by_limit[limit])}"
            self._commands("sacctmgr", "-i", "modify", "qos", "where", where, "set", f"GrpTRES={limit}")

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(modify, by_limit))

    def plan_setup(self, project: Project) -> tuple[str, ...]:
        """The commands that ``set_up`` would run now, as lines of a shell. Asks slurmdbd."""
        return tuple(shlex.join(command) for command in self._setup(project))

    def set_up(self, project: Project, *, made_by_burstd: bool = False) -> None:
        """Makes what is not there, and changes what differs; may be repeated. Asks slurmdbd.

        ``made_by_burstd``: slurm.conf has no lines of it.
        """
        for command in self._setup(project):
            self._commands(*command)
        if made_by_burstd:
            partitions, features = read_partitions(self._commands), read_features(self._commands, [project])
            self._keep_lines(project, project_partition_lines([project], partitions, features))

    def remove(self, project: Project) -> None:
        """Removes its partitions and its QOS; may be repeated. Asks slurmdbd. The account stays, with its history.

        Refused while jobs are in the partitions, which take no new ones.
        """
        for command in self._removal(project):
            self._commands(*command)
        self._keep_lines(project, [])

    def _keep_lines(self, project: Project, lines: Collection[str]) -> None:
        """slurmctld ends all jobs of a partition that scontrol made where slurm.conf does not have it as well:
        at ``scontrol reconfigure``, before 24.11 also at its start.
        """
        if self._table is None:
            return
        kept = kept_lines(self._table)
        marks = (project_mark(project), *(f"PartitionName={name}" for name in pair_names([project])))
        try:
            there = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
            others = [line for line in there if line not in marks and line.partition(" ")[0] not in marks]
            # Every command of Slurm warns of an empty file that slurm.conf includes.
            _replace(kept, "".join(f"{line}\n" for line in [_KEPT, *(x for x in others if x != _KEPT), *lines]))
        except OSError as error:
            raise SchedulerRefused(f"partitions cannot be kept for slurm.conf to include: {error}") from None

    def plan_removal(self, project: Project) -> tuple[str, ...]:
        """The commands that ``remove`` would run now, as lines of a shell. Asks slurmdbd."""
        return tuple(shlex.join(command) for command in self._removal(project))

    def _removal(self, project: Project) -> Iterator[Command]:
        state, qos = read_project_state(self._commands, [project]), self._qos(project)
        pair = [name for name in (project.quota_partition, project.over_quota_partition) if name in state.partitions]
        for name in pair:
            yield "scontrol", "update", f"PartitionName={name}", "State=DRAIN"
        for name in pair:
            yield "scontrol", "delete", f"PartitionName={name}"
        for name in qos:
            yield "sacctmgr", "-i", "delete", "qos", name

    def _setup(self, project: Project) -> Iterator[Command]:
        if not project.account:
            return  # no jobs run in it
        config = parse_config(self._commands("scontrol", "show", "config"))
        if GPUS not in config.get("AccountingStorageTRES", "").split(","):
            raise SchedulerRefused(
                f"no QOS can limit GPUs: AccountingStorageTRES lacks {GPUS}; add it to slurm.conf and restart slurmctld"
            )
        state = read_project_state(self._commands, [project])
        shards = counted_shards(project, state.partitions)
        wanted = qos_pair(project, shards, slurmctld_version(config) or WHOLE_OR_SHARED_SINCE)
        missing = [name for name in project.partitions if name not in state.partitions]
        if missing:
            raise SchedulerRefused(f"Slurm has no partition {missing[0]}, whose nodes project {project.name} shares")
        if project.features and not project_nodes(project, state.partitions, state.features):
            raise SchedulerRefused(f"Slurm has no node of {project.node_group}, which project {project.name} shares")
        if project.account not in state.accounts:
            yield add_account(project, config.get("ClusterName", ""))
        yield from self._accounting(project, wanted, shards)
        yield from _partitions(project, state)

    def _accounting(self, project: Project, wanted: Mapping[str, Words], shards: int) -> Iterator[Command]:
        """Before the partitions: 22.05 makes a partition with a QOS that is not there, and limits nothing."""
        there = self._qos(project)
        for name, words in wanted.items():
            if name not in there:
                yield add_qos(project, name, words, shards)
                continue
            # Where it has counted otherwise, burstd writes the limit beyond the quota in its next loop.
            counts_otherwise = (GPUS if shards else BILLING) in parse_tres(there[name]["GrpTRES"])
            none = {"GrpTRES": gpu_limit(Fraction(0), shards)} if counts_otherwise else {}
            changed = [
                f"{key}={tres_change(value, there[name][key]) if 'TRES' in key else value}"
                for key, value in {**none, **words}.items()
                if there[name][key] != value
            ]
            if changed:
                yield "sacctmgr", "-i", "modify", "qos", name, "set", *changed

    def _qos(self, project: Project) -> dict[str, dict[str, str]]:
        """Those of the pair that are there."""
        keys = ("Name", "Description", "GrpTRES", "MinTRESPerJob", "MaxTRESPerJob", "PreemptExemptTime")
        names = ",".join(qos_pair(project))
        text = self._commands("sacctmgr", "-nP", "show", "qos", "where", f"name={names}", f"format={','.join(keys)}")
        found = {}
        for line in text.splitlines():
            row = dict(zip(keys, line.split("|"), strict=True))
            if row["Description"] != qos_description(project):
                raise SchedulerRefused(
                    f"QOS {row['Name']} was not made for project {project.name}: its description is not "
                    f"{qos_description(project)!r}; rename the project, or remove the QOS"
                )
            found[row["Name"]] = row
        return found


def kept_lines(table: Path) -> Path:
    """The file with the partitions of projects that burstctl has made, beside job_submit.lua's ``table``."""
    return table.with_suffix(".conf")


def _fault_text(fault: SlurmConfFinding) -> str:
    return f"{fault.subject}: {fault.found}, {fault.consequence}: {fault.remedy}"


def _replace(file: Path, text: str) -> None:
    """As a whole or not at all. slurmctld reads it as SlurmUser."""
    beside = file.with_name(f"{file.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.chmod(0o644)
    beside.replace(file)


def _partitions(project: Project, state: ProjectState) -> Iterator[Command]:
    for name, words in partition_pair(project, state.partitions, state.features).items():
        there = state.partitions.get(name)
        if there is None:
            yield "scontrol", "create", f"PartitionName={name}", *(f"{key}={value}" for key, value in words.items())
            continue
        if there.get("QoS") != name and there.get("AllowAccounts") != project.account:
            raise SchedulerRefused(
                f"partition {name} was not made for project {project.name}: it has neither its QOS nor its account; "
                "rename the project"
            )
        changed = [f"{key}={words[key]}" for key in _COMPARED if there.get(key) != words[key]]
        if shards_in_force(there) != shards_in_force(words):
            changed.append(f"{WEIGHTS}={words.get(WEIGHTS, '')}")
        if set(expand_hosts(there.get("Nodes", ""))) != set(expand_hosts(words["Nodes"])):
            changed.append(f"Nodes={words['Nodes']}")
        if there.get("QoS") != name:
            changed.append(f"QOS={name}")
        # Of a project that waits for machines it is burstd's loop that says which one it is to be now.
        tier_is_wrong = there.get("PriorityTier") != words["PriorityTier"] and not project.reclaim_after_s
        if name == project.quota_partition and tier_is_wrong:
            changed.append(f"PriorityTier={words['PriorityTier']}")
        if changed:
            yield "scontrol", "update", f"PartitionName={name}", *changed
