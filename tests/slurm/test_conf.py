"""The lines for slurm.conf, and what a running Slurm lacks of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.project import Project
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.slurm.slurmd_conf import SlurmdConf
from burstd.settings import build_pools, load_settings
from burstd.slurm.commands.controller import KEPT_S, SlurmdConfReader, parse_config, slurmd_conf
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import RunningSlurm, SlurmConfFinding, compare_slurm_conf, gpu_memory_faults
from burstd.slurm.config.render import SlurmConfOptions, gres_conf_lines, slurm_conf_fragment
from burstd.slurm.hostlist import expand

GPU = Pool(
    "gpu",
    tuple(f"gpu{i:02}" for i in range(1, 11)),
    ("burst", "gpu"),
    Shape(16, 64000, (Gres("gpu", "a100", 4), Gres("gpu", "t4", 1), Gres("nvme", "", 2)), frozenset({"cloud", "a100"})),
)
CPU = Pool("cpu", ("cpu1",), ("burst",), Shape(8, 32000))
OPTIONS = SlurmConfOptions(version=(24, 11, 5), programs="/opt/burstd/bin", onprem_partitions=("main",))

CONFIG = """\
Configuration data as of 2026-11-21T05:36:29
GresTypes               = gpu,nvme
PrivateData             = none
ResumeFailProgram       = /opt/burstd/bin/burstd-resumefail
ResumeProgram           = /opt/burstd/bin/burstd-resume
ResumeRate              = 0 nodes/min
ResumeTimeout           = 1200 sec
ReturnToService         = 2
SchedulerParameters     = batch_sched_delay=0,bf_continue,default_queue_depth=20000,bf_max_job_test=10000,bf_interval=2
SelectType              = select/cons_tres
SlurmctldParameters     = enable_configless,idle_on_node_suspend,power_save_interval=1
SLURM_VERSION           = 24.11.5
SuspendExcParts         = main,login
SuspendProgram          = /opt/burstd/bin/burstd-suspend
SuspendRate             = 0 nodes/min
SuspendTime             = 31536000 sec
SuspendTimeout          = 30 sec
TreeWidth               = 65533

