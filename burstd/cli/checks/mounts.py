"""What [mounts] needs on the head beside slurm.conf: programs, the trees, the mount worker's socket."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from burstd.api.answers.base import current_user
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


def home_findings(settings: Settings) -> Iterator[SlurmConfFinding]:
    """Pools on whose nodes nothing is known to bring the directories in which users submit their jobs."""
    node, mounts, copied = settings.node, settings.mounts, set(settings.staging.workdir.partitions)
    without = [
        name for name, pool in settings.pools.items()
        if not (node.sentinels or mounts.sentinels(name) or copied.issuperset(pool.partitions))
        and not any(rule.is_shown_in(name) for rule in mounts.rules())
    ]  # fmt: skip
    if without:
        yield SlurmConfFinding(
            "home directories", f"shown on nodes of {', '.join(without)}, copied there, or known to be in the images",
            "not named in [mounts], [staging.workdir] or sentinels",
            "where the images lack them, an ordinary sbatch from a home directory fails there with exit code 0:53",
            'add home = { path = "{home}" } to [mounts.trees], or the partitions to [staging.workdir], or, where the '
            'images mount them, sentinels = ["/home"] to [node]',
            recommended=True,
        )  # fmt: skip


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


def mount_worker_findings(settings: Settings) -> Iterator[SlurmConfFinding]:
    """Whether this user reaches the mount worker; root, as burstd, starts it itself."""
    if not settings.mounts.rules() or os.geteuid() == 0:
        return
    path = settings.mount_worker_socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_CONNECT_TIMEOUT_S)
        try:
            sock.connect(str(path))
        except OSError as error:
            remedy = "systemctl enable --now burstd-mount-worker.socket"
            if isinstance(error, PermissionError):
                remedy = f"set SocketUser={current_user()} in burstd-mount-worker.socket and restart it"
            yield SlurmConfFinding(
                str(path), "the socket of burstd-mount-worker", error.strerror or str(error), _NO_START, remedy
            )
