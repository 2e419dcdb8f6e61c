"""Hypothesis strategies for snapshots and what is in them: small worlds, odd in every way that real ones are.

``snapshots()`` draws one world; ``situations()`` a world and a Target such as placement could have made of it.
Times are within an hour of NOW, slots are ``POOL-N``, users ``ada``, ``bob`` and ``eve``.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import strategies as st

from burstd.domain.billing.costs import Spent
from burstd.domain.claim import USABLE, Cause, Claim, ClaimState
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

NOW = 1_700_000_000.0
USERS = ("ada", "bob", "eve")
ACCOUNTS = ("atlas", "belle", "")
PROVIDERS = ("sky", "sea")
REASONS = (
    "None", "Resources", "Priority", "ReqNodeNotAvail", "JobHeldUser", "Dependency", "QOSMaxJobsPerUserLimit",
    "BeginTime", "BurstBufferStageIn", "Licenses", "SomethingNew",
)  # fmt: skip
CONSTRAINTS = ("fast", "fast|big", "fast&big", "[fast|big]", "[fast*1&big*1]", "fast&&", "!fast")

shapes = st.builds(
    Shape,
    cpus=st.sampled_from((4, 16, 8, 2)),
    memory_mib=st.sampled_from((64_000, 8000, 4000)),
    gres=st.sampled_from(((), (), (Gres("gpu", "v100", 4),), (Gres("gpu", "", 2),), (Gres("gpu", "a100", 1),))),
    features=st.sampled_from((frozenset({"fast"}), frozenset({"fast", "big"}), frozenset({"big"}), frozenset[str]())),
)

rules = st.builds(
    OfferRule,
    provider=st.sampled_from(PROVIDERS),
    markets=st.sampled_from((("on-demand", "spot"), ("on-demand",), ("spot",))),
)


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Pool]:
    """One to three pools of up to eight slots."""
    found = {}
    for name in draw(st.sampled_from((("cpu",), ("cpu", "gpu"), ("cpu", "gpu", "big")))):
        slots = tuple(f"{name}-{n}" for n in range(1, draw(st.sampled_from((4, 8, 6, 2, 1))) + 1))
        partitions = draw(st.sampled_from((("burst",), ("burst", "gpu"), ("burst",), ("gpu",))))
        allowed = tuple(draw(st.lists(rules, min_size=1, max_size=3)))
        found[name] = Pool(name, slots, partitions, draw(shapes), allowed, exclusive_user=draw(st.integers(0, 3)) == 0)
    return found


@st.composite
def offers(draw: st.DrawFn, some: dict[str, Pool]) -> dict[str, CloudView]:
    """Two clouds that have offers of the pools' shapes, or cannot be read."""
    views = {}
    for provider in PROVIDERS:
        if draw(st.integers(0, 9)) == 0:
            views[provider] = CloudView(Unavailable("timed out", NOW - 60), ())
            continue
        found = [
            Offer(
                provider, "r1", draw(st.sampled_from(("a", "b"))), f"t-{pool.name}", draw(st.booleans()), pool.shape,
                Decimal(draw(st.integers(1, 50))) / 10,
            )
            for pool in some.values()
            for _ in range(draw(st.sampled_from((2, 1, 1, 0))))
        ]  # fmt: skip
        views[provider] = CloudView(tuple({offer.id: offer for offer in found}.values()), ())
    return views


