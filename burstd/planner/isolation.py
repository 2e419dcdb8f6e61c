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
    ActOnIdleJobs,
    AdoptMachine,
    BindJob,
    ChangeClaimState,
    DrainNodes,
    HandOver,
    HoldJob,
    LaunchMachine,
    MakeClaim,
    Plan,
    PowerDown,
    ProbeMachine,
    RecordAddress,
    RecordIdleJobs,
    RecordInterruptions,
    RegisterNodes,
    RemoveOrphans,
    RequeueJobs,
    SetGate,
    SetNodesDown,
    StartJobsNow,
    StartSlurmd,
    TerminateMachines,
    TestFabric,
    UnbindJob,
    UndrainNodes,
    UpdateJobs,
    ValidateNode,
    WarnJobs,
)
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable

MAX_CULPRITS = 8
"""So many subjects are found at once; where more are to blame, the next look finds the next."""


def job_subject(job_id: str) -> str:
    """The subject of a job."""
    return f"job:{job_id}"


def node_subject(name: str) -> str:
    """The subject of a node, and of what stands behind it."""
    return f"node:{name}"


def cloud_subject(name: str) -> str:
    """The subject of a provider."""
    return f"cloud:{name}"


def all_subjects(snapshot: Snapshot) -> list[str]:
    """All that a decision could fail on."""
    slurm = snapshot.slurm if isinstance(snapshot.slurm, SlurmView) else None
    slots = {c.slot for c in (*snapshot.claims, *snapshot.storage_claims)} | set(slurm.nodes if slurm else ())
    jobs = dict.fromkeys([j.id for j in (slurm.jobs if slurm else ())] + [*snapshot.data])
    return [*map(job_subject, jobs), *map(node_subject, sorted(slots)), *map(cloud_subject, snapshot.clouds)]


def find_culprits(suspects: Sequence[str], succeeds_without: Callable[[Collection[str]], bool]) -> tuple[str, ...]:
    """Those without which a decision succeeds; empty: unknown. ``succeeds_without`` is called with sets to leave out.

    Each costs as many tries as the logarithm of their number.
    """
    culprits: list[str] = []
    if not succeeds_without(suspects):
        return ()
    while not culprits or not succeeds_without(culprits):
        if len(culprits) == MAX_CULPRITS:
            break
        # The shortest beginning without which it works ends with one that is to blame.
        low, high = 0, len(suspects)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if succeeds_without([*suspects[:middle], *culprits]) else (middle + 1, high)
        if not low or suspects[low - 1] in culprits:
            return ()
        culprits.append(suspects[low - 1])
    return tuple(culprits)


def without_subjects(snapshot: Snapshot, quarantined: Collection[str]) -> Snapshot:
    """The snapshot as if these were not there."""
    if not quarantined:
        return snapshot
    slurm = snapshot.slurm
    if isinstance(slurm, SlurmView):
        nodes = {name: n for name, n in slurm.nodes.items() if node_subject(name) not in quarantined}
        slurm = replace(slurm, jobs=tuple(j for j in slurm.jobs if job_subject(j.id) not in quarantined), nodes=nodes)
    unavailable = Unavailable("burstd fails on what it says", 0.0)
    return replace(
        snapshot,
        slurm=slurm,
        claims=tuple(c for c in snapshot.claims if node_subject(c.slot) not in quarantined),
        storage_claims=tuple(c for c in snapshot.storage_claims if node_subject(c.slot) not in quarantined),
        quarantined_claims=tuple(
            c for c in (*snapshot.claims, *snapshot.storage_claims) if node_subject(c.slot) in quarantined
        ),
        clouds={
            name: replace(view, offers=unavailable, instances=unavailable, leftovers=unavailable)
            if cloud_subject(name) in quarantined
            else view
            for name, view in snapshot.clouds.items()
        },
        data={job_id: data for job_id, data in snapshot.data.items() if job_subject(job_id) not in quarantined},
        pools={
            name: replace(pool, slots=tuple(s for s in pool.slots if node_subject(s) not in quarantined))
            if any(node_subject(s) in quarantined for s in pool.slots)
            else pool
            for name, pool in snapshot.pools.items()
        },
    )


