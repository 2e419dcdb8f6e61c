"""burstd.toml: what it may hold, reading it, its faults in words, its plug-ins, and what a reload changes."""

from burstd.settings.faults import Fault, SettingsError
from burstd.settings.load import DEFAULT_PATH, load, loads, pools
from burstd.settings.plugin_fit import Chosen, Resolved, resolve, resolve_policy, resolve_provider, resolve_store
from burstd.settings.plugins.make import Made, make_policies, make_policy
from burstd.settings.plugins.policy_files import PolicyFile, PolicyFiles
from burstd.settings.plugins.registry import Origin, Plugin, Plugins, PluginUnusable
from burstd.settings.reload import Change, Difference, diff, until_restart
from burstd.settings.sections import Daemon, NodeSettings, Policies, PoolSettings, Settings, Slurm
from burstd.settings.staging import Dataset, Quota, Staging, StoreSettings

__all__ = [
    "DEFAULT_PATH",
    "Change",
    "Chosen",
    "Daemon",
    "Dataset",
    "Difference",
    "Fault",
    "Made",
    "NodeSettings",
    "Origin",
    "Plugin",
    "PluginUnusable",
    "Plugins",
    "Policies",
    "PolicyFile",
    "PolicyFiles",
    "PoolSettings",
    "Quota",
    "Resolved",
    "Settings",
    "SettingsError",
    "Slurm",
    "Staging",
    "StoreSettings",
    "diff",
    "load",
    "loads",
    "make_policies",
    "make_policy",
    "pools",
    "resolve",
    "resolve_policy",
    "resolve_provider",
    "resolve_store",
    "until_restart",
]
