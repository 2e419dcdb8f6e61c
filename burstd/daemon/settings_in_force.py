"""Settings read and checked whole, with their plug-ins, and what of them may change while the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burstd.db import Store
from burstd.domain.cloud.offer import Pool
from burstd.planner.lifecycle.listing import some
from burstd.reconciler.decisions import Rules
from burstd.reconciler.policy_guard import Guarded
from burstd.settings import Fault, Plugins, Resolved, Settings, SettingsError, load, make_policies, pools, resolve
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
        Guarded(m.policy, timeout_s, m.chosen.home, name=m.chosen.name, hard=m.hard, last=m.last, payers=m.payers)
        for m in made
    )
    return Rules(ready.pools, policies, ready.settings.tuning)


def refuse_without_staging(settings: Settings, store: Store) -> None:
    """Raises SettingsError where [staging] is gone while jobs have data: nobody would keep the nodes that hold it.

    Raises StoreError.
    """
    jobs = [] if settings.staging.on else [row.job_id for row in store.stagings()]
    if jobs:
        text = (
            f"it is gone while {len(jobs)} job(s) have data on record (jobs {some(jobs)}): put it back, and remove it "
            "when 'burstctl stage status' shows none; 'burstctl stage discard JOB' gives the output of one up"
        )
        raise SettingsError(settings.source, [Fault(("staging",), text)])
