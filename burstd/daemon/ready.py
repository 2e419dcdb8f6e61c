"""Settings read and checked whole, with their plug-ins, and what of them may change while the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from burstd.daemon.guard import Guarded
from burstd.daemon.reconciler import Rules
from burstd.model.errors import PolicyBroken
from burstd.model.offer import Pool
from burstd.model.policy import Policy
from burstd.settings import Chosen, Fault, Plugins, Resolved, Settings, SettingsError, load, pools, resolve
from burstd.settings.foreign import call_foreign
from burstd.slurm.hostlist import expand

AT_START = 10.0
"""How much longer policies may take to be loaded at the start: the disk is cold, and nobody is there to try again."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Settings that passed every check, and the plug-ins they name."""

    path: Path
    settings: Settings
    resolved: Resolved
    pools: Mapping[str, Pool]
    plugins: Plugins
    """All that there were; the modules of policies from files stay as long as these do."""


def prepare(path: Path, patience: float = 1.0) -> Ready:
    """Reads and checks the settings and loads the plug-ins. Raises SettingsError with every fault."""
    settings = load(path)
    plugins = Plugins.installed(settings.policies.folder, settings.policies.timeout_s * patience)
    return Ready(path, settings, resolve(settings, plugins), pools(settings, expand), plugins)


def rules(ready: Ready) -> Rules:
    """What may change while the daemon runs. Raises SettingsError for policies that cannot be made."""
    policies: list[Guarded] = []
    faults: list[Fault] = []
    for chosen in ready.resolved.policies:
        try:
            policies.append(guarded(chosen, ready.settings.policies.timeout_s, ready.plugins.timeout_s))
        except PolicyBroken as error:
            faults.append(Fault(("policies", chosen.name), f"the policy cannot be made: {error}"))
    if faults:
        raise SettingsError(ready.settings.source, faults)
    return Rules(ready.pools, tuple(policies), ready.settings.tuning)


def guarded(chosen: Chosen, timeout_s: float, make_s: float) -> Guarded:
    """The policy, made within ``make_s`` and held to ``timeout_s`` each time. Raises PolicyBroken."""

    def made() -> tuple[Policy, bool]:
        policy = chosen.plugin.make(chosen.settings)
        if not callable(getattr(policy, "evaluate", None)):
            raise PolicyBroken(f"a {type(policy).__name__} came of it, which has no method evaluate()")
        if getattr(policy, "name", None) != chosen.name:
            raise PolicyBroken(f"its 'name' must be {chosen.name!r}, as its plug-in's")
        return cast("Policy", policy), bool(getattr(policy, "hard", False))

    policy, hard = call_foreign(made, make_s, chosen.home)
    return Guarded(policy, chosen.name, timeout_s, chosen.home, hard=hard)
