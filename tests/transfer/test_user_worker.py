from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burstd.transfer.privsep import descriptor_channel
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, printable, start_user_worker
from burstd.transfer.trees.untrusted_read import readable_file_facts
from burstd.transfer.trees.walk import Walk
from tests.lab.patience import patience_s
from tests.transfer.ground import OTHER, USER, give_to_user, on_disk, root_only, user_folder

pytestmark = [pytest.mark.boxes, root_only]


@pytest.fixture
def place() -> Iterator[Path]:
    with user_folder() as made:
        yield made


@pytest.fixture
def worker() -> Iterator[UserWorker]:
    with start_user_worker(USER, USER, home="/home/none") as opened:
        yield opened


def walked(worker: UserWorker, source: str) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for message in worker.walk(source):
        assert len(message.fds) == sum(row[0] == "f" for row in message.rows) <= descriptor_channel.FDS_AT_ONCE
        rows += message.rows
    return rows


def paths(rows: list[list[Any]]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in rows]


def open_files(place: Path) -> int:
    """Those of this process in a folder: others may be closed meanwhile, by what was left of another test."""
    return sum(str(link.resolve()).startswith(str(place)) for link in Path("/proc/self/fd").iterdir())


NAMES = [
    b"plain",
    b" two  spaces ",
    b"a\nline\x1b[31m",
    b"\xff\xfe not utf-8",
    "Ä€漢".encode(),
    b"-rf",
    b"*",
    b"n" * 255,
]


def test_walks_in_order_and_passes_files_open(worker: UserWorker, place: Path) -> None:
    for name in NAMES:
        (place / os.fsdecode(name)).write_bytes(name)
    (place / "deep").mkdir()
    (place / "deep" / "x").write_bytes(b"x")
    (place / "link").symlink_to("/etc/shadow")
    (place / "folder-link").symlink_to("/etc")
    os.mkfifo(place / "pipe")
    os.link(place / "plain", place / "zz-again")
    give_to_user(place)
    before = open_files(place)
    read: dict[bytes, bytes] = {}
    rows: list[list[Any]] = []
    for message in worker.walk(str(place)):
        files = [row[1] for row in message.rows if row[0] == "f"]
        for path, fd in zip(files, message.fds, strict=True):
            read[os.fsencode(path)] = os.pread(fd, 1000, 0)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
        rows += message.rows
    assert read == {**{name: name for name in NAMES}, b"deep/x": b"x"}
    assert open_files(place) == before
    facts = place.stat()
    assert rows[0] == ["d", "", stat.S_IMODE(facts.st_mode), facts.st_mtime_ns]
    links = {row[1]: row[2] for row in rows if row[0] == "l"}
    assert links == {"link": "/etc/shadow", "folder-link": "/etc"}
    assert [row for row in rows if row[0] in "hx"] == [["x", "pipe", "pipe"], ["h", "zz-again", "plain"]]
    assert rows == walked(worker, str(place))
    assert not any(row[1].startswith("folder-link/") for row in rows)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["", "a.csv", "b.csv"]),
        ("run?/*.csv", ["", "run1", "run1/a.csv", "run2", "run2/a.csv"]),
        ("run1", ["", "a.csv", "sub", "sub/b.csv"]),
        ("run*", ["", "run1", "run1/a.csv", "run1/sub", "run1/sub/b.csv", "run2", "run2/a.csv"]),
        ("**/b.csv", ["", "b.csv", "run1", "run1/sub", "run1/sub/b.csv"]),
        ("b.csv", ["b.csv"]),
        ("b.[c]sv", ["", "b.csv"]),
    ],
)
def test_patterns(worker: UserWorker, place: Path, pattern: str, expected: list[str]) -> None:
    for name in ("a.csv", "b.csv", ".c.csv", "run1/a.csv", "run1/sub/b.csv", "run2/a.csv"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / "run3").symlink_to("run1")
    give_to_user(place)
    rows = walked(worker, f"{place}/{pattern}")
    assert [row[1] for row in rows if row[0] != "l"] == expected


def test_what_the_user_cannot_read_is_told_and_not_opened(worker: UserWorker, place: Path) -> None:
    (place / "mine").write_text("mine")
    (place / "closed").mkdir()
    give_to_user(place)
    (place / "secret").write_text("root's")
    (place / "secret").chmod(0o600)
    (place / "closed").chmod(0)
    rows = walked(worker, str(place))
    assert [row for row in rows if row[0] == "e"] == [["e", "closed", errno.EACCES], ["e", "secret", errno.EACCES]]
    found = worker.measure_source(str(place))
    assert (found.size, found.unreadable) == (4, (("closed", errno.EACCES), ("secret", errno.EACCES)))
    for source in (str(place / "secret"), "/root/x", str(place / "none"), f"{place}/*.none"):
        with pytest.raises(UserWorkerError, match=r"Permission denied|No such file|matches nothing") as told:
            walked(worker, source)
        assert told.value.path
    assert walked(worker, str(place / "mine")) == [["f", "mine"]], "a worker works on after an error"


