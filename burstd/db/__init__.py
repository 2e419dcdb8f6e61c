"""The record: the only room that speaks to the database. Claims, jobs' data, events, pins, remarks, the bill."""

from burstd.db.backup import RESTORED_KEY, back_up_database, restore_database
from burstd.db.changes import ClaimFields, StagingFields, VolumeFields
from burstd.db.errors import (
    ChangeRefused,
    IllegalTransition,
    NotLeading,
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
    UnknownVolume,
    VolumeExists,
)
from burstd.db.leadership import HeadRow, LeaderRow, Leadership
from burstd.db.reader import NODE, NODE_FAULT, DrainedSlot, NodeFaults, RecordedRemark, StoreReader
from burstd.db.repositories.bill import BillLine
from burstd.db.repositories.charge_pages import ChargeLine, Cursor
from burstd.db.repositories.job_use import packed_figures
from burstd.db.repositories.journal import (
    USER_KEY,
    LoggedEvent,
    claim_subject,
    replay_claims,
    replay_stagings,
    replay_volumes,
    stage_subject,
    volume_subject,
)
from burstd.db.repositories.placed_runs import RunFilter
from burstd.db.store import Store

__all__ = [
    "NODE",
    "NODE_FAULT",
    "RESTORED_KEY",
    "USER_KEY",
    "BillLine",
    "ChangeRefused",
    "ChargeLine",
    "ClaimFields",
    "Cursor",
    "DrainedSlot",
    "HeadRow",
    "IllegalTransition",
    "LeaderRow",
    "Leadership",
    "LoggedEvent",
    "NodeFaults",
    "NotLeading",
    "RecordedRemark",
    "RunFilter",
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
    "UnknownVolume",
    "VolumeExists",
    "VolumeFields",
    "back_up_database",
    "claim_subject",
    "packed_figures",
    "replay_claims",
    "replay_stagings",
    "replay_volumes",
    "restore_database",
    "stage_subject",
    "volume_subject",
]
