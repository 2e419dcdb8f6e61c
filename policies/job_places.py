"""Where jobs with requirements of the policy ``broker`` may run, and what Slurm is to be told of it.

Slurm knows CPUs, memory, and GPUs by number and GRES type: these it gets as the job's own request. All else (models
that are no GRES types, architecture, tags, ...) becomes a list of nodes that the job must not run on. Both stay with
the job when it is requeued, and hold while burstd is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from policies.job_requirements import JobRequirement, OfferHardware

JUST_STARTED_S = 60.0
"""A job that has run for longer where it should not is left there: begun anew it would lose its work."""
HELD_BACK_S = 300 * 86400.0
"""A begin time further off than this is that of job_submit.lua, which has burstd see the job before it may start."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the jobs of one requirement and some partitions may run."""

    excluded: frozenset[str]
    """Nodes that do not meet the requirement, and slots that are to get no machine that does."""
    refusal: str = ""
    """Why they can run nowhere; empty: they can somewhere."""
    is_final: bool = True
    """False: a provider's offers are not known, so that the refusal may not be the last word."""
    in_request: bool = False
    """CPUs, memory and GPUs belong into the job's request: Slurm's nodes have them."""
    gpu_type: str = ""
    """The GRES type that GPUs of the models have on all these nodes; empty: several, or none."""


class PlaceFinder:
    """Finds them in one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        slurm: SlurmView,
        target: Target,
        offer_hardware: Callable[[Offer], OfferHardware],
        node_hardware: Callable[[Node], OfferHardware],
    ) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._target = target
        self._offer_hardware = offer_hardware
        self._node_hardware = node_hardware
        self.slots = frozenset(slot for pool in snapshot.pools.values() for slot in pool.slots)
        self._claimed = {claim.slot: claim.offer for claim in snapshot.claims}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._met: dict[tuple[str, OfferHardware], bool] = {}
        self._places: dict[tuple[str, tuple[str, ...]], Places] = {}

    def places_for(self, requirement: JobRequirement, partitions: tuple[str, ...]) -> Places:
        """Where jobs of these partitions may run."""
        key = requirement.text, partitions
        if key not in self._places:
            self._places[key] = self._find(requirement, frozenset(partitions))
        return self._places[key]

    def update_for(self, job: Job, requirement: JobRequirement | None) -> JobUpdate | None:
        """What Slurm is to be told of the job; None: it has it. Of one that requires nothing any more: the same."""
        known = self._snapshot.runtime_state.excluded_nodes
        added = known.get(job.id, known.get(job.array_job_id))
        places = self.places_for(requirement, job.partitions) if requirement is not None else Places(frozenset())
        excluded = frozenset(job.excluded_nodes)
        ours = added if added is not None else places.excluded
        own = frozenset(node for node in excluded if node not in ours and node not in self.slots)
        size = _size_update(job, requirement, places) if requirement is not None and places.in_request else _Size()
        start = requirement is not None and job.eligible - self._snapshot.now > HELD_BACK_S
        if excluded == places.excluded | own and size == _Size() and not start:
            return None
        return JobUpdate(
            places.excluded | own, places.excluded, size.gres, size.memory_mib, size.cpus, size.cpus_per_node, start
        )

    def misplaced(self, job: Job, requirement: JobRequirement) -> str:
        """Why a job must not run where it does; empty: it may. Slurm names only the partition in which it runs."""
        if requirement.syntax_error:
            return requirement.syntax_error
        for name in job.node_list:
            offer, node = self._claimed.get(name), self._slurm.nodes.get(name)
            if offer is not None:
                why = requirement.unmet_reason(self._offer_hardware(offer))
            else:
                why = requirement.unmet_reason(self._node_hardware(node)) if node is not None else ""
            if why:
                return f"Slurm started it on {name} before it was told what the comment requires: {why}"
        return ""

    def _find(self, requirement: JobRequirement, partitions: frozenset[str]) -> Places:
        pools = [pool for pool in self._snapshot.pools.values() if not partitions.isdisjoint(pool.partitions)]
        site = [
            node
            for node in self._slurm.nodes.values()
            if node.name not in self.slots and not partitions.isdisjoint(node.partitions)
        ]
        every = frozenset(slot for pool in pools for slot in pool.slots).union(node.name for node in site)
        if requirement.syntax_error:
            return Places(every, requirement.syntax_error)
        found: list[tuple[Shape, frozenset[str]]] = [
            (_shape(node), frozenset((node.name,)))
            for node in site
            if self._meets(requirement, self._node_hardware(node))
        ]
        for pool in pools:
            slots = self._matching_slots(requirement, pool)
            if slots:
                found.append((pool.shape, slots))
        if not found:
            unknown = any(isinstance(view.offers, Unavailable) for view in self._snapshot.clouds.values())
            return Places(every, self._nearest(requirement, pools, site), not unknown)
        in_slurm = [(shape, names) for shape, names in found if _has_sizes(shape, requirement)]
        right = in_slurm or found
        types = {tuple(_types(shape, requirement)) for shape, _ in right}
        common = next(iter(types)) if len(types) == 1 else ()
        return Places(
            every.difference(*(names for _, names in right)),
            in_request=bool(in_slurm),
            gpu_type=common[0] if len(common) == 1 else "",
        )

    def _matching_slots(self, requirement: JobRequirement, pool: Pool) -> frozenset[str]:
        free = any(self._meets(requirement, self._offer_hardware(offer)) for offer in self._offers_of(pool))
        return frozenset(
            slot
            for slot in pool.slots
            if (self._meets(requirement, self._offer_hardware(self._claimed[slot])) if slot in self._claimed else free)
        )

    def _offers_of(self, pool: Pool) -> tuple[Offer, ...]:
        """All that may fill its slots, also those that are not to be had now."""
        if pool.name not in self._offers:
            views = (view.offers for view in self._snapshot.clouds.values() if not isinstance(view.offers, Unavailable))
            named = (offer for offers in views for offer in offers if any(rule.allows(offer) for rule in pool.rules))
            every = {offer.id: offer for offer in (*named, *self._target.offers.get(pool.name, ()))}
            self._offers[pool.name] = tuple(every.values())
        return self._offers[pool.name]

    def _meets(self, requirement: JobRequirement, machine: OfferHardware) -> bool:
        # Thousands of nodes are alike.
        key = requirement.text, machine
        if key not in self._met:
            self._met[key] = not requirement.unmet_reason(machine)
        return self._met[key]

    def _nearest(self, requirement: JobRequirement, pools: Iterable[Pool], site: Iterable[Node]) -> str:
        """That nothing meets it, and what lacks least: the fewest words, then the fewest GPUs, then the cheapest."""
        there = [
            (offer.price, f"{offer.id} (pool {pool.name})", self._offer_hardware(offer))
            for pool in pools
            for offer in self._offers_of(pool)
        ]
        there += [(Decimal(0), f"node {node.name}", self._node_hardware(node)) for node in site]
        text = f"no machine meets 'burst: {requirement.text}'"
        if not there:
            return text
        found = [(requirement.unmet_reasons(machine), machine, price, name) for price, name, machine in there]
        why, _, _, name = min(
            found, key=lambda one: (len(one[0]), max(0, requirement.gpus - one[1].gpus), one[2], one[3])
        )
        return f"{text}; nearest is {name}: {'; '.join(why)}"


@dataclass(frozen=True, slots=True)
class _Size:
    """What is to be changed of a job's request; zeros and nothing: it stays."""

    gres: tuple[Gres, ...] = ()
    memory_mib: int = 0
    cpus: int = 0
    cpus_per_node: int = 0


