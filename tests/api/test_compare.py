"""GET /v1/compare: what users are told of others' runs, which is nothing, and one comparison of all at a time."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from burstd.api.backend import MAX_WAIT_S, SLICE
from burstd.db import Store, StoreReader
from burstd.domain.billing.site_cost import HourCost, NodeGroup, SiteCosts
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import DAY_S, WHOLE, Payer
from burstd.domain.slurm.job_history import EndedJob
from tests.db.samples import ManualClock

from .client import ApiTestClient
from .fake_backend import FakeBackend, serving_api
from .world import NOW, OTHER_USER, USER, FixedClock

BEGUN = NOW // DAY_S * DAY_S
OWN = Decimal("2.60")
URLS = ("/v1/compare", "/v1/compare?job=1", "/v1/compare?job=2")


def ran(job: str, user: str, run_s: float, *, burst: bool, name: str = "train", gpus: int = 0) -> EndedJob:
    return EndedJob(
        job, user, "a", name, ("p",), 1, 4, gpus, 0.0, BEGUN, BEGUN + 60, BEGUN + 60 + run_s, burst, submitted=BEGUN
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Store, FakeBackend, Path]]:
    """A user's jobs 1 and 2 ran here, 3 like 2 there."""
    with Store.open(tmp_path / "burstd.db", ManualClock(NOW)) as store:
        write(
            store, ran("1", USER, 300, burst=False), ran("2", USER, 30, burst=False, name="x"),
            ran("3", USER, 20, burst=True, name="x"),
        )  # fmt: skip
        with StoreReader.open(store.location, FixedClock()) as reader, serving_api(reader) as (backend, path):
            backend.site_costs = lambda: SiteCosts((NodeGroup("gpu", ("own*",), HourCost("EUR", OWN, None)),))
            yield store, backend, path


def write(store: Store, *jobs: EndedJob) -> None:
    store.record_ended_jobs(jobs)
    store.save_site_runs((), [
        SiteRun("gpu", Payer(job.id, job.user, "a", "p"), 1, job.started, WHOLE, OWN, "EUR", job.ended)
        for job in jobs if not job.burst
    ])  # fmt: skip


def answers(path: Path, uid: int | None) -> list[dict[str, Any]]:
    found = []
    for url in URLS:
        with ApiTestClient(path, uid) as client:
            status, said = client.request("GET", url)
        assert status == 200, said
        found.append(said)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_runs_of_others_change_nothing_of_what_a_user_is_told(served: tuple[Store, FakeBackend, Path]) -> None:
    store, _, path = served
    uid = pwd.getpwnam(USER).pw_uid
    before, administrators = answers(path, uid), answers(path, None)
    # Kinds that ran at both places, with the user's names and others, with GPUs and without, and before the user's.
    long_ago = BEGUN - DAY_S
    earlier = EndedJob("9", OTHER_USER, "a", "old", (), 1, 4, 0, 0.0, long_ago, long_ago, long_ago, burst=True)
    store.record_ended_jobs([earlier])
    for number, name in enumerate(["train", "x", *"abcdefghij"]):
        for burst in (False, True):
            jobs = [ran(f"{number}{burst:d}{gpus}", OTHER_USER, 777 + number, burst=burst, name=name, gpus=gpus)
                    for gpus in (0, 1)]  # fmt: skip
            write(store, *jobs)
    assert answers(path, uid) == before
    month, alone, like = before
    assert (month["jobs"], month["groups"]) == (3, [])
    assert [alone["there"][name]["seconds"] for name in ("wait", "run", "completion")] == [None] * 3
    reasons = [alone["there"][name]["basis"]["reason"] for name in ("wait", "run", "charged")]
    assert reasons == [f"none of your like jobs ran there{more}" for more in ("", "", " with a charge")]
    assert (like["there"]["run"]["seconds"], like["there"]["run"]["basis"]["like_jobs"]) == (20, 1)
    assert alone["here"]["used"]["basis"]["reason"].startswith("only administrators")
    told = answers(path, None)
    assert told != administrators
    assert told[1]["there"]["run"]["basis"]["others"] == 1


def test_all_runs_are_read_for_one_at_a_time(served: tuple[Store, FakeBackend, Path]) -> None:
    _, backend, path = served
    with backend.comparing:
        for url in ("/v1/compare", "/v1/compare?job=1"):
            with ApiTestClient(path) as client:
                code, said = client.request("GET", url)
            assert (code, "one at a time" in said["error"]) == (503, True), said
    answers(path, None)
    assert not backend.comparing.locked()


class Deciding(Event):
    """A decision is being made whenever one looks; notes for how long each wait would be."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


def test_each_slice_waits_for_a_decision(served: tuple[Store, FakeBackend, Path]) -> None:
    store, backend, path = served
    waits = []
    for more in (0, 2 * SLICE):
        store.record_ended_jobs([ran(f"4_{number}", USER, 9, burst=True) for number in range(more)])
        backend.between_decisions = deciding = Deciding()
        with ApiTestClient(path) as client:
            status, said = client.request("GET", "/v1/compare")
        assert (status, said["jobs"]) == (200, 3 + more)
        assert set(deciding.waits) == {MAX_WAIT_S}
        waits.append(len(deciding.waits))
    assert waits[1] == waits[0] + 2
