"""Jobs of projects that a limit of their user or account keeps back do not ask, whichever reason Slurm shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from burstd.domain.project import OverQuotaLimits
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import KnownLimit, RuntimeState, Snapshot, Unavailable
from burstd.planner.decide import decide
from burstd.planner.demand.limited_jobs import LIMIT_TTL_S, limited_jobs
from burstd.planner.explain.explain import explain_job
from burstd.planner.timeouts import Tuning
from tests.planner.test_projects import F, caps, requeued, runs, shares, tasks, waiting, world
from tests.planner.worlds import NOW

KNOWN = KnownLimit(NOW - 60, 2, 2)
TWO_RUN = runs(100, 2, "q-a", "n1")


@pytest.mark.parametrize(
    ("reason", "asks"),
    [
        ("Resources", 1), ("Priority", 1), ("None", 1), ("QOSGrpGRES", 1), ("QOSGrpBilling", 1),
        ("QOSMaxGRESPerUser", 0), ("QOSMaxGRESPerAccount", 0), ("QOSMaxJobsPerUserLimit", 0), ("QOSMaxGRESPerJob", 0),
        ("QOSMinGRES", 0), ("QOSGrpCpuLimit", 0), ("QOSGrpJobsLimit", 0), ("AssocGrpGRES", 0), ("AssocMaxJobsLimit", 0),
        ("AssocMaxGRESPerJob", 0), ("MaxGRESPerAccount", 0), ("AccountingPolicy", 0),
    ],
)  # fmt: skip
def test_which_limits_are_of_the_project(reason: str, asks: int) -> None:
    assert shares(world(waiting("1", "a", reason=reason)))["a"][0] == asks


@pytest.mark.parametrize(
    ("known", "job", "running", "kept"),
    [
        ({}, waiting("9", "a", reason="QOSMaxGRESPerUser"), 2, KnownLimit(NOW, 2, 2)),
        ({}, waiting("9", "a", reason="QOSGrpGRES"), 2, None),
        ({}, waiting("9", "a", reason="JobHeldUser"), 2, None),
        ({"9": KNOWN}, waiting("9", "a", reason="QOSGrpGRES"), 2, KNOWN),
        ({"9": KNOWN}, waiting("9", "a", reason="QOSGrpGRES"), 3, KNOWN),
        ({"9": KNOWN}, waiting("9", "a", reason="QOSMaxGRESPerUser"), 1, KnownLimit(NOW, 1, 1)),
        ({"9": KNOWN}, waiting("9", "a", reason="QOSGrpGRES"), 1, None),
        ({"9": KNOWN}, waiting("9", "a", reason="Resources"), 2, None),
        ({"9": replace(KNOWN, since=NOW - LIMIT_TTL_S)}, waiting("9", "a", reason="QOSGrpGRES"), 2, None),
    ],
    ids=[
        "a limit of its user", "its share", "held", "its share, but a limit before", "more run", "told again",
        "a job of its user has ended", "waits for nodes", "long ago",
    ],
)  # fmt: skip
def test_what_is_kept_in_mind(known: Mapping[str, KnownLimit], job: Job, running: int, kept: KnownLimit | None) -> None:
    assert limited_jobs(known, world(job, *runs(100, running, "q-a", "n1"))).get("9") == kept


def test_a_limit_on_whole_gpus_is_none_on_shards() -> None:
    told = waiting("9", "a", reason="QOSMaxGRESPerUser")
    shard = replace(waiting("8", "a", reason="QOSGrpBilling"), gres_per_node=(Gres("shard", "", 1),))
    assert limited_jobs({}, world(told, shard)).keys() == {"9"}


def test_a_new_job_of_the_same_user_that_asks_for_as_much_is_known_as_well() -> None:
    told = waiting("9", "a", gpus=2, reason="QOSMaxGRESPerUser")
    new = [waiting(str(n), "a", gpus=n, reason="QOSGrpGRES") for n in (1, 2, 3)]
    others = [replace(new[2], id="4", user="bob"), replace(new[2], id="5", account="b")]
    assert limited_jobs({}, world(told, *new, *others)).keys() == {"9", "2", "3"}


def test_what_is_known_stays_while_slurm_cannot_be_read() -> None:
    snapshot = world(waiting("9", "a", reason="QOSGrpGRES"))
    assert limited_jobs({"9": KNOWN}, replace(snapshot, slurm=Unavailable("slurmctld does not answer", 0.0))) == {
        "9": KNOWN
    }


def test_nobody_is_requeued_in_turn_for_a_job_that_its_users_limit_keeps_back() -> None:
    """As slurmctld shows it: QOSGrpGRES while o-a has nothing left, QOSMaxGRESPerUser once it has."""
    others = [*runs(200, 2, "q-b", "n1"), *runs(210, 4, "o-b", "n1"), *runs(220, 8, "o-b", "n2")]
    seen: list[tuple[int, list[str]]] = []
    state, limits, reason = RuntimeState(), OverQuotaLimits(F(0), 1), "QOSGrpGRES"
    for loop in range(6):
        jobs = [*TWO_RUN, *others, *tasks(1, 8, "a", reason=reason)]
        snapshot: Snapshot = replace(world(*jobs), runtime_state=state)
        view = snapshot.projects
        snapshot = replace(snapshot, projects=replace(view, limits={**view.limits, "a": limits}), now=NOW + 60 * loop)
        seen.append((caps(snapshot)["a"], requeued(snapshot)))
        limits = OverQuotaLimits(F(seen[-1][0]), 1)
        state = RuntimeState(limited_jobs=limited_jobs(state.limited_jobs, snapshot))
        reason = "QOSMaxGRESPerUser" if limits.gpus else "QOSGrpGRES"
    assert (seen[0][0], len(seen[0][1])) == (6, 6)
    assert seen[1:] == [(0, [])] * 5


def test_explain_names_the_limit() -> None:
    state = RuntimeState(limited_jobs={"9": KNOWN})
    snapshot = replace(world(waiting("9", "a", reason="QOSGrpGRES"), *TWO_RUN), runtime_state=state)
    found = explain_job(snapshot, decide(snapshot, (), Tuning()), "9")
    assert found.summary.startswith("waiting for a limit of its user, its account or its own QOS; project a: 2 of 4")
    assert found.slurm == "waiting for a limit of its user, its account or its own QOS"
