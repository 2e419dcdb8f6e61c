"""Jobs that do not use their GPUs: who is warned, what follows, and who is left alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest

from burstd.domain.idle_gpus import IdleAct, IdleGpuRule, IdleJob, IdleRun, IdleWarning, RunKey
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.plan import ActOnIdleJobs, RecordIdleJobs
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.comment import allows_idle_gpus, requirements_text
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import RequeueWarning, RuntimeState, Snapshot, Unavailable
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.idle_gpus import MAX_ACTS, IdlePlan, idle_gpu_alarms, plan_idle_gpus
from burstd.planner.snapshot_view import build_view
from burstd.planner.timeouts import Tuning
from policies.job_requirements import parse_requirement
from tests.planner.worlds import NOW, job, make_snapshot

MIN = 60.0
CANCEL = IdleGpuRule(act=IdleAct.CANCEL)
WARN_ONLY = {"*": IdleGpuRule()}
FETCH_S = 180.0
MAX_AGE_S = 2 * FETCH_S


def gpu(idle_s: float, **fields: Any) -> GpuUse:
    base = GpuUse("GPU-1", 0, "V100", GpuShare.WHOLE, 0.0, 0.0, 5, 16_384, 7200.0, idle_s, idle_s, NOW)
    return replace(base, **fields)


def measured(*gpus: GpuUse, **fields: Any) -> NodeUse:
    base = NodeUse(
        "cpu1", 4, 8000, NOW - 7200, NOW, 10.0, 1.0, 1.0, 100, 100, 10, 0, 1.0, 0.0, gpus,
        gpu_price=Decimal("2.40"), currency="EUR",
    )  # fmt: skip
    return replace(base, **fields)


def gpu_job(number: int = 1, gpus: int = 1, nodes: int = 1, **fields: Any) -> Job:
    base = job(
        str(number), state=JobState.RUNNING, start=NOW - 7200, nodes=nodes, gres_per_node=(Gres("gpu", "", gpus),),
        node_list=tuple(f"cpu{n}" for n in range(1, nodes + 1)), time_limit_s=24 * 3600.0,
    )  # fmt: skip
    return replace(base, **fields)


def use_of(one: Job, *nodes: NodeUse, **fields: Any) -> JobUse:
    base = JobUse(
        one.id, one.id, one.restarts, "ada", "", "burst", nodes, max(1, len(one.node_list)), one.start,
        run_start=one.run_start,
    )  # fmt: skip
    return replace(base, **fields)


def snapshot_of(
    one: Job, *nodes: NodeUse, warned: Mapping[RunKey, IdleWarning] | None = None, **fields: Any
) -> Snapshot:
    state = RuntimeState(idle_warnings=warned or {})
    return make_snapshot(one, job_use={one.id: use_of(one, *nodes)}, **{"runtime_state": state, **fields})


def plan(snapshot: Snapshot, rules: Mapping[str, IdleGpuRule]) -> IdlePlan:
    return plan_idle_gpus(build_view(snapshot, "burstd"), rules, MAX_AGE_S)


def new_warnings(found: IdlePlan) -> list[tuple[IdleJob, str]]:
    return [one for action in found.actions if isinstance(action, RecordIdleJobs) for one in action.warned]


def over(found: IdlePlan) -> list[RunKey]:
    return [key for action in found.actions if isinstance(action, RecordIdleJobs) for key in action.over]


def acts(found: IdlePlan) -> list[IdleRun]:
    return [run for action in found.actions if isinstance(action, ActOnIdleJobs) for run in action.runs]


def warned_at(idle_s: float, idle: int = 1, **fields: Any) -> dict[RunKey, IdleWarning]:
    return {("1", 0): replace(IdleWarning(idle, NOW - idle_s, idle_s), **fields)}


class Run:
    """A job of one GPU, looked at every ten seconds; its figures are fetched every three minutes."""

    def __init__(self, rule: IdleGpuRule, **fields: Any) -> None:
        self.rule, self.fields = rule, fields
        self.warned: dict[RunKey, IdleWarning] = {}
        self.events: list[tuple[float, str]] = []
        self.jump_s = 0.0

    def play(self, figures: Iterator[tuple[float, NodeUse]]) -> list[tuple[float, str]]:
        """By minutes from the job's start, what happened. ``figures``: seconds from then, and what is known."""
        one = gpu_job(start=NOW, **self.fields)
        for age, node in figures:
            now = NOW + age + self.jump_s
            state = RuntimeState(idle_warnings=dict(self.warned))
            seen = make_snapshot(one, job_use={"1": use_of(one, node)}, runtime_state=state)
            found = plan(replace(seen, now=now), {"burst": self.rule})
            for key in over(found):
                del self.warned[key]
                self.events.append((age / MIN, "over"))
            for idle, _ in new_warnings(found):
                self.warned[idle.key] = idle.warning(now)
                self.events.append((age / MIN, "warned"))
            for run in acts(found):
                self.events.append((age / MIN, run.act.value))
                return self.events
        return self.events