@st.composite
def jobs(draw: st.DrawFn, number: int = 1) -> Job:
    """One row of the queue, most of them pending and waiting for nodes."""
    tasks = draw(st.sampled_from((1, 1, 1, 3, 20)))
    return Job(
        id=str(number),
        user=draw(st.sampled_from(USERS)),
        state=draw(st.sampled_from((JobState.PENDING,) * 6 + (JobState.RUNNING, JobState.CONFIGURING))),
        partitions=draw(st.sampled_from((*(("burst",),) * 4, ("onprem", "burst"), ("burst", "gpu"), ("onprem",)))),
        submitted=NOW - draw(st.integers(0, 3600)),
        reason=draw(st.sampled_from(REASONS[:4] * 8 + REASONS)),
        priority=draw(st.integers(0, 3)),
        tasks=tasks,
        array_job_id=str(number) if tasks > 1 else "",
        array_tasks=f"1-{tasks}" if tasks > 1 else "",
        tasks_limit=draw(st.sampled_from((0, 0, 2))) if tasks > 1 else 0,
        nodes=draw(st.sampled_from((1, 1, 1, 2, 1, 2, 4))),
        nodes_max=draw(st.sampled_from((0, 0, 4))),
        cpus=draw(st.sampled_from((1, 2, 4, 1, 3, 6, 20))),
        memory_mib=draw(st.sampled_from((0, 500, 0, 500, 3000, 90_000))),
        memory_per_cpu=draw(st.booleans()),
        gres_per_node=draw(st.sampled_from((*((),) * 6, (Gres("gpu", "", 1),), (Gres("gpu", "v100", 2),)))),
        gres_per_job=draw(st.sampled_from((*((),) * 8, (Gres("gpu", "", 4),)))),
        constraint=draw(st.sampled_from(("",) * 10 + CONSTRAINTS)),
        exclusive=draw(st.integers(0, 5)) == 0,
        exclusive_user=draw(st.integers(0, 9)) == 0,
        eligible=NOW + draw(st.sampled_from((-60.0,) * 9 + (0.0, 600.0))),
        excluded_nodes=draw(st.sampled_from((*((),) * 6, ("cpu-1", "gpu-1")))),
        node_list=draw(st.sampled_from((*((),) * 12, ("cpu-2",), ("op-1",)))),
        dependency=draw(st.sampled_from(("",) * 12 + ("afterok:9(unfulfilled)",))),
        account=draw(st.sampled_from(ACCOUNTS)),
        time_limit_s=draw(st.sampled_from((600.0, 3600.0, 86_400.0, 0.0))),
        requeue=draw(st.sampled_from((True, True, False))),
        comment=draw(st.sampled_from(("",) * 8 + ("my own words", "burst: gpu-model=v100 cpu=1.5", "burst: nonsense"))),
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[Job, ...]:
    """Up to twelve rows, some of them components of a het job."""
    rows = [draw(jobs(number)) for number in range(1, draw(st.integers(0, 12)) + 1)]
    if len(rows) > 3 and draw(st.booleans()):
        first, second = rows[0], rows[1]
        one = {"tasks": 1, "array_job_id": "", "array_tasks": "", "tasks_limit": 0}
        rows[0] = replace(first, het_job_id=first.id, **one)  # type: ignore[arg-type]
        rows[1] = replace(second, id=f"{first.id}+1", het_job_id=first.id, het_offset=1, **one)  # type: ignore[arg-type]
    return tuple(rows)


@st.composite
def nodes(draw: st.DrawFn, pool: Pool | None, name: str, *, up: bool) -> Node:
    """Slurm's node of a slot, or (no pool) one of the site's, now and then in a state that should not be."""
    shape = pool.shape if pool else draw(shapes)
    odd = draw(st.integers(0, 9)) == 0
    flags = set() if pool is None else {"CLOUD"}
    if up == odd and pool is not None:
        flags.add("POWERED_DOWN")
    if draw(st.integers(0, 9)) == 0:
        flags.add(draw(st.sampled_from(("DRAIN", "POWERING_UP", "POWERING_DOWN", "COMPLETING", "PLANNED", "RESERVED"))))
    used = 0 if "POWERED_DOWN" in flags else draw(st.sampled_from((0, 0, 1, shape.cpus)))
    return Node(
        name=name,
        state="IDLE" if not used else "ALLOCATED" if used == shape.cpus else "MIXED",
        flags=frozenset(flags),
        partitions=pool.partitions if pool else ("onprem",),
        cpus=shape.cpus,
        cpus_allocated=used,
        memory_mib=shape.memory_mib,
        gres=shape.gres,
        features=shape.features,
        last_busy=NOW - draw(st.sampled_from((10, 400, 4000))),
    )


@st.composite
def claims(draw: st.DrawFn, pool: Pool, slot: str, some: tuple[Offer, ...], waiting: tuple[Job, ...]) -> Claim:
    """A claim on a slot, for some of the jobs."""
    made_for: list[Job] = draw(st.lists(st.sampled_from(waiting), max_size=2)) if waiting else []
    together = draw(st.booleans())
    state = draw(st.sampled_from([s for s in ClaimState if s is not ClaimState.GONE]))
    since = NOW - draw(st.sampled_from((1, 100, 2000)))
    return Claim(
        id=f"c-{slot}",
        cluster="test",
        pool=pool.name,
        slot=slot,
        offer=draw(st.sampled_from(some)),
        cause=draw(st.sampled_from(list(Cause))),
        state=state,
        created=since - 50,
        since=since,
        jobs=tuple(dict.fromkeys(job.id for job in made_for)),
        users=tuple(dict.fromkeys(job.user for job in made_for)),
        gang=made_for[0].id if made_for and together else "",
        in_service_from=since if state is ClaimState.IN_SERVICE else None,
        launch_called=None if state is ClaimState.PLANNED else since - 40,
        billed_from=None if state is ClaimState.PLANNED else since - 40,
        accounts=tuple(dict.fromkeys(job.account for job in made_for if job.account)),
        reserved=Decimal(draw(st.integers(0, 40))) / 10,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A whole world."""
    some = draw(pools())
    clouds = draw(offers(some))
    every = tuple(o for c in clouds.values() if not isinstance(c.offers, Unavailable) for o in c.offers)
    rows = draw(queues())
    made: list[Claim] = []
    seen: dict[str, Node] = {}
    for pool in some.values():
        for slot in pool.slots:
            taken = draw(st.integers(0, 2)) == 2
            claim = draw(claims(pool, slot, every, rows)) if every and taken else None
            if claim is not None:
                made.append(claim)
            up = claim is not None and claim.state in USABLE
            if draw(st.integers(0, 19)):
                seen[slot] = draw(nodes(pool, slot, up=up))
    for number in range(draw(st.integers(0, 3))):
        seen[f"op-{number}"] = draw(nodes(None, f"op-{number}", up=True))
    slots = [slot for pool in some.values() for slot in pool.slots]
    reserved = frozenset(draw(st.lists(st.sampled_from([*seen, "op-0"]), max_size=2)))
    slurm: SlurmView | Unavailable = SlurmView(rows, seen, (Reservation("other", reserved),), NOW)
    if draw(st.integers(0, 19)) == 0:
        slurm = Unavailable("slurmctld does not answer", NOW - 30)
    seen_now = Snapshot(
        now=NOW,
        cluster="test",
        pools=some,
        slurm=slurm,
        clouds=clouds,
        claims=tuple(made),
        pins=tuple(draw(st.lists(_pins(tuple(some)), max_size=2))),
        drained_slots=frozenset(draw(st.lists(st.sampled_from(slots), max_size=1))),
        breakers=tuple(draw(st.lists(_breakers(every), max_size=2))) if every else (),
        recent_launches=tuple(draw(st.lists(_launches(tuple(some)), max_size=4))),
        paused=draw(st.sampled_from(("",) * 9 + ("burstctl hold by ada",))),
        bound={row.id: frozenset({made[0].slot}) for row in rows[:1] if made and draw(st.integers(0, 4)) == 0},
        spent=tuple(draw(st.lists(_spendings(), max_size=3, unique_by=lambda s: (s.kind, s.name, s.month)))),
        ended_claims=tuple(draw(_gone(claim)) for claim in made[:2] if draw(st.booleans())),
        data={row.id: draw(_data()) for row in rows[:3] if draw(st.integers(0, 3)) == 0},
        interruptions={row.id: frozenset(range(draw(st.integers(1, 3)))) for row in rows[-1:] if draw(st.booleans())},
    )
    return replace(seen_now, outlook=FixedOutlooks({row.id: draw(_outlooks()) for row in rows if draw(st.booleans())}))


def _outlooks() -> st.SearchStrategy[Outlook]:
    waits = st.sampled_from((0.0, 60.0, 1800.0, 86400.0, float("inf")))
    lengths = st.sampled_from((0.0, 60.0, 7200.0))
    return st.builds(
        lambda wait, run, boot, staging: Outlook(NOW + wait, "queue", run, "time limit", boot, staging, NOW + wait),
        waits, lengths, lengths, lengths,
    )  # fmt: skip


@st.composite
def situations(draw: st.DrawFn) -> tuple[Snapshot, Target]:
    """A world with a target that placement could have made: wants on free slots, releases of idle claims."""
    snapshot = draw(snapshots())
    allowed = {name: _usable(snapshot, pool) for name, pool in snapshot.pools.items()}
    if isinstance(snapshot.slurm, Unavailable):
        return snapshot, Target(offers=allowed)
    wants: list[Want] = []
    remarks: list[Remark] = []
    waiting = [job for job in snapshot.slurm.jobs if job.state is JobState.PENDING]
    for name, pool in snapshot.pools.items():
        free = list(snapshot.free_slots(pool))
        while free and allowed[name] and waiting and draw(st.booleans()):
            nodes_ = draw(st.integers(1, min(3, len(free))))
            job = draw(st.sampled_from(waiting))
            slots, free = tuple(free[:nodes_]), free[nodes_:]
            gang = f"{job.id}_{len(wants)}" if nodes_ > 1 else ""
            reason = f"job {job.id}"
            accounts = (job.account,) if job.account else ()
            wants.append(
                Want(name, nodes_, Cause.DEMAND, reason, allowed[name], slots=slots, jobs=(job.id,),
                     users=(job.user,), accounts=accounts, gang=gang)
            )  # fmt: skip
            remarks.append(Remark("placement", f"job:{job.id}", "boot", f"it gets {nodes_} new node(s)"))
    releases = tuple(
        NodeRelease(claim.id, claim.pool, f"{claim.slot} is idle")
        for claim in snapshot.claims
        if claim.state in (ClaimState.IN_SERVICE, ClaimState.READY)
        and (node := snapshot.slurm.nodes.get(claim.slot)) is not None
        and not node.busy
        and draw(st.booleans())
    )
    return snapshot, Target(tuple(wants), releases, tuple(remarks), allowed)


def _usable(snapshot: Snapshot, pool: Pool) -> tuple[Offer, ...]:
    found = [
        offer
        for view in snapshot.clouds.values()
        if not isinstance(view.offers, Unavailable)
        for offer in view.offers
        if any(rule.allows(offer) for rule in pool.rules)
    ]
    return tuple(sorted(found, key=lambda offer: (offer.price, offer.id)))


def _pins(names: tuple[str, ...]) -> st.SearchStrategy[Pin]:
    return st.builds(
        Pin,
        pool=st.sampled_from(names),
        nodes=st.integers(0, 8),
        kind=st.sampled_from(("exact", "floor", "ceiling")),
        until=st.sampled_from((None, NOW - 1, NOW + 600)),
        by=st.just("ada"),
        created=st.floats(NOW - 100, NOW),
    )


@st.composite
def _gone(draw: st.DrawFn, claim: Claim) -> EndedClaim:
    error = draw(st.sampled_from(("", "interrupted", "boot")))
    return EndedClaim(NOW - draw(st.sampled_from((10, 900, 3000))), replace(claim, state=ClaimState.GONE, error=error))


@st.composite
def _data(draw: st.DrawFn) -> StagingView:
    """Input of 10 GiB that is in the store, or on its way."""
    state = draw(st.sampled_from((StageState.STAGED, StageState.STAGED, StageState.UPLOADING)))
    left = 2**33 if state is StageState.UPLOADING else 0
    ready = NOW + draw(st.sampled_from((0.0, 60.0))) if left else 0.0
    return StagingView(
        state, ready, since=NOW - 60, store=draw(st.sampled_from(("s3", ""))), size=10 * 2**30, bytes_left=left
    )


@st.composite
def _spendings(draw: st.DrawFn) -> Spent:
    kind, name = draw(st.sampled_from((("project", "atlas"), ("project", "belle"), ("user", "ada"), ("", ""))))
    month = draw(st.sampled_from(("2023-11", "2023-10")))
    return Spent(kind, name, month, "EUR", Decimal(draw(st.integers(0, 100))) / 10)


def _breakers(every: tuple[Offer, ...]) -> st.SearchStrategy[CircuitBreaker]:
    return st.builds(
        CircuitBreaker,
        key=st.sampled_from([offer.id for offer in every] + ["sky/*/*/*/*"]),
        cause=st.sampled_from(("capacity", "boot", "auth")),
        failures=st.integers(1, 5),
        until=st.sampled_from((NOW - 10, NOW + 100)),
    )


def _launches(names: tuple[str, ...]) -> st.SearchStrategy[RecentLaunch]:
    return st.builds(
        RecentLaunch,
        at=st.sampled_from((NOW - 10, NOW - 59, NOW - 600)),
        pool=st.sampled_from(names),
        provider=st.sampled_from(PROVIDERS),
        users=st.sampled_from(((), ("ada",), ("ada", "bob"))),
    )
