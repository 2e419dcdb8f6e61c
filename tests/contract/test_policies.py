"""The shipped policies under the contract of policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

import policies.backlog
import policies.broker
import policies.budget
import policies.data_locality
import policies.idle
import policies.limits
import policies.schedule
import policies.spot
import policies.throttle
import policies.wait_aware
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.policy import NodeRelease, PolicyPlugin, Target, Want
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.testing.policy.policy_contract import PolicyContract, check_policy
from burstd.testing.policy.policy_samples import samples
from burstd.testing.policy.strategies import situations

ALWAYS = {"cron": "* * * * *", "length": "1h"}
DAY = "2001-01-02"


class Shipped(PolicyContract):
    """All are tried on the same worlds, by ``test_contract`` below: to draw one takes most of the time."""

    test_contract = None  # type: ignore[assignment]


class TestBacklog(Shipped):
    plugin = policies.backlog.plugin
    tried = ({}, {"min_jobs": 3, "min_age_s": 60, "max_age_s": 900, "pools": {"gpu": {"min_jobs": 1}}})


class TestIdle(Shipped):
    plugin = policies.idle.plugin
    tried = (
        {},
        {"keep_alive_s": 0},
        {"min_nodes": 2, "pools": {"gpu": {"spare_nodes": 2, "keep_alive_s": 1000}}},
        {"keep_cost": "0.1", "boots": 2, "billing_s": {"sky": 3600, "*": 600}},
    )


class TestLimits(Shipped):
    plugin = policies.limits.plugin
    tried = (
        {},
        {"nodes": 3, "launches_per_minute": 2, "providers": {"sky": {"nodes": 1}}, "users": {"*": {"nodes": 1}}},
        {"pools": {"gpu": {"nodes": 0}, "*": {"launches_per_minute": 1}}},
    )


class TestSchedule(Shipped):
    plugin = policies.schedule.plugin
    tried = (
        {},
        {"windows": {"all": {**ALWAYS, "max_nodes": 2, "min_nodes": 1, "users": ["!eve"], "providers": ["sky"]}}},
        {"windows": {"gpu": {**ALWAYS, "burst": False, "pools": ["gpu"]}, "old": {"begin": "2001-01-01", "end": DAY}}},
    )


class TestSpot(Shipped):
    plugin = policies.spot.plugin
    tried = ({}, {"max_nodes": 3, "min_saving_percent": 0, "max_share_percent": 50, "without_requeue": True})


class TestThrottle(Shipped):
    plugin = policies.throttle.plugin
    tried = (
        {},
        {"start_nodes": 1, "growth_percent": 0, "release_per_minute": 1},
        {"pool_failures": 1, "offer_failures": 1, "flaps": 1, "half_open": False},
    )


class TestWaitAware(Shipped):
    plugin = policies.wait_aware.plugin
    tried = (
        {},
        {"value": 20, "idle_s": 0, "dedicated_nodes": False},
        {"price": "0.5", "patience_s": 60, "projects": {"lab": {"value": 0}}, "partitions": {"gpu": {"patience_s": 1}}},
    )


class TestDataLocality(Shipped):
    plugin = policies.data_locality.plugin
    tried = ({}, {"near": {"s3": ["sky/*"]}, "far": "never", "max_gib": 1}, {"near": {"s3": ["sky/*"]}})


class TestBroker(Shipped):
    plugin = policies.broker.plugin
    tried = ({}, {"dedicated_nodes": False, "offers": {"sky/*": {"tags": ["eu"], "gpu_memory": "40G"}}})


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(situations())
def test_contract(situation: tuple[Snapshot, Target]) -> None:
    for shipped in Shipped.__subclasses__():
        for given_ in shipped.tried:
            try:
                check_policy(shipped.plugin.make(shipped.plugin.settings(**given_)), *situation)
            except AssertionError as error:
                error.add_note(f"{shipped.plugin.name} with {given_}")
                raise


ACTIVE_SETTINGS: tuple[tuple[PolicyPlugin, dict[str, object]], ...] = (
    (policies.backlog.plugin, {"min_jobs": 9}),
    (policies.broker.plugin, {"offers": {"sky/*": {"tags": ["eu"]}}}),
    (policies.budget.plugin, {"limit": 1}),
    (policies.data_locality.plugin, {"near": {"s3": ["sky/*"]}, "far": "never", "max_gib": 1}),
    (policies.idle.plugin, {"keep_alive_s": 86_400}),
    (policies.limits.plugin, {"nodes": 0}),
    (policies.schedule.plugin, {"windows": {"all": {**ALWAYS, "burst": False}}}),
    (policies.spot.plugin, {"max_nodes": 0}),
    (policies.throttle.plugin, {"pool_failures": 1}),
    (policies.wait_aware.plugin, {"value": 1, "patience_s": 1_000_000}),
)


RARELY_ACTIVE = ("broker", "budget", "data_locality", "wait_aware")
"""Those that look at what only some worlds have."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize(("plugin", "given_"), ACTIVE_SETTINGS, ids=[plugin.name for plugin, _ in ACTIVE_SETTINGS])
def test_the_samples_and_the_drawn_worlds_try_it(plugin: PolicyPlugin, given_: dict[str, object]) -> None:
    policy = plugin.make(plugin.settings(**given_))
    told = [s.title for s in samples() if check_policy(policy, s.snapshot, s.target).remarks != s.target.remarks]
    assert told
    if plugin.name not in RARELY_ACTIVE:
        return
    find(
        situations(),
        lambda s: check_policy(policy, *s).remarks != s[1].remarks,
        settings=settings(max_examples=1000, database=None, phases=[Phase.generate]),
    )


