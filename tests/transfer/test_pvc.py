"""The PVC store over an API server that is stood in for: what it asks of it, and when it does not any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import providers.openshift.client.calls
from burstd.domain.errors import CloudUnavailable, RateLimited
from burstd.domain.plugins.stager import StoreBusy
from staging.pvc.mover_pod import mover_pod_manifest, mover_pod_name
from staging.pvc.settings import PvcSettings
from staging.pvc.stager import PvcStager

SETTINGS = PvcSettings.model_validate({"namespace": "burst", "claim": "data", "path": "/data", "image": "node:1"})


class Api:
    """Stands in for Calls: the mover runs, and nothing can be run in it."""

    def __init__(self) -> None:
        self.containers: list[str] = []
        self.slow: threading.Barrier | None = None
        self.closed = False

    def request_json(self, *_: object, **_more: object) -> Any:
        if self.slow is not None:
            self.slow.wait(20)
            self.slow.wait(20)
            raise RateLimited("too many requests", retry_after_s=7.0)
        found = mover_pod_manifest(mover_pod_name("lab", "near"), "lab", "near", SETTINGS)
        return {**found, "status": {"phase": "Running"}}

    def exec_socket(self, _pod: str, _argv: Sequence[str], *, container: str = "") -> Any:
        self.containers.append(container)
        raise CloudUnavailable("connection refused")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Api]:
    made: list[Api] = []

    def make(_settings: object) -> Api:
        made.append(Api())
        return made[-1]

    monkeypatch.setattr(providers.openshift.client.calls, "OpenShiftCalls", make)
    return made


@pytest.fixture
def stager(made: list[Api]) -> Iterator[PvcStager]:
    stager = PvcStager("near", "lab", SETTINGS)
    yield stager
    stager.close()


def test_its_program_runs_in_the_container_of_the_mover(stager: PvcStager, made: list[Api]) -> None:
    """A pod may have others, which the cluster put there."""
    with pytest.raises(StoreBusy):
        stager.get("in/ab/x")
    assert made[0].containers == ["mover"]


def test_nothing_is_asked_when_it_was_closed(stager: PvcStager, made: list[Api]) -> None:
    """As by the timer that tidies up."""
    with pytest.raises(StoreBusy):
        stager.get("in/ab/x")
    stager.close()
    stager._clean_up()
    assert [api.closed for api in made] == [True]


def test_those_who_share_a_failure_wait_as_long_as_it_says(stager: PvcStager, made: list[Api]) -> None:
    with pytest.raises(StoreBusy):
        stager.get("in/ab/x")
    stager._prepared = False
    made[0].slow = threading.Barrier(2)
    pauses: list[float] = []

    def get() -> None:
        try:
            stager.get("in/ab/x")
        except StoreBusy as busy:
            pauses.append(busy.retry_after_s)

    turn = stager._prepare_lock = _Turn()  # type: ignore[assignment]
    threads = [threading.Thread(target=get) for _ in range(2)]
    threads[0].start()
    made[0].slow.wait(20)
    threads[1].start()
    for _ in threads:
        assert turn.wanted.acquire(timeout=20)
    made[0].slow.wait(20)
    for thread in threads:
        thread.join()
    assert pauses == [7.0, 7.0]


class _Turn:
    """A lock that tells when it is wanted."""

    def __init__(self) -> None:
        self.wanted = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.wanted.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
