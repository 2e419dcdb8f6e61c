"""Machines that their cloud takes back, or that have a fault: the node is drained, its jobs begin anew elsewhere.

The notice is the node's reason in Slurm (spot_notices.py), whoever wrote it there: burstd for a cloud's queue, or the
machine itself. From there on the way is the usual one: the gate closes the claim, its node is powered down once it is
idle and its output off it (gate.py, lifecycle.py).
"""

from __future__ import annotations

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.health import HEALTH
from burstd.domain.plan import Action, DrainNodes, JobRun, RecordInterruptions, RequeueJobs, StartJobsNow, UndrainNodes
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import NoticeKind
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.demand.requeued_jobs import over_quota, restarts_after_interruption
from burstd.planner.lifecycle.spot_notices import (
    NOT_IN_SERVICE_YET,
    TAKEN_BACK,
    NodeNotice,
    missing_reason,
    notice_reason,
)
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.staging.input_deadlines import data_of_job

SKIPPED_REQUEUE_WAIT_S = 80.0
"""So much of the 121 s for which Slurm keeps a requeued job may be spared.

Slurm 24.11 kills a job that starts on a node of its last run within a second of its requeue (Job credential revoked),
and a node's clock may be 30 s ahead. Meanwhile its next machine boots.
"""
SKIPPED_WHERE_HARMLESS_S = 118.0
"""The same of a job that no node of its last run takes again, and of one that ran beyond its project's quota: its node
has run it before, so its clock has been set."""
RUNNING = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED})
_ENDING = frozenset({S.FAILED, S.LOST, S.TERMINATING})
_BEFORE_VALIDATING = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING})
_OFF = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"})


def notice_steps(view: SnapshotView) -> list[Action]:
    """Drains and requeues for machines that are taken back, and what puts jobs and slots right afterwards."""
    if view.slurm is None:
        return []
    return [*_requeues_and_losses(view), *_drains(view), *_immediate_restarts(view), *_undrains(view)]


def _drains(view: SnapshotView) -> list[Action]:
    """What the cloud's queue announced, told to Slurm."""
    by_reason: dict[str, list[Claim]] = {}
    for claim in view.snapshot.claims if view.snapshot.runtime_state.notices else ():
        notice, node = view.snapshot.runtime_state.notices.get(claim.id), view.node(claim.slot)
        if notice is None or node is None or node.powered_down or "POWERING_DOWN" in node.flags:
            continue
        a_node = claim.state in (S.IN_SERVICE, S.DRAINING) or (
            claim.state in NOT_IN_SERVICE_YET and _has_had_job(claim, view)
        )
        if a_node and (reason := missing_reason(node, notice)):
            by_reason.setdefault(reason, []).append(claim)
    return [DrainNodes(tuple(c.id for c in some), tuple(c.slot for c in some), why) for why, some in by_reason.items()]


def _has_had_job(claim: Claim, view: SnapshotView) -> bool:
    """A job is, or was, on the machine though burstd has not opened it (so far, or since it was restarted)."""
    node = view.node(claim.slot)
    runs_job = node is not None and node.busy and not node.flags & _OFF and node.address == claim.address
    return runs_job or claim.id in view.retained


def give_up_reason(claim: Claim, view: SnapshotView) -> str:
    """Why a machine that is no node yet is not waited for any longer; empty: nothing is known against it."""
    progress = view.snapshot.runtime_state
    if claim.state not in NOT_IN_SERVICE_YET or _has_had_job(claim, view):
        return ""
    if notice := progress.notices.get(claim.id):
        answer_pending = claim.state is S.LAUNCHING and claim.id in progress.busy
        return "" if answer_pending else f"{TAKEN_BACK}: {notice_reason(notice).removeprefix('burstd: ')}"
    started = claim.state is S.READY or claim.id in progress.slurmd_started
    notice_on_node = view.notice(claim.slot) if started else None
    if notice_on_node is None:
        return ""
    return notice_on_node.closing_reason if notice_on_node.unhealthy else f"{TAKEN_BACK}: {notice_on_node.text}"


def _requeues_and_losses(view: SnapshotView) -> list[Action]:
    """Requeues what runs on nodes that end; writes down what is lost with a spot machine that is gone already."""
    notices_by_slot = {
        c.slot: notice
        for c in (view.snapshot.claims if view.notices() else ())
        if (notice := _notice_that_ends_jobs(c, view)) is not None
    }
    gone = {c.slot: c for c in view.snapshot.claims if c.state is S.LOST and c.offer.spot}
    if not notices_by_slot and not gone:
        return []
    requeues: list[JobRun] = []
    losses: list[JobRun] = []
    done: set[str] = set()
    for job in view.slurm.jobs if view.slurm else ():
        on_lost_machines = [slot for slot in job.node_list if slot in gone]
        interrupted = [slot for slot in job.node_list if slot in notices_by_slot]
        if job.state not in RUNNING or not (on_lost_machines or interrupted) or (job.het_job_id or job.id) in done:
            continue
        job_id = job.het_job_id or job.id
        if on_lost_machines and job.restarts not in view.snapshot.interruptions.get(job.id, frozenset()):
            losses.append(job_run(job, f"spot machine of {on_lost_machines[0]} is gone", view))
        elif interrupted and takes_last_checkpoint(job, view):
            continue
        elif interrupted and (job_id, job.restarts) not in view.snapshot.runtime_state.requeued:
            notice = notices_by_slot[slot := interrupted[0]]
            requeues.append(job_run(job, f"{slot}: {notice.text}", view, HEALTH if notice.unhealthy else "spot"))
        else:
            continue
        done.add(job_id)
    return [
        *([RecordInterruptions(tuple(losses))] if losses else []),
        *([RequeueJobs(tuple(requeues))] if requeues else []),
    ]


