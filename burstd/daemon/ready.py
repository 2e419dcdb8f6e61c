"""Settings read and checked whole, with their plug-ins, and what of them may change while the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burstd.daemon.decisions import Rules
from burstd.daemon.guard import Guarded
from burstd.model.offer import Pool
from burstd.settings import Plugins, Resolved, Settings, load, make_policies, pools, resolve
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
    """All that there were."""


def prepare(path: Path, patience: float = 1.0) -> Ready:
    """Reads and checks the settings and loads the plug-ins. Raises SettingsError with every fault."""
    settings = load(path)
    plugins = Plugins.installed(settings.policies.folder, settings.policies.timeout_s * patience)
    return Ready(path, settings, resolve(settings, plugins), pools(settings, expand), plugins)


def rules(ready: Ready) -> Rules:
    """What may change while the daemon runs. Raises SettingsError for policies that cannot be made."""
    made = make_policies(ready.settings, ready.resolved, ready.plugins)
    timeout_s = ready.settings.policies.timeout_s
    policies = tuple(
        Guarded(m.policy, timeout_s, m.chosen.home, name=m.chosen.name, hard=m.hard, last=m.last) for m in made
    )
    return Rules(ready.pools, policies, ready.settings.tuning)
