"""The agent where it is no full root: as an ordinary user, and as root with the few rights that a pod may have."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, AgentAnsweredError, AgentRig, directory, small
from tests.transfer.awkward import awkward, check_awkward

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
POD, VOLUMES = 1000650000, 1000650001
"""A user that a restricted cluster has chosen, in group 0, and the group that its volumes have."""
NEEDED = ("chown", "dac_override", "fowner", "setgid", "setuid")
PYTHON = "/usr/bin/python3"


def ordinary(folder: Path) -> AgentRig:
    """As a restricted cluster runs it. Its volumes are root's, and open to all of the pod."""
    rig = AgentRig(folder)
    rig.python = (
        "setpriv", f"--reuid={POD}", "--regid=0", f"--groups={VOLUMES}", "--inh-caps=-all", "--bounding-set=-all",
        "--no-new-privs", PYTHON,
    )  # fmt: skip
    rig.program.chmod(0o644)
    os.chown(rig.spool, 0, VOLUMES)
    rig.spool.chmod(0o2777)
    shutil.rmtree(rig.store_path)
    rig.store_path.mkdir()
    os.chown(rig.store_path, POD, VOLUMES)
    rig.store.ensure_root()
    for each in (rig.store_path, *rig.store_path.iterdir()):
        os.chown(each, POD, VOLUMES)
    return rig


def confined(folder: Path, rights: tuple[str, ...]) -> AgentRig:
    """Root with some rights only."""
    bounds = ",".join(["-all", *(f"+{right}" for right in rights)])
    rig = AgentRig(folder)
    rig.python = ("setpriv", f"--bounding-set={bounds}", "--no-new-privs", PYTHON)
    return rig


def belongs_to_pod(folder: Path) -> None:
    """What this test's root has put into the store is the mover's."""
    for above, names, others in os.walk(folder):
        for name in (*names, *others):
            os.chown(Path(above) / name, POD, VOLUMES, follow_symlinks=False)


@pytest.mark.parametrize("rights", ["ordinary", "few"])
def test_input_comes_and_output_goes(rights: str, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = ordinary(tmp_path / "node") if rights == "ordinary" else confined(tmp_path / "node", NEEDED)
    owner = POD if rights == "ordinary" else ADA
    entries = awkward(rig)
    shared, own = rig.tree(entries), rig.tree(entries, "mine", access="copy")
    if rights == "ordinary":
        belongs_to_pod(rig.store_path)
    assert rig.deliver("12", shared, own)["hits"] == 1
    assert oct(os.lstat(rig.job("12")).st_mode) == "0o40700"
    check_awkward(os.fsencode(rig.job("12") / "in/data"), read_only=True, owner=owner)
    check_awkward(os.fsencode(rig.job("12") / "in/mine"), read_only=False, owner=owner)

    out = rig.job("12") / "out"
    out.rmdir()
    (rig.job("12") / "in/mine").rename(out)
    done = rig.collect("12", ["."])
    tree = done["trees"][0]
    assert (tree["entries"], done["warnings"], done["missing"]) == (14, [], None)
    # What the head brings home comes out as it was; whose it is there is not the pod's to say.
    assert rig.deliver("13", rig.back(tree, "out/12/gpu1"))["fetched"] > 0
    check_awkward(os.fsencode(rig.job("13") / "in/back"), read_only=True, owner=owner)

    for job in ("12", "13"):
        rig.clear(job)
        assert not rig.job(job).exists()
    # Used by no job any more, it makes room.
    free = os.statvfs(rig.spool)
    rig.keep_free = free.f_bavail * free.f_frsize
    with pytest.raises(AgentAnsweredError, match="no tree is left that no job uses"):
        rig.deliver("14", rig.tree([directory(), small(b"f", rig.put(b"x"), 0, 1)], size=1 << 50))
    assert [p.name for p in (rig.spool / f"cache/{ADA}").iterdir() if len(p.name) == 64] == []


@pytest.mark.parametrize("lacks", NEEDED)
def test_each_right_is_needed(lacks: str, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = confined(tmp_path / "node", tuple(right for right in NEEDED if right != lacks))
    tree = rig.tree(awkward(rig))

    def stage() -> None:
        rig.deliver("1", tree)
        rig.clear("1")

    with pytest.raises(AgentAnsweredError, match=r"denied|not permitted"):
        stage()


@pytest.mark.parametrize("rights", ["ordinary", "few"])
def test_the_working_directory_comes_and_goes(rights: str, tmp_path: Path) -> None:
    """Below a directory that the image has opened for group 0, as config/images/Containerfile does."""
    let_others_in(tmp_path)
    rig = ordinary(tmp_path / "node") if rights == "ordinary" else confined(tmp_path / "node", NEEDED)
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        top = Path(name)
        top.chmod(0o775 if rights == "ordinary" else 0o755)
        tree = rig.tree([directory(), small(b"f", rig.put(b"text"), 0, 4)])
        if rights == "ordinary":
            belongs_to_pod(rig.store_path)
        path = top / "ada/project"
        wanted = {"path": str(path), "home": str(path.parent), "ignore": [], "directories": [], "tree": tree}
        rig.deliver("12", workdir=wanted)
        owner = POD if rights == "ordinary" else ADA
        assert (path / "f").read_text() == "text"
        assert {each.stat().st_uid for each in (path, path / "f", path.parent)} == {owner}
        (path / "f").write_text("new")
        (path / "g").write_text("more")
        os.chown(path / "g", owner, -1)
        tree = rig.collect("12", [], workdir={"always": []})["workdir"]
        assert [entry.path for entry in rig.entries(tree, "out/12/gpu1")] == [b"", b"f", b"g"]
        rig.clear("12")
        assert list(top.iterdir()) == []
        if rights == "ordinary":
            top.chmod(0o755)
            with pytest.raises(AgentAnsweredError, match=r"ada cannot be made on the node \(Permission denied\)"):
                rig.deliver("13", workdir=wanted)
