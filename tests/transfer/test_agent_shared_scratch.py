"""Shared scratch on one node: a directory of the job's user that ends with the job. Several: tests/e2e/test_mounts."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from burstd.transfer.agent.job_folder import JobFolder
from burstd.transfer.agent.shared_scratch import serve_shared
from burstd.transfer.agent.unmount import mount_points, unmount_tree
from burstd.transfer.agent.user_process import AgentFault
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, BOB, AgentAnsweredError, AgentRig, as_user

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    return AgentRig(tmp_path / "node")


def serve(rig: AgentRig, job: str, **more: Any) -> dict[str, Any]:
    request = rig.delivery_request(job) | {"do": "serve_shared", "bytes": 0, "server": None, **more}
    return rig.run(request)


def test_it_is_the_users_alone_empty_in_each_run_and_gone_with_the_job(rig: AgentRig) -> None:
    rig.deliver("7-share")
    shared = rig.job("7-share.shared")
    for _ in range(2):
        assert serve(rig, "7-share") == {"port": 0}
        facts = shared.stat()
        assert (stat.S_IMODE(facts.st_mode), facts.st_uid, list(shared.iterdir())) == (0o700, ADA, [])
        assert as_user(ADA, (shared / "file").touch) == 0
        assert as_user(BOB, (shared / "file").read_bytes) != 0
    rig.collect("7-share", [])
    serve(rig, "7-share")
    rig.clear("7-share")
    rig.clear("7-share")
    assert [path.name for path in rig.spool.iterdir()] == ["cache"]
    assert not Path("/run/burstd/shared/7-share").exists()


def test_what_a_job_has_left_mounted_keeps_neither_its_output_nor_its_node(rig: AgentRig) -> None:
    """On another one's directory, one on the other, in a folder of the job too; nothing beside them is unmounted."""
    outside = rig.top / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    rig.deliver("7-share")
    serve(rig, "7-share")
    shared = rig.job("7-share.shared")
    beside = rig.job("7-share.shared2")
    points = [shared, shared / "a b\\c", shared / "a b\\c/inner", rig.job("7-share") / "out" / "data", beside]
    try:
        for point in points:
            point.mkdir(parents=True, exist_ok=True)
            for _ in range(2):
                subprocess.run(["mount", "--bind", outside, point], check=True)
        rig.collect("7-share", [])
        assert mount_points(str(shared)) == []
        rig.clear("7-share")
        assert (outside / "kept").read_text() == "kept"
        assert not shared.exists()
        assert not rig.job("7-share").exists()
        assert mount_points(str(beside)) == [str(beside)] * 2
    finally:
        for point in points:
            unmount_tree(str(point))


def test_a_link_put_in_the_way_of_unmounting_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, job = tmp_path / "elsewhere/data", tmp_path / "job"
    elsewhere.mkdir(parents=True)
    job.mkdir()
    (job / "a").symlink_to(elsewhere.parent)
    subprocess.run(["mount", "-t", "tmpfs", "none", elsewhere], check=True)
    try:
        # As it was listed before somebody renamed its directory.
        monkeypatch.setattr("burstd.transfer.agent.unmount.mount_points", lambda path: [f"{path}/a/data"])
        assert not unmount_tree(str(job))
        monkeypatch.undo()
        assert mount_points(str(elsewhere)) == [str(elsewhere)]
    finally:
        subprocess.run(["umount", elsewhere], check=True)


def test_what_is_there_already_stays_and_room_is_checked(rig: AgentRig) -> None:
    rig.deliver("7-share")
    taken = rig.job("7-share.shared")
    taken.mkdir()
    with pytest.raises(AgentAnsweredError, match="burstd has not made it: move it away"):
        serve(rig, "7-share")
    rig.clear("7-share")
    assert taken.exists()
    taken.rmdir()
    rig.deliver("7-share")
    with pytest.raises(AgentAnsweredError, match="submit to a partition whose machines have larger disks") as caught:
        serve(rig, "7-share", bytes=1 << 60)
    assert caught.value.kind == "space"
    rig.clear("7-share")
    assert not taken.exists()


def test_an_image_without_sshd_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda tool, path: None if tool == "sshd" else f"{path}/{tool}")
    request = {"job": "7", "uid": ADA, "gid": ADA, "bytes": 0, "server": {"address": "10.0.0.1"}}
    with pytest.raises(AgentFault, match="needs sshd on the first node of the job: submit to a partition whose image"):
        serve_shared(JobFolder(str(tmp_path / "7")), request)


def test_without_root_several_nodes_cannot_share(rig: AgentRig) -> None:
    rig.python = ("setpriv", f"--reuid={ADA}", f"--regid={ADA}", "--clear-groups", *rig.python)
    os.chown(rig.spool, ADA, ADA)
    rig.deliver("7-share")
    assert serve(rig, "7-share") == {"port": 0}
    server = {"address": "10.0.0.1", "port": 43000, "host_key": "", "client_key": ""}
    for what in ("serve_shared", "mount_shared"):
        with pytest.raises(AgentAnsweredError, match="needs root on them, and the machines of this pool have none"):
            serve(rig, "7-share", do=what, server=server)
    rig.clear("7-share")
    assert not rig.job("7-share.shared").exists()
