"""A user's trees on a node: rights, several users, ends, cut lines, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady, NodeRefused
from burstd.domain.mounts import MountedTree, SilentLine
from burstd.mounts.silent_lines import SilentLines
from burstd.transfer.privsep.errors import UserWorkerError
from providers.sandbox.boxes.box import Box
from tests.lab.boxes import line_cut
from tests.lab.patience import patience_s
from tests.mounts.rig import ADA, BOB, NOBODY, MountSite, alive, as_user, in_node

pytestmark = pytest.mark.boxes
Node = tuple[Box, Claim]


@pytest.fixture(autouse=True)
def nothing_left(site: MountSite, node: Node) -> Iterator[None]:
    """After each test all is unmounted, and nothing is left on either side."""
    yield
    box, claim = node
    for who in (ADA, BOB, NOBODY):
        site.streams.stop(claim, claim.id, who.uid)
    assert alive(site.streams) == {}
    assert list((site.folder / "streams").iterdir()) == []
    looking = f"ls -d {site.trees}; ls /run/burstd/mounts; grep fuse /proc/self/mountinfo; pgrep sshfs"
    assert in_node(box, None, looking, check=False).stdout == ""
    assert not processes(site)


def processes(site: MountSite, name: str = "") -> list[int]:
    """Those of streams on the head: this machine's sftp-servers and ssh of this site."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
            root = (directory / "root").readlink()
            mounts = (directory / "mountinfo").read_text()
        except OSError:
            continue
        ours = str(site.folder) in b" ".join(words).decode("utf-8", "replace") and words[0] == b"ssh"
        served = words[0].endswith(b"sftp-server") and str(site.trees) in mounts and root == Path("/")
        if (ours and name in ("", "ssh")) or (served and name in ("", "sftp-server")):
            found.append(int(directory.name))
    return found


def worker_pid(site: MountSite, claim: Claim) -> int:
    return int(json.loads((site.folder / "streams" / f"{claim.id}.{ADA.uid}").read_text())["pid"])


def wait(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_closed_home_is_its_users_alone(site: MountSite, node: Node) -> None:
    box, claim = node
    home = site.home(ADA)
    site.streams.start(claim, ADA, [site.tree(ADA)])
    assert alive(site.new_streams()) == {(claim.id, ADA.uid): (site.tree(ADA),)}
    site.streams.start(claim, ADA, [site.tree(ADA)])  # stands already
    in_node(box, ADA, f"cd {home}; umask 027; echo one > log; echo two >> log; mkdir deep; chmod 2775 deep")
    assert (home / "log").read_text() == "one\ntwo\n"
    facts = [(home / name).stat() for name in ("log", "deep")]
    assert [(f.st_uid, f.st_gid, oct(f.st_mode & 0o7777)) for f in facts] == [
        (ADA.uid, ADA.gid, "0o640"),
        (ADA.uid, ADA.gid, "0o2775"),
    ]
    assert "Permission denied" in in_node(box, BOB, f"ls {home}", check=False).stderr
    in_node(box, ADA, f"ln -s /etc/hostname {home}/link; grep -q . {home}/link; cp /bin/true {home}/; {home}/true")


def test_users_stand_beside_each_other_with_their_own_rights(site: MountSite, node: Node) -> None:
    box, claim = node
    shared, software = site.trees / "shared", site.trees / "software"
    for folder, mode, gid in ((shared, 0o2770, 61010), (software, 0o755, 0)):
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, 0, gid)
        folder.chmod(mode)
    (software / "tool").write_text("#!/bin/sh\necho runs\n")
    (software / "tool").chmod(0o755)
    (software / "closed").write_text("secret")
    (software / "closed").chmod(0o600)
    with pytest.raises(UserWorkerError, match="trees that everybody may read are shown read-only"):
        site.streams.start(claim, NOBODY, [MountedTree(str(software), read_only=False)])
    site.streams.start(claim, NOBODY, [MountedTree(str(software), read_only=True)])
    site.streams.start(claim, ADA, [site.tree(ADA), MountedTree(str(shared), read_only=False)])
    site.streams.start(claim, BOB, [site.tree(BOB, read_only=True)])
    assert len(processes(site, "sftp-server")) == len(processes(site, "ssh")) == 3
    for who in (ADA, BOB):
        assert in_node(box, who, f"{software}/tool").stdout == "runs\n"
        assert "Read-only" in in_node(box, who, f"touch {software}/x", check=False).stderr
    # By a group that only ADA is in; the group of the directory goes on to what is made there.
    in_node(box, ADA, f"echo ours > {shared}/result")
    assert ((shared / "result").stat().st_uid, (shared / "result").stat().st_gid) == (ADA.uid, 61010)
    assert "Permission denied" in in_node(box, BOB, f"cat {shared}/result", check=False).stderr
    assert "Read-only" in in_node(box, BOB, f"touch {site.home(BOB)}/x", check=False).stderr
    # Root of the node has what the user has, and no more.
    for path in (software / "closed", site.home(BOB) / ".." / ".." / "etc" / "shadow"):
        assert in_node(box, None, f"cat /run/burstd/mounts/{NOBODY.uid}{path}", check=False).stdout == ""
    with pytest.raises(NodeNotReady, match="and jobs there use them"):
        site.streams.start(claim, ADA, [site.tree(ADA), MountedTree(str(software), read_only=True)])


