"""What every route of the control interface shares: who calls, the daemon, and how a no is put into words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Query, Request

from burstd.api.auth import Caller, Rights
from burstd.api.backend import Office
from burstd.domain.cloud.bounds import LAST_S
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot

Time = Annotated[float, Query(ge=0, le=LAST_S, allow_inf_nan=False)]
"""Seconds since 1970, in a question."""


class Denied(Exception):
    """A no, with its HTTP status, a sentence, and for what was not found the names that there are."""

    def __init__(self, status: int, text: str, known: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.known = list(known)


def _caller(request: Request) -> Caller:
    rights: Rights = request.app.state.rights
    return rights.caller(request.scope["state"]["peer"])


async def _office(request: Request) -> Office:
    found: Office = request.app.state.office
    return found


You = Annotated[Caller, Depends(_caller)]
Daemon = Annotated[Office, Depends(_office)]


def _admin(request: Request, you: You) -> Caller:
    if not you.admin:
        rights: Rights = request.app.state.rights
        raise Denied(403, f"This is for {rights.whom()}; you are {you.user}.")
    return you


Admin = Annotated[Caller, Depends(_admin)]


def looked(office: Office) -> tuple[Snapshot, Plan]:
    """The last loop's snapshot and plan; denied while there was none."""
    latest = office.latest()
    if latest is None:
        raise Denied(503, "burstd has just started and has not looked at Slurm and the clouds yet; try again soon.")
    return latest
