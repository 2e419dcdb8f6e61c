"""Claims, launch requests and stagings to columns and JSON, and back. Paths keep bytes that are not UTF-8."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import RowMapping

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Gres, Shape
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

CLAIM_FIELDS = tuple(f.name for f in fields(Claim))
_LIST_FIELDS = frozenset({"jobs", "users", "accounts"})
_MONEY_FIELDS = frozenset({"reserved", "egress"})
_CLAIM_JSON_FIELDS = _LIST_FIELDS | {"offer"}

STAGING_FIELDS = tuple(f.name for f in fields(Staging))
# The working directory too: JSON escapes what a database refuses in a text.
_STAGING_JSON_FIELDS = frozenset({"directives", "trees", "nodes", "outputs", "work_dir"})


def to_json_text(value: object) -> str:
    """JSON, the same text for the same value; a text that every database takes."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # A path with bytes that are no UTF-8 holds surrogates, which only the escaped form can carry.
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text


def storable_text(text: str) -> str:
    """Text that every database takes: clouds and machines send anything, NUL and broken UTF-8 included."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def claim_field_to_json(name: str, value: Any) -> Any:
    """A field of a claim as JSON has it."""
    if name == "offer":
        return _offer_to_json(value)
    if name in _LIST_FIELDS:
        return [storable_text(v) for v in value]
    if name in _MONEY_FIELDS:
        return str(value)
    return storable_text(str(value)) if isinstance(value, str) else value


def claim_field_from_json(name: str, plain: Any) -> Any:
    """The reverse of ``claim_field_to_json``."""
    match name:
        case "offer":
            return _offer_from_json(plain)
        case "jobs" | "users" | "accounts":
            return tuple(plain)
        case "reserved" | "egress":
            return Decimal(plain)
        case "state":
            return ClaimState(plain)
        case "cause":
            return Cause(plain)
    return plain


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """A whole claim as JSON has it."""
    return {name: claim_field_to_json(name, getattr(claim, name)) for name in CLAIM_FIELDS}


def claim_from_json(plain: Mapping[str, Any]) -> Claim:
    """The reverse of ``claim_to_json``; fields that an older burstd did not have get their defaults."""
    return Claim(**{name: claim_field_from_json(name, plain[name]) for name in CLAIM_FIELDS if name in plain})


def claim_columns(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the claim table for some fields in their JSON form."""
    row = {name: to_json_text(value) if name in _CLAIM_JSON_FIELDS else value for name, value in plain.items()}
    if "offer" in plain:
        row["provider"] = plain["offer"]["provider"]
    return row


def claim_from_row(row: RowMapping) -> Claim:
    """A claim from its row."""
    values = {name: row[name] for name in CLAIM_FIELDS}
    values["offer"] = _offer_from_text(row["offer"])
    for name in _LIST_FIELDS:
        values[name] = _list_from_text(row[name])
    for name in _MONEY_FIELDS:
        values[name] = Decimal(row[name])
    values["alone"] = bool(row["alone"])
    values["state"] = ClaimState(row["state"])
    values["cause"] = Cause(row["cause"])
    return Claim(**values)


def request_to_text(request: LaunchRequest) -> tuple[str, str]:
    """The request as JSON without its user data, and the digest under which that is kept."""
    digest = hashlib.sha256(request.user_data.encode()).hexdigest()
    plain = {
        "claim_id": request.claim_id,
        "name": request.name,
        "offer": _offer_to_json(request.offer),
        "image": request.image,
        "tags": dict(request.tags),
    }
    # What is empty is left out: the text of a request that an older burstd wrote down stays the same.
    rest: dict[str, Any] = {
        "others": [_offer_to_json(offer) for offer in request.others],
        "gang": request.gang,
        "batch": request.batch,
        "recipe": request.recipe,
    }
    plain |= {name: value for name, value in rest.items() if value}
    return to_json_text(plain), digest


def request_from_text(body: str, user_data: str) -> LaunchRequest:
    """The reverse of ``request_to_text``."""
    plain = json.loads(body)
    return LaunchRequest(
        claim_id=plain["claim_id"],
        name=plain["name"],
        offer=_offer_from_json(plain["offer"]),
        image=plain["image"],
        user_data=user_data,
        tags=plain["tags"],
        others=tuple(_offer_from_json(offer) for offer in plain.get("others", ())),
        gang=plain.get("gang", ""),
        batch=plain.get("batch", ""),
        recipe=plain.get("recipe", ""),
    )


# The same few offers stand in thousands of claims.
@lru_cache(maxsize=4096)
def _offer_from_text(text: str) -> Offer:
    return _offer_from_json(json.loads(text))


@lru_cache(maxsize=4096)
def _list_from_text(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _offer_to_json(offer: Offer) -> dict[str, Any]:
    shape = offer.shape
    plain = {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "spot": offer.spot,
        "shape": {
            "cpus": shape.cpus,
            "memory_mib": shape.memory_mib,
            "gres": [[g.name, g.type, g.count] for g in shape.gres],
            "features": sorted(shape.features),
        },
        "price": str(offer.price),
        "currency": offer.currency,
    }
    if offer.hardware != Hardware():
        plain["hardware"] = asdict(offer.hardware)
    if offer.capacity_wait_s:
        plain["placing_s"] = offer.capacity_wait_s
    if offer.price_source:
        plain["price_source"], plain["price_at"] = offer.price_source, offer.price_at
    return plain


def _offer_from_json(plain: Mapping[str, Any]) -> Offer:
    shape = plain["shape"]
    return Offer(
        provider=plain["provider"],
        region=plain["region"],
        zone=plain["zone"],
        instance_type=plain["instance_type"],
        spot=plain["spot"],
        shape=Shape(
            cpus=shape["cpus"],
            memory_mib=shape["memory_mib"],
            gres=tuple(Gres(*g) for g in shape["gres"]),
            features=frozenset(shape["features"]),
        ),
        price=Decimal(plain["price"]),
        currency=plain["currency"],
        hardware=Hardware(**plain.get("hardware", {})),
        capacity_wait_s=plain.get("placing_s", 0.0),
        price_source=plain.get("price_source", ""),
        price_at=plain.get("price_at", 0.0),
    )


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
    """The reverse of ``staging_field_to_json``."""
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
    """The reverse of ``staging_to_json``; fields that an older burstd did not have get their defaults."""
    return Staging(**{name: staging_field_from_json(name, plain[name]) for name in STAGING_FIELDS if name in plain})


def staging_columns(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the table for some fields in their JSON form."""
    return {name: to_json_text(value) if name in _STAGING_JSON_FIELDS else value for name, value in plain.items()}


def staging_from_row(row: RowMapping) -> Staging:
    """A staging from its row."""
    return staging_from_json({n: json.loads(row[n]) if n in _STAGING_JSON_FIELDS else row[n] for n in STAGING_FIELDS})


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
