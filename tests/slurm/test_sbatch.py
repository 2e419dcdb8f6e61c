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
    requested_job,
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
    assert (found.message, found.refused) == ("allocation failure: Invalid partition name specified", True)
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
        "PartitionName=a Default=NO AllowAccounts=atlas,lhc AllowGroups=physics State=UP ExclusiveUser=YES "
        "DefaultTime=01:00:00 MaxTime=UNLIMITED DefMemPerCPU=500\n"
        "PartitionName=b Default=YES ExclusiveUser=NO DefaultTime=NONE MaxTime=1-00:00:00 DefMemPerNode=UNLIMITED\n"
        "PartitionName=c DenyAccounts=atlas State=UP\nPartitionName=d State=DRAIN\nPartitionName=e AllowGroups=it\n",
        "DefMemPerNode           = 700\nSelectTypeParameters    = CR_CORE\n",
        "atlas",
        {"physics", "ada"},
    )
    assert found.partitions["a"] == PartitionLimits(3600.0, 500, memory_per_cpu=True, exclusive_user=True)
    assert found.partitions["b"] == PartitionLimits(86400.0, 700)
    assert (found.partition, found.memory_is_consumed, found.account) == ("b", False, "atlas")
    assert found.usable_partitions() == ["a", "b"]
