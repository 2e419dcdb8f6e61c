"""Every kind of step has its sentence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import get_args

import pytest

from burstd.api.routers.plan import plan_view
from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState, Leftover
from burstd.domain.idle_gpus import IdleAct, IdleJob, IdleRun
from burstd.domain.plan import (
    Action,
    ActOnIdleJobs,
    AdoptMachine,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    HandOver,
    HoldJob,
    JobRun,
    LaunchMachine,
    LimitJobTime,
    MakeClaim,
    Plan,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RecordIdleJobs,
    RecordInterruptions,
    RegisterNodes,
    RemoveOrphans,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    SetProjectLimits,
    SetQuotaPreemption,
    StartJobsNow,
    StartSlurmd,
    TerminateMachines,
    TestFabric,
    UnbindJob,
    UndrainNodes,
    UpdateJobs,
    ValidateNode,
    WarnJobs,
)
from burstd.domain.plugins.policy import ExcludedOffer, Remark, Target, Want, remarks_on_dropped_want
from burstd.domain.project import OverQuotaLimits
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.shape import Gres

from .world import G4, NOW, SNAPSHOT

ADOPTED = Claim(
    "c-9", "lab", "gpu", "gpu6", G4, Cause.DEMAND, S.IN_SERVICE, NOW, NOW, "it was not on record", instance_id="i-9"
)
SENTENCES: list[tuple[Action, str]] = [
    (AdoptMachine(ADOPTED), "adopt instance i-9 at sandbox as gpu6, in_service: it was not on record"),
    (
        MakeClaim(replace(ADOPTED, reason="for job 104", jobs=("104",))),
        "start a machine for gpu6 (pool gpu) as sandbox/local/a/g4/on-demand at 3.06 EUR/h: for job 104",
    ),
    (
        HandOver("c-gpu3", replace(ADOPTED, reason="for job 104")),
        "hand the machine of gpu3 over as gpu6 (pool gpu): for job 104",
    ),
    (LaunchMachine("c-gpu3", "no answer"), "ask the cloud for the machine of gpu3 again: no answer"),
    (
        ChangeClaimState("c-gpu3", S.BOOTING, S.FAILED, "too late"),
        "set gpu3 from booting to failed: too late",
    ),
    (RecordAddress("c-gpu3", "10.0.0.3", "i-3"), "record address 10.0.0.3 for gpu3"),
    (ValidateNode("c-gpu3", "it runs"), "reach and check the machine of gpu3: it runs"),
    (ProbeMachine("c-gpu3"), "find out whether the machine of gpu3 answers, which its cloud lists no more"),
    (RegisterNodes((("gpu3", "10.0.0.3"), ("gpu4", "10.0.0.4"))), "tell Slurm the addresses of gpu[3-4]"),
    (StartSlurmd("c-gpu3"), "start slurmd on gpu3"),
    (TestFabric("c-gpu3", "c-gpu4"), "measure the network between gpu3 and gpu4"),
    (
        SetGate(frozenset({"gpu1"}), "ready", ("c-gpu3", "c-gpu4"), ("c-gpu2",)),
        "open gpu[3-4] to jobs and close gpu2 to new jobs: ready",
    ),
    (BindJob("103", "bob", ("c-gpu3",), ("gpu3",), "deep"), "let job 103 of bob, and no other, start on gpu3: deep"),
    (UnbindJob("103", "it runs"), "let other jobs than 103 use its nodes again: it runs"),
    (PowerDown(("gpu3",), True, "over"), "power down (jobs on them are requeued) gpu3 in Slurm: over"),
    (SetNodesDown(("gpu3",), "died"), "set gpu3 down in Slurm: died"),
    (DrainNodes(("c-gpu3", "c-gpu4"), ("gpu3", "gpu4"), "burstd: x"), "drain gpu[3-4] in Slurm: burstd: x"),
    (UndrainNodes(("gpu3", "gpu4")), "take burstd's drain off gpu[3-4]: no machine stands behind it"),
    (
        RequeueJobs((JobRun("103", ("103",), 0, "gpu3: it ends"), JobRun("7", ("7+0",), 1, "gpu4: it ends"))),
        "requeue jobs 103, 7: gpu3: it ends, and 1 more such",
    ),
    (
        WarnJobs((JobRun("103", ("103",), 0, "b asks"),), NOW, takes_checkpoint=False),
        f"tell job 103: requeued at {datetime.fromtimestamp(NOW, UTC):%H:%M:%S} UTC: b asks",
    ),
    (RecordInterruptions((JobRun("103", ("103",), 0, "it is gone"),)), "note that job 103 lost a machine: it is gone"),
    (
        SetProjectLimits((("a", OverQuotaLimits(Fraction(5, 2), 2)), ("b", OverQuotaLimits(None, 1))), "d asks"),
        "limit what projects run beyond their quotas to a 2.5 GPUs (tier 2), b no limit (tier 1): d asks",
    ),
    (
        SetQuotaPreemption(("a", "b"), ("c",), "job 7 has waited 60 s"),
        "let the quota of a, b be taken back from others and let the quota of c wait: job 7 has waited 60 s",
    ),
    (LimitJobTime("103", 1500.0, "no money"), "give job 103 a time limit of 25 min: no money"),
    (
        RecordIdleJobs(((IdleJob("103", 0, 1, 4, NOW, 900.0), "it uses 3 of 4"),), (("104", 1), ("105", 0))),
        "warn job 103: it uses 3 of 4; withdraw the warning of jobs 104, 105",
    ),
    (
        ActOnIdleJobs(tuple(IdleRun(str(n), 0, NOW, act, 0.0, "idle") for n, act in enumerate([*IdleAct][1:], 103))),
        "shorten the time limit of job 103: idle; requeue job 104: idle; cancel job 105: idle",
    ),
    (HoldJob("103", "103", "no home, 3 times", "mounts"), "hold job 103: no home, 3 times"),
    (
        UpdateJobs(
            ("103", "104_[1-2]"),
            ("103", "104"),
            JobUpdate(frozenset({"op1", "op2"}), frozenset(), (Gres("gpu", "v100", 3),), 300, 2),
            "it requires that",
        ),
        "update jobs 103, 104_[1-2] in Slurm (exclude op[1-2], gpu:v100:3 per node, 300 MiB, 2 CPUs): it requires that",
    ),
    (StartJobsNow(("103",)), "let job 103 start again at once"),
    (TerminateMachines(("c-gpu3", "c-unknown"), "over"), "end the machines of c-unknown,gpu3: over"),
    (
        RemoveOrphans(
            "sandbox",
            (Instance("i-9", "sandbox", InstanceState.RUNNING, "c-9"),),
            (Leftover("volume", "v-1", "sandbox", "c-9"),),
            "no claim",
        ),
        "remove instance i-9, volume v-1 from sandbox: no claim",
    ),
]


@pytest.mark.parametrize(("action", "sentence"), SENTENCES)
def test_a_step_is_a_sentence(action: Action, sentence: str) -> None:
    [step] = plan_view(SNAPSHOT, Plan((action,)), NOW).steps
    assert step.text == sentence
    assert step.action == type(action).__name__


def test_no_kind_of_step_is_left_out() -> None:
    assert {type(action) for action, _ in SENTENCES} == set(get_args(Action))


def test_claims_made_alike_are_one_step() -> None:
    made = [MakeClaim(replace(ADOPTED, slot=slot, reason="floor 4")) for slot in ("gpu6", "gpu7")]
    [step] = plan_view(SNAPSHOT, Plan(tuple(made)), NOW).steps
    assert step.text.startswith("start 2 machines for gpu[6-7] (pool gpu) as ")
    assert step.nodes == ["gpu6", "gpu7"]


def test_what_policies_took_away_is_told_with_its_reason() -> None:
    want = Want(
        "gpu",
        2,
        Cause.DEMAND,
        "jobs 1, 2",
        (G4,),
        jobs=("1", "2"),
        excluded_offers=(ExcludedOffer("x/y", "thrift", "dear"),),
    )
    floor = Want("cpu", 1, Cause.FLOOR, "floor 1", ())
    remarks = (
        Remark("placement", "job:1", "boot", "it gets a new node"),
        *remarks_on_dropped_want(want, "budget", "project atlas: 3 EUR are left"),
        *remarks_on_dropped_want(floor, "limits", "at most 4 nodes"),
        Remark("idle", "claim:c-gpu1", "keep", "paid until 12:00"),
        Remark("hold", "plan", "hold", "on hold"),
    )
    view = plan_view(SNAPSHOT, Plan(target=Target(wants=(want,), remarks=remarks)), NOW)
    assert [(w.by, w.verdict, w.about, w.reason) for w in view.words] == [
        ("budget", "wait", ["job:1", "job:2"], "project atlas: 3 EUR are left"),
        ("limits", "drop", ["pool:cpu"], "1 node(s) (floor 1): at most 4 nodes"),
        ("idle", "keep", ["claim:c-gpu1"], "paid until 12:00"),
    ]
    assert [(o.offer, o.by, o.reason) for o in view.wants[0].left_out] == [("x/y", "thrift", "dear")]
