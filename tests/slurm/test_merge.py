"""slurm.conf and gres.conf with burstd's lines in them, and without them again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Gres, Shape
from burstd.slurm.config.merge import (
    BEGIN,
    END,
    MergeRefused,
    included,
    merge_gres_conf,
    merge_slurm_conf,
    unmerge,
    unmerge_files,
)
from burstd.slurm.config.render import SlurmConfOptions

CPU = Pool("cpu", ("burst-cpu1", "burst-cpu2"), ("burst",), Shape(2, 1800))
GPU = Pool("gpu", ("burst-gpu1",), ("gpu",), Shape(2, 1800, (Gres("gpu", "v100", 2),)))
OPTIONS = SlurmConfOptions(version=(22, 5, 8), programs="/opt/burstd/bin", onprem_partitions=("main",), configless=True)
CONF, GRES = Path("/etc/slurm/slurm.conf"), Path("/etc/slurm/gres.conf")
SITE = """\
ClusterName=site
SlurmctldHost=head
NodeName=n[1-2] CPUs=8
PartitionName=main Nodes=n[1-2] Default=YES
"""


def merged(text: str, *pools: Pool, options: SlurmConfOptions = OPTIONS, **more: str) -> str:
    """slurm.conf; ``more``: texts of files beside it."""
    files = {CONF: text, **{CONF.with_name(name): one for name, one in more.items()}}
    return merge_slurm_conf(files, pools or (CPU,), options)[CONF]


def in_force(text: str) -> list[str]:
    """The lines that are no comments, as they are without their own."""
    lines = (re.sub(r"(?<!\\)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("SuspendTime=300", "SuspendTime=31536000"),
        ("suspendtime = 300", "suspendtime=31536000"),
        ("SuspendTime=31536000", "SuspendTime=31536000"),
        ("ResumeTimeout=1200", "ResumeTimeout=1200"),
        ("ResumeTimeout=60", "ResumeTimeout=900"),
        ("TreeWidth=16  # few", "TreeWidth=65533"),
        ("ResumeProgram=/usr/sbin/resume", "ResumeProgram=/opt/burstd/bin/burstd-resume"),
        ("ResumeProgram=/usr/bin/burstd-resume", "ResumeProgram=/usr/bin/burstd-resume"),
        ("ReturnToService=1", "ReturnToService=2"),
        # Recommended only: the site's own value stays.
        ("SuspendRate=60", "SuspendRate=60"),
        (
            "SchedulerParameters=bf_interval=60,bf_continue",
            (
                "SchedulerParameters=bf_interval=60,bf_continue,batch_sched_delay=0,default_queue_depth=10000,"
                "bf_max_job_test=10000"
            ),
        ),
        (
            "SlurmctldParameters=enable_configless,power_save_interval=30",
            "SlurmctldParameters=enable_configless,idle_on_node_suspend,power_save_interval=1",
        ),
        ("SlurmctldParameters=\\\n  enable_configless", None),
        ("PrivateData=none", "PrivateData=cloud"),
        ("PrivateData=jobs,usage", "PrivateData=jobs,usage,cloud"),
        ("SuspendExcParts=login", "SuspendExcParts=login,main"),
        ("SuspendRate=60 ResumeRate=10 SuspendTime=1", "SuspendRate=60 ResumeRate=10 SuspendTime=31536000"),
    ],
)
def test_a_setting_that_the_site_has(line: str, becomes: str | None) -> None:
    text = f"{SITE}{line}\n"
    new = merged(text)
    if becomes is None:
        becomes = "SlurmctldParameters=enable_configless,idle_on_node_suspend,power_save_interval=1"
        assert [re.sub(r"\s+", "", one) for one in in_force(new)].count(becomes) == 1
    else:
        assert in_force(new).count(becomes) == 1
    key = re.match(r"\w+", becomes)
    assert key is not None
    there = [one for one in in_force(new) if re.match(rf"{key[0]}\s*=", one, re.IGNORECASE)]
    assert len(there) == 1, "Slurm takes each setting once"
    assert unmerge(new) == text


def test_of_a_setting_that_stands_there_twice_the_last_counts() -> None:
    new = merged(f"SuspendTime=1\n{SITE}SuspendTime=2\n")
    assert [one for one in in_force(new) if one.startswith("SuspendTime=")] == ["SuspendTime=1", "SuspendTime=31536000"]


def test_what_the_site_does_not_have_is_added() -> None:
    lines = in_force(merged(SITE))
    assert lines[:4] == SITE.splitlines()
    assert "SuspendTime=31536000" in lines
    assert "PrivateData=cloud" in lines
    assert lines[-2:] == [
        "NodeName=burst-cpu[1-2] CPUs=2 RealMemory=1800 State=CLOUD",
        "PartitionName=burst Nodes=burst-cpu[1-2] MaxTime=INFINITE State=UP",
    ]


def test_a_partition_that_exists_gains_the_nodes() -> None:
    text = f"{SITE}PartitionName=gpu Nodes=n2 MaxTime=60\nPartitionName=burst\n"
    new = in_force(merged(text, CPU, GPU))
    assert "PartitionName=gpu Nodes=n2,burst-gpu1 MaxTime=60" in new
    assert "PartitionName=burst Nodes=burst-cpu[1-2]" in new
    assert [one for one in new if one.startswith("PartitionName=")] == [
        "PartitionName=main Nodes=n[1-2] Default=YES", "PartitionName=gpu Nodes=n2,burst-gpu1 MaxTime=60",
        "PartitionName=burst Nodes=burst-cpu[1-2]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("PartitionName=all Nodes=ALL", "PartitionName=all Nodes=n[1-2]"),
        ("PartitionName=all nodes=all MaxTime=1", "PartitionName=all nodes=n[1-2] MaxTime=1"),
        ("PartitionName=burst Nodes=ALL", "PartitionName=burst Nodes=n[1-2],burst-cpu[1-2]"),
    ],
)
def test_a_partition_of_all_nodes_does_not_swallow_those_of_clouds(line: str, becomes: str) -> None:
    assert becomes in in_force(merged(f"{SITE}{line}\n"))


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("PartitionName=burst Nodes=n[3-4]", "SuspendExcNodes=n[3-4]"),
        ("PartitionName=burst Nodes=ALL", "SuspendExcNodes=n[3-4]"),  # n1 and n2 are in a partition that is kept
        ("PartitionName=burst Nodes=n2", None),
        ("PartitionName=burst Nodes=n[3-4]\nPartitionName=login Nodes=n4\nSuspendExcParts=login", "SuspendExcNodes=n3"),
        ("PartitionName=burst Nodes=n3\nSuspendExcParts=burst", None),
        ("PartitionName=burst Nodes=n[3-4]\nSuspendExcNodes=n[1,3]", "SuspendExcNodes=n[1,3],n4"),
        ("PartitionName=burst Nodes=n3\nSuspendExcNodes=n[3-4]:1", "SuspendExcNodes=n[3-4]:1,n3"),
        ("PartitionName=burst Nodes=n3\nSuspendExcNodes=n[1-3]", "SuspendExcNodes=n[1-3]"),
        ("NodeSet=fat Nodes=n4\nPartitionName=burst Nodes=fat", "SuspendExcNodes=n[3-4]"),
        ("PartitionName=other Nodes=n[3-4]", None),
    ],
)
def test_power_saving_spares_the_sites_own_nodes_in_a_partition_that_burstds_join(
    text: str, becomes: str | None
) -> None:
    text = f"{SITE}NodeName=n[3-4] CPUs=8\n{text}\n"
    new = merged(text)
    assert [one for one in in_force(new) if one.startswith("SuspendExcNodes")] == ([becomes] if becomes else [])
    assert unmerge(new) == text
    assert merge_slurm_conf({CONF: new}, [CPU], OPTIONS) == {}


def test_defaults_do_not_reach_the_pools_nodes_and_partition() -> None:
    text = f"NodeName=DEFAULT Sockets=2 CoresPerSocket=16\nPartitionName=DEFAULT Nodes=ALL MaxTime=60\n{SITE}"
    lines = in_force(merged(text))
    default = lines.index("NodeName=DEFAULT Sockets=2 CoresPerSocket=16")
    assert lines.index("NodeName=burst-cpu[1-2] CPUs=2 RealMemory=1800 State=CLOUD") < default
    assert lines.index("PartitionName=burst Nodes=burst-cpu[1-2] MaxTime=INFINITE State=UP") < default
    assert "PartitionName=DEFAULT Nodes=n[1-2] MaxTime=60" in lines
    assert unmerge(merged(text)) == text


def test_what_an_included_file_has_is_changed_there() -> None:
    main, power, nodes = (
        f"Include power.conf\n{SITE}include nodes.conf\n",
        "SuspendTime=300\n",
        "NodeName=DEFAULT CPUs=1",
    )
    files = {CONF: main, CONF.with_name("power.conf"): power, CONF.with_name("nodes.conf"): nodes}
    assert included(main) == ["power.conf", "nodes.conf"]
    new = merge_slurm_conf(files, [CPU], OPTIONS)
    assert set(new) == {CONF, CONF.with_name("power.conf")}
    assert in_force(new[CONF.with_name("power.conf")]) == ["SuspendTime=31536000"]
    assert not any(line.startswith("SuspendTime=") for line in in_force(new[CONF]))
    lines = in_force(new[CONF])
    assert lines.index("NodeName=burst-cpu[1-2] CPUs=2 RealMemory=1800 State=CLOUD") < lines.index("include nodes.conf")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "NodeName=burst-cpu[2-9]",
            " has a node burst-cpu2 already: give the pools' nodes other names, or take the line out",
        ),
        ("NodeName=n[3-", ": brackets do not match in the host list 'n[3-'"),
        (
            "Include more.conf",
            ": /etc/slurm/more.conf cannot be read; mend the Include line, or write the lines there",
        ),
        (
            "PrologSlurmctld=/etc/slurm/prolog",
            (
                " has PrologSlurmctld=/etc/slurm/prolog, and burstd needs "
                "PrologSlurmctld=/opt/burstd/bin/burstd-prolog: "
                "name there a program that runs both, and ends with the first status that is not 0. Or leave the "
                "trees out (--no-trees)"
            ),
        ),
    ],
)
def test_what_cannot_be_merged_is_refused_with_its_line(line: str, says: str) -> None:
    options = SlurmConfOptions(programs="/opt/burstd/bin", prolog=True)
    with pytest.raises(MergeRefused) as refused:
        merged(f"{SITE}{line}\n", options=options)
    assert str(refused.value) == f"/etc/slurm/slurm.conf, line 5{says}"


def test_gres_conf_for_all_nodes_becomes_one_for_those_of_the_site() -> None:
    text = "AutoDetect=nvml\nName=gpu Type=a100 File=/dev/nvidia[0-3] # all\nNodeName=n2 Name=nvme Count=1"
    new = merge_gres_conf({GRES: text}, [CPU, GPU], OPTIONS, {CONF: SITE})[GRES]
    assert in_force(new) == [
        "NodeName=n[1-2] AutoDetect=nvml",
        "NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]",
        "NodeName=n2 Name=nvme Count=1",
        "NodeName=burst-gpu1 Name=gpu Type=v100 File=/dev/nvidia[0-1]",
    ]
    assert unmerge(new) == text
    assert merge_gres_conf({GRES: text}, [CPU], OPTIONS, {CONF: SITE}) == {}
    fresh = merge_gres_conf({GRES: ""}, [GPU], OPTIONS, {CONF: merged(SITE, CPU, GPU)})[GRES]
    assert in_force(fresh) == ["NodeName=burst-gpu1 Name=gpu Type=v100 File=/dev/nvidia[0-1]"]
    assert unmerge(fresh) == ""


def test_what_the_administrator_changes_later_stays() -> None:
    new = merged(f"{SITE}SuspendTime=300\n")
    later = new.replace("Default=YES", "Default=NO") + "MaxJobCount=5\n"
    assert unmerge(later) == f"{SITE}SuspendTime=300\n".replace("YES", "NO") + "MaxJobCount=5\n"


LINES = st.sampled_from([
    "", "# SuspendTime=5 \\", "SuspendTime=300", "  suspendTime = 1 # short", "SchedulerParameters=bf_continue,\\",
    "bf_interval=60", "NodeName=DEFAULT Sockets=2 \\", "  CoresPerSocket=4", "NodeName=x[1-4] CPUs=8",
    "MaxJobCount=5\r", "PartitionName=DEFAULT MaxTime=60", "PartitionName=all Nodes=ALL", "PartitionName=burst \\",
    "Nodes=x1", "GresTypes=gpu",
    "NodeName=n\N{LATIN SMALL LETTER E WITH ACUTE}1 \udcff", "TreeWidth=\\", "50", "JobCompLoc=/var/\\#x\\\\",
])  # fmt: skip


@given(st.lists(LINES, max_size=12), st.booleans())
def test_merging_twice_changes_nothing_and_unmerging_gives_the_bytes_back(lines: list[str], ended: bool) -> None:
    text = SITE + "\n".join(lines) + ("\n" if ended else "")
    once = merged(text, CPU, GPU)
    assert merge_slurm_conf({CONF: once}, [CPU, GPU], OPTIONS) == {}
    assert unmerge(once) == text


@pytest.mark.parametrize("gone", [BEGIN, END])
def test_without_the_mark_of_an_end_nothing_is_taken_out(gone: str) -> None:
    new = merged(SITE).replace(f"{gone}\n", "")
    with pytest.raises(MergeRefused) as refused:
        unmerge_files({CONF: new})
    assert str(refused.value) == (
        f"{CONF}: burstd's lines stand between '# BEGIN burstd' and '# END burstd', and one of these two is gone: "
        "write it again"
    )
