"""From a template and values to a page. What goes into a template is escaped; a name that is missing is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from burstd.api.answers import text
from burstd.api.answers.base import utc_time
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import BackendDep, CallerDep
from burstd.api.routers.status import STALE_S
from burstd.domain.snapshot import Unavailable
from burstd.web.static_files import static_file

NAVIGATION = (("/", "Now"),)
"""Address and name of each page that the head of every page leads to."""
PREFIX_HEADER = "x-forwarded-prefix"
"""What stands before every address, where a proxy shows the pages under a path of its own: ``/pun/sys/burstd``."""
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+){1,8}")
_UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_RETRY_S = 5
"""After this time a browser asks again for a page that could not be had."""
_TITLES = {403: "Not allowed", 404: "Not found", 409: "Refused", 422: "Not understood", 503: "Not now"}


class PageRenderer:
    """The templates, compiled once."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("burstd.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            finalize=_shown,
        )
        self._environment.filters |= {
            "money": text.money_text,
            "money_sums": text.money_sums_text,
            "size": text.size_text,
            "plural": text.plural,
            "duration": text.duration_text,
            "rough_duration": text.rough_duration_text,
            "ago": text.ago,
            "remaining": text.remaining_text,
            "abbreviated": text.abbreviated_list,
            "moment": moment,
        }
        self._environment.globals |= {"navigation": NAVIGATION}

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """A page. ``caller`` and ``freshness`` must be in the context."""
        prefix = url_prefix(request)
        path = request.url.path
        html = self._environment.get_template(template).render(
            url=lambda address: prefix + quote(address, safe="/?=&%+:,"),
            static=lambda name: f"{prefix}/static/{name}?v={static_file(name).version}",
            path=path,
            here=prefix + path + (f"?{request.url.query}" if request.url.query else ""),
            **context,
        )
        return HTMLResponse(html, status)

    def error_page(self, request: Request, status: int, sentence: str) -> HTMLResponse:
        """A refusal or failure as a page; one that passes by itself is asked for again by the browser."""
        title = _TITLES.get(status, "It failed")
        page = self.page(request, "error.html", status, caller=None, freshness=None, title=title, sentence=sentence)
        page.headers["cache-control"] = "no-store"
        if status == 503 and request.method == "GET":
            page.headers["refresh"] = str(_RETRY_S)
        return page


def url_prefix(request: Request) -> str:
    """The path under which a proxy shows the pages; empty where it is the root, or is no plain path."""
    found = request.headers.get(PREFIX_HEADER, "")
    return found if _PREFIX.fullmatch(found) else ""


def _shown(value: object) -> object:
    """Without characters that no browser shows, and halves of pairs, which UTF-8 cannot bear."""
    return _UNSHOWN.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def moment(then: datetime | None, now: datetime) -> Markup:
    """``<time>``: the head's local time, with the exact one for whoever asks; empty where there is none."""
    if then is None:
        return Markup()
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        then.isoformat(timespec="seconds"), text.local_time_text(then, now)
    )


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old that is what a page shows."""

    now: datetime
    seen: datetime | None
    """When the loop observed; None: not since burstd's start."""
    warnings: tuple[str, ...]
    """Sentences on what cannot be read, or is old."""


def freshness_of(backend: Backend) -> Freshness:
    """As of the last whole loop."""
    now, latest = backend.now(), backend.latest_loop()
    if latest is None:
        return Freshness(utc_time(now), None, ("burstd has just started and has not read Slurm and the clouds yet.",))
    snapshot = latest[0]
    warnings = []
    if now - snapshot.now > STALE_S:
        warnings.append(f"burstd looked {text.duration_text(now - snapshot.now)} ago: all of this may have changed.")
    parts: list[tuple[str, object]] = [("Slurm", snapshot.slurm)]
    parts += [(f"Provider {name}", cloud.instances) for name, cloud in sorted(snapshot.clouds.items())]
    for name, part in parts:
        if isinstance(part, Unavailable):
            last = f"last read {text.duration_text(now - part.since)} ago" if part.since else "never read so far"
            warnings.append(f"{name} cannot be read ({last}): {part.error}")
    return Freshness(utc_time(now), utc_time(snapshot.now), tuple(warnings))


@dataclass(frozen=True, slots=True)
class Page:
    """One request for a page: who asks, and how it is answered."""

    request: Request
    caller: Caller
    backend: Backend

    def render(self, template: str, title: str, status: int = 200, **context: Any) -> HTMLResponse:
        """The page; its template has ``caller``, ``freshness``, ``now``, ``path``, ``url()`` and ``static()`` too."""
        renderer: PageRenderer = self.request.app.state.page_renderer
        freshness = freshness_of(self.backend)
        return renderer.page(
            self.request, template, status, caller=self.caller, freshness=freshness, now=freshness.now, title=title,
            **context,
        )  # fmt: skip


def _page(request: Request, caller: CallerDep, backend: BackendDep) -> Page:
    return Page(request, caller, backend)


PageDep = Annotated[Page, Depends(_page)]
"""In a route: ``page: PageDep``, then ``return page.render("now.html", "Now", ...)``."""
