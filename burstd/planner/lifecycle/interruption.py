"""Machines that their cloud takes back: the node is drained, its jobs begin anew elsewhere, and it is remembered.

The notice is the node's reason in Slurm (notices.py), whoever wrote it there: burstd for a cloud's queue, or the
machine itself. From there on the way is the usual one: the gate closes the claim, its node is powered down once it is
idle and its output off it (gate.py, lifecycle.py).
"""

from __future__ import annotations

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Action, Drain, Interrupted, JobRun, Requeue, StartNow, Undrain
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import NoticeKind
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.demand.requeued_jobs import begins_anew
from burstd.planner.lifecycle.spot_notices import NOT_A_NODE, TAKEN_BACK, Told, to_write, words
from burstd.planner.snapshot_view import View

CALM_S = 80.0
"""So much of the 121 s for which Slurm keeps a requeued job may be spared.

Slurm 24.11 kills a job that starts on a node of its last run within a second of its requeue (Job credential revoked),
and a node's clock may be 30 s ahead. Meanwhile its next machine boots.
"""
_AT_WORK = frozenset({JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED})
_GOING = frozenset({S.FAILED, S.LOST, S.TERMINATING})
_BEFORE = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING})
_OFF = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN"})


def notice_steps(view: View) -> list[Action]:
    """Drains and requeues for machines that are taken back, and what puts jobs and slots right afterwards."""
    if view.slurm is None:
        return []
    return [*_jobs(view), *_drains(view), *_starts(view), *_undrains(view)]


def _drains(view: View) -> list[Action]:
    """What the cloud's queue announced, told to Slurm."""
    alike: dict[str, list[Claim]] = {}
    for claim in view.snapshot.claims if view.snapshot.progress.notices else ():
        notice, node = view.snapshot.progress.notices.get(claim.id), view.node(claim.slot)
        if notice is None or node is None or node.powered_down or "POWERING_DOWN" in node.flags:
            continue
        a_node = claim.state in (S.OPEN, S.CLOSING) or (claim.state in NOT_A_NODE and _used(claim, view))
        if a_node and (reason := to_write(node, notice)):
            alike.setdefault(reason, []).append(claim)
    return [Drain(tuple(c.id for c in some), tuple(c.slot for c in some), why) for why, some in alike.items()]


def _used(claim: Claim, view: View) -> bool:
    """A job is, or was, on the machine though burstd has not opened it (so far, or since it was restarted)."""
    node = view.node(claim.slot)
    at_work = node is not None and node.busy and not node.flags & _OFF and node.address == claim.address
    return at_work or claim.id in view.kept


def given_up(claim: Claim, view: View) -> str:
    """Why a machine that is no node yet is not waited for any longer; empty: nothing is known against it."""
    progress = view.snapshot.progress
    if claim.state not in NOT_A_NODE or _used(claim, view):
        return ""
    if notice := progress.notices.get(claim.id):
        waits = claim.state is S.LAUNCHING and claim.id in progress.busy
        return "" if waits else words(notice).removeprefix("burstd: ")
    started = claim.state is S.READY or claim.id in progress.started
    told = view.told(claim.slot) if started else None
    return told.words if told is not None else ""


def _jobs(view: View) -> list[Action]:
    """Requeues what runs on nodes that end; writes down what is lost with a spot machine that is gone already."""
    ending = {c.slot: told for c in view.snapshot.claims if view.notices() and (told := _ends(c, view)) is not None}
    gone = {c.slot: c for c in view.snapshot.claims if c.state is S.LOST and c.offer.spot}
    if not ending and not gone:
        return []
    requeues: list[JobRun] = []
    losses: list[JobRun] = []
    done: set[str] = set()
    for job in view.slurm.jobs if view.slurm else ():
        taken = [slot for slot in job.node_list if slot in gone]
        cut = [slot for slot in job.node_list if slot in ending]
        if job.state not in _AT_WORK or not (taken or cut) or (job.het_job_id or job.id) in done:
            continue
        job_id = job.het_job_id or job.id
        if taken and job.restarts not in view.snapshot.interruptions.get(job.id, frozenset()):
            losses.append(_run(job, f"spot machine of {taken[0]} is gone", view))
        elif cut and (job_id, job.restarts) not in view.snapshot.progress.requeued:
            requeues.append(_run(job, f"{cut[0]}: {ending[cut[0]].words}", view))
        else:
            continue
        done.add(job_id)
    return [*([Interrupted(tuple(losses))] if losses else []), *([Requeue(tuple(requeues))] if requeues else [])]


