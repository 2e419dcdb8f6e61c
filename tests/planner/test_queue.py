"""The queue that is kept between decisions."""

from __future__ import annotations

from dataclasses import replace

from burstd.planner.demand.pending_queue import PendingQueue
from tests.planner.worlds import job


def test_jobs_that_are_read_anew_and_did_not_change_can_leave_later() -> None:
    queue: PendingQueue[str] = PendingQueue()
    jobs = tuple(job(str(n), priority=n) for n in (1, 2, 3))
    assert not queue.update(jobs, "")
    again = tuple(replace(one) for one in jobs)
    assert queue.update(again, "")
    assert not queue.update(again[1:], "")
    assert [one.id for one in queue.pending] == ["3", "2"]
    assert not queue.update((*again[1:], job("4", priority=9)), "")
    assert [one.id for one in queue.pending] == ["4", "3", "2"]
