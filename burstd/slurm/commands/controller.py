"""What slurmctld says of itself: ``scontrol show config``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.slurm.slurmd_conf import SlurmdConf
from burstd.slurm.commands.run import SlurmCommands

_LINE = re.compile(r"^(\w[\w-]*(?:\[\d+\])?)\s*=\s?(.*)$", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_HOST = re.compile(r"(?P<name>[^\s()]+)(?:\((?P<address>[^\s()]*)\))?")
_PROLOG = re.compile(r"(Prolog|Epilog|TaskProlog)(?:\[\d+\])?")
KEPT_S = 10.0
"""For which an answer counts: machines that boot are looked at twice a second each."""
_UID = re.compile(r".*\((\d+)\)$")


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The parts of slurmctld's configuration that burstd itself works with."""

    state_save_location: Path
    slurm_uid: int
    """SlurmUser, who runs ResumeProgram."""


def parse_config(text: str) -> dict[str, str]:
    """The settings in ``scontrol show config``, by name: ``PrologSlurmctld[0]`` where there may be several."""
    return {key: value.strip() for key, value in _LINE.findall(text)}


def slurmctld_version(config: Mapping[str, str]) -> tuple[int, int, int] | None:
    """slurmctld's version; None where it is not told."""
    match = _VERSION.match(config.get("SLURM_VERSION", ""))
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def parse_controller_config(text: str) -> ControllerConfig:
    """The output of ``scontrol show config``. Raises SchedulerUnavailable where it does not say what is needed."""
    found = parse_config(text)
    user = _UID.match(found.get("SlurmUser", ""))
    if user is None or not found.get("StateSaveLocation"):
        raise SchedulerUnavailable("'scontrol show config' does not tell SlurmUser and StateSaveLocation")
    return ControllerConfig(Path(found["StateSaveLocation"]), int(user[1]))


def controller_hosts(config: Mapping[str, str]) -> dict[str, str]:
    """Names of slurmctld's hosts, the first one's first, and the address that slurm.conf gives each; empty: none."""
    found = [_HOST.fullmatch(value) for key, value in config.items() if key.startswith("SlurmctldHost[")]
    return {match["name"]: match["address"] or "" for match in found if match}


def slurmd_conf(config: Mapping[str, str]) -> SlurmdConf:
    """Of ``scontrol show config``. Newer versions number the prologs; those in /etc/burstd are burstd's own."""
    port = config.get("SlurmctldPort", "").partition("-")[0] or "6817"
    prologs = {
        path: match[1]
        for key, path in config.items()
        if (match := _PROLOG.fullmatch(key)) and path.startswith("/") and not path.startswith("/etc/burstd/")
    }
    ports = tuple(f"{address or name}:{port}" for name, address in controller_hosts(config).items())
    return SlurmdConf(ports, prologs, pam=config.get("UsePam", "0").lower() not in ("0", "no"))


class SlurmdConfReader:
    """Asks slurmctld once in KEPT_S, however many machines are validated meanwhile; from any thread."""

    def __init__(self, commands: SlurmCommands, now: Callable[[], float]) -> None:
        """``now``: seconds."""
        self._commands = commands
        self._now = now
        self._lock = threading.Lock()
        self._conf = SlurmdConf()
        self._asked_at = float("-inf")

    def __call__(self) -> SlurmdConf:
        """What it said last. Raises SchedulerUnavailable, SchedulerRefused where it was asked now, and did not say."""
        with self._lock:
            if self._now() - self._asked_at >= KEPT_S:
                self._asked_at = self._now()
                self._conf = slurmd_conf(parse_config(self._commands("scontrol", "show", "config")))
            return self._conf


def read_slurmctld_start(commands: SlurmCommands) -> float:
    """When slurmctld was started, by the system's clock, in seconds since 1970. Raises SchedulerUnavailable."""
    text = parse_config(commands("scontrol", "show", "config")).get("BOOT_TIME", "")
    if not text.isdecimal():
        raise SchedulerUnavailable("'scontrol show config' does not tell BOOT_TIME")
    return float(text)


def read_controller_config(commands: SlurmCommands) -> ControllerConfig:
    """Asks slurmctld. Raises SchedulerUnavailable."""
    return parse_controller_config(commands("scontrol", "show", "config"))
