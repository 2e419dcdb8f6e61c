"""Situations that a policy is tried on without test tools: fixed ones, each with what placement would have made of it.

``burstctl policy check`` goes through all of them. They are a first look; the contract with its random worlds
(burstd/testing/policy/policy_contract.py) sees far more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from burstd.domain.billing.costs import Spent
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.plugins.policy import NodeRelease, Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import (
    CircuitBreaker,
    CloudView,
    EndedClaim,
    Pin,
    RecentLaunch,
    SlurmView,
    Snapshot,
    Unavailable,
)
from burstd.domain.staging import StageState, StagingView
from burstd.testing.policy.outlooks import FixedOutlooks

NOW = 1_772_452_800.0
"""A Monday in March 2026, at noon (UTC)."""

SMALL = Shape(4, 16_000, (), frozenset({"cloud"}))
GPUS = Shape(16, 120_000, (Gres("gpu", "v100", 4),), frozenset({"cloud", "v100"}))
_RULES = (OfferRule("sky", markets=("on-demand", "spot")), OfferRule("sea"))
POOLS = {
    "cpu": Pool("cpu", tuple(f"cpu-{n}" for n in range(1, 7)), ("burst",), SMALL, _RULES),
    "gpu": Pool("gpu", tuple(f"gpu-{n}" for n in range(1, 5)), ("burst", "gpu"), GPUS, _RULES),
}
OFFERS = {
    "cpu": (
        Offer("sky", "r1", "a", "c4", spot=True, shape=SMALL, price=Decimal("0.06")),
        Offer("sky", "r1", "a", "c4", spot=False, shape=SMALL, price=Decimal("0.20")),
        Offer("sea", "north", "1", "small", spot=False, shape=SMALL, price=Decimal("0.25")),
    ),
    "gpu": (
        Offer("sky", "r1", "b", "g4", spot=True, shape=GPUS, price=Decimal("3.10")),
        Offer("sky", "r1", "b", "g4", spot=False, shape=GPUS, price=Decimal("9.80")),
    ),
}


@dataclass(frozen=True, slots=True)
class PolicySample:
    """One situation. ``title`` goes on from "with"."""

    title: str
    snapshot: Snapshot
    target: Target


def samples() -> Iterator[PolicySample]:
    """All of them."""
    yield _sample("nothing to do")
    yield _sample("one job that waits", (_job("101"),))
    yield _sample(
        "jobs of several users and projects",
        (_job("101", account="atlas"), _job("102", user="bob", account="belle", submitted=NOW - 7200),
         _job("103", user="eve", partitions=("gpu",), gres_per_node=(Gres("gpu", "v100", 2),), time_limit_s=86_400,
              comment="burst: gpu-model=v100"),
         _job("104", tasks=20, array_job_id="104", array_tasks="1-20", time_limit_s=0.0)),
    )  # fmt: skip
    yield _sample("a multi-node job", (_job("201", nodes=3, cpus=12), _job("202", user="bob")))
    yield _sample("nodes that nothing needs", (), (_claim("cpu-1"), _claim("cpu-2", since=NOW - 30), _claim("gpu-1")))
    yield _sample(
        "busy nodes, idle ones and ones on their way",
        (_job("301", state=JobState.RUNNING, node_list=("cpu-1",), start=NOW - 600), _job("302"), _job("303")),
        (_claim("cpu-1", jobs=("301",), users=("ada",), accounts=("atlas",), reserved=Decimal("2.40")),
         _claim("cpu-2"), _claim("cpu-3", state=ClaimState.BOOTING, jobs=("302",), users=("ada",)),
         _claim("gpu-1", state=ClaimState.DRAINING)),
        busy=("cpu-1",),
    )  # fmt: skip
    yield _sample("every slot taken", (_job("401"),), tuple(_claim(slot) for slot in POOLS["cpu"].slots))
    yield replace(
        _sample("a job of which spot machines were taken away", (_job("501", restarts=2),)),
        snapshot=replace(_snapshot((_job("501", restarts=2),)), interruptions={"501": frozenset({0, 1})}),
    )
    yield _with_outlooks()
    yield _with_ended_claims()
    yield _with_limits()
    yield _without_offers()
    yield _unread()
    yield _sample("hundreds of jobs", tuple(_job(str(n), user=f"u{n % 40}", tasks=n % 3 + 1) for n in range(600, 1000)))


def _with_outlooks() -> PolicySample:
    """The site's own nodes start some soon, some late and some never; the input of two is in a store."""
    jobs = (
        _job("511"), _job("512", user="bob", account="belle", submitted=NOW - 90_000, time_limit_s=864_000.0),
        _job("513", account="atlas"), _job("514", user="eve", partitions=("gpu",), tasks=3, array_job_id="514",
             array_tasks="1-3"), _job("515", nodes=2),
    )  # fmt: skip
    found = _sample("jobs that the site's own nodes start soon, late or never, with and without data", jobs)
    never = float("inf")
    outlook = {
        "511": Outlook(NOW + 60, "slurm", 600.0, "time limit", 240.0, 0.0, NOW + 60),
        "512": Outlook(NOW + 90_000, "none", 864_000.0, "time limit", 240.0, 0.0, NOW + 90_000),
        "513": Outlook(never, "none", 3600.0, "12 jobs of ada", 240.0, 1800.0, never),
        "514": Outlook(NOW, "queue", 0.0, "none", 0.0, 0.0, never),
        "515": Outlook(NOW + 7200, "history", 3600.0, "time limit", 240.0, 0.0, NOW + 7200),
    }
    data = {
        "511": StagingView(StageState.STAGED, 0.0, since=NOW - 60, store="s3", size=2**30),
        "513": StagingView(StageState.UPLOADING, NOW + 1800, since=NOW - 60, store="s3", size=2**40, bytes_left=2**39),
        "515": StagingView(StageState.STAGED, 0.0, since=NOW - 60, store="s3", size=2**40),
    }
    return replace(found, snapshot=replace(found.snapshot, outlook=FixedOutlooks(outlook), data=data))


