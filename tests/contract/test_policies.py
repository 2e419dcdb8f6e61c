"""The shipped policies under the contract of policies."""

from __future__ import annotations

import policies.backlog
import policies.idle
import policies.limits
from burstd.testing.policy_contract import PolicyContract


class TestBacklog(PolicyContract):
    plugin = policies.backlog.plugin
    tried = ({}, {"min_jobs": 3, "min_age_s": 60, "max_age_s": 900, "pools": {"gpu": {"min_jobs": 1}}})


class TestIdle(PolicyContract):
    plugin = policies.idle.plugin
    tried = ({}, {"keep_alive_s": 0}, {"min_nodes": 2, "pools": {"gpu": {"spare_nodes": 2, "keep_alive_s": 1000}}})


class TestLimits(PolicyContract):
    plugin = policies.limits.plugin
    tried = (
        {},
        {"nodes": 3, "launches_per_minute": 2, "providers": {"sky": {"nodes": 1}}, "users": {"*": {"nodes": 1}}},
        {"pools": {"gpu": {"nodes": 0}, "*": {"launches_per_minute": 1}}},
    )
