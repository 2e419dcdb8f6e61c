"""What there is now, what it costs, what is wrong, and what happens next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.base import utc_time
from burstd.api.answers.status import StatusView
from burstd.api.auth import visible_jobs_filter
from burstd.api.backend import SLICE, Backend
from burstd.api.routers.jobs import annotated_queue
from burstd.api.routers.status import get_status
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import PENDING_STATES
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.explain.gpu_map import GpuState, count_gpus
from burstd.planner.staging.transfer_schedule import boot_estimate
from burstd.web.node_list import node_entries
from burstd.web.rendering import Page, PageDep

MAX_EVENTS = 12
MAX_SINGLE = 4
"""More nodes of a pool that are alike are told together."""
_COMING = {
    S.PLANNED: "is asked for",
    S.LAUNCHING: "is being launched",
    S.BOOTING: "boots",
    S.VALIDATING: "is being checked",
    S.READY: "is ready and not yet open to jobs",
}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class NextEvent:
    """Something that is expected."""

    at: datetime | None
    """None: it is due, or nobody knows when."""
    text: str
    node: str = ""
    """Whom it is about; empty: no node."""


@router.get("/")
def now_page(page: PageDep) -> HTMLResponse:
    """As ``burstctl status``, with what is expected."""
    status = get_status(page.caller, page.backend)
    latest = page.backend.latest_loop()
    if latest is None:
        return page.render("now.html", "Now", status_view=status, alarms=status.alarms, ready=False)
    queue = annotated_queue(page.backend)
    snapshot, jobs = queue.snapshot, queue.burst_jobs()
    page.precedence.wait()
    visible = {job.id for job in queue.all_jobs() if page.caller.can_see_user(job.user)}
    expected = sorted(
        _expected(snapshot, page, visible), key=lambda one: one.at.timestamp() if one.at is not None else -inf
    )
    return page.render(
        "now.html",
        "Now",
        status_view=status,
        alarms=[alarm for alarm in status.alarms if alarm not in _shown_by_freshness(snapshot)],
        ready=True,
        jobs_waiting=sum(job.tasks for job in jobs if job.state in PENDING_STATES),
        jobs_running=sum(job.state not in PENDING_STATES for job in jobs),
        machines=_machines(status),
        gpus=page.backend.once_per_loop(latest, _gpus),
        bill=page.bill("user"),
        expected=expected[:MAX_EVENTS],
        more_expected=max(0, len(expected) - MAX_EVENTS),
    )


def _gpus(backend: Backend, loop: tuple[Snapshot, Plan]) -> dict[GpuState, int]:
    """GPUs by what they do."""
    entries = backend.precedence().slices(backend.once_per_loop(loop, node_entries), SLICE)
    return count_gpus(cell for entry in entries for cell in entry.gpus)


def _machines(status: StatusView) -> dict[str, int]:
    """Machines by what they do."""
    found = Counter[str]()
    for pool in status.pools:
        for name in ("busy", "idle", "ready", "booting", "leaving", "failed"):
            found[name] += getattr(pool, name)
    return dict(found)


def _shown_by_freshness(snapshot: Snapshot) -> set[str]:
    """Alarms whose words stand in the head of the page already, with the age of what is shown."""
    unread = [("Slurm", snapshot.slurm), *((f"provider {n}", c.instances) for n, c in snapshot.clouds.items())]
    return {f"{name} cannot be read: {part.error}" for name, part in unread if isinstance(part, Unavailable)}


def _expected(snapshot: Snapshot, page: Page, visible: set[str]) -> Iterator[NextEvent]:
    """Nodes on their way, jobs that are requeued, ends of pins and breakers; of jobs those that the caller may see."""
    yield from _coming(snapshot, page)
    for job_id, at in snapshot.leaving().items():
        if job_id in visible:
            yield NextEvent(utc_time(at), f"Job {job_id} is requeued")
    for pin in snapshot.pins:
        if pin.until is not None:
            yield NextEvent(utc_time(pin.until), f"Pool {pin.pool} is no longer scaled to {pin.nodes} ({pin.kind})")
    for breaker in snapshot.breakers:
        if breaker.until > snapshot.now:
            yield NextEvent(utc_time(breaker.until), f"{breaker.key} is tried again ({breaker.cause})")


def _coming(snapshot: Snapshot, page: Page) -> Iterator[NextEvent]:
    """Nodes on their way; many of one pool in the same state are one event."""
    seen_jobs = visible_jobs_filter(page.caller, snapshot)
    groups: dict[tuple[str, S], list[Claim]] = {}
    for claim in (*snapshot.claims, *snapshot.storage_claims):
        if claim.state in _COMING:
            groups.setdefault((claim.pool, claim.state), []).append(claim)
    for (pool, state), claims in groups.items():
        takes_s = boot_estimate(snapshot.runtime_state.boot_durations.get(pool, ()))
        due = [claim.created + takes_s if state is not S.READY else 0.0 for claim in claims]
        ahead = [utc_time(at) if at > snapshot.now else None for at in due]
        if len(claims) > MAX_SINGLE:
            yield NextEvent(
                utc_time(max(due)) if max(due) > snapshot.now else None,
                f"{len(claims)} nodes of pool {pool}: each {_COMING[state]}",
            )
            continue
        for claim, at in zip(claims, ahead, strict=True):
            jobs = seen_jobs(claim)
            whose = f", for job{'s' if len(jobs) > 1 else ''} {', '.join(jobs[:3])}" if jobs else ""
            yield NextEvent(at, f"{_COMING[state]}{whose}", claim.slot)
