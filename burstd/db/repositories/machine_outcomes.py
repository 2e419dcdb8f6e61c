"""What came of past machines, counted by place, image and day from the claims on record, and kept in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from burstd.db.reader import has_prefix
from burstd.db.tables import CLAIM, EVENT
from burstd.domain.claim import Claim
from burstd.domain.machine_outcomes import MachineOutcome, machine_outcome

PLACE = "place:"
"""How the subject of an event about a place begins."""
FORGOTTEN = "forgotten"
"""The event after which older machines of its place do not count."""
_FIELDS = ("offer", "image", "state", "error", "created", "since", "in_service_from", "reused_from")
_COLUMNS = tuple(CLAIM.c[name] for name in _FIELDS)


class MachineOutcomes:
    """Read once, then kept up to date with each change of a claim; there are as many as places, images and days."""

    def __init__(self) -> None:
        self._counts: Counter[MachineOutcome] | None = None
        self._forgotten_at: dict[str, float] = {}

    def forget(self) -> None:
        """What is kept in memory may not be in the database any more."""
        self._counts = None

    def counts(self, connection: Connection) -> dict[MachineOutcome, int]:
        """How many machines came to each."""
        if self._counts is None:
            last = select(EVENT.c.subject, func.max(EVENT.c.time)).where(has_prefix(EVENT.c.subject, PLACE))
            places = last.where(EVENT.c.new == FORGOTTEN).group_by(EVENT.c.subject)
            self._forgotten_at = {s.removeprefix(PLACE): at for s, at in connection.execute(places).all()}
            outcomes = (self._outcome(*row) for row in connection.execute(select(*_COLUMNS)))
            self._counts = Counter(outcome for outcome in outcomes if outcome is not None)
        return dict(self._counts)

    def note_changes(self, changes: Sequence[tuple[Claim | None, Claim]]) -> None:
        """Claims before (None: it is new) and after a change."""
        if self._counts is None:
            return
        for before, after in changes:
            was, now = self._outcome_of(before), self._outcome_of(after)
            if was != now:
                self._counts.update([now] if now is not None else ())
                self._counts.subtract([was] if was is not None else ())
                self._counts = +self._counts

    def _outcome_of(self, claim: Claim | None) -> MachineOutcome | None:
        return self._outcome(*(getattr(claim, name) for name in _FIELDS)) if claim is not None else None

    def _outcome(self, *fields: object) -> MachineOutcome | None:
        *about, reused_from = fields
        # One that was handed over counted as the node that it was.
        found = machine_outcome(*about) if not reused_from else None  # type: ignore[arg-type]
        if found is None or found[1] <= self._forgotten_at.get(found[0].place, 0.0):
            return None
        return found[0]
