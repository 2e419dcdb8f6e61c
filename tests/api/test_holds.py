"""Since when burstd is on hold, and by whom, in its status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from burstd.api.auth import Caller
from burstd.api.routers.status import get_status
from burstd.db import Store, StoreReader
from burstd.reconciler.reconciler import PAUSED_KEY

from .fake_backend import PLAN, FakeBackend
from .world import NOW, SNAPSHOT, FixedClock


def test_a_hold_is_as_old_as_its_first_reason(tmp_path: Path) -> None:
    path, clock = tmp_path / "burstd.db", FixedClock()
    with Store.open(path, clock) as store:
        for earlier, reason, user in (
            (900, "old", "ada"),
            (800, "", "ada"),
            (700, "audit", "ada"),
            (60, "still", "bob"),
        ):
            clock.time = NOW - earlier
            store.set_metadata(PAUSED_KEY, reason, f"user:{user}")
    clock.time = NOW
    with StoreReader.open(path, clock) as reader:
        backend = FakeBackend(reader)
        for paused, by, ago in (("still", "ada", 700), ("burstd fails on staging", "", None), ("", "", None)):
            backend.loop = (replace(SNAPSHOT, paused=paused), PLAN)
            daemon = get_status(Caller("root", admin=True), backend).daemon
            since = daemon.paused_since.timestamp() if daemon.paused_since is not None else None
            assert (daemon.paused, daemon.paused_by) == (paused, by)
            assert since == (NOW - ago if ago is not None else None)
