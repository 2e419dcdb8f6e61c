"""A policy that breaks, in whatever way, holds everything and harms nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstd.domain.errors import PolicyBroken
from burstd.domain.plan import MakeClaim
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.reconciler.policy_guard import OVERRUN_PAUSE_S, IsolatedPolicy, copies_for_trial
from burstd.testing.policy.policy_samples import NOW, samples
from burstd.testing.policy.strategies import snapshots
from policies.idle import IdlePolicy, IdleSettings

SAMPLES = tuple(samples())
BUSY = replace(SAMPLES[2], snapshot=replace(SAMPLES[2].snapshot, images={"sky": {"base": ("1",)}}))
LIMIT_S = 0.2


@dataclass(frozen=True)
class Does:
    """A policy that does what a test says."""

    act: Callable[[Snapshot, Target], Any]
    name: str = "wild"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        found: Target = self.act(snapshot, target)
        return found


def isolated(act: Callable[[Snapshot, Target], Any], limit_s: float = 5.0, *, hard: bool = False) -> IsolatedPolicy:
    return IsolatedPolicy(Does(act), limit_s, name="wild", hard=hard)


def fails(error: type[BaseException]) -> Callable[[Snapshot, Target], Target]:
    def act(_: Snapshot, __: Target) -> Target:
        raise error

    return act


def recurses(snapshot: Snapshot, target: Target) -> Target:
    return recurses(snapshot, target)


def swallows(_: Snapshot, target: Target) -> Target:
    while True:
        try:
            time.sleep(1000)
        except:  # noqa: E722, S112
            continue
    return target


def endless_wants(_: Snapshot, target: Target) -> Target:
    def more() -> Any:
        while True:
            yield target.wants[0]

    return replace(target, wants=more())


class Slow(Mapping[str, Any]):
    """A mapping that takes its time for each look at it."""

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        time.sleep(1000)
        return iter(())


def slow_offers(_: Snapshot, target: Target) -> Target:
    return replace(target, offers=Slow())


ERRORS: tuple[type[BaseException], ...] = (
    ValueError, MemoryError, RecursionError, StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException,
)  # fmt: skip
MUTATES: tuple[Callable[[Snapshot, Target], Any], ...] = (
    lambda s, _: s.pools.clear(),  # type: ignore[attr-defined]
    lambda s, _: s.clouds.pop("sky"),  # type: ignore[attr-defined]
    lambda s, _: s.slurm.nodes.update(x=1),  # type: ignore[union-attr]
    lambda _, t: t.offers.__setitem__("cpu", ()),  # type: ignore[index]
    lambda s, _: s.runtime_state.missing_sightings.update(c=1),  # type: ignore[attr-defined]
    lambda s, _: s.images["sky"].update(base=("2",)),  # type: ignore[attr-defined]
    lambda _, t: t.wants.append(1),  # type: ignore[attr-defined]
    lambda s, _: setattr(s, "now", 0.0),
)
RUBBISH: tuple[Any, ...] = (
    None, 0, "target", (), {}, Target, Snapshot, Target(wants=None), Target(remarks=(1,)), Target(wants=(None,)),  # type: ignore[arg-type]
    Target(offers=3), Target(releases="c-1"), Target(placements=None), Target(wants={1: 2}),  # type: ignore[arg-type]
)  # fmt: skip


@pytest.fixture
def ctrl_c_is_handled() -> Any:
    """As in the daemon: what raises KeyboardInterrupt is the policy, and no person."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_handled")
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_it_raises_is_a_failure_of_the_policy(error: type[BaseException]) -> None:
    with pytest.raises(PolicyBroken, match=error.__name__):
        isolated(fails(error)).evaluate(BUSY.snapshot, BUSY.target)


@pytest.mark.parametrize("act", [recurses, swallows, endless_wants, slow_offers, *MUTATES])
def test_it_is_stopped(act: Callable[[Snapshot, Target], Target]) -> None:
    pools, offers = dict(BUSY.snapshot.pools), dict(BUSY.target.offers)
    with pytest.raises(PolicyBroken):
        isolated(act, LIMIT_S).evaluate(BUSY.snapshot, BUSY.target)
    assert (BUSY.snapshot.pools, BUSY.target.offers, BUSY.snapshot.now) == (pools, offers, NOW)


def test_one_that_works_changes_nothing_by_being_watched() -> None:
    idle = IdlePolicy(IdleSettings(min_nodes=2))
    for sample in SAMPLES:
        if isinstance(sample.snapshot.slurm, SlurmView):
            guard = IsolatedPolicy(idle, 5.0, name="idle")
            found = guard.evaluate(sample.snapshot, sample.target)
            assert found == idle.evaluate(sample.snapshot, sample.target)
            assert type(found.offers) is type(sample.target.offers)
            assert (guard.last_evaluation.evaluated_at, guard.last_evaluation.failing, guard.last_evaluation.error) == (
                NOW,
                False,
                "",
            )
    whole = decide(BUSY.snapshot, [IsolatedPolicy(idle, 5.0, name="idle")], Tuning())
    assert whole == decide(BUSY.snapshot, [idle], Tuning())


