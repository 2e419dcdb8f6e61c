"""The example of the guide for policy authors works as it stands there, and passes the contract."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from burstd.model.claim import Cause
from burstd.model.offer import Offer, Pool
from burstd.model.policy import PolicyPlugin, Target, Want
from burstd.model.shape import Shape
from burstd.model.snapshot import SlurmView, Snapshot
from burstd.testing.policy_contract import PolicyContract, check

GUIDE = Path(__file__).parents[2] / "docs" / "policy-authors.md"


@pytest.fixture(scope="module")
def steady() -> Iterator[ModuleType]:
    code = next(c for c in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "class Steady" in c)
    module = ModuleType("steady_of_the_guide")
    sys.modules[module.__name__] = module
    exec(compile(code, str(GUIDE), "exec"), module.__dict__)  # noqa: S102  # the guide's own code is what is tested
    yield module
    del sys.modules[module.__name__]


def test_contract(steady: ModuleType) -> None:
    class Contract(PolicyContract):
        plugin: ClassVar[PolicyPlugin] = steady.plugin
        tried = ({}, {"nodes": 4})

    contract = Contract()
    contract.test_settings_refuse_unknown_keys()
    contract.test_named_as_in_the_settings()
    contract.test_contract()


@pytest.mark.parametrize(
    ("spot_only", "nodes", "left"), [(False, 3, ["on-demand"]), (True, 3, []), (True, 1, ["spot"])]
)
def test_it_does_what_the_guide_says(steady: ModuleType, spot_only: bool, nodes: int, left: list[str]) -> None:
    shape = Shape(4, 8000)
    spot = Offer("sky", "r", "a", "t", spot=True, shape=shape, price=Decimal(1))
    calm = Offer("sky", "r", "a", "t", spot=False, shape=shape, price=Decimal(2))
    offers = (spot,) if spot_only else (spot, calm)
    pool = Pool("cpu", ("n1", "n2", "n3"), ("burst",), shape)
    snapshot = Snapshot(0.0, "x", {"cpu": pool}, SlurmView((), {}, ()), {}, ())
    want = Want("cpu", nodes, Cause.FLOOR, "job 1", offers, gang="1" if nodes > 1 else "")
    policy: Any = steady.plugin.make(steady.plugin.settings())
    found = check(policy, snapshot, Target(wants=(want,), offers={"cpu": offers}))
    assert [offer.id.rpartition("/")[2] for w in found.wants for offer in w.offers] == left
