"""Jobs that hold GPUs without using them: a warning, and later what the rule of their partition says.

A GPU's idle time is what its node has measured without a break. The beginning of a job, its staging and its reading
from disks do not count. A job with a figure that is missing, old or cut, or with a part of a GPU, is not idle.

The time from the warning to what follows is measured by the clock of the node too: burstd's clock may jump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from burstd.domain.idle_gpus import ANY_PARTITION, IdleAct, IdleGpuRule, IdleJob, IdleNode, IdleRun, IdleWarning
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.plan import Action, ActOnIdleJobs, RecordIdleJobs
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.comment import IDLE_ALLOWED, allows_idle_gpus, has_unknown_idle_word
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import requested_gpus
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState
from burstd.domain.units import money_text
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.staging.input_deadlines import data_of_job
from burstd.planner.unshown_paths import WARNING

NAME = "idle_gpus"
"""Who makes the remarks."""
AHEAD_S = 5.0
"""Figures that are so much newer than now are from before the clock was set back: they are missing too."""
MAX_ACTS = 20
"""In one loop: each is a command, and the rest follows in the next."""
_SAME_DAY_S = 20 * 3600.0
"""A time of the clock that is nearer needs no date."""
MIN_SHORTENED_S = 60.0
"""Slurm's unit for time limits."""


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """What comes of it."""

    jobs: tuple[IdleJob, ...] = ()
    actions: tuple[Action, ...] = ()
    remarks: tuple[Remark, ...] = ()


def plan_idle_gpus(view: SnapshotView, rules: Mapping[str, IdleGpuRule], max_age_s: float) -> IdlePlan:
    """``rules``: by partition, or ANY_PARTITION; ``max_age_s``: figures older than this are missing."""
    warnings = view.snapshot.runtime_state.idle_warnings
    if view.slurm is None or not (rules or warnings):
        return IdlePlan()
    found = [*_idle_jobs(view, rules, max_age_s)] if rules and view.snapshot.job_use else []
    new: list[tuple[IdleJob, str]] = []
    runs: list[IdleRun] = []
    remarks: list[Remark] = []
    jobs: list[IdleJob] = []
    for job, rule, idle in found:
        known = warnings.get(idle.key)
        fresh = known is None or not known.holds_for(idle)
        warning = idle.warning(view.now) if known is None or fresh else known
        act, obstacle = _act(job, rule, idle, view.now)
        since, then = f"since {_clock(warning.since, view.now)}", _next_text(rule, warning, act, obstacle, view.now)
        jobs.append(replace(idle, text=f"idle {since}"))
        price = f" at {money_text(idle.cost_per_hour)} an hour" if idle.cost_per_hour else ""
        text = f"{_idle_text(idle)} {since}{price}{then}"
        if has_unknown_idle_word(job.comment):
            text += f"; its comment has an unknown value of idle, only {IDLE_ALLOWED} exempts a job"
        remarks.append(Remark(NAME, f"job:{job.id}", WARNING, text))
        if fresh:
            new.append((idle, text))
        elif _is_due(idle, warning, act, rule):
            limit_s = view.now - job.start + rule.time_left_s if act is IdleAct.SHORTEN else 0.0
            runs.append(IdleRun(job.id, job.restarts, job.start, act, limit_s, _reason(idle)))
        elif act is warning.act and act is not IdleAct.NOTHING and not warning.done:
            # burstd was killed between its record and Slurm.
            runs.append(IdleRun(job.id, job.restarts, job.start, warning.act, warning.limit_s, _reason(idle)))
    still = {idle.key for _, _, idle in found}
    over = tuple(key for key, known in warnings.items() if key not in still and not _is_kept(key, known, view))
    actions: list[Action] = []
    if new or over:
        actions.append(RecordIdleJobs(tuple(new), over))
    if runs and not view.snapshot.paused:
        actions.append(ActOnIdleJobs(tuple(runs[:MAX_ACTS])))
    return IdlePlan(tuple(jobs), tuple(actions), tuple(remarks))


