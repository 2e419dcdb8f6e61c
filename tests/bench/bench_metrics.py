"""What metrics cost: ``python -m tests.bench.bench_metrics [--rounds 15]``.

4,000 nodes in service in 20 pools, 10,000 pending jobs, 200 projects with budgets. Decisions of one thread, in turn
without metrics, with metrics that are rendered meanwhile, and with a hundred scrapes at once from another process.
Then how long a rendering takes, how large the text is, and how long scrapes take. Milliseconds of wall time.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from burstd.db import Store
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.plan import Plan
from burstd.domain.project import Project, ProjectsView, Share
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import Snapshot
from burstd.metrics.counters import Counters
from burstd.metrics.exposition import render
from burstd.metrics.service import MetricsService
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.runtime.clock import SteadyClock
from burstd.settings.metrics import MetricsSettings
from tests.planner.worlds import NOW, make_snapshot, node, offer, pool

POOLS, NODES, JOBS, PROJECTS, AT_ONCE = 20, 4_000, 10_000, 200, 100
_REASONS = ("Resources", "Priority", "Dependency", "JobHeldUser", "QOSMaxGRESPerUser")
# 100 scrapes at once for each line of its input; their milliseconds as a line.
_CLIENT = """
import json, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
def scrape(_):
    begun = time.perf_counter()
    request = urllib.request.Request(sys.argv[1], headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    return 1000 * (time.perf_counter() - begun)
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    for line in sys.stdin:
        print(json.dumps(list(pool.map(scrape, range(int(line))))), flush=True)
"""


def world() -> Snapshot:
    """Every node runs jobs of the projects, and more wait."""
    shape = Shape(8, 64_000, (Gres("gpu", "", 4),))
    pools = [pool(f"pool{n}", NODES // POOLS, shape, partitions=("burst",)) for n in range(POOLS)]
    types = [offer(f"type{n}", shape=shape) for n in range(POOLS)]
    slots = [(one, slot, types[n]) for n, one in enumerate(pools) for slot in one.slots]
    claims = [
        Claim(
            id=f"c{n}", cluster="bench", pool=one.name, slot=slot, offer=kind, cause=Cause.DEMAND,
            state=ClaimState.IN_SERVICE, created=NOW - 900, since=NOW - 600, instance_id=f"i{n}",
            address=f"10.{n >> 8}.{n & 255}.1", billed_from=NOW - 800, in_service_from=NOW - 600,
        )
        for n, (one, slot, kind) in enumerate(slots)
    ]  # fmt: skip
    nodes = [
        node(slot, state="MIXED", flags=frozenset({"CLOUD"}), partitions=one.partitions, cpus=8, cpus_allocated=8,
             gres=shape.gres, gres_used=shape.gres)
        for one, slot, _ in slots
    ]  # fmt: skip
    jobs = [
        Job(
            str(n), f"u{n % 300}", JobState.PENDING, ("burst",), NOW - n, account=f"p{n % PROJECTS}", eligible=NOW - n,
            reason=_REASONS[n % len(_REASONS)], cpus=1 + n % 8, gres_per_node=(Gres("gpu", "", 1 + n % 4),),
        )
        for n in range(JOBS)
    ]  # fmt: skip
    projects = {f"p{n}": Project(f"p{n}", f"p{n}", Fraction(8)) for n in range(PROJECTS)}
    found = make_snapshot(*jobs, nodes=tuple(nodes), pools=tuple(pools), offers=tuple(types))
    return replace(found, claims=tuple(claims), projects=ProjectsView(projects))


def with_projects(plan: Plan) -> Plan:
    """With what a division and a budget for each project say."""
    shares = {f"p{n}": Share(Fraction(20), Fraction(12), Fraction(4), Fraction(16)) for n in range(PROJECTS)}
    budgets = tuple(
        BudgetLine("project", name, "month", "EUR", Decimal(900), Decimal(300), Decimal(200)) for name in shares
    )
    return replace(plan, target=replace(plan.target, shares=shares, budgets=budgets))


@contextmanager
def scraping(address: str) -> Iterator[tuple[Callable[[int], None], Callable[[], list[float]]]]:
    """Another process: begins so many scrapes at once; waits for their milliseconds."""
    words = [sys.executable, "-c", _CLIENT, f"http://{address}/metrics", str(AT_ONCE)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        stdin, stdout = client.stdin, client.stdout

        def begin(number: int) -> None:
            stdin.write(f"{number}\n")
            stdin.flush()

        yield begin, lambda: list(json.loads(stdout.readline()))
        stdin.close()


@contextmanager
def rendering(service: MetricsService) -> Iterator[None]:
    """The whole work of the metrics' thread in another thread, which has begun."""
    thread = threading.Thread(target=service.update)
    thread.start()
    time.sleep(0.015)
    yield
    thread.join()


def line(what: str, values: Sequence[float], of: Sequence[float] = ()) -> None:
    """A line of the table."""
    middle = statistics.median(values)
    high = sorted(values)[int(len(values) * 0.99)]
    ratio = f"{middle / statistics.median(of):8.2f}" if of else ""
    sys.stdout.write(f"{what:44} {min(values):8.1f} {middle:8.1f} {high:8.1f}{ratio}\n")
    sys.stdout.flush()


def measure(rounds: int, folder: Path) -> None:
    """Prints the table."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    snapshot, tuning, clock = world(), Tuning(), SteadyClock()
    latest: list[tuple[Snapshot, Plan]] = []
    between_decisions = threading.Event()
    settings = MetricsSettings(listen=address, file_sd=folder / "nodes.json")
    took: dict[str, list[float]] = {"none": [], "rendered": [], "scraped": []}
    with Store.open(folder / "burstd.db", clock) as store, store.reader() as reader:
        counters = Counters()
        service = MetricsService(
            lambda: settings, counters, reader, clock, lambda: latest[0] if latest else None, between_decisions, "1"
        )

        def loop() -> float:
            seen = replace(snapshot, now=NOW + time.monotonic() % 1000)
            between_decisions.clear()
            begun = time.perf_counter()
            latest[:] = [(seen, with_projects(decide(seen, (), tuning)))]
            took_ms = 1000 * (time.perf_counter() - begun)
            between_decisions.set()
            return took_ms

        service.start()
        with scraping(address) as (begin, answers):
            loop()
            service.update()
            many: list[float] = []
            for _ in range(rounds):
                took["none"].append(loop())
                with rendering(service):
                    took["rendered"].append(loop())
                begin(AT_ONCE)
                took["scraped"].append(loop())
                many += answers()
            begin(AT_ONCE)
            begun = time.process_time()
            answers()
            cost = 1000 * (time.process_time() - begun)
            single = []
            for _ in range(50):
                begin(1)
                single += answers()
        service.stop()
        renderings = []
        for _ in range(5):
            begun = time.process_time()
            text = render(counters.registry, latest[0], "1")
            renderings.append(1000 * (time.process_time() - begun))
    sys.stdout.write(f"{'':44} {'least':>8} {'median':>8} {'p99':>8}   ratio\n")
    line("a decision, no metrics", took["none"])
    line("a decision while metrics are rendered", took["rendered"], took["none"])
    line("a decision during 100 scrapes at once", took["scraped"], took["none"])
    line("a scrape", single)
    line("each of 100 scrapes at once", many)
    line("100 scrapes, processor time of burstd", [cost])
    line("a rendering, processor time", renderings)
    sys.stdout.write(f"{len(text.plain) / 1024:.0f} KiB, compressed {len(text.compressed) / 1024:.0f} KiB\n")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_metrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        measure(rounds, Path(folder))


if __name__ == "__main__":
    main()
