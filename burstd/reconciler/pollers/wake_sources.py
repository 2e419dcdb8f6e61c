"""Wake sources start a loop early: Slurm's state folder, and calls of ResumeProgram and its kin.

Both need to be told by slurmctld where things are and who SlurmUser is, so they are set up when it first answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from burstd.domain.clock import Clock
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.settings import Settings
from burstd.slurm.commands.controller import read_controller_config
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.power_server import PowerServer
from burstd.slurm.state_watch import StateWatch

log = structlog.get_logger(__name__)

RETRY_S = 15.0


class WakeSources:
    """Started once, tended at every loop."""

    def __init__(self, settings: Settings, commands: SlurmCommands, clock: Clock, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._commands = commands
        self._clock = clock
        self._wake = wake
        self._spool = settings.daemon.spool_dir / "power"
        self._power = PowerServer(settings.daemon.runtime_dir / "power.sock", self._spool, lambda _call: wake())
        self._watch: StateWatch | None = None
        self._due = 0.0
        self._last_problem = ""
        self.slurm_uid: int | None = None
        """SlurmUser's, once slurmctld has told it."""

    def start(self) -> None:
        """Takes power calls from now on. Raises PowerSocketFailed."""
        _make_folders(self._spool)
        self._power.start()

    def stop(self) -> None:
        """Ends the threads; power calls go to the spool."""
        self._power.stop()
        if self._watch is not None:
            self._watch.stop()

    def set_up_missing(self) -> bool:
        """Sets up what is missing, reads the spool now and then; True where the state folder is watched."""
        now = self._clock.now()
        if now >= self._due:
            self._due = now + RETRY_S
            self._power.read_spool()
            if self._watch is None or not self._watch.alive:
                self._set_up()
        return self._watch is not None and self._watch.alive

    def _set_up(self) -> None:
        try:
            controller = read_controller_config(self._commands)
        except (SchedulerUnavailable, SchedulerRefused):
            return  # The loop says so already.
        self.slurm_uid = controller.slurm_uid
        self._power.allow_caller(controller.slurm_uid)
        if os.geteuid() == 0:
            os.chown(self._spool, controller.slurm_uid, -1)
        location: Path = self._settings.slurm.state_save_location or controller.state_save_location
        if self._watch is not None:
            self._watch.stop()
        self._watch = StateWatch(location, self._wake)
        problem = self._watch.start()
        if problem and problem != self._last_problem:
            log.info("the queue is polled", every_s=self._settings.daemon.poll_s, reason=problem)
        self._last_problem = problem


def _make_folders(spool: Path) -> None:
    """Slurm's programs leave files there: they must get in, whatever the umask is."""
    for folder in reversed([spool, *spool.parents]):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
