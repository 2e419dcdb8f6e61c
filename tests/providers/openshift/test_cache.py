from __future__ import annotations

from collections.abc import Callable

import pytest

from burstd.domain.errors import CloudUnavailable
from providers.openshift.pods.cache import PodCache, resource_version
from tests.providers.openshift.things import pod, running, waiting


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def holding(*pods: object, at: int = 20) -> PodCache:
    cache = PodCache(Clock())
    cache.begin_list()
    cache.apply_list(list(pods), at)  # type: ignore[arg-type]
    return cache


def cached_versions(cache: PodCache) -> dict[str, tuple[str, int]]:
    return {one["metadata"]["name"]: (one["metadata"]["uid"], resource_version(one)) for one, _, _ in cache.pods()}


STEPS: list[tuple[str, list[Callable[[PodCache], object]], dict[str, tuple[str, int]]]] = [
    ("nothing", [], {"a": ("u1", 10)}),
    ("changes", [lambda c: c.apply_change(pod("a", 21, uid="u1"))], {"a": ("u1", 21)}),
    (
        "is-not-set-back",
        [lambda c: c.apply_change(pod("a", 21, uid="u1")), lambda c: c.put(pod("a", 15, uid="u1"))],
        {"a": ("u1", 21)},
    ),
    ("ends", [lambda c: c.apply_removal(pod("a", 21, uid="u1"))], {}),
    (
        "is-made-again",
        [lambda c: c.apply_removal(pod("a", 21, uid="u1")), lambda c: c.apply_change(pod("a", 22, uid="u2"))],
        {"a": ("u2", 22)},
    ),
    (
        "is-made-again-and-its-end-is-told-late",
        [lambda c: c.put(pod("a", 22, uid="u2")), lambda c: c.apply_removal(pod("a", 21, uid="u1"))],
        {"a": ("u2", 22)},
    ),
    (
        "the-answer-is-late-and-it-has-ended",
        [
            lambda c: c.apply_change(pod("b", 21)),
            lambda c: c.apply_removal(pod("b", 22)),
            lambda c: c.put(pod("b", 21)),
        ],
        {"a": ("u1", 10)},
    ),
    (
        "the-answer-is-later-than-a-bookmark",
        [lambda c: c.advance_to(30), lambda c: c.put(pod("b", 21))],
        {"a": ("u1", 10)},
    ),
    ("the-answer-is-first", [lambda c: c.put(pod("b", 21))], {"a": ("u1", 10), "b": ("uid-b", 21)}),
    ("a-list-without-it", [lambda c: c.begin_list(), lambda c: c.apply_list([], 30)], {}),
    (
        "a-list-with-another",
        [lambda c: c.begin_list(), lambda c: c.apply_list([pod("a", 25, uid="u2")], 30)],
        {"a": ("u2", 25)},
    ),
    (
        "a-launch-while-an-older-list-is-read",
        [lambda c: c.begin_list(), lambda c: c.put(pod("b", 31)), lambda c: c.apply_list([pod("a", 10, uid="u1")], 30)],
        {"a": ("u1", 10), "b": ("uid-b", 31)},
    ),
    (
        "a-launch-and-its-end-before-the-list",
        [lambda c: c.begin_list(), lambda c: c.put(pod("b", 21)), lambda c: c.apply_list([pod("a", 10, uid="u1")], 30)],
        {"a": ("u1", 10)},
    ),
    (
        "a-second-of-the-name-while-an-older-list-is-read",
        [
            lambda c: c.begin_list(),
            lambda c: c.put(pod("a", 31, uid="u2")),
            lambda c: c.apply_list([pod("a", 10, uid="u1")], 30),
        ],
        {"a": ("u2", 31)},
    ),
    (
        "what-was-put-before-the-list-was-asked-for-is-in-it",
        [lambda c: c.put(pod("b", 31)), lambda c: c.begin_list(), lambda c: c.apply_list([], 40)],
        {},
    ),
    (
        "a-cluster-restored-from-a-backup",
        [
            lambda c: c.apply_change(pod("b", 90)),
            lambda c: c.begin_list(),
            lambda c: c.apply_list([pod("a", 7, uid="u1")], 9),
            lambda c: c.put(pod("c", 11)),
        ],
        {"a": ("u1", 7), "c": ("uid-c", 11)},
    ),
]


@pytest.mark.parametrize(("name", "steps", "left"), STEPS, ids=[row[0] for row in STEPS])
def test_steps(name: str, steps: list[Callable[[PodCache], object]], left: dict[str, tuple[str, int]]) -> None:
    cache = holding(pod("a", 10, uid="u1"))
    for step in steps:
        step(cache)
    assert cached_versions(cache) == left


def test_why_an_image_does_not_come_is_remembered() -> None:
    clock = Clock()
    cache = PodCache(clock)
    back_off = waiting("ImagePullBackOff", 'Back-off pulling image "x"', version=12)
    cache.apply_change(waiting("ErrImagePull", "registry answers 500", version=11))
    clock.now = 40
    cache.apply_change(back_off)
    ((_, pull, _),) = cache.pods()
    assert pull == ("registry answers 500", 40.0)
    cache.apply_change(waiting("ErrImagePull", "manifest unknown", version=13))
    ((_, pull, _),) = cache.pods()
    assert pull == ("manifest unknown", 40.0)
    cache.apply_change(running(version=14))
    ((_, pull, _),) = cache.pods()
    assert pull is None


@pytest.mark.parametrize("lost", ["list", "event"])
def test_nothing_is_remembered_of_an_image_of_a_pod_that_is_gone(lost: str) -> None:
    cache = PodCache(Clock())
    cache.apply_change(waiting("ErrImagePull", "manifest unknown", version=11))
    if lost == "list":
        cache.begin_list()
        cache.apply_list([], 20)
    else:
        cache.apply_removal(waiting("ErrImagePull", version=12))
    cache.apply_change(waiting("ImagePullBackOff", "Back-off pulling image", version=31))
    ((_, pull, _),) = cache.pods()
    assert pull == ("Back-off pulling image", 0.0)


SHUT = pod("a", 30, phase="Failed", reason="NodeAffinity", message="Predicate NodeAffinity failed")


@pytest.mark.parametrize(
    ("steps", "ran"),
    [
        ([], False),
        ([lambda c: c.apply_change(running("a", 21))], True),
        ([lambda c: c.put(running("a", 21))], True),
        ([lambda c: c.begin_list(), lambda c: c.apply_list([running("a", 21)], 25)], True),
        (
            [lambda c: c.apply_change(running("a", 21)), lambda c: c.begin_list(), lambda c: c.apply_list([SHUT], 30)],
            True,
        ),
        ([lambda c: c.apply_change(running("a", 21, uid="u0"))], False),
        ([lambda c: c.apply_change(running("a", 21)), lambda c: c.apply_removal(running("a", 22))], False),
        ([lambda c: c.apply_change(running("a", 21)), lambda c: c.begin_list(), lambda c: c.apply_list([], 25)], False),
    ],
)
def test_that_a_pod_has_started_is_remembered(steps: list[Callable[[PodCache], object]], ran: bool) -> None:
    """A kubelet that was restarted, and does not admit it again, says nothing of its container."""
    cache = PodCache(Clock())
    for step in steps:
        step(cache)
    cache.apply_change(SHUT)
    assert [known.ran for known in cache.pods()] == [ran]


def test_what_has_no_version_is_no_answer() -> None:
    broken = pod()
    broken["metadata"]["resourceVersion"] = "a1"
    with pytest.raises(CloudUnavailable):
        resource_version(broken)
