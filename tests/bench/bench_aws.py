"""A thousand machines of EC2, from the wish to the last of them gone: ``python -m tests.bench.bench_aws``.

First the provider's calls one by one, then the real provider, observer, launcher, store and loop, against the mock of
EC2 in a process of its own. Slurm and the machines' insides are simulated in this process, and their processor time is
left out. For each call or phase: API calls by operation, and processor seconds of burstd, of boto3 in it, and of the
mock. No root, no network but loopback.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from burstd.core.tuning import Tuning
from burstd.daemon import logs
from burstd.daemon.loop import LEAST_S
from burstd.daemon.observer import Pace
from burstd.daemon.reconciler import Reconciler, Rules
from burstd.daemon.wake import Wake
from burstd.daemon.workers import ThreadWorkers
from burstd.model.claim import Claim, ClaimState
from burstd.model.instance import TAG_CLAIM, TAG_CLUSTER, Instance
from burstd.model.offer import OfferRule, Pool
from burstd.model.policy import Policy
from burstd.model.provider import LaunchRequest
from burstd.model.shape import Shape
from burstd.sim.clock import VirtualClock
from burstd.sim.job import JobSpec
from burstd.sim.slurm import NodeSpec, SimSlurm
from burstd.store import Store
from policies import backlog, idle, limits
from providers.aws.calls import Calls
from providers.aws.provider import AwsProvider
from providers.aws.settings import AwsSettings
from tests.lab.aws.mock import Account, Ec2Mock, policy_for

T = TypeVar("T")
TYPES = {"c5.large": Decimal("0.10"), "m5.large": Decimal("0.12")}
KEEP_ALIVE_S = 2.0


class Simulated:
    """Slurm and what is in the machines, by the real time, with its own processor time counted apart.

    Everything is called in the main thread but ``start``, which the workers call.
    """

    def __init__(self, slots: Sequence[str], shape: Shape) -> None:
        self.clock = VirtualClock(time.time())
        self.slurm = SimSlurm(self.clock, [NodeSpec(tuple(slots), shape, ("burst",))])
        self.cpu_s = 0.0
        self._started: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def __getattr__(self, name: str) -> Any:
        """The Scheduler's calls, which only wait where the real Slurm's programs would run."""
        call = getattr(self.slurm, name)

        def counted(*words: Any, **more: Any) -> Any:
            with self.apart():
                return call(*words, **more)

        return counted

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done here is not burstd's."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self.cpu_s += time.thread_time() - begun

    def prove(self, claim: Claim, _pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        """Every machine is as it should be, once it has shown its console."""
        if console is not None:
            console()
        reached()
        return f"{claim.address} is as it should be"

    def start(self, claim: Claim, _pool: Pool, _watch: str = "") -> None:
        """slurmd registers with the next ``tick``."""
        self._started.put((claim.slot, claim.address))

    def keep(self, claim_ids: Collection[str]) -> None:
        """Nothing was learned."""

    def quiet_s(self) -> float:
        """Seconds until something happens in Slurm."""
        return self.clock.next_alarm() - time.time()

    def tick(self) -> None:
        """Lets the time that has passed pass."""
        with self.apart():
            self.clock.advance_to(time.time())
            while not self._started.empty():
                self.slurm.register(*self._started.get(), self.clock.now())


@dataclass(frozen=True, slots=True)
class Used:
    """What was used, in seconds: by the clock, and of the processor. ``calls`` are the mock's count."""

    wall: float
    loop: float
    """By the thread that decides, without what is simulated."""
    lanes: float
    """By the threads that call the cloud: boto3, most of it reading XML."""
    mock: float
    calls: Counter[str]


class Meter:
    """Reads what was used since it was read last. Called in the main thread."""

    def __init__(self, mock: Ec2Mock, account: Account, simulated: Simulated) -> None:
        self._mock = mock
        self._account = account
        self._simulated = simulated
        self._last = self._now()

    def read(self) -> Used:
        """Since the last call."""
        now, last = self._now(), self._last
        self._last = now
        return Used(
            now.wall - last.wall, now.loop - last.loop, now.lanes - last.lanes, now.mock - last.mock,
            now.calls - last.calls,
        )  # fmt: skip

    def _now(self) -> Used:
        main = time.thread_time()
        calls = self._mock.calls(self._account)
        return Used(
            time.perf_counter(), main - self._simulated.cpu_s, time.process_time() - main, self._mock.cpu_s(), calls
        )


