"""How a cluster's objects are kept apart from another's in one store, and a store's folder from any other."""

from __future__ import annotations

import hashlib

from burstd.domain.plugins.stager import StoreRefused, is_key


def cluster_prefix(cluster: str) -> str:
    """The part before the keys of a cluster's objects. Raises StoreRefused."""
    if not is_key(cluster) or "/" in cluster:
        raise StoreRefused(f"the cluster's name {cluster!r} cannot be part of an object's key: use A-Z a-z 0-9 . _ -")
    return cluster


def store_marker(*location: object) -> str:
    """What a folder bears (``ObjectFolder``) that is this place's: of other words it is another."""
    return f"store-{hashlib.sha256(repr([str(word) for word in location]).encode()).hexdigest()[:16]}"
