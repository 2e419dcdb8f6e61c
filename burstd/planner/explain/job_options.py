"""Which single options of a job could be asked for differently, each option's smallest change first. Pure guessing.

Whether a change helps is not said here: what_if.py puts each to the decision. Left out is only what no pool and no
other node could have room for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from burstd.domain.cloud.offer import fabric_features
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import SHARD, Gres, Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.gres import GresCounts, available_gres
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.placement.bins import shape_of

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_.:=/%+#@-]+")
_MAX_FEATURES = 16
"""Of a constraint, of which one is left out."""
_TIME_LIMIT_DIVISORS = (2, 4, 8, 24)
"""Parts of a time limit that are tried."""
_TIME_LIMITS_TO_TRY_S = (86400.0, 4 * 3600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class JobVariant:
    """One option, asked for differently. ``update``: the words for ``scontrol update``; empty: there are none."""

    before: str
    after: str
    update: str
    job: Job


def job_variants(job: Job, snapshot: Snapshot, slurm: SlurmView, *, by_time: bool) -> Iterator[list[JobVariant]]:
    """One list an option, its smallest change first. ``by_time``: whether a shorter time limit may matter."""
    shapes = _PartitionShapes(job, snapshot, slurm)
    every: tuple[Iterable[JobVariant], ...] = (
        _constraint(job, shapes.shapes, _promised_features(snapshot)),
        _partitions(job, snapshot),
        _nodes_named(job, snapshot),
        *(_gres(job, index, shapes.shapes, of_job=of_job) for of_job, index in _gres_positions(job)),
        _exclusive(job),
        _memory(job, shapes.shapes),
        _nodes(job, snapshot),
        _cpus(job, shapes.shapes),
        _a_gpu(job),
        _time(job) if by_time else (),
    )
    for some in every:
        found = [option for option in some if shapes.could_run(option.job)]
        if found:
            yield found


class _PartitionShapes:
    """The shapes that a job's partitions have, and those of every partition."""

    def __init__(self, job: Job, snapshot: Snapshot, slurm: SlurmView) -> None:
        slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
        self._all = {(pool.partitions, pool.shape) for pool in snapshot.pools.values()}
        self._all |= {(node.partitions, shape_of(node)) for node in slurm.nodes.values() if node.name not in slots}
        self.shapes = self._shapes_for(job)

    def _shapes_for(self, job: Job) -> list[Shape]:
        mine = set(job.partitions)
        found = {shape for partitions, shape in self._all if not mine.isdisjoint(partitions)}
        return sorted(found, key=lambda s: (s.gpus(), s.cpus, s.memory_mib, s.gres, sorted(s.features)))

    def could_run(self, job: Job) -> bool:
        """Whether nodes of one shape could run it, if there are enough."""
        wanted = resource_requirements(job)
        return any(
            wanted.constraint.may_use(shape.features) and not isinstance(wanted.nodes_needed(shape), str)
            for shape in self._shapes_for(job)
        )


def _promised_features(snapshot: Snapshot) -> frozenset[str]:
    """Frameworks and fabrics: a job that needs one cannot use another feature in its place."""
    return frozenset(
        feature
        for pool in snapshot.pools.values()
        for feature in (*fabric_features(pool.fabric), *(framework.name for framework in pool.frameworks))
    )


def _constraint(job: Job, shapes: Iterable[Shape], promised: frozenset[str]) -> Iterator[JobVariant]:
    if not job.constraint:
        return
    feature_names = _PLAIN_TEXT.findall(job.constraint)

    def option(text: str) -> JobVariant:
        after = f"-C {_quoted(text)}" if text else "no -C"
        changed = replace(job, constraint=text)
        return JobVariant(f"-C {_quoted(job.constraint)}", after, f"Features={_quoted(text)}", changed)

    if job.constraint == "&".join(feature_names) and 1 < len(feature_names) <= _MAX_FEATURES:
        for left_out in range(len(feature_names)):
            yield option("&".join(w for i, w in enumerate(feature_names) if i != left_out))
    elif job.constraint == "|".join(feature_names) and promised.isdisjoint(feature_names):
        others = [shape.features - promised for shape in shapes if shape.features.isdisjoint(feature_names)]
        # A feature that few kinds of nodes have names them best.
        common = Counter(feature for shape in shapes for feature in shape.features)
        # Small nodes first: they cost the least.
        for feature in dict.fromkeys(min(some, key=lambda f: (common[f], f)) for some in others if some):
            yield option(f"{job.constraint}|{feature}")
    yield option("")


