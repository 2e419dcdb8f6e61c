"""The daemon's main loop around the reconciler: waits, commands, clock jumps, the watchdog."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import structlog

from burstd.api.backend import Backend
from burstd.daemon.commands import CommandHandler
from burstd.daemon.components import DaemonComponents
from burstd.db import StoreError
from burstd.db.record_mark import DOUBT_KEY
from burstd.runtime.clock import CLOCK_KEY
from burstd.runtime.systemd import Notifier

log = structlog.get_logger(__name__)

MIN_PAUSE_S = 0.05
"""Between two loops, so that a storm of wake-ups, or of users' requests, reads Slurm once and not a hundred times."""
PURGE_EVERY_S = 86400.0
CLOSE_EVERY_S = 3600.0
"""And the first time so long after the start, when burstd knows again what its machines and jobs have done."""
SAVE_TIME_EVERY_S = 3600.0
"""Much less than clock.AWAY_S: after a power cut on a quiet day burstd still knows what time it was."""
WATCHDOG_EVERY_S = 5.0


class DaemonLoop:
    """Runs until ``stop``."""

    def __init__(
        self,
        parts: DaemonComponents,
        backend: Backend,
        commands: CommandHandler,
        notifier: Notifier,
        loop_ended: Callable[[float], None],
    ) -> None:
        """``loop_ended`` gets the seconds that each loop took."""
        self._parts = parts
        self._reconciler, self._store, self._clock = parts.reconciler, parts.store, parts.clock
        self._backend = backend
        self._commands = commands
        self._notifier = notifier
        self._loop_ended = loop_ended
        self._watchdog_every_s = min(notifier.watchdog_s or WATCHDOG_EVERY_S, WATCHDOG_EVERY_S)
        self._last_alarm = ""
        self._stop = threading.Event()
        self._purge_due = 0.0
        self._close_due = parts.clock.now() + CLOSE_EVERY_S
        self._save_time_due = parts.clock.now() + SAVE_TIME_EVERY_S
        self._reload_asked = threading.Event()

    def stop(self) -> None:
        """Ends the loop after the step that is under way; from any thread or a signal handler."""
        self._stop.set()
        self._parts.wake()

    def install_signal_handlers(self) -> None:
        """SIGTERM and SIGINT end the loop, SIGHUP has the settings read again."""

        def end(number: int, _frame: FrameType | None) -> None:
            log.info("ending", signal=signal.Signals(number).name)
            self.stop()

        def reload(_number: int, _frame: FrameType | None) -> None:
            self._reload_asked.set()
            self._parts.wake()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGHUP, reload)

    def run(self, reload: Callable[[str], object]) -> None:
        """The loop. ``reload`` is called, in this thread, for SIGHUP."""
        self._notifier.ready("running")
        while not self._stop.is_set():
            self._note_jump()
            served = self._backend.run_queued(self._commands.execute)
            self._backend.answer_questions(self._commands.execute, self._parts.wake.is_due)
            if self._reload_asked.is_set():
                self._reload_asked.clear()
                self._notifier.reloading()
                reload("signal:HUP")
                self._notifier.ready("running")
            self._reconciler.queue_is_watched = self._parts.wake_sources.set_up_missing()
            begun = time.monotonic()
            pause = self._reconciler.step()
            self._loop_ended(time.monotonic() - begun)
            self._close_month()
            self._purge()
            self._update_record_mark()
            self._save_time()
            self._feed_watchdog()
            self._pause(0.0 if served else pause)
        self._notifier.stopping()

    def _pause(self, pause: float) -> None:
        """Waits for a wake-up or the next due time; answers questions and feeds the watchdog meanwhile.

        Never less than the minimum.
        """
        if self._stop.wait(MIN_PAUSE_S):
            return
        due = self._clock.now() + pause
        while (left := due - self._clock.now()) > 0:
            if self._parts.wake.wait(min(left, self._watchdog_every_s)):
                return
            self._backend.answer_questions(self._commands.execute, self._parts.wake.is_due)
            self._feed_watchdog()

    def _feed_watchdog(self) -> None:
        self._notifier.feed_watchdog()
        if self._reconciler.alarm != self._last_alarm:
            self._last_alarm = self._reconciler.alarm
            # Everybody may read it by 'systemctl status', and an alarm names jobs.
            self._notifier.status("alarm: see 'burstctl status'" if self._last_alarm else "running")

    def _note_jump(self) -> None:
        jump = self._clock.seconds_jumped()
        if jump:
            self._reconciler.head_clock.confirm()
            log.warning("the system clock jumped; burstd's own time goes on steadily", seconds=round(jump, 1))
            try:
                self._store.log_event("daemon", new="clock jump", reason=f"the system clock jumped by {jump:.1f} s")
            except StoreError as error:
                log.error("the jump could not be recorded", error=str(error))

    def _update_record_mark(self) -> None:
        try:
            self._parts.record_mark.update_mark()
        except StoreError as error:
            log.error("the record could not be read", error=str(error))

    def _save_time(self) -> None:
        now = self._clock.now()
        if now < self._save_time_due:
            return
        self._save_time_due = now + SAVE_TIME_EVERY_S
        try:
            self._store.set_metadata(CLOCK_KEY, str(self._clock.checkpoint()), logged=False)
        except StoreError as error:
            log.error("the time could not be kept on record", error=str(error))

    def _close_month(self) -> None:
        """One a turn, as each takes seconds; none from a record that may be older than what its machines did."""
        now = self._clock.now()
        if now < self._close_due:
            return
        self._close_due = now + CLOSE_EVERY_S
        try:
            if not self._store.metadata(DOUBT_KEY) and self._store.close_month(self._parts.close_after_s()):
                self._close_due = now
        except StoreError as error:
            log.error("a month could not be closed", error=str(error))

    def _purge(self) -> None:
        now = self._clock.now()
        if now < self._purge_due:
            return
        self._purge_due = now + PURGE_EVERY_S
        try:
            self._store.purge(now - self._parts.retention_s(), now - self._parts.charges_retention_s())
        except StoreError as error:
            log.error("old records could not be removed", error=str(error))
