"""What a machine says of itself, and what is thought of it."""

from __future__ import annotations

import pwd
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.cloud.offer import GpuTest
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.checks import CHECK_NAMES, GPU_TOOLS, failed_checks, head_user_ids
from burstd.node.expected import ExpectedMachine
from burstd.node.facts import MAX_TREE_MODULES, NO_LIMIT, GpuState, MachineFacts, UserIds, parse_facts
from burstd.node.reference import Reference

A100 = "NVIDIA A100-SXM4-40GB"
GPU1, GPU2 = GpuState("0000:19:00.0", width=16, max_width=16), GpuState("0000:3B:00.0")
SUM = "982fbf28ae0399df1d9e016200d90d31805620919d31ea8bbfc803f3398a2a5e"
GOOD = MachineFacts(
    hostname="m1", kernel="6.1.0", os="debian 12", cpus=8, memory_mib=16000, tmp_mib=5000, free_mib=4000,
    gpu_devices=("/dev/nvidia0", "/dev/nvidia1"), gpu_names=(A100, A100), gpu_states=(GPU1, GPU2),
    slurm_version=(22, 5, 8), munge="munge-0.5.15", prologs=frozenset({"/opt/pro*", "/etc/slurm/epilog"}),
    sshfs=True, fuse=True,
    users={"slurm": UserIds(64030, 64030), "ada": UserIds(3001, 3001, (3001, 5000))}, homes={"/home/ada": True},
    clock=1000.0, asked=999.9, answered=1000.2, arch="x86_64", glibc="2.36", driver="535.104.05", cuda="12.2",
    limits={"memlock": NO_LIMIT, "nofile": 4096, "stack": 8 << 20, "nproc": 1000},
    lang="en_US.UTF-8", locales=frozenset({"en_US.UTF-8"}), timezone="UTC",
    modules={"GCC": "GCC/12.3.0 GCC/13.2.0"}, sentinels={"/cvmfs/eessi/versions": SUM, "/opt/sw": "directory"},
    module_tree="5c1f9a 3", tree_modules=("GCC/12.3.0", "GCC/13.2.0", "R/4.3"),
    revisions={"/cvmfs/eessi/versions": 812}, runtimes={"apptainer": "1.3.4", "docker": "24.0.5", "docker-nvidia": ""},
    mounts={"/home": "nfs4 nas:/home", "/data": "lustre mds@tcp:/data"},
)  # fmt: skip
EXPECTED_MACHINE = ExpectedMachine(
    shape=Shape(8, 16000, (Gres("gpu", "a100", 2),)),
    slurm_version=(22, 5, 8),
    gpu_names={"a100": "A100-SXM4"},
    users={"slurm": UserIds(64030, 64030), "ada": UserIds(3001, 3001, (4, 3001, 5000))},
    tmp_mib=5000,
    os="debian 12",
    clock_tolerance_s=2.0,
    prologs={"/opt/pro*": "Prolog", "/etc/slurm/epilog": "Epilog"},
    homes={"ada": "/home/ada"},
    mounts=True,
    slurmctld=(("10.0.0.1:6817",), ("head:6817", "spare:6817")),
    sentinels=("/cvmfs/eessi/versions", "/opt/sw"),
    modules=("GCC", "*"),
    reference=GOOD,
)


def test_a_machine_as_it_should_be() -> None:
    assert failed_checks(GOOD, EXPECTED_MACHINE) == []


