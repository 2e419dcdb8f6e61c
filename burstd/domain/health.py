"""What comes of a fault of a node that runs jobs: NVIDIA's Xids and other findings. Every verdict is made here.

A node decides by itself, so that it does without burstd: scripts/kernel_log.sh and conditions.sh read the same table
(``verdict_table``).

Sources: "immediate action" of https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (Ampere and newer);
for Xid 154, whose text names the action, the same page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

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


USUALLY_DIFFERENT: Final = ("groups", "kernel", "nproc", "locale", "timezone", "gpu_pcie", "network_mounts")
"""Checks of new machines that only warn where the site does not choose."""


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


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that a node finds on itself, other than an Xid."""

    verdict: Verdict
    times: int
    """Found so often one after the other, at the interval of the checks; before that it is a note."""
    what: str
    """As docs/node-checks.md has it."""
    check: str = ""
    """The check of ``burstd.node.checks`` that looks for the same before a node opens."""
    of_machine: bool = True
    """False: it may come from a job or the site, and is no reason to avoid the machine's offer."""


FINDINGS: Mapping[str, Finding] = {
    "gpu_errors": Finding(
        Verdict.CLOSE_WHEN_IDLE, 1, "a GPU has memory errors that ECC could not correct, since the driver was loaded",
        "gpu_health",
    ),
    "gpu_remap_failed": Finding(Verdict.DRAIN, 1, "bad memory of a GPU cannot be replaced", "gpu_health"),
    "gpu_remap_pending": Finding(
        Verdict.CLOSE_WHEN_IDLE, 1, "bad memory of a GPU is in use until the GPU is reset", "gpu_health"
    ),
    "gpu_reset": Finding(Verdict.DRAIN, 1, "the driver wants a GPU reset, or the node restarted", "gpu_health"),
    "gpu_lost": Finding(Verdict.DRAIN, 2, "`nvidia-smi` shows fewer GPUs than when the watch began", "gpus"),
    "gpu_silent": Finding(Verdict.DRAIN, 3, "`nvidia-smi` fails, or does not answer within 20 s", "gpus"),
    "gpu_slow": Finding(
        Verdict.CLOSE_WHEN_IDLE, 15, "heat or the host's power holds down the clocks of a GPU", "gpu_clocks"
    ),
    "gpu_stranger": Finding(
        Verdict.NOTE, 10, "a process that is in no job's cgroup computes on a GPU; it is left alone", of_machine=False
    ),
    "disk_full": Finding(
        Verdict.CLOSE_WHEN_IDLE, 3, "less than 64 MiB, or no inode, is free in /tmp, /var or slurmd's spool", "disk",
        of_machine=False,
    ),
    "mount_lost": Finding(
        Verdict.CLOSE_WHEN_IDLE, 2, "a file system that was mounted when the watch began is not any more, or is broken",
        of_machine=False,
    ),
    "mount_silent": Finding(Verdict.NOTE, 1, "a mounted file system does not answer within 20 s", of_machine=False),
    "io_error": Finding(
        Verdict.CLOSE_WHEN_IDLE, 1, "the kernel reports an I/O error of a disk, or an error of ext4 or XFS on one"
    ),
    "slurmd_killed": Finding(
        Verdict.CLOSE_WHEN_IDLE, 1, "the kernel has killed slurmd for want of memory", of_machine=False
    ),
}  # fmt: skip
"""By name, what is looked for while jobs run."""


def finding_verdict(name: str, times: int, own: Mapping[str, Verdict]) -> Verdict:
    """What comes of a finding that was made so often one after the other. ``own``: the site's verdicts, by name."""
    verdict = own.get(name, FINDINGS[name].verdict)
    return verdict if times >= FINDINGS[name].times or verdict is Verdict.IGNORE else Verdict.NOTE


@dataclass(frozen=True, slots=True)
class HealthRules:
    """What a site says of faults of its nodes."""

    xids: Mapping[int, Verdict] = field(default_factory=dict)
    """Before NVIDIA's ..."""
    findings: Mapping[str, Verdict] = field(default_factory=dict)
    """... and before FINDINGS."""
    interval_s: int = 60
    """Between two looks at the GPUs, disks and mounts."""


def verdict_table(rules: HealthRules, lenient: Collection[str] = ()) -> str:
    """The line by which a node decides: ``NUMBER=VERDICT ... NAME=VERDICT:TIMES:WORD ... interval=SECONDS``.

    An Xid that it lacks is a note, and 154 goes by its text. ``lenient``: checks that a new machine may fail; what
    they look for is a note later as well, unless the site has a verdict of its own.
    """
    own = {name: Verdict.NOTE for name, finding in FINDINGS.items() if finding.check in lenient} | {**rules.findings}
    table = {
        xid: verdict
        for xid, verdict in {**XIDS, **rules.xids}.items()
        if verdict is not Verdict.NOTE or xid in rules.xids
    }
    return " ".join([
        *(f"{xid}={verdict}" for xid, verdict in sorted(table.items())),
        *(f"{n}={own.get(n, f.verdict)}:{f.times}:{fault_word(n)}" for n, f in FINDINGS.items()),
        f"interval={rules.interval_s}",
    ])  # fmt: skip


def fault_word(name: str) -> str:
    """How the reason of a node with this finding begins."""
    return "unhealthy" if FINDINGS[name].of_machine else "unusable"
