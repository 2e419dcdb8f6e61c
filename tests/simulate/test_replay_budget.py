"""A budget in a replay: the same policy, on machines of the same kind, with the same sums."""

from __future__ import annotations

from decimal import Decimal

import pytest

import policies.budget
import policies.idle
from burstd.simulate.run import ReplayRun

from .test_replay import trace, work, world

pytestmark = pytest.mark.slow


def test_a_replay_spends_no_more_than_its_budgets() -> None:
    limits = {"limit": 150, "projects": {"p0": {"limit": 50}, "p1": {"limit": "0.5"}}}
    budget = policies.budget.plugin.make(policies.budget.plugin.settings(**limits))
    idle = policies.idle.plugin.make(policies.idle.plugin.settings(keep_alive_s=600))
    run = ReplayRun(work(trace(120)), world(), [idle, budget])
    run.run()
    spent = {(s.kind, s.name): Decimal(0) for s in run.fleet.spent.spent()}
    for part in run.fleet.spent.spent():
        spent[part.kind, part.name] += part.amount
    assert Decimal(20) < spent["", ""] <= Decimal(150)
    assert spent["project", "p0"] <= Decimal(50)
    assert ("project", "p1") not in spent
    assert abs(spent["", ""] - run.fleet.bill.cost) < Decimal("0.01")
