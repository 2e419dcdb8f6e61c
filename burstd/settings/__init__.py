"""burstd.toml: what it may hold, reading it, its faults in words, its plug-ins, and what a reload changes."""

from burstd.settings.faults import SettingsError, SettingsFault
from burstd.settings.load import DEFAULT_SETTINGS_PATH, build_pools, load_settings, parse_settings
from burstd.settings.plugin_fit import (
    ResolvedPlugin,
    ResolvedPlugins,
    resolve_plugins,
    resolve_policy,
    resolve_provider,
    resolve_store,
    unused_policy_tables,
)
from burstd.settings.plugins.make import ConfiguredPolicy, make_policies, make_policy
from burstd.settings.plugins.policy_files import PolicyFile, PolicyFiles
from burstd.settings.plugins.registry import Plugin, PluginOrigin, PluginRegistry, PluginUnusable
from burstd.settings.reload import SettingChange, SettingsDiff, diff_settings, settings_until_restart
from burstd.settings.sections import (
    DaemonSettings,
    NodeSettings,
    PolicyChainSettings,
    PoolSettings,
    Settings,
    SlurmSettings,
)
from burstd.settings.staging import DatasetSettings, QuotaSettings, StagingSettings, StoreSettings
from burstd.settings.volumes import VolumeSettings

__all__ = [
    "DEFAULT_SETTINGS_PATH",
    "ConfiguredPolicy",
    "DaemonSettings",
    "DatasetSettings",
    "NodeSettings",
    "Plugin",
    "PluginOrigin",
    "PluginRegistry",
    "PluginUnusable",
    "PolicyChainSettings",
    "PolicyFile",
    "PolicyFiles",
    "PoolSettings",
    "QuotaSettings",
    "ResolvedPlugin",
    "ResolvedPlugins",
    "SettingChange",
    "Settings",
    "SettingsDiff",
    "SettingsError",
    "SettingsFault",
    "SlurmSettings",
    "StagingSettings",
    "StoreSettings",
    "VolumeSettings",
    "build_pools",
    "diff_settings",
    "load_settings",
    "make_policies",
    "make_policy",
    "parse_settings",
    "resolve_plugins",
    "resolve_policy",
    "resolve_provider",
    "resolve_store",
    "settings_until_restart",
    "unused_policy_tables",
]