@pytest.mark.parametrize(
    ("change", "name", "expected", "found"),
    [
        ({"gpu_devices": ()}, "gpus", "2 GPUs", "no GPUs in /dev"),
        ({"gpu_devices": ("/dev/nvidia0",)}, "gpus", "2 GPUs", "1 GPU in /dev"),
        ({"gpu_names": (A100,)}, "gpus", "2 working GPUs", "1 GPU in nvidia-smi"),
        (
            {"gpu_names": (A100,), "gpu_error": "Unable to determine the device handle"}, "gpus", "2 working GPUs",
            "1 GPU in nvidia-smi, which says 'Unable to determine the device handle',",
        ),
        ({"gpu_names": (A100, "Tesla T4")}, "gpu_type", "2 x A100-SXM4 for gpu:a100", "Tesla T4"),
        ({"gpu_states": (GPU1, replace(GPU2, errors=3))}, "gpu_health", "no fault of a GPU",
         "GPU 0000:3B:00.0 has 3 uncorrectable memory errors"),
        ({"gpu_states": (replace(GPU1, remap_failed=True), GPU2)}, "gpu_health", "no fault of a GPU",
         "GPU 0000:19:00.0 has bad memory that cannot be replaced"),
        ({"gpu_states": (replace(GPU1, remap_pending=True), replace(GPU2, recovery="GPU Reset"))}, "gpu_health",
         "no fault of a GPU",
         "GPU 0000:19:00.0 has bad memory in use until it is reset, GPU 0000:3B:00.0 needs 'GPU Reset'"),
        ({"gpu_states": (replace(GPU1, slowed=("hw_slowdown",)), GPU2)}, "gpu_clocks", "GPUs at full clocks",
         "GPU 0000:19:00.0 is slowed (hw_slowdown)"),
        ({"gpu_states": (replace(GPU1, width=4), GPU2)}, "gpu_pcie", "all PCIe lanes of each GPU",
         "GPU 0000:19:00.0 has 4 of 16 PCIe lanes"),
        ({"cpus": 7}, "cpus", "8 CPUs", "7 CPUs"),
        ({"cpus": None}, "cpus", "8 CPUs", "unknown CPUs"),
        ({"memory_mib": 15999}, "memory", "16000 MiB of memory", "15999 MiB of memory"),
        ({"tmp_mib": 4999}, "tmp", "5000 MiB in /tmp", "4999 MiB in /tmp"),
        ({"free_mib": 10}, "disk", "256 MiB free in /var", "10 MiB free in /var"),
        ({"os": "debian 13"}, "os", "debian 12", "debian 13"),
        ({"slurm_version": (22, 5, 9)}, "slurm", "slurmd 22.05.8", "slurmd 22.05.9"),
        ({"slurm_version": (23, 11, 4)}, "slurm", "slurmd 22.05.8", "slurmd 23.11.4"),
        ({"slurm_version": None}, "slurm", "slurmd 22.05.8", "no slurmd"),
        ({"munge": ""}, "munge", "munge", "no munge"),
        ({"slurmctld": {"head:6817": "unknown"}}, "slurmctld", "the address of head", "no address"),
        ({"slurmctld": {"head:6817": "refused"}}, "slurmctld", "slurmctld at head:6817", "a refused connection"),
        ({"slurmctld": {"head:6817": "silent"}}, "slurmctld", "slurmctld at head:6817", "no answer within 5 s"),
        ({"slurmctld": {"head:6817": "unknown", "spare:6817": "ok"}}, "slurmctld", "the address of head", "no address"),
        ({"prologs": frozenset({"/opt/pro*"})}, "prologs", "Epilog=/etc/slurm/epilog", "no such program"),
        ({"sshfs": False}, "mounts", "sshfs", "no sshfs"),
        ({"fuse": False}, "mounts", "/dev/fuse", "no /dev/fuse"),
        ({"users": {"slurm": UserIds(64030, 64030), "ada": UserIds(3002, 3001)}}, "users",
         "user ada with uid 3001, gid 3001", "uid 3002, gid 3001"),
        ({"users": {"slurm": UserIds(64030, 64030), "ada": None}}, "users",
         "user ada with uid 3001, gid 3001", "no such user"),
        ({"clock": 1002.3}, "clock", "the head's time within 2 s", "a clock 2 s ahead"),
        ({"clock": 940.0}, "clock", "the head's time within 2 s", "a clock 60 s behind"),
        ({"clock": None}, "clock", "the head's time within 2 s", "no clock"),
        ({"users": {"slurm": UserIds(64030, 64030), "ada": UserIds(3001, 3001, (27, 3001))}}, "groups",
         "user ada in groups 3001, 5000", "groups 3001"),
        ({"arch": "aarch64"}, "architecture", "x86_64", "aarch64"),
        ({"kernel": "5.14.0-362.el9"}, "kernel", "6.1.0", "5.14.0-362.el9"),
        ({"glibc": "2.9"}, "glibc", "2.36 or newer", "2.9"),
        ({"glibc": ""}, "glibc", "2.36 or newer", "unknown"),
        ({"driver": "525.147.05"}, "driver", "535.104.05 or newer", "525.147.05"),
        ({"cuda": "11.8"}, "cuda", "12.2 or newer", "11.8"),
        ({"limits": {**GOOD.limits, "memlock": 65536}}, "memlock", "unlimited or more", "65536 bytes"),
        ({"limits": {**GOOD.limits, "nofile": 1024}}, "nofile", "4096 open files or more", "1024 open files"),
        ({"limits": {**GOOD.limits, "stack": 1 << 20}}, "stack", "8388608 bytes or more", "1048576 bytes"),
        ({"limits": {**GOOD.limits, "nproc": 999}}, "nproc", "1000 processes or more", "999 processes"),
        ({"locales": frozenset()}, "locale", "en_US.UTF-8", "no such locale"),
        ({"timezone": "Europe/Paris"}, "timezone", "UTC", "Europe/Paris"),
        ({"modules": {"GCC": "GCC/12.3.0"}}, "modules", "GCC/12.3.0 GCC/13.2.0", "GCC/12.3.0"),
        ({"modules": {}}, "modules", "GCC/12.3.0 GCC/13.2.0", "no module GCC"),
        ({"sentinels": {**GOOD.sentinels, "/opt/sw": ""}}, "sentinels", "/opt/sw readable", "nothing to read"),
        ({"sentinels": {"/opt/sw": "directory"}}, "sentinels", "/cvmfs/eessi/versions readable", "no answer"),
        ({"sentinels": {**GOOD.sentinels, "/cvmfs/eessi/versions": "0" * 64}}, "sentinels",
         "/cvmfs/eessi/versions with checksum 982fbf28ae03", "checksum 000000000000"),
        ({"module_tree": "0b 2", "tree_modules": ("GCC/13.2.0", "R/4.3")}, "modules",
         "the tree of 3 modules with checksum 5c1f9a", "no GCC/12.3.0"),
        ({"module_tree": "0b 3", "tree_modules": ("GCC/12.3.0", "GCC/13.2.0", "R/4.4")}, "modules",
         "the tree of 3 modules with checksum 5c1f9a", "no R/4.3; besides R/4.4"),
        ({"module_tree": "", "tree_modules": ()}, "modules",
         "the tree of 3 modules with checksum 5c1f9a", "no answer from 'module avail'"),
        ({"module_tree": "0b 3"}, "modules", "the tree of 3 modules with checksum 5c1f9a",
         "the tree of 3 modules with checksum 0b"),
        ({"revisions": {"/cvmfs/eessi/versions": 811}}, "cvmfs", "/cvmfs/eessi/versions at revision 812 or newer",
         "revision 811"),
        ({"revisions": {}}, "cvmfs", "/cvmfs/eessi/versions at revision 812 or newer", "no revision of CVMFS"),
        ({"runtimes": {**GOOD.runtimes, "apptainer": "1.2.5"}}, "container_runtimes", "apptainer 1.3.4 or newer",
         "apptainer 1.2.5"),
        ({"runtimes": {"apptainer": "1.4.0", "docker-nvidia": ""}}, "container_runtimes", "docker 24.0.5 or newer",
         "no docker"),
        ({"runtimes": {**GOOD.runtimes, "docker": ""}}, "container_runtimes", "docker 24.0.5 or newer",
         "docker of an unknown version"),
        ({"runtimes": {"apptainer": "1.3.4", "docker": "24.0.5"}}, "container_runtimes", "NVIDIA's runtime of docker",
         "no NVIDIA's runtime of docker"),
        ({"mounts": {"/data": GOOD.mounts["/data"]}}, "network_mounts", "nfs4 nas:/home at /home",
         "nothing of the network"),
        ({"mounts": {**GOOD.mounts, "/home": "nfs4 other:/home"}}, "network_mounts", "nfs4 nas:/home at /home",
         "nfs4 other:/home"),
    ],
)  # fmt: skip
def test_a_difference_is_named(change: dict[str, object], name: str, expected: str, found: str) -> None:
    failures = failed_checks(replace(GOOD, **change), EXPECTED_MACHINE)  # type: ignore[arg-type]
    assert [(f.name, f.expected, f.found) for f in failures] == [(name, expected, found)]
    assert failures[0].remedy.endswith(tuple("abcdefghijklmnopqrstuvwxyz)"))
    assert name in CHECK_NAMES
    assert failed_checks(replace(GOOD, **change), replace(EXPECTED_MACHINE, skip=frozenset({name}))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({}, ""),
        ({"head:6817": "ok", "spare:6817": "unknown"}, ""),
        ({"head:6817": "silent", "spare:6817": "ok", "10.0.0.1:6817": "ok"}, ""),
        (
            {"head:6817": "unknown"},
            ("slurmctld: no address where the address of head is expected. Write SlurmctldHost=head(ADDRESS) into"
            " slurm.conf and the address into conf_server, or let the image know the name (DNS, /etc/hosts)"),
        ),
        (
            {"head:6817": "silent", "spare:6817": "refused"},
            ("slurmctld: no answer within 5 s where slurmctld at head:6817 is expected. Open this port from the cloud's"
            " network to slurmctld: firewall, routes, security groups"),
        ),
        (
            {"10.0.0.1:6817": "refused", "head:6817": "ok"},
            ("slurmctld: a refused connection where slurmctld at 10.0.0.1:6817 is expected. See whether slurmctld runs"
            " there, and whether the address is its own (not that of another host)"),
        ),
    ],
)  # fmt: skip
def test_the_way_to_slurmctld(states: dict[str, str], said: str) -> None:
    assert "; ".join(map(str, failed_checks(replace(GOOD, slurmctld=states), EXPECTED_MACHINE))) == said