Slurmctld(primary) at head is UP
"""


def node(pool: Pool, name: str) -> Node:
    shape = pool.shape
    return Node(
        name, "IDLE", frozenset({"CLOUD", "POWERED_DOWN"}), pool.partitions, shape.cpus, 0, shape.memory_mib, 0,
        shape.gres, (), shape.features,
    )  # fmt: skip


MAIN = {"main": {"Nodes": "main[1-4]", "State": "UP"}}
MATCHING_SLURM = RunningSlurm(
    parse_config(CONFIG),
    {
        **MAIN,
        "burst": {"Nodes": "cpu1,gpu[01-10]", "State": "UP", "SuspendTime": "GLOBAL"},
        "gpu": {"Nodes": "gpu[01-10],main[1-4]", "State": "UP"},
    },
    [*(node(GPU, s) for s in GPU.slots), node(CPU, "cpu1")],
)


def changed(setting: str, value: str) -> RunningSlurm:
    return replace(MATCHING_SLURM, config={**MATCHING_SLURM.config, setting: value})


@pytest.mark.parametrize(
    ("partition", "config", "wanted"),
    [
        ({}, {"DefMemPerNode": "64000"}, []),
        ({}, {"DefMemPerCPU": "4000"}, []),
        ({}, {"DefMemPerNode": "64001"}, ["64001 MiB"]),
        ({"DefMemPerNode": "UNLIMITED"}, {"DefMemPerCPU": "70000"}, ["70000 MiB"]),
        ({"DefMemPerCPU": "4000"}, {"DefMemPerNode": "64001"}, []),
        ({"DefMemPerNode": "90000"}, {"DefMemPerNode": "100"}, ["90000 MiB"]),
    ],
)
def test_jobs_that_name_no_memory_must_fit(
    partition: dict[str, str], config: dict[str, str], wanted: list[str]
) -> None:
    partitions = {**MATCHING_SLURM.partitions, "burst": {**MATCHING_SLURM.partitions["burst"], **partition}}
    partitions.pop("gpu")
    running = replace(MATCHING_SLURM, partitions=partitions, config={**MATCHING_SLURM.config, **config})
    pools = [replace(pool, partitions=("burst",)) for pool in (GPU, CPU)]
    found = [f for f in compare_slurm_conf(pools, OPTIONS, running) if f.subject == "partition burst"]
    assert [f.found for f in found] == [f"{asked} for a job that names no memory" for asked in wanted]
    for finding in found:
        assert finding.wanted == "DefMemPerCPU=4000"
        assert finding.consequence == "no node of the partition has so much, so such jobs never start"
        assert finding.remedy == (
            "add DefMemPerCPU=4000 to the partition's line in slurm.conf, and run scontrol reconfigure"
        )
    lines = slurm_conf_fragment(pools, replace(OPTIONS, default_memory_mib=64001)).splitlines()
    assert "PartitionName=burst Nodes=cpu1,gpu[01-10] DefMemPerCPU=4000 MaxTime=INFINITE State=UP" in lines


@pytest.mark.parametrize(
    ("partition", "of_all", "found"),
    [
        (None, "DefMemPerGPU=64000", None),
        (None, "DefCpuPerGPU=2,DefMemPerGPU=64001", "64001 MiB with each GPU"),
        ("DefMemPerGPU=12000", "DefMemPerGPU=64001", None),
        ("DefMemPerGPU=70000", "(null)", "70000 MiB with each GPU"),
    ],
)
def test_jobs_of_a_gpu_that_name_no_memory_must_fit(partition: str | None, of_all: str, found: str | None) -> None:
    burst = {**MATCHING_SLURM.partitions["burst"], **({} if partition is None else {"JobDefaults": partition})}
    running = replace(changed("JobDefaults", of_all), partitions={**MATCHING_SLURM.partitions, "burst": burst})
    said = [
        (f.wanted, f.found)
        for f in compare_slurm_conf([replace(GPU, partitions=("burst",)), CPU], OPTIONS, running)
        if f.subject == "partition burst"
    ]
    assert said == ([("DefMemPerGPU=12800", found)] if found else [])
    pools = [CPU, GPU]
    lines = slurm_conf_fragment(pools, replace(OPTIONS, default_gpu_memory_mib=64001)).splitlines()
    assert "PartitionName=burst Nodes=cpu1,gpu[01-10] DefMemPerGPU=12800 MaxTime=INFINITE State=UP" in lines
    lines = slurm_conf_fragment([CPU], replace(OPTIONS, default_gpu_memory_mib=64001)).splitlines()
    assert "PartitionName=burst Nodes=cpu1 MaxTime=INFINITE State=UP" in lines


def test_the_lines_for_slurm_conf() -> None:
    lines = slurm_conf_fragment([GPU, CPU], OPTIONS).splitlines()
    assert (
        "NodeName=gpu[01-10] CPUs=16 RealMemory=64000 Gres=gpu:a100:4,gpu:t4:1,nvme:2 Feature=a100,cloud State=CLOUD"
        in lines
    )
    assert "NodeName=cpu1 CPUs=8 RealMemory=32000 State=CLOUD" in lines
    assert "PartitionName=burst Nodes=cpu1,gpu[01-10] MaxTime=INFINITE State=UP" in lines
    assert "PartitionName=gpu Nodes=gpu[01-10] MaxTime=INFINITE State=UP" in lines
    assert "ResumeProgram=/opt/burstd/bin/burstd-resume" in lines
    assert "GresTypes=gpu,nvme" in lines
    assert "SuspendExcParts=main" in lines
    assert not [line for line in lines if line.startswith("PrivateData")]
    assert "PrivateData=cloud" in slurm_conf_fragment([CPU], SlurmConfOptions(version=(22, 5, 8))).splitlines()
    assert not [line for line in slurm_conf_fragment([CPU], SlurmConfOptions()).splitlines() if line.startswith("Gres")]


def test_the_lines_for_gres_conf() -> None:
    assert gres_conf_lines([GPU, CPU], OPTIONS).splitlines() == [
        "NodeName=gpu[01-10] Name=gpu Type=a100 File=/dev/nvidia[0-3]",
        "NodeName=gpu[01-10] Name=gpu Type=t4 File=/dev/nvidia4",
        "NodeName=gpu[01-10] Name=nvme Count=2",
    ]


SHARED = Pool("half", ("g1", "g2"), ("burst",), Shape(8, 32000, (Gres("gpu", "", 2), Gres("shard", "", 8))))


def test_shards_are_written_as_slurmd_spreads_them() -> None:
    assert "NodeName=g[1-2] CPUs=8 RealMemory=32000 Gres=gpu:2,shard:8 State=CLOUD" in slurm_conf_fragment(
        [SHARED], OPTIONS
    )
    assert "GresTypes=gpu,shard\n" in slurm_conf_fragment([SHARED], OPTIONS)
    assert gres_conf_lines([SHARED], OPTIONS).splitlines() == [
        "NodeName=g[1-2] Name=gpu File=/dev/nvidia[0-1]",
        "NodeName=g[1-2] Name=shard Count=8",
    ]


def test_slurmd_finds_the_parts_of_cut_gpus_itself() -> None:
    cut = Gres("gpu", "1g.10gb", 7)
    pool = Pool("cut", ("m1",), ("burst",), Shape(8, 32000, (cut, Gres("nvme", "", 1))), mig=(cut,))
    assert "NodeName=m1 CPUs=8 RealMemory=32000 Gres=gpu:1g.10gb:7,nvme:1 State=CLOUD" in slurm_conf_fragment(
        [pool], OPTIONS
    )
    assert gres_conf_lines([pool], OPTIONS).splitlines() == [
        "NodeName=m1 AutoDetect=nvml",
        "NodeName=m1 Name=nvme Count=1",
    ]


NO_GPU, NO_SHARD = {"shards": "gres/gpu=0", "whole": "gres/shard=0"}, {"whole": "gres/shard=0", "shards": ""}


@pytest.mark.parametrize(
    ("version", "enforce", "qos", "limits", "found"),
    [
        ("22.05.8", "associations,limits,qos", ("shards", "shards"), NO_GPU, []),
        ("22.05.8", "limits", ("N/A", "shards"), NO_GPU, ["partition burst"]),
        ("22.05.8", "limits", ("shards", "shards"), NO_SHARD, ["partition burst", "partition big"]),
        ("22.05.8", "none", ("whole", "whole"), NO_GPU, ["partition burst", "partition big"]),
        ("22.05.8", "limits", ("whole", "shards"), NO_GPU, ["pool half"]),
        ("23.11.0", "none", ("N/A", "N/A"), {}, []),
    ],
)
def test_before_23_11_a_node_gives_its_gpus_whole_or_in_shards(
    version: str, enforce: str, qos: tuple[str, str], limits: dict[str, str], found: list[str]
) -> None:
    config = {
        **MATCHING_SLURM.config, "SLURM_VERSION": version, "AccountingStorageEnforce": enforce,
        "GresTypes": "gpu,shard", "PrivateData": "cloud",
    }  # fmt: skip
    partitions = MAIN | {
        name: {"Nodes": "g[1-2]", "State": "UP", "QoS": its} for name, its in zip(("burst", "big"), qos, strict=True)
    }
    running = RunningSlurm(config, partitions, [node(SHARED, s) for s in SHARED.slots], limits)
    both = replace(SHARED, partitions=("burst", "big"))
    assert [f.subject for f in compare_slurm_conf([both], OPTIONS, running)] == found


@pytest.mark.parametrize("word", ["LL_SHARED_GRES", "MULTIPLE_SHARING_GRES_PJ"])
def test_other_ways_to_choose_gpus_are_named(word: str) -> None:
    config = {**MATCHING_SLURM.config, "SelectTypeParameters": f"CR_CPU_MEMORY,{word}", "GresTypes": "gpu,shard"}
    running = RunningSlurm(
        config, MAIN | {"burst": {"Nodes": "g[1-2]", "State": "UP"}}, [node(SHARED, s) for s in SHARED.slots]
    )
    (found,) = compare_slurm_conf([SHARED], OPTIONS, running)
    assert (found.subject, found.recommended) == ("SelectTypeParameters", True)
    assert word in found.remedy


def test_nothing_is_found_where_all_is_well() -> None:
    assert compare_slurm_conf([GPU, CPU], OPTIONS, MATCHING_SLURM) == []
    # The folder of the programs is the site's choice; the settings of other things are none of ours.
    elsewhere = changed("ResumeProgram", "/usr/local/sbin/burstd-resume")
    assert compare_slurm_conf([GPU, CPU], OPTIONS, elsewhere) == []


@pytest.mark.parametrize(
    ("setting", "value", "wanted", "advice"),
    [
        ("ResumeProgram", "(null)", "/opt/burstd/bin/burstd-resume", False),
        ("ResumeProgram", "/site/boot-my-nodes", "/opt/burstd/bin/burstd-resume", False),
        ("SuspendTime", "NONE", "31536000 or more", False),
        ("SuspendTime", "600 sec", "31536000 or more", False),
        ("ResumeTimeout", "60 sec", "900 or more", False),
        ("SuspendTimeout", "300 sec", "30 or less", False),
        ("SlurmctldParameters", "power_save_interval=10", "idle_on_node_suspend,power_save_interval=1", False),
        ("SuspendExcParts", "login", "main", False),
        ("GresTypes", "gpu", "nvme", False),
        ("SelectType", "select/linear", "select/cons_tres", False),
        ("ReturnToService", "1", "2", False),
        ("SuspendRate", "60 nodes/min", "0", True),
        (
            "SchedulerParameters",
            "default_queue_depth=500,bf_max_job_test=10000,bf_interval=30",
            "batch_sched_delay=0,default_queue_depth=10000,bf_interval=5",
            True,
        ),
    ],
)  # fmt: skip
def test_a_setting_that_differs_is_named(setting: str, value: str, wanted: str, *, advice: bool) -> None:
    found = compare_slurm_conf([GPU, CPU], OPTIONS, changed(setting, value))[0]
    assert (found.subject, found.wanted, found.recommended) == (setting, wanted, advice)
    assert found.consequence
    assert setting in found.remedy


def test_nodes_without_a_configuration_of_their_own_need_slurmctld_to_give_it() -> None:
    power_saving_only = changed("SlurmctldParameters", "idle_on_node_suspend,power_save_interval=1")
    assert compare_slurm_conf([GPU, CPU], OPTIONS, power_saving_only) == []
    (found,) = compare_slurm_conf([GPU, CPU], replace(OPTIONS, configless=True), power_saving_only)
    assert (found.subject, found.wanted, found.recommended) == ("SlurmctldParameters", "enable_configless", False)


def test_staging_needs_its_plugin() -> None:
    assert "BurstBufferType=burst_buffer/lua" in slurm_conf_fragment([CPU], replace(OPTIONS, staging=True)).splitlines()
    assert "BurstBufferType" not in slurm_conf_fragment([CPU], OPTIONS)
    options = replace(OPTIONS, staging=True)
    assert compare_slurm_conf([GPU, CPU], options, changed("BurstBufferType", "burst_buffer/lua")) == []
    (found,) = compare_slurm_conf([GPU, CPU], options, changed("BurstBufferType", "(null)"))
    assert (found.subject, found.wanted, found.found) == ("BurstBufferType", "burst_buffer/lua", "not set")


SOLO_CPU = replace(CPU, exclusive_user=True)


def test_a_partition_whose_nodes_run_jobs_of_one_user_at_a_time() -> None:
    lines = slurm_conf_fragment([GPU, SOLO_CPU], OPTIONS).splitlines()
    assert "PartitionName=burst Nodes=cpu1,gpu[01-10] ExclusiveUser=YES MaxTime=INFINITE State=UP" in lines
    assert "PartitionName=gpu Nodes=gpu[01-10] MaxTime=INFINITE State=UP" in lines


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"ExclusiveUser": "NO"}, ["ExclusiveUser=NO"]),
        ({"Exclusive": "NO"}, ["Exclusive=NO"]),
        ({"Exclusive": "TOPO"}, ["Exclusive=TOPO"]),
        ({"ExclusiveUser": "YES"}, []),
        ({"Exclusive": "USER"}, []),
        ({"ExclusiveUser": "NO", "OverSubscribe": "EXCLUSIVE"}, []),
        ({"Exclusive": "NODE"}, []),
    ],
)
def test_a_partition_that_mixes_users_is_named(fields: dict[str, str], found: list[str]) -> None:
    partitions = {**MATCHING_SLURM.partitions, "burst": {**MATCHING_SLURM.partitions["burst"], **fields}}
    running = replace(MATCHING_SLURM, partitions=partitions)
    findings = compare_slurm_conf([GPU, SOLO_CPU], OPTIONS, running)
    assert [(f.subject, f.wanted, f.found, f.recommended) for f in findings] == [
        ("partition burst", "ExclusiveUser=YES", text, False) for text in found
    ]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"OverSubscribe": "NO"}, ["OverSubscribe=NO"]),
        ({"Exclusive": "USER"}, ["Exclusive=USER"]),
        ({}, ["not set"]),
        ({"OverSubscribe": "EXCLUSIVE"}, []),
        ({"Exclusive": "NODE"}, []),
    ],
)
def test_a_partition_with_staged_working_directories_gives_whole_nodes(
    fields: dict[str, str], found: list[str]
) -> None:
    options = replace(OPTIONS, workdir_partitions=("burst",))
    lines = slurm_conf_fragment([GPU, SOLO_CPU], options).splitlines()
    assert "PartitionName=burst Nodes=cpu1,gpu[01-10] OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP" in lines
    assert "JobSubmitPlugins=lua" in lines
    assert [line for line in lines if 'local staged = { "burst" }' in line]
    partitions = {**MATCHING_SLURM.partitions, "burst": {**MATCHING_SLURM.partitions["burst"], **fields}}
    config = {**MATCHING_SLURM.config, "JobSubmitPlugins": "site,lua"}
    running = replace(MATCHING_SLURM, partitions=partitions, config=config)
    findings = compare_slurm_conf([GPU, CPU], options, running)
    assert [(f.wanted, f.found) for f in findings] == [("OverSubscribe=EXCLUSIVE", text) for text in found]
    (plugin,) = compare_slurm_conf([GPU, CPU], replace(options, workdir_partitions=("none",)), MATCHING_SLURM)
    assert (plugin.subject, plugin.wanted) == ("JobSubmitPlugins", "lua")


OWN_PROLOG = "/opt/burstd/bin/burstd-prolog"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # Up to one line, and since Slurm takes several.
        ("PrologSlurmctld = (null)", ("not set", False)),
        ("", ("not set", False)),
        (f"PrologSlurmctld = {OWN_PROLOG}", None),
        ("PrologSlurmctld = /usr/bin/burstd-prolog", None),
        ("PrologSlurmctld = /site/prolog", ("/site/prolog", True)),
        (f"PrologSlurmctld[0] = /site/prolog\nPrologSlurmctld[1] = {OWN_PROLOG}", None),
        ("PrologSlurmctld[0] = /a\nPrologSlurmctld[1] = /b", ("/a, /b", True)),
    ],
)
def test_shown_trees_need_the_prolog(lines: str, found: tuple[str, bool] | None) -> None:
    running = replace(MATCHING_SLURM, config=parse_config(f"{CONFIG}{lines}\n"))
    assert compare_slurm_conf([GPU, CPU], OPTIONS, running) == []
    findings = compare_slurm_conf([GPU, CPU], replace(OPTIONS, prolog=True), running)
    assert [(f.subject, f.found, f.recommended) for f in findings] == ([("PrologSlurmctld", *found)] if found else [])
    for finding in findings:
        assert OWN_PROLOG in finding.remedy
        several = "[" in lines
        assert finding.remedy.startswith("add the line PrologSlurmctld=") is several


def test_the_line_for_the_prolog() -> None:
    assert f"PrologSlurmctld={OWN_PROLOG}" in slurm_conf_fragment([CPU], replace(OPTIONS, prolog=True)).splitlines()
    assert "PrologSlurmctld" not in slurm_conf_fragment([CPU], OPTIONS)


def test_old_versions_hide_slots_without_machines() -> None:
    old = changed("SLURM_VERSION", "22.05.8")
    (found,) = compare_slurm_conf([GPU, CPU], OPTIONS, old)
    assert (found.subject, found.wanted, found.found) == ("PrivateData", "cloud", "none")


def test_nodes_that_differ_are_named_together() -> None:
    nodes = [
        replace(n, memory_mib=1) if "gpu" <= n.name < "gpu04" else n for n in MATCHING_SLURM.nodes if n.name != "gpu10"
    ]
    nodes = [replace(n, flags=frozenset(), gres=(), features=frozenset()) if n.name == "gpu05" else n for n in nodes]
    found = compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, nodes=nodes))
    assert [(f.subject, f.wanted.split(" ")[0], f.found) for f in found] == [
        ("nodes gpu10", "NodeName=gpu[01-10]", "not there"),
        ("nodes gpu[01-03]", "RealMemory=64000", "RealMemory=1"),
        ("nodes gpu05", "State=CLOUD", "IDLE"),
        ("nodes gpu05", "Gres=gpu:a100:4,gpu:t4:1,nvme:2", "Gres=none"),
        ("nodes gpu05", "Feature=a100,cloud", "Feature=none"),
    ]
    assert found[-1].remedy == (
        "put the NodeName line of burstctl slurm-config into slurm.conf and restart slurmctld; or, where slurm.conf is "
        "right, make pool gpu in burstd.toml agree with it and run burstctl config reload"
    )


def test_partitions_that_differ_are_named() -> None:
    partitions = MAIN | {"burst": {"Nodes": "gpu[01-09],cpu1", "State": "DOWN", "SuspendTime": "300"}}
    found = compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, partitions=partitions))
    assert [(f.subject, f.found) for f in found] == [
        ("partition burst", "Nodes=gpu[01-09],cpu1"),
        ("partition burst", "State=DOWN"),
        ("partition burst", "SuspendTime=300"),
        ("partition gpu", "not there"),
    ]


def test_a_partition_that_takes_in_slots_is_named() -> None:
    everything = {**MATCHING_SLURM.partitions, "debug": {"Nodes": "cpu1,gpu[01-04],op[1-9]", "State": "UP"}}
    assert compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, partitions=everything)) == [
        SlurmConfFinding(
            "partition debug",
            "the site's own nodes alone",
            "Nodes=cpu1,gpu[01-04],op[1-9]",
            "its jobs start on rented nodes (cpu1,gpu[01-04]) while these are up, and wait for slots without a "
            "machine; burstd starts none for them",
            "list the site's own nodes in the PartitionName line, in the place of Nodes=ALL, and run scontrol "
            "reconfigure; or, where the jobs may burst, add debug to the pool's partitions in burstd.toml",
        )
    ]


def test_partitions_to_keep_that_slurm_does_not_have_are_named() -> None:
    there = {name: fields for name, fields in MATCHING_SLURM.partitions.items() if name != "main"}
    assert compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, partitions=there))[0] == SlurmConfFinding(
        "keep_partitions",
        "partitions of the site's own nodes",
        "Slurm has no partition main",
        "nothing keeps power saving from powering down the site's own nodes",
        "name them as Slurm does, in slurm.keep_partitions of burstd.toml and in SuspendExcParts of slurm.conf",
    )


@pytest.mark.parametrize(
    ("spared", "wants"), [(None, "own[1-4]"), ("own[1-2]", "own[3-4]"), ("own[1-4]:1", "own[1-4]"), ("own[1-4]", "")]
)
def test_the_sites_own_nodes_beside_those_of_pools(spared: str | None, wants: str) -> None:
    config = {**MATCHING_SLURM.config, **({} if spared is None else {"SuspendExcNodes": spared})}
    partitions = {**MATCHING_SLURM.partitions, "gpu": {"Nodes": "gpu[01-10],main[1-4],own[1-4]", "State": "UP"}}
    found = [
        (f.wanted, f.found, f.consequence, f.remedy)
        for f in compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, config=config, partitions=partitions))
        if f.subject == "SuspendExcNodes"
    ]
    expected = (
        wants, spared or "not set", "power saving may switch the site's own machines off",
        f"add {wants} to SuspendExcNodes and restart slurmctld",
    )  # fmt: skip
    assert found == ([expected] if wants else [])


CONFIG_FOLDER = Path(__file__).parents[2] / "config"
EXAMPLES = ("slurm.conf", "gres.conf")


def example(name: str) -> str:
    """What config/slurm must hold: the lines for the pools of the example burstd.toml."""
    settings = load_settings(CONFIG_FOLDER / "burstd.toml", check_files=False)
    wanted = list(build_pools(settings, expand).values())
    options = SlurmConfOptions(programs="/opt/burstd/bin", onprem_partitions=("main",))
    source = f"# As printed by 'burstctl slurm-config{' --gres' * (name == 'gres.conf')}' for config/burstd.toml.\n"
    return source + (slurm_conf_fragment(wanted, options) if name == "slurm.conf" else gres_conf_lines(wanted, options))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_what_burstd_prints(name: str) -> None:
    assert (CONFIG_FOLDER / "slurm" / name).read_text(encoding="utf-8") == example(name)


A = Project("a", "team-a", Fraction(4), partitions=("burst",), interactive_max_s=5400, min_runtime_s=90000)
B = Project("b", "team-b", Fraction(2), partitions=("burst", "main"))
SITE = {
    "burst": {"Nodes": "gpu[1-2]", "MaxTime": "1-00:00:00", "JobDefaults": "DefMemPerGPU=1000,DefCpuPerGPU=2",
              "GraceTime": "30", "OverSubscribe": "NO", "MinNodes": "0", "Exclusive": "USER"},
    "main": {"Nodes": "main1,gpu2", "MaxTime": "UNLIMITED"},
}  # fmt: skip


def test_the_lines_of_projects() -> None:
    options = replace(OPTIONS, projects=(A, B, Project("above")), partitions=SITE)
    lines = slurm_conf_fragment([replace(CPU, partitions=("burst", "q-a", "o-a"))], options).splitlines()
    limits = "AllowAccounts=team-a MaxTime=1-00:00:00 DefMemPerGPU=1000 DefCpuPerGPU=2"
    quota, over = "PriorityTier=10000 PreemptMode=OFF QOS=q-a", "PriorityTier=1 PreemptMode=REQUEUE QOS=o-a"
    for line in (
        f"PartitionName=q-a Nodes=gpu[1-2] {quota} {limits} ExclusiveUser=YES State=UP",
        f"PartitionName=o-a Nodes=gpu[1-2] {over} {limits} GraceTime=30 ExclusiveUser=YES State=UP",
        "#   sacctmgr -i add account team-a 'Description=burstd project a' Organization=burstd",
        "#   sacctmgr -i add qos o-a 'Description=burstd project a' GrpTRES=gres/gpu=0 PreemptExemptTime=1-01:00:00",
        "PreemptType=preempt/partition_prio",
        "AccountingStorageEnforce=limits",
    ):
        assert line in lines
    assert [line for line in lines if line.startswith("PartitionName=q-b Nodes=gpu[1-2],main1 ")]
    assert len([line for line in lines if line.startswith("PartitionName=")]) == 5
    lua = next(line for line in lines if "job_submit.lua" in line)
    assert 'local projects = { ["team-a"] = { name = "a", shares = { ["burst"] = true }, minutes = 90 }' in lua


@pytest.mark.parametrize(("version", "whole_gpus"), [((22, 5, 8), " MaxTRESPerJob=gres/gpu=0"), ((24, 11, 5), "")])
def test_the_lines_of_projects_whose_gpus_have_shards(version: tuple[int, int, int], whole_gpus: str) -> None:
    """Nodes without shards may be among them; weights of the site's partition give way."""
    half = replace(A, quota=Fraction(5, 8))
    shared = {
        **SITE["burst"],
        "NodeGres": "gpu:v100:2(S:0-1),shard:8(S:0-1)|gpu:4|(null)",
        "TRESBillingWeights": "CPU=1",
    }
    options = replace(OPTIONS, version=version, projects=(half,), partitions={"burst": shared})
    text = slurm_conf_fragment([], options)
    for part in (
        "AccountingStorageTRES=gres/gpu,gres/shard\n",
        " TRESBillingWeights=gres/gpu=4,gres/shard=1 ",
        f" GrpTRES=billing=2 MinTRESPerJob=billing=1{whole_gpus}\n",
        f" GrpTRES=billing=0 PreemptExemptTime=1-01:00:00{whole_gpus}\n",
        'shares = { ["burst"] = true }, shards = true, minutes = 90 }',
    ):
        assert part in text
    assert "CPU=1" not in text
    mixed = {**shared, "NodeGres": "gpu:2,shard:8|gpu:2,shard:4"}
    text = slurm_conf_fragment([], replace(options, partitions={"burst": mixed}))
    assert "AccountingStorageTRES=gres/gpu\n" in text
    assert " GrpTRES=gres/gpu=0 MinTRESPerJob=gres/gpu=1\n" in text
    assert "shard" not in text.replace("burstd", "")


