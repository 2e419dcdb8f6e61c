"""The record: the only room that speaks to the database. Claims, jobs' data, events, pins, remarks, the bill."""

from burstd.store.backup import RESTORED, backup, restore
from burstd.store.errors import (
    IllegalMove,
    Refused,
    SlotTaken,
    StagingExists,
    StaleState,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
    UnknownClaim,
    UnknownStaging,
)
from burstd.store.event import USER, Event, claim_subject, replay, replay_stagings, stage_subject
from burstd.store.money import BillLine
from burstd.store.reader import Held, Noted, Reader
from burstd.store.stagings import StagingFields
from burstd.store.store import ClaimFields, Store

__all__ = [
    "RESTORED",
    "USER",
    "BillLine",
    "ClaimFields",
    "Event",
    "Held",
    "IllegalMove",
    "Noted",
    "Reader",
    "Refused",
    "SlotTaken",
    "StagingExists",
    "StagingFields",
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
    "UnknownStaging",
    "backup",
    "claim_subject",
    "replay",
    "replay_stagings",
    "restore",
    "stage_subject",
]
