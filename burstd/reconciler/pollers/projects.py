"""Slurm's side of projects: read again and again, limited as the plan says, set up and removed as burstctl asked.

sacctmgr takes most of a second for each change, so all of it is done in a lane of the workers. What cannot be done is
tried again; what is to be set up or removed is on record until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import structlog

from burstd.domain.errors import BurstdError
from burstd.domain.plan import SetProjectLimits, SetQuotaPreemption
from burstd.domain.project import Project, ProjectOverride, ProjectsView, SetupStep
from burstd.domain.slurm.node import Node
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.reconciler.context import LoopContext
from burstd.runtime.poller import Poller, RepeatedCall
from burstd.slurm.config.project_check import UNWRITTEN_REMEDY
from burstd.slurm.projects import SlurmProjects

log = structlog.get_logger(__name__)

LANE = "projects"
_QUOTAS = "quotas"
_LIMITS = {"tiers": "tiers of projects stay as they are", "caps": "caps of projects stay as they are"} | {
    _QUOTAS: "quotas of projects take back from others, or wait for machines, as they did"
}
"""What is said where one could not be written."""
RETRY_MAX_S = 15.0
"""slurmdbd is away for minutes where it is upgraded: what waits for it is caught up soon after."""
MIN_RUNTIMES_S = 3600.0
"""How often minimum run times are compared. They are also when a project has changed."""
WRONG_MIN_RUNTIMES_S = 60.0
"""The same while one differs."""
MAX_SHOWN = 3
"""Faults of projects that one alarm names."""


class ProjectSync:
    """Used in the deciding thread. Keeps the last view of what slurmctld enforces."""

    def __init__(self, context: LoopContext, slurm: SlurmProjects) -> None:
        self._context, self.slurm = context, slurm
        self._poller = Poller(
            context.workers, context.clock, LANE, "Slurm's side of projects",
            interval_s=lambda: context.intervals.poll_s, retry_s=lambda: context.intervals.call_retry_s,
            most_s=lambda: RETRY_MAX_S,
        )  # fmt: skip
        self._min_runtimes = Poller(
            context.workers, context.clock, LANE, "minimum run times of projects",
            interval_s=lambda: MIN_RUNTIMES_S,
            retry_s=lambda: context.intervals.call_retry_s, most_s=lambda: WRONG_MIN_RUNTIMES_S,
        )  # fmt: skip
        self._min_runtime_faults: Mapping[str, str] = {}
        """By project; slurmctld shows nothing of it."""
        self._view = ProjectsView()
        self._is_read = False
        """Whether Slurm has said since the start which projects it counts in shards."""
        self._projects: Mapping[str, Project] = {}
        self._calls = {what: RepeatedCall() for what in _LIMITS}
        self._setups: dict[str, tuple[float, RepeatedCall]] = {}
        """By project, with the time of the change that it is for."""
        self._errors: dict[str, str] = {}
        """Why a step failed last, by what could not be written (``_LIMITS``) or the project."""
        self._in_table: tuple[list[Project], list[str]] | None = None
        """The projects that job_submit.lua knows, and those of which Slurm counts shards; None: that is not known."""
        self._table_error = ""
        self._changes = 0
        """How often something was changed in Slurm."""

    def step(self, projects: Mapping[str, Project], nodes: Mapping[str, Node] | None = None) -> ProjectsView:
        """Begins what is due; returns the last view, with these projects. ``nodes``: the site's; None: not known."""
        overrides = self._context.store.project_overrides()
        if projects != self._projects:
            self._projects = projects
            self._poller.make_due()
            self._min_runtimes.make_due()
        if projects:
            self._poller.poll(partial(self._read, projects, nodes, self._changes), self._keep, quiet=self._is_no_news)
            self._min_runtimes.poll(
                partial(self.slurm.min_runtime_faults, projects),
                self._keep_min_runtimes,
                quiet=lambda faults: faults == self._min_runtime_faults,
            )
        self._start_setups(projects, overrides)
        self._write_table(projects, overrides)
        names = projects.keys() | {override.name for override in overrides}
        self._setups = {name: setup for name, setup in self._setups.items() if name in names or setup[1].in_flight}
        self._errors = {name: why for name, why in self._errors.items() if name in (*names, *_LIMITS)}
        known = {name: limits for name, limits in self._view.limits.items() if name in projects}
        faults = {name: fault for name, fault in self._faults().items() if name in projects}
        return replace(
            self._view, projects=projects, limits=known, faults=faults, accounting_error=self._errors.get("caps", "")
        )

    def _read(
        self, projects: Mapping[str, Project], nodes: Mapping[str, Node] | None, changes: int
    ) -> tuple[int, ProjectsView]:
        features = None if nodes is None else {name: node.features for name, node in nodes.items()}
        return changes, self.slurm.read(projects, features)

    def _keep(self, answer: tuple[int, ProjectsView]) -> None:
        changes, view = answer
        self._is_read = True
        if changes == self._changes:
            self._view = view
        else:
            # It was read before the last change was made.
            self._poller.make_due()

    def _is_no_news(self, answer: tuple[int, ProjectsView]) -> bool:
        _, view = answer
        return replace(view, projects={}) == replace(self._view, projects={})

    def _keep_min_runtimes(self, faults: Mapping[str, str]) -> None:
        self._min_runtime_faults = faults
        if faults:
            self._min_runtimes.hasten(self._context.clock.now() + WRONG_MIN_RUNTIMES_S)

    def _faults(self) -> dict[str, str]:
        """By project, what Slurm lacks of it."""
        return {**self._min_runtime_faults, **self._view.faults}

    def _note_change(self) -> None:
        self._changes += 1
        self._poller.make_due()

    def set_limits(self, action: SetProjectLimits) -> int:
        """Begins to write what differs, tiers apart from caps: these need slurmdbd. Returns how many calls began."""
        known = self._view.limits
        tiers = {n: wanted.tier for n, wanted in action.limits if n in known and wanted.tier != known[n].tier}
        caps = {n: wanted.gpus for n, wanted in action.limits if n in known and wanted.gpus != known[n].gpus}
        one = {name: wanted.tier for name, wanted in action.limits if name == next(iter(caps), "")}

        def written(view: ProjectsView, what: str) -> ProjectsView:
            kept = dict(view.limits)
            for name, wanted in action.limits:
                if name in kept:
                    change = {"tier": wanted.tier} if what == "tiers" else {"gpus": wanted.gpus}
                    kept[name] = replace(kept[name], **change)
            return replace(view, limits=kept)

        begun = self._write("tiers", partial(self.slurm.set_tiers, tiers), written) if tiers else 0
        return begun + (self._write("caps", partial(self._set_caps, caps, one), written) if caps else 0)

    def _set_caps(self, caps: Mapping[str, Fraction | None], one: Mapping[str, int]) -> None:
        self.slurm.set_caps(caps)
        # slurmctld looks at its queue when a partition is written, but not when a limit is: only after bf_interval.
        self.slurm.set_tiers(one)

    def set_quota_preemption(self, action: SetQuotaPreemption) -> int:
        """Begins to write which quotas take back from others now. Returns how many calls began."""
        work = partial(self.slurm.set_quota_preemption, action.preempt, action.wait)

        def written(view: ProjectsView, _: str) -> ProjectsView:
            return replace(view, without_preemption=view.without_preemption.union(action.wait) - {*action.preempt})

        return self._write(_QUOTAS, work, written)

    def _write(self, what: str, work: Callable[[], None], written: Callable[[ProjectsView, str], ProjectsView]) -> int:
        """``written``: the view once it is done."""
        call = self._calls[what]
        if call.is_busy(self._context.clock.now()):
            return 0
        call.in_flight = True

        def done(result: Exception | None) -> None:
            self._note_change()
            if isinstance(result, Exception):
                self._fail(what, call, result)
                return
            call.succeed()
            self._errors.pop(what, None)
            self._view = written(self._view, what)

        self._context.workers.submit(LANE, work, done)
        return 1

    def _fail(self, what: str, call: RepeatedCall, error: Exception) -> None:
        if not isinstance(error, BurstdError):
            log.error("a step failed unexpectedly", of=what, exc_info=error)
        elif self._errors.get(what) != str(error):
            log.warning("a step failed and is tried again", of=what, error=str(error))
        self._errors[what] = str(error) or type(error).__name__
        call.fail(self._context.clock.now(), self._context.intervals.call_retry_s, RETRY_MAX_S)

    def _write_table(self, projects: Mapping[str, Project], overrides: Sequence[ProjectOverride]) -> None:
        """Jobs get the partitions of a project once Slurm has them. Until Slurm has been read the last table stays."""
        if projects and not self._is_read:
            return
        coming = {o.name for o in overrides if o.created and o.pending and o.name not in self._view.limits}
        table = [project for project in projects.values() if project.name not in coming], sorted(self._view.shards)
        if table == self._in_table and not self._table_error:
            return
        try:
            self.slurm.write_table(*table)
        except OSError as error:
            self._table_error = f"jobs are not given the partitions of new projects: {error}"
        else:
            self._in_table, self._table_error = table, ""

    def _start_setups(self, projects: Mapping[str, Project], overrides: Sequence[ProjectOverride]) -> None:
        for override in overrides:
            name = override.name
            project = projects.get(name)
            if override.pending is SetupStep.REMOVE:
                self._start(override, partial(self.slurm.remove, removed_project(override)))
            elif project is not None and (
                override.pending or (override.created and name in self._view.faults) or name in self._min_runtime_faults
            ):
                self._start(override, partial(self.slurm.set_up, project, made_by_burstd=override.created))

    def _start(self, override: ProjectOverride, work: Callable[[], None]) -> None:
        since, call = self._setups.get(override.name, (override.since, RepeatedCall()))
        if since != override.since and not call.in_flight:
            # Another change: what failed of the last one says nothing of it.
            call = RepeatedCall()
            self._errors.pop(override.name, None)
        if call.is_busy(self._context.clock.now()):
            return
        self._setups[override.name] = override.since, call
        call.in_flight = True

        def done(result: Exception | None) -> None:
            self._note_change()
            if isinstance(result, Exception):
                self._fail(override.name, call, result)
            else:
                call.succeed()
                self._errors.pop(override.name, None)
                self._record_done(override)
                faults = {name: fault for name, fault in self._view.faults.items() if name != override.name}
                self._view = replace(self._view, faults=faults)
                self._min_runtime_faults = {n: f for n, f in self._min_runtime_faults.items() if n != override.name}
                self._min_runtimes.make_due()

        self._context.workers.submit(LANE, work, done)

    def _record_done(self, override: ProjectOverride) -> None:
        """Unless the project was changed meanwhile: then it is set up again."""
        store = self._context.store
        if override not in store.project_overrides():
            return
        removed = override.pending is SetupStep.REMOVE
        fault = "" if override.pending else self._faults().get(override.name, "")
        is_now = replace(override, values={} if removed else override.values, pending=SetupStep.NONE)
        store.save_project_override(is_now, "", "removed from Slurm" if removed else "set up in Slurm", fault, "burstd")

    def errors(self) -> Mapping[str, str]:
        """By project, why it is not set up, or not removed, so far; from any thread."""
        return {name: why for name, why in self._errors.copy().items() if name not in _LIMITS}

    def alarms(self) -> list[str]:
        """What Slurm lacks, and what could not be done."""
        found = [f"{said}: {self._errors[what]}" for what, said in _LIMITS.items() if what in self._errors]
        if self._poller.error:
            found.append(f"projects are limited by what was last read of them: {self._poller.error}")
        found += [self._table_error] if self._table_error else []
        steps = self.errors()
        found += [f"project {name} waits for Slurm: {why}" for name, why in sorted(steps.items())[:MAX_SHOWN]]
        faults = self._faults()
        pending = {o.name for o in self._context.store.project_overrides() if o.pending}
        faulty = sorted(name for name in faults if name in self._projects and name not in pending | steps.keys())
        found += [f"project {name}: {faults[name]}" for name in faulty[:MAX_SHOWN]]
        if len(faulty) > MAX_SHOWN:
            found.append(f"so with projects {abbreviated_list(faulty[MAX_SHOWN:])}")
        unwritten = [name for name in self._view.unwritten if name.partition("-")[2] not in pending]
        if unwritten:
            of = abbreviated_list(sorted(unwritten))
            found.append(
                f"partitions that scontrol made ({of}): scontrol reconfigure ends all of their jobs: {UNWRITTEN_REMEDY}"
            )
        return found


def removed_project(override: ProjectOverride) -> Project:
    """What must be known of a project to remove it, which the settings do not have any more."""
    account = override.values.get("account")
    return Project(override.name, account if isinstance(account, str) else "")
