"""How long a decision takes with a thousand slots and ten thousand jobs: ``python tests/bench/bench_decide.py``.

Prints the median and the worst of some runs for several queues. No clouds, no Slurm: values in, values out.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from burstd.core.chain import make_target
from burstd.core.decide import decide
from burstd.core.tuning import Tuning
from burstd.model.claim import Cause, Claim, ClaimState
from burstd.model.job import Job, JobState
from burstd.model.node import Node
from burstd.model.offer import Offer, OfferRule, Pool
from burstd.model.shape import Gres, Shape
from burstd.model.snapshot import CloudView, SlurmView, Snapshot

NOW = 1_000_000.0
SHAPES = (
    Shape(16, 64_000),
    Shape(64, 256_000, features=frozenset({"big"})),
    Shape(16, 128_000, (Gres("gpu", "v100", 4),)),
    Shape(32, 256_000, (Gres("gpu", "a100", 8),), frozenset({"a100"})),
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


def world(jobs: tuple[Job, ...], slots: int, open_share: float) -> Snapshot:
    """Four pools, a share of the slots open and half busy, sixteen nodes of the site, all busy."""
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
                claims.append(Claim(f"c-{name}", "x", pool.name, name, offer, Cause.DEMAND, ClaimState.OPEN, NOW, NOW))
                if n % 2:
                    node = replace(node, state="ALLOCATED", cpus_allocated=shape.cpus)
            nodes[name] = node
    for n in range(16):
        nodes[f"op{n}"] = Node(f"op{n}", "ALLOCATED", frozenset(), ("onprem",), 64, 64, 256_000)
    return Snapshot(NOW, "x", pools, SlurmView(jobs, nodes, ()), {"sky": CloudView(tuple(offers), ())}, tuple(claims))


def main() -> None:
    """Runs the table."""
    slots = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    out = sys.stdout.write
    out(f"{slots} slots, {jobs} pending jobs\n")
    out(f"{'queue':44} {'placed ms':>10} {'decide ms':>10} {'worst':>8} {'wants':>6}\n")
    cases: list[tuple[str, int, Callable[[int], int], float]] = [
        ("50 kinds, all slots free", 50, lambda _: 1, 0.0),
        ("50 kinds, half of the slots open", 50, lambda _: 1, 0.5),
        ("50 kinds, every slot open", 50, lambda _: 1, 1.0),
        ("1,000 kinds, half of the slots open", 1000, lambda _: 1, 0.5),
        ("50 kinds, one in ten on 4 nodes", 50, lambda n: 4 if n % 10 == 0 else 1, 0.5),
        ("50 kinds, all on 2 nodes", 50, lambda _: 2, 0.5),
    ]
    for name, kinds, nodes, share in cases:
        snapshot = world(queue(kinds, jobs, nodes), slots, share)
        placed, whole = [], []
        wanted = 0
        for _ in range(5):
            start = time.perf_counter()
            wanted = len(make_target(snapshot, ()).wants)
            placed.append(1000 * (time.perf_counter() - start))
            start = time.perf_counter()
            decide(snapshot, (), Tuning())
            whole.append(1000 * (time.perf_counter() - start))
        middle, both = statistics.median(placed), statistics.median(whole)
        out(f"{name:44} {middle:10.0f} {both:10.0f} {max(whole):8.0f} {wanted:6}\n")


if __name__ == "__main__":
    main()