SHAPE = Shape(4, 8000)
OFFER = Offer("sky", "r", "a", "t", spot=False, shape=SHAPE, price=Decimal(1))
FREE = Offer("sky", "r", "a", "t", spot=False, shape=SHAPE, price=Decimal(0))
BUSY = Node("n3", "MIXED", frozenset({"CLOUD"}), ("burst",), 4, 1)
OFF = [Node(f"n{n}", "IDLE", frozenset({"CLOUD", "POWERED_DOWN"}), ("burst",), 4) for n in (1, 2)]
CLAIM = Claim("c3", "x", "cpu", "n3", OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0)
SNAPSHOT = Snapshot(
    now=100.0,
    cluster="x",
    pools={"cpu": Pool("cpu", ("n1", "n2", "n3"), ("burst",), SHAPE)},
    slurm=SlurmView((), {n.name: n for n in (*OFF, BUSY)}, ()),
    clouds={},
    claims=(CLAIM,),
)
WANT = Want("cpu", 2, Cause.DEMAND, "job 1", (OFFER,), slots=("n1", "n2"), jobs=("1",), users=("ada",), gang="1")
TARGET = Target(wants=(WANT,), offers={"cpu": (OFFER,)}).with_remark("placement", "job:1", "boot", "it gets 2 nodes")
clock = count()


@dataclass(frozen=True)
class BrokenPolicy:
    change: Callable[[Target], Target]
    name: str = "bad"

    def evaluate(self, _: Snapshot, target: Target) -> Target:
        return self.change(target)


def with_remark_of_bad(target: Target, reason: str = "because") -> Target:
    return target.with_remark("bad", "pool:cpu", "drop", reason)


@pytest.mark.parametrize(
    ("do", "rule"),
    [
        (lambda t: with_remark_of_bad(t, str(next(clock))), "another answer"),
        (lambda t: replace(t, wants=()), "each change comes with a remark"),
        (lambda t: replace(t, remarks=()), "remarks of others stay"),
        (lambda t: t.with_remark("limits", "pool:cpu", "drop", "x"), "remarks bear the policy's name"),
        (lambda t: with_remark_of_bad(t, "No."), "without a full stop"),
        (
            lambda t: with_remark_of_bad(replace(t, wants=(replace(WANT, offers=(FREE,)),))),
            "offers that are not to be had",
        ),
        (
            lambda t: with_remark_of_bad(replace(t, offers={"cpu": (FREE,)})),
            "offers of pool cpu that are not to be had",
        ),
        (lambda t: with_remark_of_bad(replace(t, wants=(WANT, WANT))), "two wants name one slot"),
        (lambda t: with_remark_of_bad(replace(t, wants=(replace(WANT, nodes=1, slots=("n1",)),))), "gang 1 was split"),
        (
            lambda t: with_remark_of_bad(replace(t, wants=(WANT, replace(WANT, gang="2", slots=())))),
            "4 machines are wanted for the 2",
        ),
        (
            lambda t: with_remark_of_bad(replace(t, wants=(replace(WANT, slots=("n1", "n3")),))),
            "a slot is named that is not free",
        ),
        (lambda t: with_remark_of_bad(replace(t, wants=(replace(WANT, pool="gpu"),))), "pool gpu does not exist"),
        (lambda t: with_remark_of_bad(replace(t, releases=(NodeRelease("c3", "cpu", "go"),))), "n3 is busy"),
        (
            lambda t: with_remark_of_bad(replace(t, placements={"1": ("n1",)})),
            "placements and failed_policies are not a policy's",
        ),
    ],
)
def test_the_contract_catches(do: Callable[[Target], Target], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_policy(BrokenPolicy(do), SNAPSHOT, TARGET)


def test_the_contract_lets_good_ones_pass() -> None:
    assert check_policy(BrokenPolicy(lambda t: with_remark_of_bad(replace(t, wants=()))), SNAPSHOT, TARGET).wants == ()
