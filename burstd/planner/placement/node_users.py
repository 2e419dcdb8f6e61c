"""Whose jobs are on which nodes, where jobs or slots share no node between users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView

_ON_NODES = frozenset(
    {
        JobState.RUNNING, JobState.CONFIGURING, JobState.SUSPENDED, JobState.COMPLETING, JobState.STOPPED,
        JobState.RESIZING, JobState.SIGNALING,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeUsers:
    """The users of the jobs on one node."""

    users: frozenset[str] = frozenset()
    exclusive_user: bool = False
    """One of the jobs shares its nodes with no other user's."""


def node_users(slurm: SlurmView, exclusive_partitions: frozenset[str]) -> Mapping[str, NodeUsers]:
    """By name, the nodes that have jobs; empty where no partition has jobs, or slots, that users do not share."""
    found: dict[str, NodeUsers] = {}
    for job in slurm.jobs if exclusive_partitions else ():
        if job.state in _ON_NODES:
            for name in job.node_list:
                known = found.get(name)
                if known is None or job.user not in known.users or job.exclusive_user > known.exclusive_user:
                    known = known or NodeUsers()
                    found[name] = NodeUsers(known.users | {job.user}, known.exclusive_user or job.exclusive_user)
    return found
