"""burstctl explain, as people see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.api.answers.text import rough_duration_text
from burstd.domain.command import Command, CommandResult, WhatIf
from burstd.domain.errors import NoAnswer
from burstd.domain.plugins.policy import Target, remarks_on_dropped_want
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import Pin, SlurmView, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from tests.api.client import ME
from tests.api.fake_backend import FakeBackend
from tests.api.world import G4, NOW, SLURM, SNAPSHOT

from .conftest import Run

TYPE = OptionChange(
    "--gres=gpu:h100:1", "--gres=gpu:1", "scontrol update JobId=106 TresPerNode=gres/gpu:1", 240.0, ("gpu6", "gpu7"),
    G4.id, Decimal("6.12"), "EUR",
)  # fmt: skip
SHARED = OptionChange("--exclusive", "no --exclusive", "", 0.0, ("gpu2",))
LOCAL = Outlook(NOW + 3 * 3600, "queue", 7200.0, "history of 12 jobs of ada", 250.0, 100.0)


class Thrift:
    name = "thrift"

    def evaluate(self, _snapshot: Snapshot, target: Target) -> Target:
        remarks = tuple(
            r for want in target.wants for r in remarks_on_dropped_want(want, self.name, "3.06 EUR/h are too much")
        )
        return replace(target, wants=(), remarks=(*target.remarks, *remarks))


def set_latest_loop(
    backend: FakeBackend, *policies: Any, jobs: Callable[[Job], Job] = lambda job: job, **fields: Any
) -> None:
    """The last loop of the world with these policies and other jobs; no open node has room."""
    full = replace(SLURM.nodes["gpu2"], state="ALLOCATED", cpus_allocated=8)
    slurm: SlurmView = replace(SLURM, jobs=tuple(map(jobs, SLURM.jobs)), nodes={**SLURM.nodes, "gpu2": full})
    snapshot = replace(SNAPSHOT, slurm=slurm, **fields)
    backend.loop = (snapshot, decide(snapshot, policies, Tuning()))


def answering(*changes: OptionChange) -> Callable[[Command], CommandResult]:
    return lambda command: CommandResult("", option_changes=changes if isinstance(command, WhatIf) else ())


def timed(job: Job) -> Job:
    return replace(job, time_limit_s=86400.0, array_tasks="", array_job_id="", tasks=1) if job.id == "104" else job


IMPOSSIBLE = """\
Job 106 of daemon: impossible: no node in pool gpu has gpu:h100:1; no node in
pool cpu has gpu:h100:1.
  It asks for 1 node, 8 CPUs, gpu:h100:1 per node.
  Slurm says: waiting for nodes (Resources).
  What would help: request what a pool has.
  What would help: add a pool with these resources to burstd.toml and slurm.conf
  (administrators only).

The smallest changes that would start it
  --gres=gpu:h100:1 -> --gres=gpu:1: in about 4 min on gpu6, gpu7, 6.12 EUR/h
    scontrol update JobId=106 TresPerNode=gres/gpu:1
  --exclusive -> no --exclusive: at once on gpu2

Pool gpu: lacks gpu:h100:1

Pool cpu: lacks gpu:h100:1
"""
REFUSED = """\
Job 104 of nobody: wait: 3.06 EUR/h are too much.
  It asks for 1 node, 1 CPU, gpu:4 per node, 1440 min.
  Slurm says: waiting for nodes (Resources).
  It would start on premises: in about 3 h (if all before it start first); in
  the cloud: in about 4 min.
  It is expected to run about 2 h (history of 12 jobs of ada); its machine would
  cost about 6.12 EUR, at most 73.44 EUR by its time limit.
  What would help: see policy thrift in burstd.toml.

