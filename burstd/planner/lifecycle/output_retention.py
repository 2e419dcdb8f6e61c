"""Nodes that are kept because they hold output of a job that is not off them. For so long, then they go all the same.

A kept node stays open to other jobs. Where an administrator wants it gone (a hold of its slot, a ceiling) it is closed
behind the gate and waits there; only what it holds going home, being discarded, or output_retention_s running out
ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plugins.policy import Remark, Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import OUTPUT_ON_NODES, StageState, StagingView
from burstd.domain.units import money_text

RETENTION_S = 86400.0
RETENTION_ALARM_S = 3600.0
"""An administrator is told of a node that has been kept for so long after its job's end."""
MIN_ABSENT_WITH_OUTPUT_S = 600.0
"""A machine with output that is to be brought home is gone only after lists have lacked it for so long."""
_WITH_MACHINE = frozenset({S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING, S.TERMINATING})


@dataclass(frozen=True, slots=True)
class NodeRetention:
    """A claim whose machine holds output."""

    claim: Claim
    job_id: str
    job_ended: bool
    """The job has ended."""
    retained_since: float
    """When, or since when it is kept, in burstd's time."""
    until: float
    error: str = ""

    def cost(self, now: float) -> Decimal:
        """What the machine has cost since its job ended, in the offer's currency."""
        return self.claim.offer.price * Decimal(max(0.0, min(now, self.until) - self.retained_since)) / 3600

    def __str__(self) -> str:
        if not self.job_ended:
            return f"{self.claim.slot} holds the data of job {self.job_id}"
        tried = f" (last: {self.error})" if self.error else ""
        what = f"{self.claim.slot} holds output of job {self.job_id} that is not in the store{tried}"
        return f"{what}; kept until {_time_text(self.until)}"


def retained_nodes(snapshot: Snapshot, retention_s: float = RETENTION_S) -> dict[str, NodeRetention]:
    """By claim, the machines that are kept now; of several jobs the one that keeps it longest."""
    found: dict[str, NodeRetention] = {}
    for one in _nodes_with_output(snapshot, retention_s):
        if snapshot.now >= one.until:
            continue
        other = found.get(one.claim.id)
        if other is None or other.until < one.until:
            found[one.claim.id] = one
    return found


def _nodes_with_output(snapshot: Snapshot, retention_s: float) -> Iterable[NodeRetention]:
    """All that hold output, those whose time is over as well."""
    if not snapshot.data:
        return
    claims = {claim.slot: claim for claim in snapshot.claims if claim.state in _WITH_MACHINE}
    slurm = snapshot.slurm if isinstance(snapshot.slurm, SlurmView) else None
    done: set[tuple[str, StagingView]] = set()
    for job_id, view in snapshot.data.items():
        if view.state not in OUTPUT_ON_NODES:
            continue
        for name in view.nodes:
            claim = claims.get(name)
            # A machine that is younger than the job's end is another one on the same slot.
            if claim is None or claim.created > (view.ended or view.since) or (name, view) in done:
                continue
            # A job has a second id in the queue where it is a task of an array.
            done.add((name, view))
            job_ended = view.state is StageState.COLLECTING
            node = slurm.nodes.get(name) if slurm else None
            busy = node is not None and node.busy
            # Of one that runs the end is not known: counted is from when its node was last seen at work.
            seen = max(view.since, node.last_busy if node else 0.0, snapshot.now if busy or slurm is None else 0.0)
            ended = (view.ended or view.since) if job_ended else seen
            yield NodeRetention(
                claim, job_id, job_ended, ended, ended + _retention_s(snapshot, claim, retention_s), view.error
            )


def _retention_s(snapshot: Snapshot, claim: Claim, retention_s: float) -> float:
    """How long its node is kept: not longer than output_retention_cost lasts."""
    if snapshot.output_retention_cost is None or not claim.offer.price:
        return retention_s
    return min(retention_s, float(snapshot.output_retention_cost / claim.offer.price * 3600))


def without_releases_of_retained(snapshot: Snapshot, target: Target, retention_s: float = RETENTION_S) -> Target:
    """Takes the releases of kept nodes away, and remarks on nodes whose job is over."""
    retained = retained_nodes(snapshot, retention_s)
    if not retained:
        return target
    stopped = {release.claim_id for release in target.releases if release.claim_id in retained}
    remarks: list[Remark] = []
    for claim_id, one in retained.items():
        if one.job_ended or claim_id in stopped:
            remarks.append(Remark("staging", f"claim:{claim_id}", "keep", str(one)))
        if one.job_ended and not _pending(snapshot, one.job_id):
            remarks.append(Remark("staging", f"job:{one.job_id}", "keep", str(one)))
    return replace(
        target,
        releases=tuple(release for release in target.releases if release.claim_id not in stopped),
        remarks=(*target.remarks, *remarks),
    )


def _pending(snapshot: Snapshot, job_id: str) -> bool:
    jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    return any(job.id == job_id and job.state.value == "PENDING" for job in jobs)


def retention_alarm(snapshot: Snapshot, retention_s: float = RETENTION_S) -> str:
    """One sentence on machines that cost money for output alone, for long or after errors; empty: there are none."""
    late = [
        k
        for k in _nodes_with_output(snapshot, retention_s)
        if k.job_ended and (k.error or snapshot.now - k.retained_since > RETENTION_ALARM_S)
    ]
    if not late:
        return ""
    shown = "; ".join(f"{k.claim.slot} for job {k.job_id} ({_end_text(k, snapshot.now)})" for k in late[:5])
    more = f" and {len(late) - 5} more" if len(late) > 5 else ""
    once = {k.claim.id: k for k in late}.values()
    cost = money_text((k.claim.offer.currency, k.cost(snapshot.now)) for k in once)
    rate = money_text((k.claim.offer.currency, k.claim.offer.price) for k in once if snapshot.now < k.until)
    paid = f", which has cost {cost} since their jobs ended" + (f" and costs {rate}/h" if rate else "")
    return (
        f"{len(once)} node(s) are kept for output that is not in the store{paid}: {shown}{more};"
        " 'burstctl stage status' has the reason"
    )


def _end_text(one: NodeRetention, now: float) -> str:
    return f"until {_time_text(one.until)}" if now < one.until else "given up"


def _time_text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
