"""What stands in jobs' comments, and how seldom it is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import PolicyFailed, Remark
from burstd.domain.slurm.comment import join_comment, split_comment
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner.explain.job_comment import MAX_COMMENT_LENGTH, JobComment, JobComments, price_text
from burstd.planner.offers.offers import next_breaker
from burstd.planner.policy_chain import make_target
from burstd.reconciler.context import LoopContext
from burstd.reconciler.pollers import job_comments
from burstd.reconciler.pollers.job_comments import JobCommentWriter
from burstd.reconciler.quarantine import Quarantine
from tests.planner.worlds import NOW, claim, job, make_snapshot, node, offer
from tests.virtual.clock import VirtualClock


@pytest.mark.parametrize(
    ("comment", "users", "ours"),
    [
        ("", "", ""),
        ("burstd: waits: x", "", "waits: x"),
        ("for the paper -- burstd: no", "for the paper -- burstd: no", ""),
        ("burst: mem=3", "burst: mem=3", ""),
        ("Burst:mem=3 -- burstd: waits: x -- y", "Burst:mem=3", "waits: x -- y"),
        ("burst: a -- b -- burstd: c", "burst: a -- b", "c"),
    ],
)
def test_whose_words_are_whose(comment: str, users: str, ours: str) -> None:
    assert split_comment(comment) == (users, ours)
    assert join_comment(users, ours) == comment
    assert join_comment(users, "") == users


def line(snapshot: Snapshot, job_id: str = "1", own_part: str = "") -> JobComment | None:
    found = make_target(snapshot, ())
    assert isinstance(snapshot.slurm, SlurmView)
    row = next(j for j in snapshot.slurm.jobs if j.id == job_id)
    return JobComments(snapshot, Plan((), found, found.remarks)).comment_for(row, own_part)


GANG = tuple(claim(f"cpu{n}", S.BOOTING if n < 3 else S.VALIDATING, jobs=("1",), gang="1") for n in (1, 2, 3, 4))
BROKEN = next_breaker(None, offer(), "capacity", NOW, "none left")
STOCKOUT = (
    "waits: no offer available for pool cpu: sky/r1/a/small/on-demand: failed 1 time(s) (capacity),"
    " next attempt at 13:48 UTC"
)
LINES: list[tuple[str, Snapshot, str, str]] = [
    ("new", make_snapshot(job()), "coming", "node cpu1 is being started, about 1 min"),
    ("booting", make_snapshot(job(), claims=(claim("cpu2", S.BOOTING, jobs=("1",), created=NOW - 5),)), "coming",
     "node cpu2 is booting, about 1 min"),
    ("late", make_snapshot(job(), claims=(claim("cpu2", S.VALIDATING, jobs=("1",), created=NOW - 900),)), "coming",
     "node cpu2 is being validated"),
    ("gang", make_snapshot(job(nodes=4, cpus=16), claims=GANG), "coming",
     "nodes cpu1, cpu2, cpu3 and 1 more are booting"),
    ("open", make_snapshot(job(), claims=(claim("cpu2", S.IN_SERVICE),)), "soon",
     "starts soon: the job fits on cpu2 (in service)"),
    ("held", make_snapshot(job(reason="JobHeldUser")), "waits", "waits: held by its user (Slurm: JobHeldUser)"),
    ("begin", make_snapshot(job(eligible=NOW + 90)), "waits", "waits: begin time at 13:49 UTC"),
    ("stockout", make_snapshot(job(), breakers=(BROKEN,)), "waits",
     STOCKOUT),
    ("impossible", make_snapshot(job(cpus=9, cpus_per_node=9)), "never",
     "cannot start: no node in pool cpu has 9 CPUs (a node has 4)"),
    ("array", make_snapshot(job(tasks=9, array_tasks="1-9", cpus=4)), "soon",
     "starts soon: 4 task(s) get 4 new node(s): cpu1, cpu2, cpu3, cpu4; 5 task(s) waiting: "),
]  # fmt: skip


@pytest.mark.parametrize(("snapshot", "kind", "text"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_what_a_waiting_job_is_told(snapshot: Snapshot, kind: str, text: str) -> None:
    found = line(snapshot)
    assert found is not None
    assert found.kind == kind
    assert found.text.startswith(text), found.text


def started(state: JobState = JobState.RUNNING, **fields: Any) -> Snapshot:
    on = (claim("cpu1", S.IN_SERVICE), claim("cpu2", S.IN_SERVICE, offer=offer(price="0.25")))
    return make_snapshot(job(state=state, reason="", **fields), claims=on, nodes=(node("op1"),))


@pytest.mark.parametrize(
    ("snapshot", "ours", "text"),
    [
        (started(node_list=("cpu1",)), "waits: x", "on cpu1 (sky, 1.00 EUR/h)"),
        (started(node_list=("cpu1", "cpu2")), "", "on cpu1, cpu2 (sky, 1.25 EUR/h)"),
        (started(node_list=("op1",)), "node cpu1 is booting", ""),
        (started(node_list=("op1",)), "", None),
        (started(node_list=("cpu1",)), "spot machine of cpu1 ends; Slurm does not requeue it: no", None),
        (started(JobState.COMPLETING, node_list=("cpu1",)), "waits: x", None),
    ],
)
def test_what_stands_there_once_it_has_started(snapshot: Snapshot, ours: str, text: str | None) -> None:
    found = line(snapshot, own_part=ours)
    assert (found.text if found is not None else None) == text


@pytest.mark.parametrize("place", ["cpu1", "op1"])
@pytest.mark.parametrize("ours", ["", "waits: x", "on cpu1 (sky, 1.00 EUR/h)"])
def test_a_job_that_does_not_use_its_gpus_is_warned_in_its_comment_until_it_does(place: str, ours: str) -> None:
    snapshot = started(node_list=(place,))
    assert isinstance(snapshot.slurm, SlurmView)
    (row,) = snapshot.slurm.jobs
    idle = Plan(remarks=(Remark("idle_gpus", "job:1", "warn", "its GPU has been idle since 13:06 UTC"),))
    warning = JobComments(snapshot, idle).comment_for(row, ours)
    assert warning == JobComment("idle", "idle GPUs: its GPU has been idle since 13:06 UTC")
    assert JobComments(snapshot, idle).comment_for(row, "spot machine of cpu1 ends; no") is None
    over = JobComments(snapshot, Plan()).comment_for(row, warning.text)
    assert over == JobComment("on", "on cpu1 (sky, 1.00 EUR/h)" if place == "cpu1" else "")


def test_what_a_cloud_answered_is_not_for_everybody() -> None:
    words = "User: arn:aws:iam::1:user/burstd may not do ec2:RunInstances in 5 min"
    broken = next_breaker(None, offer(), "auth", NOW, words)
    found = line(make_snapshot(job(), breakers=(broken,)))
    assert found is not None
    assert "failed 1 time(s) (auth), next attempt at" in found.text
    assert "arn" not in found.text

    base = make_snapshot(job())
    silent = replace(base, clouds={"sky": replace(base.clouds["sky"], offers=Unavailable(words, NOW))})
    found = line(silent)
    assert found is not None
    assert found.text.endswith("sky: cannot read its offers")

    failed = replace(make_target(base, ()), failed_policies=(PolicyFailed("names", words),))
    held = Remark("names", "job:1", "wait", f"the policy failed: {words}")
    told = JobComments(base, Plan((), failed, (held,))).comment_for(job(), "")
    assert told is not None
    assert told.text == "waits: the policy failed"


def test_a_line_is_one_and_not_too_long() -> None:
    snapshot = make_snapshot(job())
    said = Remark("x", "job:1", "wait", "a\n" + "b" * 500)
    found = JobComments(snapshot, Plan(remarks=(said,))).comment_for(job(), "")
    assert found is not None
    assert found.text.startswith("waits: a bbb")
    assert found.text.endswith("...")
    assert len(found.text) == MAX_COMMENT_LENGTH
    assert JobComments(snapshot, Plan()).comment_for(job(), "") is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("it goes on in 59 s", "it goes on at 13:48 UTC"),
        ("burstd launches one in 2 min 20 s", "burstd launches one at 13:49 UTC"),
        ("tried again in 1 h", "tried again at 14:47 UTC"),
        ("begin time in 3 d 2 h", "begin time on 1970-01-15 at 15:47 UTC"),
        ("in 3 nodes, in about 5 min", "in 3 nodes, in about 5 min"),
    ],
)
def test_times_are_of_the_clock(reason: str, text: str) -> None:
    found = JobComments(make_snapshot(job()), Plan(remarks=(Remark("x", "job:1", "wait", reason),))).comment_for(
        job(), ""
    )
    assert found is not None
    assert found.text == f"waits: {text}"


@pytest.mark.parametrize(
    ("price", "text"), [("0", "0.00"), ("0.4161", "0.42"), ("12", "12.00"), ("0.0062000", "0.0062")]
)
def test_a_price_is_short(price: str, text: str) -> None:
    assert price_text(Decimal(price)) == text


class FakeSlurm:
    """Takes comments, and what the queue shows is kept by the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], str]] = []
        self.there: dict[str, str] = {}
        self.raises: Exception | None = None

    def comments(self, job_ids: Collection[str]) -> Mapping[str, str]:
        return {row: text for row, text in self.there.items() if row in job_ids or row.partition("_")[0] in job_ids}

    def set_comment(self, job_ids: Collection[str], text: str) -> None:
        self.calls.append((tuple(job_ids), text))
        if self.raises is not None:
            raise self.raises


