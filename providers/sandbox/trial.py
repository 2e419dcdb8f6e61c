"""A sandbox on a real head node, for a trial: its image, users, network and files, made and taken away."""

from __future__ import annotations

import grp
import ipaddress
import json
import os
import pwd
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from providers.openshift.settings import SLURM_CONF
from providers.sandbox.boxes.errors import NetworkFailed, SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs, rootfs_key
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.machine import need_root, output_of, remove_tree, tool_path

STATE = Path("/var/lib/burstd-sandbox")
CACHE = Path("/var/cache/burstd")
CONFIG, TOKEN = Path("/etc/burstd/sandbox.toml"), Path("/etc/burstd/sandbox.token")
PORT = 8470
UNIT = "burstd-sandbox.service"
SUBNETS = tuple(f"10.{number}.0.0/16" for number in range(177, 200))
_SLURMD = {(22, 5): "bookworm", (24, 11): "trixie", (26, 5): "forky"}
"""Debian's release with a slurmd of this version."""
_RELEASES = ((22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5))
"""Of Slurm, in order; slurmctld takes a slurmd that is two older."""
_PEOPLE = range(1000, 60000)
_LEFT_OUT = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog", "HealthCheckProgram")
"""Programs of slurm.conf that the machines do not have, as they have nothing of what these look after."""

_TOML = """\
# The sandbox's own settings, written by 'burstctl init'.
state = "{state}"
cache = "{cache}"
token_file = "{token}"

[lab]
name = "trial"
subnet = "{subnet}"
namespace = ""

[images.node]
layers = ["{image}", "{rootfs}"]

[cloud]
addresses = "{addresses}"
[[cloud.types]]
name = "c2"
cpus = 2
memory_mib = 2048
price = "0.40"
[[cloud.types]]
name = "g2.v100"
cpus = 2
memory_mib = 2048
gpu_type = "v100"
gpus = 2
price = "6.20"
[cloud.capacity.here]
"c2" = 4
"g2.v100" = 4
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """``suite``: the Debian release of the machines. ``exact``: it has slurmctld's own version of Slurm."""

    suite: str
    exact: bool
    subnet: str

    @property
    def gateway(self) -> str:
        """The head, as the machines see it."""
        return str(next(ipaddress.ip_network(self.subnet).hosts()))

    @property
    def url(self) -> str:
        """Where the sandbox listens."""
        return f"http://{self.gateway}:{PORT}"


def plan_trial(slurm: tuple[int, int, int]) -> Trial:
    """For slurmctld of this version, on a network that this host does not use. Raises SandboxError."""
    suite, exact = suite_for(slurm[:2])
    cached = (CACHE / "rootfs" / rootfs_key(suite)).is_dir()
    for tool in ("ip", "unshare", *(() if cached else ("mmdebstrap",))):
        tool_path(tool)
    return Trial(suite, exact, free_subnet(_used_networks()))


def suite_for(slurm: tuple[int, ...]) -> tuple[str, bool]:
    """The Debian release whose slurmd slurmctld takes, and whether it is of the same version. Raises SandboxError."""
    if slurm in _RELEASES:
        last = _RELEASES.index((slurm[0], slurm[1]))
        for release in reversed(_RELEASES[max(0, last - 2) : last + 1]):
            if release in _SLURMD:
                return _SLURMD[release], release == slurm
    raise SandboxError(
        f"no Debian release has a slurmd for slurmctld {'.'.join(f'{part:02}' for part in slurm)}",
        "try a cloud instead: --provider aws, azure, openstack or openshift",
    )


def free_subnet(used: Iterable[ipaddress.IPv4Network]) -> str:
    """The first network of SUBNETS that overlaps with none of these. Raises NetworkFailed."""
    taken = list(used)
    for subnet in SUBNETS:
        if not any(ipaddress.IPv4Network(subnet).overlaps(network) for network in taken):
            return subnet
    raise NetworkFailed(f"{SUBNETS[0]} and all to {SUBNETS[-1]} are in use", "free one of them on this host")


