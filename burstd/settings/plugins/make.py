"""Makes the policies of the chain of their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from burstd.domain.billing.costs import SHUTDOWN_S
from burstd.domain.errors import PolicyBroken
from burstd.domain.plugins.policy import Policy
from burstd.settings.faults import SettingsError, SettingsFault
from burstd.settings.plugin_fit import ResolvedPlugin, ResolvedPlugins
from burstd.settings.plugins.foreign_code import call_plugin_code
from burstd.settings.plugins.registry import PluginRegistry
from burstd.settings.sections import DaemonSettings, Settings


@dataclass(frozen=True, slots=True)
class ConfiguredPolicy:
    """A policy, and what it was made of."""

    resolved: ResolvedPlugin
    policy: Policy
    hard: bool
    last: int = 0
    payers: Mapping[str, frozenset[str]] = field(default_factory=dict)


def make_policies(
    settings: Settings, resolved: ResolvedPlugins, plugins: PluginRegistry
) -> tuple[ConfiguredPolicy, ...]:
    """Those of the chain. Raises SettingsError, which names all that cannot be made of their settings."""
    policies: list[ConfiguredPolicy] = []
    faults: list[SettingsFault] = []
    for chosen in resolved.policies:
        try:
            policies.append(make_policy(chosen, plugins.timeout_s))
        except PolicyBroken as error:
            faults.append(SettingsFault(("policies", chosen.name), f"the policy cannot be made: {error}"))
        if too_short := _overhead_fault(chosen, settings.daemon):
            faults.append(SettingsFault(("policies", chosen.name, "overhead_s"), too_short))
    if faults:
        raise SettingsError(settings.source, faults)
    return tuple(policies)


def _overhead_fault(chosen: ResolvedPlugin, times: DaemonSettings) -> str:
    """What is wrong with ``overhead_s`` of a policy that has it: machines could come too late for what is reserved."""
    overhead_s = getattr(chosen.settings, "overhead_s", None)
    least = times.boot_timeout_s + times.validation_timeout_s + SHUTDOWN_S
    if not isinstance(overhead_s, (int, float)) or overhead_s >= least:
        return ""
    return (
        f"must be at least {least:g}, daemon.boot_timeout_s ({times.boot_timeout_s:g}) and daemon.validation_timeout_s "
        f"({times.validation_timeout_s:g}) and {SHUTDOWN_S:g} s for the end (it is {overhead_s:g}): a machine "
        f"that boots for as "
        "long as it may would come too late for its jobs; raise it, or lower these two"
    )


def make_policy(chosen: ResolvedPlugin, timeout_s: float) -> ConfiguredPolicy:
    """One. Raises PolicyBroken."""

    def build() -> ConfiguredPolicy:
        policy = chosen.plugin.make(chosen.settings)
        if not callable(getattr(policy, "evaluate", None)):
            raise PolicyBroken(f"a {type(policy).__name__} came of it, which has no method evaluate()")
        if getattr(policy, "name", None) != chosen.name:
            raise PolicyBroken(f"its 'name' must be {chosen.name!r}, as its plug-in's")
        last = getattr(policy, "last", 0)
        if type(last) is not int:
            raise PolicyBroken(f"its 'last' must be a whole number, not {last!r}")
        given = getattr(policy, "payers", {})
        payers = {kind: frozenset(given.get(kind, ())) for kind in ("account", "user")}
        return ConfiguredPolicy(chosen, cast("Policy", policy), bool(getattr(policy, "hard", False)), last, payers)

    return call_plugin_code(build, timeout_s, chosen.source_dir)
