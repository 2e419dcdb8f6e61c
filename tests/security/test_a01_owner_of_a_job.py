"""Nobody becomes another user by what he writes into his job."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.snapshot import SlurmView
from burstd.planner.staging.transfer_schedule import TransferLimits
from burstd.runtime.workers import Workers
from burstd.slurm.commands import job_facts, jobs
from burstd.slurm.commands.delimiters import RandomDelimiters
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.controller import StageRules, StagingController
from burstd.staging.movement.job_folders import JobFolders
from tests.crash.stage_ground import FakeTransfers
from tests.crash.stage_world import POOLS, StageWorld
from tests.security.slurm_text import VERSIONS, hostile, real

BOB = "x UserId=bob(3002) GroupId=bob(3002)\n   WorkDir=/home/bob\n\nJobId=1 UserId=bob(3002) GroupId=bob(3002)"


@pytest.mark.parametrize("version", VERSIONS)
@given(written=st.fixed_dictionaries(dict.fromkeys(("Comment", "Name", "StdOut", "StdErr"), hostile)))
def test_owner_nodes_state_and_folder_are_slurms_whatever_is_written(version: str, written: Mapping[str, str]) -> None:
    drawn = RandomDelimiters()
    plain = job_facts.parse_job_facts(real(version, "facts", {}, drawn), drawn)
    found = job_facts.parse_job_facts(real(version, "facts", written, drawn), drawn)
    assert len(found) == len(plain) == 4
    for facts, expected in zip(found, plain, strict=True):
        for name in ("job_id", "queue_id", "user", "uid", "gid", "account", "partitions", "state", "exit_code"):
            assert getattr(facts, name) == getattr(expected, name)
        assert (facts.user, facts.uid, facts.gid, facts.work_dir) == ("ada", 3001, 3001, "/home/ada")
        assert facts.nodes == ()
        assert facts.name == written["Name"]
        assert all(file == "" or file.startswith("/home/ada/") for file in (facts.std_out, facts.std_err))
    shown = jobs.parse_jobs(real(version, "queue", written, drawn), drawn, lambda wall: wall)
    assert [(job.id, job.user, job.name) for job in shown] == [
        (job.id, "ada", written["Name"])
        for job in jobs.parse_jobs(real(version, "queue", {}, drawn), drawn, lambda wall: wall)
    ]


def answered(version: str, asked: list[tuple[Sequence[str], Mapping[str, str]]]) -> SlurmCommands:
    """A squeue that prints with the words that it was given, and knows jobs up to 99."""

    def run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        asked.append((argv, environment))
        text = real(version, "facts", dict.fromkeys(("Comment", "Name", "StdOut", "StdErr"), BOB))
        shown = environment["SQUEUE_FORMAT2"]
        field, row = shown.removeprefix("JobID:0").split(",")[0], shown.split(",Name:0")[1]
        return subprocess.CompletedProcess(argv, 0, text.replace("<F>", field).replace("<R>", row), "")

    return SlurmCommands(run)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_words_are_new_for_each_call_and_only_the_command_sees_them(version: str) -> None:
    asked: list[tuple[Sequence[str], Mapping[str, str]]] = []
    commands = answered(version, asked)
    for _ in range(2):
        facts = job_facts.read_job_facts(commands, "20")
        assert facts is not None
        assert (facts.uid, facts.work_dir) == (3001, "/home/ada")
    (argv, first), (_, second) = asked
    assert first["SQUEUE_FORMAT2"] != second["SQUEUE_FORMAT2"]
    # All users can read a command's words while it runs, and change their jobs in time.
    assert not any("\x1f" in word or "Format" in word for word in argv)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("(null)", ""),
        ("", ""),
        ("slurm-%j.out", "/home/ada/slurm-21.out"),
        ("/x/%A_%a.%b", "/x/18_4.4"),
        ("/x/%5j%012A%1a%99j", "/x/00021" + "0000000018" + "4" + "0000000021"),
        ("/x/%% %J %N %n %s %t %u %x %q %", "/x/% 21 op1 0 batch 0 ada a%jb %q %"),
        ("/x/a\\\\b%j", "/x/a\\b%j"),
        ("/x/%" + "9" * 5000 + "j", "/x/0000000021"),
        ("/" + "x" * 5000, ""),
        ("../../etc/passwd", "/home/ada/../../etc/passwd"),
    ],
)
def test_files_of_the_job_are_named_as_slurmstepd_names_them(pattern: str, path: str) -> None:
    drawn = RandomDelimiters()
    values = dict.fromkeys(job_facts.JOB_FACTS_FIELDS, "") | {
        "JobID": "21", "JobArrayID": "18_4", "ArrayJobID": "18", "ArrayTaskID": "4", "UserID": "3001",
        "GroupID": "3001", "UserName": "ada", "NodeList": "op[1-2]", "WorkDir": "/home/ada", "STDOUT": pattern,
        "exit_code": "768", "State": "STAGE_OUT", "Name": "a%jb",
    }  # fmt: skip
    text = drawn.field_delimiter.join(values.values()) + drawn.row_delimiter + "\n"
    (facts,) = job_facts.parse_job_facts(text, drawn)
    assert (facts.std_out, facts.state, facts.exit_code, facts.queue_id) == (path, "FAILED", "3:0", "18_4")


@pytest.mark.parametrize(
    ("field", "value"), [("UserID", ""), ("UserID", "nobody"), ("GroupID", "-"), ("NodeList", "n[1-999999999]")]
)
def test_a_job_without_a_plain_owner_is_not_known(field: str, value: str) -> None:
    drawn = RandomDelimiters()
    values = dict.fromkeys(job_facts.JOB_FACTS_FIELDS, "0") | {field: value}
    with pytest.raises(SchedulerUnavailable):
        job_facts.parse_job_facts(drawn.field_delimiter.join(values.values()) + drawn.row_delimiter + "\n", drawn)


@pytest.mark.parametrize("cut", [1, 5, 40, 300])
def test_an_output_that_is_cut_off_is_none(cut: int) -> None:
    drawn = RandomDelimiters()
    with pytest.raises(SchedulerUnavailable):
        job_facts.parse_job_facts(real("24.11", "facts", {}, drawn)[:-cut], drawn)


class AtOnce:
    """Workers that are done before they begin."""

    def submit(self, _lane: str, work: Callable[[], Any], done: Callable[[Any], None], **_: object) -> None:
        """See Workers."""
        done(work())


class FixedOwnerTransfers(FakeTransfers):
    """squeue says that the job is this user's."""

    owner = (0, 0)

    def query_job(self, job_id: str) -> JobFacts:
        """See Transfers."""
        return JobFacts(job_id, job_id, "bob", *self.owner, "", ("onprem",), "PENDING", "0:0", (), "/home/bob", "", "")


