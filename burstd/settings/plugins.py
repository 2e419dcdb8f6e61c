"""Which plug-ins are installed, and whether the settings fit them. Only those that are used are imported."""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ValidationError

from burstd.model.errors import BurstdError
from burstd.settings.faults import Fault, SettingsError, faults_of, nearest
from burstd.settings.load import secret_faults
from burstd.settings.sections import ProviderSettings, Settings
from burstd.settings.source import KeyPath
from burstd.settings.staging import StoreSettings

Group = Literal["providers", "policies", "stagers"]


class PluginUnusable(BurstdError):
    """A plug-in is installed and cannot be used."""


@runtime_checkable
class Plugin(Protocol):
    """What an entry point of ``burstd.providers``, ``burstd.policies`` or ``burstd.stagers`` names."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def settings(self) -> type[Any]:
        """A pydantic model; its fields are the keys of the plug-in's table."""
        ...

    @property
    def make(self) -> Callable[..., Any]:
        """Makes the provider, the policy or the store from its settings."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plug-in with the settings that it is to have. ``name``: a provider's, a store's or a policy's."""

    name: str
    plugin: Plugin
    settings: BaseModel


@dataclass(frozen=True, slots=True)
class Resolved:
    """All plug-ins that the settings name: providers and stores by name, policies in the chain's order."""

    providers: Mapping[str, Chosen]
    policies: tuple[Chosen, ...]
    stores: Mapping[str, Chosen] = field(default_factory=dict)


class Plugins:
    """The plug-ins there are, each imported when it is first asked for."""

    def __init__(self, loaders: Mapping[Group, Mapping[str, Callable[[], object]]]) -> None:
        self._loaders = loaders

    @classmethod
    def installed(cls) -> Self:
        """Those of all installed packages, by their entry points."""
        groups: tuple[Group, ...] = ("providers", "policies", "stagers")
        return cls({g: {p.name: _loader(p) for p in entry_points(group=f"burstd.{g}")} for g in groups})

    def names(self, group: Group) -> list[str]:
        """The names of a group."""
        return sorted(self._loaders.get(group, {}))

    def load(self, group: Group, name: str) -> Plugin:
        """Imports one. Raises PluginUnusable."""
        try:
            plugin = self._loaders[group][name]()
        except PluginUnusable:
            raise
        except ModuleNotFoundError as error:
            raise PluginUnusable(
                f"the plug-in {name!r} needs the Python package {error.name!r}, which is not installed; "
                f"if it is one of burstd's own, install burstd[{name}]"
            ) from error
        except Exception as error:  # a plug-in may fail in any way, and is named for it
            raise PluginUnusable(f"the plug-in {name!r} fails when it is loaded: {error!r}") from error
        if not isinstance(plugin, Plugin):
            raise PluginUnusable(f"the plug-in {name!r} is no plug-in: it lacks 'name', 'settings' or 'make'")
        if not (isinstance(plugin.settings, type) and issubclass(plugin.settings, BaseModel)):
            raise PluginUnusable(f"the plug-in {name!r} has settings that are no pydantic model")
        return plugin


def resolve(settings: Settings, plugins: Plugins, *, check_files: bool = True) -> Resolved:
    """Checks the tables of providers, policies and stores against the plug-ins they are for.

    Raises SettingsError with every fault, as ``load`` does.
    """
    faults: list[Fault] = []
    providers = _named(plugins, "providers", settings.providers, faults, check_files=check_files)
    stores = _named(plugins, "stagers", settings.staging.stores, faults, check_files=check_files)
    chain: list[Chosen] = []
    own = settings.policies.own
    for i, name in enumerate(settings.policies.chain):
        plugin = _plugin(plugins, "policies", name, ("policies", "chain", i), faults)
        table_of = ("policies", name)
        made = _own_settings(plugin, own.get(name, {}), table_of, faults, check_files=check_files) if plugin else None
        if plugin is not None and made is not None:
            chain.append(Chosen(name, plugin, made))
    for name in own:
        # A table for a policy that is switched off may stay, if there is such a policy.
        if name not in settings.policies.chain and name not in plugins.names("policies"):
            known = plugins.names("policies")
            text = f"no policy is called {name!r}{nearest(name, known) or ';'} installed: {', '.join(known) or 'none'}"
            faults.append(Fault(("policies", name), text))
    if faults:
        raise SettingsError(settings.source, faults)
    return Resolved(providers, tuple(chain), stores)


