"""burst_buffer/lua of three Slurm versions, from the directive to burstd's ear and back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from burstd.domain.slurm.job import JobState
from burstd.planner.staging.volume_life import submitted_job_fault
from burstd.slurm.commands import job_facts
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.decision import DEALLOCATED_REPLY, end_state_name
from tests.lab.patience import patience_s
from tests.slurm.stage_rig import StageRig, stage_rig, variables

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


@pytest.fixture(scope="module", params=["bookworm", "trixie", "forky"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageRig]:
    with stage_rig(request.param, tmp_path_factory.mktemp("stage")) as found:
        yield found


@pytest.fixture
def rig(cluster: StageRig) -> Iterator[StageRig]:
    cluster.fresh()
    yield cluster
    # Whatever a test left would keep its hooks and its nodes.
    cluster.fresh()
    cluster.cluster.sh("scancel --hurry -u ada")
    cluster.cluster.wait(lambda: not cluster.cluster.sh("squeue -h --states=all -u ada -t PD,R,CG,SO"), 20, "no jobs")


def in_stage_in(rig: StageRig, number: str) -> None:
    """Slurm waits for the data of the job, with no node allocated."""
    rig.answers.wait("data_in", number)
    job = rig.wait_job(number, lambda j: j is not None and j.reason == "BurstBufferStageIn")
    assert job is not None
    assert (job.state, job.node_list) == (JobState.PENDING, ())


def test_what_is_wrong_is_said_at_sbatch(rig: StageRig) -> None:
    text = "line 2: #BURST stage_in: 'it' is 100% wrong\nallowed: é, a source; see $HOME"
    rig.answers.replies["check"] = lambda call: StageReply("refused" if "#BURST stage_in" in call.text else "ok", text)
    said = rig.submit(directives="#BURST stage_in")
    for line in text.splitlines():
        assert line in said
    assert "Batch job submission failed" in said
    owners = {(call.hook, call.uid, call.gid) for call in rig.answers.calls}
    assert owners == {("check", 3001, 3001)}
    rig.answers.calls.clear()
    assert rig.submit("true", directives="#SBATCH --comment=plain").isdigit()
    assert rig.answers.calls == []


def test_nothing_is_taken_while_burstd_is_away(rig: StageRig) -> None:
    rig.stop()
    assert "burstd does not answer at /run/burstd/stage.sock" in rig.submit()
    # slurmctld has stood still for it once.
    before = time.monotonic()
    assert "burstd does not answer at /run/burstd/stage.sock" in rig.submit()
    assert time.monotonic() - before < patience_s(5)


def test_sbatch_waits_for_a_burstd_that_is_being_restarted(rig: StageRig) -> None:
    rig.stop()
    mark = rig.cluster.head.path("/var/spool/burstd/stage/away.env")
    mark.unlink(missing_ok=True)
    with ThreadPoolExecutor() as pool:
        submitting = pool.submit(rig.submit, "true")
        rig.cluster.wait(mark.exists, 20, "a check that waits")
        rig.start()
        assert submitting.result().isdigit()
    assert not mark.exists()


def test_data_first_then_the_node_then_home(rig: StageRig) -> None:
    rig.answers.block("data_in")
    rig.answers.block("data_out")
    number = rig.submit("env | grep BURST_; srun env | grep BURST_")
    in_stage_in(rig, number)
    assert "#BURST stage_in /data" in rig.answers.wait("data_in", number).text
    rig.answers.unblock("data_in")
    rig.allocated(number)
    # burstd may have lost its record meanwhile.
    assert "#BURST stage_in /data" in rig.answers.wait("data_out", number).text
    job = rig.wait_job(number, lambda j: j is not None and j.state is JobState.STAGE_OUT)
    assert job is not None
    assert (job.reason, len(job.node_list)) == ("BurstBufferStageOut", 1)
    rig.answers.unblock("data_out")
    teardown = rig.answers.wait("teardown", number)
    assert not teardown.hurry
    rig.wait_job(number, lambda j: j is None)
    polled = ["test_data_out"] if rig.cluster.release != "bookworm" else []
    before, after = ["check", "setup", "data_in", "paths", "pre_run"], ["post_run", "data_out", *polled, "teardown"]
    assert rig.answers.hooks_of_job(number) == before + after
    assert rig.output(number) == sorted(2 * [f"{name}={value}" for name, value in variables(number).items()])
    setup = rig.answers.wait("setup", number)
    assert (setup.uid, setup.gid) == (3001, 3001)
    ended = rig.answers.wait("post_run", number)
    if rig.cluster.release != "bookworm":
        assert (ended.uid, end_state_name(ended.info["job_state"])) == (3001, "COMPLETED")
    # Slurm forgets the job before its script has removed the last file.
    rig.wait_job(number, lambda _: not list(rig.cluster.head.path("/var/spool/burstd/stage").iterdir()))


def test_nobody_sees_folders_and_accounts_of_others_in_arguments(rig: StageRig) -> None:
    seen: list[str] = []

    def note_arguments(call: StageCall) -> StageReply:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if b"stage_client" in (said := process.read_bytes()):
                    seen.append(os.fsdecode(said))
        return StageReply("ok", env=variables(call.job_id))

    hooks = ("check", "setup", "data_in", "paths", "pre_run", "post_run", "data_out", "teardown")
    rig.answers.replies = dict.fromkeys(hooks, note_arguments)
    number = rig.submit("true", "-A secrets")
    rig.answers.wait("data_in", number)
    rig.allocated(number)
    rig.answers.wait("teardown", number)
    rig.wait_job(number, lambda j: j is None)
    assert len(seen) >= len(hooks)
    assert not [line for line in seen if "/home/ada" in line or "secrets" in line]
    # Slurm 22.05 tells job_submit.lua alone.
    (told,) = (call.info for call in rig.answers.calls if call.hook == "check" and "work_dir" in call.info)
    assert (told["work_dir"], told.get("account", "secrets")) == ("/home/ada", "secrets")
    assert not list(rig.cluster.head.path("/").glob("tmp/lua_*"))


def test_what_slurm_tells_at_sbatch_is_enough_to_refuse_a_volume(rig: StageRig) -> None:
    rig.answers.replies["check"] = lambda _call: StageReply("refused", "no")
    for options, partition, why in (
        ("--array=1-2", "onprem", "jobs of arrays"),
        ("-N2", "onprem", "asks for 2: add -N 1"),
        ("-N1", "elsewhere", "volumes are in the cloud only"),
        ("-N1", "onprem", ""),
    ):
        rig.answers.calls.clear()
        rig.submit("true", f"{options} -p onprem")
        (call,) = (call for call in rig.answers.calls if call.hook == "check")
        if "array" in options and "plugin" not in call.info:
            continue  # burst_buffer/lua does not tell it at sbatch; its tasks are held later.
        found = submitted_job_fault(call.info, {partition})
        assert why in found, (options, call.info)
        assert bool(found) == bool(why), (options, call.info)


EVIL = (
    "x UserId=bob(3002) GroupId=bob(3002) NodeList=cl1 JobState=FAILED\n   WorkDir=/home/bob\n\nJobId=1 UserId=root(0)"
)


def test_what_a_user_writes_makes_nobody_else_of_him(rig: StageRig) -> None:
    name = EVIL.replace("/", "_")
    rig.cluster.head.path("/home/ada/evil").write_text(EVIL, encoding="utf-8")
    rig.cluster.head.path("/home/ada/evil_name").write_text(name, encoding="utf-8")
    rig.answers.block("data_in")
    for field in ("comment", "job-name", "output", "error", "wckey"):
        value = '"$(cat evil_name)"' if field in ("job-name", "output", "error") else '"$(cat evil)"'
        number = rig.submit("exit 3", f"--{field}={value} -e '%5j_%x' --array=4")
        call = rig.answers.wait("data_in", number)
        facts = job_facts.read_job_facts(rig.commands, number)
        assert facts is not None
        assert (facts.user, facts.uid, facts.gid) == ("ada", 3001, 3001)
        assert (facts.partitions, facts.work_dir, facts.queue_id) == (("onprem",), "/home/ada", f"{number}_4")
        assert call.uid in (3001, None)
        job = rig.job(f"{number}_4")
        assert job is not None
        assert (job.user, job.partitions, job.node_list) == ("ada", ("onprem",), ())
        if field == "job-name":
            assert (job.name, facts.name) == (name, name)
            assert facts.std_err == f"/home/ada/{int(number):05}_{name}"
        if field == "comment":
            assert job.comment == EVIL
        rig.cluster.sh(f"scancel --hurry {number}")


def test_a_burstd_that_comes_back_is_asked_again(rig: StageRig) -> None:
    rig.answers.block("data_in")
    number = rig.submit()
    in_stage_in(rig, number)
    rig.stop()
    rig.answers.calls.clear()
    rig.start()
    rig.answers.wait("data_in", number)
    rig.answers.unblock("data_in")
    file = rig.cluster.head.path(f"/var/spool/burstd/stage/{number}.env")
    rig.cluster.wait(file.exists, 10, "the job's variables kept")
    # Away again: the job gets its variables, and waits on its node until burstd lets it run.
    rig.stop()
    rig.allocated(number)
    assert rig.output(number) == []
    rig.start()
    rig.answers.wait("teardown", number)
    assert rig.output(number) == sorted(f"{name}={value}" for name, value in variables(number).items())


def test_a_job_cancelled_in_stage_in_is_cleared_at_once(rig: StageRig) -> None:
    """slurmctld may kill the teardown of one that is cancelled in a hook together with that hook."""
    rig.answers.block("data_in")
    number = rig.submit()
    in_stage_in(rig, number)
    rig.cluster.sh(f"scancel {number}", "ada")
    for _ in range(10):
        with suppress(AssertionError):
            rig.answers.wait("teardown", number, 5)
            break
        assert "BurstBufferState=teardown" in rig.cluster.sh(f"scontrol show job {number}")
        # As burstd.staging.controller.decision.lost_teardown_advice says; Slurm may lose that one too.
        rig.cluster.sh(f"scontrol requeuehold {number}; scancel {number}")
    assert rig.answers.wait("teardown", number).hurry
    rig.wait_job(number, lambda j: j is None)
    assert "post_run" not in rig.answers.hooks_of_job(number)


@pytest.mark.parametrize("options", ["--requeue", "--no-requeue"])
def test_slurm_waits_for_the_pre_run_of_a_dead_node_and_needs_a_refusal(rig: StageRig, options: str) -> None:
    rig.answers.block("pre_run")
    number = rig.submit("sleep 1", options)
    rig.answers.wait("data_in", number)
    rig.allocated(number)
    rig.answers.wait("pre_run", number)
    job = rig.job(number)
    assert job is not None
    (node,) = job.node_list
    rig.cluster.sh(f"scontrol update nodename={node} state=down reason=dead")
    try:
        assert rig.answers.wait("teardown", number).hurry
        rig.answers.calls.clear()
        rig.answers.wait("pre_run", number)  # it asks again
        rig.answers.replies["pre_run"] = lambda _call: DEALLOCATED_REPLY
        rig.answers.unblock("pre_run")
        assert rig.answers.wait("teardown", number).hurry
        rig.answers.replies.clear()
    finally:
        # Refused where its slurmd has brought it back meanwhile.
        rig.cluster.sh(f"scontrol update nodename={node} state=resume", check=False)
        rig.cluster.wait(lambda: rig.cluster.sh(f"sinfo -hN -n {node} -o %t").split()[0] == "idle", 20, "it idle")
    if options == "--no-requeue":
        rig.wait_job(number, lambda j: j is None)
        assert "JobState=NODE_FAIL" in rig.cluster.sh(f"scontrol show job {number}")
        return
    rig.wait_job(number, lambda j: j is not None and j.state is JobState.PENDING and j.reason != "Cleaning")
    rig.cluster.sh(f"scontrol update jobid={number} starttime=now")
    rig.answers.wait("post_run", number, 40)


def test_a_job_that_cannot_be_staged_is_held_and_may_be_released(rig: StageRig) -> None:
    rig.answers.replies["data_in"] = lambda _call: StageReply("refused", "no such bucket: s3://b; make it")
    number = rig.submit()
    rig.answers.wait("teardown", number)
    job = rig.wait_job(number, lambda j: j is not None and j.reason == "BurstBufferOperation")
    assert job is not None
    assert job.priority == 0
    assert "no_such_bucket:_s3://b;_make_it" in rig.cluster.sh(f"scontrol show job {number}")
    rig.answers.replies.clear()
    rig.answers.calls.clear()
    rig.cluster.sh(f"scontrol release {number}")
    rig.answers.wait("data_in", number)
    rig.allocated(number)
    rig.answers.wait("post_run", number)


def test_each_task_of_an_array_has_data_of_its_own(rig: StageRig) -> None:
    array = rig.submit(options="--array=1-2")
    rig.finished(2)
    assert all("#BURST stage_in /data" in c.text for c in rig.answers.calls if c.hook == "data_out")
    told = [c for c in rig.answers.calls if c.hook == "data_in"]
    assert len({c.job_id for c in told}) == 2
    assert all("#BURST stage_in /data" in c.text for c in told)
    outputs = {rig.output(array, task)[0] for task in "12"}
    assert outputs == {f"BURST_IN={variables(c.job_id)['BURST_IN']}" for c in told}


def test_a_requeued_job_brings_its_output_home_first(rig: StageRig) -> None:
    number = rig.submit("sleep 60")
    rig.answers.wait("data_in", number)
    rig.allocated(number)
    rig.wait_job(number, lambda j: j is not None and j.state is JobState.RUNNING)
    rig.answers.block("data_out")
    rig.cluster.sh(f"scontrol requeue {number}")
    rig.answers.wait("data_out", number)
    job = rig.wait_job(number, lambda j: j is not None and j.state is JobState.PENDING)
    assert job is not None
    assert job.node_list == ()
    rig.answers.calls.clear()
    rig.answers.unblock("data_out")
    rig.answers.wait("teardown", number)
    rig.cluster.sh(f"scontrol update jobid={number} starttime=now")
    rig.answers.wait("data_in", number)
    assert [h for h in rig.answers.hooks_of_job(number) if not h.startswith("test_")][-3:] == [
        "teardown",
        "setup",
        "data_in",
    ]


def test_whoever_calls_srun_where_it_cannot_work_is_told(rig: StageRig) -> None:
    file = rig.cluster.head.path("/etc/slurm/job_submit.lua")
    if not file.exists():
        pytest.skip("the plug-in is for 22.05")
    before = file.read_text(encoding="utf-8")
    tell, told = "srun -p onprem -t1 true 2>&1", "srun does not work on the nodes of partition onprem"
    assert rig.cluster.sh(tell, "ada") == ""
    file.write_text(before.replace("local unreached = {}", 'local unreached = { "burst", "onprem" }'), encoding="utf-8")
    try:
        rig.cluster.wait(lambda: told in rig.cluster.sh(tell, "ada"), 20, "slurmctld has read the plug-in again")
        assert told in rig.cluster.sh("salloc -p onprem -t1 true 2>&1", "ada")
        assert told not in rig.cluster.sh("sbatch -p onprem -t1 --wrap true 2>&1", "ada")
    finally:
        file.write_text(before, encoding="utf-8")


UNREAD = """\
#burst stage_in /data
#   BURST scratch 1G
##BURST scratch 1G
# burst of work
#BURST stage_in /data
true
#BURST stage_out . to out
# BURST stage_out . to out"""


def test_lines_that_look_like_directives_and_are_none_are_told(rig: StageRig) -> None:
    if not rig.cluster.head.path("/etc/slurm/job_submit.lua").exists():
        pytest.skip("this cluster has job_submit.lua on 22.05 only; test_projects.py has it on each")
    rig.cluster.head.path("/home/ada/job.sh").write_text(f"#!/bin/bash\n{UNREAD}\n", encoding="utf-8")
    said = rig.cluster.sh("sbatch --hold -p onprem --mem=100 -o /dev/null job.sh 2>&1", "ada").splitlines()
    assert said[:-1] == [
        "sbatch: line 2: '#burst stage_in' is a comment, and nothing comes of it: write '#BURST stage_in'",
        "sbatch: line 3: '# BURST scratch' is a comment, and nothing comes of it: write '#BURST scratch'",
        "sbatch: line 8: nothing comes of '#BURST stage_out' below the first command: put it above",
    ]
    assert said[-1].startswith("Submitted batch job ")
