"""Projects: what each has, is to have, and borrows."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.routers.projects import get_project, get_projects
from burstd.web.listing import PageNumber, list_page
from burstd.web.rendering import PageDep

router = APIRouter()


@router.get("/projects")
def projects_page(page: PageDep, *, number: PageNumber = 1) -> HTMLResponse:
    """As ``burstctl project list``."""
    found = get_projects(page.caller, page.backend)
    listing = list_page(found.projects, number, "/projects", {})
    return page.render("projects.html", "Projects", listing=listing, accounting_error=found.accounting_error)


@router.get("/projects/{name}")
def project_page(page: PageDep, name: str, *, number: PageNumber = 1) -> HTMLResponse:
    """As ``burstctl project show``."""
    detail = get_project(name, page.caller, page.backend)
    listing = list_page(detail.jobs, number, f"/projects/{name}", {})
    return page.render("project.html", f"Project {name}", detail=detail, project=detail.project, listing=listing)
