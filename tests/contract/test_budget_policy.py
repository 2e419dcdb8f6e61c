"""The policy budget under the contract of policies."""

from __future__ import annotations

import policies.budget
from burstd.testing.policy.policy_contract import PolicyContract


class TestBudget(PolicyContract):
    plugin = policies.budget.plugin
    tried = (
        {},
        {"limit": 5, "unlimited_s": 3600},
        {"projects": {"*": {"limit": 2, "period": "total"}}, "users": {"ada": {"limit": "0.5", "period": "year"}}},
        {"limit": 100, "currency": "USD", "rates": {"EUR": "1.1"}, "egress_gib": 3},
    )
