"""A node in a box, users with homes on this machine, which is the head, and streams between them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.mounts import MountedTree
from burstd.domain.slurm.shape import Shape
from burstd.mounts.streams import MountStreams
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys, parse_console_host_keys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.transfer.privsep.errors import Account
from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.node.conftest import on_network

ADA = Account("ada", 61001, 61001, (61001, 61010), "/home/ada")
BOB = Account("bob", 61002, 61002, (61002,), "/home/bob")
NOBODY = Account("nobody", 65534, 65534, (65534,), "/")
ADDRESS = "10.77.1.1"


class MountSite:
    """``trees``: a folder of this machine whose parts nodes are shown; homes in it belong to ADA and BOB."""

    def __init__(self, lab: Lab, folder: Path, trees: Path, release: str = "bookworm") -> None:
        self.lab = lab
        self.folder = folder
        self.trees = trees
        self.line_timeout_s = 300.0
        self.release = release
        key = folder / "id_ed25519"
        self._public = ensure_ssh_key(key)
        self.config = ValidatorConfig(key, folder / "host_keys", folder / "munge.key", "")
        self.validator = SlurmNodeValidator(self.config, slurm_version=lambda: (22, 5), wall=lambda: 0.0)
        self.streams = self.new_streams()

    @classmethod
    def of_a_child(cls, folders: str) -> MountSite:
        """The same site in a process that burstd is: ``FOLDER:TREES``."""
        folder, trees = map(Path, folders.split(":"))
        lab = Lab.open(folder / "lab")
        assert lab is not None
        return cls(lab, folder, trees)

    def make_homes(self) -> None:
        """Closed homes of both users."""
        for who in (ADA, BOB):
            home = self.home(who)
            home.mkdir(mode=0o700)
            os.chown(home, who.uid, who.gid)

    def home(self, who: Account) -> Path:
        """The user's own directory on the head, and on nodes that show it."""
        return self.trees / who.user

    def tree(self, who: Account, *, read_only: bool = False) -> MountedTree:
        """The home as a tree."""
        return MountedTree(str(self.home(who)), read_only)

    def new_streams(self) -> MountStreams:
        """As burstd has them when it is started again."""
        return MountStreams(
            folder=self.folder / "streams", config=lambda: self.validator.config, connect=self.validator.connect,
            line_timeout_s=lambda: self.line_timeout_s,
        )  # fmt: skip

    def boot(self, name: str = "node", address: str = ADDRESS) -> tuple[Box, Claim]:
        """A node, with the claim whose machine it is."""
        files = [BoxFile("/root/.ssh/authorized_keys", self._public + "\n", 0o600)]
        box = self.lab.start(BoxSpec(name, address, [ensure_rootfs(self.release).path], files=files, disk_mib=512))
        box.wait(lambda b: b.booted and bool(parse_console_host_keys(b.console())), 60, "booted")
        keys = parse_console_host_keys(box.console())
        claim = claim_of(name, address)
        HostKeyFiles(self.config.host_keys_dir).save_keys(claim.id, HostKeys(HostKeyPolicy.CONSOLE, keys))
        return box, claim


OFFER = Offer("sandbox", "lab", "a", "small", False, Shape(4, 4000), Decimal(1))


def claim_of(name: str, address: str) -> Claim:
    """The claim of a node."""
    return Claim(f"c-{name}", "lab", "gpu", name, OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0, address=address)


def as_user(who: Account, *words: str) -> list[str]:
    """A command with a user's numbers, which need no account on the node. It ends with its parent."""
    groups = ",".join(str(group) for group in who.groups)
    return ["setpriv", f"--reuid={who.uid}", f"--regid={who.gid}", f"--groups={groups}", "--pdeathsig=KILL", *words]


def in_node(
    box: Box, who: Account | None, script: str, *, check: bool = True, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Runs a shell script on a node with a user's numbers; None: as root."""
    words = ["sh", "-c", script]
    if who is not None:
        words = as_user(who, *words)
    return box.run(words, check=check, timeout=timeout)


@contextmanager
def mount_site() -> Iterator[MountSite]:
    """A site whose lab's network the calling thread is on."""
    folder = Path(tempfile.mkdtemp(prefix="burst-mounts-"))
    trees = Path(tempfile.mkdtemp(prefix="burst-trees-", dir="/srv"))
    trees.chmod(0o755)
    lab = Lab(folder / "lab", LabNetwork(f"m{secrets.token_hex(4)}"))
    try:
        lab.up()
        assert lab.network.hub is not None
        with on_network(lab.network.hub):
            site = MountSite(lab, folder, trees)
            site.make_homes()
            yield site
    finally:
        lab.down()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(trees)


def alive(streams: MountStreams) -> dict[tuple[str, int], tuple[MountedTree, ...]]:
    """The streams that last, and their trees."""
    return {key: stream.trees for key, stream in streams.streams().items() if not stream.ended}
