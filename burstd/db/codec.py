"""Values as JSON, and back: one table of forms for what lies in columns, in events and in launch requests.

pydantic's TypeAdapter does not do it: some values are lists on record, some fields have another name or are left out
where they are empty (a launch request is compared letter by letter), and the domain's dataclasses carry no pydantic.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from sqlalchemy import RowMapping

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Gres
from burstd.domain.staging import ObjectRange, StageIn, StageOut, Tree

T = TypeVar("T")

_LISTS = frozenset({Gres, ObjectRange, StageIn, StageOut})
"""Written as lists, in the order of their fields."""
_KEYS: Mapping[tuple[type, str], str] = {(Offer, "capacity_wait_s"): "placing_s", (Tree, "node_path"): "place"}
"""Fields that have another name on record."""
_LEFT_OUT: Mapping[type, Mapping[str, str]] = {
    Offer: {"hardware": "hardware", "capacity_wait_s": "capacity_wait_s", "price_source": "price_source",
            "price_at": "price_source", "address_price": "address_price",
            "egress_price": "egress_price"},
    Hardware: {"placement": "placement"},
    Tree: {"ignore": "ignore"},
    LaunchRequest: {name: name for name in ("others", "gang", "batch", "recipe", "fabric", "disks")},
}  # fmt: skip
"""Fields that are left out where another has its default: what an older burstd wrote stays the same text."""
_PLAIN = frozenset({str, int, float, bool, type(None)})
_RAW_TEXTS = frozenset({"work_dir"})
"""A path may hold bytes that are not UTF-8; its column holds JSON, which escapes them."""


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
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def to_json(value: Any) -> Any:
    """A value as JSON has it: decimals as text, dataclasses as objects (a few as lists), sets sorted."""
    if type(value) in _PLAIN:
        return value
    match value:
        case StrEnum():
            return value.value
        case Decimal():
            return str(value)
        case frozenset():
            return sorted(value)
        case tuple() | list():
            return [to_json(item) for item in value]
        case Mapping():
            return {key: to_json(item) for key, item in value.items()}
    kind: Any = type(value)
    if kind in _LISTS:
        return [to_json(getattr(value, name)) for name in field_names(kind)]
    return {
        key: to_json(getattr(value, name))
        for name, key, _, left_out in _form(kind)
        if left_out is None or getattr(value, left_out[0]) != left_out[1]
    }


def field_to_json(name: str, value: Any) -> Any:
    """A field of a claim or a staging as JSON has it; texts that a column holds are made storable."""
    if isinstance(value, str) and name not in _RAW_TEXTS:
        return storable_text(str(value))
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return [storable_text(item) for item in value]
    return to_json(value)


def from_json(kind: Any, plain: Any) -> Any:
    """The reverse of ``to_json``; fields that an older burstd did not have get their defaults.

    Raises TypeError and ValueError for what is not of this type.
    """
    return _decoder(kind)(plain)


def field_from_json(kind: type, name: str, plain: Any) -> Any:
    """The reverse of ``field_to_json`` for a field of ``kind``."""
    return _decoder(_hints(kind)[name])(plain)


def record_to_json(value: Any) -> dict[str, Any]:
    """A whole claim or staging: every field as ``field_to_json`` writes it."""
    return {name: field_to_json(name, getattr(value, name)) for name in field_names(type(value))}


def value_from_row(kind: type[T], row: RowMapping) -> T:
    """A value from the row whose columns are named as its fields."""
    return kind(**{name: row[name] for name in field_names(kind)})


def request_to_text(request: LaunchRequest) -> tuple[str, str]:
    """The request as JSON without its user data, and the digest under which that is kept."""
    plain = to_json(request)
    digest = hashlib.sha256(plain.pop("user_data").encode()).hexdigest()
    return to_json_text(plain), digest


def request_from_text(body: str, user_data: str) -> LaunchRequest:
    """The reverse of ``request_to_text``."""
    request: LaunchRequest = from_json(LaunchRequest, json.loads(body) | {"user_data": user_data})
    return request


def field_names(kind: Any) -> Collection[str]:
    """The fields of a dataclass, in their order."""
    return kind.__dataclass_fields__.keys()  # type: ignore[no-any-return]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _form(kind: Any) -> tuple[tuple[str, str, Callable[[Any], Any], tuple[str, Any] | None], ...]:
    """For each field: its name, its key in JSON, its decoder, and the field and default for which it is left out."""
    defaults = {f.name: f.default if f.default is not MISSING else None for f in fields(kind)}
    left_out = _LEFT_OUT.get(kind, {})
    return tuple(
        (name, _KEYS.get((kind, name), name), _decoder(_hints(kind)[name]),
         (left_out[name], defaults[left_out[name]]) if name in left_out else None)
        for name in defaults
    )  # fmt: skip


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        item = _decoder(next(one for one in arguments if one is not NoneType))
        return lambda plain: None if plain is None else item(plain)
    if origin is tuple:
        item = _decoder(arguments[0])
        return lambda plain: tuple(item(one) for one in plain)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item = _decoder(arguments[1])
        return lambda plain: {key: item(one) for key, one in plain.items()}
    if origin is frozenset:
        return frozenset
    if is_dataclass(kind):
        return partial(_build, kind)
    if isinstance(kind, type) and issubclass(kind, Decimal | StrEnum):
        return kind
    return lambda plain: plain


def _build(kind: Any, plain: Any) -> Any:
    if kind in _LISTS:
        return kind(*(decode(one) for (_, _, decode, _), one in zip(_form(kind), plain, strict=True)))
    return kind(**{name: decode(plain[key]) for name, key, decode, _ in _form(kind) if key in plain})
