"""The steps of ``burstctl init``, each in the journal before it is taken, and how all of them are undone."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from burstd.cli.output import ConsoleOutput
from burstd.cli.setup.head import (
    UNITS,
    Head,
    SetupRefused,
    controller_up,
    drop_ins,
    journal_lines,
    programs_folder,
    restart_slurmctld,
    systemctl,
    unit_is_packaged,
    wait_until,
)
from burstd.cli.setup.journal import Journal, back_up, read_text, write_whole
from burstd.share import share_path
from burstd.slurm.config.merge import MergeRefused, unmerge_files

if TYPE_CHECKING:
    from providers.sandbox.trial import Trial

SETTINGS = Path("/etc/burstd/burstd.toml")
OLD_SETTINGS = SETTINGS.with_name("burstd.toml.old")
CALLED_JOB_SUBMIT = "burstd_job_submit.lua"
"""Beside a job_submit.lua of the site's own, which calls it."""
BACKUP_SUFFIX = ".before-burstd"
_LISTEN_TIMEOUT_S = 60.0
_POLL_S = 0.2
_LEFT_BY_BURSTD = ("/var/lib/burstd", "/var/spool/burstd", "/run/burstd")


class Steps:
    """What init does, each step in the journal first."""

    def __init__(self, journal: Journal, head: Head, out: ConsoleOutput) -> None:
        self._journal = journal
        self._head = head
        self._out = out

    def make_group(self, name: str) -> None:
        """Of administrators."""
        try:
            grp.getgrnam(name)
        except KeyError:
            self._journal.group = name
            self._journal.save()
            subprocess.run(["groupadd", "--system", name], check=True)

    def create(self, path: Path, text: str, mode: int = 0o644) -> None:
        """A file that was not there before."""
        if not path.exists():
            self._journal.note("created", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, mode)

    def replace_settings(self, text: str) -> None:
        """burstd.toml; one that is there is put aside."""
        if SETTINGS.exists():
            self._journal.old_settings = True
            self._journal.save()
            SETTINGS.rename(OLD_SETTINGS)
        self.create(SETTINGS, text)

    def merge(self, changes: Mapping[Path, str]) -> None:
        """Files of Slurm, each with a backup."""
        for path, text in changes.items():
            self._journal.note("merged", str(path))
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if path.exists() and str(backup) not in self._journal.backups:
                self._journal.note("backups", str(backup))
                back_up(path, backup)
            elif not path.exists():
                self._journal.note("created", str(path))
            write_whole(path, text)

    def change(self, changes: Mapping[Path, str]) -> None:
        """Files of Slurm, and slurmctld; they are put back where it does not start. Raises SetupRefused."""
        before = {path: read_text(path) for path in changes}
        self._journal.restart |= bool(changes)
        self.merge(changes)
        if not self._journal.restart:
            return
        self._out.line("restarting slurmctld")
        try:
            restart_slurmctld(self._head.log)
        except SetupRefused:
            for path, text in before.items():
                write_whole(path, text)
            restart_slurmctld(self._head.log)
            raise
        finally:
            self._journal.restart = not controller_up()
            self._journal.save()

    def install_units(self, units: Sequence[str]) -> None:
        """Those that no package has brought, with the folder of the programs; and drop-ins for another SlurmUser."""
        programs = str(programs_folder())
        for unit in units:
            if not unit_is_packaged(unit):
                text = share_path("systemd", unit).read_text(encoding="utf-8")
                self.create(UNITS / unit, text.replace("/opt/burstd/bin", programs))
        user = self._head.slurm_user
        group = grp.getgrgid(user.pw_gid).gr_name
        for path, text in drop_ins(user, group, units).items():
            self.create(path, text)
        systemctl("daemon-reload")

    def enable(self, *units: str) -> None:
        """Starts units, now and at each boot."""
        for unit in units:
            self._journal.note("units", unit)
            try:
                systemctl("enable", "--now", unit)
            except SetupRefused:
                raise SetupRefused(f"{unit} does not start:\n{journal_lines(unit)}") from None
            self._out.line(f"started {unit}")

    def make_sandbox(self, trial: Trial) -> None:
        """Image, network and server; returns when it listens. Raises SetupRefused."""
        from providers.sandbox.boxes.errors import SandboxError
        from providers.sandbox.trial import PORT, UNIT, set_up

        self._journal.sandbox = True
        self._journal.save()
        try:
            set_up(trial, self._head.slurm_user.pw_gid, self._out.line)
        except SandboxError as error:
            raise SetupRefused(f"the sandbox cannot be made: {error}") from None
        self.enable(UNIT)
        wait_until(
            lambda: _listens(trial.gateway, PORT),
            _LISTEN_TIMEOUT_S,
            lambda: f"the sandbox does not listen on {trial.url}: see journalctl -u {UNIT}",
        )


