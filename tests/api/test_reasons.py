"""Why a job waits: its comment, ``burstctl explain`` and ``burstctl job list`` say the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

import policies.budget
import policies.limits
import policies.schedule
from burstd.api.backend import Backend
from burstd.api.routers.jobs import AnnotatedQueue
from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.offers.offers import next_breaker
from burstd.planner.policy_chain import make_target
from burstd.planner.timeouts import Tuning
from burstd.runtime.precedence import UNDISTURBED
from tests.planner.worlds import NOW, claim, job, make_snapshot, offer, pool

BUDGET = policies.budget.plugin.make(policies.budget.plugin.settings(users={"ada": {"limit": "0.01"}}))
NO_NODES = policies.limits.plugin.make(policies.limits.LimitsSettings(nodes=0))
CLOSED = policies.schedule.plugin.make(
    policies.schedule.plugin.settings(
        windows={"works": {"begin": "1970-01-01T00:00", "end": "2100-01-01", "burst": False}}
    )
)
HELD = {"1": StagingView(StageState.HELD, 0.0, error="/home/ada/corpus: No such file or directory")}
UPLOADING = {"1": StagingView(StageState.UPLOADING, 0.0)}
SCRATCH = {"1": StagingView(StageState.STAGED, 0.0, scratch=2 << 40)}

OVER_BUDGET = (
    "the job may cost up to 0.42, and the whole budget of user ada is 0.0100 EUR a month; a shorter time limit lowers "
    "the cost"
)
NO_OFFER = "no offer available for pool cpu: sky/r1/a/small/on-demand: failed 1 time(s)"
DRAINED = (
    "pool cpu: no free slot (0 in use, launching or terminating, 4 drained, held or not powered down, 0 for jobs "
    "ahead; 4 in total)"
)

KINDS: list[tuple[str, Snapshot, tuple[Policy, ...], str, str, str]] = [
    ("held by its user", make_snapshot(job(reason="JobHeldUser")), (), "wait",
     "held by its user (Slurm: JobHeldUser)", ""),
    ("held by an administrator", make_snapshot(job(reason="JobHeldAdmin")), (), "wait",
     "held by an administrator (Slurm: JobHeldAdmin)", ""),
    ("dependency", make_snapshot(job(reason="Dependency")), (), "wait",
     "depends on another job (Slurm: Dependency)", ""),
    ("limit of its QOS", make_snapshot(job(reason="QOSGrpJobsLimit")), (), "wait",
     "blocked by a limit of its QOS (Slurm: QOSGrpJobsLimit)", ""),
    ("budget", make_snapshot(job(time_limit_s=600.0)), (BUDGET,), "impossible",
     OVER_BUDGET, ""),
    ("limit of nodes", make_snapshot(job()), (NO_NODES,), "wait", "node limit is 0; 0 running or starting", ""),
    ("schedule", make_snapshot(job()), (CLOSED,), "wait",
     "schedule window works allows no launches until Fri 2100-01-01 00:00 UTC", ""),
    ("stockout", make_snapshot(job(), breakers=(next_breaker(None, offer(), "capacity", NOW, "none left"),)), (),
     "wait",
     f"{NO_OFFER} (capacity: none left), next attempt in 60 s",
     f"waits: {NO_OFFER} (capacity), next attempt at 13:48 UTC"),
    ("slots in use", make_snapshot(job(), drained_slots=frozenset({"cpu1", "cpu2", "cpu3", "cpu4"})), (), "wait",
     DRAINED, ""),
    ("too large", make_snapshot(job(cpus=64, cpus_per_node=64)), (), "impossible",
     "no node in pool cpu has 64 CPUs (a node has 4)", ""),
    ("too large, says Slurm", make_snapshot(job(cpus=64, cpus_per_node=64, reason="PartitionConfig")), (), "impossible",
     "no node in pool cpu has 64 CPUs (a node has 4)", ""),
    ("too many nodes", make_snapshot(job(nodes=40, nodes_max=40, cpus=40, reason="PartitionConfig")), (), "impossible",
     "the job needs 40 node(s) at once, pool cpu has 4 slots", ""),
    ("refused by Slurm alone", make_snapshot(job(reason="PartitionConfig")), (), "wait",
     "the partition cannot meet the request (Slurm: PartitionConfig)", ""),
    ("data held", make_snapshot(job(reason="BurstBufferOperation"), data=HELD), (), "wait",
     "its data is held: /home/ada/corpus: No such file or directory", "waits: its data is held"),
    ("too much scratch", make_snapshot(job(), pools=(pool(scratch=10 << 30),), data=SCRATCH), (), "impossible",
     "scratch of 2 TiB is impossible: the most that a machine of pool cpu has is 10 GiB; ask for less", ""),
    ("data on its way", make_snapshot(job(reason="BurstBufferStageIn"), data=UPLOADING), (), "wait",
     "its input is being uploaded; no estimate yet", ""),
    ("hold of all machines", make_snapshot(job(), paused="burstctl hold by root"), (), "wait",
     "on hold: burstctl hold by root", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "chain", "verdict", "reason", "other"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS]
)
def test_comment_explanation_and_list_agree(
    snapshot: Snapshot, chain: tuple[Policy, ...], verdict: str, reason: str, other: str
) -> None:
    """``other``: the comment where it leaves out what a cloud or a user's file system answered, or names the clock."""
    target = make_target(snapshot, chain)
    plan = Plan((), target, target.remarks)
    (row,) = snapshot.slurm.jobs  # type: ignore[union-attr]
    explained = explain_job(snapshot, plan, "1")
    backend = cast("Backend", SimpleNamespace(precedence=lambda: UNDISTURBED))
    listed = AnnotatedQueue(backend, (snapshot, plan)).to_view(row)
    comment = JobComments(snapshot, plan).comment_for(row, "")
    assert comment is not None
    assert (explained.verdict, explained.summary) == (verdict, reason)
    assert (listed.verdict, listed.reason) == (verdict, reason)
    begins = "cannot start" if verdict == "impossible" else "waits"
    assert comment.text == (other or f"{begins}: {reason}")


def test_of_a_node_on_its_way_all_name_the_node() -> None:
    snapshot = make_snapshot(job(), claims=(claim("cpu2", ClaimState.BOOTING, jobs=("1",), created=NOW - 5),))
    target = make_target(snapshot, ())
    plan = Plan((), target, target.remarks)
    comment = JobComments(snapshot, plan).comment_for(job(), "")
    assert comment is not None
    assert comment.text == "node cpu2 is booting, about 1 min"
    assert explain_job(snapshot, plan, "1").summary == "the job fits on cpu2 (booting)"


def test_of_a_job_that_is_held_for_its_home_all_say_so() -> None:
    why = "home directory /home/ada of ada is not on nodes of pool cpu (seen on cpu1); mend it"
    row = job(reason="JobHeldUser")
    snapshot = make_snapshot(row, runtime_state=RuntimeState(held_for_homes={"1": why}))
    plan = decide(snapshot, (), Tuning())
    explained = explain_job(snapshot, plan, "1")
    assert (explained.verdict, explained.summary) == ("wait", f"it is held: {why}")
    assert explained.remedies == ("correct what the reason names, then: burstctl config reload, scontrol release 1",)
    backend = cast("Backend", SimpleNamespace(precedence=lambda: UNDISTURBED))
    listed = AnnotatedQueue(backend, (snapshot, plan)).to_view(row)
    assert (listed.verdict, listed.reason) == ("wait", f"it is held: {why}")
    comment = JobComments(snapshot, plan).comment_for(row, "")
    assert comment is not None
    assert comment.text == f"waits: it is held: {why}"