class TimedCalls(Calls):
    """Knows what boto3 has used of the processor, in seconds, over all threads."""

    def __init__(self, settings: AwsSettings) -> None:
        super().__init__(settings)
        self._adding = threading.Lock()
        self.boto3_s = 0.0

    def _call(self, *words: Any, **more: Any) -> Mapping[str, Any]:
        begun = time.thread_time()
        try:
            return super()._call(*words, **more)
        finally:
            with self._adding:
                self.boto3_s += time.thread_time() - begun


def settings_for(mock: Ec2Mock, account: Account, batch: int) -> AwsSettings:
    """Of a site in this account."""
    return AwsSettings(
        region=account.region, endpoint_url=mock.url, subnets=tuple(account.subnets.values()),
        security_groups=(account.security_group,), instance_types=tuple(TYPES), image=account.image,
        prices=TYPES, price_list=False, batch=batch, unused_s=0,
    )  # fmt: skip


def account_for(mock: Ec2Mock) -> Account:
    """A new account, whose user for the cluster boto3 finds."""
    account = mock.account(boot_s=0.5, stop_s=0.5)
    os.environ.update(mock.environment(mock.user(account, "bench", policy_for("bench"))))
    return account


def alone(mock: Ec2Mock, machines: int, batch: int) -> None:
    """The provider's calls without a daemon: processor seconds of its own code, of boto3 and of the mock."""
    account = account_for(mock)
    settings = settings_for(mock, account, batch)
    calls = TimedCalls(settings)
    provider = AwsProvider("aws", "bench", settings, calls)
    sys.stdout.write(f"{'call':34} {'seconds':>7} {'own':>8} {'boto3':>8} {'mock':>8} {'own/mock':>8}  calls\n")

    def row(what: str, work: Callable[[], T]) -> T:
        counted, boto3_s, theirs = mock.calls(account), calls.boto3_s, mock.cpu_s()
        begun, used = time.perf_counter(), time.process_time()
        result = work()
        used, wall = time.process_time() - used, time.perf_counter() - begun
        boto3_s, theirs = calls.boto3_s - boto3_s, mock.cpu_s() - theirs
        own = max(0.0, used - boto3_s)
        ratio = f"{100 * own / theirs:.1f} %" if theirs > 0.05 else "-"
        said = _said(mock.calls(account) - counted)
        sys.stdout.write(f"{what:34} {wall:7.2f} {own:8.3f} {boto3_s:8.3f} {theirs:8.2f} {ratio:>8}  {said}\n")
        return result

    cheapest, *others = sorted((o for o in row("offers", provider.offers) if not o.spot), key=lambda o: o.price)
    requests = [
        LaunchRequest(
            f"c{n:06}", f"bench-c{n}", cheapest, "", "#cloud-config\n",
            {TAG_CLUSTER: "bench", TAG_CLAIM: f"c{n:06}", "burstd-pool": "cpu"}, tuple(others),
        )
        for n in range(machines)
    ]  # fmt: skip
    prepared = row("prepare", lambda: provider.prepare(requests))
    ready = [request for request in prepared if isinstance(request, LaunchRequest)]
    made = [one.result for one in row("launch", lambda: provider.launch(ready)) if isinstance(one.result, Instance)]
    for _ in range(3):
        row("list", lambda: list(provider.instances()))
    row("leftovers", lambda: list(provider.leftovers()))
    row("terminate", lambda: provider.terminate([one.id for one in made]))
    provider.close()


def _said(calls: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(calls.items(), key=lambda c: (-c[1], c[0])))


