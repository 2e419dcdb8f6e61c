"""Makes the policies of the chain of their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from burstd.domain.billing.costs import END_S
from burstd.domain.errors import PolicyBroken
from burstd.domain.plugins.policy import Policy
from burstd.settings.faults import Fault, SettingsError
from burstd.settings.plugin_fit import Chosen, Resolved
from burstd.settings.plugins.foreign_code import call_foreign
from burstd.settings.plugins.registry import Plugins
from burstd.settings.sections import Daemon, Settings


@dataclass(frozen=True, slots=True)
class Made:
    """A policy, and what it was made of."""

    chosen: Chosen
    policy: Policy
    hard: bool
    last: int = 0
    payers: Mapping[str, frozenset[str]] = field(default_factory=dict)


def make_policies(settings: Settings, resolved: Resolved, plugins: Plugins) -> tuple[Made, ...]:
    """Those of the chain. Raises SettingsError, which names all that cannot be made of their settings."""
    made: list[Made] = []
    faults: list[Fault] = []
    for chosen in resolved.policies:
        try:
            made.append(make_policy(chosen, plugins.timeout_s))
        except PolicyBroken as error:
            faults.append(Fault(("policies", chosen.name), f"the policy cannot be made: {error}"))
        if too_short := _too_short(chosen, settings.daemon):
            faults.append(Fault(("policies", chosen.name, "overhead_s"), too_short))
    if faults:
        raise SettingsError(settings.source, faults)
    return tuple(made)


def _too_short(chosen: Chosen, times: Daemon) -> str:
    """What is wrong with ``overhead_s`` of a policy that has it: machines could come too late for what is reserved."""
    overhead_s = getattr(chosen.settings, "overhead_s", None)
    least = times.boot_timeout_s + times.prove_timeout_s + END_S
    if not isinstance(overhead_s, (int, float)) or overhead_s >= least:
        return ""
    return (
        f"must be at least {least:g}, daemon.boot_timeout_s ({times.boot_timeout_s:g}) and daemon.prove_timeout_s "
        f"({times.prove_timeout_s:g}) and {END_S:g} s for the end (it is {overhead_s:g}): a machine that boots for as "
        "long as it may would come too late for its jobs; raise it, or lower these two"
    )


def make_policy(chosen: Chosen, timeout_s: float) -> Made:
    """One. Raises PolicyBroken."""

    def made() -> Made:
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
        return Made(chosen, cast("Policy", policy), bool(getattr(policy, "hard", False)), last, payers)

    return call_foreign(made, timeout_s, chosen.home)
