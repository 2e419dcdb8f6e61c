"""The example of the guide for policy authors works as it stands there, and passes the contract."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from burstd.domain.claim import Cause
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.policy import PolicyPlugin, Target, Want
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.settings import PluginRegistry
from burstd.testing.policy.policy_contract import PolicyContract, check_policy

GUIDE = Path(__file__).parents[2] / "docs" / "policies.md"


@pytest.fixture(scope="module")
def zones() -> Iterator[ModuleType]:
    code = next(c for c in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "class Zones" in c)
    module = ModuleType("zones_of_the_guide")
    sys.modules[module.__name__] = module
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)  # noqa: S102  # the guide's own code is what is tested
    yield module
    del sys.modules[module.__name__]


@pytest.mark.slow
def test_contract(zones: ModuleType) -> None:
    class Contract(PolicyContract):
        plugin: ClassVar[PolicyPlugin] = zones.plugin
        tried = ({}, {"out_of": {"atlas": ["b"]}})

    contract = Contract()
    contract.test_settings_refuse_unknown_keys()
    contract.test_named_as_in_the_settings()
    contract.test_contract()


@pytest.mark.parametrize(
    ("places", "account", "left"), [("ab", "atlas", ["a"]), ("ab", "", ["a", "b"]), ("b", "atlas", [])]
)
def test_it_does_what_the_guide_says(zones: ModuleType, places: str, account: str, left: list[str]) -> None:
    shape = Shape(4, 8000)
    offers = tuple(Offer("sky", "r", zone, "t", spot=False, shape=shape, price=Decimal(1)) for zone in places)
    pool = Pool("cpu", ("n1", "n2", "n3"), ("burst",), shape)
    snapshot = Snapshot(0.0, "x", {"cpu": pool}, SlurmView((), {}, ()), {}, ())
    want = Want("cpu", 1, Cause.FLOOR, "job 1", offers, accounts=(account,) if account else ())
    policy: Any = zones.plugin.make(zones.plugin.settings(out_of={"atlas": ["b"]}))
    found = check_policy(policy, snapshot, Target(wants=(want,), offers={"cpu": offers}))
    assert [offer.zone for w in found.wants for offer in w.offers] == left
    assert bool(found.remarks) is (len(left) < len(places))


def test_its_own_test_passes(zones: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(c for c in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "def test_atlas" in c)
    monkeypatch.setitem(sys.modules, "zones", zones)
    names: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102  # the guide's own code is what is tested
    names["test_atlas_stays_out_of_zone_b"]()


@pytest.mark.parametrize("table", re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL))
def test_its_settings_are_taken(table: str) -> None:
    tables = tomllib.loads(table).get("policies", {})
    plugins = PluginRegistry.installed()
    for name in plugins.names("policies"):
        plugins.load_plugin("policies", name).settings.model_validate(tables.pop(name, {}))
    known = {*plugins.names("policies"), "zones", "nights"}
    assert set(tables.pop("chain", ())) <= known
    assert set(tables) <= {"zones", "nights"}
