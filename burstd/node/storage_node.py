"""Makes a machine into a storage node: an ordinary user with a key of its own, a folder, room enough."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from burstd.domain.claim import Cause, Claim
from burstd.domain.cloud.offer import FabricTest, Pool
from burstd.domain.errors import NodeRefused
from burstd.domain.launch_failure import LaunchFault
from burstd.domain.missing_home import MissingHome
from burstd.domain.storage_node import StorageNodeAddress, StorageNodeSpec
from burstd.node.errors import HeadNotReady
from burstd.node.ssh.key_pair import KeyUnusable, ensure_ssh_key
from burstd.node.validator import SlurmNodeValidator

STORAGE_USER = "burst"
STORAGE_SSH_PORT = 22
_TIMEOUT_S = 60.0
_BYTES = re.compile(r"[0-9]{1,18}")
_SETUP_SCRIPT = """
user=$1 folder=$2 python=$3
command -v "$python" >/dev/null 2>&1 || exit 64
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 65
id -u "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh --password '*' "$user" || exit 66
home=$(getent passwd "$user" | cut -d: -f6)
umask 077
mkdir -p "$home/.ssh" && cat >"$home/.ssh/authorized_keys" && chown -R "$user": "$home/.ssh" || exit 66
umask 022
mkdir -p "$folder" && chown "$user": "$folder" && chmod 700 "$folder" || exit 67
df -PB1 "$folder" | awk 'NR == 2 { print $4 }'
"""


def storage_node_access(folder: Path, claim: Claim) -> StorageNodeAddress:
    """How a storage node that was proved is entered. ``folder``: where burstd keeps their keys. Raises KeyUnusable.

    The nodes' key is made where it is missing; what delivers the store's program lets it in there.
    """
    own = folder / claim.id
    nodes = own / "node_key"
    if not nodes.exists():
        ensure_ssh_key(nodes, comment=f"{claim.id}-nodes")
    return StorageNodeAddress(
        claim.address, STORAGE_SSH_PORT, STORAGE_USER, str(own / "key"), str(nodes), str(own / "known_hosts")
    )


class StorageNodeValidator:
    """Validates storage nodes; leaves all others to the validator of Slurm's nodes."""

    def __init__(
        self, nodes: SlurmNodeValidator, folder: Path, specs: Callable[[], Mapping[str, StorageNodeSpec]]
    ) -> None:
        """``specs``: by pool."""
        self._nodes = nodes
        self._folder = folder
        self._specs = specs

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        """Makes the machine a storage node; other claims go to the validator of Slurm nodes."""
        if claim.cause is not Cause.STORAGE:
            return self._nodes.validate(claim, pool, console, reached)
        spec = self._specs()[pool.name]
        with self._nodes.ssh_session(claim, console) as session:
            reached()
            # The head's alone. Nodes have another, which runs nothing but the store's program.
            line = f"restrict {self._storage_key(claim)}\n"
            done = session.script(
                _SETUP_SCRIPT, STORAGE_USER, spec.path, spec.python, input=line.encode("ascii"), timeout_s=_TIMEOUT_S
            )
            where = f"{claim.offer.id} gave a machine that cannot be a storage node:"
            refusals = {
                64: f"it has no {spec.python}: take an image with Python 3.11 or newer",
                65: f"its {spec.python} is older than 3.11: take an image with a newer one",
                66: f"the user {STORAGE_USER} could not be made: {done.last_line}",
                67: f"the folder {spec.path} could not be made: {done.last_line}",
            }
            if done.rc != 0:
                raise NodeRefused(f"{where} {refusals.get(done.rc, done.last_line)}")
            words = done.out.split()
            if not words or not _BYTES.fullmatch(words[-1]):
                raise NodeRefused(f"{where} it cannot say how much room it has: {done.last_line}", cause="disk")
            free = int(words[-1])
            if free < spec.free_bytes:
                raise NodeRefused(
                    f"{where} {spec.path} has {free >> 20} MiB free, and {spec.free_bytes >> 20} are wanted (free_gib)",
                    cause="disk",
                )
            self._write_known_hosts(claim, session.host_key)
        return f"{claim.address} has {spec.path} with {free >> 20} MiB free"

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        """A storage node has no slurmd; other claims start theirs."""
        self._nodes.start_slurmd(claim, pool, watch)

    def registration_fault(self, claim: Claim) -> str:
        """Of Slurm's nodes."""
        return self._nodes.registration_fault(claim)

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> LaunchFault | None:
        """Of Slurm's nodes."""
        return self._nodes.launch_fault(claim, number, held=held)

    def missing_homes(self) -> Sequence[MissingHome]:
        """Of Slurm's nodes."""
        return self._nodes.missing_homes()

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        """Of two of Slurm's nodes: storage nodes are in no gang."""
        return self._nodes.test_fabric(first, second, test)

    def probe(self, claim: Claim) -> None:
        """Raises where the machine does not answer."""
        self._nodes.probe(claim)

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """Forgets all other claims. Keys of machines that are gone go too."""
        self._nodes.retain_only(claim_ids)
        if self._folder.is_dir():
            for own in self._folder.iterdir():
                if own.name not in claim_ids:
                    shutil.rmtree(own)

    def alarms(self) -> list[str]:
        """What administrators should know now."""
        return self._nodes.alarms()

    def _storage_key(self, claim: Claim) -> str:
        try:
            return ensure_ssh_key(self._folder / claim.id / "key", comment=claim.id)
        except KeyUnusable as error:
            raise HeadNotReady(str(error)) from None

    def _write_known_hosts(self, claim: Claim, host_key: str) -> None:
        file = self._folder / claim.id / "known_hosts"
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            unfinished.write_text(f"{claim.address} {host_key}\n", encoding="ascii")
            unfinished.rename(file)
        except OSError as error:
            raise HeadNotReady(f"{file} cannot be written: {error.strerror}") from None
