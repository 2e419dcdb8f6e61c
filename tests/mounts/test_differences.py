"""What is the same in a mounted tree as at home, and what differs: the table of docs/user.md."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator

import pytest

from burstd.domain.claim import Claim
from burstd.domain.mounts import MountedTree
from providers.sandbox.boxes.box import Box
from tests.mounts.rig import ADA, BOB, MountSite, as_user, in_node

pytestmark = pytest.mark.boxes
Node = tuple[Box, Claim]

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
def umasked():
    os.umask(0o027)
    return oct(stat.S_IMODE(os.stat(put("masked")).st_mode))
def below_setgid():
    os.mkdir("group-dir"); os.chown("group-dir", -1, 61010); os.chmod("group-dir", 0o2770)
    return os.stat(put("group-dir/file")).st_gid
def bound():
    socket.socket(socket.AF_UNIX).bind("socket")
FACTS = {
    "shared mapping": memory, "rename over a file": over, "open after removal": removed, "hard link": linked,
    "link anywhere": lambda: (os.symlink("/etc/hostname", "link"), len(open("link").read()) > 0)[1],
    "umask": umasked, "setgid directory": below_setgid,
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
umask: 0o640
setgid directory: 61010
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
LOCK = """
import fcntl, sys
fcntl.{}(file := open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"""
APPEND = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print("open", flush=True); sys.stdin.read()
for number in range(500):
    os.write(file, b"%s %d %s\\n" % (sys.argv[2].encode(), number, b"x" * (number % 7 * 9000)))
"""
# How many packets it takes to read all files of a directory, once more, and one that is open as often.
OPEN = """
import os, sys
os.chdir(sys.argv[1])
def packets():
    return int(open("/proc/net/dev").read().partition("eth0:")[2].split()[9])
counts = [packets()]
for _ in range(2):
    for name in os.listdir():
        with open(name) as file:
            assert file.read() == "x"
    counts.append(packets())
with open("0") as file:
    for _ in range(200):
        file.seek(0)
        assert file.read() == "x"
counts.append(packets())
print(*[after - before for before, after in zip(counts, counts[1:])])
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
def mounted(site: MountSite, node: Node) -> Iterator[Box]:
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


@pytest.fixture(scope="module")
def grown(site: MountSite, mounted: Box) -> str:
    """A file that has grown at home since the node has seen it."""
    file = site.home(ADA) / "grown"
    file.write_text("one\n")
    assert in_node(mounted, ADA, f"cat {file}").stdout == "one\n"
    with file.open("a") as more:
        more.write("two\n")
    return str(file)


def test_what_changes_at_home_is_seen_when_it_is_opened(site: MountSite, mounted: Box, grown: str) -> None:
    home = site.home(ADA)
    assert in_node(mounted, ADA, f"stat -c %s {grown}").stdout == "4\n", "its size is known for a while"
    known, new = home / "known", home / "new-at-home"
    known.write_text("one\n")
    assert in_node(mounted, ADA, f"cat {known}; ls {home} >/dev/null; cat {new}", check=False).stdout == "one\n"
    known.write_text("one\ntwo\n")
    new.write_text("new\n")
    assert in_node(mounted, ADA, f"cat {known} {new}").stdout == "one\ntwo\nnew\n"


@pytest.fixture(scope="module")
def other(site: MountSite) -> Iterator[Box]:
    """A second node, with the same home."""
    box, claim = site.boot("other", "10.77.1.3")
    site.streams.start(claim, ADA, [site.tree(ADA)])
    yield box
    site.streams.stop(claim, claim.id, ADA.uid)
    box.stop()


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_lock_is_not_seen_by_another_node(site: MountSite, mounted: Box, other: Box, kind: str) -> None:
    file = str(site.home(ADA) / kind)
    # A lock is there as long as standard input is open.
    holding = ["python3", "-c", f"{LOCK.format(kind)}; print('holds', flush=True); sys.stdin.read()", file]
    with mounted.popen(as_user(ADA, *holding), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holds:
        assert holds.stdout is not None
        assert holds.stdout.readline() == b"holds\n"
        for box, said in ((mounted, "BlockingIOError"), (other, "")):
            tried = box.run(as_user(ADA, "python3", "-c", LOCK.format(kind), file), check=False)
            assert tried.stderr.strip().rpartition("\n")[2].partition(":")[0] == said
        holds.communicate()


def test_lines_that_two_nodes_append_may_break_and_no_byte_is_lost(site: MountSite, mounted: Box, other: Box) -> None:
    file = site.home(ADA) / "appended"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    jobs = [
        box.popen(as_user(ADA, "python3", "-c", APPEND, str(file), who), **pipes)  # type: ignore[arg-type]
        for box, who in ((mounted, "1"), (other, "2"))
    ]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == b"open\n"
    for job in jobs:
        assert job.stdin is not None
        job.stdin.close()
    assert [job.wait(60) for job in jobs] == [0, 0]
    for job in jobs:
        assert job.stdout is not None
        job.stdout.close()
    written = [b"%d %d %s\n" % (who, n, b"x" * (n % 7 * 9000)) for who in (1, 2) for n in range(500)]
    found = file.read_bytes()
    assert sorted(found) == sorted(b"".join(written))
    assert set(found.splitlines(keepends=True)) - set(written)


def test_a_file_that_is_opened_again_is_asked_for_again(site: MountSite, mounted: Box) -> None:
    """Many small files are slow: each open goes to the head and back, though what they hold is on the node."""
    folder = site.home(ADA) / "small"
    folder.mkdir()
    for number in range(200):
        (folder / str(number)).write_text("x")
    said = mounted.run(as_user(ADA, "python3", "-c", OPEN, str(folder))).stdout
    opened, again, read = map(int, said.split())
    assert opened >= 200
    assert again >= 200
    assert read < 50


def test_what_an_acl_grants_is_refused_and_what_it_denies_is_denied(site: MountSite, node: Node, mounted: Box) -> None:
    box, claim = node
    shared = site.trees / "acl"
    shared.mkdir(mode=0o755)
    for name, mode, bits in (("granted", 0o600, 6), ("denied", 0o644, 0)):
        (shared / name).write_text(name)
        (shared / name).chmod(mode)
        entries = [(1, 6, -1), (2, bits, BOB.uid), (4, mode >> 3 & 7, -1), (16, 6, -1), (32, mode & 7, -1)]
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        os.setxattr(shared / name, "system.posix_acl_access", acl)
    at_home = ["cat", str(shared / "granted"), str(shared / "denied")]
    there = subprocess.run(as_user(BOB, *at_home), capture_output=True, text=True, check=False)
    assert (there.stdout, there.stderr.count("denied")) == ("granted", 2)
    site.streams.start(claim, BOB, [MountedTree(str(shared))])
    try:
        here = box.run(as_user(BOB, *at_home), check=False)
        assert (here.stdout, here.stderr.count("Permission denied")) == ("", 2)
    finally:
        site.streams.stop(claim, claim.id, BOB.uid)


def test_what_is_mounted_at_home_later_on_appears(site: MountSite, node: Node) -> None:
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


def test_a_full_home(site: MountSite, node: Node) -> None:
    """SFTP has no word for it: EIO, where it would be ENOSPC or EDQUOT at home, from a write or from fsync."""
    box, claim = node
    full = site.trees / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=1m,uid={BOB.uid}", "tmpfs", str(full)], check=True)
    try:
        site.streams.start(claim, BOB, [MountedTree(str(full), read_only=False)])
        assert box.run(as_user(BOB, "python3", "-c", FULL, f"{full}/large")).stdout in ("EIO\n", "EIO\nEIO\n")
        assert in_node(box, BOB, f"df --output=avail {full}").stdout.split() == ["Avail", "0"]
        # The shell hears of it when it closes the file, and does not listen.
        in_node(box, BOB, f"echo x >{full}/small && ! test -s {full}/small")
        assert "Input/output error" in in_node(box, BOB, f"echo x | dd of={full}/s conv=fsync", check=False).stderr
        assert "Input/output error" in in_node(box, BOB, f"cp /bin/sh {full}/copy", check=False).stderr
        assert os.path.getsize(full / "large") <= 1 << 20  # noqa: PTH202 - of a mount
        site.streams.stop(claim, claim.id, BOB.uid)
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


def test_a_changed_size_is_seen_in_the_end(mounted: Box, grown: str) -> None:
    """The last one of this file: meanwhile the 20 s pass."""
    mounted.wait(lambda box: in_node(box, ADA, f"stat -c %s {grown}").stdout == "8\n", 60, "seen")