def test_a_machine_without_a_home_is_used() -> None:
    [found] = failed_checks(replace(GOOD, homes={"/home/ada": False}), EXPECTED_MACHINE)
    assert found.allowed
    assert str(found) == (
        "homes: no such directory where /home/ada, the home directory of ada, is expected. Add home = { path = "
        '"{home}" } to [mounts.trees], let the image mount the directory, or submit from one that is there'
    )
    assert failed_checks(replace(GOOD, homes={}), EXPECTED_MACHINE) == [], "an automounter may be slow"


def test_what_a_missing_program_does_is_said() -> None:
    expected = replace(EXPECTED_MACHINE, prologs={**EXPECTED_MACHINE.prologs, "/trees/task": "TaskProlog"})
    said = (
        "prologs: no such program where {} is expected. Put it into the image, or one that does nothing: without it {}"
    )
    machine = replace(GOOD, prologs=frozenset())
    assert [str(failure) for failure in failed_checks(machine, expected)] == [
        said.format("Prolog=/opt/pro*", "slurmd drains the node after its first job"),
        said.format("Epilog=/etc/slurm/epilog", "slurmd drains the node after its first job"),
        said.format("TaskProlog=/trees/task", "its tasks fail"),
    ]
    mounted = replace(EXPECTED_MACHINE, prologs={"/trees/task": "TaskProlog"}, shown_trees=("/trees",))
    assert failed_checks(machine, mounted) == []


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"slurm_version": (22, 5, 9)}, {"slurm_version": (22, 5)}),
        ({"gpu_names": ("Tesla T4", "Tesla T4")}, {"gpu_names": {}}),
        ({"gpu_names": ("NVIDIA_A100-SXM4-80GB",) * 2}, {"gpu_names": {"a100": "nvidia a100"}}),
        ({"gpu_names": None}, {}),
        ({"gpu_states": ()}, {}),
        ({"gpu_states": (replace(GPU1, errors=1, slowed=("hw_slowdown",)),)}, {"gpu_test": GpuTest.NONE}),
        ({"gpu_states": (replace(GPU1, errors=1),)}, {"shape": Shape(8, 16000)}),
        ({"gpu_devices": (), "gpu_names": (), "gpu_error": "no devices"}, {"shape": Shape(8, 16000)}),
        ({"clock": 1002.1}, {}),  # the answer took 0.3 s, so it may be no more than 1.9 s ahead
        ({"users": {"slurm": UserIds(64030, 64030), "ada": None}},
         {"users": {"slurm": UserIds(64030, 64030), "ada": None}}),
        ({"users": {"slurm": None, "ada": None}, "uid": 1000680000}, {}),
        ({"driver": "", "cuda": "", "gpu_devices": (), "gpu_names": None}, {"shape": Shape(8, 16000)}),
        ({"glibc": "2.41", "driver": "550.54", "cuda": "13.0"}, {}),
        ({"os": "rocky 9.5"}, {"os": "", "reference": replace(GOOD, os="rocky 9.4")}),
        ({"limits": dict.fromkeys(GOOD.limits, NO_LIMIT)}, {}),
        ({"arch": "", "kernel": "", "glibc": "", "limits": {}, "locales": frozenset(), "modules": {"GCC": "GCC/1"},
          "sentinels": {"/cvmfs/eessi/versions": "1", "/opt/sw": "2"}}, {"reference": None}),
        ({"arch": "riscv64", "limits": {}}, {"reference": MachineFacts()}),
        ({"revisions": {"/cvmfs/eessi/versions": 813}, "runtimes": {**GOOD.runtimes, "apptainer": "1.10.0"}}, {}),
        ({"revisions": {"/cvmfs/eessi/versions": 810}}, {"cvmfs_max_behind": 2}),
        ({"runtimes": {"apptainer": "1.3.4", "docker": "24.0.5"}}, {"shape": Shape(8, 16000)}),
        ({"mounts": {}}, {"shown_trees": ("{home}", "/data/projects")}),
        ({"mounts": {**GOOD.mounts, "/home": "autofs systemd-1"}}, {}),
        ({"mounts": {"/home": "autofs auto.home"}}, {"reference": replace(GOOD, mounts={"/home/a": "nfs4 nas:/a"})}),
        ({"module_tree": "0b 2", "tree_modules": ("R/4.4",)}, {"reference": replace(GOOD, module_tree="")}),
        ({"cpus": 16, "memory_mib": 64000, "gpu_devices": ("/dev/nvidia0",) * 4, "gpu_names": (A100,) * 4}, {}),
    ],
)  # fmt: skip
def test_what_makes_no_difference(change: dict[str, object], wanted: dict[str, object]) -> None:
    assert failed_checks(replace(GOOD, **change), replace(EXPECTED_MACHINE, **wanted)) == []  # type: ignore[arg-type]