def idle_from(begin_s: float, until_s: float, *, loads_until: float = 0.0) -> Iterator[tuple[float, NodeUse]]:
    """Figures of a job whose GPU idles from ``begin_s`` on, and which reads its data until ``loads_until``."""
    for age in range(0, int(until_s) + 1, 10):
        at = age // FETCH_S * FETCH_S
        idle = gpu(max(0.0, at - begin_s), sampled_at=NOW + at)
        reads = at < loads_until
        loading_at = NOW + at if reads else NOW + (loads_until - 1) // FETCH_S * FETCH_S if loads_until else 0.0
        yield age, measured(idle, started=NOW, sampled_at=NOW + at, loading_at=loading_at)


def test_an_idle_job_is_warned_after_15_minutes_and_ended_after_30() -> None:
    rule = replace(CANCEL, start_s=0.0)
    assert Run(rule).play(idle_from(0.0, 2 * 3600)) == [(15.0, "warned"), (30.0, "cancel")]


def test_the_beginning_of_a_job_does_not_count() -> None:
    assert Run(CANCEL).play(idle_from(0.0, 2 * 3600)) == [(21.0, "warned"), (36.0, "cancel")]


def test_a_job_that_loads_its_data_is_left_alone_until_it_is_idle_again_for_so_long() -> None:
    """Its GPU has been idle all the time."""
    found = Run(CANCEL).play(idle_from(0.0, 3 * 3600, loads_until=3600))
    assert found == [(57.0 + 15.0, "warned"), (57.0 + 30.0, "cancel")]


def test_a_job_that_computes_after_its_data_is_loaded_is_never_warned() -> None:
    def figures() -> Iterator[tuple[float, NodeUse]]:
        for age, node in idle_from(0.0, 2 * 3600, loads_until=3600):
            busy = replace(node.gpus[0], idle_now_s=0.0)
            yield age, replace(node, gpus=(busy,)) if age >= 3600 else node

    assert Run(CANCEL).play(figures()) == []


