"""What places are known for, worked out anew where a machine came to something, on another day, or by another rule."""

from __future__ import annotations

from collections.abc import Mapping

from burstd.db import Store
from burstd.domain.machine_outcomes import DAY_S, BadPlaceRule, MachineOutcome, PlaceRecord
from burstd.planner.offers.bad_places import place_records


class PlaceHistory:
    """Asked in each loop. The answer is the same object while nothing changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made_from: tuple[Mapping[MachineOutcome, int], int, BadPlaceRule] | None = None
        self._records: Mapping[str, PlaceRecord] = {}

    def records(self, now: float, rule: BadPlaceRule) -> Mapping[str, PlaceRecord]:
        """By place, what is known of those where a machine was bad."""
        made_from = self._store.machine_outcomes(), int(now // DAY_S), rule
        if made_from != self._made_from:
            self._made_from, self._records = made_from, place_records(*made_from)
        return self._records
