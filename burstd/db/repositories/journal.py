"""The log, and what is journaled: claims and jobs' data, whose every change is a row and an event at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Select, Table, Update, bindparam, insert, select, update
from sqlmodel import Session

from burstd.db.codec import field_from_json, field_names, field_to_json, from_json, record_to_json, value_from_row
from burstd.db.errors import ChangeRefused, IllegalTransition, StaleState, UnknownClaim, UnknownStaging, UnknownVolume
from burstd.db.tables import CLAIM, EVENT, STAGING, VOLUME
from burstd.domain.claim import TRANSITIONS, Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.staging import STAGE_TRANSITIONS, StageState, Staging
from burstd.domain.volume import VOLUME_TRANSITIONS, Volume, VolumeState

V = TypeVar("V", Claim, Staging, Volume)

REMARK_KEY = "remark"
"""Key in the data of an event that is a remark: about a claim, it is no part of its life."""

USER_KEY = "user"
"""Key in the data of an event about a job: whose it is."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One entry of the log. ``time`` in burstd's own seconds since 1970."""

    seq: int
    time: float
    subject: str
    """``claim:ID``, ``stage:JOBID``, ``job:ID``, ``pool:NAME``, ``slot:NODE``, ``breaker:KEY``, ``meta:KEY`` ..."""
    old: str
    new: str
    reason: str
    cause: str
    """Who or what brought it about: ``burstd``, ``slurm``, ``demand``, a policy's name, ``user:alice`` ..."""
    data: Mapping[str, Any] = field(default_factory=dict)


class NewEvent(NamedTuple):
    """An entry to be logged; fields as in ``LoggedEvent``."""

    subject: str
    old: str = ""
    new: str = ""
    reason: str = ""
    cause: str = "burstd"
    data: Mapping[str, Any] = {}


# Kept: SQLAlchemy takes longer to put them together than to run them.
_LOG = insert(EVENT)


def log_events(session: Session, time: float, *events: NewEvent) -> None:
    """Appends to the log."""
    if events:
        session.connection().execute(_LOG, [{"time": time, **event._asdict()} for event in events])


class Change(NamedTuple, Generic[V]):
    """A value as it is on record, and what is to become of it."""

    before: V
    new: Any
    """Its state from now on."""
    reason: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class JournaledKind(Generic[V]):
    """How values of a type are journaled: where, under which names, and which transitions are allowed."""

    type: type[V]
    table: Table
    key: str
    """The field that is the key."""
    subject: str
    """Prefix of the subject of its events."""
    data_key: str
    """Key in the data of a first event, which holds the whole value."""
    noun: str
    """What messages call it, before its key."""
    transitions: Mapping[Any, frozenset[Any]]
    implied: Callable[[V, Any, float], Mapping[str, Any]]
    """Fields that follow from a transition (value, new state, time) where the caller does not say otherwise."""
    unknown: Callable[[str], ChangeRefused]


def _implied_by_claim_state(claim: Claim, new: ClaimState, now: float) -> Mapping[str, Any]:
    if new is ClaimState.IN_SERVICE and claim.in_service_from is None:
        return {"in_service_from": now}
    ends_bill = new is ClaimState.GONE and claim.billed_from is not None and claim.billed_until is None
    return {"billed_until": now} if ends_bill else {}


def _implied_by_stage_state(staging: Staging, new: StageState, now: float) -> Mapping[str, Any]:
    implied: dict[str, Any] = {}
    if new is StageState.WAITING:
        # What a job that starts over has not got yet.
        implied |= {"staged": 0.0, "estimated_ready": 0.0, "job_state": "", "exit_code": "", "outputs": {}}
        implied |= {"bytes_out": 0}
    if new is StageState.STAGED:
        implied["staged"] = now
    if staging.state is StageState.HELD and new is not StageState.CLEARED:
        implied |= {"error": "", "resume": "", "attempts": 0}
    return implied


def _implied_by_volume_state(volume: Volume, new: VolumeState, now: float) -> Mapping[str, Any]:
    ends_bill = new is VolumeState.GONE and volume.billed_from is not None
    return {"billed_until": now, "settled_until": now} if ends_bill else {}


