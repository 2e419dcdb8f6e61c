"""Nobody can make the folder of another's job before burstd does, and all that speak of one name the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from burstd.domain.staging import StageState, Staging
from burstd.slurm.commands.run import Commands
from burstd.slurm.hooks.stage_server import StageCall
from burstd.staging.controller.hook_queue import Hooks
from burstd.staging.controller.tasks import Ended, Task
from burstd.staging.directives.parser import parse
from burstd.staging.movement.job_folders import FolderKeyUnusable, JobFolders, folder_key
from burstd.staging.movement.output_delivery import Homeward
from burstd.staging.movement.progress import Meter
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.agent.placement import JobFolder, folder_made
from burstd.transfer.content_store.index import Index
from burstd.transfer.privsep.client import Account, hand_of
from burstd.transfer.privsep.object_workers import object_hand
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.upload import Sender
from tests.reconciler.test_stage_in_place import CLAIM
from tests.transfer.ground import OTHER, USER, ground, own, root_only
from tests.transfer.memory import MemoryStager

FOLDERS = JobFolders("/jobs", b"key")


class Agent:
    """A node's, that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def run(self, _claim: object, request: dict[str, Any], **_more: object) -> dict[str, Any]:
        self.asked.append(request)
        return {}


def job(text: str) -> Staging:
    directives, wrong = parse(f"#!/bin/sh\n{text}")
    assert not wrong
    return Staging(
        "7", "ada", USER, USER, directives, StageState.BRINGING, 0, 0,
        work_dir="/", job_state="COMPLETED", exit_code="0:0",
    )  # fmt: skip


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr("burstd.staging.movement.transfers.account", lambda _: Account("ada", USER, USER, (USER,), "/"))
    return Agent()


def transfers(folders: JobFolders, agent: Agent) -> HeadTransfers:
    stager, limits = MemoryStager(), Limits()
    return HeadTransfers(
        commands=Commands(), stager=stager, sender=Sender(Index(None), stager, limits), agent=agent,  # type: ignore[arg-type]
        homeward=Homeward(stager, limits, lambda *_: None, folders), hand=hand_of, objects=object_hand,
        folders=folders, cache_dir="/jobs/cache", datasets=lambda _name: None,
    )  # fmt: skip


@pytest.mark.boxes
@root_only
@pytest.mark.parametrize("mode", [0o1733, 0o1777])
def test_folders_made_for_numbers_to_come_hold_nobody(agent: Agent, mode: int) -> None:
    with ground(OTHER) as place, ground() as home:
        place.chmod(mode)
        folders = JobFolders(str(place), os.urandom(32))
        for number in range(12):
            (place / str(number) / "out").mkdir(parents=True)
            (place / str(number) / "out" / "planted").write_text("planted")
            own(place / str(number), OTHER)
        work, row = transfers(folders, agent), job(f"#BURST stage_in {home}\n#BURST stage_out . to {home}/results\n")
        work.link(Task(row, Meter("7", "link")))
        where = {name: Path(path) for name, path in folders.environment("7").items()}
        assert {path.stat().st_uid for path in where.values()} == {USER}
        assert where["BURST_OUT"].parent.stat().st_mode & 0o777 == 0o700
        assert (where["BURST_IN"] / home.name).resolve() == home
        (where["BURST_OUT"] / "mine").write_text("mine")
        own(where["BURST_OUT"])
        work.bring(Task(row, Meter("7", "home")), Ended(on_premises=True))
        found = {path.name for path in (home / "results").iterdir()}
        assert "mine" in found
        assert "planted" not in found
        work.clear(Task(row, Meter("7", "clear")), [])
        assert {path.name for path in place.iterdir()} == {str(number) for number in range(12)}


@pytest.mark.boxes
@root_only
def test_a_job_keeps_the_folder_that_it_was_started_with(agent: Agent) -> None:
    with ground(OTHER) as place, ground() as home:
        place.chmod(0o1733)
        (place / "7" / "out").mkdir(parents=True)
        (place / "7" / "out" / "mine").write_text("mine")
        own(place / "7")
        work, row = transfers(JobFolders(str(place), b"key"), agent), job(f"#BURST stage_out . to {home}/results\n")
        work.link(Task(row, Meter("7", "link")))
        work.bring(Task(row, Meter("7", "home")), Ended(on_premises=True))
        assert (home / "results" / "mine").read_text() == "mine"
        work.clear(Task(row, Meter("7", "clear")), [])
        assert not list(place.iterdir())


def test_the_hook_and_the_agent_name_one_folder(agent: Agent) -> None:
    desk: Any = SimpleNamespace(rules=SimpleNamespace(folders=FOLDERS))
    said = Hooks(desk, desk, desk).handle(StageCall("paths", "7"))
    row = replace(job("#BURST stage_out . to /results\n"), nodes=(CLAIM.slot,))
    transfers(FOLDERS, agent).place(Task(row, Meter("7", "place")), CLAIM)
    (asked,) = agent.asked
    home = asked["dir"]
    assert said.result == "ok"
    assert said.env == {"BURST_IN": f"{home}/in", "BURST_OUT": f"{home}/out", "BURST_SCRATCH": f"{home}/scratch"}
    assert home.startswith("/jobs/7-")
    assert FOLDERS.path("7") != JobFolders("/jobs", b"other").path("7")
    assert FOLDERS.path("7").partition("-")[2] != FOLDERS.path("8").partition("-")[2]


def test_an_agent_goes_on_in_the_folder_that_it_made(tmp_path: Path) -> None:
    request = {
        "job": "7", "uid": USER, "dir": str(tmp_path / "7-drawn"), "dir_before": str(tmp_path / "7"),
    }  # fmt: skip
    assert folder_made(request) == request["dir"]
    JobFolder(str(tmp_path / "7")).write({"job": "7", "uid": USER, "entries": []})
    assert folder_made(request) == request["dir_before"]
    assert folder_made({**request, "uid": OTHER}) == request["dir"]
    assert folder_made({"job": "7", "uid": USER, "dir": "/x"}) == "/x"


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