def _partitions(job: Job, snapshot: Snapshot) -> Iterator[JobVariant]:
    burst = sorted({p for pool in snapshot.pools.values() for p in pool.partitions} - set(job.partitions))
    before = ",".join(job.partitions)
    for partition in burst:
        after = f"{before},{partition}"
        changed = replace(job, partitions=(*job.partitions, partition))
        yield JobVariant(f"-p {before}", f"-p {after}", f"Partition={after}", changed)


def _nodes_named(job: Job, snapshot: Snapshot) -> Iterator[JobVariant]:
    if job.node_list:
        yield JobVariant(f"-w {','.join(job.node_list)}", "no -w", "ReqNodeList=", replace(job, node_list=()))
    known = snapshot.runtime_state.excluded_nodes
    added = known.get(job.id) or known.get(job.array_job_id, frozenset())
    own = tuple(name for name in job.excluded_nodes if name not in added)
    if own:
        # burstd's own exclusions stay: it would put them back.
        kept = tuple(name for name in job.excluded_nodes if name in added)
        update = f"ExcNodeList={','.join(kept)}"
        yield JobVariant(f"-x {','.join(own)}", "no -x", update, replace(job, excluded_nodes=kept))


def _gres_positions(job: Job) -> Iterator[tuple[bool, int]]:
    """Each GRES of the job: whether it is asked for the job as a whole, and which of them it is."""
    yield from ((False, index) for index in range(len(job.gres_per_node)))
    yield from ((True, index) for index in range(len(job.gres_per_job)))


