"""What the pages cost: ``python -m tests.bench.bench_web [--nodes 4000] [--jobs 10000] [--browser]``.

A made snapshot behind the real routes, on a socket. First each page: milliseconds of processor time of its first
answer after a loop and of the next, each the least of ROUNDS; the longest stretch of it in which the page does not
look whether a decision is being made; milliseconds from request to answer, median and worst of the first ones; KiB;
and, with ``--browser``, milliseconds until Chromium has drawn it. Then decisions one after another, each with a change
of the queue and a quarter of a second of rest, in turn without and with ten browsers that ask every five seconds as
htmx does: milliseconds of a decision, 50th to 99th percentile, and the processor time that all other threads of the
process took while it was made. That is what pages can have added, on a machine however busy: Python runs one thread at
a time. No page may queue a command: that would ask the deciding thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from threading import local

from burstd.api.backend import MAX_WAIT_S
from burstd.db import Store, StoreReader
from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.timeouts import Tuning
from burstd.runtime.precedence import DecisionPrecedence
from tests.api.fake_backend import STATE_ORDER, FakeBackend
from tests.api.world import FixedClock
from tests.web.served import CHROMIUM, serving
from tests.web.site import busy_site, site_policies

ROUNDS = 5
POLLED = (
    "/",
    "/queue",
    "/nodes",
    "/gpus?state=all",
    "/jobs/1000500",
    "/",
    "/queue?sort=user",
    "/projects",
    "/",
    "/clouds",
)
POLL_S, REST_S, TURN_S = 5.0, 0.25, 10.0
CLIENTS = """
import http.client, os, sys, threading, time
def poll(port, path, at):
    time.sleep(at)
    tag = ""
    link = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        time.sleep(float(sys.argv[3]))
        if not os.path.exists(sys.argv[2]):
            continue
        link.request("GET", path, headers={"if-none-match": tag} if tag else {})
        answer = link.getresponse(); answer.read(); tag = answer.headers.get("etag", "")
for n, path in enumerate(sys.argv[4:]):
    threading.Thread(target=poll, args=(int(sys.argv[1]), path, n * float(sys.argv[3]) / 10), daemon=True).start()