CLAIMS = JournaledKind(
    Claim, CLAIM, "id", "claim:", "claim", "claim", TRANSITIONS, _implied_by_claim_state,
    lambda key: UnknownClaim(f"There is no claim {key!r} on record."),
)  # fmt: skip
STAGINGS = JournaledKind(
    Staging, STAGING, "job_id", "stage:", "staging", "the data of job", STAGE_TRANSITIONS, _implied_by_stage_state,
    lambda key: UnknownStaging(f"Job {key!r} has no data on record."),
)  # fmt: skip
VOLUMES = JournaledKind(
    Volume, VOLUME, "id", "volume:", "volume", "volume", VOLUME_TRANSITIONS, _implied_by_volume_state,
    lambda key: UnknownVolume(f"There is no volume {key!r} on record."),
)  # fmt: skip


class JournaledRepository(Generic[V]):
    """One table of values that have a state. Every change is guarded, and writes the row and its event in one session.

    ``changed`` is called with (before, after) of every change, in its transaction; before is None for a new value.
    """

    def __init__(
        self,
        kind: JournaledKind[V],
        clock: Clock,
        changed: Callable[[Session, Sequence[tuple[V | None, V]]], None] = lambda _session, _changes: None,
    ) -> None:
        self._kind: JournaledKind[V] = kind
        self._clock = clock
        self._changed: Callable[[Session, Sequence[tuple[V | None, V]]], None] = changed

    def insert(self, session: Session, values: Sequence[V], cause: str = "") -> list[V]:
        """Writes new values; returns them as a replay of the log gives them. Empty ``cause``: each claim's own."""
        plains = [record_to_json(value) for value in values]
        made = [from_json(self._kind.type, plain) for plain in plains]
        rows = [_columns({name: getattr(value, name) for name in field_names(self._kind.type)}) for value in made]
        session.connection().execute(insert(self._kind.table), rows)
        self._changed(session, [(None, value) for value in made])
        events = (
            NewEvent(self._kind.subject + plain[self._kind.key], "", plain["state"], plain["reason"],
                     cause or plain["cause"], {self._kind.data_key: plain})
            for plain in plains
        )  # fmt: skip
        log_events(session, self._clock.now(), *events)
        return made

    def transition(
        self, session: Session, key: str, old: Any, new: Any, reason: str, cause: str, fields: Mapping[str, Any]
    ) -> V:
        """Brings a value from ``old`` into ``new``, with any fields that change on the way; returns it.

        Raises StaleState, IllegalTransition, and the kind's error for an unknown key.
        """
        value = select_journaled(session.connection(), self._kind, key, lock=True)
        name = self._kind.noun[0].upper() + self._kind.noun[1:]
        if value.state is not old:
            raise StaleState(f"{name} {key} is {value.state.value}, not {old.value}; look again.")
        if new not in self._kind.transitions[old]:
            allowed = ", ".join(sorted(state.value for state in self._kind.transitions[old])) or "nothing"
            raise IllegalTransition(f"{name} {key} cannot go from {old.value} to {new.value}; allowed: {allowed}.")
        implied = self._kind.implied(value, new, self._clock.now())
        return self.change(session, value, new, reason, cause, {**implied, **fields})

    def update(self, session: Session, key: str, reason: str, cause: str, fields: Mapping[str, Any]) -> V:
        """Changes fields without a change of state; returns the value. Raises the kind's error for an unknown key."""
        value = select_journaled(session.connection(), self._kind, key, lock=True)
        return self.change(session, value, value.state, reason, cause, fields)

    def change(self, session: Session, before: V, new: Any, reason: str, cause: str, fields: Mapping[str, Any]) -> V:
        """Writes the row and its event, where anything differs; the caller has looked that it may."""
        return self.change_all(session, [Change(before, new, reason, fields)], cause)[0]

    def change_all(self, session: Session, wanted: Sequence[Change[V]], cause: str) -> list[V]:
        """Does what ``change`` does, for many values, each of them once."""
        kind, now = self._kind, self._clock.now()
        values, changed, events = list[V](), list[tuple[V | None, V]](), list[NewEvent]()
        rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for before, new, reason, fields in wanted:
            plain = {name: field_to_json(name, value) for name, value in fields.items()}
            changes = {name: field_from_json(kind.type, name, value) for name, value in plain.items()}
            changes = {name: value for name, value in changes.items() if value != getattr(before, name)}
            plain = {name: plain[name] for name in changes}
            if new is not before.state:
                changes |= {"state": new, "since": now, "reason": field_to_json("reason", reason)}
            elif not changes:
                values.append(before)
                continue
            key: str = getattr(before, kind.key)
            row = _columns(changes)
            rows.setdefault(tuple(row), []).append({_KEY: key, **row})
            values.append(replace(before, **changes))
            changed.append((before, values[-1]))
            data = {"set": plain} if plain else {}
            events.append(NewEvent(kind.subject + key, before.state.value, new.value, reason, cause, data))
        for some in rows.values():
            session.connection().execute(_update_by_key(kind.table, kind.key), some)
        if changed:
            self._changed(session, changed)
        log_events(session, now, *events)
        return values


