"""The routes that change something, for administrators. Each becomes one command to the deciding thread."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from burstd.api.answers.plan import plan_view
from burstd.api.answers.types import DoneView, PlanView
from burstd.api.backend import Office
from burstd.api.dependencies import Admin, Daemon, Denied, looked
from burstd.domain.cloud.offer import Pool
from burstd.domain.command import (
    ClearPin,
    Command,
    CommandResult,
    Confirm,
    HoldSlot,
    Pause,
    PlanNow,
    ReleaseSlot,
    Reload,
    Resume,
    SetPin,
)
from burstd.domain.snapshot import Snapshot
from burstd.slurm.hostlist import HostlistError, expand

TEN_YEARS_S = 10 * 366 * 86400.0
Words = Annotated[str, Field(max_length=1000)]

router = APIRouter(prefix="/v1")


class Wish(BaseModel):
    """Base of what is sent: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class PinWish(Wish):
    """``burstctl scale``; ``for_s`` None: until taken back."""

    nodes: int = Field(ge=0, le=1_000_000)
    kind: Literal["exact", "floor", "ceiling"] = "exact"
    for_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, allow_inf_nan=False)


class NodesWish(Wish):
    """Nodes as host lists, or claim ids."""

    nodes: list[Words] = Field(min_length=1, max_length=10_000)
    reason: Words = ""


class PauseWish(Wish):
    """``burstctl hold``."""

    reason: Words = Field(min_length=1)


@router.put("/pools/{pool}/pin")
def put_pin(pool: str, wish: PinWish, you: Admin, office: Daemon) -> DoneView:
    """Pins a pool's number of nodes."""
    found = _pool(pool, looked(office)[0])
    if wish.nodes > len(found.slots):
        raise Denied(422, f"Pool {pool} has {len(found.slots)} slots; {wish.nodes} nodes cannot be.")
    until = None if wish.for_s is None else office.now() + wish.for_s
    return done(office, SetPin(pool, wish.nodes, wish.kind, until, you.by))


@router.delete("/pools/{pool}/pin")
def delete_pin(pool: str, you: Admin, office: Daemon) -> DoneView:
    """Takes a pool's pins back."""
    snapshot, _ = looked(office)
    if all(pin.pool != pool for pin in snapshot.pins):
        _pool(pool, snapshot)
    return done(office, ClearPin(pool, you.by))


@router.post("/nodes/hold")
def post_hold_nodes(wish: NodesWish, you: Admin, office: Daemon) -> DoneView:
    """Drains nodes and keeps their slots out of use."""
    slots = _slots(wish.nodes, looked(office)[0], gone_too=False)
    return done(office, HoldSlot(slots, wish.reason or f"drained by {you.user}", you.by))


@router.post("/nodes/release")
def post_release_nodes(wish: NodesWish, you: Admin, office: Daemon) -> DoneView:
    """Lets drained nodes back into use."""
    return done(office, ReleaseSlot(_slots(wish.nodes, looked(office)[0], gone_too=True), you.by))


@router.put("/hold")
def put_hold(wish: PauseWish, you: Admin, office: Daemon) -> DoneView:
    """Boots nothing new and closes nothing that is wanted, until taken back."""
    return done(office, Pause(wish.reason, you.by))


@router.delete("/hold")
def delete_hold(you: Admin, office: Daemon) -> DoneView:
    """Takes the hold back."""
    return done(office, Resume(you.by))


@router.post("/confirm/{what}")
def post_confirm(what: Literal["record", "clock"], you: Admin, office: Daemon) -> DoneView:
    """Says that what burstd is in doubt about is right."""
    return done(office, Confirm(what, you.by))


@router.post("/reload")
def post_reload(you: Admin, office: Daemon) -> DoneView:
    """Reads the settings again."""
    return done(office, Reload(you.by))


@router.post("/plan")
def post_plan(you: Admin, office: Daemon) -> PlanView:
    """Looks afresh and says what the next loop would do; does nothing of it."""
    result = _result(office, PlanNow(you.by))
    if result.planned is None:
        raise Denied(503, result.text)
    return plan_view(*result.planned, office.now())


def done(office: Office, command: Command) -> DoneView:
    """Hands a command on and says what came of it; denied where it was refused."""
    result = _result(office, command)
    return DoneView(text=result.text, changed=result.changed)


def _result(office: Office, command: Command) -> CommandResult:
    result = office.command(command)
    if not result.done:
        raise Denied(409, result.text)
    return result


def _pool(name: str, snapshot: Snapshot) -> Pool:
    pool = snapshot.pools.get(name)
    if pool is None:
        raise Denied(404, f"There is no pool {name!r}; there are: {', '.join(snapshot.pools)}.", snapshot.pools)
    return pool


def _slots(names: list[str], snapshot: Snapshot, *, gone_too: bool) -> tuple[str, ...]:
    """The slots that host lists and claim ids name. ``gone_too``: also held ones that no pool has any more."""
    known = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    if gone_too:
        known |= snapshot.held_slots
    claims = {claim.id: claim.slot for claim in snapshot.claims}
    found: dict[str, None] = {}
    for text in names:
        try:
            for name in [text] if text in claims else expand(text):
                slot = claims.get(name, name)
                if slot not in known:
                    raise Denied(404, f"No pool has a node {name!r}.", sorted(known))
                found[slot] = None
        except HostlistError as error:
            raise Denied(422, f"{error}.") from None
    if not found:
        raise Denied(422, "No node is named.")
    return tuple(found)
