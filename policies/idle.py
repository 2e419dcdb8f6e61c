"""How long idle nodes stay, and how many are kept without a job: keep-alive, minimum and spare nodes.

Use it always: without it a node goes the moment nothing needs it, and the next job waits for a boot. ``min_nodes`` are
there day and night; ``spare_nodes`` are idle ones beyond those that jobs use, so that the next job starts at once.
Where some have to go, the dearest go first.

How long a node is worth keeping hangs on what it costs and what another one would take: ``boots`` keeps those of a pool
that boots slowly longer, ``keep_cost`` lets dear ones go sooner. Where a cloud bills whole hours, a node stays while it
is paid for and goes, if it is idle then, shortly before the next hour (``billing_s``, by provider, ``"*"`` for all
others).

    [policies.idle]
    keep_alive_s = 300
    keep_cost = "0.25"
    billing_s = { mycloud = 3600 }
    [policies.idle.pools.gpu]
    keep_alive_s = 120
    spare_nodes = 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median

from pydantic import BaseModel, ConfigDict, Field

from burstd.model.claim import USABLE, Cause, Claim, ClaimState
from burstd.model.policy import PolicyPlugin, Release, Remark, Target, Want
from burstd.model.snapshot import SlurmView, Snapshot


class PoolSettings(BaseModel):
    """What a pool has otherwise; what is left out is as for all pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_alive_s: float | None = Field(default=None, ge=0)
    min_nodes: int | None = Field(default=None, ge=0)
    spare_nodes: int | None = Field(default=None, ge=0)
    keep_cost: Decimal | None = Field(default=None, ge=0)
    boots: float | None = Field(default=None, ge=0)


class Settings(BaseModel):
    """``[policies.idle]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_alive_s: float = Field(default=300, ge=0)
    """Seconds that a node stays after its last job, or after its opening where it never had one."""
    min_nodes: int = Field(default=0, ge=0)
    """Nodes of a pool that are always there."""
    spare_nodes: int = Field(default=0, ge=0)
    """Idle nodes of a pool that no job needs yet."""
    keep_cost: Decimal | None = Field(default=None, ge=0)
    """Most that a node may cost while it is idle, in its offer's currency; none: only time counts."""
    boots: float = Field(default=0, ge=0)
    """A node stays at least so many times as long as nodes of its pool take to boot."""
    billing_s: dict[str, float] = {}
    """Provider: seconds for which its machines are paid at a time; by the second where it is not named."""
    billing_margin_s: float = Field(default=180, ge=0)
    """So long before the end of what is paid an idle node goes: closing and ending it takes a while."""
    pools: dict[str, PoolSettings] = {}


