"""Nodes that are kept because they hold output of a job that is not off them. For so long, then they go all the same.

A kept node stays open to other jobs. Where an administrator wants it gone (a hold of its slot, a ceiling) it is closed
behind the gate and waits there; only what it holds going home, being discarded, or keep_node_s running out ends it.
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
from burstd.domain.staging import OUTPUT_ON_NODES, DataView, StageState
from burstd.domain.units import money_text

KEEP_S = 86400.0
LONG_S = 3600.0
"""An administrator is told of a node that has been kept for so long after its job's end."""
_WITH_MACHINE = frozenset({S.PROVING, S.READY, S.OPEN, S.CLOSING, S.TERMINATING})


@dataclass(frozen=True, slots=True)
class Kept:
    """A claim whose machine holds output."""

    claim: Claim
    job_id: str
    over: bool
    """The job has ended."""
    ended: float
    """When, or since when it is kept, in burstd's time."""
    until: float
    error: str = ""

    def cost(self, now: float) -> Decimal:
        """What the machine has cost since its job ended, in the offer's currency."""
        return self.claim.offer.price * Decimal(max(0.0, min(now, self.until) - self.ended)) / 3600

    def __str__(self) -> str:
        if not self.over:
            return f"{self.claim.slot} holds the data of job {self.job_id}"
        tried = f" (last: {self.error})" if self.error else ""
        what = f"{self.claim.slot} holds output of job {self.job_id} that is not in the store{tried}"
        return f"{what}; kept until {_at(self.until)}"


def kept(snapshot: Snapshot, keep_s: float = KEEP_S) -> dict[str, Kept]:
    """By claim, the machines that are kept now; of several jobs the one that keeps it longest."""
    found: dict[str, Kept] = {}
    for one in _holding(snapshot, keep_s):
        if snapshot.now >= one.until:
            continue
        other = found.get(one.claim.id)
        if other is None or other.until < one.until:
            found[one.claim.id] = one
    return found


def _holding(snapshot: Snapshot, keep_s: float) -> Iterable[Kept]:
    """All that hold output, those whose time is over as well."""
    if not snapshot.data:
        return
    claims = {claim.slot: claim for claim in snapshot.claims if claim.state in _WITH_MACHINE}
    slurm = snapshot.slurm if isinstance(snapshot.slurm, SlurmView) else None
    done: set[tuple[str, DataView]] = set()
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
            over = view.state is StageState.COLLECTING
            node = slurm.nodes.get(name) if slurm else None
            busy = node is not None and node.busy
            # Of one that runs the end is not known: counted is from when its node was last seen at work.
            seen = max(view.since, node.last_busy if node else 0.0, snapshot.now if busy or slurm is None else 0.0)
            ended = (view.ended or view.since) if over else seen
            yield Kept(claim, job_id, over, ended, ended + _time(snapshot, claim, keep_s), view.error)


def _time(snapshot: Snapshot, claim: Claim, keep_s: float) -> float:
    """How long its node is kept: not longer than keep_node_cost lasts."""
    if snapshot.keep_cost is None or not claim.offer.price:
        return keep_s
    return min(keep_s, float(snapshot.keep_cost / claim.offer.price * 3600))


def keep(snapshot: Snapshot, target: Target, keep_s: float = KEEP_S) -> Target:
    """Takes the releases of kept nodes away, and remarks on nodes whose job is over."""
    holding = kept(snapshot, keep_s)
    if not holding:
        return target
    stopped = {release.claim_id for release in target.releases if release.claim_id in holding}
    remarks: list[Remark] = []
    for claim_id, one in holding.items():
        if one.over or claim_id in stopped:
            remarks.append(Remark("staging", f"claim:{claim_id}", "keep", str(one)))
        if one.over and not _pending(snapshot, one.job_id):
            remarks.append(Remark("staging", f"job:{one.job_id}", "keep", str(one)))
    return replace(
        target,
        releases=tuple(release for release in target.releases if release.claim_id not in stopped),
        remarks=(*target.remarks, *remarks),
    )


def _pending(snapshot: Snapshot, job_id: str) -> bool:
    jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    return any(job.id == job_id and job.state.value == "PENDING" for job in jobs)


def alarm(snapshot: Snapshot, keep_s: float = KEEP_S) -> str:
    """One sentence on machines that cost money for output alone, for long or after errors; empty: there are none."""
    late = [k for k in _holding(snapshot, keep_s) if k.over and (k.error or snapshot.now - k.ended > LONG_S)]
    if not late:
        return ""
    shown = "; ".join(f"{k.claim.slot} for job {k.job_id}{_when(k, snapshot.now)}" for k in late[:5])
    more = f" and {len(late) - 5} more" if len(late) > 5 else ""
    once = {k.claim.id: k for k in late}.values()
    cost = money_text((k.claim.offer.currency, k.cost(snapshot.now)) for k in once)
    rate = money_text((k.claim.offer.currency, k.claim.offer.price) for k in once if snapshot.now < k.until)
    paid = f", which has cost {cost} since their jobs ended" + (f" and costs {rate}/h" if rate else "")
    return (
        f"{len(once)} node(s) are kept for output that is not in the store{paid}: {shown}{more};"
        " see burstctl stage status"
    )


def _when(one: Kept, now: float) -> str:
    end = f"until {_at(one.until)}" if now < one.until else "given up"
    return f" ({end}{f', {one.error}' if one.error else ''})"


def _at(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
