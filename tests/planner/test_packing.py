"""What new machines cost beside what the best packing could cost at least, by HiGHS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import highspy
import pytest

from burstd.domain.cloud.offer import OfferRule
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import Snapshot
from burstd.planner.policy_chain import make_target

from .worlds import job, offer, pool, world

Ask = tuple[int, int, int]
"""CPUs, MiB, GPUs of a job."""


def room(shape: Shape) -> Ask:
    return shape.cpus, shape.memory_mib, shape.gpus()


def fits(asked: Ask, shape: Shape) -> bool:
    return all(a <= there for a, there in zip(asked, room(shape), strict=True))


def rows(asks: Mapping[Ask, int], seed: int) -> list[Job]:
    """The jobs, their order in the queue drawn by lot."""
    every = [asked for asked, count in asks.items() for _ in range(count)]
    Random(seed).shuffle(every)  # noqa: S311
    return [
        job(str(n), cpus=cpus, memory_mib=memory, priority=-n, gres_per_node=(Gres("gpu", "", gpus),) if gpus else ())
        for n, (cpus, memory, gpus) in enumerate(every)
    ]


def site(types: Sequence[tuple[Shape, str]], jobs: Sequence[Job]) -> Snapshot:
    """A pool for each type, with as many slots as anybody could want."""
    pools, offers = [], []
    for n, (shape, price) in enumerate(types):
        pools.append(pool(f"p{n}-", 1 + 3 * len(jobs) // 4, shape, rules=(OfferRule("sky", (f"t{n}",)),)))
        offers.append(offer(f"t{n}", price, shape))
    return world(*jobs, pools=tuple(pools), offers=tuple(offers))


def cost(snapshot: Snapshot) -> float:
    """Of an hour of what is wanted; every job must have got its place."""
    found = make_target(snapshot, ())
    assert {r.verdict for r in found.remarks} == {"boot"}
    return float(sum(want.offers[0].price for want in found.wants))


def solver() -> highspy.Highs:
    """Which says nothing."""
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    return model


def least(types: Sequence[tuple[Shape, str]], asks: Mapping[Ask, int]) -> float:
    """Machines bought whole, jobs poured into them as if they were liquid: no packing costs less."""
    model = solver()
    model.setOptionValue("mip_rel_gap", 1e-3)
    machines = [model.addIntegral(lb=0) for _ in types]
    parts = {
        (n, asked): model.addVariable(lb=0)
        for (n, (shape, _)), asked in product(enumerate(types), asks)
        if fits(asked, shape)
    }
    for asked, count in asks.items():
        model.addConstr(sum(part for (_, one), part in parts.items() if one == asked) == count)
    for n, (shape, _) in enumerate(types):
        mine = [(asked, part) for (one, asked), part in parts.items() if one == n]
        for resource, there in enumerate(room(shape)):
            used = [asked[resource] * part for asked, part in mine if asked[resource]]
            if used:
                model.addConstr(sum(used) <= there * machines[n])
    model.minimize(sum(float(price) * machine for (_, price), machine in zip(types, machines, strict=True)))
    return float(model.getInfo().mip_dual_bound)


def least_in_patterns(types: Sequence[tuple[Shape, str]], asks: Mapping[Ask, int]) -> float:
    """Over all ways to fill a machine: exact but for the last machine of each way. For few kinds of jobs."""
    model = solver()
    columns = [
        (model.addVariable(lb=0), float(price), filling)
        for shape, price in types
        for filling in fillings(shape, list(asks))
    ]
    for asked, count in asks.items():
        model.addConstr(sum(filling[asked] * many for many, _, filling in columns if filling[asked]) >= count)
    model.minimize(sum(price * many for many, price, _ in columns))
    return float(model.getObjectiveValue())


def fillings(shape: Shape, asks: list[Ask]) -> list[Counter[Ask]]:
    """All ways to put such jobs on a machine."""
    if not asks:
        return [Counter()]
    found = []
    cpus, memory, gpus = room(shape)
    for many in range(1 + cpus // asks[0][0]):
        left = [there - many * asked for there, asked in zip((cpus, memory, gpus), asks[0], strict=True)]
        if min(left) < 0:
            break
        rest = Shape(left[0], left[1], (Gres("gpu", "", left[2]),))
        found += [Counter({asks[0]: many}) + more for more in fillings(rest, asks[1:])]
    return found


def catalogue(seed: int, per_cpu: Sequence[int]) -> list[tuple[Shape, str]]:
    """48 types, whose prices are near what their parts would cost."""
    lot = Random(seed)  # noqa: S311
    types = []
    for cpus, memory, gpus in product((4, 8, 16, 32, 48, 64, 96, 128), per_cpu, (0, 1)):
        cards = cpus // 8 if gpus else 0
        price = cpus * 0.04 + cpus * memory * 5e-6 + cards * 0.9
        gres = (Gres("gpu", "a100", cards),) if cards else ()
        types.append((Shape(cpus, cpus * memory, gres), f"{price * lot.uniform(0.97, 1.03):.4f}"))
    return types


def shapes(seed: int, jobs: int, per_cpu: Sequence[int]) -> Counter[Ask]:
    """49 shapes of jobs, few large ones."""
    lot = Random(seed)  # noqa: S311
    some = [(cpus, cpus * memory, 0) for cpus, memory in product((1, 2, 3, 4, 6, 8, 12), per_cpu)]
    return Counter(lot.choices(some, [1 / asked[0] for asked in some], k=jobs))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("most", "jobs", "machines_per_cpu", "jobs_per_cpu"),
    [
        # As clouds mostly sell them, and as most jobs ask: CPUs are what runs out.
        (1.01, 3000, (4000, 4000, 4000), (500, 1000, 1500, 2000, 3000, 3500, 4000)),
        (1.02, 300, (4000, 4000, 4000), (500, 1000, 1500, 2000, 3000, 3500, 4000)),
        # Every proportion on both sides. The least mixes jobs on machines that suit none of them alone; first fit in
        # the order of the queue, with a pool chosen for each kind of job by itself, costs a fifth more than that.
        (1.25, 3000, (2000, 4000, 8000), (500, 1000, 1500, 2000, 3000, 4000, 6000)),
    ],
)
def test_many_types_and_shapes(
    most: float, jobs: int, machines_per_cpu: Sequence[int], jobs_per_cpu: Sequence[int], seed: int
) -> None:
    types, asks = catalogue(seed, machines_per_cpu), shapes(seed, jobs, jobs_per_cpu)
    assert cost(site(types, rows(asks, seed))) <= most * least(types, asks)


@pytest.mark.parametrize(
    ("most", "asks"),
    [
        (1.01, {(4, 1000, 0): 400, (8, 2000, 0): 400, (16, 3000, 0): 100}),
        (1.04, {(9, 1000, 0): 500, (7, 1000, 0): 500}),
        (1.02, {(3, 1000, 0): 900, (5, 2000, 0): 700, (6, 30_000, 0): 300}),
        (1.03, {(11, 2000, 0): 400, (5, 2000, 0): 400, (4, 20_000, 0): 400}),
    ],
)
def test_awkward_shapes(most: float, asks: dict[Ask, int]) -> None:
    types = [(Shape(16, 64_000), "1"), (Shape(64, 256_000), "3.8")]
    assert cost(site(types, rows(asks, 1))) <= most * least_in_patterns(types, asks)
