"""What slurmctld says of itself: ``scontrol show config``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from burstd.model.errors import SchedulerUnavailable
from burstd.slurm.commands import Commands

_LINE = re.compile(r"^(\w[\w-]*)\s*=\s?(.*)$", re.MULTILINE)
_UID = re.compile(r".*\((\d+)\)$")


@dataclass(frozen=True, slots=True)
class Controller:
    """The parts of slurmctld's configuration that burstd itself works with."""

    state_save_location: Path
    slurm_uid: int
    """SlurmUser, who runs ResumeProgram."""


def parse(text: str) -> Controller:
    """The output of ``scontrol show config``. Raises SchedulerUnavailable where it does not say what is needed."""
    found = {key: value.strip() for key, value in _LINE.findall(text)}
    user = _UID.match(found.get("SlurmUser", ""))
    if user is None or not found.get("StateSaveLocation"):
        raise SchedulerUnavailable("'scontrol show config' does not tell SlurmUser and StateSaveLocation")
    return Controller(Path(found["StateSaveLocation"]), int(user[1]))


def ask(commands: Commands) -> Controller:
    """Asks slurmctld. Raises SchedulerUnavailable."""
    return parse(commands("scontrol", "show", "config"))
