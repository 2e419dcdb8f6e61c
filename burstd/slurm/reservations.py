"""Reads ``scontrol show reservation``."""

from __future__ import annotations

from collections.abc import Callable

from burstd.model.node import Reservation
from burstd.slurm.commands import Commands
from burstd.slurm.text import hosts, instant, records, word

OF_A_JOB = "burstd-job-"
"""Begins the names of the reservations that bind nodes to one job; the job's id follows."""
COMMAND = ("scontrol", "--all", "--oneliner", "show", "reservation")


def parse_reservations(text: str, translate: Callable[[float], float]) -> tuple[Reservation, ...]:
    """The output of COMMAND, with SLURM_TIME_FORMAT=%s; ``No reservations in the system`` gives none."""
    return tuple(
        Reservation(
            name=fields["ReservationName"],
            nodes=frozenset(hosts(fields.get("Nodes", ""))),
            users=tuple(filter(None, word(fields.get("Users", "")).split(","))),
            flags=frozenset(filter(None, word(fields.get("Flags", "")).split(","))),
            job_id=job_of(fields["ReservationName"]),
            start=instant(fields.get("StartTime", ""), translate),
            end=instant(fields.get("EndTime", ""), translate),
        )
        for fields in records(text, "ReservationName")
    )


def name_of(job_id: str) -> str:
    """The name of the reservation that a job is bound with: ``burstd-job-123``, ``burstd-job-15_2``."""
    return OF_A_JOB + job_id.replace("+", ".")


def job_of(name: str) -> str:
    """The job that a reservation of this name binds; empty: it binds none."""
    return name.removeprefix(OF_A_JOB).replace(".", "+") if name.startswith(OF_A_JOB) else ""


def exists(commands: Commands, name: str) -> bool:
    """Whether there is a reservation of that name. Raises SchedulerUnavailable."""
    return any(fields["ReservationName"] == name for fields in records(commands(*COMMAND), "ReservationName"))
