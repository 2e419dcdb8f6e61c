"""Which plug-ins are installed. Only those that are used are imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BaseModel

from burstd.domain.errors import BurstdError, PolicyBroken
from burstd.settings.plugins.file_trust import untrusted_because
from burstd.settings.plugins.foreign_code import MOVED, call_plugin_code, names_missing_in_burstd
from burstd.settings.plugins.policy_files import PolicyFile, PolicyFiles
from burstd.settings.sections import PolicyChainSettings

PluginGroup = Literal["providers", "policies", "stagers"]


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
class PluginOrigin:
    """Where a plug-in comes from: a package with its version, or a file of the site (or a package's folder there)."""

    package: str = ""
    version: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return str(self.path) if self.path else f"{self.package} {self.version}".strip()


class PluginRegistry:
    """The plug-ins there are, each imported when it is first asked for; a site's own files when a policy is."""

    def __init__(
        self,
        loaders: Mapping[PluginGroup, Mapping[str, Callable[[], object]]],
        origins: Mapping[str, PluginOrigin] | None = None,
        files: Callable[[], PolicyFiles] | None = None,
        timeout_s: float = PolicyChainSettings().timeout_s,
    ) -> None:
        self._loaders = loaders
        self._origins = dict(origins or {})
        self._read = files
        self._files: PolicyFiles | None = None
        self.timeout_s = timeout_s
        """For the code of policies, whenever it is called."""

    @classmethod
    def installed(cls, folder: Path | None = None, timeout_s: float = PolicyChainSettings().timeout_s) -> Self:
        """Those of all installed packages, by their entry points, and the policies of a folder as it is now."""
        groups: tuple[PluginGroup, ...] = ("providers", "policies", "stagers")
        points = {group: tuple(entry_points(group=f"burstd.{group}")) for group in groups}
        return cls(
            {group: {point.name: _loader(point) for point in some} for group, some in points.items()},
            {
                p.name: PluginOrigin(p.dist.name, p.dist.version) if p.dist else PluginOrigin()
                for p in points["policies"]
            },
            None if folder is None else lambda: PolicyFiles(folder, timeout_s),
            timeout_s,
        )

    @property
    def files(self) -> PolicyFiles | None:
        """The folder's, once it has been asked for."""
        if self._files is None and self._read is not None:
            self._files = self._read()
        return self._files

    def names(self, group: PluginGroup) -> list[str]:
        """The names of a group."""
        own = [file.name for file in self._site_files()] if group == "policies" else []
        return sorted({*self._loaders.get(group, {}), *own} - {""})

    def origins(self, name: str) -> list[PluginOrigin]:
        """Where policies of this name come from; more than one is a fault."""
        own = [PluginOrigin(path=file.path) for file in self._site_files() if file.name == name]
        packaged = name in self._loaders.get("policies", {})
        return [*([self._origins.get(name, PluginOrigin())] if packaged else []), *own]

    def faults(self) -> list[str]:
        """What is wrong with the policies' files, used or not, one sentence each."""
        found = [file.fault for file in self.broken_files()]
        return found + [
            _duplicate_policy_message(name, o) for name in self.names("policies") if len(o := self.origins(name)) > 1
        ]

    def broken_files(self) -> list[PolicyFile]:
        """Files of policies that cannot be loaded."""
        return [file for file in self._site_files() if file.fault]

    def load_plugin(self, group: PluginGroup, name: str) -> Plugin:
        """Imports one. Raises PluginUnusable."""
        origins = self.origins(name) if group == "policies" else []
        if len(origins) > 1:
            raise PluginUnusable(_duplicate_policy_message(name, origins))
        own = next((f for f in self._site_files() if f.name == name), None) if group == "policies" else None
        try:
            loader = self._loaders[group][name] if own is None else lambda: own.plugin
            passing = (PluginUnusable, ModuleNotFoundError)
            plugin = call_plugin_code(loader, self.timeout_s, None, passing) if group == "policies" else loader()
        except PluginUnusable:
            raise
        except PolicyBroken as error:
            raise PluginUnusable(f"the plug-in {name!r} fails when it is loaded: {error}") from error
        except ModuleNotFoundError as error:
            if names_missing_in_burstd(error):
                raise PluginUnusable(f"the plug-in {name!r} imports {error.name}: {MOVED}") from error
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

    def _site_files(self) -> Sequence[PolicyFile]:
        return self.files.policy_files if self.files is not None else ()


def _duplicate_policy_message(name: str, origins: Sequence[PluginOrigin]) -> str:
    return f"more than one policy is called {name!r}: {' and '.join(map(str, origins))}; rename or remove one"


def _loader(point: EntryPoint) -> Callable[[], object]:
    def load() -> object:
        _check_trusted(point)
        return point.load()

    return load


def _check_trusted(point: EntryPoint) -> None:
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
        fault = next((found for place in places if (found := untrusted_because(Path(place)))), "")
        if fault:
            raise PluginUnusable(f"the plug-in {point.name!r} is not loaded: {fault}")
