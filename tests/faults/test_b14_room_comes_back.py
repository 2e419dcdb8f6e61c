"""B14: a full store, a full disk and a read-only file system are waited for; a held job's alarm says what to do."""

from __future__ import annotations

import errno
import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.stager import StoreSpaceGone
from burstd.domain.staging import StageState, Staging
from burstd.node.agent import AgentError, NodeAgent
from burstd.slurm.commands.run import SlurmCommands
from burstd.staging.controller.tasks import JobSummary, Meter, StageFailed, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.agent.collection import OutputUploader
from burstd.transfer.agent.user_process import AgentFault, SharedBuffers, fault_from_oserror
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import UserWorkerError
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import TreeUploader
from tests.planner.worlds import claim
from tests.transfer.memory import MemoryStager

NOBODY = pwd.getpwnam("nobody")
ROW = Staging(
    "7",
    NOBODY.pw_name,
    NOBODY.pw_uid,
    NOBODY.pw_gid,
    parse_directives("#!/bin/sh\n#BURST stage_out . to /nowhere\n")[0],
    StageState.COLLECTING,
    0,
    0,
    nodes=("cpu1",),
)


class Failing(NodeAgent):
    """Its agents answer with a fault."""

    def __init__(self, fault: AgentFault) -> None:
        self._fault = fault

    def run(self, *_: object, **__: object) -> NoReturn:
        """See NodeAgent."""
        raise AgentError(self._fault.kind, str(self._fault))


def transfers(folder: Path, fault: AgentFault, number: int = 0) -> HeadTransfers:
    def open_worker(_who: object) -> NoReturn:
        raise UserWorkerError("/home/ada/results", number, f"/home/ada/results: {os.strerror(number)}")

    stager, limits, folders = MemoryStager(), BandwidthLimits(), JobFolders(str(folder), b"key")
    return HeadTransfers(
        commands=SlurmCommands(),
        stager=stager,
        uploader=TreeUploader(ContentIndex(None), stager, limits),
        agent=Failing(fault),
        output_delivery=OutputDelivery(stager, limits, lambda *_: None, folders),
        open_worker=open_worker,
        open_object_worker=object_worker_for,
        folders=folders,
        cache_dir=str(folder),
        datasets=lambda _name: None,
    )


def full_store() -> AgentFault:
    """What an agent makes of a store that has no room for an object."""

    class Full:
        def present(self, _keys: object) -> set[str]:
            return set()

        def put(self, key: str, _body: memoryview) -> None:
            raise StoreSpaceGone(f"the store has no room for {key}")

    class User:
        buffers = SharedBuffers()

    full: Any = Full()
    user: Any = User()
    putting = OutputUploader(full, "out/7/cpu1", user, lambda _there: None)
    try:
        putting.on_message({"object": 0, "length": 5})
    finally:
        putting.close()
    assert putting.fault is not None
    return putting.fault


@pytest.mark.parametrize("number", [0, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_store_or_a_node_that_is_full_is_tried_again(tmp_path: Path, number: int) -> None:
    fault = fault_from_oserror(OSError(number, os.strerror(number)), "collect of job 7") if number else full_store()
    with pytest.raises(StageFailed, match="cpu1: ") as caught:
        transfers(tmp_path, fault).collect_output(
            StagingTask(ROW, Meter("7", "out")), claim("cpu1", ClaimState.IN_SERVICE), []
        )
    assert caught.value.retryable


@pytest.mark.parametrize("kind", ["limit", "rights", "space"])
def test_what_only_a_person_can_change_is_held_at_once(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StageFailed) as caught:
        transfers(tmp_path, AgentFault(kind, "no")).collect_output(
            StagingTask(ROW, Meter("7", "out")), claim("cpu1", ClaimState.IN_SERVICE), []
        )
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("number", "again"), [(errno.ENOSPC, True), (errno.EROFS, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_destination_that_cannot_be_written_for_a_while_is_tried_again(
    tmp_path: Path, number: int, again: bool
) -> None:
    work = transfers(tmp_path, AgentFault("agent", ""), number)
    with pytest.raises(StageFailed, match=os.strerror(number)) as caught:
        work.deliver_output(StagingTask(ROW, Meter("7", "home")), JobSummary())
    assert caught.value.retryable is again


@pytest.mark.parametrize(
    ("resume", "words"),
    [
        ("waiting", "run 'burstctl stage retry 7'"),
        ("collecting", "run 'burstctl stage retry 7'; to give up its output, run 'burstctl stage discard 7'"),
    ],
)
def test_the_alarm_of_a_held_job_names_the_commands(resume: str, words: str) -> None:
    held = replace(ROW, state=StageState.HELD, resume=resume, error="full")
    assert held.needs_attention
    assert held.attention_text == f"full; repair this and {words}"
    said = "too long. Pack it, then: burstctl stage retry; or give it up: burstctl stage discard"
    assert replace(held, error=said).attention_text == said
