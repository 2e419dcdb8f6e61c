"""A job's output: read with its user's rights, sent once, and as it was when it comes back."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from burstd.transfer.agent.packing import OutgoingBuffers, TreePacker
from burstd.transfer.agent.user_process import AgentFault, PacketChannel, SharedBuffers
from burstd.transfer.content_store.manifest import ManifestEntry
from burstd.transfer.trees.walk import WalkRow
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, BOB, AgentAnsweredError, AgentRig, as_user, directory, give
from tests.transfer.awkward import MIB, NEW_YEAR, awkward, check_awkward

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    rig = AgentRig(tmp_path / "node")
    rig.deliver("12", rig.tree([directory()]))
    return rig


def names(entries: list[ManifestEntry]) -> list[str]:
    return sorted(os.fsdecode(e.path) for e in entries)


def test_an_awkward_tree_there_and_back(rig: AgentRig) -> None:
    rig.deliver("12", rig.tree(awkward(rig), "mine", access="copy"))
    out = rig.job("12") / "out"
    out.rmdir()
    (rig.job("12") / "in/mine").rename(out)
    done = rig.collect("12", ["."])
    tree = done["trees"][0]
    prefix = "out/12/gpu1"
    entries = rig.entries(tree, prefix)
    assert (tree["entries"], tree["single"], done["warnings"], done["files"]) == (14, False, [], [])
    assert tree["size"] == sum(e.size for e in entries if not e.hardlink_to)
    for entry in entries:
        if entry.kind == "f" and not entry.hardlink_to:
            content = rig.content(entry, prefix)
            assert hashlib.sha256(content).hexdigest() == entry.digest
            path = Path(os.fsdecode(os.fsencode(out) + b"/" + entry.path))
            assert content == path.read_bytes()
    assert done["sent"] < 5 * MIB
    for access in ("read_only", "copy"):
        rig.deliver("13", rig.back(tree, prefix, access, access))
        check_awkward(os.fsencode(rig.job("13") / "in" / access), read_only=access == "read_only")


def test_nothing_is_sent_again(rig: AgentRig) -> None:
    rig.write_output(a=os.urandom(40 * MIB), b=os.urandom(3000), c=b"", d__e=os.urandom(2 * MIB))
    first = rig.collect("12", ["."], [])
    assert first["sent"] > 42 * MIB
    again = rig.collect("12", ["."])
    assert (again["sent"], again["trees"]) == (0, first["trees"])
    rig.write_output(d__e=os.urandom(2 * MIB))
    assert 2 * MIB < rig.collect("12", ["."])["sent"] < 2 * MIB + 5000
    assert rig.progress[-1]["bytes"] > 40 * MIB


@pytest.mark.parametrize(
    ("pattern", "paths", "single"),
    [
        ("results/*.csv", ["", "a.csv", "b.csv"], False),
        ("results/a.csv", ["a.csv"], True),
        ("./results//a.csv", ["a.csv"], True),
        ("results", ["", ".hidden.csv", "a.csv", "b.csv", "deep", "deep/c.csv", "x.txt"], False),
        ("**/*.csv", ["", "results", "results/a.csv", "results/b.csv", "results/deep", "results/deep/c.csv"], False),
        ("re*/deep", ["", "results", "results/deep", "results/deep/c.csv"], False),
        ("odd [x]*", ["odd [x]*"], True),
        ("link", ["link"], True),
    ],
)
def test_patterns(rig: AgentRig, pattern: str, paths: list[str], single: bool) -> None:
    out = rig.write_output(
        **{"results__a.csv": b"a", "results__b.csv": b"b", "results__x.txt": b"x", "results__.hidden.csv": b"h"},
        **{"results__deep__c.csv": b"c", "odd [x]*": b"o"},
    )  # fmt: skip
    (out / "link").symlink_to("/etc")
    done = rig.collect("12", [pattern])
    tree = done["trees"][0]
    assert (tree["pattern"], tree["single"], done["warnings"]) == (pattern, single, [])
    entries = rig.entries(tree, "out/12/gpu1")
    assert names(entries) == paths
    if pattern == "link":
        assert (entries[0].kind, entries[0].link_target) == ("l", b"/etc")


def test_what_a_pattern_may_not_do(rig: AgentRig) -> None:
    out = rig.write_output(x=b"x")
    (out / "link").symlink_to("/etc")
    (out / "dir").mkdir()
    (out / "dir/inner").symlink_to("/etc")
    for pattern in ("../in", "a/../../in", "/etc"):
        with pytest.raises(AgentAnsweredError, match="leads out"):
            rig.collect("12", [pattern])
    done = rig.collect("12", ["link/passwd", "link/pass*", "l*/passwd", "**/passwd", "none", "none/*"])
    assert [tree["entries"] for tree in done["trees"]] == [0] * 6
    assert len(done["warnings"]) == 6
    assert "link is a link, which is kept and not followed" in done["warnings"][0]
    assert "none names nothing" in done["warnings"][4]
    everything = rig.entries(rig.collect("12", ["."])["trees"][0], "out/12/gpu1")
    assert {e.path: e.link_target for e in everything if e.kind == "l"} == {b"link": b"/etc", b"dir/inner": b"/etc"}


def test_only_what_its_user_may_read(rig: AgentRig) -> None:
    out = rig.write_output(mine=b"mine", closed=b"closed")
    (out / "closed").chmod(0)
    (out / "locked/deep").mkdir(parents=True)
    (out / "locked/deep/inner").write_bytes(b"inner")
    give(out)
    for name in ("locked/deep/inner", "locked/deep", "locked"):
        (out / name).chmod(0)
    (out / "roots").write_bytes(b"secret")
    (out / "roots").chmod(0o600)
    os.link(out / "roots", out / "roots too")
    os.mkfifo(out / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(out / "s"))
    (out / "s").chmod(0o666)
    home = rig.top / "home"
    home.mkdir()
    (home / "slurm-12.out").write_bytes(b"said")
    (home / "bobs").write_bytes(b"bob")
    (home / "bobs").chmod(0o600)
    os.chown(home / "bobs", BOB, BOB)
    done = rig.collect("12", ["."], [str(home / "slurm-12.out"), str(home / "bobs"), str(home / "none"), str(home)])
    told = " | ".join(done["warnings"])
    for part in ("pipe was left out: pipe", "s was left out: socket", "home was left out: it is no file"):
        assert part in told
    lost = {e.path: e.link_target for e in rig.entries(done["missing"], "out/12/gpu1")}
    assert lost == {
        os.fsencode(path): b"Permission denied" for path in (out / "roots", out / "roots too", home / "bobs")
    }
    kept = rig.entries(done["trees"][0], "out/12/gpu1")
    assert names(kept) == ["", "closed", "locked", "locked/deep", "locked/deep/inner", "mine"]
    assert {rig.content(e, "out/12/gpu1") for e in kept if e.kind == "f"} == {b"closed", b"inner", b"mine"}
    for path in (out / "locked/deep/inner", out / "locked", out, out.parent):
        path.chmod(0)
    found = rig.collect("12", ["l*/d*/inn*", "locked/deep/inner", "roots"])
    assert [(t["entries"], t["single"]) for t in found["trees"]] == [(4, False), (1, True), (0, False)]
    assert names(rig.entries(found["missing"], "out/12/gpu1")) == [str(out / "roots")]
    assert [file is not None for file in done["files"]] == [True, False, False, False]
    (said,) = rig.entries(done["files"][0], "out/12/gpu1")
    assert (said.path, said.size, rig.content(said, "out/12/gpu1")) == (b"slurm-12.out", 4, b"said")
    assert not any(b"secret" in file.read_bytes() for file in rig.store_path.rglob("*") if file.is_file())


def test_many_small_files_large_ones_and_nearly_empty_sparse_ones(rig: AgentRig) -> None:
    out = rig.job("12") / "out"

    def make() -> None:
        for n in range(20_000):
            path = out / f"d{n // 500}"
            if n % 500 == 0:
                path.mkdir()
            if n % 3:
                (path / f"e{n}").touch()
            else:
                (path / f"f{n}").write_bytes(b"%d" % n * 300)
        (out / "large").write_bytes(os.urandom(70 * MIB + 1))
        with (out / "sparse").open("wb") as file:
            for n in range(200):
                file.seek(n * MIB)
                file.write(b"%d" % n)
            file.truncate(4 << 30)
        (out / "many holes").write_bytes(b"")
        os.utime(out, ns=(1, NEW_YEAR))

    assert as_user(ADA, make) == 0
    done = rig.collect("12", ["."])
    tree = done["trees"][0]
    assert (tree["entries"], done["warnings"]) == (1 + 40 + 20_003, [])
    assert done["sent"] < 110 * MIB
    entries = {e.path: e for e in rig.entries(tree, "out/12/gpu1")}
    sparse = entries[b"sparse"]
    assert (sparse.size, sparse.pieces[-1].key, len({p.key for p in sparse.pieces})) == (4 << 30, "", 2)
    assert len(entries[b"large"].pieces) == 3
    # Few objects: files are packed, one pack holds parts of the sparse one too.
    assert sum(file.is_file() for file in (rig.store_path / "out").rglob("*")) < 15
    rig.deliver("13", rig.back(tree, "out/12/gpu1"))
    back = rig.job("13") / "in/back"
    assert (back / "large").read_bytes() == (out / "large").read_bytes()
    assert (back / "sparse").stat().st_blocks < 2 * (out / "sparse").stat().st_blocks
    with (back / "sparse").open("rb") as file:
        assert all(os.pread(file.fileno(), 3, n * MIB).strip(b"\0") == b"%d" % n for n in range(200))
    assert (back / "d0/f300").read_bytes() == b"300" * 300
    assert back.stat().st_mtime_ns == NEW_YEAR


def test_a_store_that_is_full_or_gone(rig: AgentRig) -> None:
    rig.write_output(**{f"f{n}": os.urandom(2 * MIB) for n in range(20)})
    shutil.rmtree(rig.store_path)
    small = rig.top / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
    try:
        rig.reach = {"kind": "dir", "facts": {"path": str(small / "store")}}
        (small / "store").mkdir()
        with pytest.raises(AgentAnsweredError, match="No space left") as caught:
            rig.collect("12", ["."])
        assert caught.value.kind == "full"
    finally:
        subprocess.run(["umount", small], check=True)
    rig.reach = {"kind": "dir", "facts": {"path": str(rig.top / "gone/store")}}
    with pytest.raises(AgentAnsweredError) as caught:
        rig.collect("12", ["."])
    assert caught.value.kind == "store"


def test_what_fails_to_be_read_is_not_left_behind(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        gathering = TreePacker(OutgoingBuffers(PacketChannel(ours), SharedBuffers()))
        # A descriptor that cannot be read, as that of a file on a bad disk.
        with pytest.raises(AgentFault, match=r"^a cannot be read: .*burstctl stage retry") as caught:
            gathering.pack_file(b"a", os.open(tmp_path, os.O_RDONLY))
        rows: list[tuple[WalkRow, int]] = [(["e", "res", errno.EIO], -1)]
        with pytest.raises(AgentFault, match=r"^/out/res cannot be read: Input/output error"):
            list(gathering.pending_entries(iter(rows), "/out"))
    assert (caught.value.kind, gathering.warnings, gathering.missing) == ("agent", [], [])


def test_a_name_with_wildcards_in_it(rig: AgentRig) -> None:
    rig.write_output(**{"run[1]__a": b"a", "run1__b": b"b", "x?": b"x", "xy": b"y"})
    done = rig.collect("12", ["run[[]1]", "x[?]", "run[[]1]/*", "none[*]"])
    kept = [names(rig.entries(tree, "out/12/gpu1")) for tree in done["trees"]]
    assert kept == [["", "a"], ["x?"], ["", "run[1]", "run[1]/a"], []]
    assert [tree["single"] for tree in done["trees"]] == [False, True, False, False]


def test_the_folder_of_another_job(rig: AgentRig) -> None:
    with pytest.raises(AgentAnsweredError, match=r"not the folder of job 13 .*put it back from the backup"):
        rig.collect("13", ["."], dir=str(rig.job("12")))
    rig.uid = BOB
    with pytest.raises(AgentAnsweredError, match=f"not the folder of job 12 of uid {BOB}"):
        rig.collect("12", ["."])


def test_objects_are_their_owners_who_is_burstd_on_the_head(rig: AgentRig) -> None:
    os.chown(rig.store_path, BOB, BOB)
    rig.write_output(a=b"text")
    rig.collect("12", ["a"])
    made = list((rig.store_path / "out").rglob("*"))
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(BOB, BOB)}
