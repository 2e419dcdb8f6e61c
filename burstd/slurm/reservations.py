"""Reads ``scontrol show reservation``."""

from __future__ import annotations

from collections.abc import Callable

from burstd.model.node import Reservation
from burstd.slurm.commands import Commands
from burstd.slurm.text import hosts, instant, records, word

COMMAND = ("scontrol", "--all", "--oneliner", "show", "reservation")


def parse_reservations(text: str, translate: Callable[[float], float]) -> tuple[Reservation, ...]:
    """The output of COMMAND, with SLURM_TIME_FORMAT=%s; ``No reservations in the system`` gives none."""
    return tuple(
        Reservation(
            name=fields["ReservationName"],
            nodes=frozenset(hosts(fields.get("Nodes", ""))),
            users=tuple(filter(None, word(fields.get("Users", "")).split(","))),
            flags=frozenset(filter(None, word(fields.get("Flags", "")).split(","))),
            start=instant(fields.get("StartTime", ""), translate),
            end=instant(fields.get("EndTime", ""), translate),
        )
        for fields in records(text, "ReservationName")
    )


def exists(commands: Commands, name: str) -> bool:
    """Whether there is a reservation of that name. Raises SchedulerUnavailable."""
    return any(fields["ReservationName"] == name for fields in records(commands(*COMMAND), "ReservationName"))
