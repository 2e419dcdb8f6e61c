"""One job: what it asked for and used, why it waits, what it costs, its story."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from burstd.api.answers.job_use import JobUseView
from burstd.api.dependencies import ApiError
from burstd.api.routers.events import get_events
from burstd.api.routers.job_use import get_job_plot, get_job_use
from burstd.api.routers.jobs import explain_visible_job, get_job
from burstd.web.rendering import Page, PageDep

MAX_EVENTS = 200

router = APIRouter()


@router.get("/jobs/{job_id}")
def job_page(page: PageDep, job_id: str, *, what_if: Annotated[bool, Query()] = False) -> HTMLResponse:
    """``what_if``: with the smallest changes that would start it, which the deciding thread works out."""
    detail = get_job(job_id, page.caller, page.backend)
    page.precedence.wait()
    explanation = explain_visible_job(job_id, page.caller, page.backend, what_if=what_if)
    page.precedence.wait()
    events = get_events(page.caller, page.backend, job=job_id, limit=MAX_EVENTS)
    page.precedence.wait()
    user = "" if page.caller.admin else page.caller.user
    return page.render(
        "job.html",
        f"Job {job_id}",
        detail=detail,
        job=detail.job,
        explanation=explanation,
        use=_use(job_id, page),
        events=events.events,
        what_if=what_if,
        on_record=detail.job is None and page.backend.reader.last_run(job_id, user) is not None,
        may_ask=detail.job is not None and detail.job.state == "PENDING",
    )


@router.get("/jobs/{job_id}/use.svg")
def job_plot(page: PageDep, job_id: str) -> Response:
    """The figures of the last run over time."""
    return Response(get_job_plot(job_id, page.caller, page.backend).svg, media_type="image/svg+xml")


def _use(job_id: str, page: Page) -> JobUseView | None:
    """What the last run used; None: nothing was measured."""
    try:
        return get_job_use(job_id, page.caller, page.backend)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