def _size_update(job: Job, wanted: JobRequirement, places: Places) -> _Size:
    """What the job asks of Slurm is raised to what its comment requires, and never lowered."""
    memory = job.memory_mib * (max(1, job.cpus // max(1, job.nodes)) if job.memory_per_cpu else 1)
    single = job.nodes <= 1
    return _Size(
        _gres_update(job, wanted.gpus, places.gpu_type),
        wanted.memory_mib if wanted.memory_mib and (job.memory_whole or memory < wanted.memory_mib) else 0,
        wanted.cpus if single and job.cpus < wanted.cpus else 0,
        wanted.cpus if not single and job.cpus_per_node < wanted.cpus else 0,
    )


def _gres_update(job: Job, gpus: int, gpu_type: str) -> tuple[Gres, ...]:
    there = [gres for gres in job.gres_per_node if gres.name == "gpu"]
    count = sum(gres.count for gres in there)
    typed = not gpu_type or all(gres.type == gpu_type for gres in there)
    if (count >= gpus and typed) or not max(count, gpus) or any(gres.name == "gpu" for gres in job.gres_per_job):
        return ()
    others = tuple(gres for gres in job.gres_per_node if gres.name != "gpu")
    return (*others, Gres("gpu", gpu_type, max(count, gpus)))


def _shape(node: Node) -> Shape:
    return Shape(node.cpus, node.memory_mib, node.gres, node.features)


def _has_sizes(shape: Shape, wanted: JobRequirement) -> bool:
    return shape.gpus() >= wanted.gpus and shape.cpus >= wanted.cpus and shape.memory_mib >= wanted.memory_mib


def _types(shape: Shape, wanted: JobRequirement) -> list[str]:
    """The GRES types among which those of the models are."""
    types = {gres.type for gres in shape.gres if gres.name == "gpu" and gres.type}
    return sorted(t for t in types if any(fnmatchcase(t.lower(), pattern) for pattern in wanted.models))
