"""Jobs that ask for the same make one request: what they need is worked out once, however many they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.job import Job
from burstd.planner.demand.job_requirements import NodeShare, ResourceRequirements, resource_requirements

_KEY = attrgetter(
    "partitions", "nodes", "nodes_max", "cpus", "cpus_per_node", "memory_mib", "memory_per_cpu", "memory_whole",
    "gres_per_node", "gres_per_job", "constraint", "exclusive", "exclusive_user", "excluded_nodes", "node_list",
)  # fmt: skip
Payers = tuple[tuple[str, frozenset[str]], ...]
"""The fields of jobs that say who pays (``account``, ``user``), and the names of those who pay apart; ``*``: all."""


def payers_of(given: Iterable[Mapping[str, Collection[str]]]) -> Payers:
    """All together, as policies give them (Policy.payers)."""
    every = list(given)
    found = ((kind, frozenset(name for some in every for name in some.get(kind, ()))) for kind in ("account", "user"))
    return tuple((kind, names) for kind, names in found if names)


@dataclass(frozen=True, slots=True)
class PoolFit:
    """How a request fits the empty slots of a pool."""

    nodes: int
    """How many of them it takes."""
    share: NodeShare
    """What each of them gives."""
    shares_per_node: int
    """How many shares fit on one."""


@dataclass(slots=True, eq=False)
class ResourceRequest:
    """What jobs that are alike ask for. Holds of every snapshot."""

    requirements: ResourceRequirements
    partitions: tuple[str, ...]
    excluded_nodes: frozenset[str]
    required_nodes: frozenset[str]
    single_node_share: NodeShare
    """What one node gives that takes all of it."""
    payer: tuple[str, ...] = ()
    """Whose machines these jobs may share; empty: anybody's."""
    exclusive_user: bool = False
    """They share no node with jobs of another user."""
    users: frozenset[str] = frozenset({""})
    """Their user, where it matters for the nodes that they may share; an empty name: it does not."""
    fits: dict[str, tuple[Pool, PoolFit | str]] = field(default_factory=dict)
    """By the pool's name what was worked out for it, or what one of its slots lacks."""

    def allows_node(self, name: str) -> bool:
        """True where the job may run on the node of this name (``--exclude``, ``--nodelist`` of one node)."""
        return name not in self.excluded_nodes and (
            not self.required_nodes or self.requirements.nodes > 1 or name in self.required_nodes
        )


class RequestIndex:
    """Sorts jobs into requests."""

    def __init__(self, payers: Payers = (), exclusive_partitions: frozenset[str] = frozenset()) -> None:
        """Jobs of different ``payers`` make different requests, and those of different users in these partitions."""
        self.payers = payers
        self.exclusive_partitions = exclusive_partitions
        self._by_key: dict[tuple[object, ...], ResourceRequest] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def request_for(self, job: Job) -> ResourceRequest:
        """The job's request: the very same for jobs that ask for the same."""
        payer = tuple([self._payer(getattr(job, kind), names) for kind, names in self.payers])
        key = (_KEY(job), payer) if payer else _KEY(job)
        user = ""
        if self.exclusive_partitions and not self.exclusive_partitions.isdisjoint(job.partitions):
            user, key = job.user, (key, job.user)
        found = self._by_key.get(key)
        if found is None:
            wanted = resource_requirements(job)
            found = self._by_key[key] = ResourceRequest(
                wanted,
                job.partitions,
                frozenset(job.excluded_nodes),
                frozenset(job.node_list),
                wanted.share_per_node(1),
                payer,
                job.exclusive_user,
                frozenset({user}),
            )
        return found

    @staticmethod
    def _payer(name: str, names: frozenset[str]) -> str:
        return name if name in names or "*" in names else ""
