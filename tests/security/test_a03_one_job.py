"""An error about one job, at whichever step of its data, holds that job and nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from structlog.testing import capture_logs

import burstd.staging as package
from burstd.db import Store
from burstd.domain.staging import StageState as S
from burstd.staging.controller.controller import StagingController
from burstd.staging.controller.job_runs import StagingRun, StagingRuns
from burstd.staging.movement.moves import TransferDispatcher
from burstd.staging.submission.job_chains import OutputDependencies
from tests.crash.stage_world import StageWorld

pytestmark = pytest.mark.crash
VICTIM, OTHER = "1", "2"
_NAMES = frozenset({"row", "run", "job_id", "call", "staging"})
"""A function with a parameter of such a name works for one job."""
_USER_COMMANDS = frozenset({"retry", "discard"})
"""Commands of a person, who is told the error."""
_NOT_STEPS = frozenset({"run_of", "handle_hook", "add_task", "remove_task", "has_undelivered_output"})
"""What the mechanism itself is made of: a look into a mapping, a change of one, two comparisons."""
_STORE = ("make_staging", "transition_staging", "deliver_staging", "update_staging", "find_staging")
_MODULES = (
    "submission.quota",
    "controller.decision",
    "movement.moves",
    "submission.locations",
    "controller.recovery",
    "controller.snapshot_view",
)


class Broken(Exception):
    """What nobody foresaw."""


def of_one_job(function: Any) -> bool:
    return isinstance(function, FunctionType) and not _NAMES.isdisjoint(inspect.signature(function).parameters)


def steps() -> Iterator[tuple[Any, str]]:
    """Every function and method that the deciding thread calls for one job."""
    for owner in (StagingController, TransferDispatcher, OutputDependencies, StagingRuns):
        for name, member in vars(owner).items():
            if of_one_job(member) and not name.startswith("__") and name not in _USER_COMMANDS | _NOT_STEPS:
                yield owner, name
    for name, member in vars(StagingRun).items():
        if name not in _NOT_STEPS and not name.startswith("__") and isinstance(member, FunctionType | property):
            yield StagingRun, name
    for name in _STORE:
        yield next(owner for owner in Store.__mro__ if name in vars(owner)), name
    for module in (importlib.import_module(f"{package.__name__}.{name}") for name in _MODULES):
        for name, member in vars(module).items():
            if name not in _NOT_STEPS and of_one_job(member) and member.__module__ == module.__name__:
                yield module, name


STEPS = list(steps())


def job_of(values: tuple[Any, ...]) -> str:
    first = next((value for value in values if isinstance(value, str) or hasattr(value, "job_id")), "")
    return first if isinstance(first, str) else str(first.job_id)


class Fault:
    """Breaks one step for the victim, from its ``after``-th call on, as long as it is armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int) -> None:
        self.raised = 0
        self.armed = True
        self._left = after
        member = vars(owner)[name]
        if isinstance(member, property):
            assert member.fget is not None
            monkeypatch.setattr(owner, name, property(self._breaking(member.fget)))
            return
        breaking = self._breaking(member)
        monkeypatch.setattr(owner, name, breaking)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            if vars(module).get(name) is member:
                monkeypatch.setattr(module, name, breaking)

    def _breaking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def breaking(*args: Any, **more: Any) -> Any:
            if self.armed and job_of((*args, *more.values())) == VICTIM:
                self._left -= 1
                if self._left < 0:
                    self.raised += 1
                    raise Broken("nobody foresaw this")
            return function(*args, **more)

        return breaking


_LATER = frozenset(
    {
        "record_results",
        "_advance",
        "staging_decision",
        "hook_reply",
        "transition_staging",
        "update_staging",
        "entered_at",
    }
)
"""Steps that are taken many times, to different ends."""


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [(owner, name, after) for owner, name in STEPS for after in ((0, 1, 2) if name in _LATER else (0,))],
    ids=lambda v: v.__name__.split(".")[-1] if hasattr(v, "__name__") else str(v),
)
def test_a_step_that_breaks_holds_its_job(
    owner: Any, name: str, after: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: Path
) -> None:
    with capture_logs() as said:
        _break(owner, name, after, monkeypatch, StageWorld(tmp_path, template=template))
    assert len([one for one in said if one.get("exc_info")]) < 40, "each pause is told of once"


def _break(owner: Any, name: str, after: int, monkeypatch: pytest.MonkeyPatch, world: StageWorld) -> None:
    fault = Fault(monkeypatch, owner, name, after)
    world.submit(VICTIM, run_s=20.0)
    world.submit(OTHER, user="bob", run_s=20.0)
    world.run(120.0)
    fault.armed = False
    assert world.phase(OTHER, "gone")(), world.report()
    if fault.raised:
        row = world.store.find_staging(VICTIM)
        held = row is not None and row.state in (S.HELD, S.FETCHED) and "nobody foresaw this" in row.error
        over = row is not None and row.state in (S.DELIVERED, S.CLEARED)
        refused = (VICTIM, "refused") in {(job, said) for job, _, said in world.slurm.hook_replies}
        assert held or over or refused, world.report()
    monkeypatch.setattr(world, "check", lambda: None)
    world.heal()
    world.calm()
    world.check_end()
    # Work whose result could not be written down is done again.
    assert all("was complete and is repeated" in one for one in world.locations.violations), world.locations.violations


def test_steps_are_found() -> None:
    found = {name for _, name in STEPS}
    assert {
        "_advance_as_far_as_possible",
        "_upload_within_quota",
        "_answer_hooks",
        "record_results",
        "awaited_job",
        "over_quota",
        "staging_decision",
        "hook_reply",
        "record_answer",
    } <= found
