"""The policy wait_aware: burst where the wait that is spared is worth more than the cloud."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

import policies.idle
import policies.wait_aware
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.outlook import LeavesForCloud, Outlook, Outlooks
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.policy_chain import make_target

from .worlds import NOW, job, last_verdict, make_snapshot, node, offer, pool, wants

HOUR = 3600.0
INF = float("inf")
TWO = Shape(8, 16000, (Gres("gpu", "", 2),))
GPU = pool("gpu", shape=TWO)
PAIR = offer("pair", "6", TWO)


class Known(dict[str, Outlook], Outlooks):
    """Outlooks that are as a test says, whoever leaves; ``tasks``: when tasks of arrays would start, by job."""

    def __init__(self, found: Mapping[str, Outlook], tasks: Mapping[str, tuple[Outlook, ...]]) -> None:
        super().__init__(found)
        self.tasks = tasks

    def assuming(self, leaves: LeavesForCloud) -> Mapping[str, Outlook]:
        for job_id, found in self.items():
            for one in self.tasks.get(job_id, (found,)):
                leaves(job_id, one)
        return self


def ahead(local_h: float, run_h: float = 1.0, boot_s: float = 300.0, staging_s: float = 0.0) -> Outlook:
    return Outlook(NOW + local_h * HOUR, "queue", run_h * HOUR, "time limit", boot_s, staging_s)


def by_slurm(seconds: float, run_h: float) -> Outlook:
    return Outlook(NOW + seconds, "slurm", run_h * HOUR, "time limit", 300.0, 0.0)


def policy(**given: Any) -> Policy:
    settings = {"value": 2.0, "idle_s": 300.0, **given}
    return policies.wait_aware.plugin.make(policies.wait_aware.WaitAwareSettings(**settings))


def decided(
    found: Mapping[str, Outlook], *jobs: Job, tasks: Mapping[str, tuple[Outlook, ...]] | None = None, **given: Any
) -> Target:
    fields: dict[str, Any] = {"pools": (GPU,), "offers": (PAIR,)} if any(j.gres_per_node for j in jobs) else {}
    target = make_target(make_snapshot(*jobs, outlook=Known(found, tasks or {}), **fields), (policy(**given),))
    assert not target.failed_policies, target.failed_policies
    return target


def gpu_job(job_id: str = "1", gpus: int = 2, **fields: Any) -> Job:
    return job(job_id, gres_per_node=(Gres("gpu", "", gpus),), **{"cpus": gpus, "account": "lab", **fields})


# Two GPUs for an hour and ten minutes of boot and idling are 2 h 20 min; at a value of 2 that is worth 1 h 10 min.
@pytest.mark.parametrize(
    ("case", "outlook", "given", "bursts"),
    [
        ("the wait is worth it", ahead(1.3), {}, True),
        ("and just not", ahead(1.2), {}, False),
        ("it would start before a machine is there", ahead(0.05, 0.001), {"idle_s": 0}, False),
        ("a long upload comes off the wait", ahead(1.3, staging_s=900), {}, False),
        ("a longer job is dearer", ahead(1.3, 2.0), {}, False),
        ("a project whose time is worth more", ahead(0.8), {"projects": {"lab": {"value": 4}}}, True),
        ("another project's is", ahead(0.8), {"projects": {"other": {"value": 4}}}, False),
        ("a partition's", ahead(0.8), {"partitions": {"burst": {"value": 4}}}, True),
        ("a project comes before a partition", ahead(1.3),
         {"partitions": {"burst": {"value": 4}}, "projects": {"lab": {"value": 1}}}, False),
        ("worth nothing", ahead(1000), {"value": 0, "patience_s": 1e9}, False),
        ("in money: seven for the machine", ahead(1.3), {"price": Decimal("5.7")}, False),
        ("in money: enough", ahead(1.3), {"price": Decimal("5.9")}, True),
        ("nothing on premises can run it", ahead(INF, 1000), {}, True),
        ("it has waited for long", ahead(0.2), {"patience_s": 60}, True),
        ("it has waited for long, and will start at once", ahead(0.0), {"patience_s": 60}, False),
        ("Slurm is about to start it", by_slurm(60.0, 240), {"patience_s": 60, "doubt": 99}, False),
        ("Slurm is not about to", by_slurm(400.0, 0.01), {"patience_s": 60, "doubt": 99}, True),
        ("worth nothing, but nothing on premises can run it", ahead(INF), {"value": 0}, True),
    ],
)  # fmt: skip
def test_bursts_or_waits(case: str, outlook: Outlook, given: dict[str, Any], bursts: bool) -> None:
    found = decided({"1": outlook}, gpu_job(), **given)
    assert wants(found) == ([("gpu", 1, ("1",))] if bursts else []), case
    assert all(want.dedicated for want in found.wants)
    assert last_verdict(found)[0] == ("boot" if bursts else "wait")


def test_what_users_read_does_not_change_with_every_look() -> None:
    found = decided({"1": ahead(0.25 + 20 / HOUR, 5.9)}, gpu_job())
    assert last_verdict(found)[1] == (
        "expected to start on premises in about 15 min; a cloud node takes about 5 min and costs about 12 GPU-hours"
    )
    found = decided({"1": ahead(3.1)}, gpu_job(), price=Decimal(10))
    assert (
        last_verdict(found)[1]
        == "expected to start on premises in about 3 h; a cloud node of its own costs about 7.0 EUR"
    )
    found = decided({"1": ahead(0.003)}, job())
    assert last_verdict(found)[1] == (
        "expected to start on premises at any moment; a cloud node takes about 5 min and costs about 0.3 machine-hours"
    )


def test_each_pays_for_a_shared_machine_in_its_own_unit() -> None:
    some = gpu_job("1", 1), gpu_job("2", 1, account="rich")
    # Each spares 3 h 55 min. The machine: 2 h 20 min of GPUs, or 7 EUR.
    dear = {"rich": {"price": Decimal(1)}}
    found = decided({"1": ahead(4), "2": ahead(4)}, *some, value=0.25, projects=dear)
    assert wants(found) == []
    found = decided({"1": ahead(4), "2": ahead(4)}, *some, value=0.35, projects=dear)
    assert wants(found) == [("gpu", 1, ("1", "2"))]


def test_jobs_that_share_a_machine_are_weighed_one_by_one() -> None:
    some = gpu_job("1", 1), gpu_job("2", 1)
    found = decided({"1": ahead(2.5), "2": ahead(0.1)}, *some)
    assert wants(found) == [("gpu", 1, ("1",))]
    assert last_verdict(found, "2")[0] == "wait"
    assert "2" not in found.wants[0].reason.partition(",")[0]
    assert wants(decided({"1": ahead(0.8), "2": ahead(0.8)}, *some)) == [("gpu", 1, ("1", "2"))]


def test_one_job_does_not_pay_for_a_machine_that_stays_half_empty() -> None:
    # Its own half would be worth it.
    found = decided({"1": ahead(0.8)}, gpu_job("1", 1))
    assert wants(found) == []
    assert "is used in part only" in last_verdict(found)[1]
    assert wants(decided({"1": ahead(1.3)}, gpu_job("1", 1))) == [("gpu", 1, ("1",))]


def test_a_job_of_many_nodes_bursts_as_a_whole() -> None:
    wide = gpu_job("1", nodes=3, cpus=6)
    assert wants(decided({"1": ahead(3.5)}, wide)) == []
    found = decided({"1": ahead(3.7)}, wide)
    assert wants(found) == [("gpu", 3, ("1",))]
    assert found.wants[0].gang == "1"
    het = gpu_job("7+0", het_job_id="7"), gpu_job("7+1", het_job_id="7", het_offset=1)
    assert wants(decided({"7+0": ahead(2.3), "7+1": ahead(2.3)}, *het)) == []
    assert sum(w.nodes for w in decided({"7+0": ahead(2.5), "7+1": ahead(2.5)}, *het).wants) == 2


def test_of_an_array_so_many_tasks_burst_as_would_start_too_late() -> None:
    array = gpu_job("1", tasks=4, array_tasks="1-4", array_job_id="1")
    starts = tuple(ahead(hours) for hours in (0.1, 1.0, 2.0, 3.0))
    assert wants(decided({"1": starts[0]}, array, tasks={"1": starts})) == [("gpu", 1, ("1",))] * 2


def test_a_short_wait_stays_and_a_long_one_bursts_by_the_queue_itself() -> None:
    running = job("r", state=JobState.RUNNING, cpus=4, node_list=("a",), start=NOW - 100, time_limit_s=400.0)
    busy = node("a", state="ALLOCATED", cpus_allocated=4, partitions=("burst",))
    jobs = [job(str(n), cpus=4, time_limit_s=2 * HOUR, priority=9 - n) for n in (1, 2)]
    found = make_target(make_snapshot(running, *jobs, nodes=(busy,)), (policy(),))
    # The first starts in five minutes, the second two hours later.
    assert wants(found) == [("cpu", 1, ("2",))]


def test_a_job_that_bursts_is_not_in_the_way_of_the_next() -> None:
    busy = node("a", state="ALLOCATED", cpus_allocated=4, partitions=("burst",))
    running = job("r", state=JobState.RUNNING, cpus=4, node_list=("a",), start=NOW - 100, time_limit_s=100 + HOUR)
    quick = [job(str(n), cpus=4, time_limit_s=600.0, priority=9 - n) for n in (1, 2)]
    long = job("3", cpus=4, time_limit_s=3 * HOUR)
    found = make_target(make_snapshot(running, *quick, long, nodes=(busy,)), (policy(),))
    assert wants(found) == [("cpu", 1, ("1",)), ("cpu", 1, ("2",))]
    assert last_verdict(found, "3")[1].startswith("expected to start on premises in about 60 min")


def test_without_any_word_on_a_job_it_bursts_after_a_while() -> None:
    free = node("a", partitions=("burst",))
    bursts = [
        bool(
            make_target(
                make_snapshot(
                    job(eligible=NOW - waited, submitted=NOW - waited), nodes=(free,), runtime_state=_stale(waited)
                ),
                (policy(),),
            ).wants
        )
        for waited in (600.0, 3 * HOUR)
    ]
    assert bursts == [False, True]


def _stale(waited: float) -> Any:
    from burstd.domain.snapshot import RuntimeState

    return RuntimeState(stuck_since={"1": NOW - waited})


def test_others_policies_and_other_causes_are_left_alone() -> None:
    spare = policies.idle.plugin.make(policies.idle.IdleSettings(spare_nodes=1))
    found = make_target(make_snapshot(outlook=Known({}, {})), (spare, policy()))
    assert wants(found) == [("cpu", 1, ())]
    assert not found.wants[0].dedicated


def test_machines_may_be_for_all() -> None:
    found = decided({"1": ahead(5)}, gpu_job(), dedicated_nodes=False)
    assert wants(found) == [("gpu", 1, ("1",))]
    assert not found.wants[0].dedicated