def _is_kept(key: tuple[str, int], known: IdleWarning, view: SnapshotView) -> bool:
    """What was done is remembered as long as the run lasts: it is not done twice."""
    job = view.jobs().get(key[0]) if known.done else None
    if job is None or job.state is JobState.PENDING:
        return False
    return (job.restarts, job.run_start) == (key[1], known.run_start)


def idle_gpu_alarms(snapshot: Snapshot, rules: Mapping[str, IdleGpuRule]) -> list[str]:
    """Rules for partitions that no node of Slurm's is in."""
    if not rules or not isinstance(snapshot.slurm, SlurmView):
        return []
    there = {name for node in snapshot.slurm.nodes.values() for name in node.partitions}
    return [
        f"[idle_gpus.{name}]: there is no node in partition {name} (partitions: {', '.join(sorted(there)) or 'none'})"
        for name in rules
        if name not in {ANY_PARTITION, *there}
    ]


def _idle_jobs(
    view: SnapshotView, rules: Mapping[str, IdleGpuRule], max_age_s: float
) -> Iterator[tuple[Job, IdleGpuRule, IdleJob]]:
    shortest = min(rule.warn_after_s for rule in rules.values())
    for job_id, use in view.snapshot.job_use.items():
        if not any(gpu.idle_now_s >= shortest for node in use.nodes for gpu in node.gpus):
            continue
        job = view.jobs().get(job_id)
        if job is None or job.id != job_id or job.state is not JobState.RUNNING:
            continue
        if (use.restarts, use.run_start) != (job.restarts, job.run_start):
            continue
        rule = next((rules[name] for name in (*job.partitions[:1], ANY_PARTITION) if name in rules), None)
        if rule is None or allows_idle_gpus(job.comment) or view.snapshot.leaves_at(job):
            continue
        if _is_measured(job, use, view.now, max_age_s) and (idle := _idle_job(job, use, rule, view)) is not None:
            yield job, rule, idle


def _is_measured(job: Job, use: JobUse, now: float, max_age_s: float) -> bool:
    """Whether the figures are whole, and those of now."""
    asked = requested_gpus(job)
    if use.cut or use.ended is not None or not asked or len(use.gpus) < asked:
        return False
    sampled = [node.sampled_at for node in use.nodes] + [gpu.sampled_at for gpu in use.gpus]
    return (
        all(-AHEAD_S <= now - at <= max_age_s for at in sampled)
        and all(node.read_mib is not None for node in use.nodes)
        and all(gpu.share is GpuShare.WHOLE and gpu.utilisation_mean is not None for gpu in use.gpus)
    )


def _idle_job(job: Job, use: JobUse, rule: IdleGpuRule, view: SnapshotView) -> IdleJob | None:
    data = data_of_job(view.snapshot.data, job)
    if data is not None and data.state is not StageState.FETCHED:
        return None
    loaded_at = max([node.loading_at for node in use.nodes] + ([data.since] if data is not None else []))

    def counted_s(node: NodeUse, gpu: GpuUse) -> float:
        return min(gpu.idle_now_s, node.sampled_at - node.started - rule.start_s, node.sampled_at - loaded_at)

    idle = [(n, s) for n in use.nodes for gpu in n.gpus if (s := counted_s(n, gpu)) >= rule.warn_after_s]
    if not idle:
        return None
    return IdleJob(
        job.id, job.restarts, len(idle), len(use.gpus),
        max(node.sampled_at - s for node, s in idle), min(s for _, s in idle),
        _sums((node.currency, node.gpu_price) for node, _ in idle),
        _sums((node.currency, node.gpu_price * Decimal(s) / 3600) for node, s in idle), _idle_nodes(idle),
        run_start=job.run_start, user=job.user,
    )  # fmt: skip