@pytest.mark.parametrize(
    ("hook", "squeue", "refused"),
    [
        ((3001, 3001), (3002, 3002), True),
        ((3001, 3001), (3001, 0), True),
        ((3001, 3001), (3001, 3001), False),
        ((3001, None), (3001, 3001), False),
        ((None, None), (3001, 3001), False),
    ],
)
def test_hook_and_queue_must_name_the_same_owner(
    hook: tuple[int | None, int | None], squeue: tuple[int, int], refused: bool, tmp_path: Path, template: Path
) -> None:
    world = StageWorld(tmp_path, template=template)
    transfers = FixedOwnerTransfers(world.locations, world.slurm)
    transfers.owner = squeue
    controller = StagingController(
        store=world.store, workers=cast("Workers", AtOnce()), clock=world.clock, transfers=transfers,
        pools=lambda: POOLS, rules=StageRules(JobFolders("/scratch", b"key"), "store", TransferLimits(4, 2)),
    )  # fmt: skip
    said: list[StageReply] = []
    text = "#!/bin/sh\n#BURST stage_out x to /home/bob/x\n"
    controller.handle_hook(StageCall("data_in", "7", *hook, script="/s/job.7/script", text=text), said.append)
    controller.step(SlurmView((), {}, (), world.clock.now()), ())
    assert [reply.result for reply in said] == (["refused"] if refused else ["ok"])
    assert [row.uid for row in world.store.stagings()] == ([] if refused else [3001])
    assert not refused or "squeue that it is user" in said[0].text
    world.kill()
