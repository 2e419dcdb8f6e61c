"""A snapshot and a target as policies get them: their mappings cannot be changed either."""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

from burstd.model.policy import Target
from burstd.model.snapshot import SlurmView, Snapshot

V = TypeVar("V", Snapshot, Target, SlurmView)


def shielded_snapshot(snapshot: Snapshot) -> Snapshot:
    """The same, for reading only."""
    slurm = _shielded(snapshot.slurm) if isinstance(snapshot.slurm, SlurmView) else snapshot.slurm
    return replace(_shielded(snapshot), slurm=slurm)


def shielded_target(target: Target) -> Target:
    """The same, for reading only."""
    return _shielded(target)


def _shielded(value: V) -> V:
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    changes: dict[str, Any] = {name: MappingProxyType(one) for name, one in found.items() if isinstance(one, dict)}
    return replace(value, **changes)