def test_a_directory_swapped_for_a_link_does_not_lead_out(place: Path) -> None:
    for name in ("a", "b", "c"):
        (place / "in" / name).mkdir(parents=True)
        (place / "in" / name / "file").write_text(name)
    (place / "out").mkdir()
    (place / "out" / "secret").write_text("out")
    seen = []
    for row, fd in Walk(str(place / "in")):
        seen.append((row[0], row[1]))
        if fd >= 0:
            os.close(fd)
        if row[1] == "a":
            (place / "in" / "b").rename(place / "gone")
            (place / "in" / "b").symlink_to(place / "out")
    assert seen == [("d", ""), ("d", "a"), ("f", "a/file"), ("e", "b"), ("d", "c"), ("f", "c/file")]


def test_a_walk_may_be_left_and_the_worker_ends_with_its_connection(worker: UserWorker, place: Path) -> None:
    for number in range(2000):
        (place / f"{number:04}").touch()
    before = open_files(place)
    walk = worker.walk(str(place))
    next(walk)
    assert worker._child is not None
    assert len(list(Path(f"/proc/{worker._child.pid}/fd").iterdir())) < 4 * descriptor_channel.FDS_AT_ONCE
    walk.close()
    assert open_files(place) == before
    assert len(walked(worker, str(place))) == 2001
    next(worker.walk(str(place)))
    child = worker._child
    worker._sock.close()
    assert child.wait(60) == 0


def test_it_is_the_user_and_cannot_be_anybody_else(worker: UserWorker, place: Path) -> None:
    assert worker._child is not None
    status = Path(f"/proc/{worker._child.pid}/status").read_text()
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert lines["Uid"].split() == lines["Gid"].split() == [str(USER)] * 4
    assert lines["Groups"].split() == [str(USER)]
    assert (lines["CapEff"], lines["CapPrm"]) == ("0" * 16, "0" * 16)
    with pytest.raises(UserWorkerError, match="uid 999 is below 1000"):
        start_user_worker(999, 999)
    with pytest.raises(UserWorkerError, match="cannot reach a user worker at"):
        start_user_worker(USER, USER, socket_path=place / "none")


def test_as_systemd_starts_it_groups_are_those_of_the_account_database() -> None:
    import pwd

    from burstd.transfer.privsep import worker as program

    account = pwd.getpwnam("nobody")
    for uid, expected in ((account.pw_uid, "ready"), (USER, "error")):
        ours, theirs = socket.socketpair()
        with ours:
            command = [sys.executable, "-I", "-S", str(program.__file__), "--accounts", "--fd", str(theirs.fileno())]
            with subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as child:
                theirs.close()
                descriptor_channel.send(ours, {"uid": uid, "gid": 0, "groups": [0, 6], "home": "/root"})
                answer, _ = descriptor_channel.receive(ours)
                assert expected in answer
                if expected == "ready":
                    status = Path(f"/proc/{child.pid}/status").read_text()
                    groups = os.getgrouplist(account.pw_name, account.pw_gid)
                    assert f"Groups:\t{' '.join(map(str, sorted(groups)))}" in status
                    assert f"Gid:\t{account.pw_gid}\t" in status
                ours.close()
                assert child.wait(10) == 0


def test_an_account_that_is_gone_clears_what_its_number_owns(place: Path) -> None:
    from burstd.transfer.privsep import worker as program

    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", str(program.__file__), "--accounts", "--fd", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as child:
        theirs.close()
        with UserWorker(ours) as user_worker:
            user_worker.handshake({"uid": USER, "gid": 0, "groups": [0], "home": "/root", "gone": True})
            status = Path(f"/proc/{child.pid}/status").read_text()
            assert f"Uid:\t{USER}\t{USER}" in status
            assert "Gid:\t65534\t65534" in status
            assert "Groups:\t \n" in status
            (place / "x" / "y").mkdir(parents=True)
            give_to_user(place)
            user_worker.remove_tree(str(place), ["x"])
        assert list(place.iterdir()) == []


