"""The record: the only room that speaks to the database. Claims, jobs' data, events, pins, remarks, the bill."""

from burstd.db.backup import RESTORED_KEY, back_up_database, restore_database
from burstd.db.errors import (
    ChangeRefused,
    IllegalTransition,
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
from burstd.db.reader import DrainedSlot, RecordedRemark, StoreReader
from burstd.db.repositories.bill import BillLine
from burstd.db.repositories.journal import (
    USER_KEY,
    LoggedEvent,
    claim_subject,
    replay_claims,
    replay_stagings,
    stage_subject,
)
from burstd.db.store import ClaimFields, StagingFields, Store

__all__ = [
    "RESTORED_KEY",
    "USER_KEY",
    "BillLine",
    "ChangeRefused",
    "ClaimFields",
    "DrainedSlot",
    "IllegalTransition",
    "LoggedEvent",
    "RecordedRemark",
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
    "StoreReader",
    "StoreUnavailable",
    "UnknownClaim",
    "UnknownStaging",
    "back_up_database",
    "claim_subject",
    "replay_claims",
    "replay_stagings",
    "restore_database",
    "stage_subject",
]
