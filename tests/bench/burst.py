"""A burst of many machines through the whole of burstd: real provider, observer, launcher, store and loop.

Slurm and the machines' insides are simulated in this process, and their processor time is left out.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from burstd.daemon.loop import MIN_PAUSE_S
from burstd.db import Store
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import LaunchRequest, Provider
from burstd.domain.slurm.shape import Shape
from burstd.planner.timeouts import Tuning
from burstd.reconciler.context import LoopContext, PollIntervals
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.quarantine import Quarantine
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from policies import backlog, idle, limits
from tests.virtual.clock import VirtualClock
from tests.virtual.job import JobSpec
from tests.virtual.slurm import NodeSpec, SimSlurm

CLUSTER = "bench"
KEEP_ALIVE_S = 2.0
_LONG_S = 36000.0


class CloudMeter(Protocol):
    """The cloud's side of a bench."""

    def cpu_s(self) -> float:
        """Processor seconds of the cloud so far."""
        ...

    def calls(self) -> Counter[str]:
        """Calls so far, by operation."""
        ...


def format_calls(calls: Counter[str]) -> str:
    """The most frequent first."""
    return ", ".join(f"{n} {name}" for name, n in sorted(calls.items(), key=lambda c: (-c[1], c[0])))


class LibraryMeter:
    """Adds up what a library has used of the processor, in seconds, over all threads."""

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self.used_s = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is done here is the library's."""
        begun = time.thread_time()
        try:
            yield
        finally:
            with self._adding:
                self.used_s += time.thread_time() - begun


class ProviderBench:
    """A table of a provider's calls without a daemon: processor seconds of its own code, its library and the cloud."""

    def __init__(self, cloud: CloudMeter, library: LibraryMeter, library_name: str, cloud_name: str) -> None:
        self._cloud = cloud
        self._library = library
        heads = f"{'own':>8} {library_name:>8} {cloud_name:>8} {'own/' + cloud_name:>8}"
        sys.stdout.write(f"{'call':34} {'seconds':>7} {heads}  calls\n")

    def row(self, what: str, work: Callable[[], Any]) -> Any:
        """Does it, and prints what it took."""
        counted, library_s, theirs = self._cloud.calls(), self._library.used_s, self._cloud.cpu_s()
        begun, used = time.perf_counter(), time.process_time()
        result = work()
        used, wall = time.process_time() - used, time.perf_counter() - begun
        library_s, theirs = self._library.used_s - library_s, self._cloud.cpu_s() - theirs
        own = max(0.0, used - library_s)
        ratio = f"{100 * own / theirs:.1f} %" if theirs > 0.05 else "-"
        calls = format_calls(self._cloud.calls() - counted)
        sys.stdout.write(f"{what:34} {wall:7.2f} {own:8.3f} {library_s:8.3f} {theirs:8.2f} {ratio:>8}  {calls}\n")
        sys.stdout.flush()
        return result

    def bench_life(self, provider: Provider, machines: int, patience_s: float, poll_s: float, listed: str = "") -> None:
        """A row for each call in the life of one machine, and of so many; ``listed``: how they are listed."""
        offers = self.row("offers", provider.offers)
        requests = [
            LaunchRequest(
                f"c{n:06}", f"bench-c{n}", offers[n % len(offers)], "", "#cloud-config\n",
                {TAG_CLUSTER: CLUSTER, TAG_CLAIM: f"c{n:06}", "burstd-pool": "cpu"},
            )
            for n in range(machines)
        ]  # fmt: skip
        until = partial(_until, provider, patience_s, poll_s)
        for size in sorted({1, machines}):
            some = requests[:size]
            results = [one.result for one in self.row(f"launch {size}", partial(provider.launch, some))]
            made = [one for one in results if isinstance(one, Instance)]
            if len(made) < size:
                raise RuntimeError(f"not all were made: {next(one for one in results if one not in made)}")
            self.row(f"list {size} until they run", partial(until, {InstanceState.RUNNING}))
            self.row(f"list {size}{listed}", lambda: list(provider.instances()))
            self.row(f"leftovers of {size}", lambda: list(provider.leftovers()))
            self.row(f"terminate {size}", partial(provider.terminate, [one.id for one in made]))
            self.row(f"list {size} until they are gone", partial(until, set()))


def _until(provider: Provider, patience_s: float, poll_s: float, states: Collection[InstanceState]) -> None:
    end = time.monotonic() + patience_s
    while others := {one.state for one in provider.instances()} - set(states):
        if InstanceState.ERROR in others or time.monotonic() > end:
            raise RuntimeError(f"the machines never got there: {', '.join(sorted(others))}")
        time.sleep(poll_s)


class SimulatedSite:
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
            with self.not_counted():
                return call(*words, **more)

        return counted

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """What is done here is not burstd's."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self.cpu_s += time.thread_time() - begun

    def validate(
        self, claim: Claim, _pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]
    ) -> str:
        """Every machine is as it should be, once it has shown its console."""
        if console is not None:
            console()
        reached()
        return f"{claim.address} is as it should be"

    def start_slurmd(self, claim: Claim, _pool: Pool, _watch: str = "") -> None:
        """slurmd registers with the next ``tick``."""
        self._started.put((claim.slot, claim.address))

    def probe(self, claim: Claim) -> None:
        """Every machine answers."""

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """Nothing was learned."""

    def alarms(self) -> tuple[str, ...]:
        """Every machine can be entered."""
        return ()

    def quiet_s(self) -> float:
        """Seconds until something happens in Slurm."""
        return self.clock.next_alarm() - time.time()

    def tick(self) -> None:
        """Lets the time that has passed pass."""
        with self.not_counted():
            self.clock.advance_to(time.time())
            while not self._started.empty():
                self.slurm.register(*self._started.get(), self.clock.now())


@dataclass(frozen=True, slots=True)
class UsedTime:
    """What was used, in seconds: by the clock, and of the processor."""

    wall: float
    loop: float
    """By the thread that decides, without what is simulated."""
    pools: float
    """By the threads that call the cloud: the cloud's library, most of it reading its answers."""
    cloud: float
    calls: Counter[str]


