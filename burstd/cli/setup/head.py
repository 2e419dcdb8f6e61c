"""This host as the head of a Slurm cluster: what runs there, and Slurm and units stopped and started."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.slurm.commands.controller import controller_hosts, parse_config, slurmctld_version
from burstd.slurm.commands.parsing import text_or_empty
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config.check import SHOW_CONFIG, read_partitions

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OLDEST_SLURM = (22, 5, 0)
UNITS = Path("/etc/systemd/system")
PACKAGED_UNITS = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
UP_TIMEOUT_S = 90.0
_POLL_S = 0.2
_LOG_LINES = 40
_SHOWN_LINES = 8


class SetupRefused(Exception):
    """It cannot be done as it is. The message says why, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the running Slurm says of itself. ``config``: 'scontrol show config'."""

    config: Mapping[str, str]
    version: tuple[int, int, int]
    partitions: Mapping[str, Mapping[str, str]]

    @property
    def conf(self) -> Path:
        """slurm.conf."""
        return Path(self.config.get("SLURM_CONF") or "/etc/slurm/slurm.conf")

    @property
    def slurm_user(self) -> pwd.struct_passwd:
        """SlurmUser's account."""
        return pwd.getpwnam(self.config.get("SlurmUser", "slurm").partition("(")[0])

    @property
    def cluster(self) -> str:
        """ClusterName as burstd takes names."""
        name = re.sub(r"[^a-z0-9-]+", "-", self.config.get("ClusterName", "").lower()).strip("-")
        return name[:32].strip("-") or "cluster"

    @property
    def host(self) -> tuple[str, str]:
        """The name and the address of the first SlurmctldHost; the address is empty where slurm.conf has none."""
        return next(iter(controller_hosts(self.config).items()), ("", ""))

    @property
    def log(self) -> Path | None:
        """slurmctld's log; None: the journal has it."""
        text = text_or_empty(self.config.get("SlurmctldLogFile", ""))
        return Path(text) if text else None


def require_root() -> None:
    """Raises SetupRefused."""
    if os.geteuid() != 0:
        raise SetupRefused("this changes Slurm and starts services, so it needs root: run it with sudo")


def read_head() -> Head:
    """Asks slurmctld. Raises SetupRefused where burstd cannot work with it."""
    for program in ("slurmctld", "scontrol", "systemctl"):
        if shutil.which(program, path=SYSTEM_PATH) is None:
            raise SetupRefused(f"there is no program {program} here: run this on slurmctld's host, which has systemd")
    if not Path("/etc/munge/munge.key").exists():
        raise SetupRefused("there is no /etc/munge/munge.key: burstd needs AuthType=auth/munge; set munge up first")
    commands = SlurmCommands()
    try:
        config = parse_config(commands(*SHOW_CONFIG))
        partitions = read_partitions(commands)
    except (SchedulerUnavailable, SchedulerRefused) as error:
        raise SetupRefused(f"slurmctld must run, so that burstd can be fitted to it: {error}") from None
    head = Head(config, slurmctld_version(config) or (0, 0, 0), partitions)
    require_fit(head)
    return head


def require_fit(head: Head) -> None:
    """Raises SetupRefused where burstd cannot work with this Slurm."""
    version = "{}.{:02}.{}".format(*head.version)
    if head.version < OLDEST_SLURM:
        raise SetupRefused(f"Slurm {version} runs, and burstd needs 22.05 or newer: upgrade Slurm")
    select = head.config.get("SelectType", "")
    if select != "select/cons_tres":
        raise SetupRefused(
            f"slurm.conf has SelectType={select}, and burstd needs select/cons_tres: change it while no job runs"
        )
    if "auth/munge" not in head.config.get("AuthType", ""):
        raise SetupRefused(f"slurm.conf has AuthType={head.config.get('AuthType')}, and burstd needs auth/munge")
    if not head.conf.is_file():
        raise SetupRefused(f"{head.conf} is not on this host: run this where slurmctld runs")
    if head.slurm_user.pw_uid == 0:
        raise SetupRefused(
            "slurm.conf has SlurmUser=root, and burstd runs as SlurmUser, without root's rights: "
            "set SlurmUser=slurm, and give that user slurmctld's files"
        )


