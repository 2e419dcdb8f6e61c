"""What a machine says it is, gathered in one round trip."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from burstd.domain.cloud.quoting import one_line
from burstd.domain.mounts import contains
from burstd.domain.plugins.shell import CommandShell
from burstd.node.errors import CommandFailed

_VERSION = re.compile(r"\b([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})")
_NUMBER = re.compile(r"[0-9]{1,15}")
_CLOCK = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_LISTED = 256
"""Lines of a kind that are looked at: GPUs, users ..."""
MAX_TREE_MODULES = 2000
"""... but so many names of modules."""
WHOLE_TREE = "*"
"""Asked for as a module: all that there are."""
NO_LIMIT = 2**63
"""Where a limit is said to be unlimited."""
SYSTEMD_AUTOMOUNT = "autofs systemd-1"
"""Type and source of what systemd mounts when it is first used."""
_UTC = frozenset({"Etc/UTC", "Etc/UCT", "Etc/Universal", "Etc/Zulu", "UCT", "Universal", "Zulu"})
_MIG = re.compile(r"^MIG (\S+)\s")
_GPU = re.compile(r"^GPU \d+: (.*?)(?: \(UUID: .*\))?$")


@dataclass(frozen=True, slots=True)
class UserIds:
    """The numbers of a user."""

    uid: int
    gid: int
    groups: tuple[int, ...] = field(default=(), compare=False)
    """All the user's groups by their numbers."""

    def __str__(self) -> str:
        return f"uid {self.uid}, gid {self.gid}"


@dataclass(frozen=True, slots=True)
class GpuState:
    """What nvidia-smi knows of a GPU's health. What it does not say of this kind of GPU counts as well."""

    address: str
    """On the PCI bus."""
    errors: int = 0
    """Memory errors that ECC could not correct, since the driver was loaded."""
    remap_failed: bool = False
    """A bad row of its memory has no spare one left."""
    remap_pending: bool = False
    """A bad row or page of its memory is in use until the GPU is reset."""
    recovery: str = ""
    """What the driver wants done with it: ``GPU Reset``; empty: nothing."""
    slowed: tuple[str, ...] = ()
    """Why its clocks are below what they could be, other than for power or idleness: ``hw_thermal_slowdown``."""
    width: int = 0
    """PCIe lanes in use; 0: not known ..."""
    max_width: int = 0
    """... and those that it has."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a machine says it is. None or empty: it has not, or could not say."""

    uid: int = 0
    """As whom burstd acts there."""
    hostname: str = ""
    kernel: str = ""
    """Release."""
    arch: str = ""
    """``x86_64``."""
    glibc: str = ""
    """``2.36``."""
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
    mig: tuple[tuple[str, ...], ...] = ()
    """Profiles (``1g.10gb``) of the parts of each GPU that nvidia-smi lists."""
    dmem: tuple[str, ...] = ()
    """Regions of GPU memory that its kernel can limit for a cgroup: dmem.capacity."""
    mps: str = ""
    """Whether the control daemon of MPS ``answers`` or is ``silent``; empty: it has none."""
    gpu_error: str = ""
    """What nvidia-smi said that names no GPU."""
    gpu_states: tuple[GpuState, ...] = ()
    driver: str = ""
    """Version of NVIDIA's kernel module ..."""
    cuda: str = ""
    """... and the newest CUDA that it knows."""
    slurm_version: tuple[int, int, int] | None = None
    munge: str = ""
    slurmctld: Mapping[str, str] = field(default_factory=dict)
    """Port of slurmctld (``head:6817``) -> ``ok``, ``unknown`` (its name is), ``refused`` or ``silent``."""
    prologs: frozenset[str] = frozenset()
    """Those of the files asked for, or patterns, that are there as programs."""
    homes: Mapping[str, bool] = field(default_factory=dict)
    """Directory that was asked for -> whether it is there."""
    users: Mapping[str, UserIds | None] = field(default_factory=dict)
    sshfs: bool = False
    fuse: bool = False
    """Whether it has /dev/fuse."""
    systemd: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of slurmd, and so of jobs at most: ``memlock`` and ``stack`` in bytes, ``nofile``, ``nproc``; NO_LIMIT: none."""
    lang: str = ""
    """The LANG of its users."""
    locales: frozenset[str] = frozenset()
    """Those of the locales asked for that it has."""
    timezone: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Name that was asked for -> the modules of this name, with blanks between; empty: none."""
    module_command: bool = True
    """False: modules were asked for, and a login shell has no ``module``."""
    module_tree: str = ""
    """Checksum of the names of all modules, and their number: ``5c1f... 812``; empty: not asked for, or no answer."""
    tree_modules: tuple[str, ...] = ()
    """The first MAX_TREE_MODULES of these names."""
    sentinels: Mapping[str, str] = field(default_factory=dict)
    """Path -> checksum of the file, ``directory``, or empty where it cannot be read."""
    revisions: Mapping[str, int] = field(default_factory=dict)
    """Those of these paths that are in CVMFS -> revision of their repository."""
    runtimes: Mapping[str, str] = field(default_factory=dict)
    """Container runtime -> its version; ``docker-nvidia`` has none: docker knows NVIDIA's runtime."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Where a network file system is mounted -> its type and source: ``nfs4 server:/home``."""
    frameworks: Mapping[str, str] = field(default_factory=dict)
    """Those that were shown to work there, and the checksums of what they were."""
    clock: float | None = None
    """Its clock, in seconds since 1970 ..."""
    asked: float = 0.0
    answered: float = 0.0
    """... read between these two moments of the head's."""

    def module_names(self) -> frozenset[str]:
        """What was asked for and answered, of modules."""
        return frozenset(self.modules) | ({WHOLE_TREE} if self.module_tree else frozenset())

    @property
    def clock_off_s(self) -> float | None:
        """How far at least its clock is ahead of the head's (negative: behind), in seconds."""
        if self.clock is None:
            return None
        return max(0.0, self.clock - self.answered) + min(0.0, self.clock - self.asked)


