"""What administrators said, what policies remarked, what the daemon keeps between its lives; and the end of history."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, delete, insert, not_, select

from burstd.db.codec import storable_text
from burstd.db.events import REMARK_KEY, USER_KEY, claim_subject
from burstd.db.reader import DrainedSlot, has_prefix
from burstd.db.tables import (
    BREAKER,
    CLAIM,
    CLAIM_JOB,
    CLAIM_USER,
    DRAINED_SLOT,
    EVENT,
    LAUNCH_REQUEST,
    METADATA,
    REMARK,
    SCALE_OVERRIDE,
    USER_DATA,
)
from burstd.db.writer import StoreWriter, chunks
from burstd.domain.claim import ClaimState
from burstd.domain.clock import Clock
from burstd.domain.plugins.policy import Remark
from burstd.domain.snapshot import CircuitBreaker, Pin

NUMBERS_ONLY_INTERVAL_S = 60.0
"""Remarks that differ in numbers only ('waits for 31 s') are written again no more often than this."""
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class RemarksOnSubject:
    """The last remarks about one subject, each with since when it is so, and when they were last written."""

    remarks: tuple[tuple[Remark, float], ...]
    written: float


@dataclass(frozen=True, slots=True)
class RemarkChanges:
    """What is to be written: the subjects that changed, and the remarks that are new, each with the old verdict."""

    changed_subjects: dict[str, RemarksOnSubject]
    new_remarks: tuple[tuple[Remark, str], ...]


def _no_user(_: str) -> str:
    return ""


def _remark_data(user: str) -> dict[str, Any]:
    return {REMARK_KEY: True, USER_KEY: user} if user else {REMARK_KEY: True}


class OperationalRecords(StoreWriter):
    """Everything that is written and is no claim."""

    def __init__(self, url: URL, clock: Clock) -> None:
        super().__init__(url, clock)
        self._last_remarks: dict[str, RemarksOnSubject] | None = None

    def _drop_caches(self) -> None:
        self._last_remarks = None

    def set_metadata(self, key: str, value: str, by: str = "burstd", *, logged: bool = True) -> None:
        """Sets a single word about the cluster; an empty value takes it away. ``logged`` False: without an event."""
        with self._writing() as connection:
            old = str(connection.execute(select(METADATA.c.value).where(METADATA.c.key == key)).scalar() or "")
            if old == value:
                return
            connection.execute(delete(METADATA).where(METADATA.c.key == key))
            if value:
                connection.execute(insert(METADATA).values(key=key, value=value))
            if logged:
                self._log(connection, self._entry(f"meta:{key}", old, value, "", by, {}))

    def set_scale_override(self, pin: Pin) -> None:
        """``burstctl scale``. An exact pin replaces all pins of its pool, a floor or ceiling the exact one."""
        with self._writing() as connection:
            replaced = (pin.kind, "exact") if pin.kind != "exact" else ("exact", "floor", "ceiling")
            connection.execute(
                delete(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.pool == pin.pool, SCALE_OVERRIDE.c.kind.in_(replaced))
            )
            connection.execute(
                insert(SCALE_OVERRIDE).values(
                    pool=pin.pool, kind=pin.kind, nodes=pin.nodes, until=pin.until, by=pin.by, created=pin.created
                )
            )
            data = {"kind": pin.kind, "nodes": pin.nodes, "until": pin.until}
            self._log(
                connection, self._entry(f"pool:{pin.pool}", "", "pinned", f"{pin.kind} {pin.nodes}", pin.by, data)
            )

    def remove_scale_overrides(self, pool: str, by: str) -> int:
        """Takes all pins of a pool back; returns how many there were."""
        with self._writing() as connection:
            gone = connection.execute(delete(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.pool == pool)).rowcount
            if gone:
                self._log(connection, self._entry(f"pool:{pool}", "pinned", "", "taken back", by, {}))
            return gone

    def expire_scale_overrides(self) -> tuple[Pin, ...]:
        """Removes pins whose time is over; returns them."""
        now = self._clock.now()
        with self._writing() as connection:
            rows = connection.execute(select(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.until <= now)).mappings().all()
            if not rows:
                return ()
            connection.execute(delete(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.until <= now))
            over = tuple(Pin(r["pool"], r["nodes"], r["kind"], r["until"], r["by"], r["created"]) for r in rows)
            self._log(
                connection,
                *(
                    self._entry(f"pool:{p.pool}", "pinned", "", f"{p.kind} {p.nodes} is over", "timer", {})
                    for p in over
                ),
            )
            return over

    def drain_slots(self, slots: Collection[str], by: str, reason: str) -> tuple[str, ...]:
        """Keeps slots out of use; returns those that were not held before (the others keep who and why)."""
        now = self._clock.now()
        with self._writing() as connection:
            known = set(connection.execute(select(DRAINED_SLOT.c.slot)).scalars())
            new = tuple(sorted(set(slots) - known))
            if new:
                why = storable_text(reason)
                connection.execute(
                    insert(DRAINED_SLOT), [{"slot": s, "by": by, "reason": why, "since": now} for s in new]
                )
                self._log(connection, *(self._entry(f"slot:{s}", "", "held", reason, by, {}) for s in new))
            return new

    def undrain_slots(self, slots: Collection[str], by: str) -> tuple[DrainedSlot, ...]:
        """Lets slots back into use; returns those that were held."""
        wanted = set(slots)
        with self._writing() as connection:
            rows = connection.execute(select(DRAINED_SLOT).order_by(DRAINED_SLOT.c.slot)).mappings().all()
            freed = [DrainedSlot(r["slot"], r["by"], r["reason"], r["since"]) for r in rows if r["slot"] in wanted]
            for held in freed:
                connection.execute(delete(DRAINED_SLOT).where(DRAINED_SLOT.c.slot == held.slot))
            self._log(connection, *(self._entry(f"slot:{h.slot}", "held", "", "released", by, {}) for h in freed))
            return tuple(freed)

    def save_breaker(self, breaker: CircuitBreaker) -> None:
        """Writes a breaker, in place of the one with its key and cause."""
        with self._writing() as connection:
            same = (BREAKER.c.key == breaker.key, BREAKER.c.cause == breaker.cause)
            was = connection.execute(select(BREAKER.c.failures).where(*same)).scalar()
            connection.execute(delete(BREAKER).where(*same))
            error = storable_text(breaker.error)
            connection.execute(
                insert(BREAKER).values(
                    key=breaker.key, cause=breaker.cause, failures=breaker.failures, until=breaker.until, error=error
                )
            )
            data = {"failures": breaker.failures, "until": breaker.until}
            old = "" if was is None else "open"
            self._log(connection, self._entry(f"breaker:{breaker.key}", old, "open", error, breaker.cause, data))

    def clear_breakers(self, by: str, key: str = "", cause: str = "") -> int:
        """Removes breakers, all or those of a key (and cause); returns how many there were."""
        chosen = [c == v for c, v in ((BREAKER.c.key, key), (BREAKER.c.cause, cause)) if v]
        with self._writing() as connection:
            keys = connection.execute(select(BREAKER.c.key).where(*chosen)).scalars().all()
            connection.execute(delete(BREAKER).where(*chosen))
            self._log(connection, *(self._entry(f"breaker:{k}", "open", "", "cleared", by, {}) for k in keys))
            return len(keys)

    def record_remarks(self, remarks: Sequence[Remark], user_of: Callable[[str], str] = _no_user) -> int:
        """Writes the remarks of one decision where they differ from the last ones; returns how many are new.

        Each new one is an event of its subject: ``old`` and ``new`` are verdicts, ``cause`` is the policy.
        ``user_of`` gives the user of a job's subject (``job:123``), or an empty text: users may read remarks about
        their jobs after the job has left the queue.
        """
        now = self._clock.now()
        with self._writing() as connection:
            if self._last_remarks is None:
                self._last_remarks = _last_remarks(connection)
            found = remark_changes(remarks, self._last_remarks, now)
            for some in chunks(list(found.changed_subjects)):
                connection.execute(delete(REMARK).where(REMARK.c.subject.in_(some)))
            rows = [
                {"subject": subject, "position": i, "by": r.by, "verdict": r.verdict, "reason": storable_text(r.reason),
                 "since": since, "written": said.written}
                for subject, said in found.changed_subjects.items()
                for i, (r, since) in enumerate(said.remarks)
            ]  # fmt: skip
            if rows:
                connection.execute(insert(REMARK), rows)
            self._log(
                connection,
                *(
                    self._entry(r.subject, old, r.verdict, r.reason, r.by, _remark_data(user_of(r.subject)))
                    for r, old in found.new_remarks
                ),
            )
            self._last_remarks.update(found.changed_subjects)
            return len(found.new_remarks)

    def purge(self, before: float) -> int:
        """Forgets what ended before ``before``: GONE claims with all that hangs on them, old events and remarks.

        Live claims keep all their events, so that a replay always gives the rows. Returns the number of claims.
        """
        with self._writing() as connection:
            old = (CLAIM.c.state == ClaimState.GONE.value, CLAIM.c.since < before)
            ids = connection.execute(select(CLAIM.c.id).where(*old)).scalars().all()
            for some in chunks(ids):
                subjects = [claim_subject(i) for i in some]
                connection.execute(delete(EVENT).where(EVENT.c.subject.in_(subjects)))
                for table in (CLAIM_JOB, CLAIM_USER, LAUNCH_REQUEST):
                    connection.execute(delete(table).where(table.c.claim_id.in_(some)))
                connection.execute(delete(CLAIM).where(CLAIM.c.id.in_(some)))
            connection.execute(delete(USER_DATA).where(USER_DATA.c.digest.not_in(select(LAUNCH_REQUEST.c.user_data))))
            connection.execute(
                delete(EVENT).where(
                    EVENT.c.time < before, *(not_(has_prefix(EVENT.c.subject, kind)) for kind in ("claim:", "stage:"))
                )
            )
            connection.execute(delete(REMARK).where(REMARK.c.written < before))
            self._last_remarks = None
            if ids:
                self._log(connection, self._entry("daemon", "", "purged", f"{len(ids)} claims", "timer", {}))
            return len(ids)


def _last_remarks(connection: Connection) -> dict[str, RemarksOnSubject]:
    said: dict[str, RemarksOnSubject] = {}
    for r in connection.execute(select(REMARK).order_by(REMARK.c.subject, REMARK.c.position)).mappings():
        before = said[r["subject"]].remarks if r["subject"] in said else ()
        remark = Remark(r["by"], r["subject"], r["verdict"], r["reason"])
        said[r["subject"]] = RemarksOnSubject((*before, (remark, r["since"])), r["written"])
    return said


def remark_changes(remarks: Sequence[Remark], last: dict[str, RemarksOnSubject], now: float) -> RemarkChanges:
    """Compares the remarks of one decision with the last ones; subjects that are not mentioned stay as they were.

    Remarks that differ in numbers only are not new, and are written at most once in NUMBERS_ONLY_INTERVAL_S:
    thousands of waiting jobs would fill the log with their ages.
    """
    by_subject: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_subject.setdefault(remark.subject, []).append(remark)
    changed: dict[str, RemarksOnSubject] = {}
    new_remarks: list[tuple[Remark, str]] = []
    for subject, current in by_subject.items():
        before = last.get(subject)
        if before is None:
            changed[subject] = RemarksOnSubject(tuple((r, now) for r in current), now)
            new_remarks += [(r, "") for r in current]
            continue
        if [r for r, _ in before.remarks] == current:
            continue
        since = {_without_numbers(r): s for r, s in before.remarks}
        new = [r for r in current if _without_numbers(r) not in since]
        same = not new and len({_without_numbers(r) for r in current}) == len(since)
        if same and now - before.written < NUMBERS_ONLY_INTERVAL_S:
            continue
        verdicts = {r.by: r.verdict for r, _ in before.remarks}
        changed[subject] = RemarksOnSubject(tuple((r, since.get(_without_numbers(r), now)) for r in current), now)
        new_remarks += [(r, verdicts.get(r.by, "")) for r in new]
    return RemarkChanges(changed, tuple(new_remarks))


def _without_numbers(remark: Remark) -> tuple[str, str, str]:
    return remark.by, remark.verdict, _DIGITS.sub("0", remark.reason)