def test_what_is_read_only_on_the_head_stays_so(site: MountSite, node: Node) -> None:
    box, claim = node
    home = site.home(ADA)
    itself, below, shown = site.trees / "itself", home / "below", site.trees / "shown"
    with ExitStack() as mounts:

        def mount(path: Path, *words: str) -> None:
            path.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"uid={ADA.uid}", "tmpfs", str(path)], check=True)
            mounts.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            if words:
                subprocess.run(["mount", *words, str(path)], check=True)

        mount(itself, "-o", "remount,bind,ro")
        mount(below, "-o", "remount,bind,ro,noexec")
        mount(shown, "--make-shared")
        later = shown / "later"
        later.mkdir()
        os.chown(later, ADA.uid, ADA.gid)
        trees = [site.tree(ADA), MountedTree(str(itself)), MountedTree(str(shown), read_only=True)]
        site.streams.start(claim, ADA, trees)
        in_node(box, ADA, f"touch {home}/written")
        (server,) = processes(site, "sftp-server")
        (line,) = [x for x in Path(f"/proc/{server}/mountinfo").read_text().splitlines() if f" {below} " in x]
        assert {"ro", "noexec", "nosuid", "nodev"} <= set(line.split()[5].split(","))
        mount(later)
        for folder in (itself, below, shown, later):
            # Root of the node goes round the node's own read-only flag.
            in_node(box, None, f"mkdir /run/burstd/mounts/{ADA.uid}{folder}/x", check=False)
            assert list(folder.glob("x")) == []
        site.streams.stop(claim, claim.id, ADA.uid)


# In the place of sshfs: a root of the node who speaks SFTP by hand. Version 3, one request at a time.
BY_HAND = r"""#!/usr/bin/python3
import json, struct, sys
if "-h" in sys.argv: sys.exit()
def send(kind, *fields):
    body = bytes([kind]) + b"".join(f if isinstance(f, bytes) else struct.pack(">I", f) for f in fields)
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body); sys.stdout.buffer.flush()
    size = struct.unpack(">I", sys.stdin.buffer.read(4))[0]
    return sys.stdin.buffer.read(size)
def text(word): return struct.pack(">I", len(word.encode())) + word.encode()
def names(answer):
    if answer[0] != 104: return []
    count, at, found = struct.unpack(">I", answer[5:9])[0], 9, []
    for _ in range(count):
        for part in range(2):
            size = struct.unpack(">I", answer[at:at + 4])[0]
            if part == 0: found.append(answer[at + 4:at + 4 + size].decode())
            at += 4 + size
        flags, at = struct.unpack(">I", answer[at:at + 4])[0], at + 4
        at += 8 * (flags & 1) + 8 * (flags >> 1 & 1) + 4 * (flags >> 2 & 1) + 8 * (flags >> 3 & 1)
    return found
def listed(path):
    opened = send(11, 1, text(path))
    found = []
    while opened[0] == 102 and (some := names(send(12, 1, opened[5:]))): found += some
    return sorted(set(found) - {".", ".."})
def read(path):
    opened = send(3, 1, text(path), 1, 0)
    answer = send(5, 1, opened[5:], 0, 0, 4096) if opened[0] == 102 else b"\0"
    return answer[9:].decode(errors="replace") if answer[0] == 103 else None
send(1, 3)
home, other = sys.argv[1], sys.argv[2]
send(20, 1, text("/"), text(home + "/up"))
send(20, 1, text("../../../../../../.."), text(home + "/far"))
found = {
    "roots": {path: listed(path) for path in ("/", "/..", home + "/../../../..", home + "/up", home + "/far")},
    "trees": listed(home + "/.."),
    "read": {path: read(path) for path in (
        "/etc/passwd", "/etc/shadow", "/../../etc/shadow", home + "/up/etc/shadow", home + "/far/etc/hostname",
        "/proc/1/root/etc/shadow", "/proc/self/environ", "/proc/1/cmdline", "/dev/vda", "/dev/mem",
        "/root/.ssh/id_rsa", other + "/secret", home + "/../bob/secret", home + "/mine")},
    "written": {path: send(3, 1, text(path), 0x1a, 0)[0] == 102 for path in (
        "/x", "/usr/lib/x", "/etc/x", "/etc/passwd", "/dev/x", home + "/../x", home + "/x")},
}
open("/root/found", "w").write(json.dumps(found))
"""


