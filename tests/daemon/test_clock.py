"""burstd's own time, over the lives of the process."""

from __future__ import annotations

from pathlib import Path

from burstd.daemon.clock import SteadyClock
from burstd.store import Store


def test_time_goes_on_where_it_ended_although_the_system_was_set_back(tmp_path: Path) -> None:
    path = tmp_path / "burstd.db"
    first = SteadyClock()
    wrong = first.now() + 10_000.0
    first.not_before(wrong)  # The system's clock was three hours ahead when this process began.
    store = Store.open(path, first)
    assert store.last_time() == 0.0
    store.append("daemon", new="started")
    store.close()
    second = SteadyClock()
    assert second.now() < wrong
    store = Store.open(path, second)
    second.not_before(store.last_time())
    store.close()
    assert wrong <= second.now() < wrong + 60.0
    later = second.now()
    second.not_before(later - 100.0)
    assert second.now() >= later
    assert second.wall() < wrong, "what other programs say is translated from the system's time"
