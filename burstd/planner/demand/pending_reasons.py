"""Slurm's reasons why a job is pending: would more nodes start it, and what would?

The names are those that squeue prints (job_state_reason in Slurm's source), 22.05 to 26.05. A reason that is not in
the table does not count: a limit that burstd does not know must not boot machines for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """What a reason means for demand."""

    counts: bool
    """True where more nodes may start the job."""
    text: str
    """What it waits for, for a person."""
    remedy: str = ""
    """What would help; empty: nothing needs to be done."""


_NODES = Reason(True, "it waits for nodes")
_HELD = "scontrol release JOBID"
_LIMIT = "raise the limit, or wait until running jobs end"

EXACT: dict[str, Reason] = {
    "": _NODES,
    "None": _NODES,
    "Resources": _NODES,
    "Priority": _NODES,
    "ReqNodeNotAvail": _NODES,
    "NodeDown": _NODES,
    "Nodes_required_for_job_are_DOWN": _NODES,
    "SchedDefer": _NODES,
    # Whether nodes are started for these says the data of the job: see inputs.py.
    "BurstBufferStageIn": Reason(False, "its input is being staged in"),
    "BurstBufferResources": Reason(False, "its input is not being staged in yet"),
    "BurstBufferStageOut": Reason(False, "its output is being staged out"),
    "BurstBufferOperation": Reason(False, "an operation of the burst buffer failed", "see scontrol show job JOBID"),
    "JobHeldUser": Reason(False, "its user holds it", _HELD),
    "JobHeldAdmin": Reason(False, "an administrator holds it", _HELD + " (as administrator)"),
    "JobHoldMaxRequeue": Reason(False, "it is held after too many requeues", _HELD),
    "JobLaunchFailure": Reason(False, "it could not be launched and is held", "see slurmctld's log, then " + _HELD),
    "ReservationDeleted": Reason(False, "its reservation was deleted and it is held", _HELD),
    "BeginTime": Reason(False, "its begin time has not come (after a requeue, two minutes)"),
    "Dependency": Reason(False, "it depends on another job"),
    "DependencyNeverSatisfied": Reason(False, "its dependency can never be met", "scancel it or change its dependency"),
    "Cleaning": Reason(False, "it is being requeued and its last run is still cleaned up"),
    "Prolog": Reason(False, "its PrologSlurmctld still runs"),
    "Licenses": Reason(False, "it waits for a licence", "wait until a job gives the licence back"),
    "LicensesReserved": Reason(False, "the licences it asks for are reserved"),
    "JobArrayTaskLimit": Reason(False, "as many tasks of its array run as its % throttle allows"),
    "Reservation": Reason(False, "it waits for its reservation"),
    "PartitionDown": Reason(False, "its partition is down", "scontrol update partitionname=NAME state=up"),
    "PartitionInactive": Reason(False, "its partition is inactive", "scontrol update partitionname=NAME state=up"),
    "PartitionNodeLimit": Reason(False, "it asks for more nodes than its partition allows", "ask for fewer nodes"),
    "PartitionTimeLimit": Reason(False, "it asks for more time than its partition allows", "ask for less time"),
    "PartitionConfig": Reason(False, "its partition cannot give what it asks for", "see scontrol show partition"),
    "BadConstraints": Reason(False, "Slurm says that its constraints cannot be met", "change what it asks for"),
    "FrontEndDown": Reason(False, "no front end is up"),
    "InvalidAccount": Reason(False, "its account is not valid", "give it a valid account"),
    "InvalidQOS": Reason(False, "its QOS is not valid", "give it a valid QOS"),
    "AccountNotAllowed": Reason(False, "its account may not use the partition", "use another account or partition"),
    "QOSNotAllowed": Reason(False, "its QOS may not use the partition", "use another QOS or partition"),
    "AccountingPolicy": Reason(False, "a limit of accounting keeps it", _LIMIT),
    "MaxMemPerLimit": Reason(False, "it asks for more memory than the partition allows", "ask for less memory"),
    "MaxPoweredUpNodes": Reason(False, "Slurm's limit of powered-up nodes is reached", "raise it in slurm.conf"),
    "PowerNotAvail": Reason(False, "Slurm's power cap keeps it"),
    "PowerReserved": Reason(False, "Slurm's power cap keeps it"),
    "FedJobLock": Reason(False, "another cluster of the federation has it"),
    "DeadLine": Reason(False, "it cannot meet its deadline"),
    "InactiveLimit": Reason(False, "it reached the inactive limit"),
    "SystemFailure": Reason(False, "Slurm failed to handle it", "see slurmctld's log"),
}

_PREFIXES: tuple[tuple[str, Reason], ...] = (
    ("Assoc", Reason(False, "a limit of its association keeps it", _LIMIT)),
    ("QOS", Reason(False, "a limit of its QOS keeps it", _LIMIT)),
    ("Max", Reason(False, "a limit of its account keeps it", _LIMIT)),
)

_MAINTENANCE = Reason(
    False, "it would run into a maintenance reservation", "ask for less time, or wait until it is over"
)


def meaning(reason: str) -> Reason:
    """What a pending reason means. Parentheses around it and detail after a comma are Slurm's, and may be there."""
    bare = reason.strip("() ")
    name, _, detail = bare.partition(",")
    if "maintenance" in detail.lower():
        return _MAINTENANCE
    known = EXACT.get(name)
    if known is not None:
        return known
    for prefix, found in _PREFIXES:
        if name.startswith(prefix):
            return found
    return Reason(False, f"Slurm gives a reason that burstd does not know: {bare}")
