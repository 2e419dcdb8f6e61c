"""The gate: one reservation for root over every slot that is not ready. See Scheduler.set_gate."""

from __future__ import annotations

from collections.abc import Collection

from burstd.model.errors import SchedulerRefused
from burstd.slurm.commands import Commands
from burstd.slurm.hostlist import compress
from burstd.slurm.reservations import exists

GATE = "burstd"

# A reservation without end ends after a year all the same: every change of the gate puts its end a year from now.
_YEAR = "EndTime=now+365days"


def set_gate(commands: Commands, nodes: Collection[str], name: str = GATE) -> None:
    """Makes the gate hold exactly these nodes, with one command in the usual case. Raises SchedulerRefused.

    The whole list is given each time: Slurm 22.05 refuses ``nodes+=`` and ``nodes-=``, and one update is atomic.
    IGNORE_JOBS lets a busy node be put behind the gate; its job runs on. No job starts there once this has returned.
    """
    if not nodes:
        _delete(commands, name)
        return
    what = [f"ReservationName={name}", f"Nodes={compress(nodes)}", "Users=root", "Flags=IGNORE_JOBS"]
    try:
        commands("scontrol", "update", *what, _YEAR)
    except SchedulerRefused:
        # Which word Slurm has for "there is none" differs by version, and is also its word for an unknown node.
        if exists(commands, name):
            raise
        commands("scontrol", "create", "reservation", *what, "StartTime=now", "Duration=UNLIMITED")


def _delete(commands: Commands, name: str) -> None:
    """A reservation cannot be empty: no gate at all stands for an open one."""
    try:
        commands("scontrol", "delete", f"ReservationName={name}")
    except SchedulerRefused:
        if exists(commands, name):
            raise
