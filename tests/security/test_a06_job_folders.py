"""Nobody can make the folder of another's job before burstd does, and all that speak of one name the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from burstd.domain.staging import Checkpoint, StageState, Staging
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.controller.hook_queue import HookQueue
from burstd.staging.controller.tasks import JobSummary, Meter, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.job_folders import FolderKeyUnusable, JobFolders, folder_key
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.agent.job_folder import JobFolder, existing_job_folder
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import Account, user_worker_for
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import TreeUploader
from tests.reconciler.test_checkpoints import stored_tree
from tests.reconciler.test_stage_in_place import CLAIM
from tests.transfer.ground import OTHER, USER, give_to_user, root_only, user_folder
from tests.transfer.memory import MemoryStager

FOLDERS = JobFolders("/jobs", b"key")


class AgentRequestRecorder:
    """A node's, that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def run(self, _claim: object, request: dict[str, Any], **_more: object) -> dict[str, Any]:
        self.asked.append(request)
        return {}


def job(text: str) -> Staging:
    directives, wrong = parse_directives(f"#!/bin/sh\n{text}")
    assert not wrong
    return Staging(
        "7", "ada", USER, USER, directives, StageState.DELIVERING, 0, 0,
        work_dir="/", job_state="COMPLETED", exit_code="0:0",
    )  # fmt: skip


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> AgentRequestRecorder:
    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    return AgentRequestRecorder()


def transfers(folders: JobFolders, agent: AgentRequestRecorder) -> HeadTransfers:
    stager, limits = MemoryStager(), BandwidthLimits()
    return HeadTransfers(
        commands=SlurmCommands(),
        stager=stager,
        uploader=TreeUploader(ContentIndex(None), stager, limits),
        agent=agent,  # type: ignore[arg-type]
        output_delivery=OutputDelivery(stager, limits, lambda *_: None, folders),
        open_worker=user_worker_for,
        open_object_worker=object_worker_for,
        folders=folders,
        cache_dir="/jobs/cache",
        datasets=lambda _name: None,
    )


@pytest.mark.boxes
@root_only
@pytest.mark.parametrize("mode", [0o1733, 0o1777])
def test_folders_made_for_numbers_to_come_hold_nobody(agent: AgentRequestRecorder, mode: int) -> None:
    with user_folder(OTHER) as place, user_folder() as home:
        place.chmod(mode)
        folders = JobFolders(str(place), os.urandom(32))
        for number in range(12):
            (place / str(number) / "out").mkdir(parents=True)
            (place / str(number) / "out" / "planted").write_text("planted")
            give_to_user(place / str(number), OTHER)
        lines = f"#BURST stage_in {home}\n#BURST stage_out . to {home}/results\n#BURST scratch shared\n"
        work, row = transfers(folders, agent), job(lines)
        work.link_on_premises(StagingTask(row, Meter("7", "link")))
        where = {name: Path(path) for name, path in folders.job_environment("7", row).items()}
        assert where["BURST_SHARED"].stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_uid for path in where.values()} == {USER}
        assert where["BURST_OUT"].parent.stat().st_mode & 0o777 == 0o700
        assert (where["BURST_IN"] / home.name).resolve() == home
        (where["BURST_OUT"] / "mine").write_text("mine")
        give_to_user(where["BURST_OUT"])
        work.deliver_output(StagingTask(row, Meter("7", "home")), JobSummary(on_premises=True))
        found = {path.name for path in (home / "results").iterdir()}
        assert "mine" in found
        assert "planted" not in found
        work.remove_job_data(StagingTask(row, Meter("7", "clear")), [])
        assert {path.name for path in place.iterdir()} == {str(number) for number in range(12)}


