from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from burstd.domain.cloud.instance import InstanceState
from burstd.domain.errors import CloudUnavailable, NotAllowed
from providers.openshift.errors import ResourceVersionExpired
from providers.openshift.pods.listing import PodListing
from tests.providers.openshift.script import PATIENCE_S, Clock, ScriptedCalls
from tests.providers.openshift.things import CLUSTER, going, pod, running, settings

LIST = "LIST /api/v1/namespaces/burst/pods burstd-cluster=hpc,burstd-claim"
TOO_OLD = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 20 (99)"}


class Rig:
    """A listing whose answers, streams and times the test says."""

    def __init__(self, **words: Any) -> None:
        self.settings = settings(**words)
        self.clock = Clock()
        self.calls = ScriptedCalls(self.settings)
        self.listing = PodListing("p", CLUSTER, self.settings, self.calls, self.clock, (0.0,))

    def names(self) -> list[str]:
        return sorted(one.name for one in self.listing.instances())

    def lists(self) -> int:
        return self.calls.asked.count(LIST)

    def down(self) -> None:
        """Waits until the watch says that it is not open."""
        until(lambda: self.listing._watch is None or not self.listing._watch.alive)


def until(condition: Callable[[], bool]) -> None:
    """For what another thread does at once."""
    tick = threading.Event()
    for _ in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        tick.wait(0.001)
    raise AssertionError("it never came to that")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.calls.let_go()
    made.listing.close()
    until(lambda: not [one for one in threading.enumerate() if one.name == "burstd-watch-pods"])


def test_one_list_and_then_the_watch(rig: Rig) -> None:
    rig.calls.says(running("a", 10), at=20)
    assert rig.names() == ["a"]
    stream, at = rig.calls.opens()
    assert at == "20"
    stream.send_event("ADDED", pod("b", 21))
    stream.send_event("MODIFIED", running("b", 22))
    stream.send_event("DELETED", running("a", 23))
    (made,) = rig.listing.instances()
    assert (made.name, made.state) == ("b", InstanceState.RUNNING)
    assert rig.calls.asked == [LIST, LIST.replace("LIST", "WATCH")]


def test_a_provider_just_made_lists_even_where_a_launch_told_it_of_a_pod(rig: Rig) -> None:
    rig.listing.put(pod("b", 19))
    rig.calls.says(running("a", 10), pod("b", 19), at=20)
    assert rig.names() == ["a", "b"]


