"""Puts a record right that was written by a clock that ran ahead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import delete, or_, select, update

from burstd.db.codec import claim_columns, claim_field_to_json, claim_from_row, to_json_text
from burstd.db.repositories.stagings import StagingRecords
from burstd.db.tables import BREAKER, CLAIM, DRAINED_SLOT, EVENT, LAUNCH_REQUEST, REMARK, SCALE_OVERRIDE, STAGING
from burstd.domain.claim import Claim

_CLAIM = ("created", "since", "launch_called", "billed_from", "billed_until", "opened")
_STAGING = ("created", "since", "staged", "estimated_ready")
_REST = ((LAUNCH_REQUEST, "recorded"), (DRAINED_SLOT, "since"), (REMARK, "since"), (REMARK, "written"),
         *((STAGING, name) for name in _STAGING))  # fmt: skip


class TimeRepair(StagingRecords):
    """Shifts times that a clock wrote while it was ahead."""

    def shift_late_times(self, true_time: float, ahead_s: float) -> int:
        """Shifts all times after ``true_time`` back by ``ahead_s`` seconds, and books the cost of ended claims anew.

        A clock that was ahead by ``ahead_s`` wrote these times. Events are shifted too, so a replay still gives the
        rows. Returns the number of changed claims. Times that Slurm wrote stay.
        """
        with self._writing() as connection:
            late = or_(*(CLAIM.c[name] > true_time for name in _CLAIM))
            claims = [claim_from_row(row) for row in connection.execute(select(CLAIM).where(late)).mappings()]
            for before in claims:
                after = _earlier(before, true_time, ahead_s)
                changed = {name: claim_field_to_json(name, getattr(after, name)) for name in _CLAIM}
                connection.execute(update(CLAIM).where(CLAIM.c.id == before.id).values(**claim_columns(changed)))
                self._book_claim(connection, before, after)
            events = connection.execute(select(EVENT.c.seq, EVENT.c.time, EVENT.c.data).where(EVENT.c.time > true_time))
            for seq, time, data in events.all():
                values = {
                    "time": time - ahead_s,
                    "data": to_json_text(_shifted_data(json.loads(data), true_time, ahead_s)),
                }
                connection.execute(update(EVENT).where(EVENT.c.seq == seq).values(**values))
            for table, name in _REST:
                column = table.c[name]
                connection.execute(update(table).where(column > true_time).values({name: column - ahead_s}))
            pins = update(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.created > true_time)
            connection.execute(
                pins.values(created=SCALE_OVERRIDE.c.created - ahead_s, until=SCALE_OVERRIDE.c.until - ahead_s)
            )
            # They only say when something is tried again.
            connection.execute(delete(BREAKER).where(BREAKER.c.until > true_time))
            self._drop_caches()
            self._log(
                connection,
                self._entry(
                    "daemon",
                    "",
                    "clock",
                    f"times after the system's were {ahead_s:.0f} s ahead and are put right",
                    "clock",
                    {},
                ),
            )
            return len(claims)


def _earlier(claim: Claim, limit: float, by: float) -> Claim:
    times = {name: value - by for name in _CLAIM if (value := getattr(claim, name)) is not None and value > limit}
    return replace(claim, **times)


def _shifted_data(data: Mapping[str, Any], limit: float, by: float) -> dict[str, Any]:
    """The data of an event: the fields of a claim or a staging that it holds."""
    names = {*_CLAIM, *_STAGING}
    return {
        key: {n: v - by if n in names and isinstance(v, float | int) and v > limit else v for n, v in value.items()}
        if key in ("claim", "staging", "set") and isinstance(value, dict) else value
        for key, value in data.items()
    }  # fmt: skip