def _gres(job: Job, index: int, shapes: Iterable[Shape], *, of_job: bool) -> Iterator[JobVariant]:
    """Any type, another type, fewer of it."""
    asked = job.gres_per_job if of_job else job.gres_per_node
    old = asked[index]

    def option(new: Gres) -> JobVariant:
        now = (*asked[:index], new, *asked[index + 1 :])
        changed = replace(job, gres_per_job=now) if of_job else replace(job, gres_per_node=now)
        field = "TresPerJob" if of_job else "TresPerNode"
        update = f"{field}={','.join(f'gres/{g}' for g in now)}"
        return JobVariant(_gres_flag(asked, of_job=of_job), _gres_flag(now, of_job=of_job), update, changed)

    if old.type:
        yield option(replace(old, type=""))
        types = {g.type for shape in shapes for g in shape.gres if g.name == old.name and g.type} - {old.type}
        for kind in sorted(types):
            yield option(replace(old, type=kind))
    nodes = max(1, job.nodes) if of_job else 1
    if old.name == SHARD:
        for per_gpu in sorted({shape.shards_per_gpu() for shape in shapes} - {0}):
            yield option(Gres("gpu", "", -(-old.count // per_gpu)))
    counts = {available_gres(GresCounts(shape.gres), old.name, old.type) * nodes for shape in shapes} | {1}
    for count in sorted((c for c in counts if 0 < c < old.count), reverse=True):
        yield option(replace(old, count=count))


def _a_gpu(job: Job) -> Iterator[JobVariant]:
    """Of pools that start machines for jobs with GPUs only."""
    if not resource_requirements(job).asks_for_gpus:
        now = (*job.gres_per_node, Gres("gpu", "", 1))
        before = _gres_flag(job.gres_per_node, of_job=False) if job.gres_per_node else "no --gres"
        update = f"TresPerNode={','.join(f'gres/{g}' for g in now)}"
        yield JobVariant(before, _gres_flag(now, of_job=False), update, replace(job, gres_per_node=now))


def _gres_flag(asked: tuple[Gres, ...], *, of_job: bool) -> str:
    if of_job and all(g.name == "gpu" for g in asked):
        return "--gpus=" + ",".join(str(g).removeprefix("gpu:") for g in asked)
    return "--gres=" + ",".join(map(str, asked))


def _exclusive(job: Job) -> Iterator[JobVariant]:
    if job.exclusive:
        yield JobVariant("--exclusive", "no --exclusive", "", replace(job, exclusive=False))


def _memory(job: Job, shapes: Iterable[Shape]) -> Iterator[JobVariant]:
    if not job.memory_mib:
        return
    parts = resource_requirements(job).share_per_node(max(1, job.nodes)).cpus if job.memory_per_cpu else 1
    flag, field = ("--mem-per-cpu", "MinMemoryCPU") if job.memory_per_cpu else ("--mem", "MinMemoryNode")
    sizes = {shape.memory_mib // parts for shape in shapes}
    for size in sorted((s for s in sizes if 0 < s < job.memory_mib), reverse=True):
        changed = replace(job, memory_mib=size)
        yield JobVariant(f"{flag}={_mib(job.memory_mib)}", f"{flag}={_mib(size)}", f"{field}={size}", changed)


def _nodes(job: Job, snapshot: Snapshot) -> Iterator[JobVariant]:
    if job.nodes < 2:
        return
    pools = [pool for pool in snapshot.pools.values() if not set(pool.partitions).isdisjoint(job.partitions)]
    free = {len(snapshot.free_slots(pool)) for pool in pools}
    counts = {n for n in (*free, job.nodes - 1, job.nodes // 2, job.nodes // 4, 1) if 0 < n < job.nodes}
    for nodes in sorted(counts, reverse=True):
        most = nodes if job.nodes_max == job.nodes else job.nodes_max
        changed = replace(job, nodes=nodes, nodes_max=most, cpus=max(1, -(-job.cpus * nodes // job.nodes)))
        yield JobVariant(f"-N {job.nodes}", f"-N {nodes}", "", changed)


def _cpus(job: Job, shapes: Iterable[Shape]) -> Iterator[JobVariant]:
    nodes = max(1, job.nodes)
    asked = max(job.cpus, job.cpus_per_node * nodes)
    for cpus in sorted({shape.cpus * nodes for shape in shapes} - {0}, reverse=True):
        if cpus < asked:
            changed = replace(job, cpus=cpus, cpus_per_node=min(job.cpus_per_node, cpus // nodes))
            yield JobVariant(f"{asked} CPUs (-n, -c)", f"{cpus} CPUs", "", changed)


def _time(job: Job) -> Iterator[JobVariant]:
    limit = job.time_limit_s
    shorter = [limit / part for part in _TIME_LIMIT_DIVISORS] if limit else list(_TIME_LIMITS_TO_TRY_S)
    before = f"-t {time_limit_text(limit)}" if limit else "no -t"
    for seconds in dict.fromkeys(max(60.0, s // 60 * 60) for s in shorter):
        if not limit or seconds < limit:
            after = time_limit_text(seconds)
            yield JobVariant(before, f"-t {after}", f"TimeLimit={after}", replace(job, time_limit_s=seconds))


def time_limit_text(seconds: float) -> str:
    """As Slurm writes a length of time: ``4:00:00``, ``2-00:00:00``."""
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{days}-{hours:02}:{minutes % 60:02}:00" if days else f"{hours}:{minutes % 60:02}:00"


def _mib(size: int) -> str:
    return f"{size // 1024}G" if size % 1024 == 0 else f"{size}M"


def _quoted(text: str) -> str:
    return text if not text or _PLAIN_TEXT.fullmatch(text) else f"'{text}'"
