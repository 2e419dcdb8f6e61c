"""The names of the metrics, which are an interface, and the bounds of what their labels may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

MAX_LABEL_LENGTH = 100
MAX_LABEL_SETS = 500
"""Of a family, the one for all others included."""
OTHER = "other"

_SECONDS = (1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_CALL_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Labels = tuple[str, ...]
Values = Mapping[Labels, float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. ``help``: what it is, with its unit."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("burstd_info", "gauge", "1; the version of burstd is a label.", ("version",)),
        Family("burstd_leader", "gauge", "1 where this burstd decides."),
        Family("burstd_loop_seconds", "histogram", "Duration of one loop.", buckets=_CALL_SECONDS),
        Family(
            "burstd_snapshot_age_seconds",
            "gauge",
            ("Seconds since the last whole loop looked at Slurm and the clouds; before the first, since the start."),
        ),
        Family("burstd_slurm_up", "gauge", "1 where slurmctld answered the last loop."),
        Family(
            "burstd_slurm_rpc_seconds", "histogram", "Duration of one command of Slurm.", ("command",), _CALL_SECONDS
        ),
        Family("burstd_provider_up", "gauge", "1 where the last list of machines could be read.", ("provider",)),
        Family(
            "burstd_provider_requests_total",
            "counter",
            ("Calls to a cloud; a launch counts once for each machine. The outcome is ok or the cause of the failure."),
            ("provider", "call", "outcome"),
        ),
        Family("burstd_claims", "gauge", "Claims that are not gone.", ("pool", "provider", "market", "state")),
        Family("burstd_slots", "gauge", "Slurm node names of a pool.", ("pool",)),
        Family(
            "burstd_launch_seconds",
            "histogram",
            (
                "Seconds from the making of a claim until its cloud was asked (asked), its machine answered "
                "(running), it registered in Slurm (proved), and it was open to jobs (open)."
            ),
            ("pool", "phase"),
            _SECONDS,
        ),
        Family(
            "burstd_starting_oldest_seconds",
            "gauge",
            "Age of the oldest claim that is not yet a node open to jobs.",
            ("pool",),
        ),
        Family(
            "burstd_launch_failures_total",
            "counter",
            "Claims whose machine failed, or could not be had, before it was a node.",
            ("provider", "type", "zone", "reason"),
        ),
        Family(
            "burstd_breaker_open",
            "gauge",
            "1 where a circuit breaker is open; * stands for any.",
            ("provider", "type", "zone"),
        ),
        Family(
            "burstd_pending_jobs",
            "gauge",
            "Pending jobs of the pools' partitions, array tasks counted, by Slurm's reason.",
            ("pool", "reason"),
        ),
        Family(
            "burstd_pending_oldest_seconds",
            "gauge",
            "How long the oldest pending job has waited that more nodes may start.",
            ("pool",),
        ),
        Family(
            "burstd_cost_per_hour",
            "gauge",
            "Price of an hour of all machines that are paid for now.",
            ("pool", "provider", "currency"),
        ),
        Family("burstd_spent_total", "counter", "What machines have cost since burstd started.", ("pool", "currency")),
        Family(
            "burstd_budget_used_ratio",
            "gauge",
            "What is spent and committed of a budget, as a part of its limit; budgets of users are left out.",
            ("budget",),
        ),
        Family("burstd_idle_machines", "gauge", "Nodes in service without a job.", ("pool",)),
        Family("burstd_idle_gpus", "gauge", "GPUs that running jobs leave idle, by [idle_gpus].", ("pool",)),
        Family("burstd_idle_gpus_cost_per_hour", "gauge", "Price of an hour of these.", ("pool", "currency")),
        Family(
            "burstd_idle_cost_total",
            "counter",
            "What nodes without a job, open or draining, have cost since burstd started.",
            ("pool", "currency"),
        ),
        Family(
            "burstd_interruptions_total",
            "counter",
            "Machines that their cloud has taken back.",
            ("provider", "type", "zone"),
        ),
        Family(
            "burstd_unhealthy_total",
            "counter",
            "Nodes in service that found a fault on themselves.",
            ("provider", "type", "finding"),
        ),
        Family(
            "burstd_leaks_total",
            "counter",
            "Instances, disks and ports with burstd's tag and without a claim that burstd removed.",
        ),
        Family("burstd_quota_gpus", "gauge", "GPUs that are a project's own.", ("project",)),
        Family("burstd_quota_used", "gauge", "GPUs that a project's running jobs have.", ("project",)),
        Family("burstd_quota_fair", "gauge", "GPUs that a project is to have now.", ("project",)),
        Family(
            "burstd_user_mistakes_total",
            "counter",
            (
                "Jobs that their users have to mend: refused by sbatch (directive, container, scratch, volume, files), "
                "with data held for its owner (data), that no pool can run (impossible), that ended as FAILED (failed)."
            ),
            ("kind",),
        ),
        Family(
            "burstd_staging_bytes_total",
            "counter",
            "Bytes of jobs' data sent to the store (in) and delivered home (out).",
            ("direction",),
        ),
    )
}
"""By name. docs/metrics.md has the same table."""


def label_value(text: str) -> str:
    """Text of others as a label: characters that do not print become ``?``, and it ends after 100."""
    cut = text[:MAX_LABEL_LENGTH]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


class LabelLimit:
    """The label sets of a family that only grows: those that come after the 499th count as ``other``."""

    def __init__(self) -> None:
        self._known: set[Labels] = set()

    def admit(self, labels: Iterable[str]) -> Labels:
        """The labels to count under."""
        cut = tuple(map(label_value, labels))
        if cut not in self._known:
            if len(self._known) >= MAX_LABEL_SETS - 1:
                return (OTHER,) * len(cut)
            self._known.add(cut)
        return cut


def bounded(values: Values, combine: Callable[[float, float], float]) -> dict[Labels, float]:
    """The values of a family as they are shown. ``combine`` joins those whose labels become the same.

    The labels are in order, and those after the 499th are ``other``.
    """
    found: dict[Labels, float] = {}
    for labels, value in sorted(values.items()):
        cut = tuple(map(label_value, labels))
        if cut not in found and len(found) >= MAX_LABEL_SETS - 1:
            cut = (OTHER,) * len(cut)
        found[cut] = combine(found[cut], value) if cut in found else value
    return found