def test_an_empty_machine_fails_in_everything_but_the_types_of_what_it_lacks() -> None:
    found = failed_checks(MachineFacts(), EXPECTED_MACHINE)
    assert {f.name for f in found} == CHECK_NAMES - {
        "gpu_type", "groups", "mig", "gpu_memory_limit", "gpu_health", "gpu_clocks", "gpu_pcie", "gpu_test",
        "frameworks", "slurmctld", "homes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"gpu_states": (GPU1,)}, "nvidia-smi -q -x does not answer"),
        ({"gpu_states": (), "gpu_names": None}, "Install NVIDIA's driver in the image"),
    ],
)
def test_what_was_asked_for_and_cannot_be_seen_fails(change: dict[str, object], remedy: str) -> None:
    expected = replace(EXPECTED_MACHINE, gpu_test=GpuTest.BASIC)
    assert failed_checks(GOOD, expected) == []
    (failure,) = failed_checks(replace(GOOD, **change), expected)  # type: ignore[arg-type]
    assert (failure.name, failure.expected) == ("gpu_health", "the state of 2 GPUs")
    assert failure.remedy.startswith(remedy)
    assert failure.cause == (GPU_TOOLS if "driver" in remedy else "")


@pytest.mark.parametrize(("names", "cause"), [(None, GPU_TOOLS), ((A100, A100), "")])
def test_no_gpu_in_an_image_without_a_driver_says_nothing_of_the_machine(
    names: tuple[str, ...] | None, cause: str
) -> None:
    failure = failed_checks(replace(GOOD, gpu_devices=(), gpu_names=names), EXPECTED_MACHINE)[0]
    assert (failure.name, failure.cause) == ("gpus", cause)


