"""What new machines cost beside what the best packing could cost at least, by HiGHS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pytest

from burstd.domain.cloud.offer import OfferRule
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import Snapshot
from burstd.planner.policy_chain import make_target

from .worlds import job, make_snapshot, offer, pool

if TYPE_CHECKING:
    import highspy

JobSize = tuple[int, int, int]
"""CPUs, MiB, GPUs of a job."""


def size_of(shape: Shape) -> JobSize:
    return shape.cpus, shape.memory_mib, shape.gpus()


def fits(size: JobSize, shape: Shape) -> bool:
    return all(a <= there for a, there in zip(size, size_of(shape), strict=True))


def queue_of(sizes: Mapping[JobSize, int], seed: int) -> list[Job]:
    """The jobs, their order in the queue drawn by lot."""
    every = [size for size, count in sizes.items() for _ in range(count)]
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
    return make_snapshot(*jobs, pools=tuple(pools), offers=tuple(offers))


def cost(snapshot: Snapshot) -> float:
    """Of an hour of what is wanted; every job must have got its place."""
    found = make_target(snapshot, ())
    assert {r.verdict for r in found.remarks} == {"boot"}
    return float(sum(want.offers[0].price for want in found.wants))


def solver() -> highspy.Highs:
    """Which says nothing."""
    import highspy

    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    return model


def lower_bound(types: Sequence[tuple[Shape, str]], sizes: Mapping[JobSize, int]) -> float:
    """Machines bought whole, jobs poured into them as if they were liquid: no packing costs less."""
    model = solver()
    model.setOptionValue("mip_rel_gap", 1e-3)
    machines = [model.addIntegral(lb=0) for _ in types]
    shares = {
        (n, asked): model.addVariable(lb=0)
        for (n, (shape, _)), asked in product(enumerate(types), sizes)
        if fits(asked, shape)
    }
    for size, count in sizes.items():
        model.addConstr(sum(part for (_, one), part in shares.items() if one == size) == count)
    for n, (shape, _) in enumerate(types):
        mine = [(asked, part) for (one, asked), part in shares.items() if one == n]
        for resource, there in enumerate(size_of(shape)):
            used = [asked[resource] * part for asked, part in mine if asked[resource]]
            if used:
                model.addConstr(sum(used) <= there * machines[n])
    model.minimize(sum(float(price) * machine for (_, price), machine in zip(types, machines, strict=True)))
    return float(model.getInfo().mip_dual_bound)


def lower_bound_by_columns(types: Sequence[tuple[Shape, str]], sizes: Mapping[JobSize, int]) -> float:
    """Over all ways to fill a machine: exact but for the last machine of each way. For few kinds of jobs."""
    model = solver()
    columns = [
        (model.addVariable(lb=0), float(price), filling)
        for shape, price in types
        for filling in machine_packings(shape, list(sizes))
    ]
    for size, count in sizes.items():
        model.addConstr(sum(filling[size] * many for many, _, filling in columns if filling[size]) >= count)
    model.minimize(sum(price * many for many, price, _ in columns))
    return float(model.getObjectiveValue())


def machine_packings(shape: Shape, sizes: list[JobSize]) -> list[Counter[JobSize]]:
    """All ways to put such jobs on a machine."""
    if not sizes:
        return [Counter()]
    found = []
    cpus, memory, gpus = size_of(shape)
    for many in range(1 + cpus // sizes[0][0]):
        left = [there - many * asked for there, asked in zip((cpus, memory, gpus), sizes[0], strict=True)]
        if min(left) < 0:
            break
        rest = Shape(left[0], left[1], (Gres("gpu", "", left[2]),))
        found += [Counter({sizes[0]: many}) + more for more in machine_packings(rest, sizes[1:])]
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


def shapes(seed: int, jobs: int, per_cpu: Sequence[int]) -> Counter[JobSize]:
    """49 shapes of jobs, few large ones."""
    lot = Random(seed)  # noqa: S311
    some = [(cpus, cpus * memory, 0) for cpus, memory in product((1, 2, 3, 4, 6, 8, 12), per_cpu)]
    return Counter(lot.choices(some, [1 / asked[0] for asked in some], k=jobs))


@pytest.mark.slow
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
    most: float, jobs: int, machines_per_cpu: Sequence[int], jobs_per_cpu: Sequence[int]
) -> None:
    types, asks = catalogue(1, machines_per_cpu), shapes(1, jobs, jobs_per_cpu)
    assert cost(site(types, queue_of(asks, 1))) <= most * lower_bound(types, asks)


@pytest.mark.parametrize(
    ("most", "asks"),
    [
        (1.01, {(4, 1000, 0): 400, (8, 2000, 0): 400, (16, 3000, 0): 100}),
        (1.04, {(9, 1000, 0): 500, (7, 1000, 0): 500}),
        (1.02, {(3, 1000, 0): 900, (5, 2000, 0): 700, (6, 30_000, 0): 300}),
        (1.03, {(11, 2000, 0): 400, (5, 2000, 0): 400, (4, 20_000, 0): 400}),
    ],
)
def test_awkward_shapes(most: float, asks: dict[JobSize, int]) -> None:
    types = [(Shape(16, 64_000), "1"), (Shape(64, 256_000), "3.8")]
    assert cost(site(types, queue_of(asks, 1))) <= most * lower_bound_by_columns(types, asks)
