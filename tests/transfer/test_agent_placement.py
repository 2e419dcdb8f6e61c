"""The agent as burstd delivers it, as root, for users who are numbers: what a job finds, and what can go wrong."""

# Names that are no text, and links: os takes them as they are.
# ruff: noqa: PTH115, PTH208, PTH211

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestEntry, encode_manifest, object_key
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, BOB, AgentAnsweredError, AgentRig, as_user, directory, small
from tests.transfer.awkward import awkward, check_awkward

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
MIB = 1 << 20


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    return AgentRig(tmp_path / "node")


def test_an_awkward_tree_is_as_it_was(rig: AgentRig) -> None:
    entries = awkward(rig)
    shared, own = rig.tree(entries), rig.tree(entries, "mine", access="copy")
    done = rig.deliver("12", shared, own)
    assert (done["hits"], rig.progress[-1]["of"]) == (1, shared["size"] * 2)
    assert oct(os.lstat(rig.job("12")).st_mode) == "0o40700"
    check_awkward(os.fsencode(rig.job("12") / "in/data"), read_only=True)
    check_awkward(os.fsencode(rig.job("12") / "in/mine"), read_only=False)
    shared_file, own_file = (rig.job("12") / "in" / name / "-rf" for name in ("data", "mine"))
    assert as_user(ADA, lambda: own_file.write_text("changed")) == 0
    assert shared_file.read_text() == "third"

    # Once more: nothing is fetched, and what the job has changed is its own.
    again = rig.deliver("12", shared, own)
    assert (again["fetched"], again["hits"], own_file.read_text()) == (0, 2, "changed")
    assert rig.deliver("13", shared)["fetched"] == 0


def test_what_others_read_is_neither_changed_nor_seen_by_strangers(rig: AgentRig) -> None:
    tree = rig.tree([directory(mode=0o777), small(b"f", rig.put(b"text"), 0, 4, 0o666)])
    rig.deliver("1", tree)
    there = (rig.job("1") / "in/data").resolve()
    file = there / "f"
    assert file.read_text() == "text"
    assert as_user(ADA, file.read_text) == 0
    for change in (lambda: file.write_text("x"), file.unlink, (there / "new").touch, there.rmdir):
        assert as_user(ADA, change) == errno.EACCES
    assert as_user(ADA, lambda: there.parents[1].rename(there.parents[1].with_name("x"))) == errno.EACCES
    assert as_user(BOB, file.read_text) == errno.EACCES
    assert as_user(BOB, lambda: os.listdir(there)) == errno.EACCES
    assert as_user(BOB, lambda: os.listdir(rig.job("1"))) == errno.EACCES

    # Its owner can insist. The next job has what was staged nevertheless, and so has the one that runs.
    def insist() -> None:
        file.chmod(0o600)
        file.write_text("evil")
        os.utime(file, ns=(5, 10**18 + 7))

    assert as_user(ADA, insist) == 0
    assert rig.deliver("2", tree)["hits"] == 0
    assert [(rig.job(job) / "in/data/f").read_text() for job in "12"] == ["text", "text"]
    # Another user's input is fetched for him.
    rig.uid = BOB
    assert rig.deliver("3", tree)["hits"] == 0
    assert as_user(BOB, (rig.job("3") / "in/data/f").read_text) == 0


def test_a_single_file_and_a_single_link(rig: AgentRig) -> None:
    file = rig.tree([small(b"name at home", rig.put(b"text"), 0, 4, 0o644)], "f", single=True)
    link = rig.tree([ManifestEntry(b"l", "l", 0o777, 5, link_target=b"gone")], "l", single=True)
    copies = [{**file, "name": "cf", "access": "copy"}, {**link, "name": "cl", "access": "copy"}]
    rig.deliver("1", file, link, *copies)
    there = rig.job("1") / "in"
    assert [(there / name).read_text() for name in ("f", "cf")] == ["text", "text"]
    assert (os.readlink((there / "l").readlink()), os.readlink(there / "cl")) == ("gone", "gone")
    assert sorted(os.listdir(there)) == ["cf", "cl", "f", "l"]


def test_what_the_node_has_anyway_is_linked_to(rig: AgentRig) -> None:
    there = rig.top / "claims"
    there.mkdir()
    (there / "words").write_text("text")
    links = [{"name": "words", "target": str(there / "words")}, {"name": "all", "target": str(there)}]
    for _ in range(2):
        assert rig.deliver("1", rig.tree([directory()]), links=links)["fetched"] < MIB
    assert (rig.job("1") / "in/words").read_text() == "text"
    rig.clear("1")
    assert (there / "words").exists()
    there.chmod(0o700)
    with pytest.raises(
        AgentAnsweredError, match=r"input words is to be used where it is, at .*: Permission denied"
    ) as caught:
        rig.deliver("2", links=links)
    assert caught.value.kind == "rights"