def takes_last_checkpoint(job: Job, view: SnapshotView) -> bool:
    """Whether the job is left alone for what it is about to write."""
    data = data_of_job(view.snapshot.data, job)
    return data is not None and view.now < data.last_checkpoint_until


def _notice_that_ends_jobs(claim: Claim, view: SnapshotView) -> NodeNotice | None:
    notice = view.notice(claim.slot) if claim.state not in _BEFORE_VALIDATING | _ENDING else None
    return notice if notice is not None and notice.ends_jobs else None


def job_run(job: Job, reason: str, view: SnapshotView, cause: str = "spot") -> JobRun:
    """The run of a job. Of a het job all components begin anew together, by their common number."""
    if not job.het_job_id:
        return JobRun(job.id, (job.id,), job.restarts, reason, cause)
    rows = tuple(j.id for j in (view.slurm.jobs if view.slurm else ()) if j.het_job_id == job.het_job_id)
    return JobRun(job.het_job_id, rows, job.restarts, reason, cause)


def _immediate_restarts(view: SnapshotView) -> list[Action]:
    """Jobs whose last run was cut short need not wait as long as Slurm lets a requeued job wait."""
    snapshot = view.snapshot
    jobs = dict.fromkeys(
        job.het_job_id or job.id
        for job in (view.slurm.jobs if view.slurm and (snapshot.interruptions or snapshot.projects.projects) else ())
        if view.now < job.eligible <= view.now + SKIPPED_WHERE_HARMLESS_S
        and (job.eligible <= view.now + SKIPPED_REQUEUE_WAIT_S or _fits_one_node_only(job) or over_quota(job, snapshot))
        and restarts_after_interruption(job, snapshot)
    )
    return [StartJobsNow(tuple(jobs))] if jobs else []


def _fits_one_node_only(job: Job) -> bool:
    """Whether its last run was on the machine that was lost, and on no other that could take it again."""
    return not job.het_job_id and job.nodes == 1 and job.cpus_per_node >= job.cpus


def _undrains(view: SnapshotView) -> list[Action]:
    """A slot without a machine bears no notice. A person's drain stays, also one with our words behind it."""
    if not view.notices():
        return []
    before_validating = {claim.slot: claim.state in _BEFORE_VALIDATING for claim in view.snapshot.claims}
    slots = tuple(
        slot
        for pool in view.snapshot.pools.values()
        for slot in pool.slots
        if (notice := view.notice(slot)) is not None
        and (node := view.node(slot)) is not None
        and not notice.admin_reason
        and node.powered_down
        and not node.busy
        and before_validating.get(slot, True)
    )
    return [UndrainNodes(slots)] if slots else []


def notice_drain_reason(claim: Claim, view: SnapshotView) -> str:
    """Why the node of a claim is closed for a notice; empty: it bears none, or a person holds it who may keep it."""
    notice = view.notice(claim.slot)
    if notice is None or (notice.admin_reason and notice.kind is not NoticeKind.INTERRUPTION):
        return ""
    return notice.closing_reason


def notice_remarks(view: SnapshotView) -> tuple[Remark, ...]:
    """What is to be said of jobs that run on machines that are taken back, or unhealthy."""
    claims = view.snapshot.claims if view.notices() else ()
    notices = {c.slot: t for c in claims if c.state not in _BEFORE_VALIDATING and (t := view.notice(c.slot))}
    remarks: list[Remark] = []
    for job in view.slurm.jobs if view.slurm is not None and notices else ():
        here = [s for s in job.node_list if s in notices] if job.state in RUNNING else []
        slot = min(here, key=lambda s: not notices[s].ends_jobs, default="")
        if slot:
            remarks.append(_remark(job, slot, notices[slot], view))
    return tuple(remarks)


def _remark(job: Job, slot: str, notice: NodeNotice, view: SnapshotView) -> Remark:
    subject = f"job:{job.id}"
    by = HEALTH if notice.unhealthy else "spot"
    text = notice.closing_reason.replace("its machine", f"the machine of {slot}", 1)
    if not notice.ends_jobs:
        return Remark(by, subject, "runs", f"{text}; the job runs on, and no new one starts there")
    stays = ""
    if (job.het_job_id or job.id, job.restarts) in view.snapshot.runtime_state.requeue_refused:
        until = "its machine ends" if notice.deadline is None else "then"
        stays = f"; Slurm did not requeue it, so it runs until {until}"
    if takes_last_checkpoint(job, view):
        stays = "; its last checkpoint is taken before it is requeued"
    return Remark(by, subject, "ends", f"{text}{stays}")
