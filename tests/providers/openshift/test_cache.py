from __future__ import annotations

from collections.abc import Callable

import pytest

from burstd.domain.errors import CloudUnavailable
from providers.openshift.pods.cache import Cache, version
from tests.providers.openshift.things import pod, running, waiting


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def holding(*pods: object, at: int = 20) -> Cache:
    cache = Cache(Clock())
    cache.begin()
    cache.replace(list(pods), at)  # type: ignore[arg-type]
    return cache


def told(cache: Cache) -> dict[str, tuple[str, int]]:
    return {one["metadata"]["name"]: (one["metadata"]["uid"], version(one)) for one, _, _ in cache.pods()}


STEPS: list[tuple[str, list[Callable[[Cache], object]], dict[str, tuple[str, int]]]] = [
    ("nothing", [], {"a": ("u1", 10)}),
    ("changes", [lambda c: c.changed(pod("a", 21, uid="u1"))], {"a": ("u1", 21)}),
    ("is-not-set-back", [lambda c: c.changed(pod("a", 21, uid="u1")), lambda c: c.put(pod("a", 15, uid="u1"))],
     {"a": ("u1", 21)}),
    ("ends", [lambda c: c.removed(pod("a", 21, uid="u1"))], {}),
    ("is-made-again", [lambda c: c.removed(pod("a", 21, uid="u1")), lambda c: c.changed(pod("a", 22, uid="u2"))],
     {"a": ("u2", 22)}),
    ("is-made-again-and-its-end-is-told-late",
     [lambda c: c.put(pod("a", 22, uid="u2")), lambda c: c.removed(pod("a", 21, uid="u1"))], {"a": ("u2", 22)}),
    ("the-answer-is-late-and-it-has-ended",
     [lambda c: c.changed(pod("b", 21)), lambda c: c.removed(pod("b", 22)), lambda c: c.put(pod("b", 21))],
     {"a": ("u1", 10)}),
    ("the-answer-is-later-than-a-bookmark", [lambda c: c.passed(30), lambda c: c.put(pod("b", 21))], {"a": ("u1", 10)}),
    ("the-answer-is-first", [lambda c: c.put(pod("b", 21))], {"a": ("u1", 10), "b": ("uid-b", 21)}),
    ("a-list-without-it", [lambda c: c.begin(), lambda c: c.replace([], 30)], {}),
    ("a-list-with-another", [lambda c: c.begin(), lambda c: c.replace([pod("a", 25, uid="u2")], 30)],
     {"a": ("u2", 25)}),
    ("a-launch-while-an-older-list-is-read",
     [lambda c: c.begin(), lambda c: c.put(pod("b", 31)), lambda c: c.replace([pod("a", 10, uid="u1")], 30)],
     {"a": ("u1", 10), "b": ("uid-b", 31)}),
    ("a-launch-and-its-end-before-the-list",
     [lambda c: c.begin(), lambda c: c.put(pod("b", 21)), lambda c: c.replace([pod("a", 10, uid="u1")], 30)],
     {"a": ("u1", 10)}),
    ("a-second-of-the-name-while-an-older-list-is-read",
     [lambda c: c.begin(), lambda c: c.put(pod("a", 31, uid="u2")), lambda c: c.replace([pod("a", 10, uid="u1")], 30)],
     {"a": ("u2", 31)}),
    ("what-was-put-before-the-list-was-asked-for-is-in-it",
     [lambda c: c.put(pod("b", 31)), lambda c: c.begin(), lambda c: c.replace([], 40)], {}),
    ("a-cluster-restored-from-a-backup",
     [lambda c: c.changed(pod("b", 90)), lambda c: c.begin(), lambda c: c.replace([pod("a", 7, uid="u1")], 9),
      lambda c: c.put(pod("c", 11))],
     {"a": ("u1", 7), "c": ("uid-c", 11)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "steps", "left"), STEPS, ids=[row[0] for row in STEPS])
def test_steps(name: str, steps: list[Callable[[Cache], object]], left: dict[str, tuple[str, int]]) -> None:
    cache = holding(pod("a", 10, uid="u1"))
    for step in steps:
        step(cache)
    assert told(cache) == left


def test_why_an_image_does_not_come_is_remembered() -> None:
    clock = Clock()
    cache = Cache(clock)
    back_off = waiting("ImagePullBackOff", 'Back-off pulling image "x"', version=12)
    cache.changed(waiting("ErrImagePull", "registry answers 500", version=11))
    clock.now = 40
    cache.changed(back_off)
    ((_, pull, _),) = cache.pods()
    assert pull == ("registry answers 500", 40.0)
    cache.changed(waiting("ErrImagePull", "manifest unknown", version=13))
    ((_, pull, _),) = cache.pods()
    assert pull == ("manifest unknown", 40.0)
    cache.changed(running(version=14))
    ((_, pull, _),) = cache.pods()
    assert pull is None


@pytest.mark.parametrize("lost", ["list", "event"])
def test_nothing_is_remembered_of_an_image_of_a_pod_that_is_gone(lost: str) -> None:
    cache = Cache(Clock())
    cache.changed(waiting("ErrImagePull", "manifest unknown", version=11))
    if lost == "list":
        cache.begin()
        cache.replace([], 20)
    else:
        cache.removed(waiting("ErrImagePull", version=12))
    cache.changed(waiting("ImagePullBackOff", "Back-off pulling image", version=31))
    ((_, pull, _),) = cache.pods()
    assert pull == ("Back-off pulling image", 0.0)


SHUT = pod("a", 30, phase="Failed", reason="NodeAffinity", message="Predicate NodeAffinity failed")


@pytest.mark.parametrize(
    ("steps", "ran"),
    [
        ([], False),
        ([lambda c: c.changed(running("a", 21))], True),
        ([lambda c: c.put(running("a", 21))], True),
        ([lambda c: c.begin(), lambda c: c.replace([running("a", 21)], 25)], True),
        ([lambda c: c.changed(running("a", 21)), lambda c: c.begin(), lambda c: c.replace([SHUT], 30)], True),
        ([lambda c: c.changed(running("a", 21, uid="u0"))], False),
        ([lambda c: c.changed(running("a", 21)), lambda c: c.removed(running("a", 22))], False),
        ([lambda c: c.changed(running("a", 21)), lambda c: c.begin(), lambda c: c.replace([], 25)], False),
    ],
)
def test_that_a_pod_has_started_is_remembered(steps: list[Callable[[Cache], object]], ran: bool) -> None:
    """A kubelet that was restarted, and does not admit it again, says nothing of its container."""
    cache = Cache(Clock())
    for step in steps:
        step(cache)
    cache.changed(SHUT)
    assert [known.ran for known in cache.pods()] == [ran]


def test_what_has_no_version_is_no_answer() -> None:
    broken = pod()
    broken["metadata"]["resourceVersion"] = "a1"
    with pytest.raises(CloudUnavailable):
        version(broken)