class ManualWorkers:
    """Workers that work when ``go`` is called."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(
        self,
        _lane: str,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        quiet: Callable[[Any], bool] | None = None,
        user: int | None = None,
    ) -> None:
        assert quiet is not None
        assert quiet(None)
        assert user is None
        self.waiting.append((work, done))

    def post(self, _done: Callable[[], None]) -> None:
        raise AssertionError

    def run_callbacks(self, _on_error: object = None) -> int:
        raise AssertionError

    def run_waiting(self) -> None:
        for work, done in self.waiting:
            done(work())
        self.waiting.clear()


class CommentWriterRig:
    """Comments on a Slurm whose queue shows what was written."""

    def __init__(self, *jobs: Job) -> None:
        self.slurm, self.workers = FakeSlurm(), ManualWorkers()
        self.jobs = jobs
        self.meanwhile: dict[str, str] = {}
        """What users write between burstd's look and its command."""
        self.restart()

    def restart(self) -> None:
        """As after a restart of burstd."""
        context = SimpleNamespace(scheduler=self.slurm, workers=self.workers, quarantine=Quarantine(VirtualClock()))
        self.writer = JobCommentWriter(cast("LoopContext", context))

    def loop(self, at: float, by: str = "x", **words: str) -> Sequence[tuple[tuple[str, ...], str]]:
        """One loop at this time, in which the jobs are said to wait for these reasons; what was written."""
        self.slurm.calls.clear()
        remarks = tuple(Remark(by, f"job:{name.removeprefix('j')}", *_verdict(text)) for name, text in words.items())
        snapshot = make_snapshot(*self.jobs)
        assert isinstance(snapshot.slurm, SlurmView)
        snapshot = replace(snapshot, now=NOW + at, slurm=replace(snapshot.slurm, read_at=NOW + at - 0.1))
        self.writer.step(snapshot, Plan(remarks=remarks))
        self.slurm.there = {j.id: j.comment for j in self.jobs} | self.meanwhile
        self.workers.run_waiting()
        if self.slurm.raises is None:
            texts = {job_id.partition("_[")[0]: text for ids, text in self.slurm.calls for job_id in ids}
            self.jobs = tuple(replace(j, comment=texts.get(j.id, j.comment)) for j in self.jobs)
        return list(self.slurm.calls)


