"""Judges what a machine says it is by what the pool promises, what the head has, and a node of the site: the reference.

``_COMPARISONS`` is the table of what is compared with the reference as one value.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from burstd.domain.cloud.offer import GpuMemoryLimit, GpuTest
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.facts import NO_LIMIT, FactsRequest, GpuState, MachineFacts, UserIds
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
    "mounts": "sshfs and /dev/fuse, in pools of `mounts.trees`",
    "users": "users of the same numbers as on the head",
    "groups": "users in the same groups as on the head, of those with numbers from 1000 on",
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
    "modules": "each name in `module avail`, in the reference's versions",
}
"""What a machine must have, by check. A site may leave some out (``skip_checks``) or let them warn (``may_differ``)."""
CHECK_NAMES = frozenset(CHECKS)
_FIRST_OWN_GROUP = 1000
"""Groups with smaller numbers belong to a system and its packages, not to the site."""
_REFERENCE_REMEDY = "take the reference anew after a change of the site (burstctl node reference NODE)"


@dataclass(frozen=True, slots=True)
class ExpectedMachine:
    """What a machine must be. Sizes in MiB, times in seconds."""

    shape: Shape
    slurm_version: tuple[int, ...]
    """``(22, 5, 8)``; ``(22, 5)`` accepts every 22.05."""
    users: Mapping[str, UserIds | None] = field(default_factory=dict)
    """Users who must have the same numbers as here; None: who is not known here must not be there either."""
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    """GRES type -> text that the name of each GPU must hold (``a100`` -> ``A100-SXM4``); spaces are as good as _."""
    mig: tuple[Gres, ...] = ()
    """What each GPU must be cut into: profiles as types; empty: it is not looked at."""
    gpu_memory_limit: GpuMemoryLimit = "none"
    """What keeps jobs to their shards' part of a GPU's memory there ..."""
    shards_per_gpu: int = 0
    """... and how many shards a GPU has."""
    gpu_test: GpuTest | None = None
    """None: what nvidia-smi says counts, where there is one."""
    tmp_mib: int = 0
    free_mib: int = 256
    """In /var, for slurmd's spool and logs."""
    os: str = ""
    """``debian 12``; empty: as the reference, or any."""
    clock_tolerance_s: float = 30.0
    """munge refuses credentials that are five minutes old, or from the future."""
    mounts: bool = False
    """Trees of the site are mounted there."""
    sentinels: tuple[str, ...] = ()
    """Files and directories that must be readable there, files with the reference's content."""
    modules: tuple[str, ...] = ()
    """Names that ``module avail`` must know there, with the reference's versions."""
    reference: MachineFacts | None = None
    """A node of the site; None: none was chosen."""
    skip: frozenset[str] = frozenset()
    """Checks to leave out, of CHECK_NAMES."""
    may_differ: frozenset[str] = frozenset()
    """Checks that only warn, of CHECK_NAMES."""

    def facts_request(self, gpu_devices: str = "") -> FactsRequest:
        """What a machine must be asked for to be judged by this. ``gpu_devices``: pattern of its GPUs' device files."""
        locale = self.reference.lang if self.reference is not None else ""
        return FactsRequest(gpu_devices, tuple(self.users), self.sentinels, self.modules, locale)


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One difference between what should be and what is."""

    name: str
    """The check that failed, one of CHECK_NAMES or of the site's own."""
    expected: str
    found: str
    remedy: str
    allowed: bool = False
    """It is named, and the machine is used nevertheless."""

    def __str__(self) -> str:
        return f"{self.name}: {self.found} where {self.expected} is expected. {self.remedy}"


def failed_checks(facts: MachineFacts, expected: ExpectedMachine) -> list[CheckFailure]:
    """Every difference, the gravest first; none: the machine is as it should be."""
    return [
        replace(failure, allowed=failure.name in expected.may_differ)
        for failure in _all_failures(facts, expected)
        if failure.name not in expected.skip
    ]


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
    yield from _mounts(facts, expected)
    yield from _users(facts, expected)
    yield from _clock(facts, expected)
    yield from _software(facts, expected)
    if expected.reference is not None:
        yield from _compare(facts, expected, expected.reference)


