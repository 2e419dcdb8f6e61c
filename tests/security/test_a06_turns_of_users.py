"""One user's work that stands still leaves half of each lane to others, and that of many a turn within a minute."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from burstd.runtime.workers import MAX_EXTRA_THREADS, MAX_USER_WAIT_S, ThreadWorkers

WAIT_S = 20.0


@pytest.fixture
def workers() -> Iterator[ThreadWorkers]:
    made = ThreadWorkers(lambda: None, 8)
    yield made
    made.close()


@pytest.mark.parametrize("lane", ["stage:home", "stage:nodes", "stage:clear"])
def test_eight_that_stand_still_hold_nobody_else_up(workers: ThreadWorkers, lane: str) -> None:
    go, came = threading.Event(), threading.Event()
    stopped = threading.Semaphore(0)

    def stand_still() -> None:
        stopped.release()
        assert go.wait(WAIT_S)

    for _ in range(40):
        workers.submit(lane, stand_still, lambda _: None, user=1001)
    for _ in range(4):
        assert stopped.acquire(timeout=WAIT_S)
    workers.submit(lane, came.set, lambda _: None, user=1002)
    assert came.wait(WAIT_S), "it has its turn while the other stands still"
    assert not stopped.acquire(blocking=False), "four of eight are his"
    assert workers.calls_under_way()[lane] in (40, 41)
    go.set()
    for _ in range(36):
        assert stopped.acquire(timeout=WAIT_S), "what waited has its turn in the end"


@pytest.mark.slow
@pytest.mark.parametrize(("users", "bound"), [(2, True), (MAX_EXTRA_THREADS, True), (MAX_EXTRA_THREADS + 8, False)])
def test_many_who_stand_still_together_hold_another_up_for_so_long(users: int, bound: bool) -> None:
    clock = [0.0]
    workers = ThreadWorkers(lambda: None, 8, lambda: clock[0])
    go, came = threading.Event(), threading.Event()
    stopped = threading.Semaphore(0)

    def stand_still() -> None:
        stopped.release()
        assert go.wait(WAIT_S)

    try:
        for user in range(users):
            for _ in range(10):
                workers.submit("stage:home", stand_still, lambda _: None, user=1000 + user)
        for _ in range(8):
            assert stopped.acquire(timeout=WAIT_S), "they fill the lane"
        workers.submit("stage:home", came.set, lambda _: None, user=9999)
        clock[0] = MAX_USER_WAIT_S - 0.1
        workers.run_callbacks()
        assert not stopped.acquire(timeout=0.1), "nobody else is begun"
        assert not came.is_set()
        clock[0] = MAX_USER_WAIT_S
        workers.run_callbacks()
        assert came.wait(WAIT_S if bound else 0.1) is bound
    finally:
        go.set()
        workers.close()


def test_nothing_is_kept_of_users_whose_work_is_done(workers: ThreadWorkers) -> None:
    ended = threading.Semaphore(0)
    for n in range(30):
        workers.submit("stage:in", lambda: None, lambda _: ended.release(), user=n % 3)
    done = 0
    while done < 30:
        done += workers.run_callbacks()
    (lane,) = workers._queues.values()
    assert not lane.running
    assert not lane.waiting