@pytest.mark.boxes
@root_only
def test_a_job_keeps_the_folder_that_it_was_started_with(agent: AgentRequestRecorder) -> None:
    with user_folder(OTHER) as place, user_folder() as home:
        place.chmod(0o1733)
        (place / "7" / "out").mkdir(parents=True)
        (place / "7" / "out" / "mine").write_text("mine")
        give_to_user(place / "7")
        work, row = transfers(JobFolders(str(place), b"key"), agent), job(f"#BURST stage_out . to {home}/results\n")
        work.link_on_premises(StagingTask(row, Meter("7", "link")))
        work.deliver_output(StagingTask(row, Meter("7", "home")), JobSummary(on_premises=True))
        assert (home / "results" / "mine").read_text() == "mine"
        work.remove_job_data(StagingTask(row, Meter("7", "clear")), [])
        assert not list(place.iterdir())


@pytest.mark.boxes
@root_only
@pytest.mark.parametrize("single", [True, False])
def test_a_checkpoint_goes_back_on_premises_with_its_owners_rights(
    agent: AgentRequestRecorder, *, single: bool
) -> None:
    with user_folder(OTHER) as place, user_folder() as home:
        place.chmod(0o1733)
        work = transfers(JobFolders(str(place), b"key"), agent)
        tree = stored_tree(cast("MemoryStager", work._stager), b"one", single=single)
        kept = Checkpoint(1.0, "c/state", {"0": tree}, 1, {"0": ""})
        asked = f"#BURST checkpoint c/state\n#BURST stage_out . to {home}/results\n"
        work.link_on_premises(StagingTask(replace(job(asked), checkpoints=(kept,)), Meter("7", "link")))
        (folder,) = place.iterdir()
        found = folder / "out/c/state" if single else folder / "out/c/state/0"
        assert (found.read_bytes(), found.stat().st_uid) == (b"one", folder.stat().st_uid)
        assert folder.stat().st_uid != 0


def test_the_hook_and_the_agent_name_one_folder(agent: AgentRequestRecorder) -> None:
    controller: Any = SimpleNamespace(job_environment=FOLDERS.job_environment)
    said = HookQueue(controller, controller, controller).handle_call(StageCall("paths", "7"))
    row = replace(job("#BURST stage_out . to /results\n"), nodes=(CLAIM.slot,))
    transfers(FOLDERS, agent).fetch_input(StagingTask(row, Meter("7", "place")), CLAIM, [])
    (asked,) = agent.asked
    home = asked["dir"]
    assert said.result == "ok"
    assert said.env == {"BURST_IN": f"{home}/in", "BURST_OUT": f"{home}/out", "BURST_SCRATCH": f"{home}/scratch"}
    assert home.startswith("/jobs/7-")
    assert FOLDERS.folder_path("7") != JobFolders("/jobs", b"other").folder_path("7")
    assert FOLDERS.folder_path("7").partition("-")[2] != FOLDERS.folder_path("8").partition("-")[2]


def test_an_agent_goes_on_in_the_folder_that_it_made(tmp_path: Path) -> None:
    request = {
        "job": "7", "uid": USER, "dir": str(tmp_path / "7-drawn"), "dir_before": str(tmp_path / "7"),
    }  # fmt: skip
    assert existing_job_folder(request) == request["dir"]
    JobFolder(str(tmp_path / "7")).write_record({"job": "7", "uid": USER, "entries": []})
    assert existing_job_folder(request) == request["dir_before"]
    assert existing_job_folder({**request, "uid": OTHER}) == request["dir"]
    assert existing_job_folder({"job": "7", "uid": USER, "dir": "/x"}) == "/x"


def test_the_key_is_burstd_s_alone_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "job-folders.key"
    key = folder_key(path)
    assert (len(key), path.stat().st_mode & 0o777) == (32, 0o600)
    assert folder_key(path) == key
    assert key.hex() not in repr(JobFolders("/jobs", key))
    path.chmod(0o640)
    with pytest.raises(FolderKeyUnusable, match="mode 0640 and 32 bytes, not 0600"):
        folder_key(path)
    path.chmod(0o600)
    path.write_bytes(b"")
    with pytest.raises(FolderKeyUnusable, match="0 bytes"):
        folder_key(path)
