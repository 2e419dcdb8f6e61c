"""Hints that the queue has changed: inotify on slurmctld's StateSaveLocation, which writes each job's script there.

70 ms after sbatch was started, without a call to slurmctld. Undocumented, and only on the host of slurmctld: a hint,
never the truth.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

import structlog
from inotify_simple import INotify, flags

log = structlog.get_logger(__name__)

_MASK = flags.ONLYDIR | flags.CREATE | flags.DELETE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF


class StateWatch:
    """Calls ``wake`` from its own thread whenever a job comes or goes."""

    def __init__(self, location: Path, wake: Callable[[], None], rescan_s: float = 5.0) -> None:
        """``look_again_s``: folders that are new or were put in place anew are found after so long at the latest."""
        self._rescan_s = rescan_s
        self._location = location
        self._wake = wake
        self._inotify: INotify | None = None
        self._thread: threading.Thread | None = None
        self._stop_event = -1
        self._watched: dict[int, Path] = {}

    def start(self) -> str:
        """Starts watching; returns why it cannot, in a sentence, or nothing."""
        denied = f"{self._location} (StateSaveLocation) may not be read by user {os.geteuid()}"
        try:
            if not self._location.is_dir():
                return f"{self._location} (StateSaveLocation) is not on this host"
            if not os.access(self._location, os.R_OK | os.X_OK):
                return denied
            self._inotify, self._stop_event = INotify(), os.eventfd(0)
            self._watch_all()
        except PermissionError:
            return denied
        except OSError as error:
            return f"{self._location} cannot be watched: {error.strerror}"
        self._thread = threading.Thread(target=self._run, args=(self._inotify,), name="hints", daemon=True)
        self._thread.start()
        return ""

    @property
    def alive(self) -> bool:
        """True while hints come."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ends the thread."""
        if self._thread is None or self._inotify is None:
            return
        os.eventfd_write(self._stop_event, 1)
        self._thread.join()
        self._inotify.close()
        os.close(self._stop_event)
        self._thread = None

    def _watch_all(self) -> None:
        """The folder itself, and each ``hash.N`` in it: watching one that is watched already changes nothing."""
        if self._inotify is None:
            return
        for folder in (self._location, *self._location.glob("hash.*")):
            # One may go at any moment, and the whole folder may be put in place anew: there is a next look.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._watched[self._inotify.add_watch(folder, _MASK)] = folder

    def _run(self, inotify: INotify) -> None:
        while True:
            ready, _, _ = select.select([inotify, self._stop_event], [], [], self._rescan_s)
            if self._stop_event in ready:
                return
            try:
                events = inotify.read(timeout=0) if ready else []
                gone = any(event.mask & (flags.DELETE_SELF | flags.MOVE_SELF) for event in events)
                new = any(self._watched.get(e.wd) == self._location and e.name.startswith("hash.") for e in events)
                if gone or new or not events:
                    self._watch_all()
            except OSError as error:
                log.warning("slurm's state folder cannot be watched any more", error=str(error))
                return
            # A new hash.N is made for a job whose script may lie in it before it is watched.
            if new or any(self._is_job_folder(event.wd, event.name) for event in events):
                self._wake()

    def _is_job_folder(self, descriptor: int, name: str) -> bool:
        # In the folder itself slurmctld rewrites its state every few seconds, which means nothing.
        return self._watched.get(descriptor) != self._location and name.startswith("job.")
