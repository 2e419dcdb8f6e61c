"""Settings read and checked whole, with their plug-ins, and what of them may change while the daemon runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from burstd.db import Store
from burstd.domain.cloud.offer import Pool
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.policy_guard import IsolatedPolicy
from burstd.settings import (
    PluginRegistry,
    ResolvedPlugins,
    Settings,
    SettingsError,
    SettingsFault,
    build_pools,
    load_settings,
    make_policies,
    resolve_plugins,
)
from burstd.slurm.hostlist import expand

START_PATIENCE = 10.0
"""How much longer policies may take to be loaded at the start: the disk is cold, and nobody is there to try again."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings that passed every check, and the plug-ins they name."""

    path: Path
    settings: Settings
    resolved: ResolvedPlugins
    pools: Mapping[str, Pool]
    plugins: PluginRegistry
    """All that there were."""


def load_and_check(path: Path, patience: float = 1.0) -> LoadedSettings:
    """Reads and checks the settings and loads the plug-ins. Raises SettingsError with every fault."""
    settings = load_settings(path)
    plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s * patience)
    return LoadedSettings(path, settings, resolve_plugins(settings, plugins), build_pools(settings, expand), plugins)


def runtime_config(loaded: LoadedSettings) -> RuntimeConfig:
    """What may change while the daemon runs. Raises SettingsError for policies that cannot be made."""
    policies_made = make_policies(loaded.settings, loaded.resolved, loaded.plugins)
    timeout_s = loaded.settings.policies.timeout_s
    policies = tuple(
        IsolatedPolicy(
            m.policy, timeout_s, m.resolved.source_dir, name=m.resolved.name, hard=m.hard, last=m.last, payers=m.payers
        )
        for m in policies_made
    )
    return RuntimeConfig(loaded.pools, policies, loaded.settings.tuning)


def refuse_without_staging(settings: Settings, store: Store) -> None:
    """Raises SettingsError where [staging] is gone while jobs have data: nobody would keep the nodes that hold it.

    Raises StoreError.
    """
    jobs = [] if settings.staging.enabled else [row.job_id for row in store.stagings()]
    if jobs:
        text = (
            f"it is gone while {len(jobs)} job(s) have data on record (jobs {abbreviated_list(jobs)}): put "
            f"it back, and remove it "
            "when 'burstctl stage status' shows none; 'burstctl stage discard JOB' gives the output of one up"
        )
        raise SettingsError(settings.source, [SettingsFault(("staging",), text)])
