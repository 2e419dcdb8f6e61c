"""A storage node that burstd launches for a store of staged data, and ends when nothing is left on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from burstd.domain.cloud.offer import OfferRule, Pool


@dataclass(frozen=True, slots=True)
class StorageNodeSpec:
    """What a store wants of the machine that burstd launches for it."""

    offers: Sequence[OfferRule]
    path: str
    """The folder of the objects; burstd makes it there."""
    free_bytes: int
    """Room that the folder must have at the start."""
    python: str
    """What runs Python 3.11 or newer there."""
    idle_s: float
    """How long it stays when no job needs it."""


@dataclass(frozen=True, slots=True)
class StorageNodeAddress:
    """Where the storage node is, and how it is entered. The files are the head's."""

    host: str
    port: int
    user: str
    key_file: str
    node_key_file: str
    """What nodes are given, where ``key_file`` is the head's own."""
    known_hosts_file: str


@runtime_checkable
class NodeBackedStore(Protocol):
    """Optional ability of a store: its storage node is launched by burstd, and told to it.

    Before ``here`` was called, and after ``away``, calls that need the node raise StoreBusy.
    """

    @property
    def node_spec(self) -> StorageNodeSpec | None:
        """What the node shall be; None: this one is not launched."""
        ...

    def node_ready(self, place: StorageNodeAddress) -> None:
        """The node is at ``place``; telling it again changes nothing."""
        ...

    def node_gone(self, why: str, *, empty: bool) -> None:
        """There is none. ``empty``: no object is anywhere, so that lists of them are empty and not refused."""
        ...


@dataclass(frozen=True, slots=True)
class StorageNodeView:
    """The storage node of one store, as a decision sees it: what may fill it and what it is wanted for."""

    store: str
    pool: Pool
    """Of one slot, which Slurm knows nothing of. No rules: the store is not configured any more."""
    idle_s: float
    start_reason: str = ""
    """Why one is to be started; empty: no job waits for it."""
    keep_reason: str = ""
    """Why one that is there must stay; empty: nothing on it is needed."""
    idle_since: float = 0.0
    """Since when neither holds, in burstd's time."""


def storage_pool_name(store: str) -> str:
    """The name of the pool, and of its only slot, under which a store's node is launched, shown and billed."""
    return f"storage-{store}"
