"""The policy limits: it is asked twice, and nothing gets past it, whatever stands around it in the chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import policies.idle
import policies.limits
import policies.schedule
from burstd.domain.claim import Cause, ClaimState
from burstd.domain.plugins.policy import Policy, Remark, Target, Want
from burstd.domain.snapshot import Pin, RecentLaunch, Snapshot
from burstd.planner.policy_chain import make_target
from burstd.testing.policy.strategies import snapshots
from tests.examples import examples

from .test_policies import backlog, jobs, limits
from .worlds import NOW, claim, job, pool, target, wants


def test_asking_twice_changes_and_says_nothing_more() -> None:
    once = target(*jobs(4), policies=(limits(nodes=3, launches_per_minute=3),))
    assert len(once.wants) == 3
    assert [r.subject for r in once.remarks if r.by == "limits"] == ["pool:cpu", "job:4"]


def test_a_machine_that_is_left_alone_counts() -> None:
    alone = (claim("cpu4", ClaimState.IN_SERVICE),)
    assert len(target(*jobs(4), quarantined_claims=alone, policies=(limits(nodes=3),)).wants) == 2


def test_a_job_larger_than_the_rate_still_goes_alone() -> None:
    assert wants(target(*jobs(1, nodes=3, cpus=3), policies=(limits(launches_per_minute=2),))) == [("cpu", 3, ("1",))]


def test_a_job_that_can_never_go_holds_nobody_back() -> None:
    rows = (job("9", nodes=3, cpus=3, user="eve", priority=9), job("1", priority=1))
    recent = (RecentLaunch(NOW - 30, "cpu", "sky", ()),)
    policy = limits(launches_per_minute=2, users={"eve": {"nodes": 2}})
    assert wants(target(*rows, recent_launches=recent, policies=(policy,))) == [("cpu", 1, ("1",))]


@pytest.mark.parametrize("policy", [limits(nodes=0), backlog(min_jobs=999)], ids=["limits", "backlog"])
def test_the_tasks_of_an_array_are_refused_in_two_words(policy: Policy) -> None:
    array = job(tasks=200, array_job_id="1", array_tasks="1-200", exclusive=True)
    found = target(array, pools=(pool(slots=300),), policies=(policy,))
    said = [(r.subject, r.reason.partition(" (")[0]) for r in found.remarks if r.by == policy.name]
    assert [subject for subject, _ in said] == ["pool:cpu", "job:1"]
    assert said[0][1] == "200 node(s)"


def test_an_administrator_is_held_to_the_limit() -> None:
    pin = Pin("cpu", 4, "floor", None, "root", NOW)
    found = target(pins=(pin,), policies=(limits(nodes=2),))
    assert [w.cause for w in found.wants] == [Cause.PIN] * 2


def test_spare_nodes_after_it_in_the_chain_are_held_to_it() -> None:
    spare = policies.idle.plugin.make(policies.idle.IdleSettings(spare_nodes=4))
    found = target(*jobs(1), policies=(limits(nodes=2), spare), claims=(claim("cpu4", ClaimState.TERMINATING),))
    assert sum(w.nodes for w in found.wants) == 1


@dataclass(frozen=True)
class _Greedy:
    """Wants more of everything, and takes offers as they come."""

    more: int
    backwards: bool
    name: str = "greedy"

    def evaluate(self, _: Snapshot, target: Target) -> Target:
        wants = [
            Want(pool, 1, Cause.FLOOR, "more", tuple(reversed(offers)))
            for pool, offers in target.offers.items()
            for _ in range(self.more)
            if offers
        ]
        turned = [replace(w, offers=w.offers[::-1]) for w in target.wants] if self.backwards else list(target.wants)
        every = (*wants, *turned) if self.backwards else (*turned, *wants)
        return replace(target, wants=every, remarks=(*target.remarks, Remark("greedy", "plan", "add", "more")))


greedy = st.builds(_Greedy, more=st.integers(0, 3), backwards=st.booleans())
warm = st.builds(
    lambda least: policies.schedule.plugin.make(
        policies.schedule.ScheduleSettings.model_validate(
            {"windows": {"all": {"cron": "* * * * *", "length": "1h", "min_nodes": least}}}
        )
    ),
    st.integers(0, 4),
)
NODES, OF_POOL, OF_PROVIDER, OF_USER, RATE = 6, 3, 4, 2, 3
LIMITED = limits(
    nodes=NODES,
    launches_per_minute=RATE,
    pools={"*": {"nodes": OF_POOL}},
    providers={"*": {"nodes": OF_PROVIDER}},
    users={"*": {"nodes": OF_USER}},
)


@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), before=st.lists(greedy | warm, max_size=2), after=st.lists(greedy | warm, max_size=2))
def test_no_chain_exceeds_a_limit(snapshot: Snapshot, before: list[Policy], after: list[Policy]) -> None:
    found = make_target(snapshot, (*before, LIMITED, *after))
    assert not found.failed_policies
    there = _counted((c.pool, c.offer.provider, c.users, 1) for c in snapshot.claims)
    more = _counted((w.pool, w.offers[0].provider, w.users, w.nodes) for w in found.wants)
    most = {"all": NODES, "pool": OF_POOL, "provider": OF_PROVIDER, "user": OF_USER}
    for (kind, name), nodes in more.items():
        assert there[kind, name] + nodes <= most[kind], (kind, name)
    recent = sum(1 for launch in snapshot.recent_launches if launch.at > snapshot.now - 60)
    recent += sum(1 for c in snapshot.claims if c.state is ClaimState.PLANNED and c.launch_called is None)
    started = sum(w.nodes for w in found.wants)
    alone = len({w.gang or index for index, w in enumerate(found.wants)}) == 1 and not recent
    assert not started or recent + started <= RATE or alone


def _counted(some: Iterable[tuple[str, str, tuple[str, ...], int]]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for of, provider, users, nodes in some:
        keys = [("all", ""), ("pool", of), ("provider", provider), *(("user", user) for user in dict.fromkeys(users))]
        found.update(dict.fromkeys(keys, nodes))
    return found
