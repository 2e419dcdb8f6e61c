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
HELD_BACK_S = 365 * 86400.0
"""So long after its submission job_submit.lua has a job begin, so that burstd sees it before it may start."""
_CLOCKS_S = 3600.0


def is_held_back(job: Job) -> bool:
    """Whether the job waits for burstd to have it begin. A begin time of its user's own is another."""
    return abs(job.eligible - job.submitted - HELD_BACK_S) < _CLOCKS_S


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


_ANYWHERE = Places(frozenset())
_NONE: frozenset[str] = frozenset()


_AlikeNodes = tuple[Shape, tuple[OfferHardware, ...], frozenset[str]]
"""Shape of nodes, what their machines have or may have, and their names."""


@dataclass(frozen=True, slots=True)
class _PartitionNodes:
    """The nodes of some partitions."""

    pools: tuple[Pool, ...]
    site: tuple[Node, ...]
    alike: tuple[_AlikeNodes, ...]
    """All of them; each requirement is held against each kind once."""
    known: frozenset[str]
    """Those that Slurm knows. It refuses a list with any other name, such as a new slot's."""


@dataclass(frozen=True, slots=True)
class _Exclusion:
    """Nodes that a job is to exclude."""

    nodes: frozenset[str]
    added: frozenset[str]
    """Those of them that its user does not."""
    known: bool
    """Slurm has it so."""


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
        self._slots = frozenset(slot for pool in snapshot.pools.values() for slot in pool.slots)
        self._claimed = {claim.slot: claim.offer for claim in snapshot.claims}
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._met: dict[tuple[str, OfferHardware], bool] = {}
        self._places: dict[tuple[str, tuple[str, ...]], Places] = {}
        self._updates: dict[tuple[object, ...], JobUpdate | None] = {}
        self._exclusions: dict[tuple[int, int, int], _Exclusion] = {}
        self._nodes: dict[frozenset[str], _PartitionNodes] = {}
        self._excluded: dict[tuple[int, tuple[int, ...]], frozenset[str]] = {}

    def places_for(self, requirement: JobRequirement, partitions: tuple[str, ...]) -> Places:
        """Where jobs of these partitions may run."""
        key = requirement.text, partitions
        if key not in self._places:
            self._places[key] = self._find(requirement, frozenset(partitions))
        return self._places[key]

    def update_for(self, job: Job, requirement: JobRequirement | None) -> JobUpdate | None:
        """What Slurm is to be told of the job; None: it has it. Of one that requires nothing any more: the same."""
        known = self._snapshot.runtime_state.excluded_nodes
        added = known.get(job.id) or known.get(job.array_job_id, _NONE)
        places = self.places_for(requirement, job.partitions) if requirement is not None else _ANYWHERE
        # Thousands of jobs may ask for the same, and share values that live as long as the snapshot.
        key = (
            id(places), id(job.excluded_nodes), id(added), id(job.gres_per_node), id(job.gres_per_job), job.nodes,
            job.cpus, job.cpus_per_node, job.memory_mib, job.memory_per_cpu, job.memory_whole, is_held_back(job),
        )  # fmt: skip
        if key not in self._updates:
            self._updates[key] = self._find_update(job, requirement, places, added)
        return self._updates[key]

    def _find_update(
        self, job: Job, requirement: JobRequirement | None, places: Places, added: frozenset[str]
    ) -> JobUpdate | None:
        start = is_held_back(job)
        exclusion = self._exclusion(job.excluded_nodes, added, places.excluded)
        size = _size_update(job, requirement, places) if requirement is not None and places.in_request else _Size()
        if exclusion.known and size == _Size() and not start:
            return None
        return JobUpdate(
            exclusion.nodes, exclusion.added, size.gres, size.memory_mib, size.cpus, size.cpus_per_node, start
        )

    def _exclusion(self, there: tuple[str, ...], added: frozenset[str], excluded: frozenset[str]) -> _Exclusion:
        """``added``: what burstd has put there before."""
        key = id(there), id(added), id(excluded)
        if key not in self._exclusions:
            # A node that is not seen now, as it is in quarantine, stays there.
            own = frozenset(there) - added.intersection(self._slurm.nodes)
            nodes = excluded | own
            self._exclusions[key] = _Exclusion(nodes, excluded - own, nodes == frozenset(there))
        return self._exclusions[key]

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
        nodes = self._nodes_of(partitions)
        if requirement.syntax_error:
            return Places(nodes.known, requirement.syntax_error)
        found = {
            number: shape
            for number, (shape, machines, _) in enumerate(nodes.alike)
            if any(self._meets(requirement, machine) for machine in machines)
        }
        if not found:
            unknown = any(isinstance(view.offers, Unavailable) for view in self._snapshot.clouds.values())
            return Places(nodes.known, self._nearest(requirement, nodes.pools, nodes.site), not unknown)
        in_slurm = {number: shape for number, shape in found.items() if _has_sizes(shape, requirement)}
        right = in_slurm or found
        types = {tuple(_types(shape, requirement)) for shape in right.values()}
        common = next(iter(types)) if len(types) == 1 else ()
        return Places(
            self._all_but(nodes, tuple(right)),
            in_request=bool(in_slurm),
            gpu_type=common[0] if len(common) == 1 else "",
        )

    def _all_but(self, nodes: _PartitionNodes, kinds: tuple[int, ...]) -> frozenset[str]:
        """Requirements that differ in a number share the set: thousands of names are compared once."""
        key = id(nodes), kinds
        if key not in self._excluded:
            self._excluded[key] = nodes.known.difference(*(nodes.alike[number][2] for number in kinds))
        return self._excluded[key]

    def _nodes_of(self, partitions: frozenset[str]) -> _PartitionNodes:
        if partitions not in self._nodes:
            pools = tuple(pool for pool in self._snapshot.pools.values() if not partitions.isdisjoint(pool.partitions))
            site = tuple(
                node
                for node in self._slurm.nodes.values()
                if node.name not in self._slots and not partitions.isdisjoint(node.partitions)
            )
            names: dict[tuple[Shape, tuple[OfferHardware, ...]], set[str]] = {}
            for node in site:
                names.setdefault((_shape(node), (self._node_hardware(node),)), set()).add(node.name)
            for pool in pools:
                free = tuple(dict.fromkeys(map(self._offer_hardware, self._offers_of(pool))))
                for slot in pool.slots:
                    offer = self._claimed.get(slot)
                    machines = free if offer is None else (self._offer_hardware(offer),)
                    names.setdefault((pool.shape, machines), set()).add(slot)
            alike = tuple((shape, machines, frozenset(some)) for (shape, machines), some in names.items())
            known = frozenset().union(*names.values()).intersection(self._slurm.nodes)
            self._nodes[partitions] = _PartitionNodes(pools, site, alike, known)
        return self._nodes[partitions]

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
            (self._snapshot.rates.price(offer), f"{offer.id} (pool {pool.name})", self._offer_hardware(offer))
            for pool in pools
            for offer in self._offers_of(pool)
        ]
        there += [(("", Decimal(0)), f"node {node.name}", self._node_hardware(node)) for node in site]
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