def test_shards_that_slurmctld_does_not_count_are_named() -> None:
    node = Node("gpu1", "IDLE", partitions=("burst",), gres=(Gres("gpu", "", 2), Gres("shard", "", 8)))
    for tres, there, expected in (
        ("cpu,gres/gpu", (node,), ["gres/shard"]),
        ("cpu,gres/gpu,gres/shard", (node,), []),
        ("cpu,gres/gpu", (replace(node, gres=node.gres[:1]),), []),
        ("cpu,gres/gpu", (replace(node, partitions=("other",)),), []),
    ):
        running = RunningSlurm({"AccountingStorageTRES": tres}, {}, there)
        found = compare_slurm_conf([], replace(OPTIONS, projects=(A,)), running)
        assert [f.wanted for f in found if f.subject == "AccountingStorageTRES"] == expected


def test_pairs_without_nodes_are_not_written() -> None:
    lines = slurm_conf_fragment([], replace(OPTIONS, projects=(B,), partitions={})).splitlines()
    assert "# slurmctld shows no node of burst and main: print these lines again where it does" in lines
    assert not [line for line in lines if line.startswith("PartitionName=")]


MPS, DMEM = replace(SHARED, gpu_memory_limit="mps"), replace(SHARED, name="hard", gpu_memory_limit="dmem")
FILES = "/[eu][ts][cr]/b*/true"


