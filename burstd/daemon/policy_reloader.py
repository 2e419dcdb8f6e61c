"""The settings in force and their policies: shown, tried as they are on disk, and taken anew, never half."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
from pydantic_core import to_jsonable_python

from burstd.api.backend import PolicyState, PolicyStates
from burstd.daemon.settings_in_force import Ready, prepare, refuse_without_staging, rules
from burstd.db import Store, StoreError
from burstd.domain.command import CommandResult
from burstd.domain.errors import PolicyBroken
from burstd.planner.lifecycle.listing import some
from burstd.reconciler.policy_guard import Guarded
from burstd.reconciler.reconciler import Reconciler
from burstd.runtime import logs
from burstd.settings import Settings, SettingsError, diff, pools, until_restart
from burstd.settings.plugins.foreign_code import call_foreign
from burstd.settings.plugins.policy_files import Stamp, stamp_of
from burstd.slurm.hostlist import expand

log = structlog.get_logger(__name__)

Stamps = Mapping[Path, Stamp | None]


class PolicyDesk:
    """One; all but ``states`` is for the deciding thread."""

    def __init__(
        self,
        ready: Ready,
        reconciler: Reconciler,
        store: Store,
        taken: Callable[[Settings], None] = lambda _settings: None,
    ) -> None:
        """``taken`` is told settings that a reload has found good."""
        self._taken = taken
        self._reconciler = reconciler
        self._store = store
        self._packages: dict[str, Stamps] = {}
        self._force = ready, _guards(reconciler), _shown(ready)
        self._waiting: tuple[str, ...] = ()
        self._note_packages(ready)
        _warn(ready)

    @property
    def guards(self) -> tuple[Guarded, ...]:
        """The policies in force; from any thread."""
        return self._force[1]

    @property
    def alarms(self) -> tuple[str, ...]:
        """That the last reload found settings which wait for a restart; from any thread."""
        waiting = self._waiting
        names = some(tuple(dict.fromkeys(".".join(key.split(".")[:2]) for key in waiting)))
        return (f"settings wait for 'systemctl restart burstd': {names}",) if waiting else ()

    def reload(self, by: str) -> CommandResult:
        """Takes settings and policies as they are on disk, or nothing of them."""
        current, *_ = self._force
        try:
            fresh = prepare(current.path)
            refuse_without_staging(fresh.settings, self._store)
            settings = until_restart(current.settings, fresh.settings)
            taken = Ready(fresh.path, settings, fresh.resolved, pools(settings, expand), fresh.plugins)
            self._reconciler.reload(rules(taken))
        except (SettingsError, StoreError) as error:
            log.error("settings not taken, the old ones stay in force", error=str(error))
            return CommandResult(str(error), done=False, changed=False)
        self._taken(settings)
        self._note_packages(taken)
        changes = diff(current.settings, fresh.settings)
        self._waiting = tuple(change.key for change in changes.at_restart)
        found = [str(changes)] if changes else []
        found += [f"policy {name} is {how}" for name, how in _changed(current, taken).items()]
        found += self._stale_packages(taken)
        text = "; ".join(found) or "nothing has changed"
        self._force = taken, _guards(self._reconciler), _shown(taken)
        logs.set_up(settings.daemon.log_format, settings.daemon.log_level)
        log.info("settings taken", by=by, changes=text)
        _warn(taken)
        try:
            self._store.append("daemon", new="reloaded", reason=text, cause=by)
        except StoreError as error:
            log.error("the reload could not be recorded", error=str(error))
        return CommandResult(text, changed=bool(found))

    def attempt(self) -> CommandResult:
        """What the policies on disk would decide now, beside those in force; nothing of it is done."""
        try:
            # Held until they were asked: modules of policies can be imported for as long.
            ready = prepare(self._force[0].path)
            policies = rules(ready).policies
        except SettingsError as error:
            return CommandResult(str(error), done=False, changed=False)
        compared = self._reconciler.compare(policies)
        return CommandResult("what the policies on disk would decide", changed=False, compared=compared)

    def states(self) -> PolicyStates:
        """All policies there are, those of the chain first, in the order in which they are asked; from any thread."""
        ready, guards, shown = self._force
        asked = sorted(range(len(guards)), key=lambda index: guards[index].last)
        chain = [_in_chain(ready, i, place, guards[i], shown[i]) for place, i in enumerate(asked, 1)]
        names = [name for name in ready.plugins.names("policies") if name not in {p.name for p in chain}]
        rest = [PolicyState(name, " and ".join(map(str, ready.plugins.origins(name)))) for name in names]
        files = ready.plugins.files
        return PolicyStates(
            str(ready.settings.policies.folder), ready.settings.policies.timeout_s, (*chain, *rest),
            tuple(ready.plugins.faults()), tuple(map(str, files.changed())) if files else (),
            tuple(self._stale_packages(ready)),
        )  # fmt: skip

    def _note_packages(self, ready: Ready) -> None:
        """How the modules of packages are on disk when they are first used: Python does not import them again."""
        for name in _packages(ready):
            self._packages[name] = _stamps(name) | dict(self._packages.get(name, {}))

    def _stale_packages(self, ready: Ready) -> list[str]:
        found: list[str] = []
        for name, policies in _packages(ready).items():
            changed = [path for path, stamp in self._packages.get(name, {}).items() if stamp_of(path) != stamp]
            if changed:
                found.append(
                    f"{changed[0]} has changed since burstd started, and {', '.join(policies)} goes on as it was; "
                    "'systemctl restart burstd' takes it"
                )
        return found


def _warn(ready: Ready) -> None:
    for fault in ready.plugins.faults():
        log.warning("a policy that is not in the chain cannot be used", error=fault)


def _guards(reconciler: Reconciler) -> tuple[Guarded, ...]:
    return tuple(p for p in reconciler.rules.policies if isinstance(p, Guarded))


def _shown(ready: Ready) -> tuple[Mapping[str, object], ...]:
    """The settings of the policies of the chain as JSON has them: foreign code, which may hold anything."""

    def show(settings: object) -> Mapping[str, object]:
        return dict(to_jsonable_python(settings, fallback=str))

    found: list[Mapping[str, object]] = []
    for chosen in ready.resolved.policies:
        try:
            found.append(call_foreign(partial(show, chosen.settings), ready.plugins.timeout_s, chosen.home))
        except PolicyBroken as error:
            found.append({"they cannot be shown": str(error)})
    return tuple(found)


def _in_chain(ready: Ready, index: int, place: int, guard: Guarded, shown: Mapping[str, object]) -> PolicyState:
    asked = guard.asked
    return PolicyState(
        guard.name, str(ready.resolved.policies[index].origin), place, guard.hard, shown,
        asked.took_s if asked.at else None, asked.failing, asked.failed_at, asked.error,
    )  # fmt: skip


def _changed(old: Ready, new: Ready) -> dict[str, str]:
    """Policies of the chain whose code is another one, and how; of packages only whether they were there."""
    before = {c.name: (c.origin, _files_of(old, c.origin.path)) for c in old.resolved.policies}
    found: dict[str, str] = {}
    for chosen in new.resolved.policies:
        was = before.get(chosen.name)
        if was is not None and was != (chosen.origin, _files_of(new, chosen.origin.path)):
            moved = f"from {chosen.origin}, no longer from {was[0]}" if was[0] != chosen.origin else ""
            found[chosen.name] = moved or f"read anew: {chosen.origin} has changed"
    return found


def _files_of(ready: Ready, path: Path | None) -> Stamps:
    files = ready.plugins.files
    return files.stamps(path) if files is not None and path is not None else {}


def _packages(ready: Ready) -> dict[str, list[str]]:
    """The packages that policies of the chain come from, by the name of their first module, and those policies."""
    found: dict[str, list[str]] = {}
    for chosen in ready.resolved.policies:
        if chosen.origin.path is None:
            top = str(getattr(chosen.plugin.make, "__module__", "")).partition(".")[0]
            found.setdefault(top, []).append(chosen.name)
    return found


def _stamps(package: str) -> dict[Path, Stamp | None]:
    files = [
        getattr(module, "__file__", None)
        for name, module in sys.modules.copy().items()
        if name == package or name.startswith(f"{package}.")
    ]
    return {path: stamp_of(path) for path in map(Path, filter(None, files))}
