"""The record: the only room that speaks to the database. Claims, jobs' data, events, pins, remarks, the bill."""

from burstd.db.backup import RESTORED, backup, restore
from burstd.db.errors import (
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
from burstd.db.events import USER, Event, claim_subject, replay, replay_stagings, stage_subject
from burstd.db.reader import Held, Noted, Reader
from burstd.db.repositories.bill import BillLine
from burstd.db.repositories.claims import ClaimFields, Store
from burstd.db.repositories.stagings import StagingFields

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
