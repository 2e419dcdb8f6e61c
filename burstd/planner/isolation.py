"""Jobs, nodes and clouds that a decision cannot be made with: found out, left out, and left alone.

A subject is ``job:ID``, ``node:NAME`` (the node and the machine behind it) or ``cloud:NAME``. Without a job, its demand
is not seen; its nodes are not touched either. A node's slot stays as it is, behind the gate where it was there. A cloud
is Unavailable, on which nothing is destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from burstd.domain.plan import (
    Action,
    Adopt,
    Bind,
    Drain,
    Interrupted,
    Launch,
    Learn,
    MakeClaim,
    Move,
    NodeDown,
    Plan,
    PowerDown,
    Prove,
    Reach,
    Register,
    RemoveOrphans,
    Requeue,
    SetGate,
    Start,
    StartNow,
    Terminate,
    Unbind,
    Undrain,
)
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable

MOST = 8
"""So many subjects are found at once; where more are to blame, the next look finds the next."""


def job(job_id: str) -> str:
    """The subject of a job."""
    return f"job:{job_id}"


def node(name: str) -> str:
    """The subject of a node, and of what stands behind it."""
    return f"node:{name}"


def cloud(name: str) -> str:
    """The subject of a provider."""
    return f"cloud:{name}"


def subjects(snapshot: Snapshot) -> list[str]:
    """All that a decision could fail on."""
    slurm = snapshot.slurm if isinstance(snapshot.slurm, SlurmView) else None
    slots = {c.slot for c in (*snapshot.claims, *snapshot.storage)} | set(slurm.nodes if slurm else ())
    jobs = dict.fromkeys([j.id for j in (slurm.jobs if slurm else ())] + [*snapshot.data])
    return [*map(job, jobs), *map(node, sorted(slots)), *map(cloud, snapshot.clouds)]


def to_blame(known: Sequence[str], works: Callable[[Collection[str]], bool]) -> tuple[str, ...]:
    """Those without which it works; empty: that cannot be told. ``works`` is asked for each set that is left out.

    Each costs as many tries as the logarithm of their number.
    """
    found: list[str] = []
    if not works(known):
        return ()
    while not found or not works(found):
        if len(found) == MOST:
            break
        # The shortest beginning without which it works ends with one that is to blame.
        low, high = 0, len(known)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if works([*known[:middle], *found]) else (middle + 1, high)
        if not low or known[low - 1] in found:
            return ()
        found.append(known[low - 1])
    return tuple(found)


def without(snapshot: Snapshot, held: Collection[str]) -> Snapshot:
    """The snapshot as if these were not there."""
    if not held:
        return snapshot
    slurm = snapshot.slurm
    if isinstance(slurm, SlurmView):
        nodes = {name: n for name, n in slurm.nodes.items() if node(name) not in held}
        slurm = replace(slurm, jobs=tuple(j for j in slurm.jobs if job(j.id) not in held), nodes=nodes)
    broken = Unavailable("burstd fails on what it says", 0.0)
    return replace(
        snapshot,
        slurm=slurm,
        claims=tuple(c for c in snapshot.claims if node(c.slot) not in held),
        storage=tuple(c for c in snapshot.storage if node(c.slot) not in held),
        left_alone=tuple(c for c in (*snapshot.claims, *snapshot.storage) if node(c.slot) in held),
        clouds={
            name: replace(view, offers=broken, instances=broken, leftovers=broken) if cloud(name) in held else view
            for name, view in snapshot.clouds.items()
        },
        data={job_id: data for job_id, data in snapshot.data.items() if job(job_id) not in held},
        pools={
            name: replace(pool, slots=tuple(s for s in pool.slots if node(s) not in held))
            if any(node(s) in held for s in pool.slots) else pool
            for name, pool in snapshot.pools.items()
        },
    )  # fmt: skip


def untouched(snapshot: Snapshot, held: Collection[str]) -> frozenset[str]:
    """These with what is to be left alone for their sake: nodes of such jobs, and machines of such clouds."""
    more = set(held)
    if isinstance(snapshot.slurm, SlurmView):
        more |= {node(name) for j in snapshot.slurm.jobs if job(j.id) in held for name in j.node_list}
    more |= {node(name) for job_id, names in snapshot.bound.items() if job(job_id) in held for name in names}
    more |= {node(name) for job_id, data in snapshot.data.items() if job(job_id) in held for name in data.nodes}
    every = (*snapshot.claims, *snapshot.storage)
    return frozenset(more | {node(c.slot) for c in every if cloud(c.offer.provider) in held})


def spared(plan: Plan, snapshot: Snapshot, held: Collection[str]) -> Plan:
    """The plan without what touches these. ``snapshot`` is the whole one; ``held`` comes from ``untouched``."""
    if not held:
        return plan
    claims = {c.id: c.slot for c in (*snapshot.claims, *snapshot.storage)}
    left = [kept for action in plan.actions if (kept := _spared(action, snapshot, claims, held)) is not None]
    return replace(plan, actions=tuple(left))


def concerned(action: Action, claims: Mapping[str, str]) -> tuple[str, ...]:
    """The subjects of a step. ``claims``: the slot of each."""
    found: list[str] = []
    match action:
        case Move() | Learn() | Prove() | Reach() | Start() | Launch():
            found = [node(claims.get(action.claim_id, action.claim_id))]
        case Adopt():
            found = [node(action.claim.slot), *map(job, action.claim.jobs)]
        case MakeClaim():
            found = [node(action.slot), *map(job, action.jobs)]
        case Register():
            found = [node(name) for name, _ in action.addresses]
        case Terminate():
            found = [node(claims.get(claim_id, claim_id)) for claim_id in action.claims]
        case Bind():
            found = [job(action.job_id), *map(node, action.nodes)]
        case Unbind():
            found = [job(action.job_id)]
        case Drain() | Undrain() | NodeDown() | PowerDown():
            found = [*map(node, action.nodes)]
        case Requeue() | Interrupted():
            found = [job(row) for run in action.runs for row in run.rows]
        case StartNow():
            found = [*map(job, action.jobs)]
        case RemoveOrphans():
            found = [cloud(action.provider)]
        case SetGate():
            found = [node(claims.get(claim_id, claim_id)) for claim_id in (*action.opens, *action.closes)]
    return tuple(found)


def parts(action: Action, claims: Mapping[str, str]) -> list[Action]:
    """A step over several nodes or jobs as steps of one each; none where it cannot be parted. See ``concerned``."""
    match action:
        case Register() if len(action.addresses) > 1:
            return [Register((pair,)) for pair in action.addresses]
        case Drain() if len(action.nodes) > 1:
            pairs = zip(action.claims, action.nodes, strict=True)
            return [Drain((claim_id,), (name,), action.reason) for claim_id, name in pairs]
        case StartNow() if len(action.jobs) > 1:
            return [StartNow((one,)) for one in action.jobs]
        case Undrain() if len(action.nodes) > 1:
            return [Undrain((name,)) for name in action.nodes]
        case Terminate() if len(action.claims) > 1:
            return [Terminate((claim_id,), action.reason) for claim_id in action.claims]
        case Requeue() if len(action.runs) > 1:
            return [Requeue((run,)) for run in action.runs]
        case Interrupted() if len(action.runs) > 1:
            return [Interrupted((run,)) for run in action.runs]
        case NodeDown() if len(action.nodes) > 1:
            return [NodeDown((name,), action.reason) for name in action.nodes]
        case PowerDown() if len(action.nodes) > 1:
            return [
                replace(action, nodes=(name,), ends=tuple(c for c in action.ends if claims.get(c) == name))
                for name in action.nodes
            ]
        case _:
            return []


def _spared(action: Action, snapshot: Snapshot, claims: Mapping[str, str], held: Collection[str]) -> Action | None:
    if isinstance(action, SetGate):
        return _gate(action, snapshot, claims, held)
    if isinstance(action, RemoveOrphans):
        return _orphans(action, snapshot, held)
    if isinstance(action, Terminate):
        rest = tuple(c for c in action.claims if node(claims.get(c, c)) not in held)
        return replace(action, claims=rest) if rest else None
    if isinstance(action, PowerDown):
        nodes = tuple(n for n in action.nodes if node(n) not in held)
        ends = tuple(c for c in action.ends if node(claims.get(c, c)) not in held)
        return replace(action, nodes=nodes, ends=ends) if nodes else None
    if isinstance(action, Register):
        addresses = tuple(pair for pair in action.addresses if node(pair[0]) not in held)
        return replace(action, addresses=addresses) if addresses else None
    return None if any(subject in held for subject in concerned(action, claims)) else action


def _gate(action: SetGate, snapshot: Snapshot, claims: Mapping[str, str], held: Collection[str]) -> SetGate | None:
    """Nodes that are left alone stay where they are: behind the gate, or not."""
    if not isinstance(snapshot.slurm, SlurmView):
        return None
    gates = [r.nodes for r in snapshot.slurm.reservations if action.nodes & r.nodes and not r.job_id]
    before: frozenset[str] = frozenset().union(*gates)
    fixed = {name for name in snapshot.slurm.nodes if node(name) in held}
    nodes = frozenset((action.nodes - fixed) | (before & fixed))
    moves = [
        (claim_id, why, claim_id in action.opens)
        for claim_id, why in zip((*action.opens, *action.closes), action.why, strict=True)
        if node(claims.get(claim_id, claim_id)) not in held
    ]
    if nodes == before and not moves:
        return None
    opens = tuple(claim_id for claim_id, _, opening in moves if opening)
    closes = tuple(claim_id for claim_id, _, opening in moves if not opening)
    why = (*(w for _, w, opening in moves if opening), *(w for _, w, opening in moves if not opening))
    return replace(action, nodes=nodes, opens=opens, closes=closes, why=why)


def _orphans(action: RemoveOrphans, snapshot: Snapshot, held: Collection[str]) -> RemoveOrphans | None:
    """What belongs to a claim that is left out looks as if it were nobody's."""
    every = (*snapshot.claims, *snapshot.storage)
    ids = {c.instance_id for c in every if node(c.slot) in held} - {""}
    owners = {c.id for c in every if node(c.slot) in held}
    addresses = (
        {n.address for n in snapshot.slurm.nodes.values() if node(n.name) in held}
        if isinstance(snapshot.slurm, SlurmView)
        else set()
    )
    instances = tuple(
        i for i in action.instances if not (i.id in ids or i.claim_id in owners or i.address in addresses)
    )
    leftovers = tuple(left for left in action.leftovers if left.claim_id not in owners)
    return replace(action, instances=instances, leftovers=leftovers) if instances or leftovers else None
