"""Carries out ``burstctl project create``, ``set`` and ``delete``: checks and writes down; the loop sets Slurm up."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace

from burstd.daemon.settings_in_force import PolicyReloader
from burstd.db import Store
from burstd.domain.clock import Clock
from burstd.domain.command import ChangeProject, CommandResult, DeleteProject
from burstd.domain.project import Project, ProjectOverride, SetupStep
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.planner.projects.capacity import capacity_alarms
from burstd.settings.project_overrides import changed_projects, project_values
from burstd.settings.projects import ProjectSettings, projects_of

_SECONDS = "_s"


class ProjectCommands:
    """Used in the deciding thread."""

    def __init__(
        self, store: Store, clock: Clock, settings: PolicyReloader, latest_snapshot: Callable[[], Snapshot | None]
    ) -> None:
        self._store, self._clock, self._settings = store, clock, settings
        self._latest_snapshot = latest_snapshot

    def change(self, command: ChangeProject) -> CommandResult:
        """Creates or changes a project, or sets Slurm up for it anew where nothing is to be changed."""
        name, written = command.name, self._settings.written_projects
        overrides = {override.name: override for override in self._store.project_overrides()}
        before = overrides.get(name)
        if before is not None and before.pending is SetupStep.REMOVE:
            return _refused(f"project {name} is being deleted: see 'burstctl project list'")
        if command.create and (before is not None or name in written):
            return _refused(f"there is a project {name}: change it with 'burstctl project set {name}'")
        if command.create and "account" not in command.values:
            return _refused("say --account ACCOUNT, or --account none for a project that is only to have children")
        if not command.create and before is None and name not in written:
            return _refused(f"there is no project {name} any more")
        if command.reset and before is not None and before.created:
            return _refused(f"project {name} was made by burstctl: burstd.toml has nothing to go back to")
        base = project_values(written[name]) if name in written else {}
        values = {**(before.values if before is not None and not command.reset else {}), **command.values}
        # What burstd.toml says as well is no change.
        values = {key: value for key, value in values.items() if name not in written or value != base.get(key)}
        created = command.create or (before is not None and before.created)
        # Of one that burstd.toml has no more only what was changed is forgotten.
        pending = SetupStep.SET_UP if created or name in written else SetupStep.NONE
        after = ProjectOverride(name, values, created, pending, command.by, self._clock.now())
        projects, faults = changed_projects(written, {**overrides, name: after}.values())
        if faults:
            return _refused("; ".join(map(str, faults)))
        if why_not := self._too_much(projects_of(projects)):
            return _refused(why_not)
        is_now = _texts(self._settings.projects.get(name))
        will_be = _texts(projects.get(name))
        differs = [key for key in {**is_now, **will_be} if is_now.get(key) != will_be.get(key)]
        undo = _undo(name, differs, is_now, create=command.create, reset=before is None)
        news = ", ".join(f"{key} {is_now.get(key, 'none')} -> {will_be.get(key, 'none')}" for key in differs)
        text = f"project {name}: {news or 'nothing is changed'}"
        project = projects_of(projects).get(name)
        if not command.dry_run:
            word = "created" if command.create else "reset" if command.reset else "changed"
            self._store.save_project_override(after, "", word, news, command.by)
            self._settings.take_projects()
        return CommandResult(text, changed=bool(differs), project=project, undo=undo if differs else "")

    def delete(self, command: DeleteProject) -> CommandResult:
        """Ends a project. Refused while jobs of it are in the queue, and for one of burstd.toml."""
        name = command.name
        overrides = {override.name: override for override in self._store.project_overrides()}
        before = overrides.get(name)
        if name in self._settings.written_projects:
            return _refused(
                f"project {name} stands in burstd.toml: take [projects.{name}] out of it and run 'burstctl policy "
                "reload'; 'burstctl check' then says what Slurm still has of it"
            )
        if before is None or before.pending is SetupStep.REMOVE:
            return _refused(f"there is no project {name} any more")
        children = [child for child, one in self._settings.projects.items() if one.parent == name]
        if children:
            return _refused(f"project {name} has children: delete {abbreviated_list(children)} first")
        settings = self._settings.projects.get(name)
        if settings is None:
            project = Project(name)
        else:
            project = projects_of(self._settings.projects)[name]
            if why_not := self._jobs_of(project):
                return _refused(why_not)
        undo = f"burstctl project create {name} {_options({'account': 'none', **_texts(settings)})}"
        if not command.dry_run:
            removed = replace(before, pending=SetupStep.REMOVE, by=command.by, since=self._clock.now())
            self._store.save_project_override(removed, "", "deleted", "", command.by)
            self._settings.take_projects()
        return CommandResult(f"project {name} is deleted", project=project, undo=undo)

    def _too_much(self, projects: Mapping[str, Project]) -> str:
        """Why these quotas cannot be kept; empty: they can, or that is not known, or the site wants it so."""
        snapshot = self._latest_snapshot()
        if snapshot is None or isinstance(snapshot.slurm, Unavailable):
            return ""
        there = set(capacity_alarms(snapshot))
        wanted = replace(snapshot, projects=replace(snapshot.projects, projects=projects))
        return "; ".join(fault for fault in capacity_alarms(wanted) if fault not in there)

    def _jobs_of(self, project: Project) -> str:
        """Why the project cannot be deleted now."""
        snapshot = self._latest_snapshot()
        if snapshot is None or isinstance(snapshot.slurm, Unavailable):
            return f"cannot tell whether project {project.name} has jobs: Slurm cannot be read now; try again"
        pair = {project.quota_partition, project.over_quota_partition}
        jobs = [job.id for job in snapshot.slurm.jobs if not pair.isdisjoint(job.partitions)]
        if not jobs:
            return ""
        names = ",".join(sorted(pair))
        return (
            f"project {project.name} has {len(jobs)} job(s) in the queue ({abbreviated_list(jobs)}): wait until they "
            f"have ended, or cancel them: squeue -h -p {names} -o %A | sort -u | xargs scancel"
        )


def _refused(text: str) -> CommandResult:
    return CommandResult(text, done=False, changed=False)


def _undo(name: str, differs: list[str], was: Mapping[str, str], *, create: bool, reset: bool) -> str:
    if create:
        return f"burstctl project delete {name}"
    if reset:
        return f"burstctl project set {name} --reset"
    return f"burstctl project set {name} {_options({key: was.get(key, 'none') for key in differs})}"


def _texts(project: ProjectSettings | None) -> dict[str, str]:
    """The keys that are set, as burstctl takes them."""
    found = {}
    for key, value in (project_values(project) if project is not None else {}).items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        found[key.removesuffix(_SECONDS)] = f"{text}s" if key.endswith(_SECONDS) else text
    return found


def _options(texts: Mapping[str, str]) -> str:
    return " ".join(f"--{key.replace('_', '-')} {shlex.quote(text)}" for key, text in texts.items())
