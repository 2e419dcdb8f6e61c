"""What ``burstctl init`` does to this host, on record before it is done, so that it can always be undone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from burstd.cli.setup.head import SetupRefused

JOURNAL = Path("/etc/burstd/init.json")
"""Beside the settings, where root alone writes: whoever could change it could have root remove files."""


@dataclass(slots=True)
class Journal:
    """Paths and units as text. ``finished``: init came to its end."""

    finished: bool = False
    merged: list[str] = field(default_factory=list)
    """Files of Slurm with burstd's lines."""
    backups: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    """Files that were not there, the first one made first."""
    units: list[str] = field(default_factory=list)
    """Enabled, in this order."""
    group: str = ""
    """The group that was made for administrators."""
    sandbox: bool = False
    restart: bool = False
    """slurmctld is to be restarted: its files have been put back."""
    slurmctld_log: str = ""
    """Empty: systemd's journal."""
    partitions: list[str] = field(default_factory=list)
    """Those that were made for burstd's nodes alone."""
    old_settings: bool = False
    """There was a burstd.toml, and it was put aside."""
    emptied: bool = False
    """uninit found no machine left: burstd is not asked again, which may be gone by then."""

    @classmethod
    def load(cls) -> Journal | None:
        """None: no init, or it was undone."""
        try:
            return cls(**json.loads(JOURNAL.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def save(self) -> None:
        """Writes it to the disk, whole or not at all."""
        JOURNAL.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(JOURNAL, json.dumps(asdict(self), indent=1) + "\n", mode=0o600)

    def note(self, kind: str, thing: str) -> None:
        """Adds to a list, and saves, before it is done."""
        things: list[str] = getattr(self, kind)
        if thing not in things:
            things.append(thing)
        self.save()

    @staticmethod
    def remove() -> None:
        """All is undone."""
        JOURNAL.unlink(missing_ok=True)


@contextmanager
def only_one() -> Iterator[None]:
    """Keeps others from changing this host meanwhile. A folder is locked: no file is left. Raises SetupRefused."""
    folder = os.open(JOURNAL.parents[1], os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupRefused(
                "another 'burstctl init' or 'burstctl uninit' is at work here; wait for its end"
            ) from None
        yield
    finally:
        os.close(folder)


def read_text(path: Path) -> str:
    """All of a file with every byte, also those that are no UTF-8; empty where there is none."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Puts a file in the place of another at once. Mode and owner stay; of a new one ``mode`` counts, else 0644."""
    path = path.resolve()  # a link stays one
    before = path.stat() if path.exists() else None
    unfinished = path.with_name(f".{path.name}.burstd-new")
    unfinished.unlink(missing_ok=True)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(text.encode("utf-8", "surrogateescape"))
            if before is not None:
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, before.st_mode & 0o7777 if before is not None and mode is None else mode or 0o644)
            out.flush()
            os.fsync(descriptor)
        unfinished.rename(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk names no file
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def back_up(path: Path, backup: Path) -> None:
    """A copy with the mode and owner of the file."""
    shutil.copy2(path, backup)
    there = path.stat()
    os.chown(backup, there.st_uid, there.st_gid)
