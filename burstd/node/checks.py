"""Judges what a machine says it is by what the pool promises, what the head has, and a node of the site."""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from burstd.domain.cloud.offer import GpuTest
from burstd.domain.health import USUALLY_DIFFERENT
from burstd.domain.missing_home import HOMES, REMEDY
from burstd.node.comparison import is_shown, reference_failures, software_failures
from burstd.node.expected import CheckFailure, ExpectedMachine
from burstd.node.facts import GpuState, MachineFacts, UserIds
from burstd.planner.lifecycle.listing import abbreviated_list

CHECKS = {
    "cpus": "as many CPUs as the pool's slots, or more",
    "memory": "as much memory as the pool's slots, or more",
    "tmp": "`tmp_mib` in /tmp",
    "disk": "`free_mib` free in /var",
    "gpus": "as many GPUs as the pool's slots in /dev, and in `nvidia-smi -L` where there is one",
    "gpu_type": "GPUs of the names in `gpu_names`",
    "mig": "GPUs cut into the parts of the pool's `mig`",
    "gpu_memory_limit": "what the pool's `gpu_memory_limit` needs: the controller `dmem` with each GPU, or an MPS that"
    " answers",
    "gpu_health": "no uncorrectable memory errors since the driver was loaded, no bad memory in use or without a spare,"
    " and no GPU that the driver wants reset",
    "gpu_clocks": "GPUs whose clocks are not held down by heat or by the host's power",
    "gpu_pcie": "all PCIe lanes of each GPU in use",
    "gpu_test": 'GPUs that compute (`gpu_test = "short"`) and pass DCGM\'s diagnosis (`"long"`)',
    "slurm": "slurmd of slurmctld's version",
    "munge": "munge",
    "slurmctld": "a way to slurmctld: `conf_server` and slurm.conf's SlurmctldHost are known there, and answer",
    "prologs": "the programs of slurm.conf's Prolog, Epilog and TaskProlog, which slurmd runs for each job",
    "mounts": "sshfs and /dev/fuse, in pools of `mounts.trees`",
    "users": "users of the same numbers as on the head",
    "groups": "users in the same groups as on the head, of those with numbers from 1000 on",
    "homes": "the home directories of the users whose jobs it is for; without one it is used, and jobs that write"
    " there are held",
    "clock": "a clock at most `clock_tolerance_s` off the head's",
    "architecture": "the reference's",
    "os": "the system of `os`, else the reference's; of its version the part before the first dot",
    "kernel": "the reference's",
    "glibc": "the reference's version, or newer",
    "driver": "the reference's version of NVIDIA's driver, or newer, in pools with GPUs",
    "cuda": "the reference's version of the driver's CUDA, or newer, in pools with GPUs",
    "memlock": "LimitMEMLOCK= of slurmd as high as the reference's",
    "nofile": "LimitNOFILE= of slurmd as high as the reference's",
    "stack": "LimitSTACK= of slurmd as high as the reference's",
    "nproc": "LimitNPROC= of slurmd as high as the reference's",
    "locale": "the reference's LANG",
    "timezone": "the reference's",
    "sentinels": "each path readable within 20 s: of a file the reference's content (its first MiB), of a directory"
    " anything in it",
    "modules": 'each name in `module avail`, in the reference\'s versions; of `"*"` all that `module avail` lists',
    "cvmfs": "sentinels in CVMFS at the reference's revision of the repository, at most `cvmfs_max_behind`"
    " older, or newer",
    "container_runtimes": "the reference's apptainer, singularity, enroot, podman and docker, in its versions or newer;"
    " docker's runtime `nvidia` in pools with GPUs",
    "network_mounts": "the reference's NFS, Lustre, CIFS and other network file systems, of the same type and source,"
    " but those below trees of `mounts.trees`",
    "frameworks": "each framework of the pool: its modules or image are there, and its check ends well",
}
"""What a machine must have, by check. A site may leave some out (``skip_checks``) or let them warn (``may_differ``)."""
CHECK_NAMES = frozenset(CHECKS)
GPU_TOOLS = "gpu_tools"
"""Cause of a failed check of GPUs for which the image lacks a driver or a program: it says nothing of the machine."""
_FIRST_OWN_GROUP = 1000
"""Groups with smaller numbers belong to a system and its packages, not to the site."""