def _gpus(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    wanted = expected.shape.gpus()
    if not wanted:
        return
    devices = len(facts.gpu_devices)
    if devices < wanted:
        remedy = "Look at the instance type and, on the image, at the driver (dmesg, lspci)"
        yield CheckFailure("gpus", _count(wanted, "GPU"), f"{_count(devices, 'GPU')} in /dev", remedy)
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
        remedy = "Install NVIDIA's driver in the image, or set gpu_test = 'none' for the pool"
        if facts.gpu_names is not None:
            remedy = "nvidia-smi -q -x does not answer: give the machine back and try another"
        yield CheckFailure("gpu_health", f"the state of {_count(wanted, 'GPU')}", str(len(facts.gpu_states)), remedy)
    found = [(name, f"GPU {state.address} {text}") for state in facts.gpu_states for name, text in _gpu_faults(state)]
    for name, wish, remedy in (
        ("gpu_health", "no fault of a GPU", "Give the machine back and try another"),
        ("gpu_clocks", "GPUs at full clocks", "The host is too hot or short of power: try another machine or zone"),
        ("gpu_pcie", "all PCIe lanes of each GPU", "Some clouds never give all: take gpu_pcie into may_differ then"),
    ):
        texts = [text for named, text in found if named == name]
        if texts:
            yield CheckFailure(name, wish, abbreviated_list(texts), remedy)


def _gpu_faults(state: GpuState) -> Iterator[tuple[str, str]]:
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


def _mounts(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    if expected.mounts and not facts.sshfs:
        remedy = "Install it in the image (Debian: sshfs, RHEL: fuse-sshfs), or leave the pool out of mounts.trees"
        yield CheckFailure("mounts", "sshfs", "no sshfs", remedy)
    if expected.mounts and not facts.fuse:
        remedy = "Load the kernel module fuse in the image, or leave the pool out of mounts.trees"
        yield CheckFailure("mounts", "/dev/fuse", "no /dev/fuse", remedy)


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


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A value that a machine and the reference have. What the reference does not say is not compared."""

    name: str
    value: Callable[[MachineFacts], str]
    fits: Callable[[str, str], bool]
    """Whether what was found is as good as what the reference has."""
    remedy: str
    bound: str = ""
    """What goes after the reference's value, where more than that fits too."""
    gpus_only: bool = False


def _equal(found: str, wanted: str) -> bool:
    return found == wanted


def _same_release(found: str, wanted: str) -> bool:
    """``rocky 9.5`` is as good as ``rocky 9.4``."""
    return found.partition(".")[0] == wanted.partition(".")[0]


def _not_older(found: str, wanted: str) -> bool:
    return _numbers(found) >= _numbers(wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,19}", version))


def _limit(name: str, unit: str) -> _Comparison:
    def value(facts: MachineFacts) -> str:
        limit = facts.limits.get(name)
        return "" if limit is None else "unlimited" if limit >= NO_LIMIT else f"{limit} {unit}"

    remedy = f"Raise Limit{name.upper()}= of slurmd.service in the image"
    return _Comparison(name, value, _not_lower, remedy, bound=" or more")


def _not_lower(found: str, wanted: str) -> bool:
    return found == "unlimited" or (wanted != "unlimited" and _numbers(found) >= _numbers(wanted))


_COMPARISONS = (
    _Comparison("architecture", lambda facts: facts.arch, _equal, "Choose an instance type of this architecture"),
    _Comparison("kernel", lambda facts: facts.kernel, _equal, "Build the image with the same kernel"),
    _Comparison(
        "glibc", lambda facts: facts.glibc, _not_older,
        "Programs built at the site do not start with an older C library: build the image from a newer release",
        bound=" or newer",
    ),
    _Comparison(
        "driver", lambda facts: facts.driver, _not_older, "Install this NVIDIA driver in the image, or a newer one",
        bound=" or newer", gpus_only=True,
    ),
    _Comparison(
        "cuda", lambda facts: facts.cuda, _not_older, "Install an NVIDIA driver that knows this CUDA in the image",
        bound=" or newer", gpus_only=True,
    ),
    _limit("memlock", "bytes"),
    _limit("nofile", "open files"),
    _limit("stack", "bytes"),
    _limit("nproc", "processes"),
    _Comparison("timezone", lambda facts: facts.timezone, _equal, "Set timezone in [node], or in the image"),
)  # fmt: skip


def _compare(facts: MachineFacts, expected: ExpectedMachine, reference: MachineFacts) -> Iterator[CheckFailure]:
    if not expected.os and reference.os and not _same_release(facts.os, reference.os):
        remedy = "Build the image from the same release"
        yield CheckFailure("os", reference.os, facts.os or "an unknown system", remedy)
    for row in _COMPARISONS:
        wanted, found = row.value(reference), row.value(facts)
        if not wanted or (row.gpus_only and not expected.shape.gpus()):
            continue
        if not found or not row.fits(found, wanted):
            yield CheckFailure(row.name, f"{wanted}{row.bound}", found or "unknown", row.remedy)
    if reference.lang and reference.lang not in facts.locales:
        yield CheckFailure(
            "locale", reference.lang, "no such locale", "Generate it in the image (locale-gen, or langpacks)"
        )


def _software(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    """What must be there at all, and as the reference has it."""
    reference = expected.reference or MachineFacts()
    for path in expected.sentinels:
        wanted, found = reference.sentinels.get(path, ""), facts.sentinels.get(path)
        if not found:
            remedy = "Look at the mount, the client's log and the network there"
            how = "no answer" if found is None else "nothing to read"
            yield CheckFailure("sentinels", f"{path} readable", how, remedy)
        elif wanted not in ("", found):
            remedy = f"Bring the same release of the software there, or {_REFERENCE_REMEDY}"
            yield CheckFailure("sentinels", f"{path} with checksum {wanted[:12]}", f"checksum {found[:12]}", remedy)
    for name in expected.modules:
        there, here = facts.modules.get(name, ""), reference.modules.get(name, "")
        if not there or here not in ("", there):
            remedy = f"Bring the site's module tree there (MODULEPATH), or {_REFERENCE_REMEDY}"
            yield CheckFailure("modules", here or f"module {name}", there or f"no module {name}", remedy)


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


def head_user_ids(users: Iterable[str]) -> dict[str, UserIds | None]:
    """The numbers that users have on this machine, asked of whatever directory it asks."""
    return {name: _ids(name) for name in users}


def _ids(name: str) -> UserIds | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return UserIds(entry.pw_uid, entry.pw_gid, tuple(sorted(os.getgrouplist(name, entry.pw_gid))))
