"""What staging needs beside slurm.conf: the plug-in's files, a process with users' rights, a store that answers."""

from __future__ import annotations

import errno
import os
import pwd
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from burstd.api.answers.base import current_user
from burstd.domain.errors import BurstdError
from burstd.domain.storage_node import NodeBackedStore
from burstd.settings import PluginRegistry, Settings, SettingsError, resolve_store
from burstd.share import share_path
from burstd.slurm.config.check import SlurmConfFinding
from burstd.transfer.images.client import ACCOUNT, image_socket
from burstd.transfer.images.worker import PROGRAM_PATH
from burstd.transfer.privsep.client import UserWorkerError, account, user_worker_for

_TRIED_KEY = "in/burstctl-check"
PROBE_USER = "nobody"
"""Whose rights are tried: an account that every system has."""


def staging_findings(settings: Settings, config: Mapping[str, str]) -> Iterator[SlurmConfFinding]:
    """What Slurm lacks for staging; nothing where it is off. ``config``: what slurmctld says of its settings."""
    if not settings.staging.enabled:
        return
    conf = config.get("SLURM_CONF", "") or str(settings.slurm.conf or "/etc/slurm/slurm.conf")
    yield from _slurm_file_findings(Path(conf).parent)
    yield from _job_submit_findings(Path(conf).parent)


def worker_and_store_findings(settings: Settings, plugins: PluginRegistry) -> Iterator[SlurmConfFinding]:
    """What staging lacks of processes with users' rights, of images and of the store, for whoever runs this."""
    if not settings.staging.enabled:
        return
    started_by_burstd = os.geteuid() == 0
    yield from _worker_findings(settings, started_by_burstd=started_by_burstd)
    yield from _image_findings(settings, started_by_burstd=started_by_burstd)
    yield from _store_findings(settings, plugins)


def _slurm_file_findings(folder: Path) -> Iterator[SlurmConfFinding]:
    """What Slurm's burst_buffer/lua reads, beside slurm.conf."""
    for name, breaks in (
        ("burst_buffer.lua", "slurmctld does not hand jobs' data to burstd"),
        ("burst_buffer.conf", "slurmctld does not know #BURST lines"),
    ):
        shipped = share_path("config", "slurm", name)
        try:
            found = (folder / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            yield SlurmConfFinding(
                f"{folder / name}", "burstd's file", "no file", breaks,
                f"copy {shipped} to {folder} and restart slurmctld",
            )  # fmt: skip
            continue
        except OSError as error:
            yield SlurmConfFinding(
                f"{folder / name}", "readable", error.strerror or "not readable", breaks,
                "give slurmctld's user the right to read it",
            )  # fmt: skip
            continue
        if name.endswith(".conf"):
            if not re.search(r"(?im)^\s*Directive\s*=\s*BURST\s*(#|$)", found):
                yield SlurmConfFinding(
                    f"{folder / name}", "Directive=BURST", "another directive, or none", breaks,
                    "add the line and run scontrol reconfigure",
                )  # fmt: skip
        elif found != shipped.read_text(encoding="utf-8"):
            yield SlurmConfFinding(
                f"{folder / name}",
                f"the same as {shipped}",
                "a different file",
                "after an update of burstd the old script may send requests that burstd no longer understands",
                f"copy {shipped} to {folder} and restart slurmctld, unless you changed it on purpose",
                recommended=True,
            )


def _job_submit_findings(folder: Path) -> Iterator[SlurmConfFinding]:
    """A job_submit.lua of an older burstd, perhaps beside the site's own. Sites may edit it and leave it out."""
    for name in ("job_submit.lua", "burstd_job_submit.lua"):
        try:
            found = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if "burstd-stage" in found and 'plugin = "job_submit"' not in found:
            yield SlurmConfFinding(
                f"{folder / name}", "that of this burstd", "that of an older one",
                "sbatch refuses scripts with #BURST container",
                f"copy {share_path('config', 'slurm', 'job_submit.lua')} there, and carry over what you have changed",
                recommended=True,
            )  # fmt: skip


def _worker_findings(settings: Settings, *, started_by_burstd: bool) -> Iterator[SlurmConfFinding]:
    """``started_by_burstd``: burstd is root and starts user workers itself; else systemd does, behind a socket."""
    socket_path = None if started_by_burstd else settings.worker_socket
    try:
        user_worker_for(account(PROBE_USER), socket_path=socket_path, min_uid=settings.staging.min_uid).close()
    except (UserWorkerError, OSError) as error:
        if started_by_burstd:
            remedy = "reinstall burstd: burstd-user-worker does not start"
        elif error.errno in (errno.EACCES, errno.EPERM):
            remedy = f"set SocketUser={current_user()} in burstd-user-worker.socket and restart it"
        else:
            remedy = "systemctl enable --now burstd-user-worker.socket"
        yield SlurmConfFinding(
            "burstd-user-worker" if socket_path is None else str(socket_path),
            "a process with a user's rights", str(error),
            "users' files can be neither read nor written", remedy,
        )  # fmt: skip


def _image_findings(settings: Settings, *, started_by_burstd: bool) -> Iterator[SlurmConfFinding]:
    """What ``docker://`` lacks on this machine, where registries are allowed."""
    if not settings.staging.images.registries:
        return
    breaks = "jobs with '#BURST container docker://...' are held"
    program = settings.staging.container_program
    for wanted, remedy in (
        ("skopeo", "apt-get install skopeo, or dnf install skopeo"),
        (program, "install Apptainer on this machine too, or set staging.container_program"),
    ):
        if shutil.which(wanted, path=PROGRAM_PATH) is None:
            yield SlurmConfFinding(wanted, "a program on this machine", "none", breaks, remedy)
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        remedy = f"useradd --system --shell /usr/sbin/nologin {ACCOUNT}"
        yield SlurmConfFinding(ACCOUNT, "an account on this machine", "none", breaks, remedy)
    socket_path = image_socket(None if started_by_burstd else settings.worker_socket)
    if socket_path is not None and not socket_path.exists():
        remedy = "systemctl enable --now burstd-image-worker.socket"
        yield SlurmConfFinding(str(socket_path), "a socket of systemd", "none", breaks, remedy)


def _store_findings(settings: Settings, plugins: PluginRegistry) -> Iterator[SlurmConfFinding]:
    name = settings.staging.store
    subject, breaks = f"store {name}", "no input reaches the cloud and no output comes home"
    try:
        chosen = resolve_store(settings, plugins, name)
    except SettingsError as error:
        faults = "; ".join(str(f) for f in error.faults)
        yield SlurmConfFinding(subject, "valid settings", faults, breaks, "see burstctl config check")
        return
    try:
        store = chosen.plugin.make(name, settings.cluster, chosen.settings)
        try:
            if isinstance(store, NodeBackedStore) and store.node_spec is not None:
                return  # burstd launches its node when there is data to stage
            next(iter(store.objects("in/")), None)
            store.put(_TRIED_KEY, b"")
            store.delete([_TRIED_KEY])
            store.node_access()
        finally:
            store.close()
    except BurstdError as error:
        yield SlurmConfFinding(subject, "an answer", str(error).rstrip("."), breaks, f"check [staging.stores.{name}]")
