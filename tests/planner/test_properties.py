"""What holds for every world: the promises of placement and of the chain, over worlds that Hypothesis draws."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, event, given, settings

import policies.backlog
import policies.idle
import policies.limits
from burstd.domain.claim import USABLE, Cause, Claim, ClaimState
from burstd.domain.plugins.policy import Policy, Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.policy_chain import make_target
from burstd.testing.policy.strategies import snapshots
from tests.examples import examples

CHAIN: tuple[Policy, ...] = tuple(
    plugin.make(plugin.settings(**given_))
    for plugin, given_ in (
        (policies.backlog.plugin, {"min_jobs": 2}),
        (policies.idle.plugin, {"keep_alive_s": 60, "spare_nodes": 1}),
        (policies.limits.plugin, {"nodes": 6, "users": {"*": {"nodes": 3}}}),
    )
)


def queue(snapshot: Snapshot) -> dict[str, Job]:
    return {job.id: job for job in snapshot.slurm.jobs} if isinstance(snapshot.slurm, SlurmView) else {}


def verdicts(found: Target, by: str) -> dict[str, str]:
    return {r.subject.removeprefix("job:"): r.verdict for r in found.remarks if r.by == by}


def wants_take_free_slots_once_and_have_offers(snapshot: Snapshot) -> None:
    for chain in ((), CHAIN):
        found = make_target(snapshot, chain)
        assert not found.failed_policies
        slots = [slot for want in found.wants for slot in want.slots]
        assert len(slots) == len(set(slots))
        for want in found.wants:
            assert len(want.slots) == want.nodes
            pool = snapshot.pools[want.pool]
            assert set(want.slots) <= set(pool.slots if want.cause is Cause.SLURM else snapshot.free_slots(pool))
            assert want.offers
            assert set(want.offers) <= set(found.offers[want.pool])
        event(f"{len(found.wants)} wants")


def the_same_answer_twice(snapshot: Snapshot) -> None:
    assert make_target(snapshot, CHAIN) == make_target(snapshot, CHAIN)


def gangs_get_all_nodes_or_none(snapshot: Snapshot) -> None:
    for chain in ((), CHAIN):
        found = make_target(snapshot, chain)
        jobs = queue(snapshot)
        new: Counter[str] = Counter()
        for want in found.wants:
            new[want.gang] += want.nodes
        for want in found.wants:
            if not want.gang:
                assert want.nodes == 1
                continue
            there = len(found.placements.get(want.gang, ()))
            members = [jobs[job] for w in found.wants if w.gang == want.gang for job in w.jobs]
            assert new[want.gang] + there >= max(job.nodes for job in members)


def only_jobs_that_count_and_can_run_get_machines(snapshot: Snapshot) -> None:
    found = make_target(snapshot, ())
    jobs, told = queue(snapshot), verdicts(found, "placement")
    for want in (w for w in found.wants if w.cause is Cause.DEMAND):
        for job_id in want.jobs:
            job = jobs[job_id]
            assert job.state is JobState.PENDING
            assert job.reason not in ("JobHeldUser", "Dependency", "QOSMaxJobsPerUserLimit", "Licenses", "SomethingNew")
            assert not job.dependency
            assert told[job_id] == "boot"
            assert not set(want.slots) & set(job.excluded_nodes)
            assert set(snapshot.pools[want.pool].partitions) & set(job.partitions)


def what_is_packed_on_a_new_node_fits(snapshot: Snapshot) -> None:
    jobs = queue(snapshot)
    for want in (w for w in make_target(snapshot, ()).wants if w.cause is Cause.DEMAND):
        shape = snapshot.pools[want.pool].shape
        shares = [resource_requirements(jobs[job]).share_per_node(1) for job in want.jobs] if not want.gang else []
        assert sum(share.cpus for share in shares) <= shape.cpus
        assert sum(share.memory_mib for share in shares) <= shape.memory_mib
        assert len(shares) <= 1 or not any(share.exclusive for share in shares)


def users_that_share_no_node_share_none(snapshot: Snapshot) -> None:
    """Neither on new nodes nor, of the jobs that are placed, on those that are there or come."""
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    # Slurm may show a job on a node whose machine is gone: a new machine is another matter.
    down = {name for name, node in nodes.items() if "POWERED_DOWN" in node.flags}
    jobs, found = queue(snapshot), make_target(snapshot, ())
    on_node: dict[str, list[Job]] = {}
    for want in (w for w in found.wants if w.cause is Cause.DEMAND):
        for slot in want.slots:
            on_node.setdefault(slot, []).extend(jobs[job] for job in want.jobs)
    for job_id, names in found.placements.items():
        for name in names if job_id in jobs else ():
            on_node.setdefault(name, []).append(jobs[job_id])
    for job in jobs.values():
        for name in job.node_list if job.state in (JobState.RUNNING, JobState.CONFIGURING) else ():
            if name not in down:
                on_node.setdefault(name, []).append(job)
    placed = {slot for want in found.wants for slot in want.slots} | {
        name for names in found.placements.values() for name in names
    }
    apart = {slot for pool in snapshot.pools.values() if pool.exclusive_user for slot in pool.slots}
    for name in placed:
        some = on_node.get(name, [])
        if name in apart or any(job.exclusive_user for job in some):
            assert len({job.user for job in some}) <= 1


def every_waiting_job_of_a_burst_partition_is_told_why(snapshot: Snapshot) -> None:
    found = make_target(snapshot, CHAIN)
    burst = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
    het = {job.het_job_id for job in queue(snapshot).values() if job.het_job_id}
    told = {remark.subject for remark in found.remarks}
    for job in queue(snapshot).values():
        if job.state is JobState.PENDING and burst & set(job.partitions) and job.id not in het:
            assert f"job:{job.id}" in told


def released_nodes_are_idle_and_nobodys(snapshot: Snapshot) -> None:
    found = make_target(snapshot, ())
    claims = {claim.id: claim for claim in snapshot.claims}
    pinned = {pin.pool for pin in snapshot.pins}
    placed = {name for names in found.placements.values() for name in names}
    assert isinstance(snapshot.slurm, SlurmView) or not found.releases
    for release in found.releases:
        claim = claims[release.claim_id]
        assert claim.state in (ClaimState.IN_SERVICE, ClaimState.READY)
        assert isinstance(snapshot.slurm, SlurmView)
        assert not snapshot.slurm.nodes[claim.slot].busy
        assert claim.pool in pinned or claim.slot not in placed


def nothing_is_placed_beyond_what_there_is(snapshot: Snapshot) -> None:
    """Each node or slot that jobs were placed on is up and open, or a claim that may come."""
    found = make_target(snapshot, ())
    coming = {claim.slot for claim in snapshot.claims if claim.state in USABLE}
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    for names in found.placements.values():
        for name in names:
            assert name in coming or (name not in slots and isinstance(snapshot.slurm, SlurmView))


def limits_hold_with_what_is_there(snapshot: Snapshot) -> None:
    plugin = policies.limits.plugin
    limited = plugin.make(plugin.settings(nodes=5, pools={"*": {"nodes": 3}}, users={"ada": {"nodes": 1}}))
    unpinned = Snapshot(**{f: getattr(snapshot, f) for f in Snapshot.__slots__} | {"pins": ()})
    found = make_target(unpinned, (limited,))
    if not found.wants:
        return
    wanted = sum(want.nodes for want in found.wants)
    assert len(snapshot.claims) + wanted <= 5
    for name in snapshot.pools:
        new = sum(want.nodes for want in found.wants if want.pool == name)
        assert not new or new + sum(1 for c in snapshot.claims if c.pool == name) <= 3
    ada = sum(want.nodes for want in found.wants if "ada" in want.users)
    assert not ada or ada + sum(1 for c in snapshot.claims if "ada" in c.users) <= 1


def a_second_look_wants_nothing_more(snapshot: Snapshot) -> None:
    """Once every want has its claim, the same queue is satisfied: nothing is started twice for one job."""
    first = make_target(snapshot, ())
    if snapshot.pins or not first.wants:
        return
    made = tuple(
        Claim(f"n-{slot}", "test", want.pool, slot, want.offers[0], Cause.DEMAND, ClaimState.PLANNED, snapshot.now,
              snapshot.now, jobs=want.jobs, users=want.users, gang=want.gang)
        for want in first.wants for slot in want.slots
    )  # fmt: skip
    fields = {f: getattr(snapshot, f) for f in Snapshot.__slots__} | {"claims": snapshot.claims + made}
    again = make_target(Snapshot(**fields), ())
    served = {want.gang or want.jobs for want in first.wants}
    assert not {want.gang or want.jobs for want in again.wants} & served


PROMISES = (
    wants_take_free_slots_once_and_have_offers,
    the_same_answer_twice,
    gangs_get_all_nodes_or_none,
    only_jobs_that_count_and_can_run_get_machines,
    what_is_packed_on_a_new_node_fits,
    users_that_share_no_node_share_none,
    every_waiting_job_of_a_burst_partition_is_told_why,
    released_nodes_are_idle_and_nobodys,
    nothing_is_placed_beyond_what_there_is,
    limits_hold_with_what_is_there,
    a_second_look_wants_nothing_more,
)


@settings(max_examples=examples(180), suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots())
def test_promises(snapshot: Snapshot) -> None:
    """One world is drawn for all of them: drawing costs more than looking."""
    for promise in PROMISES:
        promise(snapshot)
