"""What a head does only while it leads: it writes the record, and changes clouds and Slurm.

What was written down first is safe by the epoch of the write. The rest is done only by a head that is sure.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from burstd.db import Leadership, StoreError, StoreLocked
from burstd.db.database import database_url, is_sqlite
from burstd.domain.errors import BurstdError, OutcomeUnknown, SchedulerUnavailable
from burstd.domain.plugins.provider import Provider
from burstd.runtime.guarded_calls import Sure, guard_calls
from burstd.settings import Settings
from burstd.slurm.commands.run import CommandRunner

CHANGING_CALLS = (
    "launch", "terminate", "remove", "acknowledge", "open_route", "close_routes", "create_disk", "attach_disk",
    "detach_disk", "delete_disk",
)  # fmt: skip
"""Methods of Provider, and of the interfaces that a provider may have beside it, that change something in the cloud."""
_ASKING = frozenset({"squeue", "sinfo", "sacct", "sbatch"})
"""Commands of Slurm by which burstd changes nothing: it runs ``sbatch --test-only``."""


def lead(settings: Settings, settings_digest: str, version: str, stack: ExitStack) -> Leadership | None:
    """Leads the cluster, until the stack ends; None where the record is a file, whose lock is enough.

    Raises StoreLocked where another head leads, and other StoreError kinds.
    """
    if is_sqlite(database_url(settings.database)):
        return None
    leadership = Leadership.open(settings.database, settings.cluster, socket.gethostname())
    stack.callback(leadership.close)
    if not leadership.try_lead(settings_digest, version):
        leader = leadership.current()
        where = f" on {leader.holder}" if leader is not None else ""
        raise StoreLocked(f"Another burstd{where} writes to this PostgreSQL database; stop it first.")
    return leadership


def guard_provider(name: str, provider: Provider, sure: Sure) -> None:
    """From now on its calls that change something are made by a head that is sure, or raise OutcomeUnknown."""
    try:
        guard_calls(provider, CHANGING_CALLS, sure, OutcomeUnknown)
    except AttributeError:
        raise BurstdError(
            f"The plug-in of the provider {name} has __slots__, so that its calls cannot be kept from a head that "
            "no longer leads; take them out, or have the record in a file (daemon.database)."
        ) from None


def guard_commands(run: CommandRunner, sure: Sure) -> CommandRunner:
    """Runs Slurm's commands that change something for a head that is sure, or raises SchedulerUnavailable."""

    def guarded(
        argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        if argv[0] not in _ASKING and next((word for word in argv[1:] if not word.startswith("-")), "show") != "show":
            try:
                sure()
            except StoreError as error:
                raise SchedulerUnavailable(f"not asked: {error}") from error
        return run(argv, environment, timeout_s)

    return guarded
