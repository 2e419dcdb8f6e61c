"""What is wrong with the settings, in words: every fault with its key path, line, what is allowed, and a guess."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from burstd.domain.errors import BurstdError
from burstd.settings.toml_source import KeyPath, TomlSource, dotted_key

_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "string": "must be text in quotes",
    "bool": "must be true or false",
    "dict": "must be a table",
    "model": "must be a table",
    "tuple": "must be a list in [ ]",
    "list": "must be a list in [ ]",
    "path": "must be a path in quotes",
    "date": "must be a date without quotes, such as 2026-11-01",
}
_OF_TYPE = ("_type", "_parsing", "_from_float")
_PASSWORD = re.compile(r"(://[^/@:]*:)[^/@]*@")
_SECRETIVE = re.compile(r"pass|secret|token|credential|(^|_)key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SettingsFault:
    """One thing that is wrong, at one place."""

    path: KeyPath
    text: str
    line: int | None = None

    def __str__(self) -> str:
        where = dotted_key(self.path)
        place = f"line {self.line}: " if self.line is not None else ""
        return f"{place}{where}: {self.text}" if where else f"{place}{self.text}"


class SettingsError(BurstdError):
    """The settings cannot be used. The text lists every fault."""

    def __init__(self, source: TomlSource, faults: Iterable[SettingsFault]) -> None:
        placed = [SettingsFault(f.path, f.text, f.line if f.line is not None else source.line(f.path)) for f in faults]
        self.faults = tuple(sorted(placed, key=lambda f: (f.line or 0, dotted_key(f.path))))
        number = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__("\n".join([f"{source.name} has {number}:", *(f"  {fault}" for fault in self.faults)]))


def did_you_mean(word: str, allowed: Collection[str]) -> str:
    """``; did you mean X?``, or nothing."""
    close = get_close_matches(word.lower(), sorted(allowed), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_key_message(key: str, allowed: Collection[str], elsewhere: Sequence[str] = ()) -> str:
    """What is said of a key that no table, or another one, has."""
    other = next((f"; did you mean {name}?" for name in elsewhere if name.rpartition(".")[2] == key), "")
    return f"there is no such key{did_you_mean(key, allowed) or other or '.'} Allowed: {', '.join(sorted(allowed))}."


def faults_of_validation(
    error: ValidationError, model: type[BaseModel], data: object, before: KeyPath = (), elsewhere: Sequence[str] = ()
) -> list[SettingsFault]:
    """Every fault that pydantic found; ``before`` is the model's own place, ``elsewhere`` keys of other tables."""
    faults: list[SettingsFault] = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # only its entries are wrong, and each is named for itself
        path = _in_the_file(detail["loc"], data)
        fault = SettingsFault((*before, *path), _fault_message(detail, model, path, elsewhere))
        if fault not in faults:
            faults.append(fault)
    return faults


def _in_the_file(loc: KeyPath, data: Any) -> KeyPath:
    """Without the marks that pydantic adds for keys (``[key]``) and for the kinds of a union."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        if _has(data, part):
            data = data[part]
        elif i + 1 < len(loc) or not isinstance(data, Mapping) or part == "[key]":
            continue
        path.append(part)
    return tuple(path)


def _has(data: object, part: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, Mapping) and part in data


def _fault_message(detail: ErrorDetails, model: type[BaseModel], path: KeyPath, elsewhere: Sequence[str]) -> str:
    kind, given = detail["type"], detail.get("input")
    key = str(path[-1]) if path else ""
    match kind:
        case "extra_forbidden":
            around = _model_at(model, path[:-1])
            allowed = sorted(around.model_fields) if around else []
            return unknown_key_message(key, allowed, elsewhere)
        case "missing":
            around = _model_at(model, path[:-1])
            others = set(given) - set(around.model_fields) if around and isinstance(given, Mapping) else set()
            return "must be set" + did_you_mean(key, others).replace("did you mean", "is it meant by")
        case "too_short":
            return "must have at least one entry"
        case "value_error":
            text = str(detail["ctx"]["error"]) if "ctx" in detail else detail["msg"]
        case "string_pattern_mismatch" if "https?://" in detail["ctx"]["pattern"]:
            text = "must begin with http:// or https://"
        case "literal_error" | "enum":
            text = f"must be {detail['ctx']['expected']}"
            if isinstance(given, str):
                guess = did_you_mean(given, re.findall(r"'([^']*)'", text))
                return f"{text}, not {given!r}{guess}"
        case _:
            said = detail["msg"].replace("Input should be", "must be").replace("should have", "must have")
            text = _KINDS.get(kind.partition("_")[0], said) if kind.endswith(_OF_TYPE) else said
    if _SECRETIVE.search(key) or isinstance(given, Mapping):
        return text
    shown = str(given).lower() if isinstance(given, bool) else _PASSWORD.sub(r"\1***@", repr(given))
    return f"{text} (it is {shown if len(shown) <= 60 else shown[:57] + '...'})"


def _model_at(annotation: Any, path: KeyPath) -> type[BaseModel] | None:
    """The model whose keys stand at a place."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if not path:
            return annotation
        field = annotation.model_fields.get(str(path[0]))
        return _model_at(field.annotation, path[1:]) if field else None
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return next((found for a in arguments if (found := _model_at(a, path)) is not None), None)
    if not path or not arguments:
        return None
    if origin is dict:
        return _model_at(arguments[1], path[1:])
    return _model_at(arguments[0], path[1:]) if origin in (tuple, list) else None
