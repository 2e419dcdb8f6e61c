"""Whatever the chain of policies, random or broken: nothing is started for a job that cannot run there, or twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstd.core.decide import decide
from burstd.core.demand import demand
from burstd.core.need import need
from burstd.core.tuning import Tuning
from burstd.model.claim import Cause
from burstd.model.plan import MakeClaim
from burstd.model.policy import Policy, PolicyPlugin, Release, Remark, Target, Want
from burstd.model.snapshot import Snapshot
from burstd.settings.plugins import Plugins
from burstd.testing.strategies import snapshots

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
        Want(pool, 1, Cause.DEMAND, "for everyone", offers, (job.id,), (job.user,))
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
    return replace(target, releases=tuple(Release(c.id, c.pool, "away") for c in snapshot.claims))


def silent(_: Snapshot, target: Target) -> Target:
    return replace(target, remarks=())


def no_target(_: Snapshot, __: Target) -> Any:
    return 42


def half_a_gang(_: Snapshot, target: Target) -> Target:
    return replace(target, wants=target.wants[::2])


def remarks_only(_: Snapshot, target: Target) -> Target:
    return replace(target, remarks=(*target.remarks, Remark("odd", "job:1", "boot", "because")))


ACTS: tuple[Act, ...] = (
    raising, for_everyone, nothing, twice, no_slots, swapped, a_hundred_more, everything_goes, silent, no_target,
    half_a_gang, remarks_only,
)  # fmt: skip
PLUGINS = Plugins.installed()


def shipped() -> list[Policy]:
    found = []
    for name in PLUGINS.names("policies"):
        plugin = PLUGINS.load("policies", name)
        assert isinstance(plugin, PolicyPlugin)
        found.append(plugin.make(plugin.settings()))
    return found


SHIPPED = shipped()
broken = st.builds(Broken, st.sampled_from(ACTS), st.sampled_from(("odd", "strange")), st.booleans())
chains = st.lists(st.one_of(broken, st.sampled_from(SHIPPED)), max_size=5)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), chain=chains)
def test_no_chain_boots_for_a_job_that_cannot_run(snapshot: Snapshot, chain: list[Policy]) -> None:
    plan = decide(snapshot, chain, Tuning())
    made = [action for action in plan.actions if isinstance(action, MakeClaim)]
    counted = {job.id: job for ask in demand(snapshot).asks for job in ask.jobs}
    for action in made:
        pool = snapshot.pools[action.pool]
        for job_id in action.jobs:
            job = counted[job_id]
            assert not set(pool.partitions).isdisjoint(job.partitions)
            assert isinstance(need(job).nodes_of(pool.shape), int)
        assert action.offer in plan.target.offers[action.pool]
    slots = [action.slot for action in made]
    assert len(slots) == len(set(slots))
    assert set(slots) <= {slot for pool in snapshot.pools.values() for slot in snapshot.free_slots(pool)}
    if plan.target.failed or snapshot.paused:
        assert (made, plan.target.releases) == ([], ())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), chain=chains)
def test_the_same_chain_says_the_same(snapshot: Snapshot, chain: list[Policy]) -> None:
    assert decide(snapshot, chain, Tuning()) == decide(snapshot, chain, Tuning())
