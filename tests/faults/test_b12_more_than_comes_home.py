"""Output beyond a limit stays where it is: its job is held at once, and the reason names the limit and what to do."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from burstd.node.agent import AgentError
from burstd.staging.controller.tasks import Ended, StageFailed, Task
from burstd.staging.movement import output_journal
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.progress import Meter
from burstd.transfer.agent import packing
from burstd.transfer.agent.user_process import AgentFault, Line, Slots
from burstd.transfer.content_store import manifest
from burstd.transfer.content_store.manifest import Entry, ManifestDamaged, decode, encode
from burstd.transfer.privsep.client import Account
from tests.reach import let_others_in
from tests.reconciler.test_stage_in_place import CLAIM
from tests.security.test_a06_job_folders import Agent, job, transfers
from tests.transfer.agent_rig import Answered, Rig, directory
from tests.transfer.ground import USER, ground, own, root_only
from tests.transfer.test_agent_collect import give

REMEDY = "stays on the node until an administrator packs .*burstctl stage retry; .*burstctl stage discard"


def gathered(base: Path) -> dict[str, Any]:
    """What the child on a node makes of a folder; what it sends counts as put."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        line, other = Line(ours), Line(theirs)

        def put() -> None:
            while "over" not in (message := other.receive()[0]):
                other.send({"key": "0" * 64, "slot": message["object"]})

        putting = threading.Thread(target=put)
        putting.start()
        try:
            return packing.gather(line, Slots(), {"base": str(base), "pattern": "."}, [])
        finally:
            line.send({"over": True})
            putting.join()


@pytest.mark.parametrize(
    ("module", "limit", "value", "why"),
    [(packing, "ENTRIES", 20, "it has more than 20 entries"),
     (manifest, "INFLATED_BYTES", 2000, "fill more than 2000 bytes"),
     (manifest, "TEXT_BYTES", 150, "the path .* is too long")],
)  # fmt: skip
def test_a_node_refuses_what_the_head_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, value: int, why: str
) -> None:
    base = tmp_path / "job" / "out"
    base.mkdir(parents=True)
    for n in range(30):
        (base / f"{n:030}").write_bytes(b"x")
    assert gathered(base)["entries"] == 31
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(AgentFault, match=f"{why}.*{REMEDY}") as caught:
        gathered(base)
    assert caught.value.kind == "limit"
    assert str(base) in str(caught.value)


def test_what_is_encoded_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each limit: what has one byte more is refused by both."""
    entries = [Entry(b"", "d", 0o755, 1), *(Entry(b"\xff%d" % n, "f", 0o600, n, digest="0" * 64) for n in range(40))]
    bodies = list(encode(entries))
    for limit in ("INFLATED_BYTES", "TEXT_BYTES"):
        with monkeypatch.context() as patch:
            for value in range(10, 6000, 10):
                patch.setattr(manifest, limit, value)
                try:
                    list(decode(bodies))
                except ManifestDamaged:
                    with pytest.raises(manifest.TreeTooLarge):
                        list(encode(entries))


@pytest.mark.boxes
@root_only
def test_sparse_files_of_more_bytes_than_can_be_counted(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    rig = Rig(tmp_path / "node")
    rig.place("12", rig.tree([directory()]))
    out = rig.job("12") / "out"
    for n in range(140):
        with (out / f"sparse{n}").open("wb") as file:
            file.truncate(8 << 40)
    give(out)
    with pytest.raises(Answered, match=f"{1 << 50} bytes.*{REMEDY}") as caught:
        rig.collect("12", ["."])
    assert caught.value.kind == "limit"
    assert len(list(out.iterdir())) == 140


def test_its_job_is_held_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(Agent):
        def run(self, _claim: object, request: dict[str, Any], **_more: object) -> dict[str, Any]:  # noqa: ARG002
            raise AgentError("limit", "it has more than 20 entries")

    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    work = transfers(JobFolders("/jobs", b"key"), Refuses())
    task = Task(job("#BURST stage_out . to /results\n"), Meter("7", "out"))
    with pytest.raises(StageFailed, match="n3: it has more than 20 entries") as caught:
        work.collect(task, CLAIM, [])
    assert not caught.value.again


@pytest.mark.boxes
@root_only
def test_a_pattern_of_too_many_files_on_premises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    monkeypatch.setattr(output_journal, "MOST_NAMES", 3)
    with ground() as place, ground() as home:
        place.chmod(0o1733)
        folders = JobFolders(str(place), os.urandom(32))
        work, row = transfers(folders, Agent()), job(f"#BURST stage_out x* to {home}/results\n")
        work.link(Task(row, Meter("7", "link")))
        out = Path(folders.environment("7")["BURST_OUT"])
        for n in range(5):
            (out / f"x{n}").write_text("x")
        own(out)
        with pytest.raises(StageFailed, match=f"more than 3 files in {out}: pack .*burstctl stage retry 7") as caught:
            work.bring(Task(row, Meter("7", "home")), Ended(on_premises=True))
        assert not caught.value.again
        assert len(list(out.iterdir())) == 5
        for n in range(3):
            (out / f"x{n}").unlink()
        work.bring(Task(row, Meter("7", "home")), Ended(on_premises=True))
        assert sorted(path.name for path in (home / "results").glob("x*")) == ["x3", "x4"]
