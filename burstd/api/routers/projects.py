"""Projects. Everybody sees their shares, users their own jobs only; administrators change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from burstd.api.answers.projects import (
    ProjectChangeView,
    ProjectDetailView,
    ProjectJobView,
    ProjectListView,
    ProjectView,
    ShareView,
)
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import AdminDep, ApiError, BackendDep, CallerDep, RequestBody, ShortText, execute_command
from burstd.api.routers.nodes import event_view
from burstd.domain.command import ChangeProject, CommandResult, DeleteProject
from burstd.domain.errors import SchedulerRefused
from burstd.domain.plan import Plan
from burstd.domain.project import (
    Project,
    ProjectOverride,
    ProjectsView,
    SetupStep,
    Share,
)
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.job_comment import scontrol_job_id
from burstd.planner.explain.project_text import asked_gpus, project_text, runs_over_quota, waiting_remark
from burstd.reconciler.pollers.projects import removed_project

_HISTORY = 200
_Value = str | int | float | list[ShortText] | None

router = APIRouter(prefix="/v1/projects")


class NewProject(RequestBody):
    """``burstctl project create``: keys of [projects.NAME]. ``dry_run``: only the commands are told."""

    values: dict[ShortText, Annotated[_Value, Field(union_mode="left_to_right")]] = Field(max_length=50)
    dry_run: bool = False


class ChangedProject(NewProject):
    """``burstctl project set``. A value of null: as if the key were not there."""

    reset: bool = False


class DeletedProject(RequestBody):
    """``burstctl project delete``."""

    dry_run: bool = False


@router.get("")
def get_projects(_: CallerDep, backend: BackendDep) -> ProjectListView:
    """All, each after its parent, with what each has and is to have."""
    latest = backend.latest_loop()
    return ProjectListView(
        now=backend.now(),
        seen=latest[0].now if latest is not None else None,
        projects=_views(backend),
        accounting_error=latest[0].projects.accounting_error if latest is not None else "",
    )


@router.get("/{name}")
def get_project(name: str, caller: CallerDep, backend: BackendDep) -> ProjectDetailView:
    """One project, with its jobs."""
    view = _require_project(name, backend)
    latest = backend.latest_loop()
    jobs = list(_jobs(view, *latest)) if latest is not None else []
    own = [job for job in jobs if caller.can_see_user(job.user)]
    past = backend.reader.events(subject=f"project:{name}", newest=True, limit=_HISTORY) if caller.admin else ()
    return ProjectDetailView(
        now=backend.now(),
        project=view,
        jobs=own,
        other_jobs=len(jobs) - len(own),
        history=[event_view(event) for event in reversed(past)],
    )


@router.post("/{name}")
def post_project(name: str, body: NewProject, caller: AdminDep, backend: BackendDep) -> ProjectChangeView:
    """Creates it."""
    return _change(backend, caller, name, body, create=True, reset=False)


@router.put("/{name}")
def put_project(name: str, body: ChangedProject, caller: AdminDep, backend: BackendDep) -> ProjectChangeView:
    """Changes it."""
    _require_project(name, backend)
    return _change(backend, caller, name, body, create=False, reset=body.reset)


@router.delete("/{name}")
def delete_project(name: str, body: DeletedProject, caller: AdminDep, backend: BackendDep) -> ProjectChangeView:
    """Deletes it."""
    _require_project(name, backend)
    checked = execute_command(backend, DeleteProject(name, dry_run=True, by=caller.actor))
    commands = _planned(backend.project_sync.slurm.plan_removal, checked)
    done = checked if body.dry_run else execute_command(backend, DeleteProject(name, dry_run=False, by=caller.actor))
    return ProjectChangeView.from_fields(done, commands=commands, dry_run=body.dry_run)


def _change(
    backend: Backend, caller: Caller, name: str, body: NewProject, *, create: bool, reset: bool
) -> ProjectChangeView:
    """Checks it, then asks Slurm what it takes, and only then writes it down."""
    checked = execute_command(
        backend, ChangeProject(name, body.values, create=create, reset=reset, dry_run=True, by=caller.actor)
    )
    commands = _planned(backend.project_sync.slurm.plan_setup, checked)
    done = checked
    if not body.dry_run:
        command = ChangeProject(name, body.values, create=create, reset=reset, dry_run=False, by=caller.actor)
        done = execute_command(backend, command)
    return ProjectChangeView.from_fields(done, commands=commands, dry_run=body.dry_run)


def _planned(plan: Callable[[Project], Sequence[str]], checked: CommandResult) -> list[str]:
    """Slurm's commands; refused where Slurm has something else of that name."""
    if checked.project is None or not checked.project.account:
        return []
    try:
        return list(plan(checked.project))
    except SchedulerRefused as error:
        raise ApiError(409, f"{error}.") from None


