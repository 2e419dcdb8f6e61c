"""A snapshot and a target as policies get them: no mapping in them can be changed either, however deep it lies."""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot

V = TypeVar("V", Snapshot, Target, SlurmView, RuntimeState)


def read_only_snapshot(snapshot: Snapshot) -> Snapshot:
    """The same, for reading only."""
    slurm = _read_only(snapshot.slurm) if isinstance(snapshot.slurm, SlurmView) else snapshot.slurm
    return replace(_read_only(snapshot), slurm=slurm, runtime_state=_read_only(snapshot.runtime_state))


def read_only_target(target: Target) -> Target:
    """The same, for reading only."""
    return _read_only(target)


def _read_only(value: V) -> V:
    changes: dict[str, Any] = {}
    for field in fields(value):
        one = getattr(value, field.name)
        if type(one) is dict:
            # Those of one field are all of one kind: a few mappings (images), or thousands of nodes.
            nested = type(next(iter(one.values()), None)) is dict
            changes[field.name] = MappingProxyType(
                {key: MappingProxyType(inner) for key, inner in one.items()} if nested else one
            )
    return replace(value, **changes)