def _verdict(text: str) -> tuple[str, str]:
    verdict, found, reason = text.partition("!")
    return (verdict, reason) if found else ("wait", text)


def test_jobs_with_the_same_line_share_a_command() -> None:
    desk = CommentWriterRig(
        job("1", priority=1), job("2", priority=9), job("3", array_tasks="4-6,9", tasks=4, priority=5),
        job("4", comment="burst: mem=3", priority=8), job("5", comment="my own"), job("6", partitions=("onprem",)),
    )  # fmt: skip
    assert desk.loop(0, j1="full", j2="full", j3="full", j4="full", j5="full", j6="full") == [
        (("2", "3_[4-6,9]", "1"), "burstd: waits: full"),
        (("4",), "burst: mem=3 -- burstd: waits: full"),
    ]
    assert desk.loop(2, j1="full", j2="full", j3="full", j4="full", j5="full", j6="full") == []


def test_the_same_kind_of_line_is_written_seldom() -> None:
    desk = CommentWriterRig(job("1"))
    assert desk.loop(0, j1="5 before it")
    assert not desk.loop(job_comments.MIN_NUMBERS_REWRITE_S - 1, j1="4 before it")
    assert desk.loop(job_comments.MIN_NUMBERS_REWRITE_S, j1="4 before it")
    assert not desk.loop(job_comments.MIN_NUMBERS_REWRITE_S + job_comments.MIN_REWRITE_S - 1, j1="a limit")
    assert desk.loop(job_comments.MIN_NUMBERS_REWRITE_S + job_comments.MIN_REWRITE_S, j1="a limit")
    assert desk.loop(job_comments.MIN_NUMBERS_REWRITE_S + job_comments.MIN_REWRITE_S + 1, j1="impossible!too big") == [
        (("1",), "burstd: cannot start: too big")
    ]


