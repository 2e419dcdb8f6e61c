"""What comes of a fault of a node that runs jobs: NVIDIA's Xids, each with its verdict. Every verdict is made here.

A node decides by itself, so that it does without burstd: scripts/kernel_log.sh reads the same table (``xid_table``).

Sources: "immediate action" of https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (Ampere and newer);
for Xid 154, whose text names the action, the same page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

HEALTH = "health"
"""Error of a claim whose machine had a fault at work, and cause of the runs that were cut short for it."""


class Verdict(StrEnum):
    """What is to be done about a fault, from the mildest."""

    IGNORE = "ignore"
    NOTE = "note"
    """Written down on the node."""
    CLOSE_WHEN_IDLE = "close_when_idle"
    """As DRAIN: a drained node of Slurm is one that closes when it is idle."""
    DRAIN = "drain"
    """No new job; those that run may end; then another machine."""
    REQUEUE = "requeue"
    """No new job; those that run begin anew on another machine."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Xids of one immediate action of NVIDIA's."""

    action: str
    verdict: Verdict
    xids: tuple[int, ...]


BUCKETS: tuple[Bucket, ...] = (
    Bucket("RESTART_BM", Verdict.REQUEUE, (79,)),
    Bucket("RESTART_VM", Verdict.REQUEUE, (151,)),
    Bucket(
        "RESET_GPU",
        Verdict.DRAIN,
        (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    ),
    # An error of two bits, and one of NVLink: they have ways of their own, which end in a reset.
    Bucket("WORKFLOW_XID_48", Verdict.DRAIN, (48,)),
    Bucket("WORKFLOW_NVLINK_ERR", Verdict.DRAIN, (74,)),
    # Memory was, or is about to be, mapped anew, which a reset completes.
    Bucket("IGNORE", Verdict.CLOSE_WHEN_IDLE, (63, 92)),
    Bucket(
        "IGNORE",
        Verdict.NOTE,
        (14, 37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161),
    ),
    Bucket(
        "RESTART_APP",
        Verdict.NOTE,
        (8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94,
         *range(96, 106), *range(126, 136), 139),
    ),
    Bucket("CHECK_MECHANICALS", Verdict.NOTE, (54,)),
    # NVLink of Blackwell: Xid 154, which comes with them, says what is to be done.
    Bucket("WORKFLOW_NVLINK5_ERR", Verdict.NOTE, (*range(144, 151),)),
    # A channel is taken down after another Xid, or with its job.
    Bucket("WORKFLOW_XID_45", Verdict.IGNORE, (45,)),
)  # fmt: skip
XIDS: Mapping[int, Verdict] = {xid: bucket.verdict for bucket in BUCKETS for xid in bucket.xids}
FELL_OFF_THE_BUS = 79
RECOVERY_ACTION = 154
"""``GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)``: its text is believed."""
MAX_XID = 99999
"""What scripts/kernel_log.sh takes for a number."""


def xid_verdict(xid: int, text: str, own: Mapping[int, Verdict]) -> Verdict:
    """What comes of an Xid. ``text``: what follows its number; ``own``: the site's, which stand before NVIDIA's.

    One without an action is a note. What was found before makes no difference: the worst verdict of a node holds, and
    nothing takes it back.
    """
    if xid in own:
        return own[xid]
    if xid == RECOVERY_ACTION:
        action = text.rpartition(" to ")[2]
        return next((verdict for word, verdict in _RECOVERIES if word in action), Verdict.NOTE)
    return XIDS.get(xid, Verdict.NOTE)


_RECOVERIES = (("Reboot", Verdict.REQUEUE), ("Reset", Verdict.DRAIN), ("Drain", Verdict.DRAIN))
"""Words of Xid 154, the first that is there; ``None``, and any other, is a note."""


def xid_table(own: Mapping[int, Verdict]) -> str:
    """The line by which a node decides: ``NUMBER=VERDICT ...``. What it lacks is a note, and 154 goes by its text."""
    table = {xid: verdict for xid, verdict in {**XIDS, **own}.items() if verdict is not Verdict.NOTE or xid in own}
    return " ".join(f"{xid}={verdict}" for xid, verdict in sorted(table.items()))
