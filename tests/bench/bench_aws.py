"""A thousand machines of EC2, from the wish to the last of them gone: ``python -m tests.bench.bench_aws``.

The real provider, observer, launcher, store and loop, against the mock of EC2 in a process of its own. Slurm and the
machines' insides are simulated in this process, and their processor time is left out. For each phase: API calls by
operation, and processor seconds of burstd and of the mock. No root, no network but loopback.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from burstd.core.tuning import Tuning
from burstd.daemon import logs
from burstd.daemon.observer import Pace
from burstd.daemon.reconciler import Reconciler, Rules
from burstd.daemon.wake import Wake
from burstd.daemon.workers import ThreadWorkers
from burstd.model.claim import Claim, ClaimState
from burstd.model.offer import OfferRule, Pool
from burstd.model.policy import Policy
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

TYPES = {"c5.large": Decimal("0.10"), "m5.large": Decimal("0.12")}
PACE = Pace(cloud_poll_s=5.0)
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


class Bench:
    """One burstd, one account, one cluster of ``machines`` slots."""

    def __init__(self, mock: Ec2Mock, folder: Path, machines: int, batch: int) -> None:
        account = mock.account(boot_s=0.5, stop_s=0.5)
        os.environ.update(mock.environment(mock.user(account, "bench", policy_for("bench"))))
        shape = Shape(2, 3000, (), frozenset({"cloud"}))
        slots = tuple(f"c{i}" for i in range(1, machines + 1))
        settings = AwsSettings(
            region=account.region, endpoint_url=mock.url, subnets=tuple(account.subnets.values()),
            security_groups=(account.security_group,), instance_types=tuple(TYPES), image=account.image,
            prices=TYPES, price_list=False, batch=batch, unused_s=0,
        )  # fmt: skip
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
            cluster="bench", rules=Rules({"cpu": pool}, policies, Tuning()), pace=PACE, store=self.store,
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
            self.wake.wait(max(0.05, min(pause, 0.5)))
        used = self.meter.read()
        said = ", ".join(f"{n} {name}" for name, n in sorted(used.calls.items(), key=lambda c: (-c[1], c[0])))
        numbers = f"{used.wall:7.1f} {loops:6} {used.loop:8.2f} {used.lanes:8.2f} {used.mock:8.2f}"
        sys.stdout.write(f"{what:34} {numbers}  {said}\n")
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
        self.until("asked for, and all answers here", lambda: self._all(machines, ClaimState.LAUNCHING, past=True))
        self.until("all are open", lambda: self._all(machines, ClaimState.OPEN))
        done = time.monotonic() + quiet_s / 2
        self.until(f"{quiet_s / 2:.0f} s of quiet", lambda: time.monotonic() > done)
        self.until("the jobs end", lambda: not self.simulated.slurm.active)
        self.until("all machines are gone", lambda: not self.store.claims())

    def _offers(self) -> bool:
        cloud = self.reconciler.latest[0].clouds["aws"] if self.reconciler.latest else None
        return cloud is not None and isinstance(cloud.offers, tuple)

    def _all(self, machines: int, state: ClaimState, *, past: bool = False) -> bool:
        claims = self.store.claims()
        order = list(ClaimState)
        reached = [c for c in claims if c.state is state or (past and order.index(c.state) > order.index(state))]
        return len(reached) == machines

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
    with Ec2Mock() as mock, tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        bench = Bench(mock, Path(folder), arguments.machines, arguments.batch)
        try:
            bench.run(arguments.machines, arguments.quiet)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
