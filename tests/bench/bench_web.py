"""What the pages cost: ``python -m tests.bench.bench_web [--nodes 4000] [--jobs 10000] [--browser]``.

A made snapshot behind the real routes, on a socket. First each page: milliseconds from request to answer, KiB, and,
with ``--browser``, milliseconds until Chromium has drawn it. Then decisions one after another, each with a change of
the queue and a quarter of a second of rest, in turn without and with ten browsers that ask every five seconds as htmx
does: milliseconds of a decision, 50th to 99th percentile. No page may queue a command: that would ask the deciding
thread.
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

from burstd.db import Store, StoreReader
from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.timeouts import Tuning
from tests.api.fake_backend import STATE_ORDER, FakeBackend
from tests.api.world import FixedClock
from tests.web.served import CHROMIUM, serving
from tests.web.site import busy_site, site_policies

ROUNDS = 7
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


@contextmanager
def big_record(snapshot: Snapshot) -> Iterator[StoreReader]:
    """A database with the claims of a snapshot."""
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
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


def fetch(link: HTTPConnection, path: str) -> tuple[float, int]:
    """Milliseconds and bytes."""
    begun = time.perf_counter()
    link.request("GET", path, headers={"accept": "text/html"})
    answer = link.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status}")
    return 1000 * (time.perf_counter() - begun), len(body)


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
    sys.stdout.write(f"{'page':34} {'first':>7} {'median':>7} {'worst':>7} {'KiB':>6} {'drawn':>7}\n")
    for path in paths:
        snapshot, plan = backend.loop
        # As new to all caches.
        backend.loop = (replace(snapshot, now=snapshot.now + 0.001, outlook=job_outlooks(snapshot)), plan)
        first, size = fetch(link, path)
        took = [fetch(link, path)[0] for _ in range(ROUNDS)]
        drawing = f"{seen[path]:7.0f}" if path in seen else ""
        sys.stdout.write(
            f"{path:34} {first:7.0f} {statistics.median(took):7.0f} {max(took):7.0f} {size / 1024:6.0f} {drawing:>7}\n"
        )
    if backend.commands:
        raise SystemExit(f"pages queued commands: {backend.commands}")


def decisions(backend: FakeBackend, decider: Decider, seconds: float) -> list[float]:
    """Milliseconds of each decision."""
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert backend.loop is not None
        snapshot = backend.loop[0]
        assert isinstance(snapshot.slurm, SlurmView)
        jobs = (*snapshot.slurm.jobs[1:], replace(snapshot.slurm.jobs[0], priority=1))
        backend.between_decisions.clear()
        begun = time.perf_counter()
        snapshot = replace(snapshot, now=snapshot.now + REST_S, slurm=replace(snapshot.slurm, jobs=jobs))
        snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
        plan: Plan = decider.decide(snapshot, site_policies(len(snapshot.claims) * 5 // 4), Tuning())
        took.append(1000 * (time.perf_counter() - begun))
        backend.between_decisions.set()
        backend.loop = (snapshot, plan)
        time.sleep(REST_S)
    return took


def measure_decisions(backend: FakeBackend, port: int, seconds: float) -> None:
    """Without and with browsers, in turn."""
    decider = Decider()
    decisions(backend, decider, 3.0)
    alone: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        asks = Path(folder) / "asks"
        words = [sys.executable, "-c", CLIENTS, str(port), str(asks), str(POLL_S), *POLLED]
        clients = subprocess.Popen(words)
        try:
            # In short turns: this machine may have other work, which is the same for both.
            for _ in range(max(1, int(seconds / 2 / TURN_S))):
                alone += decisions(backend, decider, TURN_S)
                asks.touch()
                beside += decisions(backend, decider, TURN_S)
                asks.unlink()
        finally:
            clients.kill()
            clients.wait()
    sys.stdout.write(f"{'decision':34} {'number':>7} {'p50':>7} {'p90':>7} {'p99':>7}\n")
    for name, took in (("no browser", alone), ("ten browsers", beside)):
        parts = statistics.quantiles(took, n=100)
        sys.stdout.write(f"{name:34} {len(took):7} {parts[49]:7.1f} {parts[89]:7.1f} {parts[98]:7.1f}\n")


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
        backend = FakeBackend(record)
        backend.loop = loop
        gc.collect()
        gc.freeze()  # as the daemon does
        with serving(backend) as port:
            measure_pages(backend, port, browser=arguments.browser)
            if arguments.seconds:
                measure_decisions(backend, port, arguments.seconds)


if __name__ == "__main__":
    main()