class Bench:
    """One burstd, one account, one cluster of ``machines`` slots."""

    def __init__(self, mock: Ec2Mock, folder: Path, machines: int, batch: int) -> None:
        account = account_for(mock)
        shape = Shape(2, 3000, (), frozenset({"cloud"}))
        slots = tuple(f"c{i}" for i in range(1, machines + 1))
        settings = settings_for(mock, account, batch)
        provider = AwsProvider("aws", "bench", settings, Calls(settings))
        number = itertools.count()
        policies: list[Policy] = [
            backlog.Backlog(backlog.Settings()), idle.Idle(idle.Settings(keep_alive_s=KEEP_ALIVE_S)),
            limits.Limits(limits.Settings()),
        ]  # fmt: skip
        self.simulated = Simulated(slots, shape)
        self.meter = Meter(mock, account, self.simulated)
        self.store = Store.open(folder / "burstd.db", self.simulated.clock)
        self.wake = Wake()
        self.workers = ThreadWorkers(self.wake, 8)
        pool = Pool("cpu", slots, ("burst",), shape, (OfferRule("aws"),))
        self.reconciler = Reconciler(
            cluster="bench", rules=Rules({"cpu": pool}, policies, Tuning()), pace=Pace(), store=self.store,
            scheduler=self.simulated, providers={"aws": provider}, prover=self.simulated, workers=self.workers,
            clock=self.simulated.clock, user_data=lambda _pool, _provider: "#cloud-config\n",
            new_id=lambda: f"c{next(number):06}",
        )  # fmt: skip

    def until(self, what: str, condition: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Loops as the daemon does until the condition holds, and prints what it took."""
        loops, deadline = 0, time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit_s:.0f} s: {what}; {self.states()}")
            self.simulated.tick()
            pause = self.reconciler.step()
            loops += 1
            self.wake.wait(max(LEAST_S, min(pause, self.simulated.quiet_s())))
        used = self.meter.read()
        numbers = f"{used.wall:7.1f} {loops:6} {used.loop:8.2f} {used.lanes:8.2f} {used.mock:8.2f}"
        sys.stdout.write(f"{what:34} {numbers}  {_said(used.calls)}\n")
        sys.stdout.flush()

    def states(self) -> dict[str, int]:
        """How many claims are in which state."""
        counts = Counter(claim.state.value for claim in self.store.claims())
        return dict(counts)

    def run(self, machines: int, quiet_s: float) -> None:
        """All phases."""
        heads = f"{'phase':34} {'seconds':>7} {'loops':>6} {'loop':>8} {'boto3':>8} {'mock':>8}  calls"
        sys.stdout.write(f"{heads}\n")
        self.until("offers are read", lambda: self.reconciler.latest is not None and self._offers())
        spec = JobSpec(exclusive=True, array=machines, run_s=quiet_s, cpus_per_node=2)
        self.simulated.slurm.submit(spec)
        self.until("all are asked for and made", lambda: self._all(machines, ClaimState.BOOTING))
        self.until("all are proven and open", lambda: self._all(machines, ClaimState.OPEN))
        done = time.monotonic() + quiet_s / 2
        self.until(f"{quiet_s / 2:.0f} s of quiet", lambda: time.monotonic() > done)
        self.until("the jobs end", lambda: not self.simulated.slurm.active)
        self.until("all machines are gone", lambda: not self.store.claims())

    def _offers(self) -> bool:
        cloud = self.reconciler.latest[0].clouds["aws"] if self.reconciler.latest else None
        return cloud is not None and isinstance(cloud.offers, tuple)

    def _all(self, machines: int, state: ClaimState) -> bool:
        """All claims are in this state or a later one of those that a machine goes through."""
        order = list(ClaimState)
        return sum(order.index(c.state) >= order.index(state) for c in self.store.claims()) == machines

    def close(self) -> None:
        """Lets go."""
        self.workers.close()
        self.store.close()


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_aws", description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--quiet", type=float, default=30.0, help="seconds that the jobs run")
    arguments = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    with Ec2Mock() as mock:
        alone(mock, arguments.machines, arguments.batch)
    sys.stdout.write("\n")
    with Ec2Mock() as mock, tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        bench = Bench(mock, Path(folder), arguments.machines, arguments.batch)
        try:
            bench.run(arguments.machines, arguments.quiet)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