def used_networks(routes: str, addresses: str) -> list[ipaddress.IPv4Network]:
    """Of a host's routes, but the default route, and of its addresses, also those of interfaces that are down.

    As 'ip -json route' and 'ip -json addr' print them.
    """
    found = [route.get("dst", "default") for route in json.loads(routes or "[]")]
    for link in json.loads(addresses or "[]"):
        found += [f"{one['local']}/{one['prefixlen']}" for one in link.get("addr_info", ()) if "local" in one]
        found += [one["address"] for one in link.get("addr_info", ()) if "address" in one]  # the peer's
    return [ipaddress.IPv4Network(dst, strict=False) for dst in found if dst != "default"]


def _used_networks() -> list[ipaddress.IPv4Network]:
    """This host's."""
    shown = (("route", "show", "table", "all"), ("addr", "show"))
    return used_networks(*(output_of(["ip", "-json", "-4", *words]).stdout for words in shown))


def set_up(trial: Trial, slurm_gid: int, progress: Callable[[str], None]) -> None:
    """Builds the image, takes this host's users over into it, writes the files; may be repeated. Takes minutes once.

    ``slurm_gid``: the group that may read the token. Raises SandboxError.
    """
    need_root("a sandbox")
    rootfs = ensure_rootfs(trial.suite, CACHE, progress).path
    image = STATE / "image"
    (image / "etc").mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o700)
    (image / "burstd").mkdir(exist_ok=True)
    _write(image / "burstd" / "start.sh", start_script(), 0o644)
    for directory in (image, image / "etc", image / "burstd"):
        directory.chmod(0o755)  # as the machines see their own
    for name, lines in (("passwd", _people_lines()), ("group", _group_lines())):
        _write(image / "etc" / name, (rootfs / "etc" / name).read_text(encoding="utf-8") + "".join(lines), 0o644)
    network = ipaddress.IPv4Network(trial.subnet)
    text = _TOML.format(
        state=STATE, cache=CACHE, token=TOKEN, subnet=trial.subnet, image=image, rootfs=rootfs,
        addresses=list(network.subnets(new_prefix=18))[1],
    )  # fmt: skip
    _write(CONFIG, text, 0o644)
    if not TOKEN.exists():
        _write(TOKEN, secrets.token_urlsafe(24) + "\n", 0o640, slurm_gid)


def start_script() -> str:
    """Starts slurmd in a machine, which has no cgroups, whatever the site's slurm.conf has: as in a pod."""
    lines = [*SLURM_CONF, *(f"{name}=/bin/true" for name in _LEFT_OUT), "SlurmdLogFile=/var/log/slurm/slurmd.log"]
    pods = files("providers.openshift").joinpath("scripts", "start.sh").read_text(encoding="utf-8")
    return f"BURSTD_SLURM_CONF={shlex.quote(chr(10).join(lines))}\n{pods}"


def take_down(*, cache: bool) -> None:
    """Ends the machines, removes the network and all files; may be repeated. ``cache``: the root file systems too."""
    lab = Lab.open(STATE)
    if lab is not None:
        lab.down()
    remove_tree(STATE)
    for file in (CONFIG, TOKEN):
        file.unlink(missing_ok=True)
    if cache:
        remove_tree(CACHE)


def _people_lines() -> list[str]:
    return [":".join(map(str, user)) + "\n" for user in pwd.getpwall() if user.pw_uid in _PEOPLE]


def _group_lines() -> list[str]:
    groups: Sequence[grp.struct_group] = [group for group in grp.getgrall() if group.gr_gid in _PEOPLE]
    return [f"{g.gr_name}:x:{g.gr_gid}:{','.join(g.gr_mem)}\n" for g in groups]


def _write(file: Path, text: str, mode: int, gid: int = 0) -> None:
    """Whole or not at all, and never readable by more than ``mode`` says."""
    unfinished = file.with_name(f".{file.name}.new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
        os.fchown(descriptor, 0, gid)
        os.fchmod(descriptor, mode)
    unfinished.rename(file)
