"""A3: an error about one job, or one node, in any step of the loop: it is left alone with an alarm; the rest goes on.

The steps are found by running: every function of planner, reconciler and staging that is called with the job, the node,
its claim or its machine. In each of them, one after the other, an error is raised.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import structlog

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from tests.crash.world import World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

_STEP_FOLDERS = ("/burstd/planner/", "/burstd/reconciler/", "/burstd/staging/", "/burstd/daemon/")
# The mechanism itself, and what only compares, hashes or copies.
_NOT_STEPS = ("/planner/isolation.py", "/reconciler/quarantine.py", "/runtime/workers.py")
VICTIM_JOB, VICTIM_NODE = "1", "c1"


class Injected(RuntimeError):
    """The error of a step."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def about_job(value: object) -> bool:
    return isinstance(value, Job) and value.id == VICTIM_JOB


def about_node(value: object) -> bool:
    if isinstance(value, Claim):
        return value.slot == VICTIM_NODE
    return (isinstance(value, Node) and value.name == VICTIM_NODE) or (
        isinstance(value, Instance) and value.tags.get("burstd-slot") == VICTIM_NODE
    )


@cache
def _is_step(code: CodeType) -> bool:
    if not any(room in code.co_filename for room in _STEP_FOLDERS) or code.co_filename.endswith(_NOT_STEPS):
        return False
    return not code.co_name.startswith(("<", "__"))


@contextmanager
def traced(
    concerns: Callable[[object], bool], hit: Callable[[CodeType], None], only: CodeType | None = None
) -> Iterator[None]:
    """``hit`` is called at the begin of each step, or ``only`` of one, that concerns the victim; it raises for it."""

    def trace(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event != "call" or (only is not None and code is not only) or not _is_step(code):
            return
        if any(concerns(frame.f_locals.get(name)) for name in code.co_varnames[: code.co_argcount]):
            # Python takes a trace off that raises.
            sys.setprofile(again)
            hit(code)
            sys.setprofile(None)

    def again(_frame: FrameType, _event: str, _arg: Any) -> None:
        if sys.gettrace() is None:
            sys.setprofile(None)
            sys.settrace(trace)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.setprofile(None)
        sys.settrace(None)


def play(folder: Path, template: Path, loop: Callable[[World], None], over: Callable[[World], bool]) -> World:
    """Two jobs, of which the first is the victim, or has its node; so long that both would be over, or until it is."""
    w = World(folder, template=template, alpha="sim")
    w.slurm.submit(JobSpec(run_s=10, cpus_per_node=4))
    w.slurm.submit(JobSpec(run_s=10, cpus_per_node=4, user="bob"))
    step = w.step
    w.step = lambda: loop(w) if w.reconciler is not None else step()  # type: ignore[method-assign]
    w.real_step = step  # type: ignore[attr-defined]
    end = w.clock.now() + 60.0
    while w.clock.now() < end and not over(w):
        w.run(min(5.0, end - w.clock.now()))
    return w


@pytest.mark.parametrize(("concerns", "name"), [(about_job, "job 1"), (about_node, "node c1")], ids=["job", "node"])
def test_every_step(concerns: Callable[[object], bool], name: str, tmp_path: Path, template: Path) -> None:
    steps: dict[CodeType, int] = {}

    def note(code: CodeType) -> None:
        steps[code] = steps.get(code, 0) + 1

    def observed(w: World) -> None:
        with traced(concerns, note):
            w.real_step()  # type: ignore[attr-defined]

    with memory_folder(tmp_path) as folder:
        w = play(folder, template, observed, lambda _: False)
        assert {c.state for c in w.claims()} <= {S.IN_SERVICE, S.DRAINING, S.TERMINATING}
        assert w.states("1") == w.states("2") == [JobState.COMPLETED]
        w.kill()
    assert len(steps) > 10, sorted(code.co_qualname for code in steps)
    wrong = [word for code in steps for word in _failing(tmp_path, template, concerns, name, code)]
    assert not wrong, "\n".join(wrong)


def _failing(at: Path, template: Path, concerns: Callable[[object], bool], name: str, code: CodeType) -> list[str]:
    """What is wrong where this step fails at each call."""
    hits: list[CodeType] = []
    alarms: set[str] = set()
    # A machine as a list shows it is a row of that cloud's: nothing is done there then. What a job has of its node is
    # that job's.
    named = (f"{name} (", f"job {VICTIM_JOB} (", "cloud alpha (", "what it remembers")

    def fail(here: CodeType) -> None:
        hits.append(here)
        raise Injected(code.co_qualname)

    def injected(w: World) -> None:
        with traced(concerns, fail, code):
            w.real_step()  # type: ignore[attr-defined]
        assert w.reconciler is not None
        alarms.add(w.reconciler.alarm)

    def has_alarm() -> bool:
        return any(f"burstd fails on {one}" in alarm for alarm in alarms for one in named)

    with memory_folder(at) as folder:
        try:
            w = play(folder, template, injected, lambda w: has_alarm() and w.states("2") == [JobState.COMPLETED])
        except Injected as error:
            return [f"{error}: ended the loop"]
        wrong = []
        if not hits:
            wrong.append(f"{code.co_qualname}: was not called again")
        if not has_alarm():
            wrong.append(f"{code.co_qualname}: no alarm of {name}, but {sorted(alarms)}")
        if w.states("2") != [JobState.COMPLETED]:
            wrong.append(f"{code.co_qualname}: the other job is {w.states('2')}")
        w.check()
        w.kill()
    return wrong
