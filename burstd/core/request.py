"""Jobs that ask for the same make one request: what they need is worked out once, however many they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from burstd.core.need import Need, Share, need
from burstd.model.job import Job
from burstd.model.offer import Pool

_KEY = attrgetter(
    "partitions", "nodes", "nodes_max", "cpus", "cpus_per_node", "memory_mib", "memory_per_cpu", "memory_whole",
    "gres_per_node", "gres_per_job", "constraint", "exclusive", "excluded_nodes", "node_list",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fit:
    """How a request fits the empty slots of a pool."""

    nodes: int
    """How many of them it takes."""
    share: Share
    """What each of them gives."""
    room: int
    """How many shares fit on one."""


@dataclass(slots=True, eq=False)
class Request:
    """What jobs that are alike ask for. Holds of every snapshot."""

    need: Need
    partitions: tuple[str, ...]
    excluded: frozenset[str]
    named: frozenset[str]
    alone: Share
    """What one node gives that takes all of it."""
    fits: dict[str, tuple[Pool, Fit | str]] = field(default_factory=dict)
    """By the pool's name what was worked out for it, or what one of its slots lacks."""

    def allows(self, name: str) -> bool:
        """True where the job may run on the node of this name (``--exclude``, ``--nodelist`` of one node)."""
        return name not in self.excluded and (not self.named or self.need.nodes > 1 or name in self.named)


class Requests:
    """Sorts jobs into requests."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Request] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, job: Job) -> Request:
        """The job's request: the very same for jobs that ask for the same."""
        key = _KEY(job)
        found = self._known.get(key)
        if found is None:
            wanted = need(job)
            found = self._known[key] = Request(
                wanted, job.partitions, frozenset(job.excluded_nodes), frozenset(job.node_list), wanted.share(1)
            )
        return found
