"""Slurm's reasons why a job is pending: would more nodes start it, and what would?

The names are those that squeue prints (job_state_reason in Slurm's source), 22.05 to 26.05. A reason that is not in
the table does not count: a limit that burstd does not know must not boot machines for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PendingReason:
    """What a reason means for demand."""

    needs_nodes: bool
    """True where more nodes may start the job."""
    text: str
    """What it waits for, for a person."""
    remedy: str = ""
    """What would help; empty: nothing needs to be done."""


_NODES = PendingReason(True, "waiting for nodes")
_RELEASE = "scontrol release JOBID"
LIMIT_REMEDY = "raise the limit, or wait until running jobs end"

PENDING_REASONS: dict[str, PendingReason] = {
    "": _NODES,
    "None": _NODES,
    "Resources": _NODES,
    "Priority": _NODES,
    "ReqNodeNotAvail": _NODES,
    "NodeDown": _NODES,
    "Nodes_required_for_job_are_DOWN": _NODES,
    "SchedDefer": _NODES,
    # Whether nodes are started for these says the data of the job: see input_deadlines.py.
    "BurstBufferStageIn": PendingReason(False, "its input is being staged in"),
    "BurstBufferResources": PendingReason(False, "stage-in of its input has not started"),
    "BurstBufferStageOut": PendingReason(False, "its output is being staged out"),
    "BurstBufferOperation": PendingReason(False, "a burst buffer operation failed", "see scontrol show job JOBID"),
    "JobHeldUser": PendingReason(False, "held by its user", _RELEASE),
    "JobHeldAdmin": PendingReason(False, "held by an administrator", _RELEASE + " (as administrator)"),
    "JobHoldMaxRequeue": PendingReason(False, "held after too many requeues", _RELEASE),
    "JobLaunchFailure": PendingReason(
        False, "held because its launch failed", f"see slurmctld's log, then {_RELEASE} (as administrator)"
    ),
    "ReservationDeleted": PendingReason(False, "held because its reservation was deleted", _RELEASE),
    "BeginTime": PendingReason(False, "begin time not reached (two minutes after a requeue)"),
    "Dependency": PendingReason(False, "depends on another job"),
    "DependencyNeverSatisfied": PendingReason(
        False, "its dependency cannot be met", "cancel it or change its dependency"
    ),
    "Cleaning": PendingReason(False, "its last run is still being cleaned up"),
    "Prolog": PendingReason(False, "PrologSlurmctld is still running"),
    "Licenses": PendingReason(False, "waiting for a licence", "wait until a job releases the licence"),
    "LicensesReserved": PendingReason(False, "the requested licences are reserved"),
    "JobArrayTaskLimit": PendingReason(False, "the array's % throttle is reached"),
    "Reservation": PendingReason(False, "waiting for its reservation"),
    "PartitionDown": PendingReason(False, "its partition is down", "scontrol update partitionname=NAME state=up"),
    "PartitionInactive": PendingReason(
        False, "its partition is inactive", "scontrol update partitionname=NAME state=up"
    ),
    "PartitionNodeLimit": PendingReason(False, "more nodes requested than the partition allows", "request fewer nodes"),
    "PartitionTimeLimit": PendingReason(False, "more time requested than the partition allows", "request less time"),
    "PartitionConfig": PendingReason(False, "the partition cannot meet the request", "see scontrol show partition"),
    "BadConstraints": PendingReason(False, "Slurm cannot meet its constraints", "change the request"),
    "FrontEndDown": PendingReason(False, "no front end is up"),
    "InvalidAccount": PendingReason(False, "its account is not valid", "give it a valid account"),
    "InvalidQOS": PendingReason(False, "its QOS is not valid", "give it a valid QOS"),
    "AccountNotAllowed": PendingReason(
        False, "its account may not use the partition", "use another account or partition"
    ),
    "QOSNotAllowed": PendingReason(False, "its QOS may not use the partition", "use another QOS or partition"),
    "AccountingPolicy": PendingReason(False, "blocked by an accounting limit", LIMIT_REMEDY),
    "MaxMemPerLimit": PendingReason(False, "more memory requested than the partition allows", "request less memory"),
    "MaxPoweredUpNodes": PendingReason(False, "Slurm's limit of powered-up nodes is reached", "raise it in slurm.conf"),
    "PowerNotAvail": PendingReason(False, "blocked by Slurm's power cap"),
    "PowerReserved": PendingReason(False, "blocked by Slurm's power cap"),
    "FedJobLock": PendingReason(False, "locked by another cluster of the federation"),
    "DeadLine": PendingReason(False, "its deadline cannot be met"),
    "InactiveLimit": PendingReason(False, "the inactive limit is reached"),
    "SystemFailure": PendingReason(False, "Slurm failed to handle it", "see slurmctld's log"),
}

REFUSED_REQUESTS = frozenset({"PartitionConfig", "PartitionNodeLimit"})
"""What no node of the partition has, or more nodes than it allows: a job that asks for something else may start."""

_PREFIXES: tuple[tuple[str, PendingReason], ...] = (
    ("Assoc", PendingReason(False, "blocked by a limit of its association", LIMIT_REMEDY)),
    ("QOS", PendingReason(False, "blocked by a limit of its QOS", LIMIT_REMEDY)),
    ("Max", PendingReason(False, "blocked by a limit of its account", LIMIT_REMEDY)),
)

_MAINTENANCE = PendingReason(
    False, "would run into a maintenance reservation", "request less time, or wait until it is over"
)


def is_limit(reason: str) -> bool:
    """Whether it is a limit on what runs, which ends of jobs or an administrator lift."""
    return pending_reason(reason).remedy == LIMIT_REMEDY


def pending_reason(reason: str) -> PendingReason:
    """What a pending reason means. Parentheses around it and detail after a comma are Slurm's, and may be there."""
    bare = reason.strip("() ")
    name, _, detail = bare.partition(",")
    if "maintenance" in detail.lower():
        return _MAINTENANCE
    known = PENDING_REASONS.get(name)
    if known is not None:
        return known
    for prefix, found in _PREFIXES:
        if name.startswith(prefix):
            return found
    return PendingReason(False, f"unknown Slurm reason: {bare}")