@dataclass(frozen=True, slots=True)
class FactsRequest:
    """What a machine is asked for by name, beside what every machine says."""

    gpu_devices: str = ""
    """A shell pattern."""
    users: Sequence[str] = ()
    sentinels: Sequence[str] = ()
    modules: Sequence[str] = ()
    locale: str = ""
    slurmctld: Sequence[str] = ()
    """Its ports: ``head:6817``."""
    prologs: Sequence[str] = ()
    """Files that slurmd runs, or patterns of their paths."""
    homes: Sequence[str] = ()
    """Directories."""
    within_s: int = 20
    """How long the machine waits for what may hang: file systems, modules, nvidia-smi."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of facts.sh."""
        return (
            self.gpu_devices,
            f"within={self.within_s}",
            *(f"user={name}" for name in self.users),
            *(f"sentinel={path}" for path in self.sentinels),
            *(f"module={name}" for name in self.modules),
            *((f"locale={self.locale}",) if self.locale else ()),
            *(f"slurmctld={address}" for address in self.slurmctld),
            *(f"prolog={path}" for path in self.prologs),
            *(f"home={path}" for path in self.homes),
        )


def facts_script(request: FactsRequest) -> str:
    """facts.sh with its arguments, for ``sh`` without any, which may read it from its standard input."""
    return f"set -- {shlex.join(request.arguments)}\n{{\n{_facts_sh()}}} </dev/null\n"


def read_facts(
    session: CommandShell, request: FactsRequest, *, wall: Callable[[], float], timeout_s: float = 60.0
) -> MachineFacts:
    """Asks the machine. ``wall``: the head's clock, in seconds since 1970.

    Raises CommandFailed, and what ``CommandShell.run`` raises.
    """
    asked = wall()
    done = session.script(_facts_sh(), *request.arguments, timeout_s=timeout_s)
    answered = wall()
    facts = parse_facts(done.out, asked=asked, answered=answered)
    if facts is None:
        raise CommandFailed(f"the machine could not say what it is: {done.last_line}", rc=done.rc, err=done.err)
    return facts


@cache
def _facts_sh() -> str:
    scripts = files("burstd.node").joinpath("scripts")
    return "".join(scripts.joinpath(name).read_text(encoding="utf-8") for name in ("gpu_states.sh", "facts.sh"))


