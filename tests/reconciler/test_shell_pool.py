"""Ways into machines: those who wait for one together are told together."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from burstd.api.job_connections.shell_pool import ShellPool
from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady
from burstd.domain.plugins.shell import Shell
from tests.api.world import CLAIMS, USER


def test_a_machine_that_is_away_is_tried_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    came, go = threading.Semaphore(0), threading.Event()
    tried: list[str] = []
    errors: list[str] = []

    def monotonic() -> float:
        came.release()
        return time.monotonic()

    def open_shell(claim: Claim) -> Shell:
        assert go.wait(20)
        tried.append(claim.slot)
        raise NodeNotReady(f"{claim.slot} does not answer")

    def ask() -> None:
        with pytest.raises(NodeNotReady) as error, pool.dial(CLAIMS[0], 8888, USER):
            pass
        errors.append(str(error.value))

    monkeypatch.setattr("burstd.api.job_connections.shell_pool.time", SimpleNamespace(monotonic=monotonic))
    pool = ShellPool(open_shell)
    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    # Each asks for the time as it comes.
    for _ in threads:
        assert came.acquire(timeout=20)
    go.set()
    for thread in threads:
        thread.join(20)
    assert (tried, errors) == (["gpu1"], ["gpu1 does not answer"] * 5)
    ask()
    assert tried == ["gpu1", "gpu1"]