"""


def test_an_impossible_job_and_what_would_start_it(run: Run, backend: FakeBackend) -> None:
    backend.answer = answering(TYPE, SHARED)
    set_latest_loop(backend)
    assert run("explain", "106", columns=80).out == IMPOSSIBLE
    assert backend.commands == [WhatIf("106", f"user:{ME}")] * 1


def test_a_job_that_a_policy_keeps(run: Run, backend: FakeBackend) -> None:
    set_latest_loop(backend, Thrift(), jobs=timed, outlook={"104": LOCAL})
    out = run("explain", "104", columns=80).out
    first, _, rest = out.partition("SAID BY")
    assert first == REFUSED
    assert "sandbox/local/a/g4/on-demand  3.06 EUR/h  thrift: 3.06 EUR/h are too much" in rest
    wide = run("explain", "104", columns=120).out
    assert "next attempt in 241 s" in wide
    assert max(map(len, wide.splitlines())) <= 120


@pytest.mark.parametrize(
    ("fields", "jobs", "says"),
    [
        ({"data": {"104": StagingView(StageState.UPLOADING, NOW + 180, size=8 << 30, bytes_left=2 << 30)}}, timed,
         "Its data: uploading (2 GiB of 8 GiB to go), there in about 3 min."),
        ({"data": {"104": StagingView(StageState.HELD, 0, error="no such file")}}, timed,
         "Its data: held; no such file."),
        ({"outlook": {"104": replace(LOCAL, local_start=float("inf"))}}, timed,
         "It would start on premises: never; in the cloud: in about 4 min."),
        ({"outlook": {"104": replace(LOCAL, local_start=NOW - 5, local_basis="none")}}, timed,
         "It would start on premises: at once; in the cloud: in about 4 min."),
        ({"outlook": {"104": LOCAL}, "clouds": {}}, timed,
         "in the cloud: no machine is available now."),
        ({"outlook": {"104": LOCAL}, "pins": (Pin("gpu", 0, "ceiling", None, "root", NOW),)}, timed,
         "in the cloud: not before an administrator's pin (burstctl scale) ends."),
        ({"outlook": {"104": LOCAL}}, lambda job: job,
         "its machine would cost about 6.12 EUR, and it has no time limit."),
    ],
    ids=["sending", "held", "never", "now", "no cloud", "pin", "no limit"],
)  # fmt: skip
def test_what_is_expected(
    run: Run, backend: FakeBackend, fields: dict[str, Any], jobs: Callable[[Job], Job], says: str
) -> None:
    set_latest_loop(backend, jobs=jobs, **fields)
    assert says in run("explain", "104").out


def test_a_job_whose_nodes_come(run: Run, backend: FakeBackend) -> None:
    set_latest_loop(backend, outlook={"103": LOCAL})
    out = run("explain", "103").out
    assert "  Nodes gpu3, gpu4 are booting.\n" in out
    assert "on premises" not in out
    assert "AT MOST" not in out
    paid = tuple(replace(c, reserved=Decimal("9.5")) if c.slot == "gpu3" else c for c in SNAPSHOT.claims)
    set_latest_loop(backend, claims=paid)
    assert re.search(r"AT MOST.*\ngpu3 +booting +12 s ago +9.50 EUR +the cloud", run("explain", "103").out)


def test_nothing_is_asked_for_jobs_that_get_nodes_or_run(run: Run, backend: FakeBackend) -> None:
    for job in ("101", "103", "104"):
        assert run("explain", job).code == 0
    assert backend.commands == []


def test_a_run_that_was_cut_short_is_told_of(run: Run) -> None:
    assert "  Its run was interrupted 1 s ago: gpu3: the line is broken.\n" in run("explain", "103").out
    assert "Its run was" not in run("explain", "104").out


def test_a_daemon_that_has_no_time_leaves_the_rest(run: Run, backend: FakeBackend) -> None:
    def busy(_: Command) -> CommandResult:
        raise NoAnswer("burstd is busy")

    backend.answer = busy
    outcome = run("explain", "106")
    assert outcome.code == 0
    assert "impossible" in outcome.out


def test_another_type_is_found_by_the_answer_in_json(run: Run, backend: FakeBackend) -> None:
    backend.answer = answering(TYPE)
    out = run("explain", "106", "--json").out
    assert '"after": "--gres=gpu:1"' in out
    assert Gres("gpu", "h100", 1) in SLURM.jobs[5].gres_per_node


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "at once"), (30, "in about 1 min"), (250, "in about 4 min"), (7100, "in about 118 min"),
     (10_800, "in about 3 h"), (200_000, "in about 2 d")],
)  # fmt: skip
def test_a_forecast_is_round(seconds: float, text: str) -> None:
    assert rough_duration_text(seconds) == text
