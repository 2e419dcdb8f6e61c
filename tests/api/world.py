"""A cluster in the middle of a busy hour, as values: two pools, two clouds (one of them down), two users, one gang."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from burstd.domain.claim import Cause, Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import CircuitBreaker, CloudView, Pin, SlurmView, Snapshot, Unavailable

NOW = 1_790_000_000.0
CLUSTER = "ada"
USER, OTHER_USER = "nobody", "daemon"
"""Two accounts that every Debian has: the user who asks, and another one."""

V100 = Shape(8, 65536, (Gres("gpu", "v100", 4),))
SMALL = Shape(4, 16000)
GPU = Pool("gpu", tuple(f"gpu{n}" for n in range(1, 9)), ("burst",), V100, (OfferRule("sandbox"), OfferRule("sky")))
CPU = Pool("cpu", ("cpu1", "cpu2"), ("burst", "short"), SMALL, (OfferRule("sandbox"),))


def offer(kind: str, price: str, shape: Shape = V100, zone: str = "a") -> Offer:
    return Offer("sandbox", "local", zone, kind, spot=False, shape=shape, price=Decimal(price))


G4, G8, C4 = offer("g4", "3.06"), offer("g8", "5.10", zone="b"), offer("c4", "0.20", SMALL)


@dataclass
class FixedClock:
    time: float = NOW

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


def claim(slot: str, state: S, age: float, **fields: Any) -> Claim:
    """A claim that came into its state ``age`` seconds ago and was made 40 s before that."""
    pool = "gpu" if slot.startswith("gpu") else "cpu"
    base = Claim(
        id=f"c-{slot}", cluster=CLUSTER, pool=pool, slot=slot, offer=G4 if pool == "gpu" else C4, cause=Cause.DEMAND,
        state=state, created=NOW - age - 40, since=NOW - age, reason=f"for job {slot}", instance_id=f"i-{slot}",
        address="10.0.0.9", launch_called=NOW - age - 39, billed_from=NOW - age - 39, attempts=1,
    )  # fmt: skip
    return replace(base, **fields)


CLAIMS = (
    claim("gpu1", S.IN_SERVICE, 600, jobs=("101",), users=(USER,), in_service_from=NOW - 600, reason="for job 101"),
    claim(
        "gpu2",
        S.IN_SERVICE,
        300,
        jobs=("102", "101"),
        users=(OTHER_USER, USER),
        in_service_from=NOW - 300,
        reason="for jobs 102, 101",
    ),
    claim("gpu3", S.BOOTING, 12, jobs=("103",), users=(OTHER_USER,), reason="the cloud has made i-gpu3", gang="103"),
    claim("gpu4", S.READY, 3, jobs=("103",), users=(OTHER_USER,), reason="registered", gang="103"),
    claim("gpu5", S.TERMINATING, 4, error="boot_timeout", reason="the machine never answered"),
    claim("cpu1", S.DRAINING, 8, cause=Cause.FLOOR, reason="idle for 300 s"),
)


def job(job_id: str, user: str, state: JobState = JobState.PENDING, **fields: Any) -> Job:
    base = Job(job_id, user, state, ("burst",), NOW - 120, reason="Resources" if state is JobState.PENDING else "",
               priority=1000 - int(job_id.partition("_")[0]), cpus=8, gres_per_node=(Gres("gpu", "", 4),))  # fmt: skip
    return replace(base, **fields)


JOBS = (
    job("101", USER, JobState.RUNNING, node_list=("gpu1",), name="train"),
    job("102", OTHER_USER, JobState.RUNNING, node_list=("gpu2",), name="secret-project"),
    job("103", OTHER_USER, nodes=2, cpus=16, name="gang"),
    job("104", USER, array_job_id="104", array_tasks="1-3", tasks=3, cpus=1, name="sweep"),
    job("105", USER, reason="JobHeldUser"),
    job("106", OTHER_USER, gres_per_node=(Gres("gpu", "h100", 1),), name="impossible"),
    job("107", OTHER_USER, partitions=("onprem",)),
)


def node(slot: str) -> Node:
    shape = V100 if slot.startswith("gpu") else SMALL
    flags = {"gpu1": {"CLOUD"}, "gpu2": {"CLOUD"}, "gpu4": {"CLOUD", "RESERVED"}, "cpu1": {"CLOUD", "RESERVED"}}
    busy = slot == "gpu1"
    return Node(
        slot, "ALLOCATED" if busy else "IDLE", frozenset(flags.get(slot, {"CLOUD", "POWERED_DOWN"})), ("burst",),
        cpus=shape.cpus, cpus_allocated=8 if busy else 0, memory_mib=shape.memory_mib, gres=shape.gres,
    )  # fmt: skip


SLURM = SlurmView(
    JOBS,
    {slot: node(slot) for pool in (GPU, CPU) for slot in pool.slots},
    (Reservation("burstd", frozenset(("gpu3", "gpu4", "gpu5", "gpu6", "gpu7", "gpu8", "cpu1", "cpu2"))),),
    NOW - 0.2,
    "22.05.8",
)
INSTANCES = tuple(
    Instance(f"i-{c.slot}", "sandbox", InstanceState.RUNNING, c.id) for c in CLAIMS if c.state is not S.PLANNED
)
CLOUDS = {
    "sandbox": CloudView((G4, G8, C4), INSTANCES, (), instances_listed=NOW - 2),
    "sky": CloudView(
        Unavailable("no answer from keystone within 10 s", NOW - 300), Unavailable("no answer", NOW - 300)
    ),
}
SNAPSHOT = Snapshot(
    now=NOW - 1,
    cluster=CLUSTER,
    pools={"gpu": GPU, "cpu": CPU},
    slurm=SLURM,
    clouds=CLOUDS,
    claims=CLAIMS,
    pins=(Pin("gpu", 4, "floor", NOW + 7200, "user:root", NOW - 60),),
    drained_slots=frozenset({"gpu8"}),
    breakers=(CircuitBreaker("sandbox/local/b/g8/on-demand", "capacity", 3, NOW + 240, "zone b has no g8"),),
)
