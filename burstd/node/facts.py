"""What a machine says it is, gathered in one round trip."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from burstd.domain.cloud.quoting import one_line
from burstd.domain.plugins.shell import Shell
from burstd.node.errors import CommandFailed

_VERSION = re.compile(r"\b([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})")
_NUMBER = re.compile(r"[0-9]{1,15}")
_CLOCK = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_LISTED = 256
"""Lines of a kind that are looked at: GPUs, users."""
_GPU = re.compile(r"^GPU \d+: (.*?)(?: \(UUID: .*\))?$")


@dataclass(frozen=True, slots=True)
class UserIds:
    """The numbers of a user."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"uid {self.uid}, gid {self.gid}"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a machine says it is. None or empty: it has not, or could not say."""

    uid: int = 0
    """As whom burstd acts there."""
    hostname: str = ""
    kernel: str = ""
    os: str = ""
    """``ID VERSION_ID`` of os-release: ``debian 12``."""
    cpus: int | None = None
    memory_mib: int | None = None
    tmp_mib: int | None = None
    """Size of /tmp."""
    free_mib: int | None = None
    """Free space in /var."""
    gpu_devices: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] | None = None
    """As nvidia-smi lists them; None where there is no nvidia-smi."""
    gpu_error: str = ""
    """What nvidia-smi said that names no GPU."""
    slurm_version: tuple[int, int, int] | None = None
    munge: str = ""
    users: Mapping[str, UserIds | None] = field(default_factory=dict)
    sshfs: bool = False
    fuse: bool = False
    """Whether it has /dev/fuse."""
    systemd: bool = False
    clock: float | None = None
    """Its clock, in seconds since 1970 ..."""
    asked: float = 0.0
    answered: float = 0.0
    """... read between these two moments of the head's."""

    @property
    def clock_off_s(self) -> float | None:
        """How far at least its clock is ahead of the head's (negative: behind), in seconds."""
        if self.clock is None:
            return None
        return max(0.0, self.clock - self.answered) + min(0.0, self.clock - self.asked)


def read_facts(
    session: Shell, *, gpu_devices: str, users: Sequence[str], wall: Callable[[], float], timeout_s: float = 60.0
) -> MachineFacts:
    """Asks the machine. ``gpu_devices``: a shell pattern; ``wall``: the head's clock, in seconds since 1970.

    Raises CommandFailed, and what ``Shell.run`` raises.
    """
    text = files("burstd.node").joinpath("scripts", "facts.sh").read_text(encoding="utf-8")
    asked = wall()
    done = session.script(text, gpu_devices, *users, timeout_s=timeout_s)
    answered = wall()
    facts = parse_facts(done.out, asked=asked, answered=answered)
    if facts is None:
        raise CommandFailed(f"the machine could not say what it is: {done.last_line}", rc=done.rc, err=done.err)
    return facts


def parse_facts(text: str, *, asked: float, answered: float) -> MachineFacts | None:
    """Reads what facts.sh printed; None where its end is missing."""
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values = said.setdefault(key, [])
        if len(values) < _LISTED:
            values.append(one_line(value, 400))
    if "end" not in said:
        return None

    def one(key: str) -> str:
        return said.get(key, [""])[0]

    def number(key: str) -> int | None:
        return _number(one(key))

    # The parts that a GPU is cut into (MIG) are listed below it.
    listed = [(_GPU.match(line), line) for line in said.get("gpu_name", []) if not line.startswith("MIG ")]
    version = _VERSION.search(one("slurmd"))
    clock = _CLOCK.fullmatch(one("clock"))
    return MachineFacts(
        uid=number("uid") or 0,
        hostname=one("hostname"),
        kernel=one("kernel"),
        os=one("os").strip(),
        cpus=number("cpus"),
        memory_mib=number("memory_mib"),
        tmp_mib=number("tmp_mib"),
        free_mib=number("free_mib"),
        gpu_devices=tuple(said.get("gpu_device", ())),
        gpu_names=tuple(m.group(1) for m, _ in listed if m) if listed else None,
        gpu_error="; ".join(line for m, line in listed if not m),
        slurm_version=(int(version[1]), int(version[2]), int(version[3])) if version else None,
        munge=one("munge"),
        users=dict(found for line in said.get("user", []) if (found := _user(line)) is not None),
        sshfs="sshfs" in said,
        fuse="fuse" in said,
        systemd="systemd" in said,
        clock=float(clock[0]) if clock else None,
        asked=asked,
        answered=answered,
    )


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _user(line: str) -> tuple[str, UserIds | None] | None:
    """None: the line is none of facts.sh's."""
    name, _, numbers = line.partition(" ")
    uid, _, gid = numbers.partition(" ")
    if not name or not numbers:
        return None
    known, group = _number(uid), _number(gid)
    return name, UserIds(known, group) if known is not None and group is not None else None
