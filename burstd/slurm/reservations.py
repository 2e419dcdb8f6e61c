"""Reads ``scontrol show reservation``.

The gate: one reservation for root over every slot that is not ready. See Scheduler.set_gate.

Nodes for one job: a second reservation over nodes that the gate holds. See Scheduler.bind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from burstd.domain.errors import SchedulerRefused
from burstd.domain.slurm.node import Reservation
from burstd.slurm.commands.parsing import expand_hosts, parse_records, parse_timestamp, text_or_empty
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import compress

JOB_RESERVATION_PREFIX = "burstd-job-"
"""Begins the names of the reservations that bind nodes to one job; the job's id follows."""
SHOW_RESERVATIONS = ("scontrol", "--all", "--oneliner", "show", "reservation")


def parse_reservations(text: str, translate: Callable[[float], float]) -> tuple[Reservation, ...]:
    """The output of COMMAND, with SLURM_TIME_FORMAT=%s; ``No reservations in the system`` gives none."""
    return tuple(
        Reservation(
            name=fields["ReservationName"],
            nodes=frozenset(expand_hosts(fields.get("Nodes", ""))),
            users=tuple(filter(None, text_or_empty(fields.get("Users", "")).split(","))),
            flags=frozenset(filter(None, text_or_empty(fields.get("Flags", "")).split(","))),
            job_id=reserved_job(fields["ReservationName"]),
            start=parse_timestamp(fields.get("StartTime", ""), translate),
            end=parse_timestamp(fields.get("EndTime", ""), translate),
        )
        for fields in parse_records(text, "ReservationName")
    )


def reservation_name(job_id: str) -> str:
    """The name of the reservation that a job is bound with: ``burstd-job-123``, ``burstd-job-15_2``."""
    return JOB_RESERVATION_PREFIX + job_id.replace("+", ".")


def reserved_job(name: str) -> str:
    """The job that a reservation of this name binds; empty: it binds none."""
    return (
        name.removeprefix(JOB_RESERVATION_PREFIX).replace(".", "+") if name.startswith(JOB_RESERVATION_PREFIX) else ""
    )


def reservation_exists(commands: SlurmCommands, name: str) -> bool:
    """Whether there is a reservation of that name. Raises SchedulerUnavailable."""
    return any(
        fields["ReservationName"] == name for fields in parse_records(commands(*SHOW_RESERVATIONS), "ReservationName")
    )


GATE = "burstd"

# A reservation without end ends after a year all the same: every change of the gate puts its end a year from now.
_YEAR = "EndTime=now+365days"


def set_gate(commands: SlurmCommands, nodes: Collection[str], name: str = GATE) -> None:
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
        if reservation_exists(commands, name):
            raise
        commands("scontrol", "create", "reservation", *what, "StartTime=now", "Duration=UNLIMITED")


def _delete(commands: SlurmCommands, name: str) -> None:
    """A reservation cannot be empty: no gate at all stands for an open one."""
    try:
        commands("scontrol", "delete", f"ReservationName={name}")
    except SchedulerRefused:
        if reservation_exists(commands, name):
            raise


def bind(commands: SlurmCommands, job_id: str, user: str, nodes: Collection[str]) -> None:
    """Makes the reservation, unless it is there from an attempt before, and moves the pending job into it.

    OVERLAP lets it stand beside the gate, so nobody else gets in at any moment. A job array's id moves all its tasks,
    and its pending rest may then use these nodes only: bind single tasks (``15_2``). Raises SchedulerRefused; then
    nothing is left behind.
    """
    name = reservation_name(job_id)
    what = [f"ReservationName={name}", f"Nodes={compress(nodes)}", f"Users={user}", "Flags=IGNORE_JOBS,OVERLAP"]
    try:
        commands("scontrol", "create", "reservation", *what, "StartTime=now", "Duration=UNLIMITED")
    except SchedulerRefused:
        if not reservation_exists(commands, name):
            raise
        commands("scontrol", "update", *what)
    try:
        commands("scontrol", "update", f"JobId={job_id}", f"ReservationName={name}")
    except SchedulerRefused:
        with contextlib.suppress(SchedulerRefused):
            commands("scontrol", "delete", f"ReservationName={name}")
        raise


def unbind(commands: SlurmCommands, job_id: str) -> None:
    """Takes the job out, pending or running (it runs on), and deletes the reservation. No error where there is none.

    In this order: Slurm does not delete a reservation that a job is in.
    """
    name = reservation_name(job_id)
    # Refused where the job has ended. If it has not, the next command says that the reservation is in use.
    with contextlib.suppress(SchedulerRefused):
        commands("scontrol", "update", f"JobId={job_id}", "ReservationName=")
    try:
        commands("scontrol", "delete", f"ReservationName={name}")
    except SchedulerRefused:
        if reservation_exists(commands, name):
            raise