def test_root_of_a_node_who_speaks_sftp_by_hand_reaches_the_trees_only(site: MountSite, node: Node) -> None:
    box, claim = node
    home, other = site.home(ADA), site.home(BOB)
    (home / "mine").write_text("mine")
    (other / "secret").write_text("secret")
    (other / "secret").chmod(0o644)
    box.run(["mv", "/usr/bin/sshfs", "/usr/bin/sshfs.real"])
    try:
        program = BY_HAND.replace("sys.argv[1], sys.argv[2]", f"{str(home)!r}, {str(other)!r}")
        box.path("/usr/bin/sshfs").write_text(program)
        box.path("/usr/bin/sshfs").chmod(0o755)
        with pytest.raises(NodeNotReady, match="sshfs has ended on the node before its trees were there"):
            site.streams.start(claim, ADA, [site.tree(ADA)])
        found = json.loads(box.path("/root/found").read_text())
    finally:
        box.run(["mv", "/usr/bin/sshfs.real", "/usr/bin/sshfs"])
    inside = {"dev", "etc", "lib", "lib64", "srv", "usr"}
    assert set(found["roots"].pop("/")) <= inside
    assert all(set(names) <= inside for names in found["roots"].values()), found["roots"]
    assert found["trees"] == ["ada"]
    account = f"user:x:{ADA.uid}:{ADA.gid}::/:/\n"
    assert {path: text for path, text in found["read"].items() if text is not None} == {
        "/etc/passwd": account,
        f"{home}/mine": "mine",
    }
    assert [path for path, written in found["written"].items() if written] == [f"{home}/x"]


@pytest.mark.parametrize("which", ["sftp-server", "ssh", "worker", "sshfs"])
def test_a_stream_ends_as_a_whole_and_can_begin_again(site: MountSite, node: Node, which: str) -> None:
    box, claim = node
    home = site.home(ADA)
    site.streams.start(claim, ADA, [site.tree(ADA)])
    if which == "sshfs":
        in_node(box, None, "pkill -9 -x sshfs")
    else:
        os.kill(worker_pid(site, claim) if which == "worker" else processes(site, which)[0], signal.SIGKILL)
    wait(lambda: not alive(site.streams) and not processes(site), 10, f"the stream lasts without {which}")
    # A job must not write to the directory underneath.
    box.wait(lambda b: "not connected" in in_node(b, ADA, f"touch {home}/lost", check=False).stderr, 10, "cut off")
    with pytest.raises(NodeNotReady, match="have broken and are not cleared so far"):
        site.streams.start(claim, ADA, [site.tree(ADA)])
    site.streams.stop(claim, claim.id, ADA.uid)
    site.streams.start(claim, ADA, [site.tree(ADA)])
    in_node(box, ADA, f"touch {home}/again")
    assert (home / "again").exists()


