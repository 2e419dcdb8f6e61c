"""Whether the settings fit the plug-ins that they name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from burstd.domain.errors import PolicyBroken
from burstd.settings.faults import SettingsError, SettingsFault, did_you_mean, faults_of_validation
from burstd.settings.load import secret_faults
from burstd.settings.plugins.foreign_code import call_plugin_code
from burstd.settings.plugins.policy_files import PolicyFiles
from burstd.settings.plugins.registry import Plugin, PluginGroup, PluginOrigin, PluginRegistry, PluginUnusable
from burstd.settings.rates import currency_faults
from burstd.settings.sections import ProviderSettings, Settings
from burstd.settings.staging import StoreSettings
from burstd.settings.toml_source import KeyPath


@dataclass(frozen=True, slots=True)
class ResolvedPlugin:
    """A plug-in with the settings that it is to have. ``name``: a provider's, a store's or a policy's."""

    name: str
    plugin: Plugin
    settings: BaseModel
    origin: PluginOrigin = field(default_factory=PluginOrigin)
    source_dir: Path | None = None
    """The file or folder whose lines are named where a policy fails."""
    files: PolicyFiles | None = field(default=None, compare=False, repr=False)
    """Kept here, as the modules of policies from files stay as long as these do."""


@dataclass(frozen=True, slots=True)
class ResolvedPlugins:
    """All plug-ins that the settings name: providers and stores by name, policies in the chain's order."""

    providers: Mapping[str, ResolvedPlugin]
    policies: tuple[ResolvedPlugin, ...]
    stores: Mapping[str, ResolvedPlugin] = field(default_factory=dict)


def resolve_plugins(settings: Settings, plugins: PluginRegistry, *, check_files: bool = True) -> ResolvedPlugins:
    """Checks the tables of providers, policies and stores against the plug-ins they are for.

    Raises SettingsError with every fault, as ``load`` does.
    """
    faults: list[SettingsFault] = []
    providers = _resolve_tables(plugins, "providers", settings.providers, faults, check_files=check_files)
    stores = _resolve_tables(plugins, "stagers", settings.staging.stores, faults, check_files=check_files)
    chain: list[ResolvedPlugin] = []
    own = settings.policies.policy_tables
    for i, name in enumerate(settings.policies.chain):
        chosen = _resolve_policy(
            plugins, name, ("policies", "chain", i), own.get(name, {}), faults, check_files=check_files
        )
        if chosen is not None:
            chain.append(chosen)
    for name in own:
        # A table for a policy that is switched off may stay, if there is such a policy.
        if name not in settings.policies.chain and name not in plugins.names("policies"):
            known = plugins.names("policies")
            text = (
                f"no policy is called {name!r}{did_you_mean(name, known) or ';'} installed: "
                f"{', '.join(known) or 'none'}"
            )
            faults.append(SettingsFault(("policies", name), text + _broken_files(plugins)))
    faults += _unknown_names(settings)
    faults += _trees_without_ssh(settings, providers)
    faults += currency_faults(settings, {name: getattr(p.settings, "currency", "") for name, p in providers.items()})
    if faults:
        raise SettingsError(settings.source, faults)
    return ResolvedPlugins(providers, tuple(chain), stores)


def unused_policy_tables(settings: Settings) -> Iterator[SettingsFault]:
    """Of tables of policies that are not in the chain."""
    for name in settings.policies.policy_tables:
        if name not in settings.policies.chain:
            place = ("policies", name)
            yield SettingsFault(place, "has no effect: the policy is not in 'chain'", settings.source.line(place))


def _unknown_names(settings: Settings) -> Iterator[SettingsFault]:
    """In the tables ``pools`` and ``providers`` of policies: the limit of a pool that is not there limits nothing."""
    of_all: Mapping[str, Collection[str]] = {"pools": settings.pools, "providers": settings.providers}
    for policy in settings.policies.chain:
        table = settings.policies.policy_tables.get(policy, {})
        for key, known in of_all.items():
            entries = table.get(key)
            for name in entries if isinstance(entries, Mapping) else ():
                if name != "*" and name not in known:
                    guess, there = did_you_mean(name, known) or ";", ", ".join(known) or "none"
                    text = f"there is no [{key}.{name}]{guess} {key}: {there}"
                    yield SettingsFault(("policies", policy, key, name), text)


def _trees_without_ssh(settings: Settings, providers: Mapping[str, ResolvedPlugin]) -> Iterator[SettingsFault]:
    without = {name for name, chosen in providers.items() if not getattr(chosen.plugin, "has_ssh", True)}
    for rule in settings.mounts.rules():
        for name, pool in settings.pools.items():
            provider = next((offer.provider for offer in pool.offers if offer.provider in without), None)
            if provider is not None and rule.is_shown_in(name):
                text = (
                    f"pool {name} has machines of provider {provider}, which have no ssh and cannot show trees: "
                    f"list the pools that show it, without {name}; with its partitions in [staging.workdir], jobs "
                    "there get copies of their working directories"
                )
                yield SettingsFault(("mounts", "trees", rule.name, "pools"), text)


def resolve_store(settings: Settings, plugins: PluginRegistry, name: str) -> ResolvedPlugin:
    """One of the stores alone, whatever is wrong elsewhere. Raises SettingsError, and KeyError for no such store."""
    return _resolve_one(settings, plugins, "stagers", name, settings.staging.stores[name])


