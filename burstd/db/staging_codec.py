"""The data of a job to columns and JSON, and back. Paths keep bytes that are no UTF-8, as surrogates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import RowMapping

from burstd.db.codec import storable_text, to_json_text
from burstd.domain.staging import (
    Access,
    Directives,
    ObjectRange,
    OutputCondition,
    StageIn,
    StageOut,
    StageState,
    Staging,
    Tree,
)

STAGING_FIELDS = tuple(f.name for f in fields(Staging))
# The working directory too: JSON escapes what a database refuses in a text.
_JSON_FIELDS = frozenset({"directives", "trees", "nodes", "outputs", "work_dir"})


def staging_field_to_json(name: str, value: Any) -> Any:
    """A field of a staging as JSON has it."""
    match name:
        case "directives":
            return _directives_to_json(value)
        case "trees" | "outputs":
            return {key: _tree_to_json(tree) for key, tree in value.items()}
        case "nodes":
            return list(value)
        case "work_dir":
            return value
    return storable_text(str(value)) if isinstance(value, str) else value


def staging_field_from_json(name: str, plain: Any) -> Any:
    """The reverse of ``staging_to_plain``."""
    match name:
        case "directives":
            return _directives_from_json(plain)
        case "trees" | "outputs":
            return {key: _tree_from_json(tree) for key, tree in plain.items()}
        case "nodes":
            return tuple(plain)
        case "state":
            return StageState(plain)
    return plain


def staging_to_json(staging: Staging) -> dict[str, Any]:
    """A whole staging as JSON has it."""
    return {name: staging_field_to_json(name, getattr(staging, name)) for name in STAGING_FIELDS}


def staging_from_json(plain: Mapping[str, Any]) -> Staging:
    """The reverse of ``plain_staging``; fields that an older burstd did not have get their defaults."""
    return Staging(**{name: staging_field_from_json(name, plain[name]) for name in STAGING_FIELDS if name in plain})


def staging_columns(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the table for some fields in their JSON form."""
    return {name: to_json_text(value) if name in _JSON_FIELDS else value for name, value in plain.items()}


def staging_from_row(row: RowMapping) -> Staging:
    """A staging from its row."""
    return staging_from_json({n: json.loads(row[n]) if n in _JSON_FIELDS else row[n] for n in STAGING_FIELDS})


def _directives_to_json(directives: Directives) -> dict[str, Any]:
    return {
        "stage_in": [[i.source, i.name, i.access.value, i.line, i.dataset] for i in directives.stage_in],
        "stage_out": [[o.pattern, o.destination, o.when.value, o.line] for o in directives.stage_out],
        "scratch_bytes": directives.scratch_bytes,
    }


def _directives_from_json(plain: Mapping[str, Any]) -> Directives:
    return Directives(
        tuple(
            StageIn(source, name, Access(access), line, dataset)
            for source, name, access, line, dataset in plain["stage_in"]
        ),
        tuple(
            StageOut(pattern, destination, OutputCondition(when), line)
            for pattern, destination, when, line in plain["stage_out"]
        ),
        plain["scratch_bytes"],
    )


def _tree_to_json(tree: Tree) -> dict[str, Any]:
    return {
        "prefix": tree.prefix,
        "digest": tree.digest,
        "manifest": [[p.key, p.offset, p.length] for p in tree.manifest],
        "entries": tree.entries,
        "size": tree.size,
        "single": tree.single,
        "place": tree.node_path,
    }


def _tree_from_json(plain: Mapping[str, Any]) -> Tree:
    return Tree(
        plain["prefix"],
        plain["digest"],
        tuple(ObjectRange(*piece) for piece in plain["manifest"]),
        plain["entries"],
        plain["size"],
        plain["single"],
        plain.get("place", ""),
    )