def test_a_job_that_uses_its_gpu_after_the_warning_goes_on_and_gets_the_whole_time_again() -> None:
    def figures() -> Iterator[tuple[float, NodeUse]]:
        yield from idle_from(0.0, 1500)
        for age, node in idle_from(1600.0, 2 * 3600):
            if age > 1500:
                yield age, node

    found = Run(replace(CANCEL, start_s=0.0)).play(figures())
    assert [what for _, what in found] == ["warned", "over", "warned", "cancel"]
    assert [(at - 1600 / MIN) // 3 * 3 for at, _ in found[2:]] == [15.0, 30.0]


def test_a_job_that_used_its_gpu_while_burstd_was_down_is_warned_anew() -> None:
    """It is idle again for long enough to be ended when burstd is back."""

    def figures() -> Iterator[tuple[float, NodeUse]]:
        yield from idle_from(0.0, 1500)
        yield from ((age, node) for age, node in idle_from(1600.0, 3 * 3600) if age >= 1600 + 1900)

    found = Run(replace(CANCEL, start_s=0.0)).play(figures())
    assert [what for _, what in found] == ["warned", "warned", "cancel"]
    (_, again, ended) = [at for at, _ in found]
    assert ended >= again + 15.0


@pytest.mark.parametrize(
    ("since", "idle", "fields", "holds"),
    [
        (0.0, 1, {}, True),
        (899.0, 1, {}, True),  # no more than the times of calls and a jump of a clock
        (900.0, 1, {}, False),
        (0.0, 2, {}, False),
        (0.0, 2, {"act": IdleAct.CANCEL}, True),
        (900.0, 1, {"act": IdleAct.CANCEL}, False),
        (900.0, 2, {"act": IdleAct.CANCEL, "done": True}, True),
    ],
)
def test_a_warning_holds_for_a_job_that_is_idle_since_before_it(
    since: float, idle: int, fields: dict[str, Any], *, holds: bool
) -> None:
    warning = replace(IdleWarning(1, 0.0, 900.0), **fields)
    assert warning.holds_for(IdleJob("1", 0, idle, 2, since, 5000.0)) is holds


def test_a_gpu_that_was_used_counts_more_than_an_older_figure_of_another_node() -> None:
    warned = warned_at(900, idle=2, since=NOW - 2800.0)
    other = measured(gpu(1810), node="cpu2", sampled_at=NOW - 250)
    found = plan(snapshot_of(gpu_job(nodes=2), measured(gpu(1890)), other, warned=warned), {"burst": CANCEL})
    assert found.jobs[0].idle_s == 1810
    assert (len(new_warnings(found)), acts(found)) == (1, [])


def test_figures_that_are_lost_for_ten_minutes_end_nothing() -> None:
    """The warning is taken back; when they are there again the job has the whole time."""

    def figures() -> Iterator[tuple[float, NodeUse]]:
        last = None
        for age, node in idle_from(0.0, 2 * 3600):
            last = node if last is None or not 1200 <= age < 2400 else last
            yield age, last

    found = Run(replace(CANCEL, start_s=0.0)).play(figures())
    assert [what for _, what in found] == ["warned", "over", "warned", "cancel"]
    lost, again, ended = [at for at, _ in found][1:]
    assert 24.0 < lost < 25.0
    # The first figures that came were a minute old, and the time begins with the warning.
    assert (again, ended) == (40.0, 57.0)


@pytest.mark.parametrize("jump_s", [3600.0, 900.0, 300.0, -300.0, -3600.0])
def test_a_clock_that_jumps_ends_nothing_early(jump_s: float) -> None:
    """Figures that come after it are by the new clock; what the node has measured is not."""
    run = Run(replace(CANCEL, start_s=0.0))

    def figures() -> Iterator[tuple[float, NodeUse]]:
        for age, node in idle_from(0.0, 2 * 3600):
            run.jump_s = jump_s if age >= 1000 else 0.0
            at = age // FETCH_S * FETCH_S
            by = jump_s if at >= 1000 else 0.0
            gpus = tuple(replace(one, sampled_at=one.sampled_at + by) for one in node.gpus)
            yield age, replace(node, started=node.started + by, sampled_at=node.sampled_at + by, gpus=gpus)

    found = run.play(figures())
    assert found[0] == (15.0, "warned")
    ended = [at for at, what in found if what == "cancel"]
    assert ended
    assert ended[0] >= 30.0
    assert all(what != "cancel" for _, what in found[:-1])


IDLE = gpu(40 * MIN)
BUSY = gpu(0.0, uuid="GPU-2", utilisation_mean=80.0)
LEFT_ALONE: Mapping[str, Snapshot] = {
    "in use": snapshot_of(gpu_job(), measured(gpu(0.0, utilisation_mean=5.0))),
    "idle for a moment": snapshot_of(gpu_job(), measured(gpu(14 * MIN))),
    "no figures": make_snapshot(gpu_job()),
    "old figures": snapshot_of(gpu_job(), measured(IDLE, sampled_at=NOW - 361)),
    "an old figure of its GPU": snapshot_of(gpu_job(), measured(gpu(40 * MIN, sampled_at=NOW - 361))),
    "figures of the future": snapshot_of(gpu_job(), measured(IDLE, sampled_at=NOW + 60)),
    "cut figures": snapshot_of(gpu_job(), measured(IDLE, cut=True)),
    "a node without figures": snapshot_of(gpu_job(nodes=2), measured(IDLE)),
    "a GPU without figures": snapshot_of(gpu_job(gpus=2), measured(IDLE)),
    "a GPU of unknown use": snapshot_of(gpu_job(), measured(gpu(40 * MIN, utilisation_mean=None))),
    "unknown reading from disks": snapshot_of(gpu_job(), measured(IDLE, read_mib=None)),
    "old figures of one of two nodes": snapshot_of(
        gpu_job(nodes=2), measured(IDLE), measured(IDLE, node="cpu2", sampled_at=NOW - 370)
    ),
    "MIG": snapshot_of(gpu_job(), measured(gpu(40 * MIN, share=GpuShare.MIG))),
    "a shared GPU": snapshot_of(gpu_job(), measured(gpu(40 * MIN, share=GpuShare.SHARD))),
    "one of two GPUs shared": snapshot_of(gpu_job(gpus=2), measured(IDLE, gpu(40 * MIN, share=GpuShare.SHARD))),
    "no GPU asked for": snapshot_of(gpu_job(gres_per_node=()), measured(IDLE)),
    "idle=allow": snapshot_of(gpu_job(comment="burst: idle=allow"), measured(IDLE)),
    "idle=allow among others": snapshot_of(
        gpu_job(comment="BURST: gpu=1 Idle=Allow mem=3 -- burstd: on cpu1"), measured(IDLE)
    ),
    "in its beginning": snapshot_of(gpu_job(), measured(IDLE, started=NOW - 19 * MIN)),
    "loads from disks": snapshot_of(gpu_job(), measured(IDLE, loading_at=NOW)),
    "loads on another node": snapshot_of(
        gpu_job(nodes=2), measured(IDLE), measured(IDLE, node="cpu2", loading_at=NOW - 10 * MIN)
    ),
    "its input is on its way": snapshot_of(
        gpu_job(), measured(IDLE), data={"1": StagingView(StageState.FETCHING, 0.0, since=NOW - 3600)}
    ),
    "its input has just come": snapshot_of(
        gpu_job(), measured(IDLE), data={"1": StagingView(StageState.FETCHED, 0.0, since=NOW - 10 * MIN)}
    ),
    "suspended": snapshot_of(gpu_job(state=JobState.SUSPENDED), measured(IDLE)),
    "figures of its last run": make_snapshot(
        gpu_job(restarts=1), job_use={"1": use_of(gpu_job(), measured(IDLE))}
    ),
    "about to be requeued": snapshot_of(
        gpu_job(), measured(IDLE),
        runtime_state=RuntimeState(
            warned={("1", 0): RequeueWarning(("1",), NOW + 60, "b asks", "reclaim", takes_checkpoint=False)}
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_is_neither_warned_nor_ended(case: str) -> None:
    assert plan(LEFT_ALONE[case], {"burst": CANCEL}) == IdlePlan()


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_a_warning_that_no_longer_holds_is_withdrawn_and_nothing_follows(case: str) -> None:
    state = replace(LEFT_ALONE[case].runtime_state, idle_warnings=warned_at(15 * MIN))
    found = plan(replace(LEFT_ALONE[case], runtime_state=state), {"burst": CANCEL})
    assert found == IdlePlan(actions=(RecordIdleJobs((), (("1", 0),)),))


def test_without_a_rule_nothing_is_said_and_nothing_is_looked_at() -> None:
    snapshot = snapshot_of(gpu_job(), measured(IDLE))
    assert plan(snapshot, {}) == IdlePlan()
    assert plan(snapshot, {"other": CANCEL}) == IdlePlan()
    assert plan(replace(snapshot, slurm=Unavailable("no answer", 0.0)), {"burst": CANCEL}) == IdlePlan()


def test_the_rule_of_its_partition_goes_before_that_of_all() -> None:
    snapshot = snapshot_of(gpu_job(), measured(IDLE), warned=warned_at(15 * MIN))
    assert [run.act for run in acts(plan(snapshot, {"*": IdleGpuRule(), "burst": CANCEL}))] == [IdleAct.CANCEL]
    assert acts(plan(snapshot, {"*": CANCEL, "burst": IdleGpuRule()})) == []


CANCELLED = "the job is cancelled at 14:01 UTC if that goes on"
NOT_REQUEUED = "the job may not be requeued (srun, salloc, --no-requeue)"
TEXTS: Mapping[str, tuple[Job, tuple[NodeUse, ...], IdleGpuRule, str]] = {
    "nothing follows": (
        gpu_job(), (measured(IDLE),), IdleGpuRule(), "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour",
    ),
    "cancelled": (
        gpu_job(), (measured(IDLE),), CANCEL,
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour; the job is cancelled at 14:01 UTC if that goes on",
    ),
    "all GPUs of two nodes": (
        gpu_job(gpus=2, nodes=2), (measured(IDLE, gpu(50 * MIN)), measured(IDLE, gpu(30 * MIN), node="cpu2")), CANCEL,
        "its 4 GPUs have been idle since 13:16 UTC at 9.60 EUR an hour; " + CANCELLED,
    ),
    "a part of its GPUs": (
        gpu_job(gpus=4), (measured(IDLE, IDLE, BUSY, gpu(20 * MIN)),), CANCEL,
        "it asked for 4 GPUs and uses 1, the others have been idle since 13:26 UTC at 7.20 EUR an hour",
    ),
    "one node of two": (
        gpu_job(nodes=2), (measured(IDLE), measured(BUSY, node="cpu2")), CANCEL,
        "it asked for 2 GPUs and uses 1, the others have been idle since 13:06 UTC at 2.40 EUR an hour",
    ),
    "without a price": (
        gpu_job(), (measured(IDLE, gpu_price=Decimal(0), currency=""),), IdleGpuRule(),
        "its GPU has been idle since 13:06 UTC",
    ),
    "not to be requeued": (
        gpu_job(requeue=False), (measured(IDLE),), replace(CANCEL, act=IdleAct.REQUEUE),
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour; " + NOT_REQUEUED,
    ),
    "of salloc": (
        gpu_job(batch=False), (measured(IDLE),), replace(CANCEL, act=IdleAct.REQUEUE),
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour; " + NOT_REQUEUED,
    ),
    "of salloc, to be cancelled": (
        gpu_job(batch=False), (measured(IDLE),), CANCEL,
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour; " + CANCELLED,
    ),
    "a component of a het job": (
        gpu_job(het_job_id="1"), (measured(IDLE),), CANCEL,
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour",
    ),
    "a time limit that ends first": (
        gpu_job(time_limit_s=7200 + 600.0), (measured(IDLE),), replace(CANCEL, act=IdleAct.SHORTEN),
        "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_the_words_of_a_warning(case: str) -> None:
    """NOW is 13:46:40 UTC."""
    one, nodes, rule, text = TEXTS[case]
    found = plan(snapshot_of(one, *nodes), {"burst": rule})
    assert [words for _, words in new_warnings(found)] == [text]
    assert [remark.reason for remark in found.remarks] == [text]
    (idle,) = found.jobs
    assert sum(node.gpus for node in idle.nodes) == idle.idle
    assert sum(node.cost_per_hour for node in idle.nodes) == sum(amount for _, amount in idle.cost_per_hour)
    assert f"been {idle.text}" in text
    assert "; " not in idle.text, "what becomes of the job is its owner's"
    assert acts(found) == [], "what was not warned of does not happen"
    warned = warned_at(found.jobs[0].idle_s - 15 * MIN + 1, idle=found.jobs[0].idle)
    later = plan(snapshot_of(one, *nodes, warned=warned), {"burst": rule})
    assert acts(later) == [], "the time from the warning on is not over"


@pytest.mark.parametrize("act", [IdleAct.SHORTEN, IdleAct.REQUEUE, IdleAct.CANCEL])
def test_what_follows(act: IdleAct) -> None:
    rule = replace(CANCEL, act=act)
    snapshot = snapshot_of(gpu_job(), measured(gpu(30 * MIN)), warned=warned_at(15 * MIN))
    (run,) = acts(plan(snapshot, {"burst": rule}))
    limit_s = 7200.0 + 600.0 if act is IdleAct.SHORTEN else 0.0
    text = "its GPU was idle for 30 min, which cost about 1.20 EUR"
    assert run == IdleRun("1", 0, NOW - 7200, act, limit_s, text)
    assert acts(plan(replace(snapshot, paused="hands off"), {"burst": rule})) == [], "burstctl hold"
    early = snapshot_of(gpu_job(), measured(gpu(30 * MIN - 1)), warned=warned_at(15 * MIN))
    assert acts(plan(early, {"burst": rule})) == []
    late = snapshot_of(gpu_job(), measured(gpu(40 * MIN)), warned=warned_at(26 * MIN))
    assert acts(plan(late, {"burst": rule})) == [], "it was warned late, and has its quarter of an hour all the same"


def test_what_was_written_down_and_not_done_is_done_with_the_same_limit() -> None:
    warned = warned_at(15 * MIN, act=IdleAct.SHORTEN, limit_s=7500.0)
    rule = replace(CANCEL, act=IdleAct.SHORTEN)
    (run,) = acts(plan(snapshot_of(gpu_job(), measured(IDLE), warned=warned), {"burst": rule}))
    assert (run.act, run.limit_s) == (IdleAct.SHORTEN, 7500.0)
    assert acts(plan(snapshot_of(gpu_job(), measured(IDLE), warned=warned), WARN_ONLY)) == []


@pytest.mark.parametrize(
    ("refusal", "end"), [("", "; the job's time limit was shortened"), ("no", "; Slurm refused to shorten the job")]
)
def test_what_was_done_is_not_done_again(refusal: str, end: str) -> None:
    """It is remembered while the run lasts, also where its GPUs are used meanwhile."""
    warned = warned_at(15 * MIN, act=IdleAct.SHORTEN, limit_s=7500.0, done=True, refusal=refusal)
    rules = {"burst": replace(CANCEL, act=IdleAct.SHORTEN)}
    again = plan(snapshot_of(gpu_job(), measured(IDLE), warned=warned), rules)
    assert again.actions == ()
    assert again.remarks[0].reason.endswith(end)
    assert plan(snapshot_of(gpu_job(), measured(BUSY), warned=warned), rules).actions == ()
    gone = make_snapshot(runtime_state=RuntimeState(idle_warnings=warned))
    assert over(plan(gone, rules)) == [("1", 0)]
    next_run = snapshot_of(gpu_job(restarts=1), measured(BUSY), warned=warned)
    assert over(plan(next_run, rules)) == [("1", 0)]
    of_the_same_id = snapshot_of(gpu_job(run_start=7), measured(BUSY), warned=warned)
    assert over(plan(of_the_same_id, rules)) == [("1", 0)]
    idle_too = plan(snapshot_of(gpu_job(run_start=7), measured(IDLE), warned=warned), rules)
    assert (len(new_warnings(idle_too)), acts(idle_too)) == (1, [])


def test_a_job_that_stops_to_use_its_last_gpu_is_warned_anew() -> None:
    warned = warned_at(40 * MIN, idle=1)
    found = plan(snapshot_of(gpu_job(gpus=2), measured(IDLE, gpu(35 * MIN)), warned=warned), {"burst": CANCEL})
    assert [(idle.idle, idle.all_idle) for idle, _ in new_warnings(found)] == [(2, True)]
    assert acts(found) == []


def test_many_at_once_follow_one_loop_after_the_other() -> None:
    jobs = [gpu_job(n) for n in range(1, 100)]
    warned = {(one.id, 0): IdleWarning(1, NOW - 1800, 900.0) for one in jobs}
    snapshot = make_snapshot(
        *jobs, job_use={one.id: use_of(one, measured(IDLE)) for one in jobs},
        runtime_state=RuntimeState(idle_warnings=warned),
    )  # fmt: skip
    assert len(acts(plan(snapshot, {"burst": CANCEL}))) == MAX_ACTS


def test_the_decision_has_it_and_the_comment_and_explain_say_it() -> None:
    snapshot = snapshot_of(gpu_job(), measured(IDLE))
    decided = decide(snapshot, [], Tuning(idle_gpus={"*": IdleGpuRule()}))
    assert [one.key for one in decided.idle_gpus] == [("1", 0)]
    assert [action for action in decided.actions if isinstance(action, RecordIdleJobs)]
    text = "its GPU has been idle since 13:06 UTC at 2.40 EUR an hour"
    comments = JobComments(snapshot, decided)
    one = gpu_job()
    for current in ("", "on cpu1 (sky, 1.00 EUR/h)", "waits: no room"):
        line = comments.comment_for(one, current)
        assert line is not None
        assert (line.kind, line.text) == ("idle", f"idle GPUs: {text}")
    assert f"{text}; that has cost about 1.60 EUR" in explain_job(snapshot, decided, "1").summary
    busy = JobComments(snapshot, replace(decided, remarks=(), target=Target())).comment_for(one, f"idle GPUs: {text}")
    assert busy is not None
    assert not busy.text.startswith("idle GPUs")


def test_a_rule_for_a_partition_without_nodes_is_an_alarm() -> None:
    snapshot = make_snapshot()
    assert idle_gpu_alarms(snapshot, {"burst": CANCEL, "*": IdleGpuRule()}) == []
    (alarm,) = idle_gpu_alarms(snapshot, {"burts": CANCEL})
    assert alarm.startswith("[idle_gpus.burts]: there is no node in partition burts (partitions: burst")
    assert idle_gpu_alarms(replace(snapshot, slurm=Unavailable("no answer", 0.0)), {"burts": CANCEL}) == []


def test_a_word_that_exempts_nobody_is_told() -> None:
    found = plan(snapshot_of(gpu_job(comment="burst: gpu=1 idle=maybe"), measured(IDLE)), {"burst": CANCEL})
    assert found.remarks[0].reason.endswith("; its comment has an unknown value of idle, only idle=allow exempts a job")
    requirement = parse_requirement(requirements_text("burst: gpu=1 Idle=maybe"))
    assert requirement.syntax_error == "burst: Idle=maybe: must be idle=allow"


def test_words_of_a_comment() -> None:
    assert not allows_idle_gpus("idle=allow")
    assert not allows_idle_gpus("burst: gpu=3 -- burstd: waits: idle=allow")
    assert requirements_text("burst: gpu=3 idle=allow mem=7 -- burstd: waits") == "gpu=3 mem=7"
    assert requirements_text("burst: idle=allow") == ""


def test_jobs_in_use_cost_a_loop_nothing_to_speak_of() -> None:
    """Ten thousand of them cost less than looking at the queue once; no index of the queue is made."""
    jobs = [gpu_job(n) for n in range(1, 10_001)]
    snapshot = make_snapshot(*jobs, job_use={one.id: use_of(one, measured(BUSY)) for one in jobs})
    view = build_view(snapshot, "burstd")
    made: list[float] = [perf_counter()]
    for _ in range(5):
        assert plan_idle_gpus(view, {"burst": CANCEL}, MAX_AGE_S) == IdlePlan()
        made.append(perf_counter())
    print(f"\n10,000 jobs in use: {min(b - a for a, b in pairwise(made)) * 1000:.1f} ms")  # noqa: T201
    assert view.jobs.cache_info().currsize == 0  # type: ignore[attr-defined]
