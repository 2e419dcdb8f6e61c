"""One job: what it asked for and used, why it waits, what it costs, its story."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from burstd.api.routers.events import get_events
from burstd.api.routers.jobs import explain_visible_job, get_job
from burstd.web.rendering import PageDep

MAX_EVENTS = 200

router = APIRouter()


@router.get("/jobs/{job_id}")
def job_page(page: PageDep, job_id: str, *, what_if: Annotated[bool, Query()] = False) -> HTMLResponse:
    """``what_if``: with the smallest changes that would start it, which the deciding thread works out."""
    detail = get_job(job_id, page.caller, page.backend)
    explanation = explain_visible_job(job_id, page.caller, page.backend, what_if=what_if)
    events = get_events(page.caller, page.backend, job=job_id, limit=MAX_EVENTS)
    return page.render(
        "job.html",
        f"Job {job_id}",
        detail=detail,
        job=detail.job,
        explanation=explanation,
        events=events.events,
        what_if=what_if,
        may_ask=detail.job is not None and detail.job.state == "PENDING",
    )
