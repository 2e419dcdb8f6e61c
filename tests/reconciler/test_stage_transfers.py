"""What nodes say is bound to their job and looked at, and what a job left is cleared without its owner's account."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.plugins.stager import NoSuchObject, StoreBusy, StoreSpaceGone
from burstd.domain.staging import StageState, Staging, Tree
from burstd.node.agent import AgentError, NodeAgent
from burstd.slurm.commands.run import SlurmCommands
from burstd.staging.controller.tasks import Meter, StageFailed, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.agent_requests import answer_agent_request, repair_objects
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.privsep.client import Account, start_user_worker, user_worker_for
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.db.samples import planned
from tests.transfer.ground import OTHER, USER, give_to_user, in_store, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
KEY = "ab/" + "ab" * 32
NEVER = threading.Event()


@pytest.mark.parametrize(
    ("may", "prefix", "asked", "given"),
    [
        (("GET",), "in", {"sign": {"method": "GET", "keys": [f"in/{KEY}"]}}, True),
        (("GET",), "in", {"sign": {"method": "PUT", "keys": [f"in/{KEY}"]}}, False),
        (("GET",), "in", {"sign": {"method": "GET", "keys": [f"in/{KEY}", f"out/7/n1/{KEY}"]}}, False),
        (("GET",), "in", {"sign": {"method": "GET", "keys": [f"in/../out/7/n1/{KEY}"]}}, False),
        (("GET",), "in", {"sign": {"method": "GET", "keys": f"in/{KEY}"}}, False),
        (("GET",), "in", {"present": [f"in/{KEY}"]}, False),
        (("GET", "PUT"), "out/7/n1", {"sign": {"method": "PUT", "keys": [f"out/7/n1/{KEY}"]}}, True),
        (("GET", "PUT"), "out/7/n1", {"present": [f"out/7/n1/{KEY}"]}, True),
        (("GET", "PUT"), "out/7/n1", {"sign": {"method": "PUT", "keys": [f"out/7/n11/{KEY}"]}}, False),
        (("GET", "PUT"), "out/7/n1", {"sign": {"method": "GET", "keys": [f"in/{KEY}"]}}, False),
        (("GET", "PUT"), "out/7/n1", {"sign": {"method": "DELETE", "keys": [f"out/7/n1/{KEY}"]}}, False),
        (("GET", "PUT"), "out/7/n1", {"present": [7]}, False),
    ],
)
def test_an_agent_gets_what_is_of_its_job(
    may: tuple[str, ...], prefix: str, asked: dict[str, Any], given: bool
) -> None:
    if given:
        assert "error" not in answer_agent_request(MemoryStager(), "n1", may, prefix, asked)
        return
    with pytest.raises(StageFailed, match="n1: its agent asked for objects that are not of its job") as caught:
        answer_agent_request(MemoryStager(), "n1", may, prefix, asked)
    assert not caught.value.retryable


def test_a_node_s_word_removes_only_what_is_damaged() -> None:
    stager, index = MemoryStager(), ContentIndex(None)
    sender = TreeUploader(index, stager)
    with user_folder() as place, start_user_worker(USER, USER) as worker:
        for name in ("a", "b"):
            (place / name).mkdir()
            (place / name / "large").write_bytes(os.urandom(3 << 20))
            (place / name / "small").write_bytes(os.urandom(100))
        give_to_user(place)

        def send(name: str) -> Tree:
            return sender.upload(worker, str(place / name), owner=StagedFor(USER))

        mine, other = send("a"), send("b")
        whole = dict(stager.stored)
        keys = [name.rpartition("/")[2] for name in whole]
        assert repair_objects(stager, index, [mine], [*keys, "0" * 64, "../x"], NEVER) is False, "all are sound"
        assert stager.stored == whole

        manifests = {object_key("in", piece.key) for tree in (mine, other) for piece in tree.manifest}
        of_mine = [n for n in whole if n not in manifests and _within(stager, mine, n)]
        of_other = [n for n in whole if n not in manifests and n not in of_mine]
        # Wrong with the right size, gone, the manifest, and what is another's.
        for broken, lost in ((of_mine[0], ""), ("", of_mine[1]), (object_key("in", mine.manifest[0].key), "")):
            stager.stored[broken or lost] = bytes(len(whole[broken or lost]))
            stager.stored[of_other[0]] = b"wrong"
            if lost:
                del stager.stored[lost]
            assert repair_objects(stager, index, [mine], keys, NEVER) is True
            assert stager.stored.keys() == whole.keys() - {broken or lost}
            assert send("a") == mine
            assert {n: stager.stored[n] for n in of_mine} == {n: whole[n] for n in of_mine}
            assert {path for path in in_store(stager, mine) if path} == {b"large", b"small"}
        assert stager.stored[of_other[0]] == b"wrong"


def _within(stager: MemoryStager, tree: Tree, name: str) -> bool:
    kept = stager.stored.pop(name)
    try:
        in_store(stager, tree)
    except NoSuchObject:
        return True
    finally:
        stager.stored[name] = kept
    return False


def test_what_a_user_left_goes_without_his_account() -> None:
    stager = MemoryStager()
    text = "#!/bin/sh\n#BURST stage_out . to /nowhere\n"
    directives, _ = parse_directives(text)
    row = Staging("7", "gone-from-here", USER, USER, directives, StageState.DELIVERED, 0, 0)
    with user_folder(OTHER) as place:
        place.chmod(0o1777)
        (place / "7" / "out").mkdir(parents=True)
        (place / "7" / "out" / "x").write_text("x")
        give_to_user(place / "7")
        stager.put(f"out/7/n1/{KEY}", b"x")
        work = _transfers(stager, place)
        for _ in range(2):
            work.remove_job_data(StagingTask(row, Meter("7", "clear")), [])
        assert (list(place.iterdir()), stager.stored) == ([], {})
        with pytest.raises(StageFailed, match="no account gone-from-here"):
            work.measure_sources(StagingTask(replace(row, state=StageState.WAITING), Meter("7", "in")))


def _transfers(stager: MemoryStager, folder: Path) -> HeadTransfers:
    def nobody(_claim: object) -> Any:
        raise AssertionError("no node is to be asked")

    index, limits = ContentIndex(None), BandwidthLimits()
    folders = JobFolders(str(folder), b"key")
    return HeadTransfers(
        commands=SlurmCommands(),
        stager=stager,
        uploader=TreeUploader(index, stager, limits),
        agent=NodeAgent(nobody),
        output_delivery=OutputDelivery(stager, limits, lambda *_: None, folders),
        open_worker=user_worker_for,
        open_object_worker=object_worker_for,
        folders=folders,
        cache_dir=str(folder),
        datasets=lambda _name: None,
    )


@pytest.mark.parametrize("full", [True, False])
def test_that_the_store_had_no_room_is_told_apart(full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stager = MemoryStager()
    work = _transfers(stager, tmp_path)
    who = Account("ada", USER, USER, (USER,), "/")
    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _user: who)

    def fails(*_: object, **__: object) -> Any:
        raise AgentError("full" if full else "space", "it says so")

    def refuses(*_: object) -> Any:
        raise (StoreSpaceGone if full else StoreBusy)("it says so")

    monkeypatch.setattr(NodeAgent, "run", fails)
    monkeypatch.setattr(stager, "objects", refuses)
    directives, _ = parse_directives("#!/bin/sh\n#BURST stage_out . to /nowhere\n")
    row = Staging("7", "ada", USER, USER, directives, StageState.COLLECTING, 0, 0)
    claim = planned()
    with pytest.raises(StageFailed) as collected:
        work.collect_output(StagingTask(row, Meter("7", "collect")), claim, [])
    with pytest.raises(StageFailed) as cleared:
        work.remove_job_data(StagingTask(row, Meter("7", "clear")), [])
    told = [(one.value.retryable, one.value.full) for one in (collected, cleared)]
    assert told == [(full, full), (True, full)], "a node's own disk is its job's affair"