def test_a_job_whose_stream_is_cut_off_is_not_let_through_by_others(site: MountSite, node: Node) -> None:
    box, claim = node
    home, software = site.home(ADA), site.trees / "public"
    software.mkdir()
    site.streams.start(claim, NOBODY, [MountedTree(str(software), read_only=True)])
    site.streams.start(claim, ADA, [site.tree(ADA)])
    with box.popen(as_user(ADA, "sh", "-c", "echo runs; exec sleep 600"), stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"runs\n"
        in_node(box, None, "pkill -9 -x sshfs")
        wait(lambda: not alive(site.streams), 10, "the streams last")
        site.streams.start(claim, BOB, [site.tree(BOB)])
        for path in (home, software):
            assert "not connected" in in_node(box, ADA, f"touch {path}/lost", check=False).stderr
        site.streams.stop(claim, claim.id, BOB.uid)
        in_node(box, None, "pkill -x sleep", check=False)
        job.wait()
    # Nobody misses them any more.
    site.streams.start(claim, BOB, [site.tree(BOB)])
    assert in_node(box, None, f"ls {site.trees}", check=False).stdout.split() == ["bob", "public"]
    assert in_node(box, None, "ls /run/burstd/mounts").stdout.split() == [
        f"{BOB.uid}", f"{BOB.uid}.paths", f"{BOB.uid}.pid", f"{NOBODY.uid}", f"{NOBODY.uid}.paths",
    ]  # fmt: skip
    for who in (ADA, BOB, NOBODY):
        site.streams.stop(claim, claim.id, who.uid)
    site.streams.start(claim, NOBODY, [MountedTree(str(software), read_only=True)])
    assert "Read-only" in in_node(box, ADA, f"touch {software}/x", check=False).stderr


START = """
import sys
from pathlib import Path
import tests.mounts.rig as rig
site, claim = rig.MountSite.of_a_child(sys.argv[1]), rig.claim_of("node", rig.ADDRESS)
site.streams.start(claim, rig.ADA, [site.tree(rig.ADA)])
print("stands", flush=True)
sys.stdin.read()
"""


def test_a_job_does_not_notice_that_burstd_is_killed(site: MountSite, node: Node) -> None:
    box, claim = node
    log = site.home(ADA) / "counted"
    burstd = subprocess.Popen(
        [sys.executable, "-c", START, f"{site.folder}:{site.trees}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109
    )  # fmt: skip
    assert burstd.stdout is not None
    assert burstd.stdout.readline() == "stands\n"
    with counting(box, log) as lines:
        wait(lambda: lines() > 10, 20, "nothing is written")
        burstd.kill()
        burstd.wait()
        burstd.stdout.close()
        so_far = lines()
        wait(lambda: lines() > so_far + 10, 20, "nothing is written without burstd")
    check_counted(log)
    assert alive(site.new_streams()) == {(claim.id, ADA.uid): (site.tree(ADA),)}


COUNT = """
import os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(1 << 30):
    os.write(log, b"%d\\n" % number)
    os.fsync(log)
"""


@contextmanager
def counting(box: Box, log: Path) -> Iterator[Callable[[], int]]:
    """A job that appends numbers, each with fsync; gives how many lines there are at home."""
    log.unlink(missing_ok=True)
    words = as_user(ADA, "python3", "-c", COUNT, str(log))
    with box.popen(words) as job:
        try:
            yield lambda: log.read_bytes().count(b"\n") if log.exists() else 0
            assert job.poll() is None, "the job has got an error"
        finally:
            job.kill()


def check_counted(log: Path) -> None:
    """Nothing is lost, nothing doubled."""
    numbers = log.read_bytes().split(b"\n")[:-1]
    assert numbers == [b"%d" % number for number in range(len(numbers))]


CUT_S = float(os.environ.get("BURSTD_CUT_S", "2"))


def test_a_cut_line_is_waited_for(site: MountSite, node: Node) -> None:
    box, claim = node
    log = site.home(ADA) / "counted"
    (site.home(ADA) / "large").write_bytes(os.urandom(8 << 20))
    site.streams.start(claim, ADA, [site.tree(ADA)])
    with counting(box, log) as lines:
        wait(lambda: lines() > 10, 20, "nothing is written")
        with line_cut(site.lab.network, box.name):
            reading = box.popen(["sha256sum", str(site.home(ADA) / "large")], stdout=subprocess.PIPE)
            before = lines()
            time.sleep(CUT_S)  # how long the line is cut is what is tried
            assert lines() <= before + 1
        back = time.monotonic()
        wait(lambda: lines() > before + 10, 3 * CUT_S + 30, "nothing is written afterwards")
        print(f"cut for {CUT_S:.0f} s, written again {time.monotonic() - back:.1f} s later")  # noqa: T201 - a figure
    digest = reading.communicate()[0].split()[0].decode()
    assert digest == hashlib.sha256((site.home(ADA) / "large").read_bytes()).hexdigest()
    check_counted(log)


def test_a_silent_line_is_known_before_it_is_given_up(site: MountSite, node: Node) -> None:
    box, claim = node
    site.line_timeout_s = 9.0
    try:
        site.streams.start(claim, ADA, [site.tree(ADA)])
    finally:
        site.line_timeout_s = 300.0
    lines = SilentLines()

    def silent(now: float = 1.0) -> Mapping[str, SilentLine]:
        return lines.step([claim], site.config.ssh_port, 9.0, now)

    assert silent() == {}
    with line_cut(site.lab.network, box.name):
        wait(lambda: bool(silent()), 20, "it is not known")
        assert alive(site.streams)
        assert silent(2.0) == {claim.id: SilentLine(1.0, 13.0)}
    wait(lambda: not silent(), 20, "it is silent for good")


def test_a_line_that_is_cut_for_too_long_ends_the_stream(site: MountSite, node: Node) -> None:
    box, claim = node
    site.line_timeout_s = 3.0
    try:
        site.streams.start(claim, ADA, [site.tree(ADA)])
    finally:
        site.line_timeout_s = 300.0
    with line_cut(site.lab.network, box.name):
        reading = box.popen(["cat", str(site.home(ADA) / "mine-too")], stderr=subprocess.PIPE)
        wait(lambda: not alive(site.streams), 15, "the stream lasts")
        assert not processes(site)
    # sshd hears that the connection is gone as soon as it says something.
    assert reading.wait(120) != 0


def test_what_is_busy_is_unmounted_all_the_same(site: MountSite, node: Node) -> None:
    box, claim = node
    home = site.home(ADA)
    site.streams.start(claim, ADA, [site.tree(ADA)])
    (home / "open").write_text("x")
    with box.popen(["sh", "-c", f"cd {home} && exec 5<open && echo in && sleep 600"], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"in\n"
        site.streams.stop(claim, claim.id, ADA.uid)
        assert in_node(box, None, f"ls -d {site.trees}", check=False).stdout == ""
        job.kill()


def test_a_stream_that_hangs_is_unmounted_all_the_same(site: MountSite, node: Node) -> None:
    """A user may stop his own sftp-server on the head."""
    box, claim = node
    site.streams.start(claim, ADA, [site.tree(ADA)])
    (server,) = processes(site, "sftp-server")
    os.kill(server, signal.SIGSTOP)
    reading = box.popen(["cat", str(site.home(ADA) / "absent")], stderr=subprocess.DEVNULL)
    site.streams.stop(claim, claim.id, ADA.uid)
    assert reading.wait(20) != 0
    wait(lambda: not processes(site), 10, "its processes last")


def test_the_machine_is_gone(site: MountSite, node: Node) -> None:
    box, claim = site.boot("short", "10.77.1.2")
    site.streams.start(claim, ADA, [site.tree(ADA)])
    box.stop()
    before = time.monotonic()
    site.streams.stop(None, claim.id, ADA.uid)
    assert time.monotonic() - before < patience_s(2.0)
    assert not processes(site)


def refused(site: MountSite, claim: Claim, *trees: MountedTree) -> str:
    with pytest.raises((NodeRefused, NodeNotReady, UserWorkerError)) as caught:
        site.streams.start(claim, ADA, trees or [site.tree(ADA)])
    assert alive(site.streams) == {}
    return f"{type(caught.value).__name__}: {caught.value}"


def test_what_cannot_be_mounted_is_named(site: MountSite, node: Node) -> None:
    box, claim = node
    home = site.home(ADA)
    root = "NodeRefused: node: "
    for setup, undo, message in (
        ("mv /usr/bin/sshfs /usr/bin/away", "mv /usr/bin/away /usr/bin/sshfs", f"{root}the node has no sshfs: install"),
        ("rm /dev/fuse", "mknod /dev/fuse c 10 229", f"{root}the node has no /dev/fuse: load the kernel module fuse"),
        (f"ln -s /tmp {site.trees}", f"rm {site.trees}", f"{root}{home}: a symbolic link leads elsewhere on the node"),
        (
            f"mkdir -m 1777 {site.trees}",
            f"rmdir {site.trees}",
            f"{root}{home}: users can replace it on the node, because {site.trees} is not root's alone: give",
        ),
        (
            f"mkdir {site.trees}; chown {ADA.uid} {site.trees}",
            f"rmdir {site.trees}",
            f"{root}{home}: users can replace it on the node, because {site.trees} is not root's alone: give",
        ),
        (f"mkdir {site.trees}; echo > {home}", f"rm -r {site.trees}", f"{root}{home}: it is no directory on the node"),
        (
            f"mkdir -p {home}; mount -t tmpfs x {home}",
            f"umount {home}; rm -r {site.trees}",
            f"{root}{home}: something is mounted there on the node already",
        ),
        (
            f"mkdir -p {home}/x; cp -a /root/.ssh {home}/x/; sed -i s,:/root:,:{home}/x:, /etc/passwd",
            f"sed -i s,:{home}/x:,:/root:, /etc/passwd; rm -r {site.trees}",
            f"{root}{home}: the home of root, as whom burstd logs in, lies there",
        ),
    ):  # fmt: skip
        in_node(box, None, setup)
        try:
            assert refused(site, claim).startswith(message)
        finally:
            in_node(box, None, undo)
    with pytest.raises(UserWorkerError, match=rf"{site.home(BOB)}: Permission denied for its user on the head"):
        site.streams.start(claim, ADA, [site.tree(BOB)])
    assert "No such file or directory" in refused(site, claim, MountedTree(f"{site.trees}/none", read_only=True))
    assert "needs an absolute path" in refused(site, claim, MountedTree("srv", read_only=True))


def test_nobody_below_the_least_uid_is_served(site: MountSite, node: Node) -> None:
    for uid in (0, 999):
        with pytest.raises(UserWorkerError, match=f"uid {uid} is below 1000"):
            site.streams.start(node[1], replace(ADA, uid=uid), [site.tree(ADA)])


@pytest.mark.parametrize("says", ["yes >&2", "yes | tr -d '\\n' >&2", "echo mounted >&2; exec sleep 600"])
def test_a_node_that_talks_nonsense_harms_nobody(site: MountSite, node: Node, says: str) -> None:
    box, claim = node
    box.run(["mv", "/usr/bin/sshfs", "/usr/bin/sshfs.real"])
    try:
        box.path("/usr/bin/sshfs").write_text(f"#!/bin/sh\n[ $1 != -h ] || exit 0\n{says}\n")
        box.path("/usr/bin/sshfs").chmod(0o755)
        before = time.monotonic()
        with nullcontext() if "mounted" in says else pytest.raises(NodeNotReady, match=r"^.{1,1500}$"):
            site.streams.start(claim, ADA, [site.tree(ADA)])
        assert time.monotonic() - before < patience_s(20)
        site.streams.stop(claim, claim.id, ADA.uid)
        assert not processes(site)
    finally:
        in_node(box, None, "mv /usr/bin/sshfs.real /usr/bin/sshfs; pkill -x yes; pkill -x sleep", check=False)


def test_a_machine_that_is_another_gets_nothing(site: MountSite, node: Node) -> None:
    claim = node[1]
    file = site.config.host_keys_dir / claim.id
    good = file.read_text()
    try:
        trust, key = good.splitlines()
        file.write_text(f"{trust}\n{key[:-4]}AAAA\n")
        assert "Host key verification failed" in refused(site, claim)
    finally:
        file.write_text(good)