def _with_ended_claims() -> PolicySample:
    """Machines that ended a moment ago: taken back by the cloud, never ready, and as they should."""
    found = _sample("machines that were lost, and some that nobody used", (_job("521"), _job("522", user="bob")))
    claims = [
        _claim(slot, state=ClaimState.GONE, error=error)
        for slot in POOLS["cpu"].slots
        for error in ("boot", "interrupted")
    ]
    unused = [_claim("gpu-1", state=ClaimState.GONE), _claim("gpu-2", state=ClaimState.GONE)]
    gone = tuple(EndedClaim(NOW - 30 * n, claim) for n, claim in enumerate([*claims, *unused], 1))
    return replace(found, snapshot=replace(found.snapshot, ended_claims=gone))


def _with_limits() -> PolicySample:
    """All that limits and administrators put in the way."""
    found = _sample("pins, breakers, a held node, money spent, and much launched", (_job("701"), _job("702")))
    snapshot = replace(
        found.snapshot,
        pins=(Pin("gpu", 1, "floor", NOW + 3600, "user:root", NOW - 60),),
        drained_slots=frozenset({"cpu-6"}),
        breakers=(CircuitBreaker("sea/north/1/small/on-demand", "capacity", 3, NOW + 240, "none left"),),
        recent_launches=tuple(RecentLaunch(NOW - 5 * n, "cpu", "sky", ("ada",)) for n in range(30)),
        spent=(Spent("", "", "2026-03", "EUR", Decimal("412.50")),
               Spent("project", "atlas", "2026-03", "EUR", Decimal("300.00")),
               Spent("user", "ada", "2026-03", "EUR", Decimal("99.10"))),
    )  # fmt: skip
    return replace(found, snapshot=snapshot)


def _without_offers() -> PolicySample:
    found = _sample("clouds that cannot be read", (_job("801"),))
    clouds = {name: CloudView(Unavailable("timed out", NOW - 60), ()) for name in ("sky", "sea")}
    snapshot = replace(found.snapshot, clouds=clouds)
    return replace(found, snapshot=snapshot, target=Target(offers=dict.fromkeys(POOLS, ())))


def _unread() -> PolicySample:
    snapshot = replace(_snapshot(), slurm=Unavailable("slurmctld does not answer", NOW - 30))
    return PolicySample("a Slurm that cannot be read", snapshot, Target(offers=OFFERS))


