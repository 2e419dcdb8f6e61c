"""What Slurm prints, version by version, and what becomes of it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands import jobs, parsing
from burstd.slurm.commands.delimiters import RandomDelimiters
from burstd.slurm.commands.job_facts import _final_state
from burstd.slurm.commands.licenses import parse_licenses
from burstd.slurm.commands.nodes import parse_nodes, parse_state
from burstd.slurm.commands.reasons import short_reason
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.reservations import parse_reservations

DELIMITERS = RandomDelimiters()


def later(wall: float) -> float:
    return wall + 1000.0


def row(**fields: str) -> str:
    """A row of squeue for a plain pending job, but for some fields."""
    plain = {
        "JobID": "7", "JobArrayID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "HetJobID": "N/A",
        "HetJobOffset": "N/A", "State": "PENDING", "PriorityLong": "1", "Partition": "burst", "NumNodes": "1",
        "MaxNodes": "1", "NumCPUs": "1", "MinCPUs": "1", "NumTasks": "1", "NTPerNode": "0", "MinMemory": "0",
        "tres-per-job": "N/A", "tres-per-node": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
        "tres-alloc": "cpu=1,mem=1000M,node=1,billing=1", "mem-per-tres": "N/A", "Sockets": "*",
        "OverSubscribe": "OK", "Exclusive": "", "ExcNodes": "", "TimeLimit": "UNLIMITED", "SubmitTime": "1700000000",
        "EligibleTime": "1700000001", "StartTime": "N/A", "EndTime": "N/A", "exit_code": "0",
        "PreemptTime": "N/A",
        "ReqNodes": "", "NodeList": "", "RestartCnt": "0", "Requeue": "1", "BatchFlag": "1", "UserName": "ada",
        "Account": "(null)", "QOS": "(null)",
        "Reason": "Priority", "Feature": "(null)", "Reservation": "(null)", "Licenses": "(null)",
        "Dependency": "(null)", "WorkDir": "/home/ada", "STDOUT": "slurm-%j.out", "Comment": "(null)", "Name": "wrap",
    }  # fmt: skip
    values = plain | {k if k in plain else k.replace("_", "-"): v for k, v in fields.items()}
    assert set(jobs.QUEUE_FIELDS) == set(values)
    return DELIMITERS.field_delimiter.join(values[name] for name in jobs.QUEUE_FIELDS) + DELIMITERS.row_delimiter + "\n"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"State": "RUNNING", "PreemptTime": "1700000500"}, {"preempted_at": 1700001500.0}),
        ({"State": "COMPLETING", "PreemptTime": "1700000500"}, {"preempted_at": 0.0}),
        ({"State": "FAILED", "exit_code": "768"}, {"exit_code": "3:0"}),
        ({"State": "FAILED", "exit_code": "4021"}, {"exit_code": "0:53"}),
        ({"State": "RUNNING", "exit_code": "0:0"}, {"exit_code": ""}),
        ({}, {"id": "7", "submitted": 1700001000.0, "start": 0.0, "nodes": 1, "nodes_max": 1, "account": ""}),
        (
            {"JobArrayID": "7_[1-10,15%3]", "ArrayTaskID": "1-10,15%3"},
            {"id": "7", "array_job_id": "7", "array_tasks": "1-10,15", "tasks": 11, "tasks_limit": 3},
        ),
        (
            {"JobID": "9", "JobArrayID": "7_3", "ArrayTaskID": "3", "State": "RUNNING", "NodeList": "cl[1-2]"},
            {"id": "7_3", "array_job_id": "7", "tasks": 1, "state": JobState.RUNNING, "node_list": ("cl1", "cl2")},
        ),
        ({"JobArrayID": "7+1", "HetJobID": "7", "HetJobOffset": "1"}, {"id": "7+1", "het_job_id": "7"}),
        ({"State": "SOMETHING_NEW"}, {"state": JobState.UNKNOWN}),
        ({}, {"work_dir": "/home/ada", "output_dir": "/home/ada"}),
        ({"STDOUT": "/home/ada/logs/slurm-7.out"}, {"output_dir": "/home/ada"}),
        ({"STDOUT": "/srv/logs/%u/slurm-%j.out"}, {"output_dir": "/srv/logs"}),
        ({"STDOUT": "/home/adam/x"}, {"output_dir": "/home/adam"}),
        ({"STDOUT": "/dev/null"}, {"output_dir": ""}),
        ({"STDOUT": "(null)"}, {"output_dir": ""}),
        # GRES: 22.05, 23.02 and later, without type or count.
        ({"tres_per_node": "gres:gpu:v100:2"}, {"gres_per_node": (Gres("gpu", "v100", 2),)}),
        ({"tres_per_node": "gres/gpu:a100=2,gres/shard:4"}, {
            "gres_per_node": (Gres("gpu", "a100", 2), Gres("shard", "", 4)),
        }),
        ({"tres_per_node": "gres/gpu"}, {"gres_per_node": (Gres("gpu", "", 1),)}),
        ({"tres_per_node": "gres:gpu:a100"}, {"gres_per_node": (Gres("gpu", "a100", 1),)}),
        ({"tres_per_task": "cpu=2", "NumTasks": "3"}, {"gres_per_job": ()}),
        ({"tres_per_task": "cpu=2,gres/gpu=1", "NumTasks": "3"}, {"gres_per_job": (Gres("gpu", "", 3),)}),
        ({"tres_per_job": "gres/gpu:4", "tres_per_task": "gres/gpu=1", "NumTasks": "4"}, {
            "gres_per_job": (Gres("gpu", "", 4),),
        }),
        ({"tres_per_socket": "gres:gpu:1", "Sockets": "2"}, {"gres_per_node": (Gres("gpu", "", 2),)}),
        # Memory of each node, of each CPU, of each GPU.
        ({"MinMemory": "500M", "tres_alloc": "cpu=4,mem=1000M,node=2"}, {"memory_mib": 500, "memory_per_cpu": False}),
        ({"MinMemory": "500M", "tres_alloc": "cpu=4,mem=2000M,node=2"}, {"memory_mib": 500, "memory_per_cpu": True}),
        ({"mem_per_tres": "gres:gpu:300", "tres_per_node": "gres:gpu:2"}, {"memory_mib": 600}),
        ({"mem_per_tres": "gres/gpu:300", "tres_per_job": "gres/gpu:8", "tres_alloc": "cpu=2,node=2"}, {
            "memory_mib": 1200,
        }),
        # Nodes: asked for, guessed, limited.
        ({"NumNodes": "32", "MaxNodes": "32", "NumTasks": "64"}, {"nodes": 1, "nodes_max": 0}),
        ({"NumNodes": "1", "MaxNodes": "4", "NumTasks": "4"}, {"nodes": 1, "nodes_max": 4}),
        ({"NumTasks": "5", "NTPerNode": "2", "NumNodes": "3", "MaxNodes": "3"}, {"nodes": 3, "nodes_max": 3}),
        ({"tres_alloc": "cpu=2,node=2", "NumNodes": "2", "MaxNodes": "2"}, {"nodes": 2, "nodes_max": 2, "cpus": 2}),
        # Whole nodes, and nodes of one user: before 26.05, and since.
        ({"OverSubscribe": "NO"}, {"exclusive": True, "exclusive_user": False}),
        ({"OverSubscribe": "USER"}, {"exclusive": False, "exclusive_user": True}),
        ({"OverSubscribe": "NO", "Exclusive": "NO"}, {"exclusive": False, "exclusive_user": False}),
        ({"OverSubscribe": "NO", "Exclusive": "NODE"}, {"exclusive": True, "exclusive_user": False}),
        ({"OverSubscribe": "NO", "Exclusive": "USER"}, {"exclusive": False, "exclusive_user": True}),
        ({"TimeLimit": "1-02:03:04", "RestartCnt": "2"}, {"time_limit_s": 93784.0, "restarts": 2}),
        ({}, {"requeue": True}),
        ({"Requeue": "0"}, {"requeue": False}),
        ({}, {"batch": True}),
        ({"BatchFlag": "0"}, {"batch": False}),
        ({"ExcNodes": "cl[3-4]", "ReqNodes": "cl1"}, {"excluded_nodes": ("cl3", "cl4"), "node_list": ("cl1",)}),
        # As after its node went down.
        ({"NodeList": "cl1", "RestartCnt": "1"}, {"node_list": ()}),
        ({"State": "REQUEUE_HOLD", "NodeList": "cl1", "ReqNodes": "cl2"}, {"node_list": ("cl2",)}),
        ({"Partition": "onprem,burst"}, {"partitions": ("onprem", "burst")}),
    ],
)  # fmt: skip
def test_a_row_of_the_queue(fields: dict[str, str], expected: dict[str, object]) -> None:
    (job,) = jobs.parse_jobs(row(**fields), DELIMITERS, later)
    assert {name: getattr(job, name) for name in expected} == expected


@given(st.lists(st.tuples(st.text(), st.text()), max_size=4))
def test_nothing_that_a_user_writes_breaks_the_queue(written: list[tuple[str, str]]) -> None:
    rows = "".join(row(JobArrayID=str(i), Name=n, Comment=c) for i, (n, c) in enumerate(written))
    found = jobs.parse_jobs(rows, DELIMITERS, later)
    assert [(j.id, j.name, j.comment) for j in found] == [
        (str(i), n, parsing.text_or_empty(c)) for i, (n, c) in enumerate(written)
    ]


def test_a_name_that_imitates_the_output_stays_a_name() -> None:
    evil = (
        row(JobArrayID="1", UserName="root")
        .replace(DELIMITERS.field_delimiter, "\x1fxabc\x1f")
        .replace(DELIMITERS.row_delimiter, RandomDelimiters().row_delimiter)
    )
    found = jobs.parse_jobs(row(Name=evil) + row(JobArrayID="8"), DELIMITERS, later)
    assert [(j.id, j.user) for j in found] == [("7", "ada"), ("8", "ada")]


def test_excluded_nodes_of_old_versions_come_from_a_second_list() -> None:
    excluded = jobs.parse_excluded_nodes(
        "".join(
            f"{job}{DELIMITERS.field_delimiter}{nodes}{DELIMITERS.row_delimiter}\n"
            for job, nodes in (("7", "cl[1-2]"), ("8", ""), ("9", "(null)"))
        ),
        DELIMITERS,
    )
    assert excluded == {"7": ("cl1", "cl2")}
    first, second = jobs.parse_jobs(row() + row(JobID="8", JobArrayID="8"), DELIMITERS, later, excluded)
    assert (first.excluded_nodes, second.excluded_nodes) == (("cl1", "cl2"), ())


def test_rows_that_come_again_are_not_read_again() -> None:
    known: dict[jobs.QueueRow, Job] = {}
    seven, eight = row(), row(JobID="8", JobArrayID="8")
    first = jobs.parse_jobs(seven + eight, DELIMITERS, later, {}, known)
    again = jobs.parse_jobs(seven.replace("Priority", "Resources") + eight, DELIMITERS, later, {}, known)
    assert [j.reason for j in again] == ["Resources", "Priority"]
    assert again[1] is first[1]
    (gone,) = jobs.parse_jobs(eight, DELIMITERS, later, {"8": ("cl1",)}, known)
    assert gone.excluded_nodes == ("cl1",)
    assert len(known) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Resources", "Resources"),
        ("ReqNodeNotAvail, May be reserved for other job", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail, UnavailableNodes:cl[1-8]", "ReqNodeNotAvail"),
        ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail, Reserved for maintenance"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "Resources"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", "Resources"),
        ("Job is at or exceeds QOS normal's group max TRES(cpu) minutes of 1 with 2", "QOSGrpLimit"),
        ("burst_buffer/lua: slurm_bb_data_in: no such file, sorry", "BurstBufferOperation"),
        ("burst_buffer/lua: JobHeldAdmin: slurm_bb_data_in failed: no such bucket", "BurstBufferOperation"),
        ("burst_buffer/lua: Stage-out in progress", "BurstBufferStageOut"),
        ("Resources,BeginTime", "Resources"),
        ("a sentence, of a plug-in", "a sentence, of a plug-in"),
        ("", ""),
    ],
)
def test_reasons_have_short_names(said: str, reason: str) -> None:
    assert short_reason(said) == reason


@pytest.mark.parametrize(
    ("said", "base", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", {"CLOUD", "POWERED_DOWN"}),
        ("IDLE*+CLOUD", "IDLE", {"CLOUD", "NOT_RESPONDING"}),
        ("DOWN*+DRAIN+POWERING_DOWN", "DOWN", {"DRAIN", "POWERING_DOWN", "NOT_RESPONDING"}),
        ("MIXED+CLOUD+DRAIN+RESERVED+PLANNED", "MIXED", {"CLOUD", "DRAIN", "RESERVED", "PLANNED"}),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE", {"CLOUD", "NOT_RESPONDING", "POWERING_UP"}),
        ("IDLE~", "IDLE", set()),
    ],
)  # fmt: skip
def test_states_of_nodes(said: str, base: str, flags: set[str]) -> None:
    assert parse_state(said) == (base, frozenset(flags))


NODE_22 = (
    "NodeName=cl1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=0.68 AvailableFeatures=cloud,a "
    "ActiveFeatures=cloud Gres=gpu:v100:4(S:0-1),mps:400 GresDrain=N/A GresUsed=gpu:v100:2(IDX:0,3),mps:0 "
    "NodeAddr=10.77.1.1 NodeHostName=cl1 Version=22.05.8 OS=Linux 6.1 #1 SMP  RealMemory=1000 "
    "AllocMem=500 FreeMem=N/A Sockets=2 Boards=1 State=MIXED+CLOUD+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=burst,gpu  BootTime=1700000000 SlurmdStartTime=1700000005 "
    "LastBusyTime=Unknown CfgTRES=cpu=2 AllocTRES= CapWatts=n/a Reason=a = b\n and State=c [root@1700000009]\n"
)


def test_a_node_with_everything() -> None:
    known: dict[str, Node] = {}
    op1 = "NodeName=op1 CPUTot=8 State=IDLE Gres=(null)\n"
    first, second = parse_nodes(NODE_22 + op1, later, known)
    again = parse_nodes(NODE_22.replace("State=MIXED", "State=DOWN") + op1, later, known)
    assert again[0].state == "DOWN"
    assert again[1] is second
    assert (first.name, first.state, first.flags) == ("cl1", "MIXED", frozenset({"CLOUD", "DRAIN"}))
    assert (first.cpus, first.cpus_allocated, first.memory_mib, first.memory_allocated_mib) == (2, 1, 1000, 500)
    assert first.gres == (Gres("gpu", "v100", 4), Gres("mps", "", 400))
    assert first.gres_used == (Gres("gpu", "v100", 2),)
    assert (first.features, first.partitions) == (frozenset({"cloud"}), ("burst", "gpu"))
    assert first.reason == "a = b\n and State=c"
    assert (first.boot_time, first.slurmd_start, first.last_busy) == (1700001000.0, 1700001005.0, 0.0)
    assert (second.name, second.cpus, second.gres, second.reason) == ("op1", 8, (), "")


@pytest.mark.parametrize(
    ("gres", "used", "gpus"),
    [
        # 24.11 and later
        ("gpu:4,shard:16", "gpu:(null):0(IDX:N/A),shard:(null):0(0/4,0/4,0/4,0/4)", "4/4 4/4 4/4 4/4"),
        ("gpu:4,shard:16", "gpu:(null):1(IDX:3),shard:(null):9(3/4,4/4,2/4,0/4)", "1/4 0/4 2/4 0/4"),
        ("gpu:4,shard:10", "gpu:(null):0(IDX:N/A),shard:(null):3(1/2,2/2,0/3,0/3)", "1/2 0/2 3/3 3/3"),
        ("gpu:a100:2,shard:8", "gpu:a100:1(IDX:1),shard:(null):3(3/4,0/4)", "1/4 0/4"),
        ("gpu:4,shard:16", "gpu:(null):4(IDX:0-3),shard:(null):0(0/4,0/4,0/4,0/4)", "0/4 0/4 0/4 0/4"),
        # 26.05
        ("gpu:2,shard:8", "gpu:1(IDX:1),shard:3(3/4,-/4)", "1/4 0/4"),
        ("gpu:2,shard:8", "gpu:0(IDX:N/A),shard:0(0/4,0/4)", "4/4 4/4"),
        # 22.05
        ("gpu:4,shard:16", "gpu:0,shard:(null):0(IDX:N/A)", "4?4 4?4 4?4 4?4"),
        ("gpu:4,shard:16", "gpu:1,shard:(null):2(IDX:0,2)", "0?4 4?4 4?4 4?4"),
        ("gpu:a100:2,shard:8", "gpu:a100:1(IDX:1),shard:(null):1(IDX:0)", "4?4 0?4"),
        ("gpu:4,shard:16", "", "4/4 4/4 4/4 4/4"),
        ("gpu:4", "gpu:(null):1(IDX:3)", ""),
    ],
)
def test_what_is_left_of_each_gpu(gres: str, used: str, gpus: str) -> None:
    (node,) = parse_nodes(f"NodeName=g1 Gres={gres} GresUsed={used} State=MIXED CPUTot=2\n", later)
    assert " ".join(f"{g.free}{'/' if g.exact else '?'}{g.shards}" for g in node.shared_gpus) == gpus


def test_gpus_without_a_type_are_counted_as_24_11_shows_them() -> None:
    (node,) = parse_nodes("NodeName=g1 Gres=gpu:4 GresUsed=gpu:(null):3(IDX:1-3),mps:(null):0(IDX:N/A)\n", later)
    assert node.gres_used == (Gres("gpu", "", 3),)


def test_reservations() -> None:
    said = (
        "ReservationName=burstd StartTime=1700000000 EndTime=1731536000 Duration=365-00:00:00 Nodes=cl[1-2] NodeCnt=2 "
        "Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu=16 Users=root Groups=(null) State=ACTIVE\n"
        "ReservationName=burstd-job-7_2 StartTime=1700000000 EndTime=1731536000 Nodes=cl1 Flags=OVERLAP Users=ada,bob\n"
    )
    gate, bound = parse_reservations(said, later)
    assert (gate.name, gate.nodes, gate.users, gate.job_id) == ("burstd", frozenset({"cl1", "cl2"}), ("root",), "")
    assert (gate.start, gate.end) == (1700001000.0, 1731537000.0)
    assert (bound.job_id, bound.users, bound.flags) == ("7_2", ("ada", "bob"), frozenset({"OVERLAP"}))
    assert parse_reservations("No reservations in the system\n", later) == ()


def test_licences() -> None:
    said = (
        "LicenseName=solver Total=4 Used=3 Free=1 Reserved=0 Remote=no\n"
        "LicenseName=far@server Total=9 Used=0 Free=9 Reserved=0 Remote=yes LastConsumed=0 LastUpdate=1700000000\n"
    )
    assert parse_licenses(said) == {"solver": 1, "far@server": 9}
    assert parse_licenses("No licenses configured in Slurm.\n") == {}


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller", SchedulerUnavailable, "contact"),
        ("Unexpected message received for job 1", SchedulerUnavailable, "Unexpected"),
        ("x\nslurm_update error: Protocol authentication error", SchedulerUnavailable, "authentication"),
        ("slurm_update error: Invalid node name specified", SchedulerRefused, "Invalid node name"),
        ("", SchedulerRefused, "exit code 1"),
    ],
)  # fmt: skip
def test_errors_are_told_apart(said: str, error: type[Exception], message: str) -> None:
    def run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        assert environment["SLURM_TIME_FORMAT"] == "%s"
        return subprocess.CompletedProcess(argv, 1, "", said)

    with pytest.raises(error, match=message):
        SlurmCommands(run)("scontrol", "x")


def test_where_the_commands_and_their_configuration_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text('#!/bin/sh\necho "$SLURM_CONF|$SQUEUE_USERS|$LC_ALL"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", "/from/the/environment")
    monkeypatch.setenv("SQUEUE_USERS", "ada")
    assert SlurmCommands(bin_dir=tmp_path)("squeue") == "/from/the/environment||C.UTF-8\n"
    assert SlurmCommands(bin_dir=tmp_path, conf=Path("/etc/x.conf"))("squeue") == "/etc/x.conf||C.UTF-8\n"


def test_a_missing_program_and_a_hanging_one_are_unavailable() -> None:
    with pytest.raises(SchedulerUnavailable, match="not installed"):
        SlurmCommands()("no-such-program-of-slurm")
    with pytest.raises(SchedulerUnavailable, match="no answer within"):
        SlurmCommands(timeout_s=0.1)("sleep", "10")


@pytest.mark.parametrize(
    ("reason", "exit_code", "state"),
    [
        ("None", "0:0", "COMPLETED"),
        ("NonZeroExitCode", "3:0", "FAILED"),
        ("None", "0:15", "CANCELLED"),
        ("TimeLimit", "0:15", "TIMEOUT"),
        ("JobLaunchFailure", "0:53", "FAILED"),
    ],
)
def test_how_a_job_ended_whose_output_is_staged_out(reason: str, exit_code: str, state: str) -> None:
    assert _final_state("STAGE_OUT", reason, exit_code) == state
