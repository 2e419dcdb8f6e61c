"""How long a whole loop of the daemon takes beside a real slurmctld: ``python -m tests.bench.bench_loop`` (root).

A slurmctld in a box with a thousand CLOUD nodes and ten thousand pending jobs; burstd's observer, core, executor and
store around it, with clouds and machines that answer at once. Beside it, in turn with the loops, ``squeue`` and
``scontrol show node`` alone: what anybody would pay who looks. Prints medians in milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from burstd.db import Store
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.instance import TAG_CLAIM, Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import FabricTest, Offer, OfferRule, Pool
from burstd.domain.plugins.policy import Policy
from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.timeouts import Tuning
from burstd.reconciler.context import LoopContext, PollIntervals
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.quarantine import Quarantine
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs
from burstd.runtime.clock import SteadyClock
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.scheduler import CommandScheduler
from policies import backlog, idle, limits
from tests.lab import slurm_files
from tests.lab.cluster import Cluster

FLOOR = (("squeue", "--all"), ("scontrol", "show", "node"))
SHAPES = {
    "cpu": Shape(2, 8_000, features=frozenset({"cloud"})),
    "big": Shape(16, 64_000, features=frozenset({"cloud", "big"})),
    "v100": Shape(8, 64_000, (Gres("gpu", "v100", 4),), frozenset({"cloud"})),
    "a100": Shape(16, 128_000, (Gres("gpu", "a100", 8),), frozenset({"cloud"})),
}
KINDS = (
    "-c1 --mem=1000", "-c2 --mem=4000", "-c8 --mem=20000 -C big", "--gres=gpu:v100:1 --mem=8000",
    "--gres=gpu:2 --mem=16000", "--gres=gpu:a100:8 --exclusive", "-N2 -c2 --mem=2000", "-c16 --mem=60000",
)  # fmt: skip


class InstantCloud:
    """Starts whatever is asked for, at once, and for nothing."""

    idempotency = Idempotency.TOKEN
    settle_s = 0.0

    def __init__(self, name: str, pools: Sequence[Pool]) -> None:
        self.name = name
        self._pools = pools
        self._made: dict[str, Instance] = {}

    def offers(self) -> Sequence[Offer]:
        return [
            Offer(self.name, "r", zone, pool.name, spot=False, shape=pool.shape, price=Decimal(price))
            for price, (pool, zone) in enumerate(itertools.product(self._pools, "abc"), 1)
        ]

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        for request in requests:
            number = len(self._made)
            self._made[request.claim_id] = Instance(
                f"i-{number}", self.name, InstanceState.RUNNING, request.tags[TAG_CLAIM], request.tags, request.name,
                address=f"10.78.{number // 250}.{1 + number % 250}",
            )  # fmt: skip
        return [LaunchOutcome(r.claim_id, self._made[r.claim_id]) for r in requests]

    def instances(self) -> Iterator[Instance]:
        yield from list(self._made.values())

    def terminate(self, instance_ids: Sequence[str]) -> None:
        gone = set(instance_ids)
        self._made = {claim: one for claim, one in self._made.items() if one.id not in gone}

    def leftovers(self) -> Iterator[Leftover]:
        yield from ()

    def remove(self, leftovers: Sequence[Leftover]) -> None: ...

    def close(self) -> None: ...


class InstantMachines:
    """Proves every machine at once; their slurmds never register, as there are none."""

    def validate(
        self, claim: Claim, _pool: Pool, _console: Callable[[], str] | None, reached: Callable[[], None]
    ) -> str:
        reached()
        return f"{claim.address} is as it should be"

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None: ...

    def registration_fault(self, _claim: Claim) -> str:
        return ""

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> None: ...

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        return f"{test.command}: {first.slot} and {second.slot} are near each other"

    def probe(self, claim: Claim) -> None: ...

    def retain_only(self, claim_ids: Collection[str]) -> None: ...

    def alarms(self) -> tuple[str, ...]:
        return ()

    def missing_homes(self) -> tuple[()]:
        return ()


class SlurmMeter:
    """Runs Slurm's commands in the head's box, and remembers which and how long they took."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.seconds: list[float] = []

    def __call__(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        begun = time.perf_counter()
        here = {key: value for key, value in environment.items() if key != "PATH"}
        done = self._cluster.head.run(argv, env=here, timeout=timeout_s, check=False)
        self.seconds.append(time.perf_counter() - begun)
        return done


@dataclass(frozen=True, slots=True)
class LoopSample:
    """One loop, in milliseconds."""

    whole: float
    slurm: float
    cpu: float
    commands: int


class LoopBench:
    """One burstd beside one cluster."""

    def __init__(self, cluster: Cluster, folder: Path, nodes_allowed: int) -> None:
        self.meter = SlurmMeter(cluster)
        pools = {p.name: replace(p, rules=(OfferRule("fast"),)) for p in cluster.pools}
        limit = limits.LimitsSettings(nodes=nodes_allowed)
        policies: list[Policy] = [
            backlog.BacklogPolicy(backlog.BacklogSettings()),
            idle.IdlePolicy(idle.IdleSettings()),
            limits.LimitsPolicy(limit),
        ]
        clock, number = SteadyClock(), itertools.count()
        self.store = Store.open(folder / "burstd.db", clock)
        self.workers = ThreadWorkers(Wake(), 4)
        context = LoopContext(
            cluster="bench",
            intervals=PollIntervals(),
            store=self.store,
            scheduler=CommandScheduler(SlurmCommands(self.meter)),
            providers={"fast": InstantCloud("fast", cluster.pools)},
            validator=InstantMachines(),
            workers=self.workers,
            clock=clock,
            user_data=lambda _pool, _provider: "#cloud-config\n",
            new_id=lambda: f"c{next(number)}",
            is_authentic=lambda _: True,
            quarantine=Quarantine(clock),
        )
        self.reconciler = Reconciler(context, RuntimeConfig(pools, policies, Tuning()))

    def loop(self) -> LoopSample:
        """One."""
        self.meter.seconds.clear()
        begun, cpu = time.perf_counter(), time.process_time()
        self.reconciler.step()
        whole, cpu = time.perf_counter() - begun, time.process_time() - cpu
        return LoopSample(1000 * whole, 1000 * sum(self.meter.seconds), 1000 * cpu, len(self.meter.seconds))

    def floor(self) -> float:
        """Milliseconds that squeue and 'scontrol show node' take."""
        begun = time.perf_counter()
        for argv in FLOOR:
            self.meter(argv, {}, 60.0)
        return 1000 * (time.perf_counter() - begun)

    def wait_idle(self) -> None:
        """Waits until no call to the cloud or a machine is under way."""
        while self.workers.calls_under_way():
            time.sleep(0.01)

    def states(self) -> dict[str, int]:
        """How many claims are in which state."""
        claims = self.store.claims()
        return {s.value: n for s in ClaimState if (n := sum(c.state is s for c in claims))}

    def close(self) -> None:
        """Lets go."""
        self.workers.close()
        self.store.close()


def pools_of(slots: int) -> list[Pool]:
    """As many slots, in four pools of one partition."""
    return [
        Pool(name, tuple(f"{name}{i}" for i in range(1, slots // len(SHAPES) + 1)), ("burst",), shape)
        for name, shape in SHAPES.items()
    ]


def submit(cluster: Cluster, arrays: int, tasks: int, single: int, *, split: bool) -> None:
    """Fills the queue. ``split``: each task becomes a row of its own, as after a requeue or an update."""
    script = [f"sbatch -p burst -t{10 + n % 50} {KINDS[n % len(KINDS)]} --wrap hostname >&2" for n in range(single)]
    script += [
        f"sbatch -p burst -t60 {KINDS[n % len(KINDS)]} --array=1-{tasks} --parsable --wrap hostname"
        for n in range(arrays)
    ]
    made = cluster.head.run(["bash", "-e"], input="\n".join(script), user="ada", cwd="/tmp").stdout.split()  # noqa: S108
    if split:
        names = "".join(f"update jobid={job}_{task} name=t{task}\n" for job in made for task in range(1, tasks))
        cluster.head.run(["scontrol", "-Q"], input=names, check=False)


@contextmanager
def slurm(slots: int, release: str = "bookworm") -> Iterator[Cluster]:
    """A slurmctld with so many CLOUD nodes behind the gate."""
    extra = "MaxJobCount=30000\nSchedulerParameters=defer,batch_sched_delay=0,bf_interval=300\n"
    with Cluster(release, pools=pools_of(slots), onprem=1, extra_conf=extra) as cluster:
        # Else slurmctld would boot nodes by itself before burstd has come.
        CommandScheduler(SlurmCommands(SlurmMeter(cluster))).set_gate(
            [slot for pool in cluster.pools for slot in pool.slots]
        )
        yield cluster


def row(what: str, floor: list[float], samples: Sequence[LoopSample]) -> None:
    """A line of the table."""
    middle = statistics.median
    whole, under = middle(s.whole for s in samples), middle(floor)
    commands = "/".join(map(str, sorted({s.commands for s in samples})))
    sys.stdout.write(
        f"{what:38} {under:8.0f} {middle(s.slurm for s in samples):8.0f} {middle(s.cpu for s in samples):8.0f}"
        f" {whole:8.0f} {max(s.whole for s in samples):8.0f} {whole / under:7.2f} {commands:>9}\n"
    )
    sys.stdout.flush()


def measure(bench: LoopBench, what: str, rounds: int) -> None:
    """Loops and floor in turn."""
    floor, samples = [], []
    for _ in range(rounds):
        floor.append(bench.floor())
        samples.append(bench.loop())
    row(what, floor, samples)


def run(cluster: Cluster, what: str, rounds: int) -> None:
    """One queue: all jobs wait for a limit; then machines for all slots are started, and are awaited."""
    sys.stdout.write(f"{what}; squeue shows {cluster.sh('squeue -h | wc -l').strip()}\n")
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        bench = LoopBench(cluster, Path(folder), 0)
        try:
            bench.loop()
            bench.wait_idle()
            row("  first look, every word new", [bench.floor()], [bench.loop()])
            measure(bench, "  all wait for a limit", rounds)
        finally:
            bench.close()
    with tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder:
        bench = LoopBench(cluster, Path(folder), 100_000)
        try:
            bench.loop()
            bench.wait_idle()
            row("  all machines are asked for", [bench.floor()], [bench.loop()])
            bench.wait_idle()
            settling = [bench.loop()]
            while bench.states().keys() != {"validating"} or bench.workers.calls_under_way():
                bench.wait_idle()
                settling.append(bench.loop())
            row("  all answers come at once", [bench.floor()], settling)
            measure(bench, "  all machines are awaited", rounds)
            sys.stdout.write(f"  {bench.states()}\n")
        finally:
            bench.close()


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--release", default="bookworm", choices=sorted(slurm_files.VERSIONS))
    arguments = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    sys.stdout.write(
        "milliseconds; floor: squeue and 'scontrol show node'; slurm: burstd's commands of Slurm; cpu: burstd's own\n"
    )
    heads = ("floor", "slurm", "cpu", "loop", "worst", "ratio", "commands")
    sys.stdout.write(
        f"{'':38} " + " ".join(f"{h:>{w}}" for h, w in zip(heads, (8, 8, 8, 8, 8, 7, 9), strict=True)) + "\n"
    )
    few, slots = max(len(SHAPES), arguments.slots // 10), arguments.slots
    with slurm(few, arguments.release) as cluster:
        submit(cluster, 0, 0, 100, split=False)
        run(cluster, f"{few} slots, 100 jobs", arguments.rounds)
    with slurm(slots, arguments.release) as cluster:
        submit(cluster, 300, 30, 1000, split=False)
        run(cluster, f"{slots} slots, 10,000 tasks in 1,300 rows", arguments.rounds)
    with slurm(slots, arguments.release) as cluster:
        submit(cluster, 40, 240, 400, split=True)
        run(cluster, f"{slots} slots, 10,000 rows", arguments.rounds)


if __name__ == "__main__":
    main()
