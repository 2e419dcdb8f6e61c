"""Holds JSON against the models of azure-mgmt-compute and azure-mgmt-network: no field, type or value but theirs."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from azure.mgmt.compute import models as compute
from azure.mgmt.network import models as network

Model = Any
"""A class of one of the two packages."""
_PACKAGES = {"azure.mgmt.compute": compute, "azure.mgmt.network": network}
_OPEN = ("VirtualMachineSizeTypes",)
"""Enumerations that the models themselves call incomplete."""


class SchemaViolation(AssertionError):
    """What was said is not as Microsoft's models have it."""


def hold(model: Model, said: object, *, request: bool = False) -> None:
    """Raises SchemaViolation. ``request``: what only Azure may say is wrong too."""
    found = list(_problems(model, said, model.__name__, request))
    if found:
        raise SchemaViolation("; ".join(found))


def _problems(model: Model, said: object, where: str, request: bool) -> Iterator[str]:
    if not isinstance(said, dict):
        yield f"{where} is no object"
        return
    fields = _fields(model)
    for key in said.keys() - fields.keys():
        yield f"{where} has no field {key}"
    for key, (kind, required, readonly) in fields.items():
        if key in said and request and readonly:
            yield f"{where}.{key} is for Azure alone to say"
        elif key in said:
            yield from _value_problems(kind, said[key], f"{where}.{key}", request)
        elif required and not (readonly and request):
            yield f"{where} lacks {key}"


def _value_problems(kind: Any, value: Any, where: str, request: bool) -> Iterator[str]:
    origin, words = get_origin(kind), get_args(kind)
    if origin is Union:
        enums = [one for one in words if isinstance(one, type) and issubclass(one, Enum)]
        if value is None and type(None) in words:
            return
        if enums:
            # Open for what Azure adds later; but nothing here is newer than the models.
            if enums[0].__name__ not in _OPEN and value not in {str(one.value) for one in enums[0]}:
                yield f"{where}: {value!r} is none of {enums[0].__name__}"
            return
        (inner,) = [one for one in words if one is not type(None)]
        yield from _value_problems(inner, value, where, request)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for place, one in enumerate(value):
            yield from _value_problems(words[0], one, f"{where}[{place}]", request)
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for key, one in value.items():
            yield from _value_problems(words[1], one, f"{where}.{key}", request)
    elif origin is Literal:
        if value not in words:
            yield f"{where}: {value!r} is none of {words}"
    elif kind is datetime.datetime:
        try:
            datetime.datetime.fromisoformat(value)
        except (TypeError, ValueError):
            yield f"{where} is no time: {value!r}"
    elif hasattr(kind, "_attr_to_rest_field") or hasattr(kind, "as_dict"):
        yield from _problems(kind, value, where, request)
    elif isinstance(kind, type) and kind in (str, int, float, bool):
        wanted = (int, float) if kind is float else kind
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            yield f"{where} is no {kind.__name__}: {value!r}"


@cache
def _fields(model: Model) -> dict[str, tuple[Any, bool, bool]]:
    """By name in JSON: type, whether it must be there, whether only Azure may say it."""
    model()  # a model learns of its fields when the first is made
    package = next(module for name, module in _PACKAGES.items() if model.__module__.startswith(name))
    hints: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        if base is not object and base.__module__.startswith("azure.mgmt."):
            names = {**vars(sys.modules[base.__module__]), "_models": package}
            own = set(vars(base).get("__annotations__", {}))
            hints |= {name: kind for name, kind in get_type_hints(base, globalns=names).items() if name in own}
    return {
        field._rest_name: (hints[name], type(None) not in get_args(hints[name]), field._visibility == ["read"])
        for name, field in model._attr_to_rest_field.items()
        if name in hints
    }