time.sleep(3600)
"""


class WatchedPrecedence(DecisionPrecedence):
    """Notes the longest processor time, in milliseconds, between two looks whether a decision is being made."""

    longest = 0.0
    threads = local()

    def wait(self) -> None:
        """As the page does."""
        gone = time.thread_time() - getattr(self.threads, "looked", time.thread_time())
        WatchedPrecedence.longest = max(WatchedPrecedence.longest, 1000 * gone)
        super().wait()
        self.threads.looked = time.thread_time()


class WatchedBackend(FakeBackend):
    """Whose pages are watched."""

    def precedence(self) -> DecisionPrecedence:
        """Of one answer."""
        return WatchedPrecedence(self.between_decisions, MAX_WAIT_S)


@contextmanager
def big_record(snapshot: Snapshot) -> Iterator[StoreReader]:
    """A database with the claims of a snapshot."""
    with tempfile.TemporaryDirectory(prefix="burstd-bench-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "burstd.db"
        with Store.open(path, FixedClock()) as store:
            planned = [replace(c, state=ClaimState.PLANNED, in_service_from=None) for c in snapshot.claims]
            store.make_claims(planned)
            for claim in snapshot.claims[:50]:
                for old, new in pairwise(STATE_ORDER):
                    if STATE_ORDER.index(new) > STATE_ORDER.index(claim.state):
                        break
                    store.transition_claim(claim.id, old, new, claim.reason)
        with StoreReader.open(path, FixedClock()) as reader:
            yield reader


def pages(snapshot: Snapshot) -> Sequence[str]:
    """An address of each page."""
    claim = snapshot.claims[0]
    return (
        "/", "/queue", "/queue?sort=user&page=50", "/nodes", "/nodes?state=all&page=20", "/gpus?state=all",
        f"/nodes/{claim.slot}", f"/jobs/{claim.jobs[0]}", "/jobs/1000500", "/projects", "/costs", "/costs?group=job",
        "/policies", "/clouds", "/clouds/sandbox?shown=all",
    )  # fmt: skip


def fetch(link: HTTPConnection, path: str) -> tuple[float, float, int]:
    """Milliseconds, those of processor time, and bytes."""
    begun, worked = time.perf_counter(), time.process_time()
    link.request("GET", path, headers={"accept": "text/html"})
    answer = link.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status}")
    return 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - worked), len(body)


def drawn(port: int, paths: Sequence[str]) -> dict[str, float]:
    """Milliseconds from navigation until two frames after the page has loaded, in Chromium, with a warm cache."""
    from playwright.sync_api import sync_playwright

    found: dict[str, float] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for path in paths:
            took = []
            for _ in range(3):
                page.goto(f"http://127.0.0.1:{port}{path}", wait_until="load")
                took.append(page.evaluate(
                    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame("
                    "() => done(performance.now()))))"
                ))  # fmt: skip
            found[path] = statistics.median(took)
        browser.close()
    return found


def measure_pages(backend: FakeBackend, port: int, *, browser: bool) -> None:
    """A line for each page."""
    assert backend.loop is not None
    paths = pages(backend.loop[0])
    link = HTTPConnection("127.0.0.1", port)
    seen = drawn(port, paths) if browser else {}
    heads = ("cpu", "next", "stretch", "median", "worst", "KiB", "drawn")
    sys.stdout.write(f"{'page':34}" + "".join(f" {head:>7}" for head in heads) + "\n")
    for path in paths:
        first, then, stretches = [], [], []
        for _ in range(ROUNDS):
            snapshot, plan = backend.loop
            # As new to all caches.
            backend.loop = (replace(snapshot, now=snapshot.now + 0.001, outlook=job_outlooks(snapshot)), plan)
            WatchedPrecedence.longest = 0.0
            first.append(fetch(link, path))
            stretches.append(WatchedPrecedence.longest)
            then.append(fetch(link, path))
        walls, cpu, sizes = zip(*first, strict=True)
        values = [
            min(cpu),
            min(one[1] for one in then),
            min(stretches),
            statistics.median(walls),
            max(walls),
            sizes[0] / 1024,
        ]
        values += [seen[path]] if path in seen else []
        sys.stdout.write(f"{path:34}" + "".join(f" {value:7.0f}" for value in values) + "\n")
    if backend.commands:
        raise SystemExit(f"pages queued commands: {backend.commands}")


def decisions(backend: FakeBackend, decider: Decider, seconds: float) -> list[tuple[float, float]]:
    """Milliseconds of each decision, and those of processor time that other threads had meanwhile."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert backend.loop is not None
        snapshot = backend.loop[0]
        assert isinstance(snapshot.slurm, SlurmView)
        jobs = (*snapshot.slurm.jobs[1:], replace(snapshot.slurm.jobs[0], priority=1))
        backend.between_decisions.clear()
        begun, all_threads, this_thread = time.perf_counter(), time.process_time(), time.thread_time()
        snapshot = replace(snapshot, now=snapshot.now + REST_S, slurm=replace(snapshot.slurm, jobs=jobs))
        snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
        plan: Plan = decider.decide(snapshot, site_policies(len(snapshot.claims) * 5 // 4), Tuning())
        others = time.process_time() - all_threads - (time.thread_time() - this_thread)
        took.append((1000 * (time.perf_counter() - begun), 1000 * others))
        backend.between_decisions.set()
        backend.loop = (snapshot, plan)
        time.sleep(REST_S)
    return took


def measure_decisions(backend: FakeBackend, port: int, seconds: float) -> None:
    """Without and with browsers, in turn."""
    decider = Decider()
    decisions(backend, decider, 3.0)
    alone: list[tuple[float, float]] = []
    beside: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="burstd-bench-", ignore_cleanup_errors=True) as folder:
        asks = Path(folder) / "asks"
        words = [sys.executable, "-c", CLIENTS, str(port), str(asks), str(POLL_S), *POLLED]
        clients = subprocess.Popen(words)
        try:
            # In short turns: this machine may have other work, which is the same for both.
            for _ in range(max(1, int(seconds / 2 / TURN_S))):
                decisions(backend, decider, 1.0)  # the last answers end
                alone += decisions(backend, decider, TURN_S)
                asks.touch()
                beside += decisions(backend, decider, TURN_S)
                asks.unlink()
        finally:
            clients.kill()
            clients.wait()
    sys.stdout.write(f"{'decision':34} {'number':>7} {'p50':>7} {'p90':>7} {'p99':>7} {'most':>7}\n")
    for name, took in (("no browser", alone), ("ten browsers", beside)):
        for what, values in zip((name, "  other threads"), zip(*took, strict=True), strict=True):
            parts = statistics.quantiles(values, n=100)
            shown = "".join(f" {value:7.1f}" for value in (parts[49], parts[89], parts[98], max(values)))
            sys.stdout.write(f"{what:34} {len(values):7}{shown}\n")


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_web", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--browser", action="store_true", help="draw each page in Chromium too")
    parser.add_argument("--seconds", type=float, default=120.0, help="of decisions; 0: none")
    arguments = parser.parse_args()
    loop = busy_site(arguments.nodes, arguments.jobs)
    with big_record(loop[0]) as record:
        backend = WatchedBackend(record)
        backend.loop = loop
        gc.collect()
        gc.freeze()  # as the daemon does
        with serving(backend) as port:
            measure_pages(backend, port, browser=arguments.browser)
            if arguments.seconds:
                measure_decisions(backend, port, arguments.seconds)


if __name__ == "__main__":
    main()
