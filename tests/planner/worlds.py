"""Small worlds for the tests of the core: short ways to say jobs, nodes, claims and a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.outlook import LeavesForCloud, Outlook, Outlooks
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CloudView, SlurmView, Snapshot
from burstd.planner.policy_chain import make_target

NOW = 1_000_000.0
SMALL = Shape(4, 8000)
V100 = (Gres("gpu", "v100", 4),)


def offer(kind: str = "small", price: str = "1", shape: Shape = SMALL, **fields: Any) -> Offer:
    base = Offer("sky", "r1", "a", kind, spot=False, shape=shape, price=Decimal(price))
    return replace(base, **fields)


def pool(name: str = "cpu", slots: int = 4, shape: Shape = SMALL, **fields: Any) -> Pool:
    names = tuple(f"{name}{n}" for n in range(1, slots + 1))
    base = Pool(name, names, ("burst",), shape, (OfferRule("sky", markets=("on-demand", "spot")),))
    return replace(base, **fields)


def job(job_id: str = "1", **fields: Any) -> Job:
    base = Job(job_id, "ada", JobState.PENDING, ("burst",), NOW - 60, reason="Resources", eligible=NOW - 60)
    return replace(base, **fields)


def node(name: str, **fields: Any) -> Node:
    """A node of the site: up, idle, 4 CPUs."""
    base = Node(name, "IDLE", frozenset(), ("onprem",), cpus=4, memory_mib=8000, last_busy=NOW - 3600)
    return replace(base, **fields)


def claim(slot: str, state: ClaimState = ClaimState.READY, **fields: Any) -> Claim:
    base = Claim(
        f"c-{slot}", "x", slot.rstrip("0123456789"), slot, offer(), Cause.DEMAND, state, NOW - 300, NOW - 100,
        in_service_from=NOW - 90 if state is ClaimState.IN_SERVICE else None,
    )  # fmt: skip
    return replace(base, **fields)


def slot_node(of: Pool, name: str, *, up: bool) -> Node:
    """Slurm's node of a slot, powered down or up and idle."""
    flags = frozenset({"CLOUD"}) if up else frozenset({"CLOUD", "POWERED_DOWN"})
    shape = of.shape
    return Node(
        name, "IDLE", flags, of.partitions, shape.cpus, memory_mib=shape.memory_mib, gres=shape.gres,
        features=shape.features, last_busy=NOW - 100,
    )  # fmt: skip


def make_snapshot(
    *jobs: Job,
    pools: tuple[Pool, ...] = (pool(),),
    claims: tuple[Claim, ...] = (),
    nodes: tuple[Node, ...] = (),
    offers: tuple[Offer, ...] = (offer(),),
    **fields: Any,
) -> Snapshot:
    """A snapshot. Slots are powered down but for those of claims from VALIDATING on; ``nodes`` come on top."""
    on = {c.slot for c in claims if c.state in (ClaimState.READY, ClaimState.IN_SERVICE, ClaimState.DRAINING)}
    slots = {s: slot_node(p, s, up=s in on) for p in pools for s in p.slots}
    return Snapshot(
        now=NOW,
        cluster="x",
        pools={p.name: p for p in pools},
        slurm=SlurmView(jobs, slots | {n.name: n for n in nodes}, ()),
        clouds={"sky": CloudView(offers, ())},
        claims=claims,
        **fields,
    )


class FixedOutlooks(dict[str, Outlook], Outlooks):
    """Outlooks that are as a test says, whatever the queue is."""

    def assuming(self, leaves: LeavesForCloud) -> Mapping[str, Outlook]:
        del leaves
        return self


def target(*jobs: Job, policies: tuple[Policy, ...] = (), **fields: Any) -> Target:
    return make_target(make_snapshot(*jobs, **fields), policies)


def last_verdict(found: Target, job_id: str = "1") -> tuple[str, str]:
    """The last verdict on a job and its reason."""
    remark = [r for r in found.remarks if r.subject == f"job:{job_id}"][-1]
    return remark.verdict, remark.reason


def wants(found: Target) -> list[tuple[str, int, tuple[str, ...]]]:
    """Pool, nodes and jobs of each want."""
    return [(w.pool, w.nodes, w.jobs) for w in found.wants]