def test_a_stream_that_ends_is_taken_up_where_it_was(rig: Rig) -> None:
    rig.calls.says(at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    stream.send_event("ADDED", pod("a", 25))
    stream.end()
    stream, at = rig.calls.opens()
    assert at == "25"
    stream.bookmark(40)
    stream.end(CloudUnavailable("it broke, or said nothing for too long"))
    stream, at = rig.calls.opens()
    assert at == "40"
    stream.send_event("DELETED", pod("a", 41))
    assert rig.names() == []
    assert rig.lists() == 1


@pytest.mark.parametrize("how", ["event", "answer"])
def test_a_watch_that_lost_its_place_waits_for_a_list(rig: Rig, how: str) -> None:
    rig.calls.says(running("a", 10), running("gone", 10), at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    if how == "event":
        stream.send_event("ERROR", TOO_OLD)
    else:
        stream.end()
        rig.calls.refuses(ResourceVersionExpired("too old"))
    rig.down()
    rig.calls.says(running("a", 10), pod("new", 90), at=99)
    assert rig.names() == ["a", "new"]
    _, at = rig.calls.opens()
    assert at == "99"


@pytest.mark.parametrize("kind", ["BOOKMARK", "ADDED"])
def test_a_counter_that_goes_back_is_a_place_lost(rig: Rig, kind: str) -> None:
    """Of a cluster that was restored from a backup: nothing below the old place is told otherwise."""
    rig.calls.says(running("a", 900), running("gone", 990), at=1000)
    rig.names()
    stream, _ = rig.calls.opens()
    stream.send_event(kind, pod("new", 510))
    rig.down()
    rig.calls.says(running("a", 500), pod("new", 510), at=511)
    assert rig.names() == ["a", "new"]
    _, at = rig.calls.opens()
    assert at == "511"


@pytest.mark.parametrize("listing", [False, True])
def test_a_launch_that_is_older_than_what_was_seen_is_looked_for(rig: Rig, listing: bool) -> None:
    """Its pod may have ended; or the cluster was restored from a backup, and the watch has not heard of it."""
    rig.calls.says(at=1000)
    rig.names()
    rig.calls.opens()
    rig.clock.now += 1
    if listing:
        rig.listing.distrust_cache()
        rig.calls.says(at=510)
        rig.calls.during = lambda: launched(rig)
        assert rig.names() == []
        rig.calls.opens()
        rig.calls.during = lambda: None
        rig.clock.now += rig.settings.settle_s
    else:
        launched(rig)
    rig.clock.now += 1
    rig.calls.says(pod("new", 520), at=521)
    assert (rig.names(), rig.names()) == (["new"], ["new"])
    assert rig.lists() == 2 + listing


def launched(rig: Rig) -> None:
    assert rig.listing.put(pod("new", 520)).name == "new"


def test_while_the_watch_is_down_every_list_is_a_call_and_says_what_is_wrong(rig: Rig) -> None:
    rig.calls.says(running("a", 10), at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    stream.end(CloudUnavailable("down"))
    rig.down()
    rig.calls.lists.append(CloudUnavailable("down"))
    with pytest.raises(CloudUnavailable):
        rig.names()
    rig.calls.says(at=30)
    assert rig.names() == []
    assert rig.lists() == 3


def test_a_watch_that_is_not_allowed_costs_lists_only(rig: Rig) -> None:
    rig.calls.says(running("a", 10), at=20)
    rig.names()
    rig.calls.refuses(NotAllowed("no"))
    rig.down()
    for at in (30, 31):
        rig.calls.says(running("a", 10), at=at)
        assert rig.names() == ["a"]
        rig.clock.now += 5  # A watch that has not opened by then is not waited for.
    assert rig.lists() == 3


def test_an_old_list_is_made_again_and_what_the_stream_before_says_late_is_not_heard(rig: Rig) -> None:
    rig.calls.says(running("a", 10), running("b", 10), at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    rig.clock.now += rig.settings.relist_s - 1
    assert rig.names() == ["a", "b"]
    rig.clock.now += 1
    rig.calls.says(running("a", 10), at=30)
    rig.calls.during = lambda: stream.send_event("ADDED", running("c", 25))
    assert rig.names() == ["a"]
    assert stream.closed
    _, at = rig.calls.opens()
    assert at == "30"


def test_a_list_that_fails_is_made_anew(rig: Rig) -> None:
    rig.calls.says(running("a", 10), at=20)
    rig.names()
    rig.calls.opens()
    rig.clock.now += rig.settings.relist_s
    rig.calls.lists.append(ResourceVersionExpired("twice"))
    with pytest.raises(CloudUnavailable):
        rig.names()
    rig.calls.says(running("a", 10), at=30)
    assert rig.names() == ["a"]


def test_what_is_launched_while_an_older_list_is_read_stays(rig: Rig) -> None:
    rig.calls.says(at=20)
    rig.calls.during = lambda: rig.listing._cache.put(pod("mine", 21))
    assert rig.names() == ["mine"]


def test_a_launch_without_an_answer_is_looked_for(rig: Rig) -> None:
    rig.calls.says(at=20)
    rig.names()
    rig.calls.opens()
    rig.listing.distrust_cache()
    rig.calls.says(pod("mine", 21), at=22)
    assert rig.names() == ["mine"]
    rig.calls.opens()
    rig.clock.now += rig.settings.settle_s
    assert rig.names() == ["mine"]
    assert rig.lists() == 2


def test_without_a_watch_every_list_is_a_call() -> None:
    rig = Rig(relist_s=0)
    rig.calls.says(running("a", 10), at=20)
    rig.calls.says(at=21)
    assert (rig.names(), rig.names()) == (["a"], [])
    assert rig.calls.asked == [LIST, LIST]


def test_who_asks_while_a_list_is_read_asks_after_it(rig: Rig) -> None:
    """A list that was asked for before may be older than what its asker knows of."""
    inside, further = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        assert further.wait(PATIENCE_S)

    rig.calls.during = during
    rig.calls.says(running("a", 10), at=20)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(rig.names)
        assert inside.wait(PATIENCE_S)
        rig.clock.now += 1
        second = pool.submit(rig.names)
        further.set()
        assert first.result() == ["a"]
        assert second.result() == ["a"]
    assert rig.lists() == 1, "the watch goes on from that list"


def test_the_pods_of_others_are_none_of_ours(rig: Rig) -> None:
    rig.calls.says(running("a", 10), running("theirs", 11, cluster="other"), at=20)
    assert rig.names() == ["a"]
    stream, _ = rig.calls.opens()
    stream.send_event("ADDED", running("b", 21, cluster="other"))
    relabelled = running("a", 22)
    del relabelled["metadata"]["labels"]["burstd-claim"]
    stream.send_event("MODIFIED", relabelled)
    assert rig.names() == []


def test_a_pod_that_is_made_again_is_another(rig: Rig) -> None:
    rig.calls.says(going("a", 10, uid="u1"), at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    rig.listing.put(pod("a", 26, uid="u2"))
    stream.send_event("DELETED", going("a", 25, uid="u1"))
    (made,) = rig.listing.instances()
    assert made.state is InstanceState.PENDING


@pytest.mark.parametrize("thing", [{"metadata": {}}, {"metadata": {"resourceVersion": "21"}, "kind": "Strange"}])
def test_nonsense_in_a_watch_ends_it(rig: Rig, thing: Any) -> None:
    rig.calls.says(running("a", 10), at=20)
    rig.names()
    stream, _ = rig.calls.opens()
    stream.send_event("SAYS" if thing.get("kind") else "ADDED", thing)
    rig.down()
    rig.calls.says(running("a", 10), at=20)
    assert rig.names() == ["a"]
