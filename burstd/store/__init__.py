"""The record: the only room that speaks to the database. Claims, events, pins, remarks, the bill."""

from burstd.store.errors import (
    IllegalMove,
    Refused,
    SlotTaken,
    StaleState,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
    UnknownClaim,
)
from burstd.store.event import Event, claim_subject, replay
from burstd.store.money import BillLine
from burstd.store.reader import Held, Noted, Reader
from burstd.store.store import ClaimFields, Store

__all__ = [
    "BillLine",
    "ClaimFields",
    "Event",
    "Held",
    "IllegalMove",
    "Noted",
    "Reader",
    "Refused",
    "SlotTaken",
    "StaleState",
    "Store",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreNewer",
    "StoreReadOnly",
    "StoreUnavailable",
    "UnknownClaim",
    "claim_subject",
    "replay",
]
