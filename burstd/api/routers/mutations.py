"""The routes that change something, for administrators. Each becomes one command to the deciding thread."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from burstd.api.answers.plan import plan_view
from burstd.api.answers.types import CommandResultView, PlanView
from burstd.api.backend import Backend
from burstd.api.dependencies import AdminDep, ApiError, BackendDep, require_latest_loop
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import (
    ClearPin,
    Command,
    CommandResult,
    Confirm,
    DrainSlots,
    Pause,
    PlanNow,
    ReleaseSlots,
    Reload,
    Resume,
    SetPin,
)
from burstd.domain.snapshot import Snapshot
from burstd.slurm.hostlist import HostlistError, expand

TEN_YEARS_S = 10 * 366 * 86400.0
ShortText = Annotated[str, Field(max_length=1000)]

router = APIRouter(prefix="/v1")


class RequestBody(BaseModel):
    """Base of what is sent: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class PinRequest(RequestBody):
    """``burstctl scale``; ``for_s`` None: until taken back."""

    nodes: int = Field(ge=0, le=1_000_000)
    kind: Literal["exact", "floor", "ceiling"] = "exact"
    for_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, allow_inf_nan=False)


class NodesRequest(RequestBody):
    """Nodes as host lists, or claim ids."""

    nodes: list[ShortText] = Field(min_length=1, max_length=10_000)
    reason: ShortText = ""


class PauseRequest(RequestBody):
    """``burstctl hold``."""

    reason: ShortText = Field(min_length=1)


@router.put("/pools/{pool}/pin")
def put_pin(pool: str, body: PinRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Pins a pool's number of nodes."""
    found = _require_pool(pool, require_latest_loop(backend)[0])
    if body.nodes > len(found.slots):
        raise ApiError(422, f"Pool {pool} has only {len(found.slots)} slots, not {body.nodes}.")
    until = None if body.for_s is None else backend.now() + body.for_s
    return execute_command(backend, SetPin(pool, body.nodes, body.kind, until, caller.actor))


@router.delete("/pools/{pool}/pin")
def delete_pin(pool: str, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Takes a pool's pins back."""
    snapshot, _ = require_latest_loop(backend)
    if all(pin.pool != pool for pin in snapshot.pins):
        _require_pool(pool, snapshot)
    return execute_command(backend, ClearPin(pool, caller.actor))


@router.post("/nodes/hold")
def post_hold_nodes(body: NodesRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Drains nodes and keeps their slots out of use."""
    slots = _resolve_slots(body.nodes, require_latest_loop(backend)[0], include_removed=False)
    return execute_command(backend, DrainSlots(slots, body.reason or f"drained by {caller.user}", caller.actor))


@router.post("/nodes/release")
def post_release_nodes(body: NodesRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Lets drained nodes back into use."""
    return execute_command(
        backend,
        ReleaseSlots(_resolve_slots(body.nodes, require_latest_loop(backend)[0], include_removed=True), caller.actor),
    )


@router.put("/hold")
def put_hold(body: PauseRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Boots nothing new and closes nothing that is wanted, until taken back."""
    return execute_command(backend, Pause(body.reason, caller.actor))


@router.delete("/hold")
def delete_hold(caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Takes the hold back."""
    return execute_command(backend, Resume(caller.actor))


@router.post("/confirm/{what}")
def post_confirm(what: Literal["record", "clock"], caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Confirms the record or the clock that burstd doubts."""
    return execute_command(backend, Confirm(what, caller.actor))


@router.post("/reload")
def post_reload(caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Reads the settings again."""
    return execute_command(backend, Reload(caller.actor))


@router.post("/plan")
def post_plan(caller: AdminDep, backend: BackendDep) -> PlanView:
    """Takes a fresh snapshot and returns what the next loop would do; changes nothing."""
    result = _command_result(backend, PlanNow(caller.actor))
    if result.dry_run is None:
        raise ApiError(503, result.text)
    return plan_view(*result.dry_run, backend.now())


def execute_command(backend: Backend, command: Command) -> CommandResultView:
    """Queues a command and returns its result; a refusal becomes an error."""
    result = _command_result(backend, command)
    return CommandResultView(text=result.text, changed=result.changed)


def _command_result(backend: Backend, command: Command) -> CommandResult:
    result = backend.command(command)
    if not result.done:
        raise ApiError(409, result.text)
    return result


def _require_pool(name: str, snapshot: Snapshot) -> Pool:
    pool = snapshot.pools.get(name)
    if pool is None:
        raise ApiError(404, f"There is no pool {name!r}; there are: {', '.join(snapshot.pools)}.", snapshot.pools)
    return pool


def _resolve_slots(names: list[str], snapshot: Snapshot, *, include_removed: bool) -> tuple[str, ...]:
    """The slots that host lists and claim ids name. ``gone_too``: also held ones that no pool has any more."""
    known = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    if include_removed:
        known |= snapshot.drained_slots
    claims = {claim.id: claim.slot for claim in snapshot.claims}
    found: dict[str, None] = {}
    for text in names:
        try:
            for name in [text] if text in claims else expand(text):
                slot = claims.get(name, name)
                if slot not in known:
                    raise ApiError(404, f"No pool has a node {name!r}.", sorted(known))
                found[slot] = None
        except HostlistError as error:
            raise ApiError(422, f"{error}.") from None
    if not found:
        raise ApiError(422, "No node is named.")
    return tuple(found)
