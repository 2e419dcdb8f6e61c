"""Nodes for one job: a second reservation over nodes that the gate holds. See Scheduler.bind."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from burstd.model.errors import SchedulerRefused
from burstd.slurm.commands import Commands
from burstd.slurm.hostlist import compress
from burstd.slurm.reservations import exists, name_of


def bind(commands: Commands, job_id: str, user: str, nodes: Collection[str]) -> None:
    """Makes the reservation, unless it is there from an attempt before, and moves the pending job into it.

    OVERLAP lets it stand beside the gate, so nobody else gets in at any moment. A job array's id moves all its tasks,
    and its pending rest may then use these nodes only: bind single tasks (``15_2``). Raises SchedulerRefused; then
    nothing is left behind.
    """
    name = name_of(job_id)
    what = [f"ReservationName={name}", f"Nodes={compress(nodes)}", f"Users={user}", "Flags=IGNORE_JOBS,OVERLAP"]
    try:
        commands("scontrol", "create", "reservation", *what, "StartTime=now", "Duration=UNLIMITED")
    except SchedulerRefused:
        if not exists(commands, name):
            raise
        commands("scontrol", "update", *what)
    try:
        commands("scontrol", "update", f"JobId={job_id}", f"ReservationName={name}")
    except SchedulerRefused:
        with contextlib.suppress(SchedulerRefused):
            commands("scontrol", "delete", f"ReservationName={name}")
        raise


def unbind(commands: Commands, job_id: str) -> None:
    """Takes the job out, pending or running (it runs on), and deletes the reservation. No error where there is none.

    In this order: Slurm does not delete a reservation that a job is in.
    """
    name = name_of(job_id)
    # Refused where the job has ended. If it has not, the next command says that the reservation is in use.
    with contextlib.suppress(SchedulerRefused):
        commands("scontrol", "update", f"JobId={job_id}", "ReservationName=")
    try:
        commands("scontrol", "delete", f"ReservationName={name}")
    except SchedulerRefused:
        if exists(commands, name):
            raise
