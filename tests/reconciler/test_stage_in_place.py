"""What is asked of nodes for a job's input: of inputs that they see as they are, and of the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.db.codec import from_json, to_json
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import Directives, StageState, Staging, Tree, WorkdirRules
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.controller.tasks import Meter, StageFailed, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.garbage_collection import needing_jobs
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.transfers import HeadTransfers
from burstd.staging.submission.locations import in_place_path
from burstd.staging.submission.submit_check import SubmitCheck, SubmitCheckRules
from burstd.staging.submission.workdir import compile_ignore_lines
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import Account, user_worker_for
from burstd.transfer.privsep.object_workers import ObjectWorker, object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import TreeUploader
from tests.transfer.ground import OTHER, USER, give_to_user, root_only, user_folder
from tests.transfer.memory import MemoryStager

SHAPE = Shape(4, 8000)
OFFER = Offer("sky", "r", "a", "t", spot=False, shape=SHAPE, price=Decimal(1))
CLAIM = Claim("c3", "x", "cpu", "n3", OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0)
pytestmark = [pytest.mark.boxes, root_only]
TEXT = """#!/bin/sh
#BURST stage_in /claims/genomes/hg38 as hg38
#BURST dataset words
#BURST stage_in {place}/small as small
"""


class InPlaceStager(MemoryStager):
    """A store whose nodes see /claims as /data."""

    def in_place(self, path: str) -> str | None:
        return path.replace("/claims", "/data", 1) if path.startswith("/claims/") else None


class RecordingAgent:
    """A node's, that is told what to place."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def run(self, _claim: Claim, request: dict[str, Any], **_more: object) -> dict[str, Any]:
        self.asked.append(request)
        return {}


def _account(_user: str | int) -> Account:
    return Account("ada", USER, USER, (USER,), "/")


def _no_objects(_who: Account, _kind: str, _timeout_s: float) -> ObjectWorker:
    raise AssertionError("no object is asked for")


def _datasets(name: str) -> str | None:
    return "/claims/words/v2" if name == "words" else None


def _transfers(stager: MemoryStager, agent: RecordingAgent, folder: Path) -> HeadTransfers:
    limits = BandwidthLimits()
    folders = JobFolders(str(folder), b"key")
    return HeadTransfers(
        commands=SlurmCommands(),
        stager=stager,
        uploader=TreeUploader(ContentIndex(None), stager, limits),
        agent=agent,  # type: ignore[arg-type]
        output_delivery=OutputDelivery(stager, limits, lambda *_: None, folders),
        open_worker=user_worker_for,
        open_object_worker=object_worker_for,
        folders=folders,
        cache_dir=str(folder),
        datasets=_datasets,
    )


def test_only_what_is_not_seen_there_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    stager, agent = InPlaceStager(), RecordingAgent()
    with user_folder(OTHER) as place:
        (place / "small").write_bytes(b"small")
        give_to_user(place)
        directives, wrong = parse_directives(TEXT.format(place=place))
        assert not wrong
        for module in ("movement.transfers", "submission.submit_check"):
            monkeypatch.setattr(f"burstd.staging.{module}.account", _account)
        row = Staging("7", "ada", USER, USER, directives, StageState.UPLOADING, 0, 0, work_dir="/")
        work = _transfers(stager, agent, place)

        looked = work.measure_sources(StagingTask(row, Meter("7", "in")))
        assert (looked.size, looked.sources) == (5, (f"{place}/small",))
        sent = work.upload_input(StagingTask(row, Meter("7", "in")))
        assert {name: tree.node_path for name, tree in sent.trees.items()} == {
            "hg38": "/data/genomes/hg38", "words": "/data/words/v2", "small": "",
        }  # fmt: skip
        assert sent.size == 5
        there = Staging("7", "ada", USER, USER, directives, StageState.FETCHING, 0, 0, work_dir="/", trees=sent.trees)
        assert needing_jobs([there]) == {sent.trees["small"].digest: (there.job_id,)}
        work.fetch_input(StagingTask(there, Meter("7", "in")), CLAIM, [])
        (asked,) = agent.asked
        assert [tree["name"] for tree in asked["trees"]] == ["small"]
        assert asked["links"] == [
            {"name": "hg38", "target": "/data/genomes/hg38"}, {"name": "words", "target": "/data/words/v2"},
        ]  # fmt: skip

        # On premises there is no such place, which nobody has looked for so far.
        place.chmod(0o1777)
        with pytest.raises(StageFailed, match="/claims/genomes/hg38"):
            work.link_on_premises(StagingTask(row, Meter("7", "in")))

        # And a job is taken that asks for it.
        rules = SubmitCheckRules(30.0, None, _datasets, lambda asked, origin: in_place_path(stager, asked, origin))
        use = StorageUse("ada", 0, None), StorageUse("", 0, None)
        call = StageCall("check", "", uid=USER, gid=USER, text=TEXT.format(place=place), info={"work_dir": "/"})
        assert SubmitCheck(rules, user_worker_for, _no_objects, lambda *_: use)(call).result == "ok"
        call = StageCall("check", "", uid=USER, gid=USER, text=TEXT.format(place="/claimed"), info={"work_dir": "/"})
        said = SubmitCheck(rules, user_worker_for, _no_objects, lambda *_: use)(call)
        assert said.text.startswith("line 4: stage_in /claimed/small: ")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("stage_in /claims/a", True),
        ("stage_in /claims/a copy", False),
        ("stage_in /claims/*.txt as texts", False),
        ("stage_in s3://claims/a", False),
        ("stage_in /home/a", False),
    ],
)
def test_what_can_be_used_where_it_is(line: str, seen: bool) -> None:
    directives, _ = parse_directives(f"#!/bin/sh\n#BURST {line}\n")
    (asked,) = directives.stage_in
    assert in_place_path(InPlaceStager(), asked, asked.source) == ("/data/a" if seen else None)
    assert in_place_path(MemoryStager(), asked, asked.source) is None


def test_what_stays_of_a_working_directory_is_settled_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may wait for days, and its owner changes the ignore file for the next one."""
    agent = RecordingAgent()
    monkeypatch.setattr("burstd.staging.movement.transfers.account", _account)
    monkeypatch.setattr("burstd.staging.submission.workdir.NO_WORKDIR_DIRECTORIES", ())
    with user_folder(OTHER) as place:
        (place / ".burstignore").write_text("*.tmp\n")
        give_to_user(place)
        row = Staging("7", "ada", USER, USER, Directives(workdir=True), StageState.UPLOADING, 0, 0, work_dir=str(place))
        work = _transfers(MemoryStager(), agent, place)
        sent = work.upload_input(StagingTask(row, Meter("7", "in")))
        (place / ".burstignore").write_text("out/\n")
        there = replace(row, state=StageState.FETCHING, trees=from_json(Mapping[str, Tree], to_json(sent.trees)))
        work.fetch_input(StagingTask(there, Meter("7", "in")), CLAIM, [])
        assert list(agent.asked[0]["workdir"]["ignore"]) == compile_ignore_lines(
            [".burst-*", *WorkdirRules().ignore, "*.tmp"]
        )