def test_lists_are_taken_for_what_they_mean() -> None:
    found = isolated(lambda _, t: replace(t, wants=list(t.wants))).evaluate(  # type: ignore[arg-type]
        BUSY.snapshot, BUSY.target
    )
    assert found == BUSY.target


def test_after_an_overrun_it_rests_for_a_minute() -> None:
    asked: list[float] = []
    slow = True

    def act(snapshot: Snapshot, target: Target) -> Target:
        asked.append(snapshot.now)
        return swallows(snapshot, target) if slow else target

    guard = isolated(act, LIMIT_S)
    said: list[str] = []
    for later in (0.0, 1.0, OVERRUN_PAUSE_S - 1, OVERRUN_PAUSE_S, OVERRUN_PAUSE_S + 1):
        if later == OVERRUN_PAUSE_S + 1:
            slow = False
        with pytest.raises(PolicyBroken) as raised:
            guard.evaluate(replace(BUSY.snapshot, now=NOW + later), BUSY.target)
        said.append(str(raised.value))
    assert asked == [NOW, NOW + OVERRUN_PAUSE_S]
    assert len(set(said)) == 1, "an alarm that changes with each loop is a new alarm each time"
    assert said[0].endswith(f"it took longer than {LIMIT_S:g} s and was interrupted; it is asked again after 60 s")
    rested = replace(BUSY.snapshot, now=NOW + 3 * OVERRUN_PAUSE_S)
    assert guard.evaluate(rested, BUSY.target) == BUSY.target
    assert (guard.last_evaluation.failing, guard.last_evaluation.failed_at, guard.last_evaluation.error) == (
        False,
        NOW + OVERRUN_PAUSE_S,
        said[0],
    )


def test_one_that_raises_is_asked_again_at_once() -> None:
    answers = iter([ValueError("no"), None])

    def act(_: Snapshot, target: Target) -> Target:
        if (error := next(answers)) is not None:
            raise error
        return target

    guard = isolated(act)
    with pytest.raises(PolicyBroken, match="ValueError: no"):
        guard.evaluate(BUSY.snapshot, BUSY.target)
    assert guard.last_evaluation.failing
    assert guard.evaluate(BUSY.snapshot, BUSY.target) == BUSY.target
    assert not guard.last_evaluation.failing


def test_the_time_of_a_hard_policy_is_that_of_both_answers() -> None:
    def act(_: Snapshot, target: Target) -> Target:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return target

    guard = isolated(act, hard=True)
    decide(BUSY.snapshot, [guard], Tuning())
    assert guard.last_evaluation.took_s >= 0.004


def test_what_comes_of_a_trial_is_not_held_against_a_policy() -> None:
    hangs = True
    guard = isolated(lambda s, t: swallows(s, t) if hangs else t, LIMIT_S)
    with pytest.raises(PolicyBroken):
        copies_for_trial([guard])[0].evaluate(BUSY.snapshot, BUSY.target)
    hangs = False
    assert guard.evaluate(BUSY.snapshot, BUSY.target) == BUSY.target
    took = guard.last_evaluation.took_s
    copies_for_trial([guard])[0].evaluate(BUSY.snapshot, BUSY.target)
    assert guard.last_evaluation.took_s == took


def breaking() -> st.SearchStrategy[Callable[[Snapshot, Target], Any]]:
    rubbish = st.sampled_from(RUBBISH).map(lambda value: lambda _, __: value)
    return st.one_of(st.sampled_from(ERRORS).map(fails), rubbish, st.sampled_from(MUTATES))


@pytest.mark.usefixtures("ctrl_c_is_handled")
@settings(suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots(), act=breaking(), hard=st.booleans(), place=st.integers(0, 1))
def test_nothing_is_booted_or_let_go_beside_a_broken_policy(
    snapshot: Snapshot, act: Callable[[Snapshot, Target], Any], hard: bool, place: int
) -> None:
    chain: list[Any] = [IdlePolicy(IdleSettings(min_nodes=1))]
    chain.insert(place, isolated(act, hard=hard))
    plan = decide(snapshot, chain, Tuning())
    if isinstance(snapshot.slurm, SlurmView):
        assert [failed.name for failed in plan.target.failed_policies] == ["wild"]
    assert (plan.target.wants, plan.target.releases) == ((), ())
    assert not any(isinstance(action, MakeClaim) for action in plan.actions)