def test_another_cause_is_told_soon_and_never_at_each_loop() -> None:
    desk, pause_s = CommentWriterRig(job("1")), job_comments.MIN_CAUSE_REWRITE_S
    assert desk.loop(0, "demand", j1="its input is being uploaded")
    assert not desk.loop(pause_s - 1, "placement", j1="no slot")
    assert desk.loop(pause_s, "placement", j1="no slot") == [(("1",), "burstd: waits: no slot")]
    desk.jobs = (replace(desk.jobs[0], reason="JobHeldUser"),)
    assert desk.loop(2 * pause_s, "demand", j1="held by its user")
    desk.jobs = (replace(desk.jobs[0], reason="JobHeldAdmin"),)
    assert desk.loop(3 * pause_s, "demand", j1="held by an administrator")
    assert not desk.loop(4 * pause_s, "demand", j1="held, in other words")


def test_a_restart_writes_nothing_anew() -> None:
    desk = CommentWriterRig(job("1"), job("2"))
    desk.loop(0, j1="5 before it", j2="a limit")
    desk.restart()
    assert desk.loop(2, j1="4 before it", j2="a limit") == []
    assert desk.loop(4, j1="4 before it", j2="full") == [(("2",), "burstd: waits: full")]


def test_a_comment_that_its_user_sets_is_his_from_then_on() -> None:
    desk = CommentWriterRig(job("1"))
    desk.loop(0, j1="full")
    desk.jobs = (replace(desk.jobs[0], comment="mine"),)
    assert desk.loop(2, j1="a limit") == []
    assert desk.loop(999, j1="impossible!too big") == []
    desk.jobs = (replace(desk.jobs[0], comment="burst: mem=1"),)
    assert desk.loop(1000, j1="a limit") == [(("1",), "burst: mem=1 -- burstd: waits: a limit")]


def test_what_somebody_writes_meanwhile_stays() -> None:
    desk = CommentWriterRig(job("1"), job("2"), job("3"))
    desk.meanwhile = {"2": "step 1 of 3"}
    assert desk.loop(0, j1="full", j2="full", j3="full") == [(("1", "3"), "burstd: waits: full")]
    desk.jobs = tuple(replace(j, comment=desk.meanwhile.get(j.id, j.comment)) for j in desk.jobs)
    desk.meanwhile = {"1": "mine", "3": "burst: mem=3"}
    assert desk.loop(60, j1="a limit", j2="a limit", j3="a limit") == []
    desk.jobs = tuple(replace(j, comment=desk.meanwhile.get(j.id, j.comment)) for j in desk.jobs)
    desk.meanwhile = {}
    assert desk.loop(62, j1="a limit", j2="a limit", j3="a limit") == [
        (("3",), "burst: mem=3 -- burstd: waits: a limit")
    ]


def test_a_task_that_has_left_its_arrays_row_keeps_its_comment() -> None:
    """What is written to a task that is named in brackets reaches it wherever it stands."""
    desk = CommentWriterRig(job("9", array_tasks="1-3", tasks=3, array_job_id="9"))
    desk.meanwhile = {"9_2": "mine"}
    assert desk.loop(0, j9="full") == []
    desk.jobs = (
        job("9", array_tasks="1,3", tasks=2, array_job_id="9"),
        job("9_2", comment="mine", array_job_id="9"),
    )
    assert desk.loop(2, j9="full", j9_2="full") == [(("9_[1,3]",), "burstd: waits: full")]


