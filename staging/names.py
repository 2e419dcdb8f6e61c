"""How a cluster's objects are kept apart from another's in one store."""

from __future__ import annotations

from burstd.model.stager import StoreRefused, is_key


def cluster_part(cluster: str) -> str:
    """The part before the keys of a cluster's objects. Raises StoreRefused."""
    if not is_key(cluster) or "/" in cluster:
        raise StoreRefused(f"the cluster's name {cluster!r} cannot be part of an object's key: use A-Z a-z 0-9 . _ -")
    return cluster