def _idle_nodes(idle: Sequence[tuple[NodeUse, float]]) -> tuple[IdleNode, ...]:
    gpus = Counter(node.node for node, _ in idle)
    nodes = {node.node: node for node, _ in idle}
    return tuple(IdleNode(name, n, n * nodes[name].gpu_price, nodes[name].currency) for name, n in gpus.items())


def _sums(amounts: Iterator[tuple[str, Decimal]]) -> tuple[tuple[str, Decimal], ...]:
    sums: dict[str, Decimal] = {}
    for currency, amount in amounts:
        if amount:
            sums[currency] = sums.get(currency, Decimal(0)) + amount
    return tuple(sums.items())


def _act(job: Job, rule: IdleGpuRule, idle: IdleJob, now: float) -> tuple[IdleAct, str]:
    """What is to follow, or what keeps it from that: a sentence for its user."""
    if rule.act is IdleAct.NOTHING or not idle.all_idle or job.het_job_id:
        return IdleAct.NOTHING, ""
    if rule.act is IdleAct.REQUEUE and not (job.requeue and job.batch):
        return IdleAct.NOTHING, "the job may not be requeued (srun, salloc, --no-requeue)"
    end_s = now - job.start + rule.time_left_s
    if rule.act is IdleAct.SHORTEN and job.time_limit_s and job.time_limit_s < end_s + MIN_SHORTENED_S:
        return IdleAct.NOTHING, ""
    return rule.act, ""


def _acts_at_s(warning: IdleWarning, rule: IdleGpuRule) -> float:
    """Idle time at which it is done: a job always has the whole time from its warning on."""
    return warning.idle_s + rule.act_after_s - rule.warn_after_s


def _is_due(idle: IdleJob, warning: IdleWarning, act: IdleAct, rule: IdleGpuRule) -> bool:
    if act is IdleAct.NOTHING or warning.act is not IdleAct.NOTHING:
        return False
    return idle.idle_s >= max(rule.act_after_s, _acts_at_s(warning, rule))


_ACTS = {
    IdleAct.SHORTEN: "the job's time limit is shortened",
    IdleAct.REQUEUE: "the job is requeued",
    IdleAct.CANCEL: "the job is cancelled",
}
_DONE = {
    IdleAct.SHORTEN: "the job's time limit was shortened",
    IdleAct.REQUEUE: "the job was requeued",
    IdleAct.CANCEL: "the job was cancelled",
}


def _next_text(rule: IdleGpuRule, warning: IdleWarning, act: IdleAct, obstacle: str, now: float) -> str:
    """The same in each loop until something happens: it is written into the job's comment."""
    if warning.refusal:
        return f"; Slurm refused to {warning.act.value} the job"
    if warning.act is not IdleAct.NOTHING:
        return f"; {_DONE[warning.act] if warning.done else _ACTS[warning.act]}"
    if act is not IdleAct.NOTHING:
        at = warning.since + max(rule.act_after_s, _acts_at_s(warning, rule))
        return f"; {_ACTS[act]} at {_clock(at, now)} if that goes on"
    return f"; {obstacle}" if obstacle else ""


def _idle_text(idle: IdleJob) -> str:
    if idle.all_idle:
        return "its GPU has been idle" if idle.gpus == 1 else f"its {idle.gpus} GPUs have been idle"
    return f"it asked for {idle.gpus} GPUs and uses {idle.gpus - idle.idle}, the others have been idle"


def _reason(idle: IdleJob) -> str:
    """Of what is done, for its event: all its GPUs are idle."""
    cost = f", which cost about {money_text(idle.cost)}" if idle.cost else ""
    gpus = "its GPU was" if idle.gpus == 1 else f"its {idle.gpus} GPUs were"
    return f"{gpus} idle for {idle.idle_s / 60:.0f} min{cost}"


def _clock(time: float, now: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%H:%M UTC" if abs(now - time) < _SAME_DAY_S else "%F %H:%M UTC")