def parse_facts(text: str, *, asked: float, answered: float) -> MachineFacts | None:
    """Reads what facts.sh printed; None where its end is missing."""
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values = said.setdefault(key, [])
        if len(values) < (MAX_TREE_MODULES if key == "tree_module" else _LISTED):
            values.append(one_line(value, 400))
    if "end" not in said:
        return None

    def one(key: str) -> str:
        return said.get(key, [""])[0]

    def number(key: str) -> int | None:
        return _number(one(key))

    # The parts that a GPU is cut into (MIG) are listed below it.
    mig: list[tuple[str, ...]] = []
    for line in said.get("gpu_name", []):
        part = _MIG.match(line)
        if part and mig:
            mig[-1] += (part[1],)
        elif _GPU.match(line):
            mig.append(())
    listed = [(_GPU.match(line), line) for line in said.get("gpu_name", []) if not line.startswith("MIG ")]
    version = _VERSION.search(one("slurmd"))
    clock = _CLOCK.fullmatch(one("clock"))
    gpu_errors = [line for match, line in listed if not match]
    if "asked" in said.get("nvidia_smi", ()) and "answered" not in said["nvidia_smi"]:
        gpu_errors.append("nothing")
    zone = one("timezone")
    mounts = _mounts(said)
    return MachineFacts(
        uid=number("uid") or 0,
        hostname=one("hostname"),
        kernel=one("kernel"),
        arch=one("arch"),
        glibc=one("glibc").removeprefix("glibc").strip(),
        os=one("os").strip(),
        cpus=number("cpus"),
        memory_mib=number("memory_mib"),
        tmp_mib=number("tmp_mib"),
        free_mib=number("free_mib"),
        gpu_devices=tuple(said.get("gpu_device", ())),
        gpu_names=tuple(m.group(1) for m, _ in listed if m) if listed or gpu_errors else None,
        mig=tuple(mig),
        dmem=tuple(said.get("dmem", ())),
        mps=one("mps"),
        gpu_error="; ".join(gpu_errors),
        gpu_states=tuple(_gpu_state(line) for line in said.get("gpu_state", ())),
        driver=one("driver"),
        cuda=one("cuda"),
        slurm_version=(int(version[1]), int(version[2]), int(version[3])) if version else None,
        munge=one("munge"),
        slurmctld={address: state for address, _, state in _words(said, "slurmctld")},
        prologs=frozenset(said.get("prolog", ())),
        homes=_homes(said, mounts),
        users=dict(found for line in said.get("user", []) if (found := _user(line)) is not None),
        sshfs="sshfs" in said,
        fuse="fuse" in said,
        systemd="systemd" in said,
        limits=_limits(said),
        lang=one("lang"),
        locales=frozenset(said.get("locale", ())),
        timezone="UTC" if zone in _UTC else zone,
        modules={name: value.strip() for name, _, value in _words(said, "module")},
        module_command=one("module_command") != "none",
        module_tree=one("module_tree"),
        tree_modules=tuple(said.get("tree_module", ())),
        sentinels={path: "" if value == "-" else value for value, _, path in _words(said, "sentinel")},
        revisions={path: int(value) for value, _, path in _words(said, "revision") if _NUMBER.fullmatch(value)},
        runtimes={name: _first_version(text) for name, _, text in _words(said, "runtime")},
        mounts=mounts,
        frameworks={name: checksum for name, _, checksum in _words(said, "framework")},
        clock=float(clock[0]) if clock else None,
        asked=asked,
        answered=answered,
    )


def _gpu_state(line: str) -> GpuState:
    """``00000000:19:00.0 errors=0 errors=2 recovery=GPU_Reset width=8x ...``; a key may come several times."""
    address, *pairs = line.split(" ")
    said: dict[str, list[str]] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        said.setdefault(key, []).append(value)

    def lanes(key: str) -> int:
        return _number(said.get(key, [""])[0].removesuffix("x")) or 0

    recovery = said.get("recovery", ["None"])[0]
    return GpuState(
        address,
        errors=sum(_number(count) or 0 for count in said.get("errors", ())),
        remap_failed="Yes" in said.get("remap_failed", ()),
        remap_pending="Yes" in said.get("remap_pending", ()),
        recovery="" if recovery in ("None", "N_A", "") else recovery.replace("_", " "),
        slowed=tuple(said.get("slowed", ())),
        width=lanes("width"),
        max_width=lanes("max_width"),
    )


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _words(said: Mapping[str, Sequence[str]], key: str) -> list[tuple[str, str, str]]:
    """The first word and the rest of each value."""
    return [line.partition(" ") for line in said.get(key, ())]


def _first_version(text: str) -> str:
    """``Docker version 24.0.5, build ced0996`` -> ``24.0.5``."""
    found = re.search(r"[0-9]{1,6}(\.[0-9]{1,6})+", text)
    return found[0] if found else ""


def _homes(said: Mapping[str, Sequence[str]], mounts: Mapping[str, str]) -> dict[str, bool]:
    """Without those that autofs lacks: it says so too where their server does not answer now."""
    tables = [at for at, what in mounts.items() if what.startswith("autofs")]
    return {
        path: there == "ok"
        for there, _, path in _words(said, "home")
        if there == "ok" or not any(contains(at, path) for at in tables)
    }


def _mounts(said: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What systemd has mounted on demand counts, not its automount; what autofs mounts below its own comes and goes."""
    found: dict[str, str] = {}
    for path, _, what in _words(said, "mount"):
        if not found.get(path, "").startswith("autofs ") or found[path] == SYSTEMD_AUTOMOUNT:
            found[path] = what
    maps = tuple(f"{path}/" for path, what in found.items() if what.startswith("autofs ") and what != SYSTEMD_AUTOMOUNT)
    return {path: what for path, what in found.items() if not path.startswith(maps)}


def _limits(said: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The lowest value of each."""
    found: dict[str, int] = {}
    for name, _, value in _words(said, "limit"):
        limit = NO_LIMIT if value in ("unlimited", "infinity") else _number(value)
        if limit is not None:
            found[name] = min(limit, found.get(name, limit))
    return found


def _user(line: str) -> tuple[str, UserIds | None] | None:
    """None: the line is none of facts.sh's."""
    name, *numbers = line.split(" ")
    if not name or not numbers:
        return None
    uid, gid, *groups = [_number(number) for number in numbers] + [None]
    listed = tuple(sorted(number for number in groups if number is not None))
    return name, UserIds(uid, gid, listed) if uid is not None and gid is not None else None