def with_affected_nodes(snapshot: Snapshot, quarantined: Collection[str]) -> frozenset[str]:
    """These with what is to be left alone for their sake: nodes of such jobs, and machines of such clouds."""
    affected = set(quarantined)
    if isinstance(snapshot.slurm, SlurmView):
        affected |= {
            node_subject(name) for j in snapshot.slurm.jobs if job_subject(j.id) in quarantined for name in j.node_list
        }
    affected |= {
        node_subject(name)
        for job_id, names in snapshot.bound.items()
        if job_subject(job_id) in quarantined
        for name in names
    }
    affected |= {
        node_subject(name)
        for job_id, data in snapshot.data.items()
        if job_subject(job_id) in quarantined
        for name in data.nodes
    }
    every = (*snapshot.claims, *snapshot.storage_claims)
    return frozenset(affected | {node_subject(c.slot) for c in every if cloud_subject(c.offer.provider) in quarantined})


def plan_without_subjects(plan: Plan, snapshot: Snapshot, quarantined: Collection[str]) -> Plan:
    """The plan without what touches these. ``snapshot``: the whole one; ``quarantined``: of ``with_affected_nodes``."""
    if not quarantined:
        return plan
    claims = {c.id: c.slot for c in (*snapshot.claims, *snapshot.storage_claims)}
    left = [
        filtered
        for action in plan.actions
        if (filtered := _action_without_subjects(action, snapshot, claims, quarantined)) is not None
    ]
    return replace(plan, actions=tuple(left))


def action_subjects(action: Action, claims: Mapping[str, str]) -> tuple[str, ...]:
    """The subjects of a step. ``claims``: the slot of each."""
    found: list[str] = []
    match action:
        case ChangeClaimState() | RecordAddress() | ValidateNode() | ProbeMachine() | StartSlurmd() | LaunchMachine():
            found = [node_subject(claims.get(action.claim_id, action.claim_id))]
        case HandOver():
            names = (claims.get(action.claim_id, action.claim_id), action.claim.slot)
            found = [*map(node_subject, names), *map(job_subject, action.claim.jobs)]
        case AdoptMachine() | MakeClaim():
            found = [node_subject(action.claim.slot), *map(job_subject, action.claim.jobs)]
        case TestFabric():
            found = [node_subject(claims.get(claim_id, claim_id)) for claim_id in (action.first, action.second)]
        case RegisterNodes():
            found = [node_subject(name) for name, _ in action.addresses]
        case TerminateMachines():
            found = [node_subject(claims.get(claim_id, claim_id)) for claim_id in action.claims]
        case BindJob():
            found = [job_subject(action.job_id), *map(node_subject, action.nodes)]
        case UnbindJob():
            found = [job_subject(action.job_id)]
        case DrainNodes() | UndrainNodes() | SetNodesDown() | PowerDown():
            found = [*map(node_subject, action.nodes)]
        case RequeueJobs() | WarnJobs() | RecordInterruptions():
            found = [job_subject(row) for run in action.runs for row in run.queue_ids]
        case RecordIdleJobs():
            found = [job_subject(job) for job, _ in (*(idle.key for idle, _ in action.warned), *action.over)]
        case ActOnIdleJobs():
            found = [job_subject(run.job_id) for run in action.runs]
        case HoldJob():
            found = [job_subject(action.queue_id)]
        case UpdateJobs():
            found = [*map(job_subject, action.queue_ids)]
        case StartJobsNow():
            found = [*map(job_subject, action.jobs)]
        case RemoveOrphans():
            found = [cloud_subject(action.provider)]
        case SetGate():
            found = [
                node_subject(claims.get(claim_id, claim_id)) for claim_id in (*action.into_service, *action.into_drain)
            ]
    return tuple(found)


def split_action(action: Action, claims: Mapping[str, str]) -> list[Action]:
    """A step over several nodes or jobs as steps of one each; none where it cannot be parted. See ``concerned``."""
    match action:
        case RegisterNodes() if len(action.addresses) > 1:
            return [RegisterNodes((pair,)) for pair in action.addresses]
        case DrainNodes() if len(action.nodes) > 1:
            pairs = zip(action.claims, action.nodes, strict=True)
            return [DrainNodes((claim_id,), (name,), action.reason) for claim_id, name in pairs]
        case StartJobsNow() if len(action.jobs) > 1:
            return [StartJobsNow((one,)) for one in action.jobs]
        case UpdateJobs() if len(action.jobs) > 1:
            ids = zip(action.jobs, action.queue_ids, strict=True)
            return [replace(action, jobs=(job,), queue_ids=(row,)) for job, row in ids]
        case UndrainNodes() if len(action.nodes) > 1:
            return [UndrainNodes((name,)) for name in action.nodes]
        case TerminateMachines() if len(action.claims) > 1:
            return [TerminateMachines((claim_id,), action.reason) for claim_id in action.claims]
        case RequeueJobs() if len(action.runs) > 1:
            return [RequeueJobs((run,)) for run in action.runs]
        case WarnJobs() if len(action.runs) > 1:
            return [replace(action, runs=(run,)) for run in action.runs]
        case RecordIdleJobs() if len(action.warned) + len(action.over) > 1:
            return [
                *(RecordIdleJobs((one,), ()) for one in action.warned),
                *(RecordIdleJobs((), (key,)) for key in action.over),
            ]
        case ActOnIdleJobs() if len(action.runs) > 1:
            return [ActOnIdleJobs((run,)) for run in action.runs]
        case RecordInterruptions() if len(action.runs) > 1:
            return [RecordInterruptions((run,)) for run in action.runs]
        case SetNodesDown() if len(action.nodes) > 1:
            return [SetNodesDown((name,), action.reason) for name in action.nodes]
        case PowerDown() if len(action.nodes) > 1:
            return [
                replace(
                    action, nodes=(name,), terminating=tuple(c for c in action.terminating if claims.get(c) == name)
                )
                for name in action.nodes
            ]
        case _:
            return []