def undo(journal: Journal, out: ConsoleOutput, *, purge: bool = False) -> None:
    """Takes back all that the journal has, the last thing first; may be repeated. Raises SetupRefused.

    ``purge``: also burstd.toml, the record and what else burstd keeps, and the sandbox's root file systems.
    """
    texts = {path: read_text(path) for path in map(Path, journal.merged)}
    try:
        before = unmerge_files(texts)
    except MergeRefused as error:
        raise SetupRefused(str(error)) from None
    for unit in reversed(journal.units):
        systemctl("disable", "--now", unit, check=False)
    for path, text in before.items():
        if text != texts[path]:
            journal.restart = True
            journal.save()
            if not text and str(path) in journal.created:
                path.unlink()
            else:
                write_whole(path, text)
    if journal.restart or not controller_up():
        out.line("restarting slurmctld with its settings as they were")
        restart_slurmctld(Path(journal.slurmctld_log) if journal.slurmctld_log else None)
        journal.restart = False
        journal.save()
    for name in (*journal.backups, *reversed(journal.created)):
        if _is_called(Path(name)):
            out.line(f"{name} stays: job_submit.lua calls it. Take its lines out there, then remove it.")
        elif (
            name != str(SETTINGS) and (name not in journal.merged or not read_text(Path(name))) and Path(name).exists()
        ):
            Path(name).unlink()  # which a file system that is read-only refuses also where there is nothing
    for parent in {Path(name).parent for name in journal.created if name.endswith("slurm-user.conf")}:
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
    systemctl("daemon-reload", check=False)
    if journal.sandbox:
        from providers.sandbox.boxes.errors import SandboxError
        from providers.sandbox.trial import take_down

        try:
            take_down(cache=purge)
        except SandboxError as error:
            raise SetupRefused(f"the sandbox is not gone: {error}") from None
    if journal.group and (purge or not journal.finished):
        subprocess.run(["groupdel", journal.group], check=False, capture_output=True)
    if (purge or not journal.finished) and str(SETTINGS) in journal.created:
        SETTINGS.unlink(missing_ok=True)
    if journal.old_settings and not journal.finished and not SETTINGS.exists() and OLD_SETTINGS.exists():
        OLD_SETTINGS.rename(SETTINGS)
    journal.remove()
    if purge:
        _remove_units()
        for folder in _LEFT_BY_BURSTD:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_settings(out)


def _is_called(path: Path) -> bool:
    """Whether the site's job_submit.lua would fail without it, and with it each sbatch."""
    return path.name == CALLED_JOB_SUBMIT and path.name in read_text(path.with_name("job_submit.lua"))


def _remove_settings(out: ConsoleOutput) -> None:
    """With their folder, unless the administrator has put more into it: policies, keys."""
    for path in (SETTINGS, OLD_SETTINGS):
        path.unlink(missing_ok=True)
    for folder, _, _ in os.walk(SETTINGS.parent, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    if SETTINGS.parent.exists():
        names = sorted(path.name for path in SETTINGS.parent.iterdir())
        out.command(f"{SETTINGS.parent} stays, with what you put there: {', '.join(names)}")


def _remove_units() -> None:
    """Those that were copied by hand."""
    copies = [UNITS / unit.name for unit in share_path("systemd").iterdir() if (UNITS / unit.name).exists()]
    for copy in copies:
        systemctl("disable", "--now", copy.name, check=False)
        copy.unlink()
    systemctl("daemon-reload", check=False)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
