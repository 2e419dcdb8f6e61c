"""A busy site of any size, as values: four pools, a partition on premises, three projects, waiting and running jobs."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.idle_gpus import IdleJob, IdleNode
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Policy, PolicyPlugin
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape, SharedGpu, split_shards
from burstd.domain.snapshot import CircuitBreaker, CloudView, Pin, SlurmView, Snapshot
from burstd.planner.decide import Decider
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.timeouts import Tuning
from policies import backlog, idle, limits
from tests.api.world import CLUSTER, NOW

SHAPES = {
    "a100": Shape(64, 512_000, (Gres("gpu", "a100", 8),), frozenset({"a100"})),
    "l40s": Shape(32, 256_000, (Gres("gpu", "l40s", 4),), frozenset({"l40s"})),
    "shared": Shape(16, 128_000, (Gres("gpu", "t4", 4), Gres("shard", "", 16)), frozenset({"t4"})),
    "cpu": Shape(64, 256_000),
}
PRICES = {"a100": "27.45", "l40s": "6.72", "shared": "2.12", "cpu": "2.30"}
ACCOUNTS = ("climate", "genomics", "vision", "physics")
NAMES = ("train", "simulate", "align", "render", "sweep", "infer")
_STATES = (S.IN_SERVICE, S.IN_SERVICE, S.IN_SERVICE, S.IN_SERVICE, S.BOOTING, S.IN_SERVICE, S.READY, S.DRAINING)


def busy_site(nodes: int, jobs: int) -> tuple[Snapshot, Plan]:
    """So many slots, half of them with machines, and so many pending jobs; with the plan for them."""
    pools: dict[str, Pool] = {}
    known: dict[str, Node] = {}
    claims: list[Claim] = []
    instances: list[Instance] = []
    running: list[Job] = []
    offers: list[Offer] = []
    for name, shape in SHAPES.items():
        slots = tuple(f"{name}-{n}" for n in range(1, nodes // len(SHAPES) + 1))
        pools[name] = Pool(name, slots, ("burst",), shape, (OfferRule("sandbox"),))
        offers += [
            Offer("sandbox", "local", zone, f"{name}.large", spot=False, shape=shape, price=Decimal(PRICES[name]) + at)
            for at, zone in enumerate("abc")
        ]
        for n, slot in enumerate(slots):
            if n >= len(slots) // 2:
                flags = {"CLOUD", "POWERED_DOWN"} if n % 11 else {"CLOUD", "POWERED_DOWN", "DRAIN"}
                known[slot] = _node(slot, shape, "IDLE", flags)
                continue
            state, busy = _STATES[n % len(_STATES)], n % 5 != 4
            job = str(900_000 + len(running))
            claim = Claim(
                id=f"c-{slot}",
                cluster=CLUSTER,
                pool=name,
                slot=slot,
                offer=offers[-3],
                cause=Cause.DEMAND,
                state=state,
                created=NOW - (700 + n if state is not S.BOOTING else 10 + n % 40),
                since=NOW - 600 + n % 300,
                reason="registered",
                instance_id=f"i-{slot}",
                address="10.0.0.9",
                launch_called=NOW - 690 - n,
                billed_from=NOW - 690 - n,
                attempts=1,
                in_service_from=NOW - 600 if state in (S.IN_SERVICE, S.DRAINING) else None,
                jobs=(job,),
                users=(f"user{n % 40}",),
                accounts=(ACCOUNTS[n % 4],),
            )
            claims.append(claim)
            instances.append(Instance(claim.instance_id, "sandbox", InstanceState.RUNNING, claim.id))
            if state is not S.IN_SERVICE or not busy:
                known[slot] = _node(slot, shape, "IDLE", {"CLOUD"})
                continue
            known[slot] = _busy_node(slot, shape, n)
            running.append(
                Job(
                    job,
                    f"user{n % 40}",
                    JobState.RUNNING,
                    ("burst",),
                    NOW - 900,
                    name=NAMES[n % 6],
                    account=ACCOUNTS[n % 4],
                    cpus=shape.cpus // 2,
                    start=NOW - 500,
                    end=NOW + 3000 + 60 * n,
                    node_list=(slot,),
                    time_limit_s=7200.0,
                    gres_per_node=shape.gres[:1],
                )
            )
    for n in range(max(8, nodes // 40)):
        known[f"site-{n + 1}"] = _busy_node(f"site-{n + 1}", SHAPES["l40s"], n, "onprem", set())
    rows = (*running, *(_pending(n) for n in range(jobs)))
    snapshot = Snapshot(
        now=NOW - 1,
        cluster=CLUSTER,
        pools=pools,
        slurm=SlurmView(rows, known, (), NOW - 1.2, "24.11.5"),
        clouds={"sandbox": CloudView(tuple(offers), tuple(instances), (), instances_listed=NOW - 3)},
        claims=tuple(claims),
        pins=(Pin("a100", 4, "floor", NOW + 7200, "user:root", NOW - 60),),
        breakers=(CircuitBreaker("sandbox/local/c/l40s.large/on-demand", "capacity", 3, NOW + 240, "no l40s left"),),
    )
    snapshot = replace(snapshot, outlook=job_outlooks(snapshot))
    plan = Decider().decide(snapshot, site_policies(max(4, nodes * 5 // 8)), Tuning())
    return snapshot, replace(plan, idle_gpus=tuple(map(_idle_job, [job for job in running if job.gres_per_node][:3])))


def _idle_job(job: Job) -> IdleJob:
    cost = Decimal("3.43")
    return IdleJob(
        job.id, 0, 1, 4, NOW - 1200, 1200.0, (("EUR", cost),), nodes=(IdleNode(job.node_list[0], 1, cost, "EUR"),),
        text="idle since 14:53 UTC; the job is cancelled at 15:23 UTC if that goes on",
    )  # fmt: skip


def site_policies(most: int) -> tuple[Policy, ...]:
    """The common chain, with a limit on nodes."""
    chain: tuple[tuple[PolicyPlugin, dict[str, int]], ...] = (
        (backlog.plugin, {}),
        (idle.plugin, {}),
        (limits.plugin, {"nodes": most}),
    )
    return tuple(plugin.make(plugin.settings(**given)) for plugin, given in chain)


def _node(name: str, shape: Shape, state: str, flags: set[str], partition: str = "burst") -> Node:
    return Node(
        name,
        state,
        frozenset(flags),
        (partition,),
        cpus=shape.cpus,
        memory_mib=shape.memory_mib,
        gres=shape.gres,
        features=shape.features,
        shared_gpus=split_shards(shape.gres),
    )


def _busy_node(name: str, shape: Shape, n: int, partition: str = "burst", flags: set[str] | None = None) -> Node:
    node = _node(name, shape, "MIXED", {"CLOUD"} if flags is None else flags, partition)
    gpus = [g for g in shape.gres if g.name == "gpu"]
    if n % 29 == 28:
        return replace(node, state="DOWN", reason="xid 79: GPU has fallen off the bus")
    return replace(
        node,
        cpus_allocated=shape.cpus // 2,
        memory_allocated_mib=shape.memory_mib // 2,
        gres_used=tuple(replace(g, count=1 + n % g.count) for g in gpus),
        shared_gpus=tuple(
            SharedGpu(g.type, g.shards, (n + at) % (g.shards + 1)) for at, g in enumerate(node.shared_gpus)
        ),
    )


def _pending(n: int) -> Job:
    kind = n * 7919 % 50
    gres = (Gres("gpu", ("a100", "l40s", "")[kind % 3], 1 + kind % 4),) if kind % 2 else ()
    if kind == 49:
        gres = (Gres("gpu", "h100", 8),)
    return Job(
        str(1_000_000 + n),
        f"user{n % 40}",
        JobState.PENDING,
        ("burst", "onprem") if kind % 3 else ("burst",),
        NOW - 60 - n,
        name=f"{NAMES[n % 6]}-{n % 97}",
        account=ACCOUNTS[n % 4],
        reason="JobHeldUser" if kind == 7 else "Resources",
        priority=100_000 - n,
        cpus=1 + kind % 16,
        memory_mib=1000 + 10 * kind,
        gres_per_node=gres,
        eligible=NOW - 50 - n,
        time_limit_s=3600.0 * (1 + kind % 8),
    )