def _action_without_subjects(
    action: Action, snapshot: Snapshot, claims: Mapping[str, str], quarantined: Collection[str]
) -> Action | None:
    if isinstance(action, SetGate):
        return _gate_without_subjects(action, snapshot, claims, quarantined)
    if isinstance(action, RemoveOrphans):
        return _orphans_without_subjects(action, snapshot, quarantined)
    if isinstance(action, TerminateMachines):
        rest = tuple(c for c in action.claims if node_subject(claims.get(c, c)) not in quarantined)
        return replace(action, claims=rest) if rest else None
    if isinstance(action, PowerDown):
        nodes = tuple(n for n in action.nodes if node_subject(n) not in quarantined)
        ends = tuple(c for c in action.terminating if node_subject(claims.get(c, c)) not in quarantined)
        return replace(action, nodes=nodes, terminating=ends) if nodes else None
    if isinstance(action, RegisterNodes):
        addresses = tuple(pair for pair in action.addresses if node_subject(pair[0]) not in quarantined)
        return replace(action, addresses=addresses) if addresses else None
    return None if any(subject in quarantined for subject in action_subjects(action, claims)) else action


def _gate_without_subjects(
    action: SetGate, snapshot: Snapshot, claims: Mapping[str, str], quarantined: Collection[str]
) -> SetGate | None:
    """Nodes that are left alone stay where they are: behind the gate, or not."""
    if not isinstance(snapshot.slurm, SlurmView):
        return None
    gates = [r.nodes for r in snapshot.slurm.reservations if action.nodes & r.nodes and not r.job_id]
    before: frozenset[str] = frozenset().union(*gates)
    fixed = {name for name in snapshot.slurm.nodes if node_subject(name) in quarantined}
    nodes = frozenset((action.nodes - fixed) | (before & fixed))
    moves = [
        (claim_id, why, claim_id in action.into_service)
        for claim_id, why in zip((*action.into_service, *action.into_drain), action.claim_reasons, strict=True)
        if node_subject(claims.get(claim_id, claim_id)) not in quarantined
    ]
    if nodes == before and not moves:
        return None
    into_service = tuple(claim_id for claim_id, _, opening in moves if opening)
    to_drain = tuple(claim_id for claim_id, _, opening in moves if not opening)
    why = (*(w for _, w, opening in moves if opening), *(w for _, w, opening in moves if not opening))
    return replace(action, nodes=nodes, into_service=into_service, into_drain=to_drain, claim_reasons=why)


def _orphans_without_subjects(
    action: RemoveOrphans, snapshot: Snapshot, quarantined: Collection[str]
) -> RemoveOrphans | None:
    """What belongs to a claim that is left out looks as if it were nobody's."""
    every = (*snapshot.claims, *snapshot.storage_claims)
    ids = {c.instance_id for c in every if node_subject(c.slot) in quarantined} - {""}
    owners = {c.id for c in every if node_subject(c.slot) in quarantined}
    addresses = (
        {n.address for n in snapshot.slurm.nodes.values() if node_subject(n.name) in quarantined}
        if isinstance(snapshot.slurm, SlurmView)
        else set()
    )
    instances = tuple(
        i for i in action.instances if not (i.id in ids or i.claim_id in owners or i.address in addresses)
    )
    leftovers = tuple(left for left in action.leftovers if left.claim_id not in owners)
    return replace(action, instances=instances, leftovers=leftovers) if instances or leftovers else None
