"""The working directory on a node: filled whole, never mixed with another's, and gone when the job is."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burstd.staging.submission.workdir import compile_ignore_lines
from burstd.transfer.agent import workdir
from burstd.transfer.content_store.manifest import ManifestEntry
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, AgentAnsweredError, AgentRig, as_user, directory, small

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
IGNORE = compile_ignore_lines(["*.tmp", "logs/"])


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    return AgentRig(tmp_path / "node")


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that is no system's."""
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def tree(rig: AgentRig) -> dict[str, Any]:
    pack = rig.put(b"input" + b"code")
    return rig.tree(
        [directory(), small(b"input.txt", pack, 0, 5), directory(b"src"), small(b"src/code", pack, 5, 4, 0o755),
         ManifestEntry(b"src/link", "l", 0o777, 5, link_target=b"code"), directory(b"unchanged"),
         small(b"unchanged/f", pack, 0, 5)],
    )  # fmt: skip


def asked(rig: AgentRig, path: Path, **more: Any) -> dict[str, Any]:
    return {
        "path": str(path), "home": str(path.parent), "ignore": IGNORE, "directories": ["logs/deep"], "tree": tree(rig),
        **more,
    }  # fmt: skip


def changed(rig: AgentRig, always: tuple[str, ...] = ()) -> dict[bytes, str]:
    """What comes home, by path: the content of files, else their kind."""
    done = rig.collect("1", [], workdir={"always": list(always)})
    found = rig.entries(done["workdir"], "out/1/gpu1")
    return {e.path: rig.content(e, "out/1/gpu1").decode() if e.kind == "f" else e.kind for e in found}


def test_what_is_new_or_changed_comes_home(rig: AgentRig, top: Path) -> None:
    path = top / "home/ada/project"
    rig.deliver("1", workdir=asked(rig, path))
    assert (path / "input.txt").read_text() == "input"
    assert [(p.stat().st_uid, oct(p.stat().st_mode)) for p in (path, path / "src/code")] == [
        (ADA, "0o40755"), (ADA, "0o100755")
    ]  # fmt: skip
    assert ((top / "home").stat().st_uid, (top / "home/ada").stat().st_uid) == (0, ADA), "the home is the user's"
    assert sorted(p.name for p in path.parent.iterdir()) == ["project"]
    assert changed(rig) == {b"": "d"}

    def work() -> None:
        (path / "src/code").write_text("CODE")
        os.utime(path / "src/code", ns=(10**18 + 7, 10**18 + 7))
        (path / "new/empty").mkdir(parents=True)
        (path / "new/second").hardlink_to(path / "unchanged/f")
        (path / "src/link").unlink()
        (path / "src/link").symlink_to("other")
        (path / "input.txt").unlink()
        for name in ("a.tmp", "logs/1.out", "logs/2.out"):
            (path / name).write_text(name)

    assert as_user(ADA, work) == 0
    # A link changes when the file was changed: it is taken once more.
    assert changed(rig, ("logs/1.out",)) == {
        b"": "d", b"logs": "d", b"logs/1.out": "logs/1.out", b"new": "d", b"new/empty": "d",
        b"new/second": "input", b"src": "d", b"src/code": "CODE", b"src/link": "l", b"unchanged": "d",
        b"unchanged/f": "input",
    }  # fmt: skip
    rig.deliver("1", workdir=asked(rig, path))
    assert (path / "src/code").read_text() == "CODE", "one that is there is the job's"
    rig.clear("1")
    assert list(top.iterdir()) == []
    assert not rig.job("1").exists()


@pytest.mark.parametrize("step", ["renamed", "filled_ns"])
def test_a_try_that_was_killed_is_gone_on_with(rig: AgentRig, top: Path, step: str) -> None:
    path = top / "project"
    rig.deliver("1", workdir=asked(rig, path))
    record = next(rig.spool.glob(".burst-1*.json"))
    facts = json.loads(record.read_text())
    for key in ("renamed", "filled_ns")[("renamed", "filled_ns").index(step) :]:
        del facts["workdir"][key]
    if step == "renamed":
        unfinished = top / ".burst-1"
        unfinished.mkdir()
        os.chown(unfinished, ADA, ADA)
        path.rename(unfinished / "tree")
    record.write_text(json.dumps(facts))
    rig.deliver("1", workdir=asked(rig, path))
    assert (path / "src/code").read_text() == "code"
    assert [p.name for p in top.iterdir()] == ["project"]
    rig.clear("1")
    assert list(top.iterdir()) == []


