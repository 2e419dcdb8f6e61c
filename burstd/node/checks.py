"""Judges what a machine says it is by what the pool promises and the head, the reference, has."""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from burstd.domain.slurm.shape import Shape
from burstd.node.facts import MachineFacts, UserIds

CHECK_NAMES = frozenset(
    {"cpus", "memory", "tmp", "disk", "gpus", "gpu_type", "os", "slurm", "munge", "users", "clock", "mounts"}
)
"""The checks; a site may leave some out."""


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
    tmp_mib: int = 0
    free_mib: int = 256
    """In /var, for slurmd's spool and logs."""
    os: str = ""
    """``debian 12``; empty: any."""
    clock_tolerance_s: float = 30.0
    """munge refuses credentials that are five minutes old, or from the future."""
    mounts: bool = False
    """Trees of the site are mounted there."""
    skip: frozenset[str] = frozenset()
    """Checks to leave out, of NAMES."""


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One difference between what should be and what is."""

    name: str
    """The check that failed, one of NAMES."""
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.found} where {self.expected} is expected. {self.remedy}"


def failed_checks(facts: MachineFacts, expected: ExpectedMachine) -> list[CheckFailure]:
    """Every difference that matters, the gravest first; none: the machine is as it should be."""
    return [failure for failure in _all_failures(facts, expected) if failure.name not in expected.skip]


def _all_failures(facts: MachineFacts, expected: ExpectedMachine) -> Iterator[CheckFailure]:
    yield from _gpus(facts, expected)
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
    return UserIds(entry.pw_uid, entry.pw_gid)