@dataclass(frozen=True, slots=True)
class Idle:
    """The policy."""

    settings: Settings
    name: str = "idle"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Keeps nodes that are to stay, and wants those that are missing."""
        slurm = snapshot.slurm
        if not isinstance(slurm, SlurmView):
            return target
        claims = {claim.id: claim for claim in snapshot.claims}
        for pool in snapshot.pools:
            target = self._pool(snapshot, slurm, target, pool, claims)
        return target

    def _of(self, pool: str) -> tuple[int, int]:
        all_, own = self.settings, self.settings.pools.get(pool, PoolSettings())
        return (
            all_.min_nodes if own.min_nodes is None else own.min_nodes,
            all_.spare_nodes if own.spare_nodes is None else own.spare_nodes,
        )

    def _keep_alive(self, snapshot: Snapshot, claim: Claim) -> tuple[float, str]:
        """Seconds for which an idle node stays, and what is said of that number."""
        all_, own = self.settings, self.settings.pools.get(claim.pool, PoolSettings())
        keep, why = all_.keep_alive_s if own.keep_alive_s is None else own.keep_alive_s, ""
        boots = all_.boots if own.boots is None else own.boots
        known = snapshot.progress.booted.get(claim.pool, ()) if boots else ()
        if known and (long := boots * median(known)) > keep:
            keep, why = long, f" ({boots:g} times as long as it takes to boot)"
        most = all_.keep_cost if own.keep_cost is None else own.keep_cost
        price = claim.offer.price
        if most is not None and price > 0 and (short := float(most / price * 3600)) < keep:
            keep, why = short, f" (idle it costs {most} {claim.offer.currency} by then)"
        return keep, why

    def _stays(self, snapshot: Snapshot, claim: Claim, idle: float) -> str:
        """Why an idle node stays for now; empty: it need not."""
        billing = self.settings.billing_s.get(claim.offer.provider, self.settings.billing_s.get("*", 0.0))
        if billing > self.settings.billing_margin_s and claim.billed_from is not None:
            left = billing - (snapshot.now - claim.billed_from) % billing
            return f"{claim.slot} is paid for another {left:.0f} s" if left > self.settings.billing_margin_s else ""
        keep, why = self._keep_alive(snapshot, claim)
        return f"{claim.slot} has been idle for {idle:.0f} s of {keep:g} s{why}" if idle < keep else ""

    def _pool(
        self, snapshot: Snapshot, slurm: SlurmView, target: Target, pool: str, claims: dict[str, Claim]
    ) -> Target:
        least, spare = self._of(pool)
        kept: dict[str, str] = {}
        may_stay: list[tuple[Decimal, float, Release]] = []
        for release in target.releases:
            claim = claims.get(release.claim_id)
            if claim is None or claim.pool != pool or _shut(claim, snapshot, slurm):
                continue
            idle = snapshot.now - _idle_since(claim, slurm)
            if why := self._stays(snapshot, claim, idle):
                kept[claim.id] = why
            else:
                may_stay.append((claim.offer.price, idle, release))
        may_stay.sort(key=lambda one: (one[0], one[1], one[2].claim_id))
        going = {release.claim_id for _, _, release in may_stay}
        usable = [
            c for c in snapshot.claims if c.pool == pool and c.state in USABLE and not _shut(c, snapshot, slurm)
        ]  # fmt: skip
        coming = sum(want.nodes for want in target.wants if want.pool == pool)
        placed = {name for names in target.placed.values() for name in names}
        there = sum(1 for c in usable if c.id not in going) + coming
        unneeded = sum(1 for c in usable if c.id not in going and c.slot not in placed and not _busy(c, slurm))
        unneeded += sum(want.nodes for want in target.wants if want.pool == pool and not want.jobs)
        missing = max(least - there, spare - unneeded, 0)
        why = f"{least} node(s) are always there" if least - there >= spare - unneeded else f"{spare} spare node(s)"
        for _, _, release in may_stay[:missing]:
            kept[release.claim_id] = why
        missing -= min(missing, len(may_stay))
        offers = target.offers.get(pool, ())
        remarks = [Remark(self.name, f"claim:{claim_id}", "keep", reason) for claim_id, reason in kept.items()]
        wants: list[Want] = []
        if missing and offers:
            # One want each: as many as there are slots and offers for, not all or none.
            wants = [Want(pool, 1, Cause.FLOOR, why, offers) for _ in range(missing)]
            remarks.append(Remark(self.name, f"pool:{pool}", "add", f"{missing} node(s): {why}"))
        elif missing:
            remarks.append(Remark(self.name, f"pool:{pool}", "wait", f"{missing} node(s) lack ({why}): no offer now"))
        return replace(
            target,
            wants=(*target.wants, *wants),
            releases=tuple(r for r in target.releases if r.claim_id not in kept),
            remarks=(*target.remarks, *remarks),
        )


def _idle_since(claim: Claim, slurm: SlurmView) -> float:
    """When its last job ended; where it had none, when it was opened or became ready."""
    began = claim.opened if claim.opened is not None else claim.since
    node = slurm.nodes.get(claim.slot)
    return max(began, node.last_busy) if node is not None else began


def _busy(claim: Claim, slurm: SlurmView) -> bool:
    node = slurm.nodes.get(claim.slot)
    return claim.state is ClaimState.OPEN and (node is None or node.busy)


def _shut(claim: Claim, snapshot: Snapshot, slurm: SlurmView) -> bool:
    """Drained or held: no node that anybody could use."""
    node = slurm.nodes.get(claim.slot)
    return claim.slot in snapshot.held_slots or (node is not None and node.drained)


plugin = PolicyPlugin("idle", Settings, Idle)
