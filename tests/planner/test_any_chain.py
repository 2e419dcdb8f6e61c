"""Whatever the chain of policies, random or broken: nothing is started for a job that cannot run there, or twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstd.domain.claim import Cause
from burstd.domain.plan import MakeClaim
from burstd.domain.plugins.policy import NodeRelease, Policy, PolicyPlugin, Remark, Target, Want
from burstd.domain.snapshot import Snapshot
from burstd.planner.decide import decide
from burstd.planner.demand.demand import pending_demand
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.placement.placement import placement_target
from burstd.planner.timeouts import Tuning
from burstd.settings.plugins.registry import PluginRegistry
from burstd.testing.policy.strategies import snapshots
from tests.examples import examples

Act = Callable[[Snapshot, Target], Any]


@dataclass(frozen=True)
class Broken:
    """A policy that does anything."""

    act: Act
    name: str
    hard: bool = False

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        return self.act(snapshot, target)  # type: ignore[no-any-return]


def raising(_: Snapshot, __: Target) -> Target:
    raise RuntimeError("broken")


def for_everyone(snapshot: Snapshot, target: Target) -> Target:
    """Machines for every job, whether or not it can run on them."""
    jobs = getattr(snapshot.slurm, "jobs", ())
    more = tuple(
        Want(pool, 1, Cause.DEMAND, "for everyone", offers, jobs=(job.id,), users=(job.user,))
        for job in jobs for pool, offers in target.offers.items()
    )  # fmt: skip
    return replace(target, wants=(*target.wants, *more))


def nothing(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=())


def twice(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=target.wants * 2)


def no_slots(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, slots=()) for w in target.wants))


def swapped(_: Snapshot, target: Target) -> Target:
    """Each want in the pool of another."""
    pools = [w.pool for w in target.wants]
    return replace(
        target, wants=tuple(replace(w, pool=p) for w, p in zip(target.wants, reversed(pools), strict=True))
    )  # fmt: skip


def a_hundred_more(_: Snapshot, target: Target) -> Target:
    more = tuple(Want(pool, 100, Cause.FLOOR, "more", offers) for pool, offers in target.offers.items())
    return replace(target, wants=(*target.wants, *more))


def everything_goes(snapshot: Snapshot, target: Target) -> Target:
    return replace(target, releases=tuple(NodeRelease(c.id, c.pool, "away") for c in snapshot.claims))


def silent(_: Snapshot, target: Target) -> Target:
    return replace(target, remarks=())


def no_target(_: Snapshot, __: Target) -> Any:
    return 42


def half_a_gang(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=target.wants[::2])


def remarks_only(_: Snapshot, target: Target) -> Target:
    return replace(target, remarks=(*target.remarks, Remark("odd", "job:1", "boot", "because")))


def without_payers(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, users=(), accounts=()) for w in target.wants))


def of_eve(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, users=("eve",), accounts=("none",)) for w in target.wants))


def three_for_one(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, nodes=w.nodes * 3, slots=()) for w in target.wants))


def twice_elsewhere(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=(*target.wants, *(replace(w, slots=(), gang="") for w in target.wants)))


def slip(**fields: Any) -> Act:
    """What a helper that falls through leaves, or a division."""

    def act(_: Snapshot, target: Target) -> Target:
        return replace(target, wants=tuple(replace(w, **fields) for w in target.wants))

    return act


def half(_: Snapshot, target: Target) -> Target:
    more = tuple(Want(p, 2 / 2, Cause.FLOOR, "half", o) for p, o in target.offers.items())  # type: ignore[arg-type]
    return replace(target, wants=(*target.wants, *more))


def speechless(_: Snapshot, target: Target) -> Target:
    return target.with_remark("odd", "job:1", "wait", None)  # type: ignore[arg-type]


def half_a_gang_renamed(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=tuple(replace(w, gang="other") if w.gang else w for w in target.wants[::2]))


ACTS: tuple[Act, ...] = (
    raising, for_everyone, nothing, twice, no_slots, swapped, a_hundred_more, everything_goes, silent, no_target,
    half_a_gang, half_a_gang_renamed, remarks_only, without_payers, of_eve, three_for_one, twice_elsewhere, half,
    speechless, slip(users=None), slip(reason=None), slip(gang=None, dedicated=None),
    slip(excluded_offers=("x",), offers=()),
)  # fmt: skip
WELL: tuple[Act, ...] = (nothing, no_slots, a_hundred_more, everything_goes, half_a_gang, without_payers, of_eve)
"""Those that may get through, so that others are asked after them."""
PLUGINS = PluginRegistry.installed()


def shipped(name: str, **given_: Any) -> Policy:
    plugin = PLUGINS.load_plugin("policies", name)
    assert isinstance(plugin, PolicyPlugin)
    made: Policy = plugin.make(plugin.settings(**given_))
    return made


SHIPPED = [shipped(name) for name in PLUGINS.names("policies")]
NODES, OF_POOL, OF_USER, MONEY = 3, 2, 1, Decimal(5)
LIMITS = shipped("limits", nodes=NODES, pools={"*": {"nodes": OF_POOL}}, users={"*": {"nodes": OF_USER}})
BUDGET = shipped("budget", limit=MONEY, users={"bob": {"limit": 0}}, unlimited_s=3600)
broken = st.builds(Broken, st.sampled_from(ACTS), st.sampled_from(("odd", "strange")), st.booleans())
getting_through = st.builds(Broken, st.sampled_from(WELL), st.just("odd"))
well = st.lists(st.one_of(getting_through, st.sampled_from(SHIPPED)), max_size=3)
chains = st.lists(st.one_of(broken, getting_through, st.sampled_from(SHIPPED)), max_size=5)


@pytest.mark.parametrize("act", ACTS)
@settings(max_examples=examples(7), suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), chain=well, at=st.integers(0, 2), hard=st.booleans())
def test_no_chain_boots_for_a_job_that_cannot_run(
    act: Act, snapshot: Snapshot, chain: list[Policy], at: int, hard: bool
) -> None:
    chain.insert(at, Broken(act, "strange", hard))
    plan = decide(snapshot, chain, Tuning())
    made = [a.claim for a in plan.actions if isinstance(a, MakeClaim) and a.claim.cause is not Cause.SLURM]
    counted = {job.id: job for ask in pending_demand(snapshot).pending_jobs for job in ask.jobs}
    placed = machines(placement_target(snapshot, pending_demand(snapshot)).wants)
    assert all(nodes <= placed[key] for key, nodes in machines(plan.target.wants).items() if key[2] is not Cause.SLURM)
    for action in made:
        if action.jobs:
            assert set(action.users) == {counted[job].user for job in action.jobs}
        pool = snapshot.pools[action.pool]
        for job_id in action.jobs:
            job = counted[job_id]
            assert not set(pool.partitions).isdisjoint(job.partitions)
            assert isinstance(resource_requirements(job).nodes_needed(pool.shape), int)
        assert action.offer in plan.target.offers[action.pool]
    slots = [action.slot for action in made]
    assert len(slots) == len(set(slots))
    assert set(slots) <= {slot for pool in snapshot.pools.values() for slot in snapshot.free_slots(pool)}
    if plan.target.failed_policies or snapshot.paused:
        assert (made, plan.target.releases) == ([], ())


def machines(wants: Iterable[Want]) -> Counter[tuple[str, str, Cause]]:
    """By pool, job and cause."""
    found: Counter[tuple[str, str, Cause]] = Counter()
    for want in wants:
        for job in want.jobs:
            found[want.pool, job, want.cause] += want.nodes
    return found


@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))
@given(
    snapshot=snapshots(),
    chain=well,
    data=st.data(),
)
def test_wherever_limits_and_budgets_stand_nothing_passes_them(
    snapshot: Snapshot, chain: list[Policy], data: st.DataObject
) -> None:
    for policy in (LIMITS, BUDGET):
        chain.insert(data.draw(st.integers(0, len(chain))), policy)
    plan = decide(snapshot, chain, Tuning())
    made = [action.claim for action in plan.actions if isinstance(action, MakeClaim)]
    jobs = {job.id: job for job in getattr(snapshot.slurm, "jobs", ())}
    owners = [{jobs[job].user for job in action.jobs} for action in made]
    if made:
        assert len(made) + len(snapshot.claims) <= NODES
        assert sum(action.reserved for action in made) <= MONEY
    pools = [action.pool for action in made] + [claim.pool for claim in snapshot.claims]
    for pool in {action.pool for action in made}:
        assert sum(one == pool for one in pools) <= OF_POOL
    for user in {name for names in owners for name in names}:
        assert user != "bob"
        there = sum(user in claim.users for claim in snapshot.claims)
        assert there + sum(user in names for names in owners) <= OF_USER


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), chain=chains)
def test_the_same_chain_says_the_same(snapshot: Snapshot, chain: list[Policy]) -> None:
    assert decide(snapshot, chain, Tuning()) == decide(snapshot, chain, Tuning())
