"""The thread that renders the metrics and the targets, once a loop at most and never while the loop waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import structlog

from burstd.api.server import HttpServerThread, OptionalServer
from burstd.db import StoreError, StoreReader
from burstd.domain.clock import Clock
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot
from burstd.metrics.counters import Counters
from burstd.metrics.exposition import Exposition, render
from burstd.metrics.server import MAX_CONNECTIONS, MetricsApp, listen, metrics_protocol
from burstd.metrics.targets import TargetsFile
from burstd.runtime.precedence import DecisionPrecedence
from burstd.settings.metrics import MetricsSettings

REST_S = 1.0
"""Between two renderings, ..."""
REST_FACTOR = 10.0
"""... and so many times as long as the last one took, so that the deciding thread has the interpreter to itself, ..."""
MAX_REST_S = 3.0
"""... but not longer: Prometheus is to know of a node within five seconds."""
NEXT_LOOP_S = 1.0
"""For the end of a loop that may be under way after the rest: rendering begins in the pause between two."""
ZEROS_S = 120.0
"""So long after the start the record is counted though nobody has scraped."""
MAX_WAIT_S = 1.0
"""For so long, all told, the work after a loop waits for decisions of the next."""

log = structlog.get_logger(__name__)


class MetricsService:
    """Answers scrapes and keeps the file of targets between ``start`` and ``stop``; once."""

    def __init__(
        self,
        settings: Callable[[], MetricsSettings],
        counters: Counters,
        reader: StoreReader,
        clock: Clock,
        latest: Callable[[], tuple[Snapshot, Plan] | None],
        between_decisions: threading.Event,
        version: str,
    ) -> None:
        """``settings``: those in force; of where to listen and to write, those of now count."""
        self._settings, self._counters, self._reader, self._clock = settings, counters, reader, clock
        self._latest, self._between_decisions, self._version = latest, between_decisions, version
        self._started = clock.now()
        self._exposition = Exposition()
        self._scraped = False
        """Whether a scrape has had what a snapshot brings about: series of which nothing is counted yet."""
        self._seen: Snapshot | None = None
        self._due = threading.Event()
        self._ending = threading.Event()
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._stack = ExitStack()
        where = settings()
        self._targets = TargetsFile(where.file_sd) if where.file_sd is not None else None

        def make_server() -> HttpServerThread:
            app, protocol = MetricsApp(self._body), metrics_protocol()
            return HttpServerThread(app, protocol, "metrics-http", listen(where.listen), backlog=MAX_CONNECTIONS)

        self._server = OptionalServer("metrics", make_server) if where.listen else None

    def start(self) -> None:
        """Returns once scrapes are answered or ``alarms`` says why not; does nothing where [metrics] is empty.

        Raises StoreError.
        """
        if self._server is None and self._targets is None:
            return
        self._counters.read_record(self._reader)
        self._render(DecisionPrecedence(self._between_decisions, MAX_WAIT_S))
        if self._server is not None:
            self._server.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends both threads. Harmless when repeated."""
        self._ending.set()
        self._due.set()
        if self._thread.is_alive():
            self._thread.join(REST_S)
        if self._server is not None:
            self._server.stop()

    def loop_ended(self, seconds: float) -> None:
        """A loop is over, and took so long; called in the deciding thread."""
        self._counters.add_loop(seconds)
        self._due.set()

    def alarms(self) -> tuple[str, ...]:
        """What needs a person; from any thread."""
        return tuple(filter(None, (self._fault, *(part.alarm for part in (self._server, self._targets) if part))))

    def _body(self, compress: bool) -> bytes:
        self._scraped = self._scraped or self._exposition.seen_at is not None
        return self._exposition.body(self._clock.now(), self._started, compress=compress)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._due.wait()
            self._due.clear()
            begun = time.monotonic()
            try:
                self.update()
                self._fault = ""
            except StoreError as error:
                self._fault = f"the record cannot be read for the metrics: {error}"
            except Exception as error:
                # Metrics must not end for one bad value; who scrapes sees by the age of the snapshot that they stand.
                if not self._fault:
                    log.exception("the metrics could not be rendered")
                self._fault = f"the metrics could not be rendered: {error!r}; see journalctl -u burstd"
            self._ending.wait(min(max(REST_S, REST_FACTOR * (time.monotonic() - begun)), MAX_REST_S))
            if self._due.is_set() and not self._ending.is_set():
                self._due.clear()
                self._due.wait(NEXT_LOOP_S)
                self._due.set()

    def update(self) -> None:
        """Takes the last loop's snapshot and what is on record. Raises StoreError."""
        latest, precedence = self._latest(), DecisionPrecedence(self._between_decisions, MAX_WAIT_S)
        if latest is not None and latest[0] is not self._seen:
            self._seen = latest[0]
            if self._targets is not None:
                nodes = (*latest[0].claims, *latest[0].quarantined_claims)
                self._targets.update(nodes, self._settings().exporter_ports, precedence)
            self._counters.add_snapshot(latest[0], precedence)
            self._counters.add_mistakes(*latest, precedence)
        precedence.wait()
        try:
            # Prometheus sees no increase of a counter that begins as 1, or that is 1 before and after a restart.
            if self._scraped or self._clock.now() - self._started >= ZEROS_S:
                self._counters.read_record(self._reader)
        finally:
            self._render(precedence)

    def _render(self, precedence: DecisionPrecedence) -> None:
        self._exposition = render(self._counters.registry, self._latest(), self._version, precedence)
