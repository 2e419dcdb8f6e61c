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


_NODES = PendingReason(True, "it waits for nodes")
_RELEASE = "scontrol release JOBID"
_LIMIT = "raise the limit, or wait until running jobs end"

PENDING_REASONS: dict[str, PendingReason] = {
    "": _NODES,
    "None": _NODES,
    "Resources": _NODES,
    "Priority": _NODES,
    "ReqNodeNotAvail": _NODES,
    "NodeDown": _NODES,
    "Nodes_required_for_job_are_DOWN": _NODES,
    "SchedDefer": _NODES,
    # Whether nodes are started for these says the data of the job: see inputs.py.
    "BurstBufferStageIn": PendingReason(False, "its input is being staged in"),
    "BurstBufferResources": PendingReason(False, "its input is not being staged in yet"),
    "BurstBufferStageOut": PendingReason(False, "its output is being staged out"),
    "BurstBufferOperation": PendingReason(
        False, "an operation of the burst buffer failed", "see scontrol show job JOBID"
    ),
    "JobHeldUser": PendingReason(False, "its user holds it", _RELEASE),
    "JobHeldAdmin": PendingReason(False, "an administrator holds it", _RELEASE + " (as administrator)"),
    "JobHoldMaxRequeue": PendingReason(False, "it is held after too many requeues", _RELEASE),
    "JobLaunchFailure": PendingReason(
        False, "it could not be launched and is held", "see slurmctld's log, then " + _RELEASE
    ),
    "ReservationDeleted": PendingReason(False, "its reservation was deleted and it is held", _RELEASE),
    "BeginTime": PendingReason(False, "its begin time has not come (after a requeue, two minutes)"),
    "Dependency": PendingReason(False, "it depends on another job"),
    "DependencyNeverSatisfied": PendingReason(
        False, "its dependency can never be met", "scancel it or change its dependency"
    ),
    "Cleaning": PendingReason(False, "it is being requeued and its last run is still cleaned up"),
    "Prolog": PendingReason(False, "its PrologSlurmctld still runs"),
    "Licenses": PendingReason(False, "it waits for a licence", "wait until a job gives the licence back"),
    "LicensesReserved": PendingReason(False, "the licences it asks for are reserved"),
    "JobArrayTaskLimit": PendingReason(False, "as many tasks of its array run as its % throttle allows"),
    "Reservation": PendingReason(False, "it waits for its reservation"),
    "PartitionDown": PendingReason(False, "its partition is down", "scontrol update partitionname=NAME state=up"),
    "PartitionInactive": PendingReason(
        False, "its partition is inactive", "scontrol update partitionname=NAME state=up"
    ),
    "PartitionNodeLimit": PendingReason(
        False, "it asks for more nodes than its partition allows", "ask for fewer nodes"
    ),
    "PartitionTimeLimit": PendingReason(False, "it asks for more time than its partition allows", "ask for less time"),
    "PartitionConfig": PendingReason(
        False, "its partition cannot give what it asks for", "see scontrol show partition"
    ),
    "BadConstraints": PendingReason(False, "Slurm says that its constraints cannot be met", "change what it asks for"),
    "FrontEndDown": PendingReason(False, "no front end is up"),
    "InvalidAccount": PendingReason(False, "its account is not valid", "give it a valid account"),
    "InvalidQOS": PendingReason(False, "its QOS is not valid", "give it a valid QOS"),
    "AccountNotAllowed": PendingReason(
        False, "its account may not use the partition", "use another account or partition"
    ),
    "QOSNotAllowed": PendingReason(False, "its QOS may not use the partition", "use another QOS or partition"),
    "AccountingPolicy": PendingReason(False, "a limit of accounting keeps it", _LIMIT),
    "MaxMemPerLimit": PendingReason(False, "it asks for more memory than the partition allows", "ask for less memory"),
    "MaxPoweredUpNodes": PendingReason(False, "Slurm's limit of powered-up nodes is reached", "raise it in slurm.conf"),
    "PowerNotAvail": PendingReason(False, "Slurm's power cap keeps it"),
    "PowerReserved": PendingReason(False, "Slurm's power cap keeps it"),
    "FedJobLock": PendingReason(False, "another cluster of the federation has it"),
    "DeadLine": PendingReason(False, "it cannot meet its deadline"),
    "InactiveLimit": PendingReason(False, "it reached the inactive limit"),
    "SystemFailure": PendingReason(False, "Slurm failed to handle it", "see slurmctld's log"),
}

_PREFIXES: tuple[tuple[str, PendingReason], ...] = (
    ("Assoc", PendingReason(False, "a limit of its association keeps it", _LIMIT)),
    ("QOS", PendingReason(False, "a limit of its QOS keeps it", _LIMIT)),
    ("Max", PendingReason(False, "a limit of its account keeps it", _LIMIT)),
)

_MAINTENANCE = PendingReason(
    False, "it would run into a maintenance reservation", "ask for less time, or wait until it is over"
)


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
    return PendingReason(False, f"Slurm gives a reason that burstd does not know: {bare}")