def test_a_node_without_the_containers_program_is_named_before_anything_is_fetched(rig: AgentRig) -> None:
    tree = rig.tree([directory()])
    rig.deliver("1", tree, program=["sh", "/usr/bin:/bin"])
    with pytest.raises(AgentAnsweredError, match="the node has no apptainer-x, which #BURST container needs") as caught:
        rig.deliver("2", tree, program=["apptainer-x", "/usr/bin:/bin"])
    assert caught.value.kind == "software"


def test_damage_is_named_and_nothing_of_it_is_used(rig: AgentRig) -> None:
    good, bad = os.urandom(2 * MIB), os.urandom(2 * MIB)
    keys = [rig.put(body) for body in (good, bad)]
    files = [small(b"f%d" % n, key, 0, 2 * MIB) for n, key in enumerate(keys)]
    tree = rig.tree([directory(), *files])
    rig.store.put(object_key("in", keys[1]), bad[:-1] + b"x")
    with pytest.raises(AgentAnsweredError, match="not what its name says") as caught:
        rig.deliver("1", tree)
    assert (caught.value.kind, caught.value.keys) == ("damaged", [keys[1]])
    rig.store.delete([object_key("in", keys[1])])
    with pytest.raises(AgentAnsweredError, match="gone from the store") as caught:
        rig.deliver("1", tree)
    assert (caught.value.kind, caught.value.keys) == ("damaged", [keys[1]])
    assert os.listdir(rig.job("1") / "in") == []
    rig.put(bad)
    rig.deliver("1", tree)
    assert [(rig.job("1") / f"in/data/f{n}").read_bytes() for n in range(2)] == [good, bad]

    other = rig.tree([directory()])
    wrong = {**other, "digest": hashlib.sha256(b"another").hexdigest()}
    with pytest.raises(AgentAnsweredError, match="is not what its digest says"):
        rig.deliver("2", wrong)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([ManifestEntry(b"../evil", "d", 0o755, 5)], "leads out"),
        ([ManifestEntry(b"/evil", "l", 0o755, 5, link_target=b"x")], "leads out"),
        ([directory(b"a"), ManifestEntry(b"a/../../evil", "l", 0o755, 5, link_target=b"x")], "leads out"),
        ([ManifestEntry(b"a", "l", 0o777, 5, link_target=b"/OUT"), ManifestEntry(b"a/evil", "d", 0o755, 5)], "failed"),
        (
            [ManifestEntry(b"a", "l", 0o777, 5, link_target=b"/OUT"), ManifestEntry(b"a", "f", 0o755, 5)],
            "names b'a' twice",
        ),
        (
            [
                ManifestEntry(b"a", "l", 0o777, 5, link_target=b"/OUT/f"),
                ManifestEntry(b"b", "f", 0, 5, 0, hardlink_to=b"a/x"),
            ],
            "failed",
        ),
        ([ManifestEntry(b"b", "f", 0o644, 5, 0, hardlink_to=b"../../x")], "leads out"),
        ([directory(b"a"), directory(b"a")], "names b'a' twice"),
        ([ManifestEntry(b"a/b", "d", 0o755, 5)], "without its directory"),
        ([ManifestEntry(b"f", "f", 0o644, 5, 7)], "contradicts itself"),
        (
            [ManifestEntry(b"f", "f", 0o644, 5, 9, pieces=(ObjectRange("KEY", 2, 9),))],
            "more of an object than there is",
        ),
        ([ManifestEntry(b"f", "f", 0o644, 5, -1, pieces=(ObjectRange("KEY", 2, -1),))], "cannot be read"),
        ([ManifestEntry(b"x" * 300, "d", 0o755, 5)], "File name too long"),
        ([ManifestEntry(b"p", "p", 0o644, 5)], "contradicts itself"),  # type: ignore[arg-type]
        ([ManifestEntry(b"a\0b", "d", 0o755, 5)], "contradicts itself"),
    ],
)
def test_hostile_manifests(rig: AgentRig, entries: list[ManifestEntry], says: str) -> None:
    out = rig.top / "out"
    out.mkdir()
    out.chmod(0o777)
    key = rig.put(b"0123456")
    entries = [
        replace(
            e, link_target=e.link_target.replace(b"/OUT", os.fsencode(out)),
            pieces=tuple(replace(p, key=p.key.replace("KEY", key)) for p in e.pieces),
        )
        for e in entries
    ]  # fmt: skip
    with pytest.raises(AgentAnsweredError, match=says):
        rig.deliver("1", rig.tree([directory(), *entries]))
    assert os.listdir(out) == []
    assert os.listdir(rig.job("1") / "in") == []
    assert not list(rig.top.rglob("*evil*"))