def test_where_nothing_was_written_nothing_is_known_of_slurms_speed() -> None:
    desk = CommentWriterRig(*(job(str(n), priority=-n) for n in range(99)))
    words = {f"j{n}": chr(ord("a") + n) for n in range(99)}
    desk.meanwhile = {str(n): "mine" for n in range(99)}
    assert desk.loop(0, **words) == []
    desk.meanwhile = {}
    assert len(desk.loop(2, **words)) == job_comments.MIN_COMMANDS


def test_a_loop_writes_so_many_and_the_most_urgent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_comments, "MIN_COMMANDS", 2)
    monkeypatch.setattr(job_comments, "MAX_JOBS_WRITTEN", 3)
    desk = CommentWriterRig(*(job(str(n), priority=n) for n in range(1, 7)))
    words = {"j1": "impossible!no", "j2": "a", "j3": "b", "j4": "b", "j5": "b", "j6": "c"}
    assert desk.loop(0, **words) == [(("1",), "burstd: cannot start: no"), (("6",), "burstd: waits: c")]
    assert desk.loop(2, **words) == [(("5", "4", "3"), "burstd: waits: b")]
    assert desk.loop(4, **words) == [(("2",), "burstd: waits: a")]
    assert desk.loop(6, **words) == []


@pytest.mark.parametrize(("each_s", "more"), [(0.02, 25), (0.3, job_comments.MIN_COMMANDS)])
def test_as_many_commands_as_there_is_time_for(each_s: float, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_s = 0.25
    clock = iter((0.0, read_s, read_s + job_comments.MIN_COMMANDS * each_s, 0.0, read_s, read_s + 1.0))
    monkeypatch.setattr("burstd.reconciler.pollers.job_comments.perf_counter", lambda: next(clock))
    desk = CommentWriterRig(*(job(str(n)) for n in range(99)))
    words = {f"j{n}": chr(ord("a") + n) for n in range(99)}
    assert len(desk.loop(0, **words)) == job_comments.MIN_COMMANDS
    assert not desk.loop(2, **words), "slurmctld has a rest after it was asked"
    assert len(desk.loop(1 + job_comments.READ_PAUSE_FACTOR * read_s, **words)) == more


def test_a_long_queue_is_looked_at_seldom_and_the_hopeless_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_comments, "PAUSE_PER_JOB_S", 10.0)
    monkeypatch.setattr(job_comments, "MAX_JOBS_CHECKED", 1)
    desk = CommentWriterRig(job("1", priority=1), job("2", priority=2), job("3", priority=3))
    assert desk.loop(0, j1="a", j2="b", j3="c") == [(("3",), "burstd: waits: c")]
    assert desk.loop(29, j1="a", j2="b", j3="c") == []
    assert desk.loop(29.5, j1="impossible!no", j2="b", j3="c") == [(("1",), "burstd: cannot start: no")]
    assert desk.loop(59, j1="impossible!no", j2="b", j3="c") == []
    assert desk.loop(60, j1="impossible!no", j2="b", j3="c") == [(("2",), "burstd: waits: b")]


def test_one_batch_at_a_time_and_a_refusal_stops_nothing() -> None:
    desk = CommentWriterRig(job("1"), job("2"))
    desk.slurm.raises = SchedulerRefused("Invalid job id specified")
    assert len(desk.loop(0, j1="a", j2="b")) == 2
    desk.slurm.raises = SchedulerUnavailable("no answer")
    assert len(desk.loop(job_comments.MIN_NUMBERS_REWRITE_S, j1="a", j2="b")) == 1
    desk.slurm.raises = None
    assert len(desk.loop(2 * job_comments.MIN_NUMBERS_REWRITE_S, j1="a", j2="b")) == 2
    desk.slurm.there = {"3": ""}
    for at, name in ((5000, "3"), (6000, "4")):
        later = replace(make_snapshot(job(name)), now=NOW + at)
        desk.writer.step(later, Plan(remarks=(Remark("x", f"job:{name}", "wait", "c"),)))
    assert len(desk.workers.waiting) == 1
    desk.workers.run_waiting()
    blind = replace(make_snapshot(), slurm=Unavailable("timed out", 0))
    desk.writer.step(blind, Plan())
    assert not desk.workers.waiting
