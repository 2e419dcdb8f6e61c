"""No parser of what Slurm prints takes one field for another, or ends, whatever people write: on real output."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import JobState
from burstd.planner.demand import feature_expression
from burstd.simulate.traces import philly, sacct, swf
from burstd.simulate.traces.trace_job import Trace, TraceError, TraceLines
from burstd.slurm import hostlist, reservations
from burstd.slurm.commands import controller, job_facts, jobs, limits, nodes, parsing, sbatch
from burstd.slurm.commands.delimiters import RandomDelimiters
from burstd.slurm.commands.reasons import short_reason
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config import check
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.hooks import power_server, stage_server  # fmt: skip
from tests.crash.stage_world import POOLS
from tests.lab.patience import processor_s
from tests.security.fuzz import fuzzed
from tests.security.slurm_text import VERSIONS, hostile, real


def same(wall: float) -> float:
    return wall


def written(*names: str) -> st.SearchStrategy[Mapping[str, str]]:
    return st.fixed_dictionaries(dict.fromkeys(names, hostile))


# One row, all fields in turn: also those that Slurm writes itself.


@fuzzed
@given(field=st.sampled_from(jobs.QUEUE_FIELDS), value=hostile, version=st.sampled_from(VERSIONS))
def test_fuzz_a_field_of_the_queue_changes_no_other_job(field: str, value: str, version: str) -> None:
    drawn = RandomDelimiters()
    first, *rest = drawn.split_rows(real(version, "queue", {}, drawn))
    cells = drawn.split_fields(first, jobs.QUEUE_FIELDS)
    hit = drawn.field_delimiter.join((cells | {field: value}).values()) + drawn.row_delimiter + "\n"
    others = "".join(row + drawn.row_delimiter + "\n" for row in rest)
    found = jobs.parse_jobs(hit + others, drawn, same)
    assert found[1:] == jobs.parse_jobs(others, drawn, same)
    job, plain = found[0], jobs.parse_jobs(first + drawn.row_delimiter + "\n", drawn, same)[0]
    assert job.user == (value if field == "UserName" else "ada")
    assert max(job.nodes, job.nodes_max, job.cpus, job.memory_mib, job.priority) <= parsing.MAX_COUNT
    assert min(job.submitted, job.start, job.end, job.time_limit_s) >= 0
    assert max(job.submitted, job.start, job.end, job.eligible) < 2**33
    if field in ("Name", "Comment", "Account", "QOS", "Licenses", "Dependency", "Reservation", "Feature"):
        names = {"name", "comment", "account", "qos", "licenses", "dependency", "reservation", "constraint"}
        assert replace(job, **dict.fromkeys(names, "")) == replace(plain, **dict.fromkeys(names, ""))  # type: ignore[arg-type]


@fuzzed
@given(field=st.sampled_from(job_facts.JOB_FACTS_FIELDS), value=hostile, version=st.sampled_from(VERSIONS))
def test_fuzz_a_field_of_one_job_is_read_or_refused(field: str, value: str, version: str) -> None:
    drawn = RandomDelimiters()
    row, *_ = drawn.split_rows(real(version, "facts", {}, drawn))
    cells = drawn.split_fields(row, job_facts.JOB_FACTS_FIELDS)
    try:
        (facts,) = job_facts.parse_job_facts(
            drawn.field_delimiter.join((cells | {field: value}).values()) + drawn.row_delimiter + "\n", drawn
        )
    except SchedulerUnavailable:
        assert field in ("UserID", "GroupID", "NodeList")
        return
    assert field in ("UserID", "GroupID") or (facts.uid, facts.gid) == (3001, 3001)
    assert field == "UserName" or facts.user == "ada"


@fuzzed
@given(values=st.lists(hostile, min_size=1, max_size=4))
def test_fuzz_comments_and_excluded_nodes_stay_their_jobs(values: list[str]) -> None:
    drawn = RandomDelimiters()
    rows = [
        drawn.field_delimiter.join((str(n), "0", value)) + drawn.row_delimiter + "\n" for n, value in enumerate(values)
    ]
    found = jobs.parse_comments("".join(rows), drawn)
    assert found == {str(n): parsing.text_or_empty(value) for n, value in enumerate(values)}
    rows = [str(n) + drawn.field_delimiter + value + drawn.row_delimiter + "\n" for n, value in enumerate(values)]
    excluded = jobs.parse_excluded_nodes("".join(rows), drawn)
    assert set(excluded) == {str(n) for n, value in enumerate(values) if parsing.text_or_empty(value)}


@fuzzed
@given(
    values=st.dictionaries(
        st.sampled_from(("array", "cpus-per-gpu", "gres", "gpus", "gpus-per-task", "mem", "nodes", "ntasks", "time")),
        hostile,
    )
)
def test_fuzz_an_option_of_sbatch_is_read_or_refused(values: dict[str, str]) -> None:
    options = "".join(f"sbatch: {name:20}: {value}\n" for name, value in values.items())
    found = sbatch.parse_answer(f"sbatch: defined options\n{options}sbatch: end of defined options\n", 0)
    for one in found.components:
        with contextlib.suppress(hostlist.HostlistError):
            job = sbatch.requested_job(one, sbatch.SubmitDefaults("burst"))
            assert job.partitions == ("burst",)
            assert min(job.nodes, job.cpus, job.tasks) >= 1


@fuzzed
@given(account=hostile, comment=hostile)
def test_fuzz_limits_of_an_association_stay_its_own(account: str, comment: str) -> None:
    text = (
        f"ClusterName=c Account=lhc UserName=ada(7) MaxJobs=2(1) Comment={comment}\nClusterName=c Account={account}\n"
    )
    found = limits.parse_limits(text, "ada", 7, "lhc", {"normal"})
    assert found[:1] == ["MaxJobs=2 of ada in lhc (1 used)"] or "ClusterName=" in comment or "QOS Records" in comment
    assert all(" of " in limit for limit in found)


def test_a_job_that_cannot_be_read_is_passed_over_and_says_so() -> None:
    drawn = RandomDelimiters()
    first, second, *_ = drawn.split_rows(real("24.11", "queue", {}, drawn))
    cells = drawn.split_fields(first, jobs.QUEUE_FIELDS) | {"JobArrayID": "17_[3]", "ArrayTaskID": "1-"}
    rows = drawn.field_delimiter.join(cells.values()) + drawn.row_delimiter + "\n" + second + drawn.row_delimiter + "\n"
    bad, good = jobs.parse_jobs(rows, drawn, same)
    assert (bad.id, bad.user, bad.state, good.state) == ("17", "ada", JobState.UNKNOWN, JobState.PENDING)
    assert "cannot read" in bad.reason


@pytest.mark.parametrize("version", VERSIONS)
@given(os=hostile, reason=hostile)
def test_a_nodes_last_field_stays_one_field(version: str, os: str, reason: str) -> None:
    plain = nodes.parse_nodes(real(version, "nodes", {"OS": "Linux"}), same)
    assert [(node.name, node.partitions) for node in plain] == [("cl1", ("burst",)), ("op1", ("onprem",))]
    # A reason is the last field of a record; only a line break within it could begin another record.
    said = real(version, "nodes", {"OS": "Linux"}).rstrip("\n") + f" Reason=x{reason} [root@1]\n"
    if "NodeName=" not in said.rpartition("Reason=")[2]:
        found = nodes.parse_nodes(said, same)
        assert [replace(node, reason="") for node in found] == list(plain)
    # What a node says of itself changes no other node, and of itself only what it says anyway.
    if "NodeName=" not in os and " RealMemory=" not in os:
        _, odd = nodes.parse_nodes(real(version, "nodes", {"OS": f"x{os}"}), same)
        of_slurm = ("state", "flags", "partitions", "memory_mib", "memory_allocated_mib", "boot_time", "last_busy")
        assert [getattr(odd, name) for name in of_slurm] == [getattr(plain[1], name) for name in of_slurm]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_that_imitates_fields_and_records_is_found_out(version: str) -> None:
    evil = "Linux State=DOWN Partitions=gpu BootTime=1 LastBusyTime=1 Reason=x RealMemory=7 AllocMem=6"
    cl1, op1 = nodes.parse_nodes(real(version, "nodes", {"OS": evil}), same)
    assert (op1.state, op1.partitions, op1.memory_mib) == ("IDLE", ("onprem",), 1000)
    assert min(op1.boot_time, op1.last_busy) > 1e9
    assert cl1.state == "IDLE"
    said = real(version, "nodes", {"OS": f"{evil} State=IDLE\nNodeName=cl1 State=DOWN"})
    with pytest.raises(SchedulerUnavailable, match="two records of node cl1, the second after that of op1"):
        nodes.parse_nodes(said, same)


@fuzzed
@given(said=written("Name"), version=st.sampled_from(VERSIONS), value=hostile)
def test_fuzz_records_of_nodes_and_reservations_end_nothing(said: Mapping[str, str], version: str, value: str) -> None:
    reservations.parse_reservations(real(version, "reservations", said), same)
    for key in ("State", "Gres", "Partitions", "BootTime", "RealMemory", "ActiveFeatures", "CPUTot", "OS"):
        nodes.parse_nodes(f"NodeName=n1 {key}={value}\n", same)
    nodes.parse_state(value)
    with contextlib.suppress(SchedulerUnavailable):
        nodes.parse_nodes(value, same)
    reservations.parse_reservations(value, same)


@fuzzed
@given(value=hostile)
def test_fuzz_words_and_lists(value: str) -> None:
    for read in (parsing.parse_count, parsing.parse_mebibytes, parsing.parse_duration):
        assert 0 <= read(value) <= parsing.MAX_COUNT
    assert 0 <= parsing.parse_timestamp(value, same) < 2**33
    assert len(parsing.expand_hosts(value)) <= hostlist.MAX_HOSTS
    for gres in (*parsing.parse_job_gres(value), *parsing.parse_node_gres(value)):
        assert 0 <= gres.count <= parsing.MAX_COUNT
    parsing.parse_tres(value)
    short_reason(value)
    parsing.format_exit_code(value)
    for lists in (hostlist.expand, hostlist.task_count, hostlist.task_ranges):
        with contextlib.suppress(hostlist.HostlistError):
            lists(value)
    hostlist.task_limit(value)
    controller.slurmctld_version(controller.parse_config(value))
    config = controller.parse_config(f"SuspendTime = {value}\nSlurmctldParameters = {value}\n")
    check.compare_slurm_conf(
        list(POOLS.values()), SlurmConfOptions(), check.RunningSlurm(config, {"burst": {"Nodes": value}}, ())
    )


_features = st.one_of(
    hostile,
    st.lists(st.sampled_from(["a", "b1", "&", "|", "(", ")", "[", "]", "*", "2", "99999", " "]), max_size=300).map(
        "".join
    ),
)


@fuzzed
@given(value=_features)
def test_fuzz_constraints(value: str) -> None:
    found = feature_expression.parse_constraint(value)
    found.met_by_one_node({"a"})
    found.may_use({"a", "b1"})
    hash(found)
    assert found.min_nodes <= 65_533
    assert len(found.problem) < 1000


@pytest.mark.parametrize(
    "value",
    [
        "(" * 100_000, "(" * 400 + "a" + ")" * 400, "[" * 100_000, "a|" * 1000 + "a", "a&" * 1000 + "a",
        "a|b&" * 500 + "a", "a*" + "9" * 5000, "a*65534", "[" + "a*60000&" * 30 + "a*1]", "a" * 100_000, "(a|" * 300,
        "([a*1|b*1]&" * 300,
    ],
)  # fmt: skip
def test_a_constraint_of_any_depth_is_read_or_refused(value: str) -> None:
    began = time.process_time()
    found = feature_expression.parse_constraint(value)
    found.met_by_one_node({"a"})
    found.may_use({"a"})
    assert hash(found) == hash(feature_expression.parse_constraint(value))
    assert bool(found.problem) != bool(found.alternatives)
    assert time.process_time() - began < processor_s(2)


def test_a_long_row_of_features_is_flat() -> None:
    row = "|".join(f"f{n}" for n in range(700))
    assert feature_expression.parse_constraint(row).met_by_one_node({"f699"})
    row = "&".join(f"f{n}" for n in range(700))
    assert feature_expression.parse_constraint(row).met_by_one_node({f"f{n}" for n in range(700)})
    assert not feature_expression.parse_constraint(row).met_by_one_node({f"f{n}" for n in range(699)})


@pytest.mark.parametrize(
    "value",
    [
        "n[1-999999999]", "n[1-60000],m[1-60000]", "n[" + "1-9999," * 10_000 + "1]", "n" + "[1-9]" * 50,
        "n[" + "0" * 5000 + "1-60000]", "n[" + "9" * 5000 + "]", "n" * 100_000 + "[1-60000]", "[" * 100_000,
        "n[1-65536][1-65536]", "n[" + "1," * 100_000 + "1]",
    ],
)  # fmt: skip
def test_a_host_list_is_counted_before_it_is_made(value: str) -> None:
    began = time.process_time()
    with pytest.raises(hostlist.HostlistError):
        hostlist.expand(value)
    assert time.process_time() - began < processor_s(2)
    assert len(parsing.expand_hosts(value)) == 1


def test_a_comment_that_no_command_can_take_is_refused_for_its_job() -> None:
    with pytest.raises(SchedulerRefused, match="longer than a command may be"):
        SlurmCommands()("true", "Comment=" + "x" * 200_000)


# Histories.

SACCT = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|User|Account|Partition|JobName"
ROW = ("7", "2026-03-01T00:00:00", "2026-03-01T00:00:00", "2026-03-01T01:00:00", "01:00:00", "COMPLETED",
       "cpu=4,gres/gpu=1,mem=4G,node=1", "ada", "bio", "gpu", "train")  # fmt: skip


def replayed(reader: str, lines: list[str]) -> Trace | None:
    read = {"sacct": sacct.read, "swf": swf.read, "philly": philly.read}[reader]
    try:
        return read(TraceLines(Path("trace"), lines))
    except TraceError:
        return None


@fuzzed
@given(value=hostile, column=st.integers(0, len(ROW) - 1))
def test_fuzz_histories_are_read_or_their_rows_left_out(value: str, column: int) -> None:
    row = [*ROW]
    row[column] = value
    found = replayed("sacct", f"{SACCT}\n{'|'.join(row)}\n{'|'.join(('8', *ROW[1:]))}\n".splitlines())
    assert found is None or all(job.cpus <= 1e11 and job.run_s <= 1e11 for job in found.jobs)
    replayed("swf", ["; UnixStartTime: " + value, "1 0 0 60 4 -1 -1 4 60 " + value + " 1 1 1 1 1 1 -1 -1"])
    replayed("philly", ["timestamp,duration,num_gpus", f"2017-10-09 07:01:55,{value},8", f"{value},66.0,{value}"])


@fuzzed
@given(name=hostile)
def test_fuzz_with_a_drawn_delimiter_a_name_stays_a_name(name: str) -> None:
    drawn = "|48151623428151623|"
    columns = drawn.join((*SACCT.split("|")[:-2], "JobName", "Partition"))
    rows = [drawn.join((job, *ROW[1:9], said, "gpu")) for job, said in (("7", f"x{name}x"), ("8", "train"))]
    # As a file is read: line by line.
    found = replayed("sacct", "\n".join((columns, *rows)).split("\n"))
    assert found is not None
    assert [(job.id, job.user, job.partition) for job in found.jobs] == [("7", "ada", "gpu"), ("8", "ada", "gpu")]


@pytest.mark.parametrize("tres", ["gres/gpu=1e999", "gres/gpu=nan", "cpu=-5", "cpu=1e300", "mem=9999999999999999P"])
def test_a_history_with_impossible_numbers_is_left_out(tres: str) -> None:
    row = "|".join((*ROW[:6], tres, *ROW[7:]))
    found = replayed("sacct", [SACCT, row, "|".join(("8", *ROW[1:]))])
    assert found is not None
    assert [job.id for job in found.jobs] == ["8"]


# What the hooks say.

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
    max_leaves=8,
)


@fuzzed
@given(
    said=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("hook", "job", "uid", "gid", "info", "script", "text", "hurry", "kind", "nodes", "time"), _json
        ),
    ),
    hook=st.sampled_from(("setup", "data_in", "x")),
    raw=st.binary(max_size=200),
)
def test_fuzz_calls_of_hooks(said: dict[str, object], hook: str, raw: bytes) -> None:
    for line in (
        raw,
        json.dumps(said).encode(),
        json.dumps({"kind": "resume", "job": "7", **said, "hook": hook}).encode(),
    ):
        call = stage_server.parse_stage_call(line)
        assert call is None or (call.job_id.isdecimal() or not call.job_id)
        power = power_server.parse_power_call(line)
        assert power is None or 0 <= power.time < 2**40
