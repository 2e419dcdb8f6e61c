"""From a template and values to a page. What goes into a template is escaped; a name that is missing is an error."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from burstd.api.answers import text
from burstd.api.answers.base import utc_time
from burstd.api.answers.forecast import ForecastView
from burstd.api.answers.plan import BillView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import BackendDep, CallerDep, require_latest_loop
from burstd.api.routers.forecast import forecast_view
from burstd.api.routers.status import STALE_S, get_bill
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.snapshot import Unavailable
from burstd.domain.units import size_text
from burstd.runtime.precedence import DecisionPrecedence
from burstd.web.filters import PAGE_FILTERS
from burstd.web.minute_cache import MinuteCache
from burstd.web.node_list import NodeEntry, node_entries
from burstd.web.static_files import static_file

NAVIGATION = (
    ("/", "Now"),
    ("/queue", "Queue"),
    ("/nodes", "Nodes"),
    ("/gpus", "GPUs"),
    ("/projects", "Projects"),
    ("/costs", "Costs"),
    ("/history", "History"),
    ("/policies", "Policies"),
    ("/clouds", "Clouds"),
)
"""Address and name of each page that the head of every page leads to."""
ADMIN_PAGES = frozenset({"/policies"})
"""Those of them that are for administrators only."""
PREFIX_HEADER = "x-forwarded-prefix"
"""What stands before every address, where a proxy shows the pages under a path of its own: ``/pun/sys/burstd``."""
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+){1,8}")
_UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_SAME_S = 15.0
"""So long a page is taken to be the same while no loop has ended."""
_ASKED_ONCE = frozenset({"what_if"})
"""Arguments of an address for what is worked out once: a page that is kept fresh does not ask for that again."""
_PARTS_AT_A_TIME = 50
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
            "size": size_text,
            "plural": text.plural,
            "duration": text.duration_text,
            "rough_duration": text.rough_duration_text,
            "ago": text.ago,
            "remaining": text.remaining_text,
            "abbreviated": text.abbreviated_list,
            "moment": moment,
            **PAGE_FILTERS,
        }
        self._environment.globals |= {"navigation": NAVIGATION, "admin_pages": ADMIN_PAGES}

    def page(
        self,
        request: Request,
        template: str,
        status: int = 200,
        precedence: DecisionPrecedence | None = None,
        **context: Any,
    ) -> HTMLResponse:
        """A page. ``caller`` and ``freshness`` must be in the context."""
        prefix = url_prefix(request)
        path, arguments = request.url.path, request.url.query.split("&")
        query = "&".join(one for one in arguments if one.partition("=")[0] not in _ASKED_ONCE)
        parts = self._environment.get_template(template).generate(
            url=lambda address, **query: prefix + _address(address, query),
            static=lambda name: f"{prefix}/static/{name}?v={static_file(name).version}",
            path=path,
            here=prefix + path + (f"?{query}" if query else ""),
            **context,
        )
        return HTMLResponse(
            "".join(parts if precedence is None else precedence.slices(parts, _PARTS_AT_A_TIME)), status
        )

    def error_page(self, request: Request, status: int, sentence: str) -> HTMLResponse:
        """A refusal or failure as a page; one that passes by itself is asked for again by the browser."""
        title = _TITLES.get(status, "It failed")
        page = self.page(request, "error.html", status, caller=None, freshness=None, title=title, sentence=sentence)
        page.headers["cache-control"] = "no-store"
        if status == 503 and request.method == "GET":
            page.headers["refresh"] = str(_RETRY_S)
        return page


def _address(address: str, query: Mapping[str, object]) -> str:
    """Of a page; in ``query`` any text may stand, as the '+' of ``123+1``, which in an address would be a space."""
    page = quote(address, safe="/?=&%+:,", errors="replace")
    return f"{page}?{urlencode(query, errors='replace')}" if query else page


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
    tag: str
    """ETag: the page is the same as long as this is."""
    precedence: DecisionPrecedence

    @property
    def nodes(self) -> Sequence[NodeEntry]:
        """All nodes of the last snapshot, pool by pool, then the site's own. Raises ApiError before the first."""
        return self.backend.once_per_loop(require_latest_loop(self.backend), node_entries)

    def bill(self, group: BillGrouping, since: float | None = None, until: float | None = None) -> BillView:
        """What the caller may see of a bill, by default this month's; at most a minute old."""
        bills: MinuteCache[BillView] = self.request.app.state.bills
        made = partial(get_bill, self.caller, self.backend, since, until, group)
        return bills.get((self.caller, group, since, until), self.backend.now(), made)

    def forecast(self) -> ForecastView:
        """The end of the month, for administrators; at most a minute old."""
        forecasts: MinuteCache[ForecastView] = self.request.app.state.forecasts
        return forecasts.get("", self.backend.now(), partial(forecast_view, self.backend))

    def render(self, template: str, title: str, status: int = 200, **context: Any) -> HTMLResponse:
        """The page; its template has ``caller``, ``freshness``, ``now``, ``path``, ``url()`` and ``static()`` too."""
        renderer: PageRenderer = self.request.app.state.page_renderer
        freshness = freshness_of(self.backend)
        page = renderer.page(
            self.request, template, status, self.precedence, caller=self.caller, freshness=freshness,
            now=freshness.now, title=title, tag=self.tag, **context,
        )  # fmt: skip
        page.headers["etag"] = self.tag
        return page


class PageUnchanged(Exception):
    """The browser has this page already: it is answered with 304, and nothing is worked out."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


def unchanged_response(_: Request, error: Exception) -> Response:
    """The answer of PageUnchanged."""
    if not isinstance(error, PageUnchanged):
        raise error
    return Response(status_code=304, headers={"etag": error.tag})


def _page(request: Request, caller: CallerDep, backend: BackendDep) -> Page:
    tag = _tag(request, caller, backend)
    if request.method == "GET" and request.headers.get("if-none-match") == tag:
        raise PageUnchanged(tag)
    precedence = backend.precedence()
    precedence.wait()
    return Page(request, caller, backend, tag, precedence)


def _tag(request: Request, caller: Caller, backend: Backend) -> str:
    """Of one page for one caller, as of one loop; a new one every _SAME_S seconds, as it shows ages."""
    latest = backend.latest_loop()
    seen = latest[0].now if latest is not None else 0.0
    started = backend.daemon_info().started
    parts = (started, seen, int((backend.now() - seen) // _SAME_S), caller, url_prefix(request), str(request.url))
    return f'"{hashlib.sha256(repr(parts).encode()).hexdigest()[:20]}"'


PageDep = Annotated[Page, Depends(_page)]
"""In a route: ``page: PageDep``, then ``return page.render("now.html", "Now", ...)``."""
