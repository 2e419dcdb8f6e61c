"""Runs Slurm's commands: argument lists, a plain environment, a time limit, and typed errors for what they say."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable

CommandRunner = Callable[[Sequence[str], Mapping[str, str], float], "subprocess.CompletedProcess[str]"]
"""Runs an argument list with this environment and a limit in seconds, and gives its output as text.

Raises FileNotFoundError where there is no such program, subprocess.TimeoutExpired past the limit.
"""

# What slurmctld's absence, munge's absence and an overloaded slurmctld look like, in every version from 22.05 on.
_SIGNS_OF_ABSENCE = (
    "unable to contact slurm controller",
    "communication connection failure",
    "connection refused",
    "connection timed out",
    "connection reset",
    "connect failure",
    "socket timed out",
    "zero bytes were transmitted",
    "unexpected message received",
    "standby mode",
    "protocol authentication error",
    "munge encode failed",
    "could not establish a configuration source",
    "temporarily unable",
    "transport endpoint",
    "incompatible versions",
    "shutting down",
    "system not yet initialized",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION = re.compile(r"SLURM_VERSION\s*=\s*(\d+)\.(\d+)\.(\d+)")


def run_locally(
    argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """A Runner on this machine. Bytes that are no UTF-8 become replacement characters."""
    return subprocess.run(
        argv,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


class SlurmCommands:
    """squeue, scontrol and sinfo. ``timeout_s``: a slurmctld that is down is reported after about ten seconds.

    Nothing of burstd's own environment reaches them but PATH and SLURM_CONF: variables such as SQUEUE_USERS would
    change what they show.
    """

    def __init__(
        self,
        run: CommandRunner = run_locally,
        timeout_s: float = 30.0,
        *,
        bin_dir: Path | None = None,
        conf: Path | None = None,
    ) -> None:
        """``bin_dir``: the commands' folder, else PATH counts. ``conf``: slurm.conf, else SLURM_CONF or Slurm's own."""
        self._run = run
        self._timeout_s = timeout_s
        self._version: tuple[int, int, int] | None = None
        path = os.environ.get("PATH", _PATH)
        self._environment = {
            "PATH": path if bin_dir is None else f"{bin_dir}:{path}",
            "LC_ALL": "C.UTF-8",
            "SLURM_TIME_FORMAT": "%s",
            "SLURM_BITSTR_LEN": "0",
        }
        chosen = os.environ.get("SLURM_CONF", "") if conf is None else str(conf)
        if chosen:
            self._environment["SLURM_CONF"] = chosen

    def __call__(self, *argv: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
        """Runs one command, with this in its environment as well; its standard output.

        Raises SchedulerUnavailable, SchedulerRefused.
        """
        try:
            done = self._run(argv, {**self._environment, **environment}, self._timeout_s)
        except FileNotFoundError:
            raise SchedulerUnavailable(
                f"the program {argv[0]} is not installed here: install Slurm's client commands"
            ) from None
        except subprocess.TimeoutExpired:
            self._version = None
            raise SchedulerUnavailable(f"{argv[0]} gave no answer within {self._timeout_s:.0f} s") from None
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise SchedulerRefused(f"'{_display_command(argv)}' is longer than a command may be") from None
            raise SchedulerUnavailable(f"{argv[0]} cannot be run: {error.strerror}") from None
        if done.returncode == 0:
            return done.stdout
        said = _last_line(done.stderr) or _last_line(done.stdout) or f"exit code {done.returncode}"
        everything = (done.stderr + done.stdout).lower()
        if any(sign in everything for sign in _SIGNS_OF_ABSENCE):
            # It may come back as another version.
            self._version = None
            daemon = "slurmdbd" if argv[0] == "sacctmgr" else "slurmctld"
            if "authentication" in everything or "munge" in everything:
                said += f"; see that munged runs here ('systemctl status munge') with the key of {daemon}'s host"
            raise SchedulerUnavailable(f"{daemon} does not answer {argv[0]}: {said}")
        raise SchedulerRefused(f"Slurm refused '{_display_command(argv)}': {said}")

    def version(self) -> tuple[int, int, int]:
        """slurmctld's version; asked once, and again after it was away. Raises SchedulerUnavailable."""
        if self._version is None:
            match = _VERSION.search(self("scontrol", "show", "config"))
            if match is None:
                raise SchedulerUnavailable("'scontrol show config' does not say which version slurmctld has")
            self._version = (int(match[1]), int(match[2]), int(match[3]))
        return self._version


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _display_command(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 160 else text[:157] + "..."
