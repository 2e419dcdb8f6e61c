from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from burstd.settings import PluginRegistry, Settings, SettingsError, make_policies, parse_settings, resolve_plugins
from burstd.settings.plugins.registry import PluginGroup, _loader
from policies import budget


class CloudSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    region: str
    retries: int = 3
    url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "http://sky"
    credentials_file: Path | None = Field(default=None, json_schema_extra={"secret": True})


class Careless(BaseModel):
    after_s: float = 1.0


@dataclass(frozen=True)
class Plugin:
    name: str
    settings: type[Any]
    make: Callable[..., Any] = dict
    has_ssh: bool = True


POOL = """[pools.gpu]
nodes = 'g1'
partitions = ['p']
cpus = 1
memory = 1
offers = [{ provider = 'here' }]
"""


def missing_sdk() -> object:
    raise ModuleNotFoundError("No module named 'boto3'", name="boto3")


def broken() -> object:
    raise RuntimeError("no moon tonight")


LOADERS: dict[PluginGroup, dict[str, Callable[[], object]]] = {
    "providers": {
        "cloud": lambda: Plugin("cloud", CloudSettings),
        "pods": lambda: Plugin("pods", Careless, has_ssh=False),
        "aws": missing_sdk,
        "moon": broken,
        "stone": lambda: "a stone",
        "old": lambda: Plugin("old", dict),
    },
    "stagers": {"shared": lambda: Plugin("shared", CloudSettings)},
    "policies": {"idle": lambda: Plugin("idle", Careless), "limits": lambda: Plugin("limits", Careless)},
}
PLUGINS = PluginRegistry(LOADERS)


def settings(text: str, chain: str = "[]") -> Settings:
    return parse_settings(f'cluster = "x"\npolicies.chain = {chain}\n{text}')


def test_settings_reach_the_plug_ins_in_the_order_of_the_chain() -> None:
    found = resolve_plugins(
        settings("policies.idle.after_s = 5\n[providers.here]\nkind = 'cloud'\nregion = 'a'", "['limits', 'idle']"),
        PLUGINS,
    )
    assert [(c.name, c.settings) for c in found.policies] == [("limits", Careless()), ("idle", Careless(after_s=5))]
    assert found.providers["here"].settings == CloudSettings(region="a")
    assert found.providers["here"].plugin.name == "cloud"
    stored = settings("[staging]\nstore = 's'\n[staging.stores.s]\nkind = 'shared'\nregion = 'b'")
    assert resolve_plugins(stored, PLUGINS).stores["s"].settings == CloudSettings(region="b")


@pytest.mark.parametrize(
    ("text", "chain", "says"),
    [
        (
            "[providers.p]\nkind = 'clod'",
            "[]",
            "line 4: providers.p.kind: there is no kind of provider 'clod'; did you",
        ),
        ("[providers.p]\nkind = 'cloud'", "[]", "line 3: providers.p.region: must be set"),
        ("[providers.p]\nkind = 'cloud'\nregion = ''\nretry = 3", "[]", "line 6: providers.p.retry: there is no such"),
        ("[providers.p]\nkind = 'cloud'\nregion = 3", "[]", "line 5: providers.p.region: must be text in quotes"),
        ("[providers.p]\nkind = 'aws'", "[]", "needs the Python package 'boto3', which is not installed"),
        ("[providers.p]\nkind = 'moon'", "[]", "fails when it is loaded: RuntimeError('no moon tonight')"),
        ("[providers.p]\nkind = 'stone'", "[]", "'stone' is no plug-in: it lacks"),
        ("[providers.p]\nkind = 'old'", "[]", "settings that are no pydantic model"),
        (
            "[staging]\nstore = 's'\n[staging.stores.s]\nkind = 'shard'",
            "[]",
            "line 6: staging.stores.s.kind: there is no kind of store 'shard'; did you mean 'shared'?",
        ),
        (
            "[staging]\nstore = 's'\n[staging.stores.s]\nkind = 'shared'",
            "[]",
            "line 5: staging.stores.s.region: must be set",
        ),
        ("", "['idel']", "line 2: policies.chain[0]: there is no policy 'idel'; did you mean 'idle'? installed: idle,"),
        ("[policies.idel]", "[]", "line 3: policies.idel: no policy is called 'idel'; did you mean 'idle'?"),
        ("[policies.idle]\nafter = 3", "['idle']", "line 4: policies.idle.after: there is no such key; did you mean"),
    ],
)
def test_what_does_not_fit_is_named_at_its_line(text: str, chain: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(settings(text, chain), PLUGINS)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{POOL}[providers.here]\nkind = 'pods'\n[policies.idle.pools.gpuu]",
            "line 11: policies.idle.pools.gpuu: there is no [pools.gpuu]; did you mean 'gpu'? pools: gpu",
        ),
        (
            "[policies.idle.providers.here]",
            "line 3: policies.idle.providers.here: there is no [providers.here]; providers: none",
        ),
        (
            "[providers.s]\nkind = 'cloud'\nregion = 'a'\nurl = '10.0.0.1:80'",
            "line 6: providers.s.url: must begin with http:// or https:// (it is '10.0.0.1:80')",
        ),
    ],
)
def test_pools_providers_and_urls_that_cannot_be_are_told_in_these_words(text: str, line: str) -> None:
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(settings(text, "['idle']"), PLUGINS)
    assert line in [said.strip() for said in str(raised.value).splitlines()]


def test_a_policy_that_is_off_keeps_its_table_and_an_unused_plug_in_is_not_imported() -> None:
    assert resolve_plugins(settings("[policies.idle]\nafter_s = 3"), PLUGINS).policies == ()


