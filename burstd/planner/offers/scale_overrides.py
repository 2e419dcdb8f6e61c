"""``burstctl scale``: an administrator's number of nodes overrules the policies, but not the slots that there are."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from burstd.domain.claim import USABLE, Cause, Claim, ClaimState
from burstd.domain.clock import until_text
from burstd.domain.plugins.policy import NodeRelease, Remark, Target, Want, remarks_on_dropped_want
from burstd.domain.snapshot import Pin, SlurmView, Snapshot


def apply_scale_overrides(snapshot: Snapshot, target: Target, retained: Container[str] = ()) -> Target:
    """Applies the pins that are in force, pool by pool: ceilings first, then floors.

    ``retained`` are claims that cost until their output is off them, closed or not: a ceiling closes others first.
    """
    for pool in snapshot.pools:
        pins = [p for p in snapshot.pins if p.pool == pool and (p.until is None or p.until > snapshot.now)]
        least, most = _bounds(pins)
        if most is not None:
            target = _ceiling(snapshot, target, pool, most, retained)
        if least is not None:
            target = _floor(snapshot, target, pool, least)
    return target


def _bounds(pins: list[Pin]) -> tuple[Pin | None, Pin | None]:
    """The newest floor and ceiling; where they contradict each other, the newer one holds."""
    pins = sorted(pins, key=lambda p: p.created)
    least = next((p for p in reversed(pins) if p.kind in ("floor", "exact")), None)
    most = next((p for p in reversed(pins) if p.kind in ("ceiling", "exact")), None)
    if least is not None and most is not None and least.nodes > most.nodes:
        return (least, None) if pins.index(least) > pins.index(most) else (None, most)
    return least, most


def _floor(snapshot: Snapshot, target: Target, pool: str, least: Pin) -> Target:
    missing = least.nodes - _count(snapshot, target, pool)
    why = _override_text(least)
    cancelled: list[NodeRelease] = []
    for release in target.releases:
        if len(cancelled) < missing and release.pool == pool and not _unavailable(snapshot, release.claim_id):
            cancelled.append(release)
    missing -= len(cancelled)
    remarks = [Remark("pin", f"claim:{r.claim_id}", "keep", why) for r in cancelled]
    wants: list[Want] = []
    offers = target.offers.get(pool, ())
    if missing > 0 and offers:
        wants = [Want(pool, 1, Cause.PIN, why, offers) for _ in range(missing)]
        remarks.append(Remark("pin", f"pool:{pool}", "add", f"{missing} node(s): {why}"))
    elif missing > 0:
        remarks.append(Remark("pin", f"pool:{pool}", "wait", f"{missing} node(s) wait: no offer available; {why}"))
    return replace(
        target,
        wants=(*target.wants, *wants),
        releases=tuple(r for r in target.releases if r not in cancelled),
        remarks=(*target.remarks, *remarks),
    )


def _ceiling(snapshot: Snapshot, target: Target, pool: str, most: Pin, retained: Container[str]) -> Target:
    excess = _count(snapshot, target, pool) - most.nodes
    why = _override_text(most)
    wants = list(target.wants)
    remarks: list[Remark] = []
    while excess > 0:
        last = next((want for want in reversed(wants) if want.pool == pool), None)
        if last is None:
            break
        together = [want for want in wants if want is last or (last.gang and want.gang == last.gang)]
        wants = [want for want in wants if not any(want is one for one in together)]
        remarks += [remark for want in together for remark in remarks_on_dropped_want(want, "pin", why)]
        excess -= sum(want.nodes for want in together if want.pool == pool)
    released = {release.claim_id for release in target.releases}
    assigned = {name for names in target.placements.values() for name in names}
    idle = [c for c in snapshot.claims if c.pool == pool and c.id not in released and _idle(snapshot, c)]
    # Nodes that no pending job was placed on go first.
    idle.sort(key=lambda c: (c.id in retained, c.slot in assigned))
    more = [NodeRelease(c.id, pool, why) for c in idle[: max(0, excess)]]
    remarks += [Remark("pin", f"claim:{r.claim_id}", "release", why) for r in more]
    return replace(target, wants=tuple(wants), releases=(*target.releases, *more), remarks=(*target.remarks, *remarks))


def _count(snapshot: Snapshot, target: Target, pool: str) -> int:
    """Nodes of the pool once the target is reached."""
    there = sum(1 for claim in snapshot.claims if claim.pool == pool and claim.state in USABLE)
    gone = sum(1 for release in target.releases if release.pool == pool)
    return there - gone + sum(want.nodes for want in target.wants if want.pool == pool)


def _unavailable(snapshot: Snapshot, claim_id: str) -> bool:
    """A drained or held node is none that the administrator asked for."""
    claim = next((c for c in snapshot.claims if c.id == claim_id), None)
    if claim is None or claim.slot in snapshot.drained_slots:
        return True
    node = snapshot.slurm.nodes.get(claim.slot) if isinstance(snapshot.slurm, SlurmView) else None
    return node is None or node.drained


def _idle(snapshot: Snapshot, claim: Claim) -> bool:
    node = snapshot.slurm.nodes.get(claim.slot) if isinstance(snapshot.slurm, SlurmView) else None
    return claim.state in (ClaimState.IN_SERVICE, ClaimState.READY) and node is not None and not node.busy


def _override_text(pin_: Pin) -> str:
    nodes = "1 node" if pin_.nodes == 1 else f"{pin_.nodes} nodes"
    amount = {"exact": "exactly ", "floor": "no fewer than ", "ceiling": "no more than "}[pin_.kind] + nodes
    until = f" {until_text(pin_.until)}" if pin_.until is not None else ""
    return f"an administrator keeps pool {pin_.pool} at {amount}{until}"
