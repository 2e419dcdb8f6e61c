"""How long a decision takes: ``python -m tests.bench.bench_decide [SLOTS] [JOBS]``.

No clouds, no Slurm: values in, values out. Each queue has a process of its own. Prints milliseconds of processor time,
least and most of some decisions: from cold (nothing is known), and after one change each, with the memory of the
decision before; then the most memory that the process ever had. ``--peer`` measures aws-parallelcluster-node's loop on
as many nodes (root; see decide_peer.py).
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, PolicyPlugin
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.timeouts import Tuning
from policies import backlog, idle, limits

NOW = 1_000_000.0
ROUNDS = 5
SHAPES = (
    Shape(16, 64_000),
    Shape(64, 256_000, features=frozenset({"big"})),
    Shape(16, 128_000, (Gres("gpu", "v100", 4),)),
    Shape(32, 256_000, (Gres("gpu", "a100", 8),), frozenset({"a100"})),
)


@dataclass(frozen=True, slots=True)
class QueueCase:
    """A queue: so many kinds of jobs, on so many nodes each, and the share of the slots that is open."""

    name: str
    kinds: int
    nodes: Callable[[int], int]
    open_share: float
    idle_every: int = 2
    """One in so many of the open nodes is idle, the others are busy."""
    chain: bool = False
    """With the policies backlog, idle and limits."""


CASES = (
    QueueCase("50 kinds, all slots free", 50, lambda _: 1, 0.0),
    QueueCase("50 kinds, half of the slots open", 50, lambda _: 1, 0.5),
    QueueCase("50 kinds, every slot open", 50, lambda _: 1, 1.0),
    QueueCase("1,000 kinds, half of the slots open", 1000, lambda _: 1, 0.5),
    QueueCase("50 kinds, one in ten on 4 nodes", 50, lambda n: 4 if n % 10 == 0 else 1, 0.5),
    QueueCase("50 kinds, all on 2 nodes", 50, lambda _: 2, 0.5),
    QueueCase("50 kinds, all open, one in 100 idle", 50, lambda _: 1, 1.0, idle_every=100),
    QueueCase("half open, with backlog, idle, limits", 50, lambda _: 1, 0.5, chain=True),
)


def queue(kinds: int, jobs: int, nodes: Callable[[int], int]) -> tuple[Job, ...]:
    """Pending jobs of so many kinds, shuffled by a fixed rule."""
    rows = []
    for n in range(jobs):
        kind = n * 7919 % kinds
        gpus = (Gres("gpu", "", 1 + kind % 4),) if kind % 3 == 0 else ()
        rows.append(
            Job(
                str(n + 1), f"user{n % 40}", JobState.PENDING, ("burst",), NOW - n, reason="Resources",
                priority=10_000 - n, cpus=1 + kind % 16, memory_mib=1000 + 10 * kind, gres_per_node=gpus,
                nodes=nodes(n),
            )
        )  # fmt: skip
    return tuple(rows)


def queue_snapshot(jobs: tuple[Job, ...], slots: int, open_share: float, idle_every: int = 2) -> Snapshot:
    """Four pools, a share of the slots open, most or half of them busy, sixteen nodes of the site, all busy."""
    pools, nodes, claims, offers = {}, {}, [], []
    for p, shape in enumerate(SHAPES):
        names = tuple(f"p{p}n{n}" for n in range(slots // len(SHAPES)))
        pool = Pool(f"p{p}", names, ("burst",), shape, (OfferRule("sky"),))
        pools[pool.name] = pool
        offer = Offer("sky", "r", "a", f"t{p}", spot=False, shape=shape, price=Decimal(1 + p))
        offers.append(offer)
        for n, name in enumerate(names):
            is_open = n < len(names) * open_share
            flags = frozenset({"CLOUD"}) if is_open else frozenset({"CLOUD", "POWERED_DOWN"})
            node = Node(name, "IDLE", flags, ("burst",), shape.cpus, 0, shape.memory_mib, 0, shape.gres,
                        features=shape.features)  # fmt: skip
            if is_open:
                claims.append(
                    Claim(f"c-{name}", "x", pool.name, name, offer, Cause.DEMAND, ClaimState.IN_SERVICE, NOW, NOW)
                )
                if n % idle_every:
                    node = replace(node, state="ALLOCATED", cpus_allocated=shape.cpus)
            nodes[name] = node
    for n in range(16):
        nodes[f"op{n}"] = Node(f"op{n}", "ALLOCATED", frozenset(), ("onprem",), 64, 64, 256_000)
    return Snapshot(NOW, "x", pools, SlurmView(jobs, nodes, ()), {"sky": CloudView(tuple(offers), ())}, tuple(claims))


def _jobs(snapshot: Snapshot, change: Callable[[list[Job]], object]) -> Snapshot:
    assert isinstance(snapshot.slurm, SlurmView)
    jobs = list(snapshot.slurm.jobs)
    change(jobs)
    return replace(snapshot, now=snapshot.now + 1, slurm=replace(snapshot.slurm, jobs=tuple(jobs)))


def _last(snapshot: Snapshot) -> Snapshot:
    at = snapshot.now
    return _jobs(snapshot, lambda jobs: jobs.append(replace(jobs[7], id=f"{at}x", priority=-(10**6), submitted=at)))


def _first(snapshot: Snapshot) -> Snapshot:
    at = snapshot.now
    return _jobs(snapshot, lambda jobs: jobs.append(replace(jobs[7], id=f"{at}y", priority=10**6, submitted=at)))


def _reason(snapshot: Snapshot) -> Snapshot:
    """Slurm gives the first and one at the end another reason, as burstd's own comments change a job."""

    def change(jobs: list[Job]) -> None:
        for at in (0, -100):
            row = jobs[at]
            jobs[at] = replace(row, reason="Priority" if row.reason == "Resources" else "Resources")

    return _jobs(snapshot, change)


