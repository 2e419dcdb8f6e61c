"""The program on the screen: keys, the time between refreshes, what is shown while the daemon does not answer."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult

from burstd.api.answers.status import StatusView
from burstd.api.answers.text import elapsed_text, local_time_text, money_sums_text, plural
from burstd.cli.plain_text import safe_text
from burstd.cli.session import ApiClient, DaemonUnreachable
from burstd.cli.top.driver import ErasingDriver
from burstd.cli.top.sheet import Sheet
from burstd.cli.top.views import TABS, VIEWS, Page, RequestRefused, Row, Window, ascii_text, load

HELP = """\
1 to 7, Tab      the views: status, jobs, nodes, gpus, money, alarms, history
Up, Down, k, j   one line; PgUp, PgDn a page; Home, End, g, G to the ends
Enter            why the job starts or not, what it used; the node's history
Esc, Backspace   back; takes the filter away
/                show only rows with these letters; Enter ends the input
s                another order; of the history: the last hour or day
Space, p         pause, and go on
r                refresh now
q                quit

burstctl top changes nothing: burstctl scale, hold and node drain do."""
_FIXED_LINES = 4
"""Title, names of the views, head of the list, last line."""


class TopApp(App[None]):
    """Requests run one at a time in a thread beside the screen, which never waits for them."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; }"

    def __init__(self, burstd: ApiClient, interval_s: float, *, ascii_only: bool = False) -> None:
        super().__init__(driver_class=ErasingDriver, ansi_color=True)
        self.animation_level = "none"
        self.sheet = Sheet()
        self._burstd = burstd
        self._interval_s = interval_s
        self._ascii_only = ascii_only
        self._view, self._subject = TABS[0], ""
        self._offset, self._cursor = 0, 0
        self._search, self._typing = "", False
        self._orders = dict.fromkeys(VIEWS, 0)
        self._paused = self._help = False
        self._status: StatusView | None = None
        self._page: Page | None = None
        self._error = self._refusal = ""
        self._failed_since: datetime | None = None
        self._loading = self._stale = False
        self._back: tuple[str, int, int, str] | None = None

    def compose(self) -> ComposeResult:
        """One widget for the whole screen."""
        yield self.sheet

    def on_mount(self) -> None:
        """Begins to refresh."""
        self.set_interval(self._interval_s, self._tick)

    def on_resize(self) -> None:
        """Other rows fit."""
        self.call_after_refresh(self._reload)

    def _tick(self) -> None:
        if not self._paused:
            self._reload()

    @property
    def _room(self) -> int:
        return max(1, self.size.height - _FIXED_LINES)

    def _reload(self) -> None:
        """Asks for what the screen shall show; at once, or when the request under way has ended."""
        if self._loading:
            self._stale = True
        else:
            self._loading, self._stale = True, False
            sorts = VIEWS[self._view].sorts
            window = Window(
                self._room, self.size.width, self._offset, self._search,
                sorts[self._orders[self._view] % len(sorts)], self._subject,
            )  # fmt: skip
            self.run_worker(partial(self._load, self._view, window), thread=True, exit_on_error=True)
        self._draw()

    def _load(self, view: str, window: Window) -> None:
        """In a thread of its own."""
        status = page = None
        error = refusal = ""
        try:
            status, page = load(self._burstd, view, window)
        except DaemonUnreachable as reason:
            error = str(reason).partition("\n")[0]
        except RequestRefused as reason:
            refusal = str(reason)
        self.call_from_thread(self._loaded, view, window, status, page, error, refusal)

    def _loaded(
        self, view: str, window: Window, status: StatusView | None, page: Page | None, error: str, refusal: str
    ) -> None:
        self._loading = False
        self._error = error
        self._failed_since = (self._failed_since or datetime.now().astimezone()) if error else None
        self._status = status or self._status
        if not error and (view, window.subject, window.search) == (self._view, self._subject, self._search):
            self._page, self._refusal = page, refusal
            if page is not None and window.offset == self._offset:
                self._offset = max(0, min(self._offset, page.total - 1 if page.rows else 0))
                self._cursor = max(0, min(self._cursor, len(page.rows) - 1))
        if self._stale:
            self._reload()
        else:
            self._draw()

    def _draw(self) -> None:
        lines = [self._title(), self._tabs()]
        if self._help:
            lines += [Text(), *(Text(line) for line in HELP.splitlines())]
        elif self._refusal:
            lines += [Text(), Text(safe_text(self._refusal), "yellow")]
        elif self._page is not None:
            head = self._page.head.copy()
            head.stylize("bold")
            lines += [head, *(self._row(y, row) for y, row in enumerate(self._page.rows[: self._room]))]
        lines = lines[: self.size.height - 1]
        lines += [Text()] * (self.size.height - 1 - len(lines))
        lines.append(self._last_line())
        self.sheet.show([ascii_text(line) for line in lines] if self._ascii_only else lines)

    def _row(self, y: int, row: Row) -> Text:
        if y != self._cursor or not VIEWS[self._view].opens:
            return row.text
        line = row.text.copy()
        line.append(" " * max(0, self.size.width - cell_len(line.plain)))
        line.stylize("reverse")
        return line

    def _title(self) -> Text:
        status = self._status
        if self._error and self._failed_since is not None:
            now = datetime.now().astimezone()
            old = f"; this is of {local_time_text(status.now, now)}" if status else ""
            ago, since = elapsed_text(self._failed_since, now), local_time_text(self._failed_since, now)
            return Text(safe_text(f"no answer since {since} ({ago}){old}: {self._error}"), "bold red reverse")
        if status is None:
            return Text("burstd is asked ...")
        alarms = plural(len(status.alarms), "alarm") if status.alarms else "no alarm"
        title = Text.assemble(
            (f"burstd on {safe_text(status.daemon.cluster)}", "bold"),
            f" {status.now.astimezone():%H:%M:%S}, {money_sums_text(status.cost_per_hour)}/h, ",
            (alarms, "bold red" if status.alarms else ""),
            f", {plural(status.waiting.jobs, 'job')} waiting",
        )
        if status.daemon.paused:
            title.append(", on hold", "bold yellow")
        if self._paused:
            title.append(", PAUSED", "bold reverse")
        return title

    def _tabs(self) -> Text:
        tabs = Text()
        for number, name in enumerate(TABS, 1):
            here = name == self._view
            tabs.append(f"[{number} {name}]" if here else f" {number} {name} ", "bold" if here else "")
        if self._subject:
            tabs.append(f"  {self._view} {safe_text(self._subject)}", "bold")
        return tabs

    def _last_line(self) -> Text:
        if self._typing:
            return Text.assemble(("/", "bold"), safe_text(self._search), ("_", "bold"))
        page = self._page
        last = self._offset + len(page.rows) if page else 0
        shown = f"{self._offset + 1 if last else 0}-{last} of {page.total}" if page else ""
        sorts = VIEWS[self._view].sorts
        order = sorts[self._orders[self._view] % len(sorts)]
        parts = [
            shown,
            f"{VIEWS[self._view].order} {order}" if order else "",
            f"with {self._search!r}" if self._search else "",
        ]
        keys = "  ? help  / filter  s order  Enter open  q quit"
        return Text(safe_text(", ".join(filter(None, parts)) + keys), "dim")

    def on_key(self, event: events.Key) -> None:
        """All keys."""
        event.stop()
        if self._typing:
            self._type(event)
        elif self._help:
            self._help = False
        elif event.character and event.character in "1234567":
            self._switch(TABS[int(event.character) - 1])
        elif event.key in ("q", "ctrl+c"):
            self.exit()
            return
        else:
            self._act(event.key, event.character or "")
        self._draw()

    def _type(self, event: events.Key) -> None:
        if event.key == "enter":
            self._typing = False
        elif event.key == "escape":
            self._typing, self._search = False, ""
        elif event.key == "backspace":
            self._search = self._search[:-1]
        elif event.is_printable and event.character:
            self._search += event.character
        else:
            return
        self._offset = self._cursor = 0
        self._reload()

    def _act(self, key: str, character: str) -> None:
        total = self._page.total if self._page else 0
        moves = {
            "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._room, "pagedown": self._room, "home": -total,
            "g": -total, "end": total, "G": total,
        }  # fmt: skip
        if (step := moves.get(key, moves.get(character))) is not None:
            self._move(step, total)
        elif key in ("tab", "shift+tab"):
            here = TABS.index(self._view) if self._view in TABS else 0
            self._switch(TABS[(here + (1 if key == "tab" else -1)) % len(TABS)])
        elif key == "enter":
            self._open()
        elif key in ("escape", "backspace"):
            self._leave()
        elif character == "/":
            self._typing = True
        elif character == "?":
            self._help = True
        elif character == "s":
            self._orders[self._view] += 1
            self._reload()
        elif character == "r":
            self._reload()
        elif character in (" ", "p") and character:
            self._paused = not self._paused
            self._tick()

    def _move(self, step: int, total: int) -> None:
        """The cursor in views with rows to open, else the lines."""
        room, before = self._room, self._offset
        last_offset = max(0, total - room)
        if VIEWS[self._view].opens:
            at = max(0, min(self._offset + self._cursor + step, total - 1))
            if abs(step) >= room:
                self._offset = max(0, min(self._offset + step, last_offset))
            self._offset = max(min(self._offset, at), at - room + 1, 0)
            self._cursor = at - self._offset
        else:
            self._offset = max(0, min(self._offset + step, last_offset))
        if self._offset != before:
            self._reload()

    def _switch(self, view: str, subject: str = "") -> None:
        self._view, self._subject, self._search = view, subject, ""
        self._offset = self._cursor = 0
        self._page, self._refusal = None, ""
        self._reload()

    def _open(self) -> None:
        view = VIEWS[self._view].opens
        if view and self._page and self._cursor < len(self._page.rows):
            subject = self._page.rows[self._cursor].subject
            back = (self._view, self._offset, self._cursor, self._search)
            self._switch(view, subject)
            self._back = back

    def _leave(self) -> None:
        if self._subject and self._back is not None:
            view, offset, cursor, search = self._back
            self._switch(view)
            self._offset, self._cursor, self._search = offset, cursor, search
            self._reload()
        elif self._search:
            self._search = ""
            self._offset = self._cursor = 0
            self._reload()
