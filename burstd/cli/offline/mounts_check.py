"""What [mounts] needs on the head beside slurm.conf: programs, the trees, the socket of the mount worker."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from burstd.settings import Settings
from burstd.slurm.config.check import SlurmConfFinding
from burstd.transfer.privsep.mount_worker import SFTP_SERVERS

_CONNECT_TIMEOUT_S = 5.0
_NO_START = "jobs on nodes that show trees do not start"


def mounts_findings(settings: Settings) -> Iterator[SlurmConfFinding]:
    """What mounts lack on this host; nothing where no tree is named. Asks neither Slurm nor the daemon."""
    if not settings.mounts.rules():
        return
    yield from _program_findings(settings)
    yield from _tree_findings(settings)
    if not _runs_as_root(settings):
        yield from _socket_findings(settings.mount_worker_socket)


def _program_findings(settings: Settings) -> Iterator[SlurmConfFinding]:
    prolog = settings.slurm.programs / "burstd-prolog"
    if not os.access(prolog, os.X_OK):
        yield SlurmConfFinding(
            str(prolog), "a program", "not executable" if prolog.exists() else "no file",
            "PrologSlurmctld cannot run it: " + _NO_START,
            "set programs in [slurm] to the folder with burstd-prolog, and PrologSlurmctld to that file",
        )  # fmt: skip
    named = settings.mounts.sftp_server
    servers = [str(named)] if named else list(SFTP_SERVERS)
    if not any(os.access(path, os.X_OK) for path in servers):
        yield SlurmConfFinding(
            "sftp-server", " or ".join(servers), "no such program", _NO_START,
            "correct sftp_server in [mounts]" if named
            else "install OpenSSH's sftp-server (Debian: openssh-sftp-server; RHEL: openssh-server)",
        )  # fmt: skip
    if shutil.which("ssh") is None:
        yield SlurmConfFinding(
            "ssh", "OpenSSH's client", "no such program", _NO_START,
            "install it (Debian: openssh-client; RHEL: openssh-clients)",
        )  # fmt: skip


def _tree_findings(settings: Settings) -> Iterator[SlurmConfFinding]:
    """Trees with a path of their own for each user may be missing, as for users without a home."""
    for rule in settings.mounts.rules():
        if rule.per_user:
            continue
        try:
            found = "" if Path(rule.path).is_dir() else "no such directory"
        except PermissionError:
            continue  # Whoever asks may not see it.
        except OSError as error:
            found = error.strerror or "cannot be read"
        if found:
            yield SlurmConfFinding(
                f"mounts.trees.{rule.name}", f"a directory {rule.path} on the head", found, _NO_START,
                f"mount or make {rule.path}, or remove the tree",
            )  # fmt: skip


def _runs_as_root(settings: Settings) -> bool:
    """Whether burstd does, which then starts mount workers itself."""
    try:
        return settings.daemon.state_dir.stat().st_uid == 0
    except OSError:
        return True


def _socket_findings(path: Path) -> Iterator[SlurmConfFinding]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_TIMEOUT_S)
        try:
            sock.connect(str(path))
        except PermissionError:
            return
        except OSError as error:
            yield SlurmConfFinding(
                str(path), "the socket of burstd-mount-worker", error.strerror or str(error), _NO_START,
                "systemctl enable --now burstd-mount-worker.socket",
            )  # fmt: skip