def _ends(claim: Claim, view: View) -> Told | None:
    told = view.told(claim.slot) if claim.state not in _BEFORE | _GOING else None
    return told if told is not None and told.kind is NoticeKind.INTERRUPTION else None


def _run(job: Job, reason: str, view: View) -> JobRun:
    """Of a het job all components begin anew together, by their common number."""
    if not job.het_job_id:
        return JobRun(job.id, (job.id,), job.restarts, reason)
    rows = tuple(j.id for j in (view.slurm.jobs if view.slurm else ()) if j.het_job_id == job.het_job_id)
    return JobRun(job.het_job_id, rows, job.restarts, reason)


def _starts(view: View) -> list[Action]:
    """Jobs whose last run was cut short need not wait as long as Slurm lets a requeued job wait."""
    cut = view.snapshot.interruptions
    jobs = dict.fromkeys(
        job.het_job_id or job.id
        for job in (view.slurm.jobs if view.slurm and cut else ())
        if view.now < job.eligible <= view.now + CALM_S and begins_anew(job, view.snapshot)
    )
    return [StartNow(tuple(jobs))] if jobs else []


def _undrains(view: View) -> list[Action]:
    """A slot without a machine bears no notice. A person's drain stays, also one with our words behind it."""
    if not view.notices():
        return []
    early = {claim.slot: claim.state in _BEFORE for claim in view.snapshot.claims}
    slots = tuple(
        slot
        for pool in view.snapshot.pools.values()
        for slot in pool.slots
        if (told := view.told(slot)) is not None
        and (node := view.node(slot)) is not None
        and not told.before
        and node.powered_down
        and not node.busy
        and early.get(slot, True)
    )
    return [Undrain(slots)] if slots else []


def why_closed(claim: Claim, view: View) -> str:
    """Why the node of a claim is closed for a notice; empty: it bears none, or a hint on a node that a person holds."""
    told = view.told(claim.slot)
    if told is None:
        return ""
    if told.kind is NoticeKind.INTERRUPTION:
        return f"{TAKEN_BACK}: {told.words}"
    return "" if told.before else f"its machine may be taken back: {told.words}"


def notice_remarks(view: View) -> tuple[Remark, ...]:
    """What is to be said of jobs that run on machines that are taken back."""
    claims = view.snapshot.claims if view.notices() else ()
    told = {c.slot: t for c in claims if c.state not in _BEFORE and (t := view.told(c.slot))}
    remarks: list[Remark] = []
    for job in view.slurm.jobs if view.slurm is not None and told else ():
        here = [s for s in job.node_list if s in told] if job.state in _AT_WORK else []
        slot = min(here, key=lambda s: told[s].kind is NoticeKind.REBALANCE, default="")
        if slot:
            remarks.append(_remark(job, slot, told[slot], view))
    return tuple(remarks)


def _remark(job: Job, slot: str, told: Told, view: View) -> Remark:
    subject = f"job:{job.id}"
    if told.kind is NoticeKind.REBALANCE:
        text = f"the machine of {slot} may be taken back: {told.words}; the job runs on, and no new one starts there"
        return Remark("spot", subject, "runs", text)
    stays = ""
    if (job.het_job_id or job.id, job.restarts) in view.snapshot.progress.unmoved:
        stays = f"; Slurm did not requeue it, so it runs until {'then' if told.timed else 'its machine ends'}"
    return Remark("spot", subject, "ends", f"the machine of {slot} is taken back: {told.words}{stays}")