def test_a_manifest_that_was_cut_off(rig: AgentRig) -> None:
    body = b"".join(encode_manifest([directory(), directory(b"a")]))
    for cut, says in ((body[:-3], "ends in the middle"), (b"x" + body, "does not inflate"), (b"", "in the middle")):
        tree = {**rig.tree([]), "digest": hashlib.sha256(cut).hexdigest(), "manifest": [[rig.put(cut), 0, len(cut)]]}
        with pytest.raises(AgentAnsweredError, match=says):
            rig.deliver("1", tree)


def many(rig: AgentRig, count: int, size: int = 4 * MIB) -> list[ManifestEntry]:
    return [directory(), *(small(b"f%d" % n, rig.put(os.urandom(size)), 0, size) for n in range(count))]


def test_two_jobs_at_once_fetch_once(rig: AgentRig) -> None:
    tree = rig.tree(many(rig, 10))
    agents = [rig.start(rig.delivery_request(job, tree)) for job in "123"]
    done = [rig.read_answers(agent) for agent in agents]
    assert sorted(d["hits"] for d in done) == [0, 1, 1]
    assert sorted(d["fetched"] > 0 for d in done) == [False, False, True]
    assert len({(rig.job(job) / "in/data/f0").stat().st_ino for job in "123"}) == 1


def test_killed_in_the_middle_and_gone_on_with(rig: AgentRig) -> None:
    count = 24
    entries = many(rig, count, 2 * MIB)
    spread = [ObjectRange(e.pieces[0].key, 0, 2 * MIB) for e in entries[1:]]
    entries.append(ManifestEntry(b"spread", "f", 0o444, 77, 2 * MIB * count, pieces=tuple(spread)))
    entries += [
        directory(b"d", 0o555, 78),
        ManifestEntry(b"d/l", "l", 0o777, 79, link_target=b"x"),
        ManifestEntry(b"e", "f", 0o400, 80),
    ]
    entries.append(ManifestEntry(b"d/h", "f", 0o644, 0, 2 * MIB, hardlink_to=b"f3"))
    tree = rig.tree(entries)
    agent = rig.start(rig.delivery_request("1", tree))
    user = rig.spool / f"cache/{ADA}/.new-{tree['digest']}"

    def whole_files() -> int:
        try:
            return sum(path.stat().st_mtime_ns == 10**18 + 7 for path in (user / "own/tree").glob("f*"))
        except FileNotFoundError:
            return 0

    deadline = time.monotonic() + 20
    while whole_files() < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    agent.kill()
    agent.communicate()
    had = whole_files()
    assert had >= 5
    assert os.listdir(rig.job("1") / "in") == []
    done = rig.deliver("1", tree)
    assert done["fetched"] <= (count - had) * 2 * MIB + 10_000
    there = rig.job("1") / "in/data"
    whole = b"".join((there / f"f{n}").read_bytes() for n in range(count))
    assert (there / "spread").read_bytes() == whole
    assert [(oct((there / n).stat().st_mode), (there / n).stat().st_mtime_ns) for n in ("spread", "d", "e")] == [
        ("0o100444", 77), ("0o40555", 78), ("0o100400", 80),
    ]  # fmt: skip
    assert (there / "d/h").stat().st_ino == (there / "f3").stat().st_ino
    assert not user.exists()


def test_the_end_of_the_line_ends_it(rig: AgentRig) -> None:
    answered = threading.Event()

    def never(question: dict[str, object]) -> dict[str, object]:
        answered.set()
        raise EOFError

    rig.reach, rig.answer = {"kind": "http", "facts": {}}, never
    agent = rig.start(rig.delivery_request("1", rig.tree([directory()])))
    with pytest.raises(EOFError):
        rig.read_answers(agent)
    assert answered.is_set()
    assert agent.wait(10) == 2


