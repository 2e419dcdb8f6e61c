"""Which plug-ins are installed, and whether the settings fit them. Only those that are used are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ValidationError

from burstd.model.errors import BurstdError, PolicyBroken
from burstd.settings.faults import Fault, SettingsError, faults_of, nearest
from burstd.settings.foreign import call_foreign
from burstd.settings.load import secret_faults
from burstd.settings.policy_files import PolicyFile, PolicyFiles
from burstd.settings.sections import Policies, ProviderSettings, Settings
from burstd.settings.source import KeyPath
from burstd.settings.staging import StoreSettings
from burstd.settings.trust import untrusted

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
class Origin:
    """Where a plug-in comes from: a package with its version, or a file of the site (or a package's folder there)."""

    package: str = ""
    version: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.path else f"{self.package} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plug-in with the settings that it is to have. ``name``: a provider's, a store's or a policy's."""

    name: str
    plugin: Plugin
    settings: BaseModel
    origin: Origin = Origin()
    home: Path | None = None
    """The file or folder whose lines are named where a policy fails."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """All plug-ins that the settings name: providers and stores by name, policies in the chain's order."""

    providers: Mapping[str, Chosen]
    policies: tuple[Chosen, ...]
    stores: Mapping[str, Chosen] = field(default_factory=dict)


class Plugins:
    """The plug-ins there are, each imported when it is first asked for; a site's own files when a policy is."""

    def __init__(
        self,
        loaders: Mapping[Group, Mapping[str, Callable[[], object]]],
        origins: Mapping[str, Origin] | None = None,
        files: Callable[[], PolicyFiles] | None = None,
        timeout_s: float = Policies().timeout_s,
    ) -> None:
        self._loaders = loaders
        self._origins = dict(origins or {})
        self._read = files
        self._files: PolicyFiles | None = None
        self.timeout_s = timeout_s
        """For the code of policies, whenever it is called."""

    @classmethod
    def installed(cls, folder: Path | None = None, timeout_s: float = Policies().timeout_s) -> Self:
        """Those of all installed packages, by their entry points, and the policies of a folder as it is now."""
        groups: tuple[Group, ...] = ("providers", "policies", "stagers")
        points = {group: tuple(entry_points(group=f"burstd.{group}")) for group in groups}
        return cls(
            {group: {point.name: _loader(point) for point in some} for group, some in points.items()},
            {p.name: Origin(p.dist.name, p.dist.version) if p.dist else Origin() for p in points["policies"]},
            None if folder is None else lambda: PolicyFiles(folder, timeout_s),
            timeout_s,
        )

    @property
    def files(self) -> PolicyFiles | None:
        """The folder's, once it has been asked for."""
        if self._files is None and self._read is not None:
            self._files = self._read()
        return self._files

    def names(self, group: Group) -> list[str]:
        """The names of a group."""
        own = [file.name for file in self._of_site()] if group == "policies" else []
        return sorted({*self._loaders.get(group, {}), *own} - {""})

    def origins(self, name: str) -> list[Origin]:
        """Where policies of this name come from; more than one is a fault."""
        own = [Origin(path=file.path) for file in self._of_site() if file.name == name]
        packaged = name in self._loaders.get("policies", {})
        return [*([self._origins.get(name, Origin())] if packaged else []), *own]

    def faults(self) -> list[str]:
        """What is wrong with the policies' files, used or not, one sentence each."""
        found = [file.fault for file in self.broken()]
        return found + [_twice(name, o) for name in self.names("policies") if len(o := self.origins(name)) > 1]

    def broken(self) -> list[PolicyFile]:
        """Files of policies that cannot be loaded."""
        return [file for file in self._of_site() if file.fault]

    def load(self, group: Group, name: str) -> Plugin:
        """Imports one. Raises PluginUnusable."""
        origins = self.origins(name) if group == "policies" else []
        if len(origins) > 1:
            raise PluginUnusable(_twice(name, origins))
        own = next((f for f in self._of_site() if f.name == name), None) if group == "policies" else None
        try:
            plugin = own.plugin if own is not None else self._loaders[group][name]()
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

    def _of_site(self) -> Sequence[PolicyFile]:
        return self.files.found if self.files is not None else ()


def _twice(name: str, origins: Sequence[Origin]) -> str:
    return f"more than one policy is called {name!r}: {' and '.join(map(str, origins))}; rename or remove one"


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
        chosen = _policy(plugins, name, ("policies", "chain", i), own.get(name, {}), faults, check_files=check_files)
        if chosen is not None:
            chain.append(chosen)
    for name in own:
        # A table for a policy that is switched off may stay, if there is such a policy.
        if name not in settings.policies.chain and name not in plugins.names("policies"):
            known = plugins.names("policies")
            text = f"no policy is called {name!r}{nearest(name, known) or ';'} installed: {', '.join(known) or 'none'}"
            faults.append(Fault(("policies", name), text + _broken_files(plugins)))
    if faults:
        raise SettingsError(settings.source, faults)
    return Resolved(providers, tuple(chain), stores)


def resolve_store(settings: Settings, plugins: Plugins, name: str) -> Chosen:
    """One of the stores alone, whatever is wrong elsewhere. Raises SettingsError, and KeyError for no such store."""
    return _alone(settings, plugins, "stagers", name, settings.staging.stores[name])


def resolve_provider(settings: Settings, plugins: Plugins, name: str) -> Chosen:
    """One of the providers alone, whatever is wrong elsewhere. Raises SettingsError, KeyError for no such provider."""
    return _alone(settings, plugins, "providers", name, settings.providers[name])


def resolve_policy(settings: Settings, plugins: Plugins, name: str, *, check_files: bool = True) -> Chosen:
    """One policy alone, in the chain or not. Raises SettingsError."""
    faults: list[Fault] = []
    table = settings.policies.own.get(name, {})
    chosen = _policy(plugins, name, ("policies", name), table, faults, check_files=check_files)
    if chosen is None:
        raise SettingsError(settings.source, faults)
    return chosen


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


def _policy(
    plugins: Plugins, name: str, place: KeyPath, table: dict[str, Any], faults: list[Fault], *, check_files: bool
) -> Chosen | None:
    plugin = _plugin(plugins, "policies", name, place, faults)
    if plugin is None:
        return None
    [origin] = plugins.origins(name)
    home = origin.path or _home(plugin)

    def validated(call: Callable[[], BaseModel]) -> BaseModel:
        return call_foreign(call, plugins.timeout_s, home, ValidationError)

    try:
        made = _own_settings(plugin, table, ("policies", name), faults, check_files=check_files, validated=validated)
    except PolicyBroken as error:
        faults.append(Fault(("policies", name), f"the policy's settings break: {error}"))
        return None
    return Chosen(name, plugin, made, origin, home) if made is not None else None


def _home(plugin: Plugin) -> Path | None:
    """The folder of the module that makes the policy."""
    file = getattr(sys.modules.get(getattr(plugin.make, "__module__", "")), "__file__", None)
    return Path(file).parent if file else None


def _plugin(plugins: Plugins, group: Group, name: str, place: KeyPath, faults: list[Fault]) -> Plugin | None:
    try:
        known = plugins.names(group)
        if name not in known:
            broken = next((f.fault for f in plugins.broken() if f.path.stem == name), "") if group == "policies" else ""
            if broken:
                faults.append(Fault(place, f"the policy cannot be loaded: {broken}"))
                return None
            what = {"providers": "kind of provider", "policies": "policy", "stagers": "kind of store"}[group]
            text = f"there is no {what} {name!r}{nearest(name, known) or ';'} installed: {', '.join(known) or 'none'}"
            faults.append(Fault(place, text + (_broken_files(plugins) if group == "policies" else "")))
            return None
        return plugins.load(group, name)
    except PluginUnusable as error:
        faults.append(Fault(place, str(error)))
        return None


def _broken_files(plugins: Plugins) -> str:
    """Any of these may be what is missing."""
    broken = plugins.faults()
    return f"; not loaded: {'; '.join(broken)}" if broken else ""


def _own_settings(
    plugin: Plugin,
    table: dict[str, Any],
    place: KeyPath,
    faults: list[Fault],
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
                Fault((*place, key), f"there is no such key{nearest(key, allowed) or '.'} Allowed: {listed}.")
            )
    try:
        made = validated(lambda: model.model_validate(table))
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
    parts = point.module.split(".")
    for length in range(1, len(parts) + 1):
        module = ".".join(parts[:length])
        spec = importlib.util.find_spec(module)
        if spec is None:
            raise PluginUnusable(f"the plug-in {point.name!r} names the module {module}, which is not there")
        places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
        fault = next((found for place in places if (found := untrusted(Path(place)))), "")
        if fault:
            raise PluginUnusable(f"the plug-in {point.name!r} is not loaded: {fault}")
