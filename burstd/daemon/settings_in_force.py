"""The settings in force, with their plug-ins: read and checked whole, shown, tried as they are on disk, taken anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from pydantic_core import to_jsonable_python

from burstd.api.answers.policies import PoliciesView, PolicyView
from burstd.db import Store, StoreError
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import CommandResult
from burstd.domain.errors import PolicyBroken
from burstd.planner.lifecycle.listing import abbreviated_list
from burstd.planner.offers.mended import breakers_mended_by_reload
from burstd.reconciler.decisions import RuntimeConfig
from burstd.reconciler.policy_guard import IsolatedPolicy
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs
from burstd.settings import (
    PluginRegistry,
    ResolvedPlugins,
    Settings,
    SettingsError,
    SettingsFault,
    build_pools,
    diff_settings,
    load_settings,
    make_policies,
    resolve_plugins,
    settings_until_restart,
)
from burstd.settings.plugins.foreign_code import call_plugin_code
from burstd.settings.plugins.policy_files import FileStamp, file_stamp
from burstd.settings.project_overrides import projects_in_force
from burstd.settings.projects import ProjectSettings, projects_of
from burstd.slurm.config.check import EXCLUSIVE_USER
from burstd.slurm.config.render import PROLOG, exclusive_user_partitions
from burstd.slurm.hostlist import expand

log = structlog.get_logger(__name__)

FileStamps = Mapping[Path, FileStamp | None]
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
    settings = loaded.settings
    return RuntimeConfig(loaded.pools, policies, settings.tuning, bad_places=settings.health.place_rule())


def refuse_without_staging(settings: Settings, store: Store) -> None:
    """Raises SettingsError where [staging] is gone while jobs have data: nobody would keep the nodes that hold it.

    Raises StoreError.
    """
    jobs = [] if settings.staging.enabled else [row.name for row in store.stagings()]
    if jobs:
        text = (
            f"it is gone while {len(jobs)} job(s) have data on record (jobs {abbreviated_list(jobs)}): put "
            f"it back, and remove it "
            "when 'burstctl stage status' shows none; 'burstctl stage discard JOB' gives the output of one up"
        )
        raise SettingsError(settings.source, [SettingsFault(("staging",), text)])


class PolicyReloader:
    """One; all but ``policies``, ``alarms`` and ``policies_view`` is for the deciding thread."""

    def __init__(
        self,
        loaded: LoadedSettings,
        reconciler: Reconciler,
        store: Store,
        on_reload: Callable[[Settings], None] = lambda _settings: None,
    ) -> None:
        """``on_reload`` gets settings that a reload has found good."""
        self._on_reload = on_reload
        self._reconciler = reconciler
        self._store = store
        self._written = loaded.settings
        """As burstd.toml has them."""
        self._refused_overrides: Mapping[str, str] = {}
        self._packages: dict[str, FileStamps] = {}
        self._in_force = loaded, _isolated_policies(reconciler), _settings_json(loaded)
        self._waiting_for_restart: tuple[str, ...] = ()
        self._note_packages(loaded)
        _log_faults(loaded)
        self.take_projects()

    @property
    def written(self) -> Settings:
        """Those in force, without what ``burstctl project`` has changed; from any thread."""
        return self._written

    @property
    def written_projects(self) -> Mapping[str, ProjectSettings]:
        """Those of burstd.toml, as they are there."""
        return self._written.projects

    @property
    def projects(self) -> Mapping[str, ProjectSettings]:
        """Those in force: with what ``burstctl project`` has changed."""
        return self._in_force[0].settings.projects

    def take_projects(self) -> None:
        """Puts what ``burstctl project`` has changed over the projects of burstd.toml. Raises StoreError."""
        loaded, policies, settings_json = self._in_force
        projects, self._refused_overrides = projects_in_force(self._written.projects, self._store.project_overrides())
        settings = self._written.model_copy(update={"projects": projects})
        loaded = replace(loaded, settings=settings, pools=build_pools(settings, expand))
        self._in_force = loaded, policies, settings_json
        self._reconciler.config = replace(
            self._reconciler.config,
            pools=loaded.pools,
            projects=projects_of(settings.projects),
            fair_share=settings.fair_share.as_domain(),
        )

    @property
    def policies(self) -> tuple[IsolatedPolicy, ...]:
        """The policies in force; from any thread."""
        return self._in_force[1]

    @property
    def alarms(self) -> tuple[str, ...]:
        """That the last reload found settings which wait for a restart; from any thread."""
        keys = self._waiting_for_restart
        names = abbreviated_list(tuple(dict.fromkeys(".".join(key.split(".")[:2]) for key in keys)))
        waiting = (f"settings wait for 'systemctl restart burstd': {names}",) if keys else ()
        return (*waiting, *(f"what was changed of {why}" for why in self._refused_overrides.values()))

    def reload(self, by: str) -> CommandResult:
        """Takes settings and policies as they are on disk, or nothing of them."""
        current, *_ = self._in_force
        try:
            fresh = load_and_check(current.path)
            refuse_without_staging(fresh.settings, self._store)
            settings = settings_until_restart(self._written, fresh.settings)
            loaded = LoadedSettings(fresh.path, settings, fresh.resolved, build_pools(settings, expand), fresh.plugins)
            self._reconciler.reload(runtime_config(loaded))
        except (SettingsError, StoreError) as error:
            log.error("settings not taken, the old ones stay in force", error=str(error))
            return CommandResult(str(error), done=False, changed=False)
        self._on_reload(settings)
        self._note_packages(loaded)
        changes = diff_settings(self._written, fresh.settings)
        self._written = settings
        self._waiting_for_restart = tuple(change.key for change in changes.at_restart)
        texts = changes.texts()
        texts += [f"policy {name} is {how}" for name, how in _changed_policies(current, loaded).items()]
        texts += self._stale_packages(loaded)
        if news := sorted(_mount_needs(loaded) - _mount_needs(current)):
            texts.append(f"slurm.conf needs {' and '.join(news)}: see 'burstctl check'")
        if untested := sorted(_frameworks(loaded) - _frameworks(current)):
            names = ", ".join(f"{framework} of pool {pool}" for pool, framework, _ in untested)
            texts.append(f"nodes in service are not tested for {names}: drain those that 'burstctl check' names")
        if mended := self._close_mended_breakers(current, loaded, by):
            texts.append(f"circuit breakers closed: {abbreviated_list(mended)}")
        text = "\n".join(texts) or "nothing has changed"
        self._in_force = loaded, _isolated_policies(self._reconciler), _settings_json(loaded)
        self.take_projects()
        logs.set_up(settings.daemon.log_format, settings.daemon.log_level)
        log.info("settings taken", by=by, changes=text.replace("\n", "; "))
        _log_faults(loaded)
        try:
            self._store.log_event("daemon", new="reloaded", reason=text.replace("\n", "; "), cause=by)
        except StoreError as error:
            log.error("the reload could not be recorded", error=str(error))
        return CommandResult(text, changed=bool(texts))

    def _close_mended_breakers(self, old: LoadedSettings, new: LoadedSettings, by: str) -> list[str]:
        """Those of pools and checks that were changed, as what failed may be mended; returns their keys."""
        pools = {name for name in {**old.pools, **new.pools} if old.pools.get(name) != new.pools.get(name)}
        checks_changed = (old.settings.node, old.settings.mounts) != (new.settings.node, new.settings.mounts)
        closed = []
        try:
            for breaker in breakers_mended_by_reload(self._store.breakers(), pools, checks_changed=checks_changed):
                self._store.clear_breakers(by, breaker.key, breaker.cause)
                closed.append(breaker.key)
        except StoreError as error:
            log.error("circuit breakers could not be closed: they close by themselves", error=str(error))
        return closed

    def dry_run(self) -> CommandResult:
        """What the policies on disk would decide now, beside those in force; nothing of it is done."""
        try:
            # Held until they were asked: modules of policies can be imported for as long.
            loaded = load_and_check(self._in_force[0].path)
            policies = runtime_config(loaded).policies
        except SettingsError as error:
            return CommandResult(str(error), done=False, changed=False)
        compared = self._reconciler.compare_policies(policies)
        return CommandResult("what the policies on disk would decide", changed=False, policy_comparison=compared)

    def policies_view(self, now: float) -> PoliciesView:
        """All policies there are, those of the chain first, in the order in which they are asked; from any thread."""
        loaded, policies, settings_json = self._in_force
        asked = sorted(range(len(policies)), key=lambda index: policies[index].last)
        chain = [
            _policy_view(loaded, i, position, policies[i], settings_json[i]) for position, i in enumerate(asked, 1)
        ]
        names = [name for name in loaded.plugins.names("policies") if name not in {p.name for p in chain}]
        rest = [PolicyView(name=name, origin=" and ".join(map(str, loaded.plugins.origins(name)))) for name in names]
        files = loaded.plugins.files
        return PoliciesView(
            now=now,
            folder=str(loaded.settings.policies.folder),
            timeout_s=loaded.settings.policies.timeout_s,
            policies=[*chain, *rest],
            warnings=loaded.plugins.faults(),
            unread=[str(path) for path in files.changed_paths()] if files else [],
            restart=self._stale_packages(loaded),
        )

    def _note_packages(self, loaded: LoadedSettings) -> None:
        """How the modules of packages are on disk when they are first used: Python does not import them again."""
        for name in _packages(loaded):
            self._packages[name] = _stamps(name) | dict(self._packages.get(name, {}))

    def _stale_packages(self, loaded: LoadedSettings) -> list[str]:
        found: list[str] = []
        for name, policies in _packages(loaded).items():
            changed = [path for path, stamp in self._packages.get(name, {}).items() if file_stamp(path) != stamp]
            if changed:
                found.append(
                    f"{changed[0]} has changed since burstd started, and {', '.join(policies)} goes on as it was; "
                    "'systemctl restart burstd' takes it"
                )
        return found


def _mount_needs(loaded: LoadedSettings) -> set[str]:
    """What slurm.conf must have for the trees of these settings."""
    prolog = {PROLOG} if loaded.settings.mounts.rules() else set()
    return prolog | {f"{EXCLUSIVE_USER} for {name}" for name in exclusive_user_partitions([*loaded.pools.values()])}


def _frameworks(loaded: LoadedSettings) -> set[tuple[str, str, str]]:
    """Pool, name and checksum of each."""
    return {(pool.name, one.name, one.checksum) for pool in loaded.pools.values() for one in pool.frameworks}


def _log_faults(loaded: LoadedSettings) -> None:
    for warning in loaded.settings.warnings:
        log.warning("a settings key has a new name", file=loaded.settings.source.name, warning=str(warning))
    for fault in loaded.plugins.faults():
        log.warning("a policy that is not in the chain cannot be used", error=fault)


def _isolated_policies(reconciler: Reconciler) -> tuple[IsolatedPolicy, ...]:
    return tuple(p for p in reconciler.config.policies if isinstance(p, IsolatedPolicy))


def _settings_json(loaded: LoadedSettings) -> tuple[Mapping[str, object], ...]:
    """The settings of the policies of the chain as JSON has them: foreign code, which may hold anything."""

    def as_json(settings: object) -> Mapping[str, object]:
        return dict(to_jsonable_python(settings, fallback=str))

    found: list[Mapping[str, object]] = []
    for chosen in loaded.resolved.policies:
        try:
            found.append(
                call_plugin_code(partial(as_json, chosen.settings), loaded.plugins.timeout_s, chosen.source_dir)
            )
        except PolicyBroken as error:
            found.append({"they cannot be shown": str(error)})
    return tuple(found)


def _policy_view(
    loaded: LoadedSettings, index: int, position: int, policy: IsolatedPolicy, settings_json: Mapping[str, object]
) -> PolicyView:
    last = policy.last_evaluation
    return PolicyView.from_fields(
        last,
        name=policy.name,
        origin=str(loaded.resolved.policies[index].origin),
        place=position,
        hard=policy.hard,
        settings=logs.redact(None, "", dict(settings_json)),
        took_s=round(last.took_s, 6) if last.evaluated_at else None,
    )


def _changed_policies(old: LoadedSettings, new: LoadedSettings) -> dict[str, str]:
    """Policies of the chain whose code is another one, and how; of packages only whether they were there."""
    before = {c.name: (c.origin, _files_of(old, c.origin.path)) for c in old.resolved.policies}
    found: dict[str, str] = {}
    for chosen in new.resolved.policies:
        was = before.get(chosen.name)
        if was is not None and was != (chosen.origin, _files_of(new, chosen.origin.path)):
            moved = f"from {chosen.origin}, no longer from {was[0]}" if was[0] != chosen.origin else ""
            found[chosen.name] = moved or f"read anew: {chosen.origin} has changed"
    return found


def _files_of(loaded: LoadedSettings, path: Path | None) -> FileStamps:
    files = loaded.plugins.files
    return files.stamps(path) if files is not None and path is not None else {}


def _packages(loaded: LoadedSettings) -> dict[str, list[str]]:
    """The packages that policies of the chain come from, by the name of their first module, and those policies."""
    found: dict[str, list[str]] = {}
    for chosen in loaded.resolved.policies:
        if chosen.origin.path is None:
            top = str(getattr(chosen.plugin.make, "__module__", "")).partition(".")[0]
            found.setdefault(top, []).append(chosen.name)
    return found


def _stamps(package: str) -> dict[Path, FileStamp | None]:
    files = [
        getattr(module, "__file__", None)
        for name, module in sys.modules.copy().items()
        if name == package or name.startswith(f"{package}.")
    ]
    return {path: file_stamp(path) for path in map(Path, filter(None, files))}
