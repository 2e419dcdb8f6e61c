"""The provider of docs/provider-authors.md, taken from the document: it keeps the contract, and is found by burstd."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from burstd.domain.plugins.provider import Provider
from burstd.settings import PluginRegistry, SettingsError, load_settings, resolve_plugins
from burstd.testing.provider_contract import FaultContract, ProviderContract
from tests.docs.hut import HutWorld, token_file
from tests.lab.programs import PROJECT

TEXT = (PROJECT / "docs" / "provider-authors.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As pip would have installed the document's package."""
    project = tomllib.loads(blocks("toml")[0])["project"]
    ((name, value),) = project["entry-points"]["burstd.providers"].items()
    module = value.partition(":")[0]
    (tmp_path / f"{module}.py").write_text(blocks("python")[0], encoding="utf-8")
    info = tmp_path / f"{module}-{project['version']}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[burstd.providers]\n{name} = {value}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop(module, None)


class TestHut(ProviderContract, FaultContract):
    """All of both suites."""

    @pytest.fixture
    def world(self, installed: Path) -> HutWorld:
        module = import_module("burstd_hut")
        settings = module.Settings(url="http://hut", token_file=token_file(installed), image="debian", page=2)

        def make(cluster: str, transport: httpx.BaseTransport) -> Provider:
            made: Provider = module.Hut("north", cluster, settings, transport)
            return made

        return HutWorld(make)


def test_burstd_finds_it_and_checks_its_settings(installed: Path) -> None:
    table = blocks("toml")[1].replace("/etc/burstd/hut.token", str(token_file(installed)))
    file = installed / "burstd.toml"
    file.write_text(f'cluster = "x"\n{table}', encoding="utf-8")
    settings = load_settings(file, check_files=False)
    chosen = resolve_plugins(settings, PluginRegistry.installed()).providers["north"]
    assert chosen.plugin.make("north", "x", chosen.settings).name == "north"
    (installed / "hut.token").chmod(0o644)
    with pytest.raises(SettingsError, match=r"hut\.token is open to everybody"):
        resolve_plugins(settings, PluginRegistry.installed())


def test_the_world_of_the_document_is_one() -> None:
    """The second block is only a sketch, and still must have the right names."""
    module = ModuleType("sketch")
    exec(compile(blocks("python")[1], "docs/provider-authors.md", "exec"), module.__dict__)  # noqa: S102
    assert module.HutWorld().page == 2
