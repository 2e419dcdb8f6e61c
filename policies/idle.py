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

from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import isfinite
from statistics import median
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.clock import until_text
from burstd.domain.plugins.policy import NodeRelease, PolicyPlugin, Remark, Target, Want
from burstd.domain.snapshot import SlurmView, Snapshot


class IdlePoolSettings(BaseModel):
    """What a pool has otherwise; what is left out is as for all pools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_alive_s: float | None = Field(default=None, ge=0)
    min_nodes: int | None = Field(default=None, ge=0)
    spare_nodes: int | None = Field(default=None, ge=0)
    keep_cost: Decimal | None = Field(default=None, ge=0)
    boots: float | None = Field(default=None, ge=0)


class IdleSettings(BaseModel):
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
    billing_s: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Provider: seconds for which its machines are paid at a time; by the second where it is not named, or 0."""
    billing_margin_s: float = Field(default=180, ge=0)
    """So long before the end of what is paid an idle node goes: closing and ending it takes a while."""
    pools: dict[str, IdlePoolSettings] = {}

    @model_validator(mode="after")
    def _is_worth_waiting_for(self) -> Self:
        for provider, billing in self.billing_s.items():
            if 0 < billing <= self.billing_margin_s:
                raise ValueError(
                    f"'billing_s' of {provider} ({billing:g}) is not more than 'billing_margin_s'"
                    f" ({self.billing_margin_s:g}): its machines would go as soon as they are idle; leave it out"
                )
        return self


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """The policy."""

    settings: IdleSettings
    name: str = "idle"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Keeps nodes that are to stay, and wants those that are missing."""
        slurm = snapshot.slurm
        if not isinstance(slurm, SlurmView):
            return target
        claims = {claim.id: claim for claim in snapshot.claims}
        pools = {pool: _PoolIdleness() for pool in snapshot.pools}
        for release in target.releases:
            claim = claims.get(release.claim_id)
            if claim is not None and claim.pool in pools and not snapshot.node_drained(claim):
                pools[claim.pool].releases.append((release, claim))
        placed = {name for names in target.placements.values() for name in names}
        for claim in snapshot.claims:
            if claim.pool in pools and snapshot.accepts_any_job(claim):
                pools[claim.pool].there.add(claim.id)
                if claim.slot not in placed and not _busy(claim, slurm):
                    pools[claim.pool].unneeded.add(claim.id)
        for want in target.wants:
            if not want.dedicated:
                pools[want.pool].coming += want.nodes
                pools[want.pool].spare += 0 if want.jobs else want.nodes
        wants: list[Want] = []
        remarks: list[Remark] = []
        keep_reasons: set[str] = set()
        for name, pool in pools.items():
            more, why = self._pool(snapshot, target, name, pool)
            wants += more
            remarks += why
            keep_reasons |= pool.keep_reasons.keys()
        return replace(
            target,
            wants=(*target.wants, *wants),
            releases=tuple(r for r in target.releases if r.claim_id not in keep_reasons),
            reusable=(*target.reusable, *(release for pool in pools.values() for release in pool.reusable)),
            remarks=(*target.remarks, *remarks),
        )

    def _settings_for(self, pool: str) -> tuple[int, int]:
        all_, own = self.settings, self.settings.pools.get(pool, IdlePoolSettings())
        return (
            all_.min_nodes if own.min_nodes is None else own.min_nodes,
            all_.spare_nodes if own.spare_nodes is None else own.spare_nodes,
        )

    def _keep_alive(self, snapshot: Snapshot, claim: Claim) -> tuple[float, str]:
        """Seconds for which an idle node stays, and what is said of that number."""
        all_, own = self.settings, self.settings.pools.get(claim.pool, IdlePoolSettings())
        keep, why = all_.keep_alive_s if own.keep_alive_s is None else own.keep_alive_s, ""
        boots = all_.boots if own.boots is None else own.boots
        known = snapshot.runtime_state.boot_durations.get(claim.pool, ()) if boots else ()
        if known and (long := boots * median(known)) > keep:
            keep, why = long, f" ({boots:g} times its boot time)"
        most = all_.keep_cost if own.keep_cost is None else own.keep_cost
        price = claim.offer.price
        if most is not None and price > 0 and (short := float(most / price * 3600)) < keep:
            keep, why = short, f" (its idle time then costs {most} {claim.offer.currency})"
        return keep, why

    def _stays(self, snapshot: Snapshot, claim: Claim) -> str:
        """Why an idle node stays for now; empty: it need not."""
        billing = self.settings.billing_s.get(claim.offer.provider, self.settings.billing_s.get("*", 0.0))
        # A machine that was another node before is paid for from its launch on.
        began = claim.launch_called if claim.reused_from else claim.billed_from
        if billing and began is not None:
            end = began + ((snapshot.now - began) // billing + 1) * billing
            left = end - snapshot.now
            return f"{claim.slot} is paid {until_text(end)}" if left > self.settings.billing_margin_s else ""
        keep, why = self._keep_alive(snapshot, claim)
        since = snapshot.idle_since(claim)
        if snapshot.now - since >= keep:
            return ""
        span = f", for {keep:g} s{why}" if isfinite(keep) else ""
        return f"{claim.slot} stays idle {until_text(since + keep)}{span}"

    def _pool(
        self, snapshot: Snapshot, target: Target, name: str, pool: _PoolIdleness
    ) -> tuple[list[Want], list[Remark]]:
        least, spare = self._settings_for(name)
        may_stay: list[tuple[tuple[str, Decimal], float, str]] = []
        for release, claim in pool.releases:
            if why := self._stays(snapshot, claim):
                pool.keep_reasons[claim.id] = why
                if claim.id in pool.there:
                    pool.reusable.append(release)
            else:
                price = snapshot.rates.price(claim.offer)
                may_stay.append((price, snapshot.now - snapshot.idle_since(claim), release.claim_id))
        may_stay.sort()
        going = {claim_id for _, _, claim_id in may_stay}
        there = len(pool.there - going) + pool.coming
        unneeded = len(pool.unneeded - going) + pool.spare
        missing = max(least - there, spare - unneeded, 0)
        # More than these another pool may not have: this one would launch them anew.
        del pool.reusable[max(min(there - least, unneeded - spare), 0) :]
        why = f"at least {least} node(s)" if least - there >= spare - unneeded else f"{spare} spare node(s)"
        for _, _, claim_id in [one for one in may_stay if one[2] in pool.there][:missing]:
            pool.keep_reasons[claim_id] = why
            missing -= 1
        offers = target.offers.get(name, ())
        remarks = [
            Remark(self.name, f"claim:{claim_id}", "keep", reason) for claim_id, reason in pool.keep_reasons.items()
        ]
        if missing and offers:
            remarks.append(Remark(self.name, f"pool:{name}", "add", f"{missing} node(s): {why}"))
            # One want each: as many as there are slots and offers for, not all or none.
            return [Want(name, 1, Cause.FLOOR, why, offers) for _ in range(missing)], remarks
        if missing:
            remarks.append(
                Remark(self.name, f"pool:{name}", "wait", f"{missing} node(s) missing ({why}): no offer available")
            )
        return [], remarks


@dataclass(slots=True)
class _PoolIdleness:
    """What there is of one pool; nodes that only their own jobs may use are none of it."""

    releases: list[tuple[NodeRelease, Claim]] = field(default_factory=list)
    there: set[str] = field(default_factory=set)
    """Claims that are usable."""
    unneeded: set[str] = field(default_factory=set)
    """Those of them without a job."""
    coming: int = 0
    spare: int = 0
    """Nodes that are coming without a job."""
    keep_reasons: dict[str, str] = field(default_factory=dict)
    reusable: list[NodeRelease] = field(default_factory=list)
    """Nodes that stay for a time only."""


def _busy(claim: Claim, slurm: SlurmView) -> bool:
    node = slurm.nodes.get(claim.slot)
    return claim.state is ClaimState.IN_SERVICE and (node is None or node.busy)


plugin = PolicyPlugin("idle", IdleSettings, IdlePolicy)
