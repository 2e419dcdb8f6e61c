"""Threads for calls, and what wakes the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from burstd.runtime.workers import ThreadWorkers

WAIT_S = 20.0


@pytest.fixture
def woken() -> threading.Event:
    return threading.Event()


@pytest.fixture
def workers(woken: threading.Event) -> Iterator[ThreadWorkers]:
    made = ThreadWorkers(woken.set, 1)
    yield made
    made.close()


def test_what_is_no_news_wakes_nobody_and_comes_with_the_next_news(
    workers: ThreadWorkers, woken: threading.Event
) -> None:
    """One lane of one thread: the second call is answered after the first."""
    heard: list[object] = []
    asleep: list[bool] = []
    workers.submit("cloud:list", lambda: "", heard.append, lambda said: not said)
    workers.submit("cloud:list", lambda: asleep.append(not woken.is_set()), lambda _: heard.append("asleep"))
    assert woken.wait(WAIT_S)
    assert workers.run_callbacks() == 1
    assert heard == ["", "asleep"]
    assert asleep == [True]


@pytest.mark.parametrize("said", ["word", ""])
def test_news_and_errors_wake(workers: ThreadWorkers, woken: threading.Event, said: str) -> None:
    heard: list[object] = []

    def work() -> str:
        if not said:
            raise OSError("no")
        return said

    workers.submit("cloud:list", work, heard.append, lambda word: not word)
    assert woken.wait(WAIT_S)
    assert workers.run_callbacks() == 1
    assert len(heard) == 1


def test_a_lane_may_be_wider_than_the_others(woken: threading.Event) -> None:
    made = ThreadWorkers(woken.set, 1, widths={"nodes": 2})
    meeting = threading.Barrier(2)
    heard: list[object] = []
    for _ in range(2):
        made.submit("nodes", lambda: meeting.wait(WAIT_S), heard.append)
    while len(heard) < 2:
        assert woken.wait(WAIT_S)
        woken.clear()
        made.run_callbacks()
    assert sorted(map(str, heard)) == ["0", "1"]  # each met the other
    made.close()


def test_what_comes_while_results_are_taken_is_left_to_the_next_loop(
    workers: ThreadWorkers, woken: threading.Event
) -> None:
    heard: list[str] = []

    def first() -> None:
        woken.clear()
        workers.post(lambda: heard.append("second"))

    workers.post(first)
    assert (workers.run_callbacks(), heard) == (1, [])
    assert woken.is_set()
    assert (workers.run_callbacks(), heard) == (1, ["second"])
