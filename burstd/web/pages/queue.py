"""The queue: why each job waits, and when it is expected to start."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.base import utc_time
from burstd.api.answers.text import rough_duration_text
from burstd.api.backend import SLICE
from burstd.api.routers.jobs import AnnotatedQueue, annotated_queue, require_slurm
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.snapshot import Snapshot
from burstd.planner.explain.explain import kept_by, unplanned_remark
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.explain.job_lookup import request_text
from burstd.web.listing import Filter, PageNumber, list_page
from burstd.web.rendering import PageDep

Order = Literal["", "waiting", "user", "project", "name"]
_ORDERS: Mapping[str, Callable[[Job], Any]] = {
    "waiting": lambda job: job.submitted,
    "user": lambda job: (job.user, -job.priority, job.submitted),
    "project": lambda job: (job.account, -job.priority, job.submitted),
    "name": lambda job: (job.name, -job.priority, job.submitted),
}
_MAX_CHOICES = 200
_MAX_CHOICE_CHARS = 500
_ROWS_AT_A_TIME = 25
_DIGITS = re.compile(r"\d+")
_BASES = {
    "slurm": "by Slurm's backfill scheduler",
    "queue": "if all before it start first",
    "history": "by how long like jobs waited",
    "none": "as long again as so far",
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One job of the list."""

    job: Job
    request: str
    waiting_s: float
    verdict: str
    why: str
    start: datetime | None
    """When nodes of the site are expected to start it."""
    basis: str
    when: str
    """In words, where there is more to say than ``start``."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A value of a filter, and how many jobs it has."""

    value: str
    jobs: int


@router.get("/queue")
def queue_page(
    page: PageDep,
    *,
    state: Literal["", "running", "idle", "all"] = "",
    user: Filter = "",
    project: Filter = "",
    pool: Filter = "",
    why: Filter = "",
    sort: Order = "",
    number: PageNumber = 1,
) -> HTMLResponse:
    """The jobs that the caller may see; without ``state`` those that wait."""
    queue = annotated_queue(page.backend)
    snapshot = queue.snapshot
    require_slurm(snapshot)
    visible = queue.visible_jobs(page.caller)
    page.precedence.wait()
    if state != "all":
        visible = [job for job in visible if (job.state in PENDING_STATES) is (state == "")]
    if state == "idle":
        # Also those on nodes of the site, whose partitions no pool may serve.
        idle = {one.job_id for one in queue.plan.idle_gpus}
        visible = [job for job in queue.all_jobs() if job.id in idle and page.caller.can_see_user(job.user)]
    words = _Reasons(queue)
    found = list(_filtered(page.precedence.slices(visible, SLICE), snapshot, words, user, project, pool, why))
    page.precedence.wait()
    # Slurm shows the queue in no order of its own.
    found.sort(key=_ORDERS.get(sort, lambda job: (-job.priority, job.submitted)))
    asked = {"state": state, "user": user, "project": project, "pool": pool, "why": why, "sort": sort}
    listing = list_page(found, number, "/queue", asked)
    queue.foresee(listing.rows, page.precedence)
    return page.render(
        "queue.html",
        "Queue",
        listing=listing,
        rows=[_row(job, queue) for job in page.precedence.slices(listing.rows, _ROWS_AT_A_TIME)],
        users=_choices(job.user for job in page.precedence.slices(visible, SLICE)) if page.caller.admin else [],
        projects=_choices(job.account for job in page.precedence.slices(visible, SLICE)),
        pools=sorted(snapshot.pools),
        reasons=_choices(words.normalized(job) for job in page.precedence.slices(visible, SLICE)),
        asked=asked,
    )


class _Reasons:
    """The reasons of jobs without numbers: those that differ in numbers only are one to a person."""

    def __init__(self, queue: AnnotatedQueue) -> None:
        self._queue = queue
        self._normalized: dict[str, str] = {}

    def normalized(self, job: Job) -> str:
        remark = self._queue.last_remark(job)
        text = remark.reason if remark is not None else job.reason if job.state in PENDING_STATES else ""
        found = self._normalized.get(text)
        if found is None:
            found = self._normalized[text] = _DIGITS.sub("#", text)
        return found


def _filtered(
    jobs: Iterable[Job], snapshot: Snapshot, words: _Reasons, user: str, project: str, pool: str, why: str
) -> Iterable[Job]:
    partitions = set(snapshot.pools[pool].partitions) if pool in snapshot.pools else set()
    return (
        job
        for job in jobs
        if (not user or job.user == user)
        and (not project or job.account == project)
        and (not pool or not partitions.isdisjoint(job.partitions))
        and (not why or words.normalized(job) == why)
    )


def _choices(values: Iterable[str]) -> list[Choice]:
    """The most frequent ones. Names and reasons come from users too; none is so long by chance."""
    return [
        Choice(value, jobs)
        for value, jobs in Counter(values).most_common(_MAX_CHOICES)
        if 0 < len(value) <= _MAX_CHOICE_CHARS
    ]


def _row(job: Job, queue: AnnotatedQueue) -> QueueRow:
    snapshot = queue.snapshot
    waiting_s = max(0.0, snapshot.now - job.submitted)
    if job.state not in PENDING_STATES:
        comment = queue.comments.comment_for(job, "")
        ends = f"ends {rough_duration_text(job.end - snapshot.now)} at the latest" if job.end > snapshot.now else ""
        why = comment.text if comment is not None else ""
        return QueueRow(job, request_text(job), waiting_s, job.state.lower(), why, None, "", ends)
    remark = queue.last_remark(job) or unplanned_remark(snapshot, queue.plan, job)
    outlook = snapshot.outlook.get(job.id)
    start = outlook.local_start if outlook is not None else math.inf
    return QueueRow(
        job,
        request_text(job),
        waiting_s,
        remark.verdict,
        remark.reason,
        utc_time(start) if math.isfinite(start) and remark.verdict not in ("covered", "boot") else None,
        _BASES.get(outlook.local_basis, "") if outlook is not None else "",
        _when(job, remark, outlook, queue.comments),
    )


def _when(job: Job, remark: Remark, outlook: Outlook | None, comments: JobComments) -> str:
    comment = comments.comment_for(job, "")
    if comment is not None and comment.kind == "coming":
        return comment.text
    if remark.verdict == "covered":
        return "soon"
    if remark.verdict == "impossible":
        return "never, as it is"
    if outlook is None:
        return ""
    if word := kept_by(remark):
        return f"in the cloud not before {word} ends"
    return f"in the cloud {rough_duration_text(outlook.ready_s)}, once a machine is started for it"