def test_a_list_of_modules_that_is_cut_off_says_nothing_of_what_comes_after_its_end() -> None:
    names = tuple(f"m{number:04}" for number in range(MAX_TREE_MODULES))
    reference = replace(GOOD, module_tree="5c 9000", tree_modules=names)
    facts = replace(GOOD, module_tree="0b 9000", tree_modules=tuple(sorted(("m0000a", *names)))[:MAX_TREE_MODULES])
    [found] = failed_checks(facts, replace(EXPECTED_MACHINE, reference=reference))
    assert found.found == "besides m0000a"


def test_a_difference_that_is_allowed_says_so() -> None:
    expected = replace(EXPECTED_MACHINE, may_differ=frozenset({"kernel"}))
    found = failed_checks(replace(GOOD, kernel="7.0", arch="riscv64"), expected)
    assert [(f.name, f.allowed) for f in found] == [("architecture", False), ("kernel", True)]
    refused = failed_checks(replace(GOOD, kernel="7.0"), replace(expected, may_differ=frozenset({"nproc"})))
    assert [(f.allowed, f.remedy.rpartition(", or ")[2]) for f in refused] == [
        (False, "take kernel into may_differ, which has it by default")
    ]
    assert "may_differ" not in found[1].remedy


def test_another_release_than_the_references_is_a_difference_where_the_settings_name_none() -> None:
    expected = replace(EXPECTED_MACHINE, os="", reference=replace(GOOD, os="rocky 8.10"))
    [found] = failed_checks(GOOD, expected)
    assert (found.name, found.expected, found.found) == ("os", "rocky 8.10", "debian 12")


