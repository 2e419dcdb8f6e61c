"""Policies of the site from a folder: each ``NAME.py`` and package that ends with ``plugin = PolicyPlugin(...)``.

They are read afresh by every PolicyFiles, as modules of names of their own, beside those that are in force. Compiled
code is neither read nor written.
"""

from __future__ import annotations

import importlib
import re
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import count
from pathlib import Path
from types import CodeType, ModuleType

from burstd.domain.errors import BurstdError, PolicyBroken
from burstd.settings.plugins.file_trust import path_untrusted_because
from burstd.settings.plugins.foreign_code import call_plugin_code
from burstd.settings.sections import PolicyChainSettings

RESERVED_POLICY_NAMES = frozenset(PolicyChainSettings.model_fields)
"""Keys of ``[policies]``, which no policy can have for a name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_ENDS = "it has no 'plugin'; it must end with: plugin = PolicyPlugin(\"NAME\", Settings, Policy)"
_NUMBERS = count(1)
_MISSING = object()

FileStamp = tuple[int, int]
"""Of a file: when it was changed, and its size."""


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A file or package of the folder, as it was found."""

    path: Path
    """Of the file, or of the package's folder."""
    name: str = ""
    """The plug-in's; empty where it cannot be loaded."""
    plugin: object = None
    fault: str = ""
    """Why it cannot be loaded, with file and line; empty: it was."""


class PolicyFiles:
    """What one folder holds now; ``only``: of it, one file or package alone."""

    def __init__(self, folder: Path, timeout_s: float, only: Path | None = None, *, trusted: bool = True) -> None:
        self.folder = folder
        self._timeout_s = timeout_s
        self._root = f"_burstd_policies_{next(_NUMBERS)}"
        self._finder = _Finder(self._root, folder, trusted=trusted)
        self._entries, fault = _entries(folder) if only is None else ([only], "")
        root = ModuleType(self._root)
        root.__path__ = []
        sys.modules[self._root] = root
        sys.meta_path.insert(0, self._finder)
        # The policies in force need their modules as long as somebody holds these files.
        weakref.finalize(self, _unload_modules, self._root, self._finder)
        importlib.invalidate_caches()
        broken = [PolicyFile(folder, fault=fault)] if fault else []
        self.policy_files: Sequence[PolicyFile] = [*broken, *(self._load(path) for path in self._entries)]

    def changed_paths(self) -> list[Path]:
        """What is not on disk as it was read: changed, gone, or new."""
        changed = [path for path, stamp in self._finder.read.items() if file_stamp(path) != stamp]
        changed += [path for path in _entries(self.folder)[0] if path not in self._entries]
        return sorted(set(changed))

    def stamps(self, path: Path) -> dict[Path, FileStamp | None]:
        """Of what was read of one file or package."""
        return {file: stamp for file, stamp in self._finder.read.items() if file == path or path in file.parents}

    def _load(self, path: Path) -> PolicyFile:
        try:
            name, plugin = call_plugin_code(lambda: self._import(path.name.removesuffix(".py")), self._timeout_s, path)
        except PolicyBroken as error:
            said = str(error)
            return PolicyFile(path, fault=said if said.startswith(str(path)) else f"{path}: {said}")
        return PolicyFile(path, name, plugin)

    def _import(self, word: str) -> tuple[str, object]:
        if "." in word:
            raise PolicyBroken("the name of a policy's file has no dot but that of .py")
        plugin = vars(importlib.import_module(f"{self._root}.{word}")).get("plugin", _MISSING)
        if plugin is _MISSING:
            raise PolicyBroken(_ENDS)
        name = getattr(plugin, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED_POLICY_NAMES:
            raise PolicyBroken(
                f"the plug-in's name {name!r} cannot be used: it must be 1 to 32 letters, digits, '-' and '_', "
                f"and none of {', '.join(sorted(RESERVED_POLICY_NAMES))}"
            )
        return name, plugin


def file_stamp(path: Path) -> FileStamp | None:
    """As the file is now; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _entries(folder: Path) -> tuple[list[Path], str]:
    """Files and packages, and what keeps them from being seen. Names that begin with ``_`` or ``.`` are left alone."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"the folder {folder} cannot be read ({error.strerror})"
    paths = [folder / name for name in names if not name.startswith(("_", "."))]
    return [path for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()], ""


def _unload_modules(root: str, finder: MetaPathFinder) -> None:
    """Plain values: nothing here may hold the files."""
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    for name in [n for n in sys.modules if n == root or n.startswith(f"{root}.")]:
        del sys.modules[name]


class _Finder(MetaPathFinder):
    """Finds the modules of one folder, if they may be trusted."""

    def __init__(self, root: str, folder: Path, *, trusted: bool) -> None:
        self._root = root
        self._folder = folder
        self._trusted = trusted
        self.read: dict[Path, FileStamp | None] = {}

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds modules of the policies folder. Raises UntrustedPolicyFile."""
        if not fullname.startswith(f"{self._root}."):
            return None
        base = self._folder.joinpath(*fullname.split(".")[1:])
        package = base / "__init__.py"
        file = package if package.is_file() else base.with_name(f"{base.name}.py")
        if not file.is_file():
            return None
        fault = path_untrusted_because(file) if self._trusted else ""
        if fault:
            raise UntrustedPolicyFile(f"it is not loaded: {fault}")
        self.read[file] = file_stamp(file)
        places = [str(base)] if file == package else None
        return spec_from_file_location(
            fullname, file, loader=_SourceOnlyLoader(fullname, str(file)), submodule_search_locations=places
        )


class UntrustedPolicyFile(BurstdError):
    """Somebody may have written it who could not have altered burstd itself."""


class _SourceOnlyLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """From the source alone."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code