def controller_up() -> bool:
    """Whether the first slurmctld answers."""
    done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and " is UP" in done.stdout.partition("\n")[0]


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    fault: Callable[[], str],
    hopeless: Callable[[], bool] = lambda: False,
) -> None:
    """Returns when the condition holds. Raises SetupRefused with the fault after so long, or where it is hopeless."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if hopeless() or time.monotonic() > deadline:
            raise SetupRefused(fault())
        time.sleep(_POLL_S)


def restart_slurmctld(log: Path | None) -> None:
    """Returns when it answers. Raises SetupRefused with what it says in its log where it does not come up.

    ``log``: SlurmctldLogFile; None: the journal has it.
    """
    since = time.time()
    begin = log.stat().st_size if log is not None and log.exists() else 0
    # systemd refuses a unit that was started five times within ten seconds, as an init and its undoing may.
    systemctl("reset-failed", "slurmctld", check=False)
    done = systemctl("restart", "slurmctld", check=False)
    wait_until(
        controller_up,
        UP_TIMEOUT_S,
        lambda: f"slurmctld does not start:\n{_log_lines(log, begin, since) or done.stderr.strip()}",
        hopeless=lambda: done.returncode != 0 or _unit_failed("slurmctld"),
    )


def _unit_failed(unit: str) -> bool:
    done = subprocess.run(["systemctl", "is-failed", "--quiet", unit], check=False)
    return done.returncode == 0


def _log_lines(log: Path | None, begin: int, since: float) -> str:
    """What slurmctld has said since, its errors rather than all."""
    if log is None or not log.exists():
        return journal_lines("slurmctld", f"--since=@{since:.0f}")
    with log.open("rb") as file:
        file.seek(begin)
        return _errors(file.read().decode("utf-8", "replace").splitlines())


def journal_lines(unit: str, *options: str) -> str:
    """What a unit has said last, its errors rather than all."""
    words = ["journalctl", "-u", unit, *options, "-o", "cat", "--no-pager", "-q", f"-n{_LOG_LINES}"]
    return _errors(subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines())


def _errors(lines: Sequence[str]) -> str:
    bad = [line for line in lines if re.search(r"error|fatal", line)] or lines
    return "\n".join(f"  {line}" for line in bad[-_SHOWN_LINES:])


def systemctl(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Raises SetupRefused with what it said when it fails."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SetupRefused(f"'systemctl {' '.join(words)}' failed: {(done.stderr or done.stdout).strip()}")
    return done


def programs_folder() -> Path:
    """Where burstd-resume and its companions are. Raises SetupRefused."""
    for folder in (Path(sys.executable).parent, Path("/opt/burstd/bin"), Path("/usr/bin")):
        if (folder / "burstd-resume").exists():
            return folder
    raise SetupRefused("burstd-resume is not beside this program: install burstd from its package or wheel")


def unit_is_packaged(unit: str) -> bool:
    """Whether a package has brought it."""
    return any((folder / unit).exists() for folder in PACKAGED_UNITS)


def drop_ins(user: pwd.struct_passwd, group: str, units: Sequence[str]) -> dict[Path, str]:
    """Files that have burstd and its sockets belong to another SlurmUser than slurm."""
    if (user.pw_name, group) == ("slurm", "slurm"):
        return {}
    found = {}
    for unit in units:
        if unit == "burstd.service":
            text = (
                f"[Service]\nUser={user.pw_name}\nGroup={group}\nExecStartPre=\n"
                f"ExecStartPre=+/usr/bin/install -d -m 0750 -o {user.pw_name} -g {group} /var/spool/burstd\n"
            )
        elif unit.endswith("-worker.socket"):
            text = f"[Socket]\nSocketUser={user.pw_name}\n"
        else:
            continue
        found[UNITS / f"{unit}.d" / "slurm-user.conf"] = text
    return found
