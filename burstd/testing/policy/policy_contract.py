"""The contract of a policy, as tests. Subclass PolicyContract, name the plug-in and settings to try, run pytest.

    from burstd.testing.policy.policy_contract import PolicyContract
    from my_site.policy import plugin

    class TestMine(PolicyContract):
        plugin = plugin
        tried = ({}, {"nodes": 3})

Needs pytest and hypothesis. ``check`` can be called with a snapshot and a target of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from burstd.domain.plugins.policy import Policy, PolicyPlugin, Target
from burstd.domain.snapshot import Snapshot
from burstd.testing.policy.policy_rules import check_policy
from burstd.testing.policy.strategies import situations

__all__ = ["PolicyContract", "check_policy"]


class PolicyContract:
    """What every policy must do, whatever its settings."""

    plugin: ClassVar[PolicyPlugin]
    tried: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    """Settings to try, as they stand in burstd.toml."""

    def test_settings_refuse_unknown_keys(self) -> None:
        """A key written wrongly must be named at the start of the daemon, not ignored."""
        with pytest.raises(ValidationError):
            self.plugin.settings(no_such_key=1)

    def test_named_as_in_the_settings(self) -> None:
        """Remarks, settings and entry point use one name."""
        for policy in self._policies():
            assert policy.name == self.plugin.name

    def test_contract(self) -> None:
        """Pure, silent about nothing, never beyond what there is."""

        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(situation=situations())
        def holds(situation: tuple[Snapshot, Target]) -> None:
            for policy in self._policies():
                check_policy(policy, *situation)

        holds()

    def _policies(self) -> list[Policy]:
        return [self.plugin.make(self.plugin.settings(**given_)) for given_ in self.tried]