def _ended(snapshot: Snapshot) -> Snapshot:
    """A node of the pools becomes idle, or, where none is busy, is busy."""
    assert isinstance(snapshot.slurm, SlurmView)
    nodes = dict(snapshot.slurm.nodes)
    pool_nodes = [nodes[claim.slot] for claim in snapshot.claims]
    busy = next((node for node in reversed(pool_nodes) if node.busy), None)
    if busy is not None:
        nodes[busy.name] = replace(busy, state="IDLE", cpus_allocated=0)
    return replace(snapshot, now=snapshot.now + 1, slurm=replace(snapshot.slurm, nodes=nodes))


CHANGES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "time": lambda snapshot: replace(snapshot, now=snapshot.now + 1),
    "last": _last,
    "reason": _reason,
    "gone": lambda snapshot: _jobs(snapshot, lambda jobs: jobs.pop(len(jobs) * 9 // 10)),
    "front": _first,
    "1st gone": lambda snapshot: _jobs(snapshot, lambda jobs: jobs.pop(0)),
    "node": _ended,
}
HEADS = f"{'queue':38} {'cold':>9} " + " ".join(f"{name:>9}" for name in CHANGES) + f" {'MB':>5} {'wants':>6}\n"


def shipped_policies() -> tuple[Policy, ...]:
    """The common chain, with a limit that nothing reaches."""
    some: tuple[tuple[PolicyPlugin, dict[str, int]], ...] = (
        (backlog.plugin, {}),
        (idle.plugin, {}),
        (limits.plugin, {"nodes": 10**6}),
    )
    return tuple(plugin.make(plugin.settings(**given)) for plugin, given in some)


def measure(case: QueueCase, slots: int, jobs: int) -> str:
    """A line of the table; for a process of its own."""
    snapshot = queue_snapshot(queue(case.kinds, jobs, case.nodes), slots, case.open_share, case.idle_every)
    policies = shipped_policies() if case.chain else ()
    gc.collect()
    gc.freeze()  # both as the daemon does after its start
    gc.set_threshold(100_000)

    def timed(decider: Decider, now: Snapshot) -> tuple[float, Plan]:
        begun = time.process_time()
        plan = decider.decide(now, policies, Tuning())
        return 1000 * (time.process_time() - begun), plan

    cold = [timed(Decider(), snapshot)[0] for _ in range(ROUNDS)]
    decider = Decider()
    _, plan = timed(decider, snapshot)
    columns = []
    for change in CHANGES.values():
        some = []
        for _ in range(ROUNDS):
            snapshot = change(snapshot)
            some.append(timed(decider, snapshot)[0])
        columns.append(_span(some))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    return (
        f"{case.name:38} {_span(cold):>9} {' '.join(f'{c:>9}' for c in columns)} {most:5} {len(plan.target.wants):6}\n"
    )


def _span(some: list[float]) -> str:
    return f"{min(some):.0f}-{max(some):.0f}"


def main() -> None:
    """Runs the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_decide", description=__doc__)
    parser.add_argument("slots", type=int, nargs="?", default=1000)
    parser.add_argument("jobs", type=int, nargs="?", default=10_000)
    parser.add_argument("--case", type=int, help="this queue alone, in this process")
    parser.add_argument("--peer", action="store_true", help="aws-parallelcluster-node on as many nodes as well (root)")
    arguments = parser.parse_args()
    slots, jobs = arguments.slots, arguments.jobs
    if arguments.case is not None:
        sys.stdout.write(measure(CASES[arguments.case], slots, jobs))
        return
    sys.stdout.write(
        f"{slots} slots, {jobs} pending jobs; milliseconds of processor time, least and most of {ROUNDS}\n"
    )
    sys.stdout.write(HEADS)
    sys.stdout.flush()
    for number in range(len(CASES)):
        subprocess.run([sys.executable, __file__, str(slots), str(jobs), "--case", str(number)], check=True)
    if arguments.peer:
        from tests.bench.decide_peer import run

        sys.stdout.write(run(slots))


if __name__ == "__main__":
    main()