def test_a_worker_that_hangs_is_given_up_and_killed(place: Path) -> None:
    for number in range(2000):
        (place / f"{number}").touch()
    give_to_user(place)
    stop = threading.Event()
    acts: list[tuple[Callable[[UserWorker], object], str]] = [
        (lambda worker: worker.measure_source(str(place)), "was cancelled"),
        (lambda worker: walked(worker, str(place)), "was cancelled"),
        (lambda worker: worker.copy(str(place), str(place), "copy", job="7"), "was cancelled"),
        (lambda worker: worker.destination_space(str(place)), "has not answered for 1 s"),
    ]
    for act, said in acts:
        with start_user_worker(USER, USER) as worker:
            worker._sock.settimeout(1.0 if "1 s" in said else 30.0)
            child = worker._child
            assert child is not None
            os.kill(child.pid, signal.SIGSTOP)  # as a file system that does not answer
            stop.set() if "cancelled" in said else stop.clear()
            worker.set_cancel_event(stop)
            began = time.monotonic()
            with pytest.raises(UserWorkerError, match=said) as caught:
                act(worker)
            assert (caught.value.errno, time.monotonic() - began < patience_s(5)) == (0, True)
            with pytest.raises(UserWorkerError, match="the user worker is gone"):
                worker.make_directories(str(place), ["new"])
        assert child.returncode == -signal.SIGKILL


def test_only_a_descriptor_open_for_reading_proves_the_right_to_read(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    os.mkfifo(tmp_path / "p")
    bad = [(file, os.O_PATH), (file, os.O_WRONLY), (tmp_path, os.O_RDONLY), (tmp_path / "p", os.O_RDWR)]
    for path, flags in [*bad, (file, os.O_RDONLY)]:
        fd = os.open(path, flags)
        try:
            if (path, flags) in bad:
                with pytest.raises(OSError, match="did not open this file for reading"):
                    readable_file_facts(fd)
            else:
                assert readable_file_facts(fd).st_size == 1
        finally:
            os.close(fd)


def write(worker: UserWorker, root: str, path: str, data: bytes, mode: int = 0o640, mtime_ns: int = 10**18) -> None:
    ((new, fd),) = worker.create_files(root, [path], job="7")
    facts = os.fstat(fd)
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (USER, 0o600)
    os.write(fd, data)
    os.close(fd)
    worker.commit_files(root, [(new, path, mode, mtime_ns)])


def test_brings_a_tree_home(worker: UserWorker, place: Path) -> None:
    root = f"{place}/new/home"
    assert worker.make_directories(root, ["", "d", "d/e"]) == [True, True, True]
    assert worker.make_directories(root, ["", "d"]) == [False, False]
    write(worker, root, "d/e/\udcff", b"data", mode=0o751)
    worker.symlink(root, [("../x", "d/l", 5), ("again", "d/l", 6)], job="7")
    worker.hardlink(root, [("d/e/\udcff", "d/hard"), ("d/e/\udcff", "d/hard")], job="7")
    worker.finalize_directories(root, [("d/e", 0o500, 7), ("d", 0o2755, 8)])
    found = on_disk(Path(root))
    del found[b""]
    assert found == {
        b"d": ("d", 0o755, 8, b""),
        b"d/e": ("d", 0o500, 7, b""),
        b"d/e/\xff": ("f", 0o751, 10**18, b"data"),
        b"d/hard": ("f", 0o751, 10**18, b"data"),
        b"d/l": ("l", 0o777, 6, b"again"),
    }
    a, b, none = worker.file_facts(root, ["d/hard", "d/l", "none"])
    assert a is not None
    assert b is not None
    assert (a.kind, a.nlink, a.size, b.kind, none) == ("f", 2, 4, "l", None)
    (place / "new/home/d/e").chmod(0o100)
    worker.remove_tree(f"{place}/new", ["home", "home"])
    assert list((place / "new").iterdir()) == []


def test_never_writes_through_a_link_nor_above_the_root(worker: UserWorker, place: Path) -> None:
    (place / "outside").mkdir()
    (place / "outside" / "kept").write_text("kept")
    (place / "home").mkdir()
    (place / "home" / "link").symlink_to(place / "outside" / "kept")
    (place / "home" / "folder").symlink_to(place / "outside")
    give_to_user(place)
    root = str(place / "home")
    write(worker, root, "link", b"new")
    assert (place / "home" / "link").read_bytes() == b"new"
    assert not (place / "home" / "link").is_symlink()
    for path in ("folder/kept", "../outside/kept", "/etc/passwd", "a/../../outside/x", ".", "x//y"):
        with pytest.raises(UserWorkerError, match=r"Not a directory|not a path in"):
            worker.create_files(root, [path], job="7")
        with pytest.raises(UserWorkerError, match=r"Not a directory|not a path in"):
            worker.remove_files(root, [path])
    worker.remove_tree(root, ["folder"])
    assert (place / "outside" / "kept").read_text() == "kept"
    ((_, fd),) = worker.create_files(root, ["left"], job="7")
    os.close(fd)
    assert (worker.remove_unfinished(root, [""], job="8"), worker.remove_unfinished(root, [""], job="7")) == (0, 1)
    with pytest.raises(UserWorkerError, match="Permission denied"):
        worker.make_directories("/usr/burst-test", [""])


def test_a_folder_that_somebody_laid_in_wait_is_not_taken(place: Path, worker: UserWorker) -> None:
    place.chmod(0o1777)
    parts = ["", "in", "out"]
    for _ in range(2):
        worker.make_private_directories(f"{place}/7", parts)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (place / "7", place / "7/in", place / "7/out")} == {0o700}

    def lay(name: str, mode: int, uid: int = OTHER) -> None:
        (place / "8" / name).mkdir(exist_ok=True)
        os.chown(place / "8" / name, uid, uid)
        (place / "8" / name).chmod(mode)

    (place / "8").mkdir()
    for name, mode, uid in (("", 0o777, OTHER), ("", 0o700, OTHER), ("", 0o770, USER), ("out", 0o777, OTHER)):
        lay("", 0o700, USER)
        lay(name, mode, uid)
        with pytest.raises(
            UserWorkerError, match=f"{place}/8/{name}.*uid {uid}'s with mode {mode:04o}.*remove it"
        ) as caught:
            worker.make_private_directories(f"{place}/8", parts)
        assert caught.value.errno == errno.EPERM
    (place / "9").symlink_to(place / "7")
    with pytest.raises(UserWorkerError, match="Not a directory"):
        worker.make_private_directories(f"{place}/9", parts)
    place.chmod(0o777)
    with pytest.raises(UserWorkerError, match="everybody can rename"):
        worker.make_private_directories(f"{place}/10", parts)
    assert not (place / "10").exists()


