"""When a job that waits for its input gets a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import ChangeClaimState, MakeClaim
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import RuntimeState
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.demand.stuck_jobs import stuck_since
from burstd.planner.explain.explain import explain_job
from burstd.planner.staging.input_deadlines import MAX_BOOT_SAMPLES, boot_durations, updated_boot_durations
from burstd.planner.timeouts import Tuning

from .worlds import NOW, claim, job, last_verdict, make_snapshot, node, pool, target, wants

NEVER = float("inf")
BOOTED = RuntimeState(boot_durations={"cpu": (40.0, 38.0, 300.0)})
STAGE_IN = job(reason="BurstBufferStageIn")


def data(state: StageState, left_s: float = 0.0, **fields: Any) -> dict[str, StagingView]:
    return {"1": replace(StagingView(state, NOW + left_s if left_s else 0.0, since=NOW - 60), **fields)}


@pytest.mark.parametrize(
    ("case", "reason", "view", "says", "look_at"),
    [
        ("there", "BurstBufferStageIn", data(StageState.STAGED), "", NEVER),
        ("there, Slurm about to see it", "BurstBufferResources", data(StageState.STAGED), "", NEVER),
        ("as far off as a boot", "BurstBufferStageIn", data(StageState.UPLOADING, 40), "", NEVER),
        (
            "further off",
            "BurstBufferStageIn",
            data(StageState.UPLOADING, 180),
            "its input is expected at 13:49 UTC (3 min); a node takes 40 s to boot: burstd launches one in 2 min 20 s",
            NOW + 140,
        ),
        (
            "its turn has not come",
            "BurstBufferResources",
            data(StageState.WAITING, 3600),
            "its input is expected at 14:46 UTC (1 h); a node takes 40 s to boot: burstd launches one in 59 min 20 s",
            NOW + 3560,
        ),
        (
            "Slurm names another reason",
            "Priority",
            data(StageState.UPLOADING, 180),
            "its input is expected at 13:49 UTC (3 min); a node takes 40 s to boot: burstd launches one in 2 min 20 s",
            NOW + 140,
        ),
        (
            "nobody can say",
            "BurstBufferStageIn",
            data(StageState.UPLOADING),
            "its input is being uploaded; no estimate yet",
            NEVER,
        ),
        (
            "nothing is known",
            "BurstBufferStageIn",
            {},
            "its input is being uploaded; no estimate yet",
            NEVER,
        ),
        (
            "held",
            "BurstBufferStageIn",
            data(StageState.HELD, error="/data/x: permission denied"),
            "its data is held: /data/x: permission denied",
            NEVER,
        ),
        ("held, and its job", "JobHeldAdmin", data(StageState.HELD), "its data is held: no reason is known", NEVER),
        (
            "there, but the operation failed",
            "BurstBufferOperation",
            data(StageState.STAGED),
            "a burst buffer operation failed (Slurm: BurstBufferOperation)",
            NEVER,
        ),
        ("there, but held", "JobHeldUser", data(StageState.STAGED), "held by its user (Slurm: JobHeldUser)", NEVER),
        (
            "requeued",
            "BurstBufferResources",
            data(StageState.DELIVERING),
            "the output of its last run is being delivered first",
            NEVER,
        ),
        ("allocated since", "Resources", data(StageState.FETCHING), "", NEVER),
    ],
)
def test_a_node_is_started_so_that_it_is_there_with_the_input(
    case: str, reason: str, view: dict[str, StagingView], says: str, look_at: float
) -> None:
    found = target(job(reason=reason), data=view, runtime_state=BOOTED)
    assert wants(found) == ([] if says else [("cpu", 1, ("1",))]), case
    assert last_verdict(found)[1] == says or not says
    assert found.wake_at == look_at


def test_the_next_look_is_when_the_first_of_them_begins_to_count() -> None:
    views = data(StageState.UPLOADING, 180) | {"2": StagingView(StageState.WAITING, NOW + 90)}
    two = job("2", reason="BurstBufferStageIn")
    assert target(STAGE_IN, two, data=views, runtime_state=BOOTED).wake_at == NOW + 50
    assert target(job(reason="BeginTime", eligible=NOW + 30)).wake_at == NOW + 30
    plan = decide(make_snapshot(STAGE_IN, data=data(StageState.UPLOADING, 180), runtime_state=BOOTED), (), Tuning())
    assert plan.target.wake_at == NOW + 140
    then = replace(make_snapshot(STAGE_IN, data=data(StageState.UPLOADING, 180), runtime_state=BOOTED), now=NOW + 140)
    assert [a.claim.slot for a in decide(then, (), Tuning()).actions if isinstance(a, MakeClaim)] == ["cpu1"]


def test_a_node_for_it_outlives_a_late_input_but_not_for_ever() -> None:
    booting = claim("cpu1", S.READY, jobs=("1",))
    late: dict[str, Any] = {"data": data(StageState.UPLOADING, 300), "runtime_state": BOOTED, "claims": (booting,)}
    assert (last_verdict(target(STAGE_IN, **late))[0], target(STAGE_IN, **late).releases) == ("covered", ())
    for_others = {**late, "claims": (claim("cpu1", S.READY, jobs=("9",)),)}
    assert len(target(STAGE_IN, **for_others).releases) == 1
    very_late = {**late, "data": data(StageState.UPLOADING, 3600)}
    assert len(target(STAGE_IN, **very_late).releases) == 1


def test_arrays_and_het_jobs_have_the_data_of_the_whole() -> None:
    views = {"7": StagingView(StageState.UPLOADING, NOW + 900)}
    array = job("7_3", array_job_id="7", reason="BurstBufferStageIn")
    het = job("7+1", het_job_id="7", het_offset=1, reason="BurstBufferStageIn")
    for one in (array, het):
        assert wants(target(one, data=views, runtime_state=BOOTED)) == []
    assert wants(target(het, data={**views, "7+1": StagingView(StageState.STAGED, 0.0)})) == [("cpu", 1, ("7+1",))]


def test_how_long_nodes_take() -> None:
    seen = make_snapshot(
        claims=(
            claim("cpu1", S.IN_SERVICE, created=NOW - 100, in_service_from=NOW - 60),
            claim("cpu2", S.READY, created=NOW - 100, since=NOW - 55),
            claim("cpu3", S.IN_SERVICE, created=NOW - 100, in_service_from=NOW - 1, gang="9"),
            claim("cpu4", S.BOOTING),
        )
    )
    assert boot_durations(seen) == {"cpu": [40.0, 45.0]}
    assert boot_durations(replace(seen, runtime_state=BOOTED)) == {"cpu": [40.0, 38.0, 300.0]}


def test_boots_are_kept_in_mind() -> None:
    proving = claim("cpu1", S.VALIDATING, created=NOW - 42)
    seen = make_snapshot(claims=(proving,))
    ready = ChangeClaimState(proving.id, S.VALIDATING, S.READY, "slurmd registered with Slurm")
    assert updated_boot_durations({"gpu": (9.0,)}, seen, [ready]) == {"gpu": (9.0,), "cpu": (42.0,)}
    assert updated_boot_durations({}, seen, [replace(ready, old=S.DRAINING)]) == {}
    assert updated_boot_durations({"cpu": (1.0,) * MAX_BOOT_SAMPLES}, seen, [ready])["cpu"] == (
        *(1.0,) * (MAX_BOOT_SAMPLES - 1),
        42.0,
    )


def test_a_node_is_not_mistrusted_because_the_input_is_late() -> None:
    """Slurm starts nothing whose input is missing, on whatever room."""
    here = make_snapshot(STAGE_IN, nodes=(node("op1", partitions=("burst",)),), data=data(StageState.UPLOADING, 10))
    found = target(STAGE_IN, nodes=(node("op1", partitions=("burst",)),), data=data(StageState.UPLOADING, 10))
    assert last_verdict(found)[0] == "covered"
    assert stuck_since({"1": NOW - 5000}, here, found) == {}
    assert stuck_since({}, replace(here, data=data(StageState.STAGED)), found) == {"1": NOW}


def test_explain_says_what_would_help() -> None:
    seen = make_snapshot(STAGE_IN, data=data(StageState.HELD, error="no such file"), pools=(pool(),))
    told = explain_job(seen, decide(seen, (), Tuning()), "1")
    assert (told.summary, told.remedies) == ("its data is held: no such file", ("burstctl stage status 1",))
    assert STAGE_IN.state is JobState.PENDING
