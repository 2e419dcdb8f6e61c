"""Puts the pages into an application of the control interface."""

from __future__ import annotations

from fastapi import FastAPI

from burstd.api.answers.forecast import ForecastView
from burstd.api.answers.history import HistoryView
from burstd.api.answers.plan import BillView
from burstd.web import static_files
from burstd.web.forms import FormTokens
from burstd.web.middleware import CompressionMiddleware, PageMiddleware
from burstd.web.minute_cache import MinuteCache
from burstd.web.pages import acts, clouds, compare, costs, history, jobs, nodes, now, policies, projects, queue
from burstd.web.rendering import PageRenderer, PageUnchanged, unchanged_response

PAGES = (now, queue, nodes, jobs, projects, compare, costs, history, policies, clouds, acts)
"""The modules of the pages, each with a router; ``compare`` before ``costs``, whose files have any other name."""


def install_pages(app: FastAPI) -> None:
    """Adds the pages, their files, and the headers that go with them."""
    renderer = PageRenderer()
    app.state.page_renderer = renderer
    app.state.form_tokens = FormTokens()
    app.state.bills = MinuteCache[BillView]()
    app.state.forecasts = MinuteCache[ForecastView]()
    app.state.histories = MinuteCache[HistoryView]()
    for module in (*PAGES, static_files):
        app.include_router(module.router, include_in_schema=False)
    app.add_exception_handler(PageUnchanged, unchanged_response)
    app.add_middleware(PageMiddleware, renderer=renderer)
    app.add_middleware(CompressionMiddleware)