@pytest.mark.parametrize("inside", ["project", "project/src/inner", ""])
def test_two_jobs_are_never_mixed(rig: AgentRig, top: Path, inside: str) -> None:
    rig.deliver("1", workdir=asked(rig, top / "x/project"))
    with pytest.raises(AgentAnsweredError, match=r"job 1 has .*: give such a partition OverSubscribe=EXCLUSIVE"):
        rig.deliver("2", workdir=asked(rig, top / "x" / inside))
    rig.clear("2")
    assert (top / "x/project/src/code").read_text() == "code"
    rig.deliver("3", workdir=asked(rig, top / "x/other"))
    rig.clear("1")
    assert (top / "x/other/src/code").read_text() == "code"
    rig.clear("3")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/new",
        "/var/lib/x",
        "/",
        "/srv/../etc/x",
        "//srv/x",
        "/usr",
        "/usr/local/lib/x",
        "/opt/x",
        "/var/log/x",
        "relative",
        "/srv/x/",
    ],
)
def test_a_nodes_own_directories_are_refused(rig: AgentRig, path: str) -> None:
    with pytest.raises(AgentAnsweredError, match=r"the node's own|no absolute path") as refused:
        rig.deliver("1", workdir={**asked(rig, Path("/srv/x")), "path": path})
    assert refused.value.kind == "rights"


def test_what_is_there_already_stays(rig: AgentRig, top: Path) -> None:
    path = top / "project"
    path.mkdir()
    (path / "theirs").write_text("theirs")
    with pytest.raises(AgentAnsweredError, match="is on the node already, and burstd has not made it"):
        rig.deliver("1", workdir=asked(rig, path))
    rig.clear("1")
    assert (path / "theirs").read_text() == "theirs"


@pytest.mark.parametrize("content", ["theirs", ""])
def test_what_another_makes_meanwhile_stays(rig: AgentRig, top: Path, content: str) -> None:
    """Between the steps of a try, and in place of the job's own before it is removed."""
    path = top / "project"
    rig.deliver("1", workdir=asked(rig, path))
    record = next(rig.spool.glob(".burst-1*.json"))
    facts = json.loads(record.read_text())
    del facts["workdir"]["filled_ns"]
    record.write_text(json.dumps(facts))
    (top / ".burst-1").mkdir()
    os.chown(top / ".burst-1", ADA, ADA)
    path.rename(top / ".burst-1/tree")
    path.mkdir()
    if content:
        (path / "f").write_text(content)
    inode = path.stat().st_ino
    with pytest.raises(AgentAnsweredError, match="is on the node already, and burstd has not made it"):
        rig.deliver("1", workdir=asked(rig, path))
    rig.clear("1")
    assert [p.name for p in top.iterdir()] == ["project"]
    assert path.stat().st_ino == inode
    assert [p.read_text() for p in path.iterdir()] == ([content] if content else [])


@pytest.mark.parametrize("libc_lacks_it", [False, True])
def test_a_name_is_renamed_to_only_if_it_is_free(
    top: Path, monkeypatch: pytest.MonkeyPatch, libc_lacks_it: bool
) -> None:
    """With the kernel's call and without."""
    if libc_lacks_it:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    for name in ("old", "taken"):
        (top / name).mkdir()
    fd = os.open(top, os.O_RDONLY)
    try:
        with pytest.raises(FileExistsError):
            workdir._rename_to_free(fd, "old", fd, "taken")
        workdir._rename_to_free(fd, "old", fd, "free")
    finally:
        os.close(fd)
    assert sorted(p.name for p in top.iterdir()) == ["free", "taken"]


def test_links_of_a_user_lead_root_nowhere(rig: AgentRig, top: Path) -> None:
    """Neither when it is made nor when it is removed: the user exchanges what lies above it for a link."""
    home, elsewhere = top / "ada", top / "elsewhere"
    for each in (home, elsewhere):
        each.mkdir()
    os.chown(home, ADA, ADA)
    (elsewhere / "project").mkdir()
    (elsewhere / "project/f").write_text("theirs")
    (home / "link").symlink_to(elsewhere)
    with pytest.raises(AgentAnsweredError, match="no directory, or a link that another user may change"):
        rig.deliver("1", workdir=asked(rig, home / "link/new"))
    rig.clear("1")
    assert sorted(p.name for p in elsewhere.iterdir()) == ["project"]
    rig.deliver("2", workdir=asked(rig, home / "sub/project"))

    def exchange() -> None:
        (home / "sub").rename(home / "gone")
        (home / "sub").symlink_to(elsewhere)

    assert as_user(ADA, exchange) == 0
    rig.clear("2")
    assert (elsewhere / "project/f").read_text() == "theirs"
    assert (home / "gone/project/input.txt").exists(), "it is the user's, and elsewhere now"


@pytest.mark.parametrize("same_file_system", [False, True])
def test_what_is_mounted_in_it_stays(rig: AgentRig, top: Path, same_file_system: bool) -> None:
    path = top / "project"
    (top / "other").mkdir()
    rig.deliver("1", workdir=asked(rig, path))
    (path / "mounted").mkdir()
    what = ["--bind", str(top / "other")] if same_file_system else ["-t", "tmpfs", "tmpfs"]
    subprocess.run(["mount", *what, str(path / "mounted")], check=True)
    try:
        (path / "mounted/theirs").write_text("theirs")
        with pytest.raises(AgentAnsweredError, match="is mounted there, and is not removed"):
            rig.clear("1")
        assert (path / "mounted/theirs").read_text() == "theirs"
    finally:
        subprocess.run(["umount", str(path / "mounted")], check=True)
    rig.clear("1")
    assert [p.name for p in top.iterdir()] == ["other"]
