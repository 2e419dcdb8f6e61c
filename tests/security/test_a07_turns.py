"""One user who asks without a pause: few of his requests are answered at a time, and others are answered meanwhile."""

from __future__ import annotations

import os
import pwd
import threading
from typing import Any, cast

import pytest

from burstd.api.app import MAX_CONCURRENT_REQUESTS
from tests.api.client import ApiTestClient
from tests.api.fake_backend import sample_database, serving_api

USER = "games"
MANY = 8


class _Slow:
    """A record whose bill takes until ``go``."""

    def __init__(self, record: Any) -> None:
        self._record = record
        self._lock = threading.Lock()
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.now = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def bill(self, *words: Any) -> Any:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.begun.release()
        assert self.go.wait(30.0)
        with self._lock:
            self.now -= 1
        return self._record.bill(*words)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_few_requests_of_one_user_are_answered_at_a_time() -> None:
    who = pwd.getpwnam(USER)
    with sample_database() as record, serving_api(record) as (backend, path):
        slow = _Slow(record)
        backend.reader = cast("Any", slow)
        clients = [ApiTestClient(path, who.pw_uid, who.pw_gid) for _ in range(MANY)]
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda c=client: answers.append(c.request("GET", "/v1/bill")[0]))
            for client in clients
        ]
        for thread in threads:
            thread.start()
        for _ in range(MAX_CONCURRENT_REQUESTS):
            assert slow.begun.acquire(timeout=30.0)
        with ApiTestClient(path) as admin:
            for _ in range(MANY):
                admin.get("/v1/status")
        other = pwd.getpwnam("bin")
        with ApiTestClient(path, other.pw_uid, other.pw_gid) as another:
            another.get("/v1/status")
        slow.go.set()
        for thread in threads:
            thread.join(30.0)
        assert answers == [200] * MANY
        assert slow.most == MAX_CONCURRENT_REQUESTS