def test_room_is_made_by_trees_that_no_job_uses(rig: AgentRig, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", disk], check=True)
    try:
        rig.spool = disk
        trees = [rig.tree(many(rig, 4)) for _ in range(5)]  # 16 MiB each
        rig.keep_free = 4 * MIB
        for n in range(3):
            rig.deliver(str(n), trees[n])
        with pytest.raises(
            AgentAnsweredError, match=r"needs 16777216 bytes on the node, and \d+ are to be had"
        ) as caught:
            rig.deliver("3", trees[3])
        assert caught.value.kind == "space"
        rig.clear("2")
        rig.clear("1")  # used last
        rig.deliver("4", trees[4])
        assert rig.deliver("0", trees[0])["hits"] == 1
        assert rig.deliver("1", trees[1])["hits"] == 1
        rig.clear("1")
        assert rig.deliver("2", trees[2])["hits"] == 0
        with pytest.raises(AgentAnsweredError, match=r"asks for 1 GiB of scratch, and [0-9.]+ [KM]iB are free below"):
            rig.deliver("2", trees[2], scratch=1 << 30)
        # What the file system has no room for although the tree said so little.
        rig.clear("2")
        liar = {**rig.tree(many(rig, 12, 4 * MIB)), "size": 5}
        with pytest.raises(AgentAnsweredError, match="No space left") as caught:
            rig.deliver("5", liar)
        assert caught.value.kind == "agent"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_of_somebody_else_is_let_alone(rig: AgentRig) -> None:
    precious = rig.job("1")
    precious.mkdir()
    (precious / "file").touch()
    tree = rig.tree([directory()])
    with pytest.raises(AgentAnsweredError, match="burstd has not made it"):
        rig.deliver("1", tree)
    with pytest.raises(AgentAnsweredError, match="no record of burstd's"):
        rig.clear("1")
    assert (precious / "file").exists()
    rig.deliver("2", tree)
    with pytest.raises(AgentAnsweredError, match="is the folder of job 2"):
        rig.run({"do": "clear", "job": "3", "dir": str(rig.job("2"))})
    for name in ("..", "a/b", ""):
        with pytest.raises(AgentAnsweredError, match="is no name of an input"):
            rig.deliver("2", {**tree, "name": name})
    rig.uid = 0
    with pytest.raises(AgentAnsweredError, match="data of root is not staged"):
        rig.deliver("4", tree)
    rig.uid = ADA
    world = rig.top / "world"
    world.mkdir()
    world.chmod(0o777)
    with pytest.raises(AgentAnsweredError, match="is not root's alone"):
        rig.deliver("5", tree, dir=str(world / "5"))


def test_clearing_follows_no_link(rig: AgentRig) -> None:
    precious = rig.top / "precious"
    precious.mkdir()
    (precious / "file").touch()
    rig.deliver("1", rig.tree([directory()]))

    def traps() -> None:
        os.symlink(precious, rig.job("1") / "out/trap")
        shutil.rmtree(rig.job("1") / "scratch")
        os.symlink(precious, rig.job("1") / "scratch")
        (rig.job("1") / "out/closed").mkdir(mode=0)

    assert as_user(ADA, traps) == 0
    rig.clear("1")
    rig.clear("1")
    assert not rig.job("1").exists()
    assert (precious / "file").exists()
    assert [name for name in os.listdir(rig.spool) if name != "cache"] == []


def test_memory_is_bounded_and_small_files_are_quick(rig: AgentRig) -> None:
    files = 40_000
    body = os.urandom(MIB)
    key = rig.put(body)
    entries: list[ManifestEntry] = [directory()]
    for n in range(files):
        if n % 1000 == 0:
            entries.append(directory(b"d%d" % (n // 1000)))
        entries.append(small(b"d%d/a file of some name %d" % (n // 1000, n), key, n % 1000, 24))
    large = tuple(ObjectRange(rig.put(os.urandom(32 * MIB)), 0, 32 * MIB) for _ in range(2)) * 8
    tree = rig.tree([*entries, ManifestEntry(b"large", "f", 0o644, 5, 512 * MIB, pieces=large)])
    agent = rig.start(rig.delivery_request("1", tree))
    peaks = _watch(agent.pid)
    done = rig.read_answers(agent)
    assert sum(peaks.values()) < 450 * MIB, peaks  # two processes, which share the slots; each counts them
    assert sum(peak > MIB for peak in peaks.values()) == 2, peaks  # one may be seen between fork and exec
    assert done["fetched"] < 80 * MIB
    assert sum(len(names) for _, _, names in os.walk(rig.job("1") / "in/data/")) == files + 1


def _watch(pid: int) -> dict[int, int]:
    """Filled, as long as the processes live, with the largest resident size of each in bytes."""
    peaks: dict[int, int] = {}

    def watch() -> None:
        while True:
            try:
                for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
                    status = dict(
                        line.split(":\t", 1) for line in Path(f"/proc/{each}/status").read_text().splitlines()
                    )
                    if "python" not in status["Name"] or "VmHWM" not in status:
                        continue
                    peaks[each] = max(peaks.get(each, 0), int(status["VmHWM"].split()[0]) * 1024)
            except (FileNotFoundError, ProcessLookupError):
                if not Path(f"/proc/{pid}").exists():
                    return
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    return peaks
