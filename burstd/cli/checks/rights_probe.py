"""What this process can do for burstd with the rights that it has; as a program: after it has taken a user's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from burstd.api.answers.base import current_user
from burstd.cli.checks.clock import clock_findings, offsets_of_clouds
from burstd.cli.checks.mounts import mount_worker_findings
from burstd.cli.checks.offers import catalogs_of_clouds, offer_findings
from burstd.cli.checks.staging import worker_and_store_findings
from burstd.settings import (
    PluginRegistry,
    Settings,
    SettingsError,
    SettingsFault,
    build_pools,
    load_settings,
    resolve_plugins,
)
from burstd.settings.toml_source import dotted_key
from burstd.slurm.config.check import SlurmConfFinding
from burstd.slurm.hostlist import expand
from burstd.transfer.privsep.worker import WorkerUser, take_rights

_MIN_FREE = 64 << 20
"""Bytes that the record, keys and transfers have at least on a disk that is not full."""


class Request(TypedDict, total=False):
    """What is to be tried."""

    settings: str
    """The settings file; with it all that burstd's user needs."""
    files_only: bool
    """Nothing but the files that it names."""
    given: list[str]
    """Files that systemd shows to burstd, whoever may read them."""
    clouds: list[str]
    """Providers whose offers are read."""
    programs: dict[str, list[str]]
    """By the setting of Slurm that names them, the paths of which one must be there."""
    spool: str


def subjects_of(request: Request) -> str:
    """What it is about, in a few words."""
    return "files, store and workers of burstd" if "settings" in request else "programs of burstd"


def probe(request: Request, plugins: PluginRegistry | None = None) -> list[SlurmConfFinding]:
    """What cannot be done, tried now. ``plugins``: those that there are; None: they are looked for."""
    found = [*_programs(request.get("programs", {})), *_spool(request.get("spool", ""))]
    if file := request.get("settings"):
        plugins = plugins or _plugins(file)
        found += _own_files(Path(file), plugins, request.get("given", []))
        with suppress(SettingsError):
            settings = load_settings(file, check_files=False)
            if not request.get("files_only"):
                found += _tried(settings, plugins, request.get("clouds", []))
    return found


def _plugins(file: str) -> PluginRegistry:
    """Those that there are, the ones that the settings name loaded."""
    plugins = PluginRegistry.installed()
    with suppress(SettingsError):
        settings = load_settings(file, check_files=False)
        plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s)
        resolve_plugins(settings, plugins, check_files=False)
    return plugins


def _tried(settings: Settings, plugins: PluginRegistry, clouds: Sequence[str]) -> Iterator[SlurmConfFinding]:
    yield from _state("daemon.state_dir", settings.daemon.state_dir)
    if settings.daemon.shared_dir is not None:
        yield from _state("daemon.shared_dir", settings.daemon.shared_dir)
    yield from worker_and_store_findings(settings, plugins)
    yield from mount_worker_findings(settings)
    pools = [*build_pools(settings, expand).values()]
    in_use = list(dict.fromkeys(rule.provider for pool in pools for rule in pool.rules))
    yield from clock_findings(offsets_of_clouds(settings, plugins, in_use), settings.node.clock_tolerance_s)
    yield from offer_findings(pools, catalogs_of_clouds(settings, plugins, clouds))


def _own_files(file: Path, plugins: PluginRegistry, given: Sequence[str]) -> Iterator[SlurmConfFinding]:
    """The settings file and those that it names."""
    faults: list[SettingsFault] = []
    for check_files in (True, False):
        try:
            resolve_plugins(load_settings(file, check_files=check_files), plugins)
            break
        except SettingsError as error:
            faults += [fault for fault in error.faults if fault not in faults]
    me = current_user()
    for fault in faults:
        text = fault.text.partition(", as whom this runs")[0]
        if not any(text.startswith(f"the file {path} cannot be read") for path in given):
            closed = "cannot be read" in text
            yield SlurmConfFinding(
                dotted_key(fault.path) or str(file), f"what user {me} can use", text,
                "burstd does not start, and takes no reload",
                f"let user {me} read it and pass its folders" if closed else "follow 'burstctl config check'",
            )  # fmt: skip


def _state(subject: str, folder: Path) -> Iterator[SlurmConfFinding]:
    """The folder of the record, or of the keys; nothing where burstd has not been started yet, which makes it."""
    if not folder.exists():
        return
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    breaks = "burstd does nothing that it cannot write down"
    if not os.access(folder, os.W_OK | os.X_OK):
        me = current_user()
        yield SlurmConfFinding(
            subject,
            f"a folder that user {me} can write to",
            f"{folder} is another's",
            breaks,
            f"chown -R {me} {folder}",
        )
    elif free < _MIN_FREE or (room.f_files and not room.f_favail):
        yield SlurmConfFinding(
            subject, f"{_MIN_FREE >> 20} MiB free, and inodes",
            f"{free >> 20} MiB and {room.f_favail} inodes free in {folder}", breaks, "make room there",
        )  # fmt: skip


def _spool(text: str) -> Iterator[SlurmConfFinding]:
    folder = Path(text)
    if text and folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        me = current_user()
        yield SlurmConfFinding(
            "daemon.spool_dir", f"a folder that user {me} can write to", f"{folder} is closed to that user",
            "what slurmctld asks for while burstd is away is lost", f"chown {me} {folder}, or let its group write",
        )  # fmt: skip


def _programs(programs: Mapping[str, Sequence[str]]) -> Iterator[SlurmConfFinding]:
    for subject, paths in programs.items():
        reasons = [_not_run_because(Path(path)) for path in paths]
        if not all(reasons):
            continue
        name, here = Path(paths[0]).name, Path(sys.executable).parent
        remedy = f"let {subject} name {name} where user {current_user()} can run it"
        if not _not_run_because(here / name):
            remedy = f"let {subject} name {here / name}, and programs in [slurm] of burstd.toml {here}"
        yield SlurmConfFinding(
            subject, f"a program that user {current_user()} can run", "; ".join(reasons),
            "Slurm's requests do not reach burstd", remedy,
        )  # fmt: skip


def _not_run_because(path: Path) -> str:
    """Why this user cannot run a program; empty: it can. Looks also at the interpreter that its first line names."""
    try:
        path.stat()
        with path.open("rb") as file:
            first = file.readline(4096)
    except FileNotFoundError:
        return f"no file {path}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable"
    words = first[2:].split() if first.startswith(b"#!") else []
    interpreter = os.fsdecode(words[0]) if words else ""
    if interpreter and not os.access(interpreter, os.X_OK):
        return f"{path} needs {interpreter}, which cannot be run"
    return ""


def main() -> None:
    """Takes the rights of the user on standard input, tries, and prints the findings as JSON."""
    asked = json.load(sys.stdin)
    request: Request = asked["request"]
    # While root: where burstd is installed need not be open to others.
    plugins = _plugins(request["settings"]) if "settings" in request else None
    take_rights(WorkerUser(**asked["user"]))
    json.dump([asdict(finding) for finding in probe(request, plugins)], sys.stdout)


if __name__ == "__main__":
    main()