@given(clock=st.floats(0, 2e9), asked=st.floats(0, 2e9), took=st.floats(0, 60))
def test_a_clock_is_off_by_no_more_than_is_certain(clock: float, asked: float, took: float) -> None:
    off = MachineFacts(clock=clock, asked=asked, answered=asked + took).clock_off_s
    assert off is not None
    if asked <= clock <= asked + took:
        assert off == 0
    else:
        assert abs(off) == pytest.approx(min(abs(clock - asked), abs(clock - asked - took)))
        assert (off > 0) == (clock > asked)


def test_what_facts_sh_prints_is_read() -> None:
    text = """clock=1700000000.123456789
hostname=m1
os=debian 12
cpus=8
memory_mib=16000
tmp_mib=
free_mib=4000
user=slurm 64030 64030
user=ghost - -
user=ada 3001 3001 3001 27
gpu_device=/dev/nvidia0
gpu_name=GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c)
gpu_name=  MIG 1g.5gb     Device  0: (UUID: MIG-c6d4f1ef)
gpu_name=Unable to determine the device handle for gpu 0000:02:00.0: Unknown Error
slurmd=slurm-wlm 22.05.8
munge=munge-0.5.15 (2022-06-22)
a line that some profile printed
systemd=1
nvidia_smi=asked
arch=x86_64
glibc=glibc 2.36
driver=535.104.05
cuda=12.2
fuse=1
dmem=nvidia/0000:01:00.0/vidmem
mps=silent
limit=memlock unlimited
limit=stack infinity
limit=nofile 131072
limit=nofile 4096
limit=nproc many
runtime=docker Docker version 24.0.5, build ced0996
runtime=docker-nvidia
runtime=enroot 3.4.1
mount=/data autofs systemd-1
mount=/data nfs4 nas:/data
mount=/work autofs systemd-1
mount=/home autofs /etc/auto.home
mount=/home/ada nfs4 nas:/home/ada
module_tree=5c1f9a 2
tree_module=GCC/12.3.0
tree_module=R/4.3
revision=812 /cvmfs/eessi/versions
revision=nobody /opt/sw
lang=en_US.UTF-8
locale=en_US.UTF-8
timezone=Etc/UTC
module=GCC GCC/12.3.0 GCC/13.2.0
module=CUDA
sentinel=982fbf28 /cvmfs/eessi/versions
sentinel=- /opt/sw
end=1
"""
    assert parse_facts(text, asked=1.0, answered=2.0) == MachineFacts(
        hostname="m1",
        os="debian 12",
        cpus=8,
        memory_mib=16000,
        free_mib=4000,
        gpu_devices=("/dev/nvidia0",),
        gpu_names=(A100,),
        mig=(("1g.5gb",),),
        dmem=("nvidia/0000:01:00.0/vidmem",),
        mps="silent",
        gpu_error="Unable to determine the device handle for gpu 0000:02:00.0: Unknown Error; nothing",
        slurm_version=(22, 5, 8),
        munge="munge-0.5.15 (2022-06-22)",
        users={"slurm": UserIds(64030, 64030), "ghost": None, "ada": UserIds(3001, 3001)},
        systemd=True,
        arch="x86_64",
        glibc="2.36",
        driver="535.104.05",
        cuda="12.2",
        fuse=True,
        limits={"memlock": NO_LIMIT, "stack": NO_LIMIT, "nofile": 4096},
        lang="en_US.UTF-8",
        locales=frozenset({"en_US.UTF-8"}),
        timezone="UTC",
        modules={"GCC": "GCC/12.3.0 GCC/13.2.0", "CUDA": ""},
        module_tree="5c1f9a 2",
        tree_modules=("GCC/12.3.0", "R/4.3"),
        revisions={"/cvmfs/eessi/versions": 812},
        runtimes={"docker": "24.0.5", "docker-nvidia": "", "enroot": "3.4.1"},
        mounts={"/data": "nfs4 nas:/data", "/work": "autofs systemd-1", "/home": "autofs /etc/auto.home"},
        sentinels={"/cvmfs/eessi/versions": "982fbf28", "/opt/sw": ""},
        clock=1700000000.123456789,
        asked=1.0,
        answered=2.0,
    )


