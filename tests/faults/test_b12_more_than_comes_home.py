"""Output beyond a limit stays where it is: its job is held at once, and the reason names the limit and what to do."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from burstd.node.agent import AgentError
from burstd.staging.controller.tasks import JobSummary, Meter, StageFailed, StagingTask
from burstd.staging.movement import output_journal
from burstd.staging.movement.job_folders import JobFolders
from burstd.transfer.agent import packing
from burstd.transfer.agent.user_process import AgentFault, PacketChannel, SharedBuffers
from burstd.transfer.content_store import manifest
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, decode_manifest, encode_manifest
from burstd.transfer.privsep.client import Account
from tests.reach import let_others_in
from tests.reconciler.test_stage_in_place import CLAIM
from tests.security.test_a06_job_folders import AgentRequestRecorder, job, transfers
from tests.transfer.agent_rig import AgentAnsweredError, AgentRig, directory, give
from tests.transfer.ground import USER, give_to_user, root_only, user_folder

REMEDY = "stays on the node until an administrator packs .*burstctl stage retry; .*burstctl stage discard"


def packed_by_child(base: Path) -> dict[str, Any]:
    """What the child on a node makes of a folder; what it sends counts as put."""
    head_end, node_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with head_end, node_end:
        line, other = PacketChannel(head_end), PacketChannel(node_end)

        def put() -> None:
            while "over" not in (message := other.receive()[0]):
                other.send({"key": "0" * 64, "slot": message["object"]})

        putting = threading.Thread(target=put)
        putting.start()
        try:
            return packing.pack_output(line, SharedBuffers(), {"base": str(base), "pattern": "."}, [])
        finally:
            line.send({"over": True})
            putting.join()


@pytest.mark.parametrize(
    ("module", "limit", "value", "why"),
    [(packing, "MAX_ENTRIES", 20, "it has more than 20 entries"),
     (manifest, "MAX_INFLATED_BYTES", 2000, "fill more than 2000 bytes"),
     (manifest, "MAX_TEXT_BYTES", 150, "the path .* is too long")],
)  # fmt: skip
def test_a_node_refuses_what_the_head_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, value: int, why: str
) -> None:
    base = tmp_path / "job" / "out"
    base.mkdir(parents=True)
    for n in range(30):
        (base / f"{n:030}").write_bytes(b"x")
    assert packed_by_child(base)["entries"] == 31
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(AgentFault, match=f"{why}.*{REMEDY}") as caught:
        packed_by_child(base)
    assert caught.value.kind == "limit"
    assert str(base) in str(caught.value)


def test_what_is_encoded_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each limit: what has one byte more is refused by both."""
    entries = [
        ManifestEntry(b"", "d", 0o755, 1),
        *(ManifestEntry(b"\xff%d" % n, "f", 0o600, n, digest="0" * 64) for n in range(40)),
    ]
    bodies = list(encode_manifest(entries))
    for limit in ("MAX_INFLATED_BYTES", "MAX_TEXT_BYTES"):
        with monkeypatch.context() as patch:
            for value in range(10, 6000, 10):
                patch.setattr(manifest, limit, value)
                try:
                    list(decode_manifest(bodies))
                except ManifestDamaged:
                    with pytest.raises(manifest.TreeTooLarge):
                        list(encode_manifest(entries))


@pytest.mark.boxes
@root_only
def test_sparse_files_of_more_bytes_than_can_be_counted(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = AgentRig(tmp_path / "node")
    rig.deliver("12", rig.tree([directory()]))
    out = rig.job("12") / "out"
    for n in range(140):
        with (out / f"sparse{n}").open("wb") as file:
            file.truncate(8 << 40)
    give(out)
    with pytest.raises(AgentAnsweredError, match=f"{1 << 50} bytes.*{REMEDY}") as caught:
        rig.collect("12", ["."])
    assert caught.value.kind == "limit"
    assert len(list(out.iterdir())) == 140


def test_its_job_is_held_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(AgentRequestRecorder):
        def run(self, _claim: object, request: dict[str, Any], **_more: object) -> dict[str, Any]:  # noqa: ARG002
            raise AgentError("limit", "it has more than 20 entries")

    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    work = transfers(JobFolders("/jobs", b"key"), Refuses())
    task = StagingTask(job("#BURST stage_out . to /results\n"), Meter("7", "out"))
    with pytest.raises(StageFailed, match="n3: it has more than 20 entries") as caught:
        work.collect_output(task, CLAIM, [])
    assert not caught.value.retryable


@pytest.mark.boxes
@root_only
def test_a_pattern_of_too_many_files_on_premises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    monkeypatch.setattr(output_journal, "MAX_NAMES", 3)
    with user_folder() as place, user_folder() as home:
        place.chmod(0o1733)
        folders = JobFolders(str(place), os.urandom(32))
        work, row = transfers(folders, AgentRequestRecorder()), job(f"#BURST stage_out x* to {home}/results\n")
        work.link_on_premises(StagingTask(row, Meter("7", "link")))
        out = Path(folders.job_environment("7")["BURST_OUT"])
        for n in range(5):
            (out / f"x{n}").write_text("x")
        give_to_user(out)
        with pytest.raises(StageFailed, match=f"more than 3 files in {out}: pack .*burstctl stage retry 7") as caught:
            work.deliver_output(StagingTask(row, Meter("7", "home")), JobSummary(on_premises=True))
        assert not caught.value.retryable
        assert len(list(out.iterdir())) == 5
        for n in range(3):
            (out / f"x{n}").unlink()
        work.deliver_output(StagingTask(row, Meter("7", "home")), JobSummary(on_premises=True))
        assert sorted(path.name for path in (home / "results").glob("x*")) == ["x3", "x4"]
