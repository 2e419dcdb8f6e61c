"""Machines for their own jobs only: what is bound to them and when, who finds room on them, when they go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import BindJob, ChangeClaimState, SetGate, UnbindJob
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Reservation
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot
from burstd.planner.demand.demand import task_ids
from burstd.planner.lifecycle.gate import drain_unwanted_ready, gate_steps
from burstd.planner.offers import dedicated
from burstd.planner.policy_chain import make_target
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning
from tests.planner.worlds import NOW, claim, job, make_snapshot, wants

EVERY = frozenset({"cpu1", "cpu2", "cpu3", "cpu4"})


def paid(slot: str = "cpu1", state: S = S.READY, **fields: Any) -> Claim:
    """Ten minutes old, of job 1; an hour and twenty minutes are paid."""
    base = claim(slot, state, jobs=("1",), billed_from=NOW - 600, reserved=Decimal("1.3334"))
    return replace(base, **fields)


def waiting(job_id: str = "1", **fields: Any) -> Job:
    return job(job_id, **{"time_limit_s": 3600.0, **fields})


def seen(*jobs: Job, claims: tuple[Claim, ...], busy: tuple[str, ...] = (), **fields: Any) -> Snapshot:
    base = make_snapshot(*jobs, claims=claims, **fields)
    assert isinstance(base.slurm, SlurmView)
    nodes = {
        n: replace(node, state="MIXED", cpus_allocated=1) if n in busy else replace(node, last_busy=0.0)
        for n, node in base.slurm.nodes.items()
    }
    own = (Reservation(f"burstd-{job_id}", nodes, job_id=job_id) for job_id, nodes in base.bound.items())
    gate = (Reservation("burstd", EVERY), *own)
    return replace(base, slurm=replace(base.slurm, nodes=nodes, reservations=gate))


def steps(snapshot: Snapshot) -> list[str]:
    """What the gate does, in short."""
    view, target = build_view(snapshot, "burstd"), make_target(snapshot, ())
    summary: list[str] = []
    held = drain_unwanted_ready(view, target)
    moving = frozenset(step.claim_id for step in held if isinstance(step, ChangeClaimState))
    for step in (*held, *gate_steps(view, target, Tuning(), moving)):
        match step:
            case BindJob():
                summary.append(f"bind {step.job_id} to {','.join(step.nodes)}{'' if step.claims else ' too'}")
            case UnbindJob():
                summary.append(f"unbind {step.job_id}")
            case SetGate():
                summary += [f"open {c}" for c in step.into_service] + [f"close {c}" for c in step.into_drain]
                summary += [f"outside {slot}" for slot in sorted(EVERY - step.nodes)]
            case ChangeClaimState():
                summary.append(f"{step.new} {step.claim_id}: {step.reason}")
    return summary


OWN: dict[str, Any] = {"reserved": Decimal(0), "dedicated_by_policy": True}
ARRAY: dict[str, Any] = {"array_job_id": "1", "array_tasks": "3-5", "tasks": 3}


@pytest.mark.parametrize(
    ("case", "snapshot", "expected"),
    [
        ("its job is bound to it", seen(waiting(), claims=(paid(),)), ["bind 1 to cpu1"]),
        ("all of its jobs, not those of others",
         seen(waiting(), waiting("2"), waiting("3"), claims=(paid(jobs=("1", "2")),)),
         ["bind 1 to cpu1", "bind 2 to cpu1"]),
        ("of an array one task at a time, no task twice",
         seen(waiting(**ARRAY, exclusive=True), claims=(paid(), paid("cpu2"))),
         ["bind 1_3 to cpu1", "bind 1_4 to cpu2"]),
        ("the next task where there is room",
         seen(waiting(**ARRAY), claims=(paid(state=S.IN_SERVICE),), busy=("cpu1",)),
         ["bind 1_3 to cpu1 too"]),
        ("not on a node that another waits for, bound to it, where there is no room for both",
         seen(waiting(array_job_id="1", array_tasks="4-5", tasks=2, exclusive=True),
              waiting("1_3", array_job_id="1", reservation="burstd-1_3", exclusive=True),
              claims=(paid(state=S.IN_SERVICE),), bound={"1_3": frozenset({"cpu1"})}), []),
        ("not where what is reserved does not cover it",
         seen(waiting(**ARRAY), claims=(paid(state=S.IN_SERVICE, billed_from=NOW - 1200),), busy=("cpu1",)), []),
        ("while its job runs it stays behind the gate",
         seen(waiting(state=JobState.RUNNING), claims=(paid(state=S.IN_SERVICE),), busy=("cpu1",)), []),
        ("after its job it goes", seen(claims=(paid(state=S.IN_SERVICE),)), ["close c-cpu1"]),
        ("it waited too long", seen(waiting(), claims=(paid(billed_from=NOW - 1200, since=NOW - 600),)),
         ["draining c-cpu1: what is left of the 1.33 EUR reserved for it does not cover job 1"]),
        ("it came too late", seen(waiting(), claims=(paid(billed_from=NOW - 1200, since=NOW),)),
         [("failed c-cpu1: what is left of the 1.33 EUR reserved for it does not cover job 1: it took longer than "
           "overhead_s of [policies.budget] to boot")]),
        ("of jobs without a time limit those that begin with it",
         seen(waiting(**ARRAY, time_limit_s=0.0), claims=(paid(),)), ["bind 1_3 to cpu1"]),
        ("and those that start while they do",
         seen(waiting(**ARRAY, time_limit_s=0.0),
              claims=(paid(state=S.IN_SERVICE, in_service_from=NOW),), busy=("cpu1",),
              bound={"1_2": frozenset({"cpu1"})}), ["unbind 1_2", "bind 1_3 to cpu1 too"]),
        ("but none later",
         seen(waiting(**ARRAY, time_limit_s=0.0),
              claims=(paid(state=S.IN_SERVICE, in_service_from=NOW - 60),), busy=("cpu1",)),
          []),
        ("a node for no job is shut when its money is used up",
         seen(waiting("2"), claims=(paid(state=S.IN_SERVICE, jobs=(), billed_from=NOW - 4790),), busy=("cpu1",)), []),
        ("and not before",
         seen(waiting("2"), claims=(paid(state=S.IN_SERVICE, jobs=(), billed_from=NOW - 4600),), busy=("cpu1",)),
         ["outside cpu1"]),
        ("then it goes when it is idle",
         seen(claims=(paid(state=S.IN_SERVICE, jobs=(), billed_from=NOW - 4790),)), ["close c-cpu1"]),
        ("its job is gone", seen(claims=(paid(),)), ["draining c-cpu1: its jobs are done, and a budget pays for it"]),
        ("a job that Slurm does not bind",
         seen(waiting(), claims=(paid(),), runtime_state=RuntimeState(unbindable=frozenset({"1"}))),
         ["open c-cpu1", "outside cpu1"]),
        ("nor of an array",
         seen(waiting(**ARRAY), claims=(paid(),), runtime_state=RuntimeState(unbindable=frozenset({"1_3"}))),
         ["open c-cpu1", "outside cpu1"]),
        ("the last task of an array is bound elsewhere",
         seen(waiting(array_job_id="1", array_tasks="5", reservation="burstd-1_5"), claims=(paid(state=S.IN_SERVICE),),
              busy=("cpu1",), bound={"1_5": frozenset({"cpu2"})}), []),
        ("a component of a het job", seen(waiting("1+0", het_job_id="1"), claims=(paid(jobs=("1+0",)),)),
         ["bind 1+0 to cpu1"]),
        ("and not before all have theirs",
         seen(waiting("1+0", het_job_id="1"), waiting("1+1", het_job_id="1"),
              claims=(paid(gang="1", jobs=("1+0",)), paid("cpu2", S.BOOTING, gang="1", jobs=("1+1",)))), []),
        ("of several nodes as a whole",
         seen(waiting("1+0", het_job_id="1"), waiting("1+1", het_job_id="1", nodes=2),
              claims=(paid(gang="1", jobs=("1+0",)), paid("cpu2", gang="1", jobs=("1+1",)),
                      paid("cpu3", gang="1", jobs=("1+1",)))),
         ["bind 1+0 to cpu1", "bind 1+1 to cpu2,cpu3"]),
        ("and its node is shut once it has started",
         seen(waiting("1+0", het_job_id="1", state=JobState.RUNNING), claims=(paid(state=S.IN_SERVICE, jobs=("1+0",)),),
              busy=("cpu1",)), []),
        ("a gang as a whole",
         seen(waiting(nodes=2), claims=(paid(gang="1"), paid("cpu2", gang="1"))), ["bind 1 to cpu1,cpu2"]),
        ("and not before", seen(waiting(nodes=2), claims=(paid(gang="1"), paid("cpu2", S.BOOTING, gang="1"))), []),
        ("tasks of an array use each other's machines: none keeps a part of them for itself",
         seen(waiting(nodes=2, array_job_id="1", array_tasks="0-1", tasks=2, exclusive=True),
              claims=(paid(gang="1_0"), paid("cpu2", gang="1_1"), paid("cpu3", S.BOOTING, gang="1_1"))),
         ["bind 1_0 to cpu1,cpu2"]),
        ("also those that stand alone in the queue, and machines of one that is done",
         seen(waiting("1_1", nodes=2, array_job_id="1"), waiting("1_2", nodes=2, array_job_id="1", exclusive=True),
              claims=(paid(gang="1_0", state=S.IN_SERVICE, since=NOW - 901), paid("cpu2", gang="1_2"))),
         ["bind 1_1 to cpu1,cpu2"]),
        ("not what is reserved for too little of it",
         seen(waiting(nodes=2, array_job_id="1", array_tasks="0-1", tasks=2),
              claims=(paid(gang="1_0"), paid("cpu2", S.IN_SERVICE, gang="1_1", billed_from=NOW - 4790))),
         ["close c-cpu2"]),
        ("a machine of a gang whose other node does not come goes",
         seen(waiting(nodes=2), claims=(paid(**OWN, gang="1", since=NOW - 901),)),
         ["draining c-cpu1: job 1 did not get all of its nodes within 900 s"]),
        ("and so does one on which the job has not started",
         seen(waiting(nodes=2), claims=(paid(**OWN, gang="1", state=S.IN_SERVICE, since=NOW - 901),)),
          ["close c-cpu1"]),
        ("but not before", seen(waiting(nodes=2), claims=(paid(**OWN, gang="1", since=NOW - 899),)), []),
        ("nor when the last of its nodes comes late",
         seen(waiting(nodes=2), claims=(paid(gang="1", since=NOW - 901), paid("cpu2", gang="1"))),
         ["bind 1 to cpu1,cpu2"]),
        ("nor while the job starts",
         seen(waiting(nodes=2, reservation="burstd-1"),
              claims=(paid(**OWN, gang="1", state=S.IN_SERVICE, since=NOW - 901),
                      paid("cpu2", **OWN, gang="1", state=S.IN_SERVICE, since=NOW - 901)),
              bound={"1": frozenset({"cpu1", "cpu2"})}), []),
        ("a task that stands alone in the queue is its array's",
         seen(waiting("1_4", array_job_id="1", exclusive=True), claims=(paid(),)), ["bind 1_4 to cpu1"]),
        ("a hold keeps it, but not for more than is reserved",
         seen(claims=(paid(state=S.IN_SERVICE), paid("cpu2", S.IN_SERVICE, billed_from=NOW - 4790)), paused="so"),
         ["close c-cpu2"]),
        ("without a budget there is no end to what it covers",
         seen(waiting(), claims=(paid(**OWN, billed_from=NOW - 90000),)), ["bind 1 to cpu1"]),
    ],
)  # fmt: skip
def test_steps(case: str, snapshot: Snapshot, expected: list[str]) -> None:
    assert steps(snapshot) == expected, case


@pytest.mark.parametrize("state", [S.BOOTING, S.READY, S.IN_SERVICE])
def test_others_find_no_room_on_it_and_its_own_job_does(state: S) -> None:
    others = seen(waiting("2", exclusive=True), claims=(paid(state=state),))
    assert wants(make_target(others, ())) == [("cpu", 1, ("2",))]
    own = make_target(seen(waiting(exclusive=True), claims=(paid(state=state),)), ())
    assert (own.wants, own.placements) == ((), {"1": ("cpu1",)})


def test_a_job_of_several_nodes_starts_on_its_own_and_on_nobody_elses() -> None:
    claims = (paid(gang="1"), claim("cpu2", S.IN_SERVICE))
    assert wants(make_target(seen(waiting(nodes=2), claims=claims), ())) == [("cpu", 1, ("1",))]


@pytest.mark.parametrize(("age_s", "expected"), [(4600, []), (4790, [("cpu", 1, ("2",))])])
def test_nobody_finds_room_on_a_node_whose_money_is_used_up(age_s: float, expected: list[object]) -> None:
    spare = paid(state=S.IN_SERVICE, jobs=(), billed_from=NOW - age_s)
    assert wants(make_target(seen(waiting("2"), claims=(spare,), busy=("cpu1",)), ())) == expected


@pytest.mark.parametrize("state", [S.BOOTING, S.READY, S.IN_SERVICE])
def test_a_task_that_stands_alone_gets_no_second_machine(state: S) -> None:
    row = waiting("1_4", array_job_id="1", exclusive=True)
    target = make_target(seen(row, claims=(paid(state=state),)), ())
    assert wants(target) == []
    assert target.placements == {"1_4": ("cpu1",)}
    assert target.releases == ()


def test_the_tasks_of_an_array_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(text: str) -> Iterator[str]:
        nonlocal made
        for task in task_ids(text):
            made += 1
            yield task

    monkeypatch.setattr(dedicated, "task_ids", counted)
    rest = waiting(array_job_id="1", array_tasks="1-1000", tasks=1000, exclusive=True)
    claims = tuple(paid(slot) for slot in sorted(EVERY))
    view = build_view(seen(rest, claims=claims), "burstd")
    binder = dedicated.Binder(view, {})
    assert [bind.job_id for one in claims for bind in binder.bind_actions(one)] == ["1_1", "1_2", "1_3", "1_4"]
    assert made == len(claims)