def _require_project(name: str, backend: Backend) -> ProjectView:
    views = {view.name: view for view in _views(backend)}
    if name not in views:
        raise ApiError(404, f"There is no project {name!r}; there are: {', '.join(views) or 'none'}.", views)
    return views[name]


def _views(backend: Backend) -> list[ProjectView]:
    """In the order of the tree; then those that are being removed."""
    in_force = backend.projects_in_force()
    overrides = {override.name: override for override in backend.reader.project_overrides()}
    latest = backend.latest_loop()
    shares = latest[1].target.shares if latest is not None else {}
    removed = [removed_project(o) for o in overrides.values() if o.pending is SetupStep.REMOVE]
    return [
        _view(project, in_force, shares, overrides.get(project.name), latest, backend)
        for project in (*_downwards(in_force), *removed)
    ]


def _view(
    project: Project,
    projects: Mapping[str, Project],
    shares: Mapping[str, Share],
    override: ProjectOverride | None,
    latest: tuple[Snapshot, Plan] | None,
    backend: Backend,
) -> ProjectView:
    seen = latest[0].projects if latest is not None else ProjectsView()
    limits, share = seen.limits.get(project.name), shares.get(project.name)
    created = override is not None and override.created
    pending = override.pending.value if override is not None else ""
    changed = sorted(override.values) if override is not None and not created else []
    origin = "burstctl" if created else "burstd.toml"
    return ProjectView.from_fields(
        project,
        partitions=list(project.partitions),
        features=list(project.features),
        share=None
        if share is None
        else ShareView.from_fields(share, over_quota=max(Fraction(0), share.running - project.quota)),
        cap=None if limits is None else limits.gpus,
        text=project_text(project, projects, shares),
        origin=f"{origin}, changed by burstctl" if changed else origin,
        changed=changed,
        pending=pending,
        # What is still to be set up is lacking so far.
        error=backend.project_sync.errors().get(project.name, "")
        or ("" if pending else seen.faults.get(project.name, "")),
    )


def _downwards(projects: Mapping[str, Project], parent: str = "") -> Iterator[Project]:
    for name in sorted(projects):
        if projects[name].parent == parent:
            yield projects[name]
            yield from _downwards(projects, name)


def _jobs(view: ProjectView, snapshot: Snapshot, plan: Plan) -> Iterator[ProjectJobView]:
    """Its jobs: what runs within the quota, what runs beyond it, what waits; each in the order of submission."""
    project = snapshot.projects.projects.get(view.name)
    if project is None or not isinstance(snapshot.slurm, SlurmView):
        return
    pair = {project.quota_partition, project.over_quota_partition}
    jobs = [job for job in snapshot.slurm.jobs if not pair.isdisjoint(job.partitions)]
    remarks = {remark.subject: remark for remark in plan.remarks}
    share = plan.target.shares.get(project.name)
    shards = snapshot.projects.shards.get(project.name, 0)
    for job in sorted(jobs, key=lambda j: (j.state is JobState.PENDING, runs_over_quota(j, project), j.submitted)):
        waits = job.state is JobState.PENDING
        remark = remarks.get(f"job:{job.id}") or waiting_remark(job, project, share, snapshot)
        yield ProjectJobView(
            id=scontrol_job_id(job),
            user=job.user,
            state=job.state.value,
            gpus=float(asked_gpus(job, shards) * (max(1, job.tasks) if waits else 1)),
            over_quota=runs_over_quota(job, project),
            waits_for=remark.reason if waits else "",
            requeued_at=snapshot.leaves_at(job) or None,
        )
