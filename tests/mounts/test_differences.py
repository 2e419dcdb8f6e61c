"""What is the same in a mounted tree as at home, and what differs: the table of docs/user.md."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from burstd.domain.claim import Claim
from burstd.domain.mounts import MountedTree
from providers.sandbox.boxes.box import Box
from tests.mounts.rig import ADA, BOB, MountSite, as_user, in_node

pytestmark = pytest.mark.boxes

# Each line is a fact and what a program on the node finds; OSErrors are named.
PROGRAM = r"""
import errno, fcntl, mmap, os, socket, stat, sys
os.chdir(sys.argv[1])
def put(name, data=b"x"):
    with open(name, "wb") as file:
        file.write(data)
    return name
def memory():
    put("mapped", bytes(8192))
    with open("mapped", "r+b") as file, mmap.mmap(file.fileno(), 8192) as shared:
        shared[:3] = b"new"
        shared.flush()
    return open("mapped", "rb").read(3)
def over():
    put("new", b"2"); put("old", b"1"); os.rename("new", "old")
    return open("old", "rb").read()
def removed():
    with open(put("unlinked"), "rb") as file:
        os.unlink("unlinked")
        return file.read()
def linked():
    os.link(put("one"), "two")
    return os.stat("one").st_nlink, os.path.samefile("one", "two"), open("two").read()
def times():
    os.utime(put("timed"), ns=(0, 1_500_000_000))
    return os.stat("timed").st_mtime_ns
def locked(lock):
    with open(put("locked"), "r+b") as one:
        lock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
def mode(bits):
    os.chmod(put("mode"), bits)
    return oct(stat.S_IMODE(os.stat("mode").st_mode))
def bound():
    socket.socket(socket.AF_UNIX).bind("socket")
FACTS = {
    "shared mapping": memory, "rename over a file": over, "open after removal": removed, "hard link": linked,
    "link anywhere": lambda: (os.symlink("/etc/hostname", "link"), len(open("link").read()) > 0)[1],
    "chmod": lambda: mode(0o4751), "chgrp": lambda: (os.chown(put("group"), -1, 61010), os.stat("group").st_gid)[1],
    "time in nanoseconds": times, "flock": lambda: locked(fcntl.flock), "fcntl lock": lambda: locked(fcntl.lockf),
    "O_EXCL": lambda: os.open(put("there"), os.O_CREAT | os.O_EXCL),
    "named pipe": lambda: os.mkfifo("pipe"), "unix socket": bound,
    "extended attribute": lambda: os.setxattr(put("attribute"), "user.a", b"1"),
    "O_TMPFILE": lambda: os.open(".", os.O_TMPFILE | os.O_RDWR), "name of 256": lambda: put("n" * 256),
    "name that is no UTF-8": lambda: put(b"\xff") in os.listdir(b"."),
    "preallocation": lambda: os.posix_fallocate(os.open("room", os.O_RDWR | os.O_CREAT), 0, 1000),
}
for name, find in FACTS.items():
    try:
        found = find()
    except OSError as error:
        found = errno.errorcode[error.errno]
    print(f"{name}: {found}")
"""
FOUND = """\
shared mapping: b'new'
rename over a file: b'2'
open after removal: b'x'
hard link: (1, False, 'x')
link anywhere: True
chmod: 0o4751
chgrp: 61010
time in nanoseconds: 1000000000
flock: True
fcntl lock: True
O_EXCL: EEXIST
named pipe: EPERM
unix socket: EPERM
extended attribute: ENOTSUP
O_TMPFILE: ENOTSUP
name of 256: EBADMSG
name that is no UTF-8: True
preallocation: None
"""
FULL = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for act in (lambda: [os.write(file, bytes(65536)) for _ in range(40)], lambda: os.fsync(file)):
    try:
        act()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.fixture(scope="module")
def mounted(site: MountSite, node: tuple[Box, Claim]) -> Iterator[Box]:
    box, claim = node
    site.streams.start(claim, ADA, [site.tree(ADA)])
    yield box
    site.streams.stop(claim, claim.id, ADA.uid)


def test_what_a_program_finds(site: MountSite, mounted: Box) -> None:
    assert mounted.run(as_user(ADA, "python3", "-c", PROGRAM, str(site.home(ADA)))).stdout == FOUND


def test_programs_and_a_virtual_environment_run_from_there(site: MountSite, mounted: Box) -> None:
    home = site.home(ADA)
    script = f"python3 -m venv --without-pip {home}/venv && {home}/venv/bin/python -c 'import sys; print(sys.prefix)'"
    assert in_node(mounted, ADA, script).stdout == f"{home}/venv\n"


def test_a_lock_is_not_seen_by_another_node(site: MountSite, node: tuple[Box, Claim], mounted: Box) -> None:
    other, claim = site.boot("other", "10.77.1.3")
    site.streams.start(claim, ADA, [site.tree(ADA)])
    try:
        # A lock is there as long as standard input is open.
        holding = ["flock", "-n", str(site.home(ADA) / "held"), "sh", "-c", "echo holds; cat"]
        with mounted.popen(as_user(ADA, *holding), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holds:
            assert holds.stdout is not None
            assert holds.stdout.readline() == b"holds\n"
            for box, status in ((mounted, 1), (other, 0)):
                assert in_node(box, ADA, f"flock -n {site.home(ADA)}/held true", check=False).returncode == status
            holds.communicate()
    finally:
        site.streams.stop(claim, claim.id, ADA.uid)
        other.stop()


def test_what_is_mounted_at_home_later_on_appears(site: MountSite, node: tuple[Box, Claim]) -> None:
    box, claim = node
    top = site.trees / "automounted"
    top.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(top)], check=True)
    try:
        subprocess.run(["mount", "--make-shared", str(top)], check=True)
        (top / "later").mkdir()
        site.streams.start(claim, BOB, [MountedTree(str(top), read_only=False)])
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(top / "later")], check=True)
        (top / "later" / "file").write_text("x")
        assert in_node(box, BOB, f"cat {top}/later/file").stdout == "x"
        site.streams.stop(claim, claim.id, BOB.uid)
    finally:
        subprocess.run(["umount", "-l", str(top)], check=True)


def test_a_full_home(site: MountSite, node: tuple[Box, Claim]) -> None:
    """SFTP has no word for it: EIO, where it would be ENOSPC or EDQUOT at home."""
    box, claim = node
    full = site.trees / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=1m,uid={BOB.uid}", "tmpfs", str(full)], check=True)
    try:
        site.streams.start(claim, BOB, [MountedTree(str(full), read_only=False)])
        assert box.run(as_user(BOB, "python3", "-c", FULL, f"{full}/large")).stdout == "EIO\nEIO\n"
        assert in_node(box, BOB, f"df --output=avail {full}").stdout.split() == ["Avail", "0"]
        assert "Input/output error" in in_node(box, BOB, f"cp /bin/sh {full}/copy", check=False).stderr
        assert os.path.getsize(full / "large") <= 1 << 20  # noqa: PTH202 - of a mount
        site.streams.stop(claim, claim.id, BOB.uid)
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
