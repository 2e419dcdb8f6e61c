"""The figures of a snapshot that history keeps."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from burstd.domain.billing.costs import Spent
from burstd.domain.billing.use import WHOLE, ClaimRun, IdleMode, Payer
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import NodeRelease, Target
from burstd.domain.project import Project, ProjectsView, Share
from burstd.domain.site_history import Part
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, SharedGpu
from burstd.domain.snapshot import Unavailable
from burstd.planner.site_history import site_figures
from tests.api.world import CLAIMS, NOW, OTHER_USER, SLURM, SNAPSHOT, USER, job

JOBS = (
    job("1", USER, account="phys", nodes=2, partitions=("q-a", "o-a")),
    job("2", USER, account="phys", array_job_id="2", array_tasks="1-3", tasks=3),
    job("3", OTHER_USER, JobState.RUNNING, node_list=("gpu1", "gpu2"), nodes=1, account="chem"),
    job("4", OTHER_USER, JobState.COMPLETING, node_list=("op1",), gres_per_node=(Gres("shard", "", 1),)),
    job("5", OTHER_USER, JobState.COMPLETED, node_list=("gpu1",)),
)
OWN = Node("op1", "MIXED", gres=(Gres("gpu", "", 2), Gres("shard", "", 8)), cpus_allocated=1,
           shared_gpus=(SharedGpu("", 4, 1), SharedGpu("", 4, 4)))  # fmt: skip
PROJECTS = ProjectsView({"a": Project("a", "phys", Fraction(4), partitions=("burst",))})
PAID = replace(CLAIMS[0], accounts=("phys", "chem"), jobs=("3",))
BOOTING = replace(CLAIMS[2], accounts=("phys", "chem"), users=(USER, OTHER_USER), jobs=("1", "3"))
RUNNING = (ClaimRun(PAID.id, Payer("3", OTHER_USER, "chem"), NOW - 60, WHOLE // 4),)
WORLD = replace(
    SNAPSHOT,
    claims=(PAID, CLAIMS[1], BOOTING, *CLAIMS[3:]),
    projects=PROJECTS,
    slurm=replace(SLURM, jobs=JOBS, nodes={**SLURM.nodes, "op1": OWN, "gpu2": replace(SLURM.nodes["gpu1"], name="gpu2",
                  state="IDLE", cpus_allocated=0)}),
    spent=(Spent("", "", "2026-10", "EUR", Decimal("1.5")), Spent("", "", "2026-11", "EUR", Decimal("0.25")),
           Spent("user", USER, "2026-11", "EUR", Decimal(9))),
)  # fmt: skip
PLAN = Plan((), Target((), (NodeRelease("c-gpu2", "gpu", "idle"),), shares={
    "a": Share(Fraction(20), Fraction(0), Fraction(0), Fraction(7, 2))}))  # fmt: skip


def test_jobs_gpus_and_waits() -> None:
    started = (
        job("3", OTHER_USER, JobState.RUNNING, node_list=("gpu1",), start=NOW - 60, eligible=NOW - 90, account="chem"),
        job("1", USER, JobState.RUNNING, node_list=("op1",), start=NOW - 20, account="phys", partitions=("o-a",)),
    )
    found = site_figures(WORLD, PLAN, started, RUNNING)
    assert found[Part.SITE] == {
        "site": {
            "jobs_pending": 4, "jobs_running": 2, "gpus_pending": 4 * 2 + 4 * 3, "gpus_running": 8.25,
            "gpus_used": 0.75, "gpus_free": 1.25 + 3 * 4, "gpus_idle": 4, "started": 2, "wait_s": 30 + 100,
            "wait_max_s": 100, "waits_below_32": 1, "waits_below_128": 1,
        },
        "pool/gpu": {"started": 1, "wait_s": 30, "wait_max_s": 30, "waits_below_32": 1},
    }  # fmt: skip
    assert found[Part.PROJECTS] == {
        "project/a": {"jobs_pending": 1, "gpus_pending": 8, "share": 3.5, "money_per_hour.EUR": 1_530_000,
                      "started": 1, "wait_s": 100, "wait_max_s": 100, "waits_below_128": 1},
        # Its account's job in a partition that is not the project's.
        "account/phys": {"jobs_pending": 3, "gpus_pending": 12},
        "account/chem": {"jobs_running": 1, "gpus_running": 8, "money_per_hour.EUR": 1_530_000 + 765_000,
                         "started": 1, "wait_s": 30, "wait_max_s": 30, "waits_below_32": 1},
    }  # fmt: skip
    to_cause = site_figures(WORLD, PLAN, started, RUNNING, IdleMode.TO_CAUSE)[Part.PROJECTS]
    assert to_cause["account/chem"]["money_per_hour.EUR"] == 1_530_000 + 765_000 + 3 * 765_000 / 2


def test_machines_and_money_are_known_without_slurm() -> None:
    for world in (WORLD, replace(WORLD, slurm=Unavailable("no answer", NOW - 9))):
        found = site_figures(world, PLAN, ())
        machines = found[Part.MACHINES]
        assert machines["pool/gpu"]["money_per_hour.EUR"] == 5 * 3_060_000
        assert machines["pool/cpu"]["money_per_hour.EUR"] == 200_000
        assert machines["provider/sandbox"]["money_per_hour.EUR"] == 15_500_000
        assert machines["pool/gpu"]["wanted"] == 4 - 1
        phases = {name: n for name, n in machines["site"].items() if name.startswith("machines_")}
        assert sum(phases.values()) == len(CLAIMS)  # type: ignore[arg-type]
        cost = sum((claim.cost(world.now) for claim in world.claims), Decimal("1.75"))
        assert machines["site"]["spent.EUR"] == round(cost * 1_000_000)
        assert (Part.SITE in found, Part.PROJECTS in found) == ((world is WORLD,) * 2)
