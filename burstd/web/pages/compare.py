"""Jobs on the site's own nodes beside clouds, as ``burstctl compare`` has them."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.compare_text import compared_rows
from burstd.api.answers.text import parse_month
from burstd.api.dependencies import ApiError
from burstd.api.routers.compare import get_comparison
from burstd.web.listing import Filter
from burstd.web.rendering import PageDep

router = APIRouter()


@router.get("/costs/compare")
def compare_page(
    page: PageDep, *, job: Filter = "", user: Filter = "", account: Filter = "", month: Filter = ""
) -> HTMLResponse:
    """One job that is over, or all that ended in a month (UTC): of a user, of a project, of both."""
    since, until = None, None
    if month and not job:
        try:
            since, until = parse_month(month)
        except ValueError as error:
            raise ApiError(422, f"Month: {error}.") from None
    compared = get_comparison(page.caller, page.backend, job, user, account, since, until)
    return page.render(
        "compare.html",
        f"Job {compared.job}, here beside there" if job else "Here beside there",
        compared=compared,
        rows=compared_rows(compared),
        month=f"{compared.since:%Y-%m}",
    )