def _sample(
    title: str, jobs: tuple[Job, ...] = (), claims: tuple[Claim, ...] = (), busy: tuple[str, ...] = ()
) -> PolicySample:
    snapshot = _snapshot(jobs, claims, busy)
    free = {name: list(snapshot.free_slots(pool)) for name, pool in POOLS.items()}
    wants: list[Want] = []
    remarks: list[Remark] = []
    for job in jobs:
        pool = "gpu" if "gpu" in job.partitions else "cpu"
        if job.state is not JobState.PENDING:
            continue
        if len(free[pool]) < job.nodes:
            remarks.append(Remark("placement", f"job:{job.id}", "wait", f"pool {pool} has no free slot left"))
            continue
        slots, free[pool] = tuple(free[pool][: job.nodes]), free[pool][job.nodes :]
        wants.append(
            Want(pool, job.nodes, Cause.DEMAND, f"for job {job.id}", OFFERS[pool], slots=slots, jobs=(job.id,),
                 users=(job.user,), accounts=(job.account,) if job.account else (),
                 gang=job.id if job.nodes > 1 else "")
        )  # fmt: skip
        remarks.append(Remark("placement", f"job:{job.id}", "boot", f"it gets {job.nodes} new node(s)"))
    releases = tuple(
        NodeRelease(claim.id, claim.pool, f"{claim.slot} is idle")
        for claim in claims
        if claim.state is ClaimState.IN_SERVICE and claim.slot not in busy
    )
    return PolicySample(title, snapshot, Target(tuple(wants), releases, tuple(remarks), OFFERS))


def _snapshot(jobs: tuple[Job, ...] = (), claims: tuple[Claim, ...] = (), busy: tuple[str, ...] = ()) -> Snapshot:
    up = {claim.slot for claim in claims if claim.state is ClaimState.IN_SERVICE}
    nodes = {slot: _node(slot, up=slot in up, busy=slot in busy) for pool in POOLS.values() for slot in pool.slots}
    nodes["op-1"] = Node("op-1", "ALLOCATED", partitions=("onprem",), cpus=64, cpus_allocated=64, memory_mib=256_000)
    closed = Reservation("burstd", frozenset(slot for slot in nodes if slot not in up and slot != "op-1"))
    every = [offer for some in OFFERS.values() for offer in some]
    clouds = {
        name: CloudView(tuple(o for o in every if o.provider == name), (), instances_listed=NOW)
        for name in ("sky", "sea")
    }
    return Snapshot(NOW, "samples", POOLS, SlurmView(jobs, nodes, (closed,), NOW), clouds, claims)


def _job(job_id: str, **fields: Any) -> Job:
    base = Job(
        job_id, "ada", JobState.PENDING, ("burst",), NOW - 300, reason="Resources", cpus=4, memory_mib=8000,
        eligible=NOW - 300, time_limit_s=3600.0,
    )  # fmt: skip
    return replace(base, **fields)


def _claim(slot: str, **fields: Any) -> Claim:
    pool = slot.partition("-")[0]
    base = Claim(
        f"c-{slot}",
        "samples",
        pool,
        slot,
        OFFERS[pool][0],
        Cause.DEMAND,
        ClaimState.IN_SERVICE,
        NOW - 4000,
        NOW - 3600,
        launch_called=NOW - 3990,
        billed_from=NOW - 3990,
        instance_id=f"i-{slot}",
    )
    made = replace(base, **fields)
    return replace(made, in_service_from=made.since if made.state is ClaimState.IN_SERVICE else None)


def _node(slot: str, *, up: bool, busy: bool) -> Node:
    shape = POOLS[slot.partition("-")[0]].shape
    return Node(
        slot, "ALLOCATED" if busy else "IDLE", frozenset({"CLOUD"} if up else {"CLOUD", "POWERED_DOWN"}), ("burst",),
        cpus=shape.cpus, cpus_allocated=shape.cpus if busy else 0, memory_mib=shape.memory_mib, gres=shape.gres,
        features=shape.features, last_busy=NOW - 3000,
    )  # fmt: skip