def resolve_store(settings: Settings, plugins: Plugins, name: str) -> Chosen:
    """One of the stores alone, whatever is wrong elsewhere. Raises SettingsError, and KeyError for no such store."""
    return _alone(settings, plugins, "stagers", name, settings.staging.stores[name])


def resolve_provider(settings: Settings, plugins: Plugins, name: str) -> Chosen:
    """One of the providers alone, whatever is wrong elsewhere. Raises SettingsError, KeyError for no such provider."""
    return _alone(settings, plugins, "providers", name, settings.providers[name])


def _alone(
    settings: Settings,
    plugins: Plugins,
    group: Literal["providers", "stagers"],
    name: str,
    table: ProviderSettings | StoreSettings,
) -> Chosen:
    faults: list[Fault] = []
    found = _named(plugins, group, {name: table}, faults, check_files=True)
    if faults:
        raise SettingsError(settings.source, faults)
    return found[name]


def _named(
    plugins: Plugins,
    group: Literal["providers", "stagers"],
    tables: Mapping[str, ProviderSettings | StoreSettings],
    faults: list[Fault],
    *,
    check_files: bool,
) -> dict[str, Chosen]:
    """Those of the tables that fit their plug-ins."""
    around: KeyPath = {"providers": ("providers",), "stagers": ("staging", "stores")}[group]
    found: dict[str, Chosen] = {}
    for name, table in tables.items():
        place: KeyPath = (*around, name)
        plugin = _plugin(plugins, group, table.kind, (*place, "kind"), faults)
        made = _own_settings(plugin, table.own, place, faults, check_files=check_files) if plugin else None
        if plugin is not None and made is not None:
            found[name] = Chosen(name, plugin, made)
    return found


def _plugin(plugins: Plugins, group: Group, name: str, place: KeyPath, faults: list[Fault]) -> Plugin | None:
    known = plugins.names(group)
    if name not in known:
        what = {"providers": "kind of provider", "policies": "policy", "stagers": "kind of store"}[group]
        text = f"there is no {what} {name!r}{nearest(name, known) or ';'} installed: {', '.join(known) or 'none'}"
        faults.append(Fault(place, text))
        return None
    try:
        return plugins.load(group, name)
    except PluginUnusable as error:
        faults.append(Fault(place, str(error)))
        return None


def _own_settings(
    plugin: Plugin, table: dict[str, Any], place: KeyPath, faults: list[Fault], *, check_files: bool
) -> BaseModel | None:
    model: type[BaseModel] = plugin.settings
    before = len(faults)
    if model.model_config.get("extra") != "forbid":
        # Pydantic lets unknown keys pass by default; a plug-in that forgot to say so must not.
        allowed = set(model.model_fields) | {f.alias for f in model.model_fields.values() if f.alias}
        for key in sorted(set(table) - allowed):
            listed = ", ".join(sorted(allowed)) or "none"
            faults.append(
                Fault((*place, key), f"there is no such key{nearest(key, allowed) or '.'} Allowed: {listed}.")
            )
    try:
        made = model.model_validate(table)
    except ValidationError as error:
        faults += faults_of(error, model, table, place)
        return None
    if check_files:
        faults += secret_faults(made, place)
    return made if len(faults) == before else None


def _loader(point: EntryPoint) -> Callable[[], object]:
    def load() -> object:
        _trusted(point)
        return point.load()

    return load


def _trusted(point: EntryPoint) -> None:
    """Refuses code that somebody could have put there who could not have altered burstd itself.

    Each package on the way is looked at before it is imported. Raises PluginUnusable.
    """
    own = Path(__file__).stat()
    owners = {0, os.geteuid(), own.st_uid}
    forbidden = 0o022 & ~own.st_mode  # a checkout may be writable for its group: then burstd is as well
    parts = point.module.split(".")
    for length in range(1, len(parts) + 1):
        module = ".".join(parts[:length])
        spec = importlib.util.find_spec(module)
        if spec is None:
            raise PluginUnusable(f"the plug-in {point.name!r} names the module {module}, which is not there")
        places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
        for place in places:
            found = Path(place).stat()
            if found.st_uid not in owners:
                raise PluginUnusable(
                    f"the plug-in {point.name!r} is not loaded: {place} belongs to user id {found.st_uid}; "
                    "it must belong to root or to the owner of burstd"
                )
            if found.st_mode & forbidden:
                raise PluginUnusable(
                    f"the plug-in {point.name!r} is not loaded: {place} can be written by others "
                    f"(mode {stat.S_IMODE(found.st_mode):04o}); 'chmod go-w' it"
                )