@pytest.mark.parametrize(
    ("pools", "lines"),
    [
        ([SHARED], []),
        ([MPS], [f"Prolog={FILES}", "TaskProlog=/etc/burstd/task-prolog"]),
        ([DMEM], [f"Prolog={FILES}", "PrologFlags=Contain", "ProctrackType=proctrack/cgroup"]),
        ([SHARED, MPS, DMEM], [f"Prolog={FILES}", "TaskProlog=/etc/burstd/task-prolog", "PrologFlags=Contain",
                               "ProctrackType=proctrack/cgroup"]),
    ],
)  # fmt: skip
def test_the_lines_for_limits_of_gpu_memory(pools: list[Pool], lines: list[str]) -> None:
    written = slurm_conf_fragment(pools, OPTIONS).splitlines()
    assert [line for line in written if line.startswith(("Prolog=", "TaskProlog", "PrologF", "Proctrack"))] == lines
    if MPS in pools:
        assert any("ln -s /bin/true /etc/burstd/task-prolog" in line for line in written)


SET = f"Prolog = {FILES}\nTaskProlog = /etc/burstd/task-prolog\n"
CGROUPS = "PrologFlags = Alloc,Contain\nProctrackType = proctrack/cgroup\n"


@pytest.mark.parametrize(
    ("pool", "lines", "lacks", "advice"),
    [
        (SHARED, "", [], []),
        (MPS, SET, [], []),
        (MPS, f"Prolog[0] = /site/prolog\nProlog[1] = {FILES}\nTaskProlog = /etc/burstd/task-prolog\n", [], []),
        (MPS, "Prolog = (null)\nTaskProlog = (null)\n", ["Prolog", "TaskProlog"], []),
        (MPS, f"Prolog = {FILES}\n", ["TaskProlog"], []),
        # What it calls, nothing tells.
        (MPS, "Prolog = /usr/bin/true\nTaskProlog = /site/task-prolog\n", [], ["Prolog", "TaskProlog"]),
        (DMEM, SET, ["PrologFlags", "ProctrackType"], []),
        (
            DMEM,
            f"{SET}PrologFlags = Alloc\nProctrackType = proctrack/linuxproc\n",
            ["PrologFlags", "ProctrackType"],
            [],
        ),
        (DMEM, f"Prolog[0] = {FILES}\n{CGROUPS}", [], []),
    ],
)
def test_limits_of_gpu_memory_need_their_lines(pool: Pool, lines: str, lacks: list[str], advice: list[str]) -> None:
    text = f"{CONFIG.replace('gpu,nvme', 'gpu,shard')}{lines}"
    nodes = [node(pool, slot) for slot in pool.slots]
    running = replace(MATCHING_SLURM, config=parse_config(text), nodes=nodes)
    subjects = ("Prolog", "TaskProlog", "PrologFlags", "ProctrackType")
    found = [f for f in compare_slurm_conf([pool], OPTIONS, running) if f.subject in subjects]
    assert [f.subject for f in found if not f.recommended] == lacks
    assert [f.subject for f in found if f.recommended] == advice
    if advice:
        assert found[0].remedy == "let /usr/bin/true call /etc/burstd/true, and fail where it fails"
    faults = gpu_memory_faults(pool, cast("SlurmCommands", lambda *_argv: text))
    assert [fault.partition(":")[0] for fault in faults] == lacks