def test_a_daemon_without_the_sandbox_loads_nothing_of_it() -> None:
    code = "import sys, burstd.daemon.main; from burstd.settings import *\n"
    code += "resolve_plugins(parse_settings('cluster = \"c\"'), PluginRegistry.installed())\n"
    code += "print(*(m for m in sys.modules if m.startswith('providers.')))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"


def test_all_faults_of_all_plug_ins_come_together(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    secret.chmod(0o604)
    text = f"[providers.a]\nkind = 'cloud'\nregion = 'a'\ncredentials_file = '{secret}'\n[providers.b]\nkind = 'aws'"
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(settings(text, "['idel']"), PLUGINS)
    assert [f.line for f in raised.value.faults] == [2, 6, 8]
    assert "open to everybody (mode 0604)" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.chmod(0o646), "can be written by others (mode 0646)"),
        (lambda f: f.unlink(), "which is not there"),
        (lambda f: f.chmod(0o644), ""),
    ],
)
def test_code_that_others_could_have_written_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], says: str
) -> None:
    name = f"site_{tmp_path.name}"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / name / "__init__.py").touch(mode=0o644)
    module = tmp_path / name / "policy.py"
    module.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nplugin = 'not one'\n")
    change(module)
    point = EntryPoint("site", f"{name}.policy:plugin", "burstd.policies")
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(settings("", "['site']"), PluginRegistry({"policies": {"site": _loader(point)}}))
    assert (says or "'site' is no plug-in") in str(raised.value)
    assert (tmp_path / "ran").exists() == (not says)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", "policy.py:1: SystemExit: 3"),
        ("from burstd.domain.claim import Nope", "policy.py:1: ImportError: cannot import name 'Nope' from 'burstd."),
        ("x = 1\nx.y", "policy.py:2: AttributeError: 'int' object has no attribute 'y'"),
        ("while True: pass", "policy.py:1: it took longer than 0.1 s and was interrupted"),
    ],
)
def test_a_packaged_policy_that_breaks_when_it_is_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    name = f"broken_{tmp_path.name}"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / name).mkdir(mode=0o755)
    for file, text in (("__init__.py", ""), ("policy.py", f"{code}\n")):
        (tmp_path / name / file).write_text(text)
        (tmp_path / name / file).chmod(0o644)
    point = EntryPoint("site", f"{name}.policy:plugin", "burstd.policies")
    limit_s = 0.1 if "took longer" in says else 5.0
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(
            settings("", "['site']"), PluginRegistry({"policies": {"site": _loader(point)}}, timeout_s=limit_s)
        )
    assert f"line 2: policies.chain[0]: the plug-in 'site' fails when it is loaded: {tmp_path / name}/{says}" in str(
        raised.value
    )


@pytest.mark.parametrize(("group", "chain"), [("policies", "['site']"), ("providers", "[]")])
def test_a_plug_in_for_an_older_burstd_is_told_where_to_look(group: PluginGroup, chain: str) -> None:
    def load() -> object:
        return importlib.import_module("burstd.model")

    text = "[providers.a]\nkind = 'site'" if group == "providers" else ""
    with pytest.raises(SettingsError, match=r"imports burstd\.model: .*CHANGELOG\.md"):
        resolve_plugins(settings(text, chain), PluginRegistry({group: {"site": load}}))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[policies.budget]\noverhead_s = 800", "must be at least 900, daemon.boot_timeout_s (600) and "),
        ("[daemon]\nboot_timeout_s = 1800", "must be at least 2100, daemon.boot_timeout_s (1800) and "),
        ("[daemon]\nboot_timeout_s = 400\n[policies.budget]\noverhead_s = 700", ""),
    ],
    ids=["shorter than the default", "the default too short for a long boot", "long enough"],
)
def test_a_machine_may_not_come_too_late_for_what_is_reserved(text: str, fault: str) -> None:
    plugins = PluginRegistry({**LOADERS, "policies": {"budget": lambda: budget.plugin}})
    given = settings(text, '["budget"]')
    if not fault:
        assert make_policies(given, resolve_plugins(given, plugins), plugins)
        return
    with pytest.raises(SettingsError) as found:
        make_policies(given, resolve_plugins(given, plugins), plugins)
    [one] = found.value.faults
    assert one.path == ("policies", "budget", "overhead_s")
    assert one.text.startswith(fault)


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        ("", "line 10: mounts.trees.home.pools: pool gpu has machines of provider p, which have no ssh and cannot"),
        ("pools = ['gpu']", "line 11: mounts.trees.home.pools: pool gpu has machines of provider p, which have no ssh"),
        ("pools = ['cpu']", ""),
    ],
)
def test_a_tree_is_refused_in_a_pool_without_ssh(tree: str, fault: str) -> None:
    pool = "nodes = '{0}1'\npartitions = ['burst']\ncpus = 1\nmemory = '1G'\noffers = [{{ provider = '{1}' }}]\n"
    text = (
        "[providers]\np = { kind = 'pods' }\nc = { kind = 'cloud', region = 'r' }\n"
        f"[pools.gpu]\n{pool.format('gpu', 'p')}[pools.cpu]\n{pool.format('cpu', 'c')}"
        f"[mounts.trees.home]\npath = '/home/{{user}}'\n{tree}\n"
    )
    if not fault:
        resolve_plugins(settings(text), PLUGINS)
        return
    with pytest.raises(SettingsError) as error:
        resolve_plugins(settings(text), PLUGINS)
    assert fault.partition(": ")[2] in str(error.value)
