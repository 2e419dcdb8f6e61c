"""What each view of ``burstctl top`` asks the daemon for, and its lines."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import ValidationError
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from burstd.api.answers.base import AnswerView
from burstd.api.answers.history import HistoryView
from burstd.api.answers.job_use import JobUseView
from burstd.api.answers.jobs import ExplainView, JobsView, JobView
from burstd.api.answers.nodes import EventsView, NodeDetailView, NodesView, NodeView
from burstd.api.answers.plan import BillView
from burstd.api.answers.status import StatusView
from burstd.api.answers.text import abbreviated_list, elapsed_text, local_time_text, money_sums_text, money_text
from burstd.cli.commands.bill import print_bill
from burstd.cli.commands.history import DEFAULT_SERIES, print_series
from burstd.cli.commands.job import print_explanation
from burstd.cli.commands.job_use import print_use
from burstd.cli.commands.node import print_node
from burstd.cli.commands.status import breaker_text, print_status
from burstd.cli.output import STYLES, ConsoleOutput
from burstd.cli.plain_text import safe_text
from burstd.cli.session import ApiClient, Params

A = TypeVar("A", bound=AnswerView)
REQUEST_TIMEOUT_S = 5.0
_EVENTS = 100
_MARKS = {
    "used": "\u25cf",
    "idle": "\u25d0",
    "free": "\u25cb",
    "starting": "\u2026",
    "out of service": "\u2715",
    "asleep": "\u00b7",
}
_MARK_STYLES = {
    "used": "green",
    "idle": "yellow",
    "free": "cyan",
    "starting": "cyan",
    "out of service": "bold red",
    "asleep": "dim",
}
_ASCII_MARKS = str.maketrans(
    {
        "\u25cf": "#",
        "\u25d0": "!",
        "\u25cb": "o",
        "\u2026": "~",
        "\u2715": "x",
        "\u00b7": ".",
        **dict(zip("▁▂▃▄▅▆▇█", "_-=+*%#@", strict=True)),
    }
)


class RequestRefused(Exception):
    """The daemon answers, but not with what was asked for; the message says why."""


class NotOnRecord(RequestRefused):
    """burstd knows nothing of it."""


@dataclass(frozen=True, slots=True)
class Window:
    """What part of a list is wanted. ``subject``: a job's or node's name, in views of one."""

    limit: int
    width: int
    offset: int = 0
    search: str = ""
    sort: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line. ``subject``: the job or node that Enter opens; empty: none."""

    text: Text
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list of ``total`` rows."""

    rows: Sequence[Row]
    total: int
    head: Text = field(default_factory=Text)


@dataclass(frozen=True, slots=True)
class View:
    """One view. ``opens``: the view of one row; ``sorts``: what the daemon can order it by."""

    title: str
    load: Callable[[ApiClient, StatusView, Window], Page]
    opens: str = ""
    sorts: Sequence[str] = ("",)
    order: str = "by"
    """What goes before the chosen one of ``sorts``."""


def fetch(burstd: ApiClient, model: type[A], path: str, params: Params | None = None) -> A:
    """An answer with its types. Raises DaemonUnreachable, RequestRefused."""
    status, answer = burstd.request_status("GET", path, params=params, timeout_s=REQUEST_TIMEOUT_S)
    if status >= 400:
        raise (NotOnRecord if status == 404 else RequestRefused)(
            str(answer.get("error", f"The daemon answered {status}."))
        )
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        raise RequestRefused(f"The answer to {path} cannot be shown: {error.errors()[0]['msg']}") from None


def ascii_text(line: Text) -> Text:
    """For terminals without UTF-8; each cell stays where it is."""
    plain = line.plain.translate(_ASCII_MARKS).encode("ascii", "replace").decode()
    return Text(plain, line.style, spans=line.spans) if plain != line.plain else line


class _Capture(ConsoleOutput):
    """Lines of what a command prints."""

    def __init__(self, width: int) -> None:
        self._written = io.StringIO()
        self._console = Console(
            file=self._written, highlight=False, emoji=False, markup=False, width=width, height=1000,
            force_terminal=True, color_system="standard", no_color=False, legacy_windows=False,
        )  # fmt: skip

    def lines(self) -> list[Text]:
        return [Text.from_ansi(line.rstrip()) for line in self._written.getvalue().splitlines()]


def _printed(window: Window, draw: Callable[[ConsoleOutput], None]) -> Page:
    capture = _Capture(window.width)
    draw(capture)
    lines = [line for line in capture.lines() if window.search.lower() in line.plain.lower()]
    shown = lines[window.offset : window.offset + window.limit]
    return Page([Row(line) for line in shown], len(lines))


def _cells(widths: Sequence[int], cells: Sequence[str | Text], width: int) -> Text:
    """One line: each cell in so many columns, the last one in what is left."""
    line = Text(no_wrap=True)
    for cell, columns in zip(cells, (*widths, 0), strict=True):
        text = cell if isinstance(cell, Text) else Text(safe_text(cell).replace("\n", " "))
        room = columns - 1 if columns else max(1, width - cell_len(line.plain))
        if cell_len(text.plain) > room:
            text.truncate(room, overflow="crop")
        line.append_text(text)
        if columns:
            line.append(set_cell_size("", columns - cell_len(text.plain)))
    return line


def _state(word: str) -> Text:
    return Text(safe_text(word), STYLES.get(word, ""))


def _status(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del burstd
    return _printed(window, lambda out: print_status(out, status))


_JOB_WIDTHS = (13, 10, 11, 12)
_START_WIDTH = 10


def _jobs(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del status
    answer = fetch(burstd, JobsView, "/jobs", _list_params(window))
    # Slurm plans the start of few jobs; 80 columns are few.
    starts = ("START",) if any(job.start for job in answer.jobs) else ()
    widths = (*_JOB_WIDTHS, *(_START_WIDTH for _ in starts))
    head = _cells(widths, ("JOB", "USER", "STATE", "WAITS", *starts, "WHY OR WHERE"), window.width)
    return Page([_job_row(job, answer, widths, window.width) for job in answer.jobs], answer.total, head)


def _job_row(job: JobView, answer: JobsView, widths: Sequence[int], width: int) -> Row:
    number = f"{job.id} (x{job.tasks})" if job.tasks > 1 else job.id
    start = local_time_text(job.start, answer.now) if job.start else ""
    start = start.rpartition(":")[0] if start.count(":") == 2 and " " not in start else start.rpartition(" ")[0]
    cells = (
        number,
        job.user,
        _state(job.verdict or job.state.lower()),
        elapsed_text(job.submitted, answer.now) if job.waiting_s is not None else "",
        *((start,) if len(widths) > len(_JOB_WIDTHS) else ()),
        job.reason or abbreviated_list(job.nodes),
    )
    return Row(_cells(widths, cells, width), job.id)


def _list_params(window: Window) -> dict[str, str | int | float]:
    return {"limit": window.limit, "offset": window.offset, "search": window.search, "sort": window.sort}


_NODE_WIDTHS = (14, 12, 12, 12)


def _nodes(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del status
    answer = fetch(burstd, NodesView, "/nodes", {**_list_params(window), "own": "true"})
    head = _cells(_NODE_WIDTHS, ("NODE", "STATE", "SINCE", "COST", "FOR"), window.width)
    return Page([_node_row(node, answer, window.width) for node in answer.nodes], answer.total, head)


def _node_row(node: NodeView, answer: NodesView, width: int) -> Row:
    why = node.reason or (node.held.reason if node.held else "")
    purpose = f"{abbreviated_list(node.jobs, 3)}: {why}" if node.jobs and why else why or abbreviated_list(node.jobs)
    since = elapsed_text(node.since, answer.now) if node.since else ""
    cells = (node.slot, _state(node.state), since, money_text(node.cost), purpose)
    return Row(_cells(_NODE_WIDTHS, cells, width), node.slot)


def _gpus(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del status
    answer = fetch(burstd, NodesView, "/nodes", {**_list_params(window), "all": "true", "gpus": "true", "own": "true"})
    head = Text.assemble(_cells((14, 12), ("NODE", "STATE", "GPUS "), 31))
    for state, mark in _MARKS.items():
        head.append(f" {mark}", _MARK_STYLES[state]).append(f" {state.partition(' ')[0]}")
    rows = []
    for node in answer.nodes:
        marks = Text()
        for gpu in node.gpus:
            marks.append(f"{_MARKS.get(gpu, safe_text(gpu))} ", _MARK_STYLES.get(gpu, "yellow"))
        rows.append(Row(_cells((14, 12), (node.slot, _state(node.state), marks), window.width), node.slot))
    return Page(rows, answer.total, head)


def _money(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    bill = fetch(burstd, BillView, "/bill", {"group": "user"})

    def draw(out: ConsoleOutput) -> None:
        out.line(("Now", "bold"), f": {money_sums_text(status.cost_per_hour)} an hour")
        out.table(("POOL", "AN HOUR>"), [(p.name, money_sums_text(p.cost_per_hour)) for p in status.pools], indent=2)
        out.blank()
        print_bill(out, bill)

    return _printed(window, draw)


def _alarms(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    events = fetch(burstd, EventsView, "/events", {"limit": _EVENTS}).events if status.you.admin else []

    def draw(out: ConsoleOutput) -> None:
        for alarm in status.alarms:
            out.line((f"! {alarm}", "bold red"))
        for breaker in (b for provider in status.providers for b in provider.breakers):
            out.line((breaker_text(breaker, status.now), "yellow"))
        if not status.alarms:
            out.line("No alarm.")
        if events:
            out.blank()
            out.table(("WHEN", "SUBJECT", "", "WHY*"), [
                (local_time_text(e.time, status.now), e.node or e.subject, e.new, e.reason)
                for e in sorted(events, key=lambda e: -e.seq)
            ])  # fmt: skip

    return _printed(window, draw)


_SPANS_S = {"hour": 3600, "day": 86400}


def _history(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    since = status.now.timestamp() - _SPANS_S[window.sort]
    query = urlencode([("since", since), *(("series", name) for name in DEFAULT_SERIES)])
    answer = fetch(burstd, HistoryView, f"/history?{query}")
    return _printed(window, lambda out: print_series(out, answer, max(8, window.width - _SERIES_TEXT)))


_SERIES_TEXT = 70
"""Columns of a line of the history before its bars."""


def _job(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del status
    # What would start it is worked out by the thread that decides: burstctl explain asks for that, once.
    answer = fetch(burstd, ExplainView, f"/jobs/{window.subject}/explanation", {"what_if": "false"})
    try:
        use = fetch(burstd, JobUseView, f"/jobs/{window.subject}/use")
    except NotOnRecord:
        use = None

    def draw(out: ConsoleOutput) -> None:
        print_explanation(out, answer)
        if use is not None:
            print_use(out, use)

    return _printed(window, draw)


def _node(burstd: ApiClient, status: StatusView, window: Window) -> Page:
    del status
    answer = fetch(burstd, NodeDetailView, f"/nodes/{window.subject}")
    return _printed(window, lambda out: print_node(out, answer))


VIEWS: Mapping[str, View] = {
    "status": View("status", _status),
    "jobs": View("jobs", _jobs, "job", ("priority", "waiting", "user")),
    "nodes": View("nodes", _nodes, "node", ("", "state")),
    "gpus": View("gpus", _gpus, "node", ("", "state")),
    "money": View("money", _money),
    "alarms": View("alarms", _alarms),
    "history": View("history", _history, sorts=tuple(_SPANS_S), order="last"),
    "job": View("job", _job),
    "node": View("node", _node),
}
TABS = ("status", "jobs", "nodes", "gpus", "money", "alarms", "history")


def load(burstd: ApiClient, name: str, window: Window) -> tuple[StatusView, Page]:
    """The state of the daemon, and a page of this view. Raises DaemonUnreachable, RequestRefused.

    A window behind the end of a list that has become shorter is moved to its end.
    """
    status = fetch(burstd, StatusView, "/status")
    page = VIEWS[name].load(burstd, status, window)
    if not page.rows and page.total:
        page = VIEWS[name].load(burstd, status, replace(window, offset=max(0, page.total - window.limit)))
    return status, page
