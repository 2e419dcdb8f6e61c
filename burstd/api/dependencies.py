"""What every API route shares: the caller, the daemon, and refusals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from burstd.api.answers.base import CommandResultView
from burstd.api.auth import Authorizer, Caller
from burstd.api.backend import Backend
from burstd.domain.cloud.bounds import MAX_TIME_S
from burstd.domain.command import Command, CommandResult
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot

Timestamp = Annotated[float, Query(ge=0, le=MAX_TIME_S, allow_inf_nan=False)]
"""Seconds since 1970, in a question."""
ShortText = Annotated[str, Field(max_length=1000)]
MAX_RECORDS = 10_000
ListLimit = Annotated[int, Query(ge=0, le=MAX_RECORDS)]
"""Rows of a list that are wanted; 0: all."""
ListOffset = Annotated[int, Query(ge=0, le=1_000_000_000)]
"""Rows of a list that come before those."""


class RequestBody(BaseModel):
    """Base of what is sent: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class ApiError(Exception):
    """A refusal: its HTTP status, a sentence, and the known names where a name was not found."""

    def __init__(self, status: int, text: str, known: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.known = list(known)


def _resolve_caller(request: Request) -> Caller:
    authorizer: Authorizer = request.app.state.authorizer
    return authorizer.caller(request.scope["state"]["peer"])


async def _resolve_backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


CallerDep = Annotated[Caller, Depends(_resolve_caller)]
BackendDep = Annotated[Backend, Depends(_resolve_backend)]


def _require_admin(request: Request, caller: CallerDep) -> Caller:
    if not caller.admin:
        authorizer: Authorizer = request.app.state.authorizer
        raise ApiError(403, f"This is for {authorizer.admins_text()}; you are {caller.user}.")
    return caller


AdminDep = Annotated[Caller, Depends(_require_admin)]


def require_latest_loop(backend: Backend) -> tuple[Snapshot, Plan]:
    """The last loop's snapshot and plan; refused before the first loop."""
    latest = backend.latest_loop()
    if latest is None:
        raise ApiError(503, "burstd has just started and has not read Slurm and the clouds yet; try again soon.")
    return latest


def execute_command(backend: Backend, command: Command) -> CommandResult:
    """Queues a command and waits for its result; a refusal becomes an error."""
    result = backend.command(command)
    if not result.done:
        raise ApiError(409, result.text)
    return result


def command_answer(backend: Backend, command: Command) -> CommandResultView:
    """The same, as an answer."""
    return CommandResultView.from_fields(execute_command(backend, command))