def select_journaled(connection: Connection, kind: JournaledKind[V], key: str, *, lock: bool = False) -> V:
    """One value, locked to the end of the transaction where the database can. Raises the kind's error."""
    row = connection.execute(_select_by_key(kind.table, kind.key, lock), {_KEY: key}).mappings().one_or_none()
    if row is None:
        raise kind.unknown(key)
    return value_from_row(kind.type, row)


_KEY = "key_of_row"
"""No column may have the name of this parameter."""


@cache
def _select_by_key(table: Table, column: str, lock: bool) -> Select[Any]:
    query = select(table).where(table.c[column] == bindparam(_KEY))
    return query.with_for_update() if lock else query


@cache
def _update_by_key(table: Table, column: str) -> Update:
    return update(table).where(table.c[column] == bindparam(_KEY))


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """A claim's offer is found by its provider too."""
    return {**values, "provider": values["offer"].provider} if "offer" in values else dict(values)


def replay_claims(events: Iterable[LoggedEvent]) -> dict[str, Claim]:
    """The claims that follow from the log, by id; events of other subjects, and remarks, are passed over.

    The first event of a claim holds all of it (``data["claim"]``), a later one the fields that changed. Raises
    ValueError where the log has a hole: a claim without its first event, or a move from a state it was not in.
    """
    return _replay(CLAIMS, events)


def replay_stagings(events: Iterable[LoggedEvent]) -> dict[str, Staging]:
    """The data of jobs that follows from the log, by job id, as ``replay_claims`` does it for claims.

    A first event (``data["staging"]``) of a job that is known replaces it: the id came again. Raises ValueError.
    """
    return _replay(STAGINGS, events)


def replay_volumes(events: Iterable[LoggedEvent]) -> dict[str, Volume]:
    """The volumes that follow from the log, by id, as ``replay_claims`` does it for claims. Raises ValueError."""
    return _replay(VOLUMES, events)


def _replay(kind: JournaledKind[V], events: Iterable[LoggedEvent]) -> dict[str, V]:
    values: dict[str, V] = {}
    for event in sorted(events, key=lambda e: e.seq):
        key = event.subject.removeprefix(kind.subject)
        if key == event.subject or REMARK_KEY in event.data:
            continue
        if kind.data_key in event.data:
            values[key] = from_json(kind.type, event.data[kind.data_key])
            continue
        value = values.get(key)
        if value is None or value.state != event.old:
            was = "unknown" if value is None else value.state
            raise ValueError(f"event {event.seq} takes {kind.noun} {key} out of {event.old}, but it is {was} by then.")
        plain = dict(event.data.get("set", {}))
        if event.old != event.new:
            plain |= {"state": event.new, "since": event.time, "reason": event.reason}
        values[key] = replace(value, **{n: field_from_json(kind.type, n, field) for n, field in plain.items()})
    return values


def claim_subject(claim_id: str) -> str:
    """The subject under which a claim's events are logged."""
    return CLAIMS.subject + claim_id


def volume_subject(volume_id: str) -> str:
    """The subject under which a volume's events are logged."""
    return VOLUMES.subject + volume_id


def stage_subject(job_id: str) -> str:
    """The subject under which the events of a job's data are logged."""
    return STAGINGS.subject + job_id