def test_half_an_answer_is_none() -> None:
    assert parse_facts("clock=1700000000.1\ncpus=8\n", asked=1.0, answered=2.0) is None


def test_users_numbers_are_this_machines() -> None:
    root = pwd.getpwuid(0)
    assert head_user_ids([root.pw_name, "no-such-user"]) == {
        root.pw_name: UserIds(0, root.pw_gid),
        "no-such-user": None,
    }


def test_what_the_reference_cannot_read_either_is_named() -> None:
    reference = replace(GOOD, hostname="op1", sentinels={"/sw": ""}, modules={"gcc": ""})
    expected = replace(EXPECTED_MACHINE, reference=reference, sentinels=("/sw",), modules=("gcc",))
    found = failed_checks(replace(GOOD, sentinels={"/sw": ""}, modules={}), expected)
    assert [(f.name, f.remedy.partition(":")[0]) for f in found] == [
        ("sentinels", "op1, the reference, cannot read it either"),
        ("modules", "op1, the reference, does not have it either"),
    ]
    assert not failed_checks(replace(GOOD, sentinels={"/sw": "a"}, modules={"gcc": "gcc/1"}), expected)


def test_a_reference_says_what_it_is_no_measure_of() -> None:
    taken = Reference("op1", 0.0, "", replace(GOOD, sentinels={"/sw": ""}, modules={"gcc": "", "R": "R/4"}))
    assert [w.partition(";")[0] for w in taken.warnings(["/sw", "/new"], ["gcc", "R", "new"])] == [
        "op1, the reference, cannot read /sw",
        "op1, the reference, has no module gcc",
    ]
    taken = replace(taken, facts=replace(GOOD, module_command=False))
    assert taken.warnings([], ["gcc"]) == ["op1 has no module command in a login shell; gcc cannot be compared"]
    assert taken.warnings([], []) == []