def test_moves_within_a_file_system_and_copies_to_another(worker: UserWorker, place: Path) -> None:
    with user_folder(where="/dev/shm") as far:  # noqa: S108 - another file system
        for there, copied in ((place / "to", False), (far / "to", True)):
            tree = place / "from" / "out"
            (tree / "sub").mkdir(parents=True)
            (tree / "sub" / "file").write_bytes(b"data")
            (tree / "l").symlink_to("sub/file")
            with (tree / "sparse").open("wb") as sparse:
                sparse.seek(8 << 20)
                sparse.write(b"end" * 1000)
                sparse.truncate(16 << 20)
            os.utime(tree / "sub" / "file", ns=(5, 5))
            (tree / "sub").chmod(0o750)
            give_to_user(place)
            expected, inode = on_disk(tree), (tree / "sub" / "file").stat().st_ino
            there.mkdir()
            (there / "out").mkdir()
            give_to_user(there)
            moved = worker.move(str(place / "from"), "out", str(there), "out", job="7")
            assert moved > 0
            assert on_disk(there / "out") == expected
            assert ((there / "out" / "sub" / "file").stat().st_ino == inode) is not copied
            assert (there / "out" / "sparse").stat().st_blocks * 512 < 1 << 20
            assert not tree.exists()


def test_copies_a_source(worker: UserWorker, place: Path) -> None:
    (place / "data" / "sub").mkdir(parents=True)
    (place / "data" / "a").write_bytes(b"a")
    os.link(place / "data" / "a", place / "data" / "sub" / "b")
    (place / "data" / "sub" / "l").symlink_to("b")
    give_to_user(place)
    (place / "job").mkdir()
    give_to_user(place / "job")
    assert worker.copy(f"{place}/data", f"{place}/job", "x", job="7") == 1
    assert on_disk(place / "job" / "x") == on_disk(place / "data")
    assert (place / "job/x/a").stat().st_nlink == 2
    assert worker.copy(f"{place}/data/a", f"{place}/job", "one", job="7") == 1
    assert (place / "job/one").read_bytes() == b"a"
    (place / "data" / "no").write_bytes(b"root's")
    (place / "data" / "no").chmod(0o600)
    with pytest.raises(UserWorkerError, match=f"{place}/data/no: Permission denied"):
        worker.copy(f"{place}/data", f"{place}/job", "y", job="7")


def test_tells_of_room_and_of_what_it_cannot_do(worker: UserWorker, place: Path) -> None:
    room = worker.destination_space(f"{place}/not/yet")
    assert room.writable
    assert not room.exists
    assert room.nearest == str(place)
    assert 0 < room.free_bytes < 1 << 60
    assert not worker.destination_space("/etc").writable
    with start_user_worker(OTHER, OTHER) as other:
        assert not other.destination_space(str(place)).writable
    for number in range(50):
        (place / f"{number}").write_bytes(b"12")
    found = worker.measure_source(str(place), entries=10)
    assert (found.entries, found.complete, found.size) == (10, False, 18)
    with pytest.raises(UserWorkerError, match="no absolute path"):
        worker.measure_source("relative")
    with pytest.raises(UserWorkerError, match="different versions"):
        worker._request({"do": "fly"})
    assert printable("a\nb\udcff") == "a\\nb\\xff"
