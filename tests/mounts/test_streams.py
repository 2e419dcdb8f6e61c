"""A user's trees on a node: rights, several users, ends, and what is refused."""

from __future__ import annotations

import pytest

from burstd.domain.claim import Claim
from providers.sandbox.boxes.box import Box
from tests.mounts.rig import ADA, BOB, MountSite, in_node

pytestmark = pytest.mark.boxes


def test_a_closed_home_is_its_users_alone_and_is_gone_afterwards(site: MountSite, node: tuple[Box, Claim]) -> None:
    box, claim = node
    home = site.home(ADA)
    site.streams.start(claim, ADA, [site.tree(ADA)])
    assert site.new_streams().alive() == {(claim.id, ADA.uid): (site.tree(ADA),)}
    site.streams.start(claim, ADA, [site.tree(ADA)])  # stands already
    in_node(box, ADA, f"cd {home}; umask 027; echo one > log; echo two >> log; mkdir deep; chmod 2775 deep")
    assert (home / "log").read_text() == "one\ntwo\n"
    facts = [(home / name).stat() for name in ("log", "deep")]
    assert [(f.st_uid, f.st_gid, oct(f.st_mode & 0o7777)) for f in facts] == [
        (ADA.uid, ADA.gid, "0o640"),
        (ADA.uid, ADA.gid, "0o2775"),
    ]
    assert "Permission denied" in in_node(box, BOB, f"ls {home}", check=False).stderr
    site.streams.stop(claim, claim.id, ADA.uid)
    assert site.streams.alive() == {}
    assert list((site.folder / "streams").iterdir()) == []
    left = in_node(
        box,
        None,
        f"ls -d {site.trees}; ls /run/burstd/mounts; grep fuse /proc/self/mountinfo; pgrep sshfs",
        check=False,
    )
    assert left.stdout == ""
    assert (home / "log").exists()
