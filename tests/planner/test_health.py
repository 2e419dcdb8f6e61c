"""What comes of each Xid, and of nodes that say that they have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.health import (
    BUCKETS,
    FINDINGS,
    MAX_XID,
    XIDS,
    HealthRules,
    Verdict,
    finding_verdict,
    verdict_table,
    xid_verdict,
)
from burstd.domain.plan import Action, ChangeClaimState, PowerDown, RequeueJobs, SetGate, UndrainNodes
from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.node import Reservation
from burstd.domain.snapshot import SlurmView
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.lifecycle.spot_notices import closing_error, missing_reason, own_node_alarms, parse_reason
from burstd.planner.offers.offers import breaker_key
from burstd.planner.timeouts import Tuning

from .test_spot import BUSY, CPU, SPOT, at_work, drained, plan, up
from .worlds import NOW, claim, job, make_snapshot, node, offer

AT = "2026-11-24T05:53:00Z"
SICK = f"unhealthy, Xid 79 on GPU 0000:2b:00.0 at {AT}, jobs are requeued"
ILL = f"unhealthy, Xid 48 on GPU 0000:2b:00.0 at {AT}, jobs end first"


@pytest.mark.parametrize(
    ("xid", "verdict"),
    [
        (8, "note"), (13, "note"), (31, "note"), (43, "note"), (45, "ignore"), (46, "drain"), (48, "drain"),
        (54, "note"), (62, "drain"), (63, "close_when_idle"), (64, "drain"), (74, "drain"), (79, "requeue"),
        (92, "close_when_idle"), (94, "note"), (95, "drain"), (109, "drain"), (119, "drain"), (120, "drain"),
        (121, "note"), (140, "drain"), (145, "note"), (151, "requeue"), (156, "drain"), (165, "note"), (1, "note"),
        (MAX_XID, "note"),
    ],
)  # fmt: skip
def test_what_comes_of_an_xid(xid: int, verdict: str) -> None:
    assert xid_verdict(xid, "pid=1, name=x to Node Reboot Required", {}) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "drain"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "requeue"),
        ("GPU recovery action changed from None to Node Reboot Required", "requeue"),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "requeue"),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "drain"),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "drain"),
        ("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", "note"),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Something New)", "note"),
        ("", "note"),
    ],
)
def test_the_recovery_action_is_believed(text: str, verdict: str) -> None:
    assert xid_verdict(154, text, {}) == verdict
    assert xid_verdict(154, text, {154: Verdict.IGNORE}) == "ignore"


def test_the_site_s_own_verdicts_stand_before_nvidia_s() -> None:
    own = {79: Verdict.NOTE, 13: Verdict.DRAIN}
    assert [xid_verdict(xid, "", own) for xid in (79, 13, 48)] == ["note", "drain", "drain"]
    assert {"13=drain", "79=note", "48=drain"} <= set(verdict_table(HealthRules(own)).split())


def test_each_xid_is_in_one_bucket_and_the_table_is_short() -> None:
    assert sum(len(bucket.xids) for bucket in BUCKETS) == len(XIDS)
    assert len(verdict_table(HealthRules())) < 1500


def test_a_finding_is_a_note_until_it_has_lasted() -> None:
    for name, finding in FINDINGS.items():
        seen = [finding_verdict(name, times, {}) for times in range(1, finding.times + 2)]
        assert seen == [Verdict.NOTE] * (finding.times - 1) + [finding.verdict] * 2
        assert finding_verdict(name, finding.times, {name: Verdict.REQUEUE}) == "requeue"
        assert finding_verdict(name, 1, {name: Verdict.IGNORE}) == "ignore"


def test_what_a_new_machine_may_have_is_a_note_later_unless_the_site_says_so() -> None:
    assert "gpu_slow=note:15:unhealthy" in verdict_table(HealthRules(), {"gpu_clocks"}).split()
    own = HealthRules(findings={"gpu_slow": Verdict.DRAIN}, interval_s=30)
    assert {"gpu_slow=drain:15:unhealthy", "interval=30"} <= set(verdict_table(own, {"gpu_clocks"}).split())


FULL = f"unusable, /var is full at {AT}, jobs end first"


@pytest.mark.parametrize(("text", "kind"), [(SICK, Verdict.REQUEUE), (ILL, Verdict.DRAIN), (FULL, Verdict.DRAIN)])
def test_words_of_a_fault_are_read(text: str, kind: Verdict) -> None:
    found = parse_reason(f"looks bad; burstd: {text}")
    assert found is not None
    assert (found.kind, found.text, found.admin_reason, found.deadline) == (kind, text, "looks bad", None)
    for wrong in (f"burstd: {text}?", f"burstd: {text}".replace("jobs", "job"), f"burstd: {text}".replace(AT, "now")):
        assert parse_reason(wrong) is None


@pytest.mark.parametrize(
    ("borne", "kind", "written"),
    [
        (SICK, NoticeKind.REBALANCE, ""),
        (ILL, NoticeKind.REBALANCE, ""),
        (SICK, NoticeKind.INTERRUPTION, "burstd: interruption"),
        (f"x; burstd: {ILL}", NoticeKind.INTERRUPTION, "x; burstd: interruption"),
    ],
)
def test_what_a_cloud_s_notice_adds_to_a_fault(borne: str, kind: NoticeKind, written: str) -> None:
    node = drained(borne if borne.startswith("x") else f"burstd: {borne}")
    assert missing_reason(node, Notice("i-1", kind)) == written


def of_kind(steps: list[Action], *kinds: type[Action]) -> list[Any]:
    return [step for step in steps if isinstance(step, kinds)]


def test_a_node_with_a_fault_is_closed_and_its_jobs_begin_anew() -> None:
    steps = plan(S.IN_SERVICE, drained(f"burstd: {SICK}", **BUSY), at_work())
    [run] = [run for requeue in of_kind(steps, RequeueJobs) for run in requeue.runs]
    assert (run.job_id, run.cause, run.reason) == ("7", "health", f"cpu1: {SICK}")
    [gate] = of_kind(steps, SetGate)
    assert (gate.into_drain, gate.claim_reasons[-1]) == (("c-cpu1",), f"its machine is {SICK}")


def test_a_node_with_a_mild_fault_is_closed_and_its_jobs_end_first() -> None:
    steps = plan(S.IN_SERVICE, drained(f"burstd: {ILL}", **BUSY), at_work())
    assert not of_kind(steps, RequeueJobs)
    [gate] = of_kind(steps, SetGate)
    assert gate.claim_reasons[-1] == f"its machine is {ILL}"


@pytest.mark.parametrize(("text", "requeued"), [(SICK, 1), (ILL, 0)])
def test_a_node_that_a_person_holds_stays_and_a_lost_gpu_s_jobs_begin_anew(text: str, requeued: int) -> None:
    steps = plan(S.IN_SERVICE, drained(f"looks bad; burstd: {text}", **BUSY), at_work())
    assert len(of_kind(steps, RequeueJobs)) == requeued
    assert not [gate for gate in of_kind(steps, SetGate) if gate.into_drain]


def test_the_end_of_its_machine_is_a_failure_of_its_own_kind() -> None:
    mine = claim("cpu1", S.DRAINING, offer=SPOT, address="10.0.0.1", instance_id="i-1", reason=f"its machine is {SICK}")
    found = make_snapshot(pools=(CPU,), claims=(mine,), nodes=(drained(f"burstd: {SICK}"),), offers=(SPOT,))
    assert isinstance(found.slurm, SlurmView)
    gate = Reservation("burstd", frozenset(CPU.slots))
    found = replace(found, slurm=replace(found.slurm, reservations=(gate,), read_at=NOW))
    [power] = of_kind(list(decide(found, (), Tuning()).actions), PowerDown)
    assert (power.terminating, power.reason) == (("c-cpu1",), f"its machine is {SICK}")
    assert breaker_key(offer(spot=True), "health") == breaker_key(offer(spot=False), "health"), "not of a market"


def test_a_full_disk_closes_the_node_and_is_held_against_no_offer() -> None:
    steps = plan(S.IN_SERVICE, drained(f"burstd: {FULL}", **BUSY), at_work())
    assert [gate.claim_reasons[-1] for gate in of_kind(steps, SetGate)] == [f"its machine is {FULL}"]
    assert closing_error(f"its machine is {FULL}") == ""
    assert closing_error(f"its machine is {ILL}") == "health"


def test_a_machine_that_is_no_node_yet_is_given_up_for_a_fault() -> None:
    move, *_ = of_kind(plan(S.READY, drained(f"burstd: {SICK}")), ChangeClaimState)
    assert (move.new, move.error, move.reason) == (S.FAILED, "health", f"its machine is {SICK}")


@pytest.mark.parametrize(
    ("text", "verdict", "words"), [(SICK, "ends", SICK), (ILL, "runs", f"{ILL}; the job runs on, and no new one")]
)
def test_what_is_said_of_a_job_there(text: str, verdict: str, words: str) -> None:
    mine = claim("cpu1", S.IN_SERVICE)
    found = make_snapshot(at_work(), pools=(CPU,), claims=(mine,), nodes=(drained(f"burstd: {text}", **BUSY),))
    [remark] = [r for r in decide(found, (), Tuning()).remarks if r.by == "health"]
    assert remark.verdict == verdict
    assert remark.reason.startswith(f"the machine of cpu1 is {words}")


def test_a_slot_without_a_machine_has_no_fault() -> None:
    node = drained(f"burstd: {SICK}", flags=frozenset({"CLOUD", "DRAIN", "POWERED_DOWN"}))
    assert of_kind(list(decide(make_snapshot(nodes=(node,), pools=(CPU,)), (), Tuning()).actions), UndrainNodes) == [
        UndrainNodes(("cpu1",))
    ]


def test_words_left_behind_on_a_new_machine_mean_nothing() -> None:
    """Slurm takes the drain off, and leaves the reason."""
    steps = plan(S.IN_SERVICE, up(reason=f"burstd: {SICK}", **BUSY), at_work())
    assert not of_kind(steps, RequeueJobs)


def test_a_harmless_xid_is_named_to_the_job_that_met_it() -> None:
    noted = node("cpu1", comment="burstd: job 7: Xid 31 on GPU 0000:2b:00.0;job 8: Xid 13 on GPU 0000:2b:00.0;job 9: x")
    foreign = node("cpu2", comment="job 7: Xid 79 on GPU 0000:2b:00.0")
    task = replace(job("6_1", state=JobState.RUNNING, node_list=("cpu1",)), number="7")
    found = make_snapshot(task, pools=(CPU,), nodes=(noted, foreign))
    plan_ = decide(found, (), Tuning())
    assert explain_job(found, plan_, "6_1").summary.endswith("; it has met Xid 31 on GPU 0000:2b:00.0 of cpu1")
    assert explain_job(found, plan_, "8").summary.endswith("; it has met Xid 13 on GPU 0000:2b:00.0 of cpu1")
    assert "has met" not in explain_job(found, plan_, "9").summary


@pytest.mark.parametrize(
    ("reason", "alarms"), [(f"burstd: {FULL}", [f"the site's node op1 is {FULL}"]), ("bad disk", [])]
)
def test_a_node_of_the_site_that_has_drained_itself_is_shown_and_left_alone(reason: str, alarms: list[str]) -> None:
    found = make_snapshot(pools=(CPU,), nodes=(node("op1", flags=frozenset({"DRAIN"}), reason=reason),))
    assert own_node_alarms(found) == alarms
    assert list(decide(found, (), Tuning()).actions) == list(decide(make_snapshot(pools=(CPU,)), (), Tuning()).actions)
