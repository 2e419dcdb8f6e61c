"""The head that waits: it proves that it could lead, answers who does, and returns when it leads itself."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime

import structlog

from burstd.api.answers.base import utc_time
from burstd.api.answers.standby import StandbyView
from burstd.api.answers.text import local_time_text
from burstd.api.server import ApiServer
from burstd.api.standby import JobRefusals, create_standby_app
from burstd.daemon import components as make
from burstd.daemon.heads import SEEN_EVERY_S, describe_head, differences, head_with_another_key, key_digest
from burstd.daemon.relay import StandbyHooks
from burstd.daemon.settings_in_force import LoadedSettings, load_and_check, runtime_config
from burstd.db import StoreError
from burstd.db.leadership import HeadRow, Leadership
from burstd.domain.errors import BurstdError, SchedulerRefused, SchedulerUnavailable
from burstd.domain.plugins.provider import SelfCheck
from burstd.domain.plugins.stager import ServerStarter
from burstd.domain.storage_node import NodeBackedStore
from burstd.node.ssh.key_pair import KeyUnusable
from burstd.planner.offers.named_images import explicit_images
from burstd.runtime.systemd import Notifier
from burstd.settings import SettingsError
from burstd.settings.plugins.policy_files import file_stamp
from burstd.slurm.commands.controller import read_controller_config

log = structlog.get_logger(__name__)

TRY_EVERY_S = 1.0
CHECK_EVERY_S = 3600.0
CHECKS_LIMIT_S = 600.0
CHECK_AGAIN_S = 60.0
"""After a check that has found a fault."""


def takeover_faults(loaded: LoadedSettings) -> Iterator[str]:
    """What would be in the way of leading with these settings. Asks Slurm, clouds and the store, which takes time."""
    settings = loaded.settings
    try:
        runtime_config(loaded)
    except SettingsError as error:
        yield str(error)
    try:
        read_controller_config(make.commands(settings))
    except (SchedulerUnavailable, SchedulerRefused) as error:
        yield f"Slurm cannot be asked: {error}"
    for name, chosen in loaded.resolved.providers.items():
        provider = chosen.plugin.make(name, settings.cluster, chosen.settings)
        try:
            next(iter(provider.instances()), None)
            images = explicit_images(name, loaded.pools.values())
            findings = provider.check(images) if isinstance(provider, SelfCheck) else ()
            yield from (f"provider {name}: {f.subject}: {f.text}" for f in findings if f.ok is False)
        except BurstdError as error:
            yield f"provider {name} cannot be asked: {error}"
        finally:
            provider.close()
    if settings.staging.enabled:
        name = settings.staging.store
        chosen = loaded.resolved.stores[name]
        try:
            with closing(chosen.plugin.make(name, settings.cluster, chosen.settings)) as store:
                # burstd launches the node of such a store when there is data to stage.
                launched = isinstance(store, NodeBackedStore) and store.node_spec is not None
                if not launched and not isinstance(store, ServerStarter):
                    next(iter(store.objects("in/")), None)
        except BurstdError as error:
            yield f"store {name} cannot be asked: {error}"


class TakeoverChecks:
    """``takeover_faults`` in a thread, at once and every CHECK_EVERY_S, or CHECK_AGAIN_S."""

    def __init__(self, loaded: LoadedSettings) -> None:
        self._loaded = loaded
        self._thread: threading.Thread | None = None
        self._due = self._begun = 0.0
        self.faults: tuple[str, ...] = ()
        """What the last one found."""

    def start_due(self) -> None:
        """Starts one that is due, unless the last still runs."""
        if self._thread is not None and self._thread.is_alive():
            if time.monotonic() > self._begun + CHECKS_LIMIT_S:
                self.faults = (f"what a takeover needs has been asked for {CHECKS_LIMIT_S:.0f} s without an answer",)
            return
        if time.monotonic() < self._due:
            return
        self._begun = time.monotonic()
        self._due = time.monotonic() + CHECK_EVERY_S
        self._thread = threading.Thread(target=self._check, name="takeover checks", daemon=True)
        self._thread.start()

    def _check(self) -> None:
        found = tuple(takeover_faults(self._loaded))
        for fault in found:
            if fault not in self.faults:
                log.warning("this head could not take over", why=fault)
        self.faults = found
        if found:
            self._due = time.monotonic() + CHECK_AGAIN_S


class Standby:
    """Waits in the thread that made it, which is the one that leads afterwards."""

    def __init__(self, loaded: LoadedSettings, version: str, leadership: Leadership, notifier: Notifier) -> None:
        self._loaded = loaded
        self._stamp = file_stamp(loaded.path)
        self._version = version
        self._leadership = leadership
        self._notifier = notifier
        self._ending = threading.Event()
        self._reload_asked = False
        self._checks = TakeoverChecks(loaded)
        self._unread = ""
        """Why burstd.toml, as it is now, is not taken; empty: it is."""
        self._trouble = ""
        """Why it cannot be tried to lead; empty: it can."""
        self._other_key = ""
        """The head whose ssh key is another one; empty: there is none."""
        self._heads: tuple[HeadRow, ...] = ()
        self._digest = ""
        self._view = StandbyView(
            host=leadership.host, version=version, cluster=loaded.settings.cluster, leader="", alarms=[]
        )

    def wait(self, control: socket.socket) -> LoadedSettings | None:
        """The settings to lead with; None where a signal ended the wait. ``control``: what burstctl speaks to.

        Raises BurstdError where the sockets cannot be had.
        """
        with ExitStack() as stack:
            stack.enter_context(self._signals())
            # What leads afterwards listens on it too, and systemd gives it only once.
            server = ApiServer(create_standby_app(lambda: self._view), control.dup(), name="standby")
            server.start()
            stack.callback(server.stop)
            jobs = JobRefusals(self._loaded.settings.daemon.runtime_dir / "jobs.sock", lambda: self._view)
            jobs.start()
            stack.callback(jobs.close)
            hooks = StandbyHooks(self._loaded.settings)
            hooks.start()
            stack.callback(hooks.close)
            return self._wait()

    def _wait(self) -> LoadedSettings | None:
        due, waits = 0.0, False
        while not self._ending.is_set():
            if self._reload_asked or time.monotonic() >= due:
                due = time.monotonic() + SEEN_EVERY_S
                self._read_settings()
                self._checks.start_due()
                self._exchange()
            if not self._ending.is_set() and self._leads():
                return self._loaded
            if not waits:
                waits = True
                log.info("burstd waits as standby", version=self._version, leader=self._view.leader)
                self._notifier.ready()
            self._notifier.feed_watchdog()
            self._ending.wait(TRY_EVERY_S)
        self._notifier.stopping()
        return None

    def _leads(self) -> bool:
        """One try. Not with another ssh key: no machine could be entered, and all would be given up."""
        try:
            self._note_key(head_with_another_key(key_digest(self._loaded.settings.ssh_key), self._heads))
            with self._notifier.patience():
                leads = not self._other_key and self._leadership.try_lead(self._digest, self._version)
        except (StoreError, KeyUnusable, OSError) as error:
            self._note_trouble(str(error))
            return False
        self._note_trouble("")
        return leads

    def _note_trouble(self, why: str) -> None:
        if why and why != self._trouble:
            log.warning("this head cannot try to lead", error=why)
        self._trouble = why

    def _exchange(self) -> None:
        """Says what this head is, and reads what the others are and who leads."""
        faults = [self._unread, self._trouble, *self._checks.faults]
        try:
            self._leadership.check_schema()
        except StoreError as error:
            faults.append(str(error))
        alarms = tuple(dict.fromkeys(filter(None, faults)))
        leader, unlike = self._view.leader, []
        try:
            own = describe_head(self._leadership.host, self._version, self._loaded.settings, alarms)
            self._digest = own.settings_digest
            self._leadership.write_head(own.settings_digest, own.key_digest, own.version, own.alarms)
            self._heads = self._leadership.heads()
            row = self._leadership.current()
        except (StoreError, KeyUnusable, OSError) as error:
            unlike = [str(error)]
        else:
            leads = [head for head in self._heads if row and head.host == row.holder != own.host]
            unlike = [text for head in leads for text in differences(own, head)]
            leader = f"{row.holder} since {_time_text(row.since)}" if row else ""
        self._view = self._view.model_copy(update={"leader": leader, "alarms": [*dict.fromkeys([*unlike, *alarms])]})
        self._notifier.status(f"standby: {leader} leads" if leader else "standby: no head leads")

    def _note_key(self, host: str) -> None:
        if host and host != self._other_key:
            log.error("this head does not take over: its ssh key is another one, and enters no machine", as_on=host)
        self._other_key = host

    def _read_settings(self) -> None:
        """Ends the wait where burstd.toml has changed and is right: whoever started burstd starts it with that."""
        stamp = file_stamp(self._loaded.path)
        if stamp == self._stamp and not self._reload_asked:
            return
        self._stamp, self._reload_asked, self._unread = stamp, False, ""
        try:
            load_and_check(self._loaded.path)
        except SettingsError as error:
            log.error("settings not taken, the old ones stay", error=str(error))
            self._unread = str(error)
        else:
            log.info("the settings have changed: this standby ends, to be started with them")
            self._ending.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the wait, SIGHUP has the settings read."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

        def end(*_: object) -> None:
            self._ending.set()

        def reload(*_: object) -> None:
            self._reload_asked = True

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGHUP, reload)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _time_text(seconds: float) -> str:
    return local_time_text(utc_time(seconds), datetime.now(UTC))