def failed_checks(facts: MachineFacts, expected: ExpectedMachine) -> list[CheckFailure]:
    """Every difference, the gravest first; none: the machine is as it should be."""
    return [
        replace(failure, allowed=failure.name in (HOMES, *expected.may_differ), remedy=_remedy(failure, expected))
        for failure in _all_failures(facts, expected)
        if failure.name not in expected.skip
    ]


def _remedy(failure: CheckFailure, expected: ExpectedMachine) -> str:
    """With the site's list that leaves a check out which is in burstd's own."""
    if failure.name in expected.may_differ or failure.name not in USUALLY_DIFFERENT or "may_differ" in failure.remedy:
        return failure.remedy
    return f"{failure.remedy}, or take {failure.name} into may_differ, which has it by default"


def _all_failures(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    yield from _gpus(facts, expected)
    yield from _mig(facts, expected)
    yield from _gpu_memory_limit(facts, expected)
    yield from _gpu_states(facts, expected)
    shape = expected.shape
    yield from _at_least(
        "cpus", facts.cpus, shape.cpus, "CPUs", "Choose a larger instance type, or lower CPUs= of the slot"
    )
    yield from _at_least(
        "memory", facts.memory_mib, shape.memory_mib, "MiB of memory",
        "The kernel keeps some for itself: lower RealMemory= of the slot, or choose a larger instance type",
    )  # fmt: skip
    yield from _at_least("tmp", facts.tmp_mib, expected.tmp_mib, "MiB in /tmp", "Give the instance a larger disk")
    yield from _at_least("disk", facts.free_mib, expected.free_mib, "MiB free in /var", "Give it a larger disk")
    if expected.os and facts.os != expected.os:
        yield CheckFailure("os", expected.os, facts.os or "an unknown system", "Build the image from the same release")
    yield from _slurm(facts, expected)
    if not facts.munge:
        yield CheckFailure("munge", "munge", "no munge", "Install munge in the image")
    yield from _slurmctld(facts, expected)
    yield from _prologs(facts, expected)
    yield from _mounts(facts, expected)
    yield from _users(facts, expected)
    yield from _homes(facts, expected)
    yield from _clock(facts, expected)
    yield from software_failures(facts, expected)
    if expected.reference is not None:
        yield from reference_failures(facts, expected, expected.reference)


def _gpus(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted = expected.shape.gpus()
    if not wanted:
        return
    devices = len(facts.gpu_devices)
    if devices < wanted:
        remedy = "Look at the instance type and, on the image, at the driver (dmesg, lspci)"
        cause = GPU_TOOLS if not devices and facts.gpu_names is None else ""
        yield CheckFailure("gpus", _count(wanted, "GPU"), f"{_count(devices, 'GPU')} in /dev", remedy, cause=cause)
    if facts.gpu_names is None:
        return
    remedy = "A GPU does not answer its driver: give the machine back and try another"
    if len(facts.gpu_names) < wanted or facts.gpu_error:
        found = f"{_count(len(facts.gpu_names), 'GPU')} in nvidia-smi"
        if facts.gpu_error:
            found += f", which says '{facts.gpu_error[:200]}',"
        yield CheckFailure("gpus", _count(wanted, "working GPU"), found, remedy)
    for gres in expected.shape.gres:
        text = expected.gpu_names.get(gres.type) if gres.name == "gpu" else None
        if text is None:
            continue
        strange = [name for name in facts.gpu_names if _plain(text) not in _plain(name)]
        if strange and len(facts.gpu_names) - len(strange) < gres.count:
            remedy = "Choose another instance type for the pool, or correct gpu_names in the settings"
            yield CheckFailure("gpu_type", f"{gres.count} x {text} for gpu:{gres.type}", ", ".join(strange), remedy)


def _mig(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted = sorted((g.type, g.count) for g in expected.mig)
    if not wanted or facts.gpu_names is None:
        return
    for cut in facts.mig or ((),):
        found = sorted(Counter(cut).items())
        if found != wanted:
            yield CheckFailure(
                "mig", f"{_profiles(wanted)} on each GPU", _profiles(found) or "a GPU that is not cut",
                "Choose an instance type whose GPUs have these profiles (nvidia-smi mig -lgip), or correct mig of the "
                "pool",
            )  # fmt: skip
            return


def _gpu_memory_limit(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted, gpus = expected.gpu_memory_limit, expected.shape.gpus()
    if wanted == "dmem" and len(facts.dmem) < gpus:
        found = _count(len(facts.dmem), "region") + " in /sys/fs/cgroup/dmem.capacity"
        yield CheckFailure(
            "gpu_memory_limit", f"the cgroup controller dmem with {_count(gpus, 'GPU')}", found,
            "Take an image with cgroup v2, kernel 6.14 or newer and a driver that registers its GPUs with dmem, or set "
            'gpu_memory_limit = "mps" for the pool',
        )  # fmt: skip
    if wanted == "mps" and facts.mps != "answers":
        yield CheckFailure(
            "gpu_memory_limit", "a control daemon of MPS that answers",
            "one that does not answer" if facts.mps else "no nvidia-cuda-mps-control",
            "Let the image start nvidia-cuda-mps-control -d as root at boot",
        )  # fmt: skip


def _gpu_states(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted, test = expected.shape.gpus(), expected.gpu_test
    if not wanted or test is GpuTest.NONE:
        return
    if test is not None and len(facts.gpu_states) < wanted:
        remedy, cause = "Install NVIDIA's driver in the image, or set gpu_test = 'none' for the pool", GPU_TOOLS
        if facts.gpu_names is not None:
            remedy, cause = "nvidia-smi -q -x does not answer: give the machine back and try another", ""
        found = str(len(facts.gpu_states))
        yield CheckFailure("gpu_health", f"the state of {_count(wanted, 'GPU')}", found, remedy, cause=cause)
    faults = [(name, f"GPU {state.address} {text}") for state in facts.gpu_states for name, text in gpu_faults(state)]
    for name, wish, remedy in (
        ("gpu_health", "no fault of a GPU", "Give the machine back and try another"),
        ("gpu_clocks", "GPUs at full clocks", "The host is too hot or short of power: try another machine or zone"),
        ("gpu_pcie", "all PCIe lanes of each GPU", "Some clouds never give all: take gpu_pcie into may_differ then"),
    ):
        texts = [text for named, text in faults if named == name]
        if texts:
            yield CheckFailure(name, wish, abbreviated_list(texts), remedy)


def gpu_faults(state: GpuState) -> Iterator[tuple[str, str]]:
    """By check, what is wrong with a GPU."""
    if state.errors:
        yield "gpu_health", f"has {state.errors} uncorrectable memory errors"
    if state.remap_failed:
        yield "gpu_health", "has bad memory that cannot be replaced"
    if state.remap_pending:
        yield "gpu_health", "has bad memory in use until it is reset"
    if state.recovery:
        yield "gpu_health", f"needs '{state.recovery}'"
    if state.slowed:
        yield "gpu_clocks", f"is slowed ({', '.join(state.slowed)})"
    if 0 < state.width < state.max_width:
        yield "gpu_pcie", f"has {state.width} of {state.max_width} PCIe lanes"


def _profiles(counted: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} x {profile}" for profile, count in counted)


def _slurm(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted = expected.slurm_version
    if facts.slurm_version is None:
        yield CheckFailure("slurm", f"slurmd {format_version(wanted)}", "no slurmd", "Install slurmd in the image")
    elif facts.slurm_version[: len(wanted)] != wanted:
        remedy = "Build the image with slurmctld's version of Slurm"
        yield CheckFailure(
            "slurm", f"slurmd {format_version(wanted)}", f"slurmd {format_version(facts.slurm_version)}", remedy
        )


def _slurmctld(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    """What slurmd would only write into its log, minutes later. A machine that cannot tell is not judged."""
    for group in expected.slurmctld:
        states = {address: facts.slurmctld[address] for address in group if address in facts.slurmctld}
        if not states or ("ok" in states.values() and states.get(group[0]) != "unknown"):
            continue
        address, state = next(iter(states.items()))
        host = address.rpartition(":")[0]
        if state == "unknown":
            yield CheckFailure(
                "slurmctld", f"the address of {host}", "no address",
                f"Write SlurmctldHost={host}(ADDRESS) into slurm.conf and the address into conf_server, or let the "
                "image know the name (DNS, /etc/hosts)",
            )  # fmt: skip
            return
        found = "a refused connection" if state == "refused" else "no answer within 5 s"
        remedy = "Open this port from the cloud's network to slurmctld: firewall, routes, security groups"
        if state == "refused":
            remedy = "See whether slurmctld runs there, and whether the address is its own (not that of another host)"
        yield CheckFailure("slurmctld", f"slurmctld at {address}", found, remedy)
        return


def _prologs(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    """What lies in a tree that is mounted for each job is there by then."""
    for path, setting in expected.prologs.items():
        if path in facts.prologs or is_shown(path, expected.shown_trees):
            continue
        effect = "its tasks fail" if setting == "TaskProlog" else "slurmd drains the node after its first job"
        yield CheckFailure(
            "prologs", f"{setting}={path}", "no such program",
            f"Put it into the image, or one that does nothing: without it {effect}",
        )  # fmt: skip


def _mounts(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    if expected.mounts and not facts.sshfs:
        remedy = "Install it in the image (Debian: sshfs, RHEL: fuse-sshfs), or leave the pool out of mounts.trees"
        yield CheckFailure("mounts", "sshfs", "no sshfs", remedy)
    if expected.mounts and not facts.fuse:
        remedy = "Load the kernel module fuse in the image, or leave the pool out of mounts.trees"
        yield CheckFailure("mounts", "/dev/fuse", "no /dev/fuse", remedy)


def _homes(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    for user, path in expected.homes.items():
        if facts.homes.get(path) is False:
            found = "no such directory"
            yield CheckFailure(
                HOMES, f"{path}, the home directory of {user},", found, f"{REMEDY[:1].upper()}{REMEDY[1:]}"
            )


def _users(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    if facts.uid != 0:
        return  # Nobody can change to another user there: all jobs run as the one that burstd acts as.
    for name, here in expected.users.items():
        there = facts.users.get(name)
        if there != here:
            yield CheckFailure(
                "users",
                f"user {name} with {here}" if here else f"no user {name}",
                f"{there}" if there else "no such user",
                "Files and jobs belong to numbers: make the image ask the directory that the head asks, or give the "
                "user the same numbers there",
            )
        elif here is not None and there is not None and _own_groups(here) != _own_groups(there):
            remedy = "Make the image ask the directory that the head asks"
            yield CheckFailure("groups", f"user {name} in {_own_groups(here)}", _own_groups(there), remedy)


def _own_groups(user: UserIds) -> str:
    groups = [str(group) for group in user.groups if group >= _FIRST_OWN_GROUP]
    return f"groups {', '.join(groups)}" if groups else "no groups"


def _clock(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    off = facts.clock_off_s
    if off is None or abs(off) > expected.clock_tolerance_s:
        found = "no clock" if off is None else f"a clock {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}"
        remedy = "munge would refuse it: let the image set its clock (chrony) before sshd starts"
        yield CheckFailure("clock", f"the head's time within {expected.clock_tolerance_s:.0f} s", found, remedy)


def _at_least(name: str, found: int | None, wanted: int, unit: str, remedy: str) -> Iterator[CheckFailure]:
    if wanted > 0 and (found is None or found < wanted):
        yield CheckFailure(name, f"{wanted} {unit}", f"{'unknown' if found is None else found} {unit}", remedy)


def _count(number: int, unit: str) -> str:
    return f"{number or 'no'} {unit}{'' if number == 1 else 's'}"


def _plain(text: str) -> str:
    return text.lower().replace(" ", "_")


def format_version(parts: tuple[int, ...]) -> str:
    """As Slurm writes it: ``22.05.8``."""
    return ".".join(f"{part:02d}" if index == 1 else str(part) for index, part in enumerate(parts))


def head_homes(users: Iterable[str]) -> dict[str, str]:
    """The home directories of users, without those that are surely not on this machine."""
    found: dict[str, str] = {}
    for name in users:
        with suppress(KeyError):
            found[name] = pwd.getpwnam(name).pw_dir
    return {name: home for name, home in found.items() if len(home) > 1 and _may_be_there(home)}


def _may_be_there(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # ProtectHome= of burstd's unit hides it, or its parent's mode
    return True


def head_user_ids(users: Iterable[str]) -> dict[str, UserIds | None]:
    """The numbers that users have on this machine, asked of whatever directory it asks."""
    return {name: _ids(name) for name in users}


def _ids(name: str) -> UserIds | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return UserIds(entry.pw_uid, entry.pw_gid, tuple(sorted(os.getgrouplist(name, entry.pw_gid))))
