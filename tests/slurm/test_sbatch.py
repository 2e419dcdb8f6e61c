"""What sbatch's words ask for: read from its own list of options, the same as the queue shows once it is submitted."""

from __future__ import annotations

import pytest

from burstd.domain.slurm.shape import Gres
from burstd.slurm.commands.sbatch import (
    PartitionLimits,
    SbatchFailed,
    SubmitDefaults,
    delays,
    parse_answer,
    parse_defaults,
    refusals,
    requested_job,
    usable_partitions,
)

DEFAULTS = SubmitDefaults("onprem", {"onprem": PartitionLimits(), "burst": PartitionLimits(3600.0, 100)})
HET = """\
sbatch: defined options
sbatch: -------------------- --------------------
sbatch: export              : SECRET=hunter2
sbatch: hold                : set
sbatch: job-name            : two
partition           : stolen
sbatch: mem                 : 0?
sbatch: ntasks              : 4
sbatch: verbose             : 1
sbatch: -------------------- --------------------
sbatch: end of defined options
sbatch: select/cons_tres: common_init: select/cons_tres loaded
sbatch: defined options
sbatch: array               : 1-100000%9
sbatch: gpus-per-task       : v100:1
sbatch: ntasks              : 2
sbatch: partition           : burst
sbatch: end of defined options
sbatch: debug:  auth/munge: init: Munge authentication plugin loaded
sbatch: error: invalid partition specified: nosuch
allocation failure: Invalid partition name specified
"""


def test_options_of_each_component_and_slurmctlds_answer() -> None:
    found = parse_answer(HET, 1)
    first, second = (requested_job(options, DEFAULTS, "a.sh") for options in found.components)
    assert found.refused
    # The site's own plugins speak before slurmctld.
    assert found.message == (
        "invalid partition specified: nosuch; allocation failure: Invalid partition name specified"
    )
    assert (first.partitions, first.cpus, first.name, first.memory_whole) == (("onprem",), 4, "two", True)
    assert (second.partitions, second.tasks, second.name) == (("burst",), 100_000, "a.sh")
    assert (second.gres_per_job, second.memory_mib, second.time_limit_s) == ((Gres("gpu", "v100", 2),), 100, 3600.0)
    assert delays(found.components[0]) == ["--hold"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sbatch: fatal: --mem, --mem-per-cpu are mutually exclusive.\n", "sbatch: --mem, --mem-per-cpu are mutually"),
        ("sbatch: error: This does not look like a batch script.\n", "sbatch: This does not look like a batch"),
        ("", "sbatch: exit status 1"),
        ("sbatch: defined options\nsbatch: partition : x\n", "sbatch: exit status 1"),
    ],
)
def test_what_sbatch_does_not_understand(text: str, says: str) -> None:
    with pytest.raises(SbatchFailed, match=f"^{says}"):
        parse_answer(text, 1)


def test_defaults_of_partitions_and_of_the_site() -> None:
    found = parse_defaults(
        "PartitionName=a Default=NO State=UP ExclusiveUser=YES DefaultTime=01:00:00 MaxTime=UNLIMITED "
        "DefMemPerCPU=500\n"
        "PartitionName=b Default=YES ExclusiveUser=NO DefaultTime=NONE MaxTime=1-00:00:00 DefMemPerNode=UNLIMITED\n"
        "PartitionName=c OverSubscribe=EXCLUSIVE\nPartitionName=d Exclusive=NODE\nPartitionName=e Exclusive=USER\n",
        "DefMemPerNode           = 700\nSelectTypeParameters    = CR_CORE\n",
        "atlas",
    )
    assert found.partitions["a"] == PartitionLimits(3600.0, 500, memory_per_cpu=True, exclusive_user=True)
    assert found.partitions["b"] == PartitionLimits(86400.0, 700)
    assert (found.partition, found.memory_is_consumed, found.account) == ("b", False, "atlas")
    jobs = [requested_job({"partition": name}, found) for name in "bcde"]
    assert [(job.exclusive, job.exclusive_user) for job in jobs] == [
        (False, False), (True, False), (True, False), (False, True),
    ]  # fmt: skip
    shared = requested_job({"partition": "c", "exclusive": "user"}, found)
    assert (shared.exclusive, shared.exclusive_user) == (False, True)


@pytest.mark.parametrize(
    ("setting", "options", "why"),
    [
        (
            "State=UP RootOnly=NO AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL MaxNodes=UNLIMITED",
            {},
            "",
        ),
        ("State=DRAIN", {}, "State=DRAIN"),
        ("RootOnly=YES", {}, "RootOnly=YES"),
        ("AllowGroups=it,physics", {}, ""),
        ("AllowGroups=it", {}, "AllowGroups=it"),
        ("AllocNodes=login[1-2]", {}, ""),
        ("AllocNodes=login[3-4]", {}, "AllocNodes=login[3-4]"),
        ("AllowAccounts=atlas", {}, ""),
        ("AllowAccounts=atlas", {"account": "lhc"}, "AllowAccounts=atlas"),
        ("DenyAccounts=atlas", {}, "DenyAccounts=atlas"),
        ("DenyAccounts=atlas", {"account": "lhc"}, ""),
        ("AllowQos=vip", {}, "AllowQos=vip"),
        ("AllowQos=vip,long", {"qos": "long"}, ""),
        ("DenyQos=long", {"qos": "long"}, "DenyQos=long"),
        ("MaxTime=00:30:00 DefaultTime=00:10:00", {}, ""),
        ("MaxTime=00:30:00 DefaultTime=00:10:00", {"time": "00:31:00"}, "MaxTime=00:30:00"),
        ("MaxTime=00:30:00", {"time": "UNLIMITED"}, "MaxTime=00:30:00"),
        ("MaxNodes=2", {"nodes": "3"}, "MaxNodes=2"),
        ("MinNodes=2", {"nodes": "1"}, "MinNodes=2"),
        ("MinNodes=2", {}, ""),
    ],
)
def test_partitions_in_which_slurm_starts_no_such_job(setting: str, options: dict[str, str], why: str) -> None:
    found = parse_defaults(f"PartitionName=a {setting}\nPartitionName=b State=UP\n", "", "atlas")
    usable = usable_partitions(options, found, {"ada", "physics"}, "login1")
    assert [one.name for one in usable] == (["b"] if why else ["a", "b"])
    job = requested_job({**options, "partition": "a,b"}, found)
    assert refusals(job, found, {"ada", "physics"}, "login1") == (
        [f"{why} of a"] if why and (job.qos or "Qos" not in why) else []
    )


def test_each_partition_comes_with_what_it_gives_the_job() -> None:
    partitions = "PartitionName=a DefaultTime=00:10:00 DefMemPerCPU=500\n"
    partitions += "PartitionName=b OverSubscribe=EXCLUSIVE MaxTime=00:20:00\n"
    found = parse_defaults(partitions, "SelectTypeParameters = CR_CORE_MEMORY\n")
    first, second = usable_partitions({"partition": "a"}, found, (), "")
    assert (first.time_limit_s, first.memory_mib, first.memory_whole, first.exclusive) == (600.0, 500, False, False)
    assert (second.time_limit_s, second.memory_mib, second.memory_whole, second.exclusive) == (1200.0, 0, True, True)


@pytest.mark.parametrize("words", ["cpu:3,gres/gpu:v100:2", "cpu=3,gres/gpu=v100:2"])
def test_resources_of_each_task(words: str) -> None:
    job = requested_job({"tres-per-task": words, "ntasks": "2"}, DEFAULTS)
    assert (job.gres_per_job, job.cpus) == ((Gres("gpu", "v100", 4),), 6)