class UsageMeter:
    """Reads what was used since it was read last. Called in the main thread."""

    def __init__(self, cloud: CloudMeter, simulated: SimulatedSite) -> None:
        self._cloud = cloud
        self._simulated = simulated
        self._last = self._now()

    def read(self) -> UsedTime:
        """Since the last call."""
        now, last = self._now(), self._last
        self._last = now
        return UsedTime(
            now.wall - last.wall, now.loop - last.loop, now.pools - last.pools, now.cloud - last.cloud,
            now.calls - last.calls,
        )  # fmt: skip

    def _now(self) -> UsedTime:
        main = time.thread_time()
        calls = self._cloud.calls()
        return UsedTime(
            time.perf_counter(), main - self._simulated.cpu_s, time.process_time() - main, self._cloud.cpu_s(), calls
        )


class DaemonBench:
    """One burstd, one account, one cluster of ``machines`` slots of one shape."""

    def __init__(self, provider: Provider, cloud: CloudMeter, folder: Path, machines: int, shape: Shape) -> None:
        slots = tuple(f"c{i}" for i in range(1, machines + 1))
        number = itertools.count()
        policies: list[Policy] = [
            backlog.BacklogPolicy(backlog.BacklogSettings()),
            idle.IdlePolicy(idle.IdleSettings(keep_alive_s=KEEP_ALIVE_S)),
            limits.LimitsPolicy(limits.LimitsSettings()),
        ]
        self._provider = provider.name
        self._machines = machines
        self._shape = shape
        self.simulated = SimulatedSite(slots, shape)
        self.meter = UsageMeter(cloud, self.simulated)
        self.store = Store.open(folder / "burstd.db", self.simulated.clock)
        self.wake = Wake()
        self.workers = ThreadWorkers(self.wake, 8)
        pool = Pool("cpu", slots, ("burst",), shape, (OfferRule(provider.name),))
        context = LoopContext(
            cluster=CLUSTER,
            intervals=PollIntervals(),
            store=self.store,
            scheduler=self.simulated,
            providers={provider.name: provider},
            validator=self.simulated,
            workers=self.workers,
            clock=self.simulated.clock,
            user_data=lambda _pool, _provider: "#cloud-config\n",
            new_id=lambda: f"c{next(number):06}",
            is_authentic=lambda _: True,
            quarantine=Quarantine(self.simulated.clock),
        )
        self.reconciler = Reconciler(context, RuntimeConfig({"cpu": pool}, policies, Tuning()))

    def until(self, what: str, condition: Callable[[], bool], limit_s: float = 600.0) -> None:
        """Loops as the daemon does until the condition holds, and prints what it took."""
        longest, loops, deadline = 0.0, 0, time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit_s:.0f} s: {what}; {self.states()}")
            self.simulated.tick()
            begun = time.perf_counter()
            pause = self.reconciler.step()
            longest = max(longest, time.perf_counter() - begun)
            loops += 1
            self.wake.wait(max(MIN_PAUSE_S, min(pause, self.simulated.quiet_s())))
        used = self.meter.read()
        numbers = f"{used.wall:7.1f} {loops:6} {longest:8.2f} {used.loop:8.2f} {used.pools:8.2f} {used.cloud:8.2f}"
        sys.stdout.write(f"{what:34} {numbers}  {format_calls(used.calls)}\n")
        sys.stdout.flush()

    def states(self) -> dict[str, int]:
        """How many claims are in which state."""
        counts = Counter(claim.state.value for claim in self.store.claims())
        return dict(counts)

    def run(self, quiet_s: float, library_name: str, cloud_name: str) -> None:
        """All phases. ``quiet_s``: how long the jobs run once all do."""
        heads = f"{'phase':34} {'seconds':>7} {'loops':>6} {'longest':>8} {'loop':>8} {library_name:>8} {cloud_name:>8}"
        sys.stdout.write(f"{heads}  calls\n")
        self.until("offers are read", lambda: self.reconciler.latest is not None and self._offers())
        job = self.simulated.slurm.submit(
            JobSpec(exclusive=True, array=self._machines, run_s=_LONG_S, cpus_per_node=self._shape.cpus)
        )
        self.until("all are asked for and made", lambda: self._all(ClaimState.BOOTING))
        self.until("all are proven and open", lambda: self._all(ClaimState.IN_SERVICE))
        done = time.monotonic() + quiet_s
        self.until(f"{quiet_s:.0f} s in which jobs run", lambda: time.monotonic() > done)
        self.simulated.slurm.cancel(job)
        self.until("all machines are gone", lambda: not self.store.claims())

    def _offers(self) -> bool:
        cloud = self.reconciler.latest[0].clouds[self._provider] if self.reconciler.latest else None
        return cloud is not None and isinstance(cloud.offers, tuple)

    def _all(self, state: ClaimState) -> bool:
        """All claims are in this state or a later one of those that a machine goes through."""
        order = list(ClaimState)
        return sum(order.index(c.state) >= order.index(state) for c in self.store.claims()) == self._machines

    def close(self) -> None:
        """Lets go."""
        self.workers.close()
        self.store.close()
