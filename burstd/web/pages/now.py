"""What there is now: alarms, money per hour, pools, Slurm and the clouds, why jobs wait."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.routers.status import get_status
from burstd.web.rendering import PageDep

router = APIRouter()


@router.get("/")
def now_page(page: PageDep) -> HTMLResponse:
    """As ``burstctl status``."""
    return page.render("now.html", "Now", status_view=get_status(page.caller, page.backend))
