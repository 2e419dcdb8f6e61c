"""What ``burstctl project`` has changed, laid over the projects of burstd.toml."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from fractions import Fraction

from pydantic import TypeAdapter, ValidationError

from burstd.domain.project import ProjectOverride, SetupStep, gpu_number
from burstd.settings.faults import SettingsFault, faults_of_validation
from burstd.settings.projects import ProjectName, ProjectSettings, project_faults

Projects = Mapping[str, ProjectSettings]
_NAME = TypeAdapter(ProjectName)


def project_values(project: ProjectSettings) -> dict[str, object]:
    """The keys that are set, with values as JSON has them."""
    return {key: _plain(getattr(project, key)) for key in type(project).model_fields if key in project.model_fields_set}


def changed_projects(
    written: Projects, overrides: Collection[ProjectOverride]
) -> tuple[dict[str, ProjectSettings], list[SettingsFault]]:
    """The projects of burstd.toml with these changes, and what is wrong with them then; those to be removed are not."""
    changed, faults = dict(written), list[SettingsFault]()
    for override in overrides:
        name = override.name
        if override.pending is SetupStep.REMOVE or not (override.values or name in written):
            continue
        if name not in written and not override.created:
            text = f"burstd.toml has it no more: 'burstctl project set {name} --reset' forgets what was changed of it"
            faults.append(SettingsFault(("projects", name), text))
            continue
        values = {**(project_values(written[name]) if name in written else {}), **override.values}
        values = {key: value for key, value in values.items() if value is not None}
        try:
            _NAME.validate_python(name)
        except ValidationError as error:
            faults += faults_of_validation(error, ProjectSettings, name, ("projects", name))
            continue
        try:
            changed[name] = ProjectSettings.model_validate(values)
        except ValidationError as error:
            faults += faults_of_validation(error, ProjectSettings, values, ("projects", name))
    if not faults:
        # One that is to have children has none at first.
        empty = {
            ("projects", o.name, "account") for o in overrides if o.created and o.values.get("account", "") is None
        }
        faults = [fault for fault in project_faults(changed) if fault.path not in empty]
    return changed, faults


def projects_in_force(
    written: Projects, overrides: Collection[ProjectOverride]
) -> tuple[dict[str, ProjectSettings], dict[str, str]]:
    """The projects with all changes that fit burstd.toml; by project, why the other changes do not."""
    left, taken, refused = list(overrides), list[ProjectOverride](), dict[str, str]()
    projects, faults = changed_projects(written, left)
    if not faults:
        return projects, {}
    while left:
        fitting = []
        for override in left:
            projects, faults = changed_projects(written, [*taken, override])
            refused[override.name] = "; ".join(map(str, faults))
            if not faults:
                taken.append(override)
                fitting.append(override)
        if not fitting:
            break
        left = [override for override in left if override not in fitting]
    return changed_projects(written, taken)[0], {override.name: refused[override.name] for override in left}


def _plain(value: object) -> object:
    match value:
        case Fraction():
            return gpu_number(value)
        case StrEnum():
            return value.value
        case tuple():
            return list(value)
    return value
