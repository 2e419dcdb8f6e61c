"""What a reload changes: what applies at once, and what waits for a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from burstd.settings.sections import Settings
from burstd.settings.toml_source import KeyPath, dotted_key

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One key that differs; None where it was not, or is no more, there."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


@dataclass(frozen=True, slots=True)
class SettingsDiff:
    """Changes between two settings."""

    applied_now: tuple[SettingChange, ...] = ()
    at_restart: tuple[SettingChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applied_now or self.at_restart)

    def texts(self) -> list[str]:
        """A line for each."""
        found = [str(change) for change in self.applied_now]
        return found + [f"{change} (waits for a restart)" for change in self.at_restart]


def diff_settings(old: Settings, new: Settings) -> SettingsDiff:
    """What differs, by what it takes to apply it."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    at_once: list[SettingChange] = []
    at_restart: list[SettingChange] = []
    for path, restart in dict.fromkeys([*before, *after]):
        key = (path, restart)
        if before.get(key) != after.get(key):
            (at_restart if restart else at_once).append(
                SettingChange(dotted_key(path), before.get(key), after.get(key))
            )
    return SettingsDiff(tuple(at_once), tuple(at_restart))


def settings_until_restart(old: Settings, new: Settings) -> Settings:
    """The new settings as far as they apply at once; what waits for a restart is as in the old ones."""
    kept = _with_old_restart_fields(old, new)
    kept._source = new.source  # noqa: SLF001  only this room sets it
    return kept


def _with_old_restart_fields(old: M, new: M) -> M:
    changes: dict[str, Any] = {}
    for name, info in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if _needs_restart(info.json_schema_extra):
            changes[name] = before
        elif isinstance(after, BaseModel) and isinstance(before, BaseModel):
            changes[name] = _with_old_restart_fields(before, after)
    return new.model_copy(update=changes)


def _leaves(
    model: BaseModel, before: KeyPath = (), *, restart: bool = False
) -> Iterator[tuple[tuple[KeyPath, bool], Any]]:
    """Every value that is no table, with its place and whether it waits for a restart."""
    for name, info in type(model).model_fields.items():
        waits = restart or _needs_restart(info.json_schema_extra)
        yield from _under(getattr(model, name), (*before, name), restart=waits)
    for name, value in (model.model_extra or {}).items():
        yield from _under(value, (*before, name), restart=restart)


def _under(value: Any, path: KeyPath, *, restart: bool) -> Iterator[tuple[tuple[KeyPath, bool], Any]]:
    if isinstance(value, BaseModel):
        yield from _leaves(value, path, restart=restart)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _under(inner, (*path, str(key)), restart=restart)
    elif isinstance(value, tuple) and any(isinstance(inner, BaseModel) for inner in value):
        for position, inner in enumerate(value):
            yield from _under(inner, (*path, position), restart=restart)
    else:
        yield (path, restart), value


def _needs_restart(marks: object) -> bool:
    return isinstance(marks, dict) and bool(marks.get("restart"))


def _shown(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]"
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