def resolve_provider(settings: Settings, plugins: PluginRegistry, name: str) -> ResolvedPlugin:
    """One of the providers alone, whatever is wrong elsewhere. Raises SettingsError, KeyError for no such provider."""
    return _resolve_one(settings, plugins, "providers", name, settings.providers[name])


def resolve_policy(
    settings: Settings, plugins: PluginRegistry, name: str, *, check_files: bool = True
) -> ResolvedPlugin:
    """One policy alone, in the chain or not. Raises SettingsError."""
    faults: list[SettingsFault] = []
    table = settings.policies.policy_tables.get(name, {})
    chosen = _resolve_policy(plugins, name, ("policies", name), table, faults, check_files=check_files)
    if chosen is None:
        raise SettingsError(settings.source, faults)
    return chosen


def _resolve_one(
    settings: Settings,
    plugins: PluginRegistry,
    group: Literal["providers", "stagers"],
    name: str,
    table: ProviderSettings | StoreSettings,
) -> ResolvedPlugin:
    faults: list[SettingsFault] = []
    found = _resolve_tables(plugins, group, {name: table}, faults, check_files=True)
    if faults:
        raise SettingsError(settings.source, faults)
    return found[name]


def _resolve_tables(
    plugins: PluginRegistry,
    group: Literal["providers", "stagers"],
    tables: Mapping[str, ProviderSettings | StoreSettings],
    faults: list[SettingsFault],
    *,
    check_files: bool,
) -> dict[str, ResolvedPlugin]:
    """Those of the tables that fit their plug-ins."""
    around: KeyPath = {"providers": ("providers",), "stagers": ("staging", "stores")}[group]
    found: dict[str, ResolvedPlugin] = {}
    for name, table in tables.items():
        place: KeyPath = (*around, name)
        plugin = _plugin(plugins, group, table.kind, (*place, "kind"), faults)
        made = _own_settings(plugin, table.plugin_settings, place, faults, check_files=check_files) if plugin else None
        if plugin is not None and made is not None:
            found[name] = ResolvedPlugin(name, plugin, made)
    return found


def _resolve_policy(
    plugins: PluginRegistry,
    name: str,
    place: KeyPath,
    table: dict[str, Any],
    faults: list[SettingsFault],
    *,
    check_files: bool,
) -> ResolvedPlugin | None:
    plugin = _plugin(plugins, "policies", name, place, faults)
    if plugin is None:
        return None
    [origin] = plugins.origins(name)
    home = origin.path or _source_dir(plugin)

    def validated(call: Callable[[], BaseModel]) -> BaseModel:
        return call_plugin_code(call, plugins.timeout_s, home, ValidationError)

    try:
        made = _own_settings(plugin, table, ("policies", name), faults, check_files=check_files, validated=validated)
    except PolicyBroken as error:
        faults.append(SettingsFault(("policies", name), f"the policy's settings break: {error}"))
        return None
    return ResolvedPlugin(name, plugin, made, origin, home, plugins.files) if made is not None else None


def _source_dir(plugin: Plugin) -> Path | None:
    """The folder of the module that makes the policy."""
    file = getattr(sys.modules.get(getattr(plugin.make, "__module__", "")), "__file__", None)
    return Path(file).parent if file else None


def _plugin(
    plugins: PluginRegistry, group: PluginGroup, name: str, place: KeyPath, faults: list[SettingsFault]
) -> Plugin | None:
    try:
        known = plugins.names(group)
        if name not in known:
            broken = (
                next((f.fault for f in plugins.broken_files() if f.path.stem == name), "")
                if group == "policies"
                else ""
            )
            if broken:
                faults.append(SettingsFault(place, f"the policy cannot be loaded: {broken}"))
                return None
            what = {"providers": "kind of provider", "policies": "policy", "stagers": "kind of store"}[group]
            text = (
                f"there is no {what} {name!r}{did_you_mean(name, known) or ';'} installed: {', '.join(known) or 'none'}"
            )
            faults.append(SettingsFault(place, text + (_broken_files(plugins) if group == "policies" else "")))
            return None
        return plugins.load_plugin(group, name)
    except PluginUnusable as error:
        faults.append(SettingsFault(place, str(error)))
        return None


def _broken_files(plugins: PluginRegistry) -> str:
    """Any of these may be what is missing."""
    broken = plugins.faults()
    return f"; not loaded: {'; '.join(broken)}" if broken else ""


def _own_settings(
    plugin: Plugin,
    table: dict[str, Any],
    place: KeyPath,
    faults: list[SettingsFault],
    *,
    check_files: bool,
    validated: Callable[[Callable[[], BaseModel]], BaseModel] = lambda call: call(),
) -> BaseModel | None:
    model: type[BaseModel] = plugin.settings
    before = len(faults)
    if model.model_config.get("extra") != "forbid":
        # Pydantic lets unknown keys pass by default; a plug-in that forgot to say so must not.
        allowed = set(model.model_fields) | {f.alias for f in model.model_fields.values() if f.alias}
        for key in sorted(set(table) - allowed):
            listed = ", ".join(sorted(allowed)) or "none"
            faults.append(
                SettingsFault(
                    (*place, key), f"there is no such key{did_you_mean(key, allowed) or '.'} Allowed: {listed}."
                )
            )
    try:
        made = validated(lambda: model.model_validate(table))
    except ValidationError as error:
        faults += faults_of_validation(error, model, table, place)
        return None
    if check_files:
        faults += secret_faults(made, place)
    return made if len(faults) == before else None