@pytest.mark.parametrize("value", ["head(10.0.0.1)", "head.example.org"])
def test_slurmctld_is_known_to_nodes(value: str) -> None:
    assert compare_slurm_conf([GPU, CPU], OPTIONS, changed("SlurmctldHost[0]", value)) == []


def test_a_short_name_of_slurmctld_is_named() -> None:
    config = {**MATCHING_SLURM.config, "SlurmctldHost[0]": "head", "SlurmctldHost[1]": "spare(10.0.0.2)"}
    (found,) = compare_slurm_conf([GPU, CPU], OPTIONS, replace(MATCHING_SLURM, config=config))
    assert (found.subject, found.wanted, found.found, found.recommended) == (
        "SlurmctldHost", "an address beside the name: head(ADDRESS)", "head", True
    )  # fmt: skip
    assert found.consequence == "a machine that does not know the name head boots, and does not become a node"
    assert found.remedy == ("write SlurmctldHost=head(ADDRESS) and restart slurmctld, or let the images know the name")


@pytest.mark.parametrize(
    ("config", "ports", "prologs"),
    [
        (
            (
                "Epilog = /etc/slurm/epilog.d/*\nProlog = (null)\nPrologSlurmctld = /a\n"
                "SlurmctldHost[0]        = head(10.77.0.2)\nSlurmctldPort           = 6817\nTaskProlog = (null)\n"
            ),
            ("10.77.0.2:6817",),
            {"/etc/slurm/epilog.d/*": "Epilog"},
        ),
        (
            (
                "Prolog[0] = /a\nProlog[1] = /[eu][ts][cr]/b*/true\nTaskProlog = /etc/burstd/task-prolog\n"
                "SlurmctldHost[0] = head\nSlurmctldHost[1] = spare.example.org\nSlurmctldPort = 6820-6823\n"
            ),
            ("head:6820", "spare.example.org:6820"),
            {"/a": "Prolog", "/[eu][ts][cr]/b*/true": "Prolog"},
        ),
        ("SLURM_VERSION = 22.05.8\n", (), {}),
    ],
)
def test_what_slurm_conf_asks_of_nodes(config: str, ports: tuple[str, ...], prologs: dict[str, str]) -> None:
    for pam in ("No", "Yes"):
        asked = slurmd_conf(parse_config(f"{config}UsePam = {pam}\n"))
        assert asked == SlurmdConf(ports, prologs, pam=pam == "Yes")
    assert slurmd_conf(parse_config(config)) == SlurmdConf(ports, prologs)


def test_slurmctld_is_not_asked_anew_for_each_machine() -> None:
    now, asked, says = [0.0], [0], "SlurmctldHost[0] = head\n"

    def run(*_: object) -> str:
        asked[0] += 1
        if not says:
            raise SchedulerUnavailable("slurmctld is down")
        return says

    read = SlurmdConfReader(cast("SlurmCommands", run), lambda: now[0])
    head = SlurmdConf(("head:6817",))
    assert [read() for _ in range(5)] == [head] * 5
    assert asked == [1]
    now[0], says = KEPT_S, ""
    with pytest.raises(SchedulerUnavailable):
        read()
    assert (read(), asked) == (head, [2])
    now[0], says = 2 * KEPT_S, "SlurmctldHost[0] = spare\n"
    assert read() == SlurmdConf(("spare:6817",))
