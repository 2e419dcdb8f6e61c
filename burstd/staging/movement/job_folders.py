"""Where a job's data lies on its nodes: a name that nobody can foretell, so that nobody can take it before.

On premises all users make their folders in one directory. Who knew the names could make the folders of jobs to come.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path

from burstd.domain.errors import BurstdError
from burstd.domain.staging import Staging
from burstd.node.ssh.key_pair import write_new_file
from burstd.staging.volumes.node_mounts import job_volumes_path
from burstd.transfer.privsep.client import UserWorker, UserWorkerError

_SUFFIX_CHARS = 16
"""Of 4 bits each."""
_KEY_BYTES = 32


class FolderKeyUnusable(BurstdError):
    """The key of the names cannot be made or read, or others may read it."""


@dataclass(frozen=True, slots=True)
class JobFolders:
    """``parent`` is staging's job_dir; ``key`` is secret and has to stay the same while jobs run."""

    parent: str
    key: bytes = field(repr=False)

    def folder_path(self, job_id: str) -> str:
        """The folder of a job, the same on all of its nodes."""
        drawn = hmac.new(self.key, job_id.encode(), hashlib.sha256).hexdigest()[:_SUFFIX_CHARS]
        return f"{self.parent}/{job_id}-{drawn}"

    def legacy_folder_path(self, job_id: str) -> str:
        """The name that a burstd gave which drew none: a job that such a one has started has it still."""
        return f"{self.parent}/{job_id}"

    def existing_folder_path(self, worker: UserWorker, uid: int, job_id: str) -> str:
        """The folder on this machine: that of the older name only where it is the owner's, ``uid``.

        Raises UserWorkerError.
        """
        path, legacy_path = self.folder_path(job_id), self.legacy_folder_path(job_id)
        try:
            current_facts, legacy_facts = worker.file_facts(
                self.parent, [path.rpartition("/")[2], legacy_path.rpartition("/")[2]]
            )
        except UserWorkerError as error:
            if error.errno == ENOENT:
                return path
            raise
        is_owners = legacy_facts is not None and legacy_facts.kind == "d" and legacy_facts.uid == uid
        return legacy_path if is_owners and current_facts is None else path

    def job_environment(self, job_id: str, row: Staging | None = None) -> dict[str, str]:
        """What a job finds in its environment, the same everywhere; ``row``: its data, where it is on record."""
        home = self.folder_path(job_id)
        found = {"BURST_IN": f"{home}/in", "BURST_OUT": f"{home}/out", "BURST_SCRATCH": f"{home}/scratch"}
        if row is not None and row.directives.checkpoint is not None:
            found["BURST_CHECKPOINT"] = f"{home}/out/{row.checkpoints[-1].path}" if row.checkpoints else ""
        if row is not None and row.directives.shared_scratch_bytes is not None:
            found["BURST_SHARED"] = shared_scratch_path(home)
        if row is not None and row.directives.volume is not None:
            found["BURST_VOLUMES"] = job_volumes_path(job_id)
        return found


def shared_scratch_path(folder: str) -> str:
    """The directory that all nodes of a job share, beside its folder: there only root can put something in its place.

    As burstd.transfer.agent.shared_scratch has it.
    """
    return f"{folder}.shared"


def folder_key(path: Path) -> bytes:
    """The key in a file of mode 0600, which is made where it is missing. Raises FolderKeyUnusable."""
    try:
        if not path.exists():
            write_new_file(path, secrets.token_bytes(_KEY_BYTES), 0o600)
        mode, key = stat.S_IMODE(path.stat().st_mode), path.read_bytes()
    except OSError as error:
        raise FolderKeyUnusable(f"{path}, which names the folders of jobs, cannot be read: {error.strerror}") from None
    if mode & 0o077 or len(key) != _KEY_BYTES:
        raise FolderKeyUnusable(
            f"{path}, which names the folders of jobs, has mode {mode:04o} and {len(key)} bytes, not 0600 and "
            f"{_KEY_BYTES}: chmod 600 it, or put it back from a backup"
        )
    return key
