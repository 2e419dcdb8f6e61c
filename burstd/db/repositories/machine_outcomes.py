"""What came of past machines, counted by place, image and day from the claims on record, and kept in memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Text, func, select, type_coerce

from burstd.db.database import has_prefix
from burstd.db.tables import CLAIM, EVENT
from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import place_name
from burstd.domain.machine_outcomes import MachineOutcome, machine_outcome

PLACE = "place:"
"""How the subject of an event about a place begins."""
FORGOTTEN = "forgotten"
"""The event after which older machines of its place do not count."""
_FIELDS = ("image", "state", "error", "created", "since", "in_service_from", "reused_from")
# The offer as it is written: making 100,000 values takes longer than all else.
_COLUMNS = (type_coerce(CLAIM.c.offer, Text).label("offer"), *(CLAIM.c[name] for name in _FIELDS))


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
            outcomes = map(self._outcome_of_row, connection.execute(select(*_COLUMNS)).mappings())
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
        if claim is None:
            return None
        return self._outcome(claim.offer.place, claim.offer.spot, {name: getattr(claim, name) for name in _FIELDS})

    def _outcome_of_row(self, row: RowMapping) -> MachineOutcome | None:
        offer = json.loads(row["offer"])
        place = place_name(*(offer[name] for name in ("provider", "region", "zone", "instance_type")))
        return self._outcome(place, offer["spot"], {name: row[name] for name in _FIELDS})

    def _outcome(self, place: str, spot: bool, fields: Mapping[str, Any]) -> MachineOutcome | None:
        found = machine_outcome(place, spot=spot, **fields)
        return found[0] if found is not None and found[1] > self._forgotten_at.get(place, 0.0) else None
