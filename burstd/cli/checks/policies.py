"""Checks policies on disk without a daemon: would the daemon load them, and do they keep the contract?"""

from __future__ import annotations

import os
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from burstd.domain.errors import PolicyBroken
from burstd.settings import (
    ConfiguredPolicy,
    PluginRegistry,
    PolicyFiles,
    Settings,
    SettingsError,
    SettingsFault,
    load_settings,
    make_policies,
    make_policy,
    parse_settings,
    resolve_plugins,
    resolve_policy,
)
from burstd.settings.plugins.foreign_code import PolicyTimedOut, call_plugin_code, describe_plugin_error
from burstd.settings.toml_source import dotted_key
from burstd.testing.policy import policy_rules
from burstd.testing.policy.policy_samples import PolicySample, samples


@dataclass(slots=True)
class PolicyCheckResult:
    """One policy; ``place`` in the chain, from 1, 0: not in it."""

    name: str
    origin: str
    place: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PolicyCheckReport:
    """What was found. ``faults``: of the settings; ``warnings``: of what the daemon does without."""

    file: Path
    faults: list[SettingsFault] = field(default_factory=list)
    policies: list[PolicyCheckResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True where the daemon would start with them."""
        return not self.faults and not any(tried.faults for tried in self.policies)

    def situations(self) -> int:
        """How many sample situations each policy was tried in."""
        return sum(1 for _ in samples())

    def as_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "ok": self.ok,
            "file": str(self.file),
            "situations": self.situations(),
            "faults": [{"key": dotted_key(f.path), "line": f.line, "text": f.text} for f in self.faults],
            "policies": [asdict(tried) for tried in self.policies],
            "warnings": self.warnings,
        }


def check_all(file: Path) -> PolicyCheckReport:
    """The chain of a settings file, and whatever else lies in its folder of policies."""
    report = PolicyCheckReport(file)
    try:
        settings = load_settings(file, check_files=False)  # keys and their modes are the business of "config check"
    except SettingsError as error:
        report.faults += error.faults
        return report
    plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s)
    try:
        made = make_policies(settings, resolve_plugins(settings, plugins, check_files=False), plugins)
    except SettingsError as error:
        report.faults += error.faults
        made = ()
    report.policies += [_check_made(one, i, settings) for i, one in enumerate(made, 1)]
    # Where it says already why the daemon would not start, it need not be said twice.
    report.warnings += [w for w in plugins.faults() if not any(w in fault.text for fault in report.faults)]
    for name in plugins.names("policies"):
        origins = plugins.origins(name)
        if name not in settings.policies.chain and len(origins) == 1 and origins[0].path is not None:
            report.policies.append(_check_single(settings, plugins, name, str(origins[0])))
    return report


def check_one(path: Path, file: Path) -> PolicyCheckReport:
    """One policy's file or package, wherever it is, with the settings that the file has for it, if any."""
    report = PolicyCheckReport(file)
    try:
        settings = load_settings(file, check_files=False)
    except SettingsError as error:
        settings = parse_settings('cluster = "check"')
        report.warnings.append(f"tried with default settings, for {str(error).splitlines()[0].rstrip(':')}")
    # With a person's own rights everything may be tried; as root nothing that others could have written.
    folder = settings.policies.folder
    trusted = os.geteuid() == 0 or folder in path.parents
    timeout_s = settings.policies.timeout_s
    plugins = PluginRegistry(
        {}, files=lambda: PolicyFiles(path.parent, timeout_s, path, trusted=trusted), timeout_s=timeout_s
    )
    for fault in plugins.faults():
        report.policies.append(PolicyCheckResult(path.stem, str(path), faults=[fault]))
    for name in plugins.names("policies"):
        report.policies.append(_check_single(settings, plugins, name, str(path)))
        origins = PluginRegistry.installed(None if path.parent == folder else folder, timeout_s).origins(name)
        # One of the same file name would be replaced by it.
        others = [o for o in origins if o.path is None or o.path.name != path.name]
        if others:
            report.warnings.append(
                f"a policy {name!r} is there already, from {others[0]}: in {folder} both would be refused"
            )
    return report


def _check_single(settings: Settings, plugins: PluginRegistry, name: str, origin: str) -> PolicyCheckResult:
    """A policy that is not in the chain, or is checked by itself."""
    chain_position = settings.policies.chain.index(name) + 1 if name in settings.policies.chain else 0
    try:
        made = make_policy(resolve_policy(settings, plugins, name, check_files=False), plugins.timeout_s)
    except SettingsError as error:
        return PolicyCheckResult(name, origin, chain_position, [_fault_text(fault) for fault in error.faults])
    except PolicyBroken as error:
        return PolicyCheckResult(name, origin, chain_position, [f"the policy cannot be made: {error}"])
    return _check_made(made, chain_position, settings)


def _fault_text(fault: SettingsFault) -> str:
    return str(SettingsFault(fault.path, fault.text))


def _check_made(made: ConfiguredPolicy, chain_position: int, settings: Settings) -> PolicyCheckResult:
    """Asked in every situation, twice in each."""
    found: dict[str, str] = {}
    for sample in samples():
        try:
            fault = _first_fault(made, sample, settings.policies.timeout_s)
        except PolicyTimedOut as error:
            found.setdefault(str(error), sample.title)
            break
        if fault:
            found.setdefault(fault, sample.title)
    faults = [f"{fault} (with {title})" for fault, title in found.items()]
    return PolicyCheckResult(made.resolved.name, str(made.resolved.origin), chain_position, faults)


def _first_fault(made: ConfiguredPolicy, sample: PolicySample, timeout_s: float) -> str:
    home = made.resolved.source_dir
    try:
        call_plugin_code(
            lambda: policy_rules.check_policy(made.policy, sample.snapshot, sample.target),
            timeout_s,
            home,
            AssertionError,
        )
    except PolicyTimedOut:
        raise
    except PolicyBroken as error:
        return str(error)
    except AssertionError as error:
        last = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        return str(error) if last == policy_rules.__file__ else describe_plugin_error(error, home)
    return ""
