"""The machine's way to Python packages (index, certificates, local wheels, proxy), for the time of a layer's build."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from providers.sandbox.boxes.boot.description import BindMount

_VARIABLES = ("PIP_", "UV_")
_ALSO = {"http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle"}
_NOT = {"PIP_CONFIG_FILE", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_CACHE_DIR"}


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What to add to a build: files to show, and variables."""

    binds: list[BindMount]
    environment: dict[str, str]


def config_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """pip's configuration files of this machine and user, the most general first."""
    if environ.get("PIP_CONFIG_FILE"):
        return [Path(environ["PIP_CONFIG_FILE"])]
    general = [Path(d) / "pip/pip.conf" for d in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if d]
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [
        *general,
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        own / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]


def merged(files: Iterable[Path]) -> configparser.RawConfigParser:
    """The settings of all files, the later ones winning, as pip reads them."""
    parser = configparser.RawConfigParser()
    parser.read([f for f in files if f.is_file()], encoding="utf-8")
    return parser


def local_paths(values: Iterable[str]) -> list[Path]:
    """Files and directories of the machine that settings name, as paths or file: URLs. A PEP 503 index counts whole."""
    found: set[Path] = set()
    for word in re.split(r"[\s,]+", " ".join(values)):
        path = Path(unquote(urlparse(word).path)) if word.startswith("file:") else Path(word)
        if path.is_absolute() and path.exists() and path != Path("/"):
            # Links in a local index lead out of it ("../../files/..."), so its parent is shown.
            found.add(path.parent if word.startswith("file:") and path.is_dir() and path.parent != Path("/") else path)
    return sorted(p for p in found if not any(other in p.parents for other in found))


def machine_pip(directory: Path) -> PipSettings:
    """The machine's settings; ``directory`` takes the merged configuration file."""
    config = merged(config_files(os.environ, Path.home()))
    environment = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_VARIABLES) or name.lower() in _ALSO) and name not in _NOT
    }
    environment["PIP_NO_CACHE_DIR"] = "1"  # a cache would be kept in the layer
    file = directory / "pip.conf"
    file.touch(mode=0o600)  # an index URL may hold a password
    with file.open("w", encoding="utf-8") as out:
        config.write(out)
    values = [value for section in config.sections() for value in config[section].values()] + list(environment.values())
    return PipSettings(
        [BindMount(file, "/etc/pip.conf"), *(BindMount(path) for path in local_paths(values))], environment
    )
