"""Jobs that name objects: what is said at sbatch, and what a job on premises leaves, on a real S3 server."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from burstd.domain.staging import StageState, Staging
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.tasks import JobSummary, Meter, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.user_workers import UserWorkers
from burstd.staging.submission.submit_check import SubmitCheck, SubmitCheckRules
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import Account, user_worker_for
from burstd.transfer.privsep.object_workers import ObjectWorker, object_worker_for
from burstd.transfer.privsep.relayed_copy import relay_copy
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.lab.patience import patience_s
from tests.lab.s3_server import S3Server
from tests.transfer.memory import MemoryStager
from tests.transfer.object_worlds import UID, ObjectServerWorld, file_worker_of, s3_world

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

NOBODY = 65534
"""Whom every machine knows, and who has no home."""
ASKS = """#!/bin/sh
#BURST stage_in s3://mine/in/ as all
#BURST stage_in s3://mine/none
#BURST stage_in s3://other/theirs
#BURST stage_out . to s3://mine/results
#BURST stage_out . to s3://other/results
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServerWorld]:
    with S3Server(tmp_path_factory.mktemp("s3"), own_keys=["mine"]) as server:
        made = s3_world(server)
        made.put("in/a", b"a" * 1000)
        yield made


def _checked(
    world: ObjectServerWorld, files: Mapping[str, str] | None, text: str, seconds: float, port: int = 0
) -> StageReply:
    with world.user(files, port) as who:
        for path in Path(who.home).rglob("*"):
            os.chown(path, NOBODY, NOBODY)

        def objects(asked: Account, kind: str, timeout_s: float) -> ObjectWorker:
            return object_worker_for(replace(asked, home=who.home), kind, timeout_s=timeout_s, loopback=True)

        rules = SubmitCheckRules(seconds, None, lambda _name: None)
        usage = StorageUse("nobody", 0, 500), StorageUse("lab", 0, None)
        check = SubmitCheck(rules, user_worker_for, objects, lambda _user, _uid, _project: usage)
        return check(StageCall("check", "", uid=NOBODY, gid=NOBODY, text=text, info={"work_dir": "/"}))


def test_what_is_said_at_sbatch(world: ObjectServerWorld) -> None:
    said = _checked(world, None, ASKS, 30)
    lines = said.text.splitlines()
    starts = [
        "line 3: stage_in s3://mine/none: s3://mine/none: there is no such object",
        "line 4: stage_in s3://other/theirs: s3://other/theirs: the credentials of profile burst in ",
        "line 6: stage_out to s3://other/results: s3://other/results/.burst-probe: the credentials of profile burst",
    ]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3, said.text
    one = "#BURST stage_in s3://mine/in/ as all\n"
    assert "500" in _checked(world, None, f"#!/bin/sh\n{one}", 30).text, "objects count for the quota"
    none = _checked(world, {}, f"#!/bin/sh\n{one}", 30).text
    assert "/.aws/credentials: write an access key there" in none
    assert world.names() >= {"in/a"}
    assert not {name for name in world.names() if "probe" in name}


def test_a_silent_server_keeps_nobody_from_submitting(world: ObjectServerWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        said = _checked(world, None, "#!/bin/sh\n#BURST stage_in s3://mine/in/ as all\n", 1.5, deaf.getsockname()[1])
        assert (said.result, time.monotonic() - began < patience_s(5)) == ("ok", True)


def test_outputs_of_a_job_on_premises_and_of_nodes(world: ObjectServerWorld) -> None:
    stager = MemoryStager()
    text = "#!/bin/sh\n#BURST stage_out . to s3://mine/runs/%j\n#BURST stage_out one to s3://mine/one.bin\n"
    directives, wrong = parse_directives(text.replace("%j", "7"))
    assert not wrong
    with world.user() as who, file_worker_of(who) as (files, folder):
        out = folder / "7/out"
        (out / "sub").mkdir(parents=True)
        (out / "sub/b").write_bytes(b"b" * 10)
        (out / "one").write_bytes(b"1")
        (out / "link").symlink_to("one")
        for path in (folder / "7", *(folder / "7").rglob("*")):
            os.lchown(path, UID, UID)
        tree = TreeUploader(ContentIndex(None), stager).upload(files, str(out), owner=StagedFor(UID))
        single = TreeUploader(ContentIndex(None), stager).upload(files, str(out / "one"), owner=StagedFor(UID))
        job = Staging(
            "7", "someone", UID, UID, directives, StageState.DELIVERING, 0, 0,
            job_state="FAILED", exit_code="1:0", work_dir="/",
        )  # fmt: skip
        onnode = replace(job, nodes=("n1",), outputs={"n1/0": tree, "n1/1": single})
        for asked, ended in ((job, JobSummary(on_premises=True)), (onnode, JobSummary())):
            with UserWorkers(who, user_worker_for(who), partial(object_worker_for, loopback=True)) as user_workers:
                home = OutputDelivery(stager, BandwidthLimits(), lambda *_: None, JobFolders(str(folder), b"key"))
                assert home.deliver(StagingTask(asked, Meter("7", "home")), user_workers, ended).size == 12
            told = json.loads(world.get("runs/7/burst-7.json")[0])
            assert told["complete"] is False
            assert {row["path"] for row in told["files"]} == {
                "s3://mine/runs/7/sub/b", "s3://mine/runs/7/one", "s3://mine/one.bin",
            }  # fmt: skip
            assert told["warnings"] == ["s3://mine/runs/7/link was left out: links are no objects"]
            assert world.get("one.bin")[0] == b"1"
            assert b"did not end well" in world.get("runs/7/burst-7.PARTIAL")[0]
        well = replace(onnode, job_state="COMPLETED", exit_code="0:0")
        with UserWorkers(who, user_worker_for(who), partial(object_worker_for, loopback=True)) as user_workers:
            OutputDelivery(stager, BandwidthLimits(), lambda *_: None, JobFolders("/", b"key")).deliver(
                StagingTask(well, Meter("7", "home")), user_workers, JobSummary()
            )
        assert "runs/7/burst-7.PARTIAL" not in world.names()


def test_input_of_a_job_on_premises(world: ObjectServerWorld) -> None:
    world.put("set/x/y", b"y" * 70)
    with (
        world.user() as who,
        file_worker_of(who) as (files, folder),
        object_worker_for(who, "s3", loopback=True) as worker,
    ):
        going = threading.Event()
        assert relay_copy(worker, "s3://mine/set/", files, str(folder), "set", job="7", cancelled=going) == 70
        assert relay_copy(worker, "s3://mine/set/x/y", files, str(folder), "one", job="7", cancelled=going) == 70
        assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == ["one", "set/x/y"]
        assert (folder / "set/x/y").stat().st_uid == UID
