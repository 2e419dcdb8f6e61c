"""What the interface says of jobs' figures, and how much of the record it reads for it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burstd.api.routers.job_use import job_use_view
from burstd.db import Store, StoreReader
from burstd.db.repositories import job_use
from burstd.domain.billing.use import WHOLE, ClaimRun, Payer
from burstd.domain.claim import ClaimState as S
from burstd.domain.idle_gpus import IdleAct
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse, Series
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView
from burstd.reconciler.machines.idle_gpus import EVENTS, WARNED

from .client import ApiTestClient
from .fake_backend import FakeBackend, serving_api
from .world import NOW, OTHER_USER, USER, FixedClock, claim

LEFT, OTHERS, IDLE, REQUEUED = "900", "901", "902", "903"
SERIES = Series(NOW - 60, 10.0, (1.5, None, 70.0), (2.0, None, 99.5))
GPU = GpuUse("GPU-1", 0, "A100", GpuShare.WHOLE, 70.0, 99.5, 900, 81920, 60.0, 20.0, 10.0, NOW, series=SERIES)
NODE = NodeUse(
    "cn", 8, 1024, NOW - 60, NOW, 50.0, 0.5, 1.5, 300, 310, gpus=(GPU,), cpu_series=SERIES, memory_series=SERIES
)
NODES = tuple(replace(NODE, node=f"cn{n:02}") for n in range(30))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeBackend, Path]]:
    path, clock = tmp_path_factory.mktemp("record") / "burstd.db", FixedClock()
    use = JobUse(LEFT, LEFT, 0, USER, "lab", "gpu", NODES, 30, NOW - 60, NOW, int(NOW - 60))
    with Store.open(path, clock) as store:
        again = replace(use, restarts=1, started=NOW - 50)
        parts = [
            (f"{LEFT}_7", USER, 55),
            (f"{LEFT}+1", USER, 45),
            (f"{LEFT}_8", OTHER_USER, 40),
            (f"{LEFT}1_7", USER, 9),
        ]
        store.save_job_uses([
            replace(use, job=job, user=user, started=NOW - ago, nodes=(NODE,)) for job, user, ago in parts
        ])  # fmt: skip
        store.save_job_uses([use, again, replace(use, job=OTHERS, number=OTHERS, user=OTHER_USER)])
        warning = "its GPU has been idle since 14:00 UTC; the job is cancelled at 14:13 UTC if that goes on"
        store.record_remarks([Remark("idle_gpus", f"job:{IDLE}", "warn", warning)], lambda _: USER)
        for new, why in ((WARNED, warning), (EVENTS[IdleAct.CANCEL], "its GPU was idle for 30 min")):
            store.log_event(f"job:{IDLE}", new=new, reason=why, cause="idle_gpus", data={"run": 1})
        store.log_event(f"job:{REQUEUED}", new=EVENTS[IdleAct.REQUEUE], reason="its GPU was idle for 30 min")
        store.make_claims([replace(claim("gpu6", S.PLANNED, 60), jobs=("1",), users=(OTHER_USER,))])
        payers = Payer(IDLE, USER), Payer(REQUEUED, OTHER_USER)
        store.save_runs([ClaimRun("c-gpu6", payer, NOW - 50, WHOLE // 2, NOW) for payer in payers])
    with StoreReader.open(path, clock) as reader, serving_api(reader) as found:
        yield found


@pytest.fixture
def unpacked(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the series that were read, a node's each."""
    assert backend.loop is not None
    sizes: list[int] = []

    class Counting:
        @staticmethod
        def decompress(packed: bytes) -> bytes:
            sizes.append(len(packed))
            return zlib.decompress(packed)

    monkeypatch.setattr(job_use, "zlib", Counting)
    return sizes


def test_no_series_is_read_where_none_is_shown(nobody: ApiTestClient, unpacked: list[int]) -> None:
    use = nobody.get(f"/v1/jobs/{LEFT}/use")
    assert (use["restarts"], len(use["nodes"]), use["nodes"][0]["cpu_series"]) == (1, 30, None)
    assert "What it used" in nobody.text(f"/jobs/{LEFT}")
    assert nobody.request("GET", f"/v1/jobs/{OTHERS}/use")[0] == 403
    assert nobody.request("GET", f"/v1/jobs/{OTHERS}")[0] == 403
    assert nobody.request("GET", "/v1/jobs/999/use")[0] == 404
    assert unpacked == []


def test_what_another_job_of_the_same_id_used_is_not_shown(backend: FakeBackend, nobody: ApiTestClient) -> None:
    """Unlike what a job used that was requeued, and waits."""
    assert backend.loop is not None
    snapshot, plan = backend.loop
    assert isinstance(snapshot.slurm, SlurmView)
    running = Job(LEFT, USER, JobState.RUNNING, ("burst",), NOW, restarts=1, run_start=int(NOW))
    waiting = Job(LEFT, USER, JobState.PENDING, ("burst",), NOW, restarts=2)
    answers = []
    for job in (running, replace(running, restarts=0), waiting, replace(waiting, restarts=1)):
        backend.loop = replace(snapshot, slurm=replace(snapshot.slurm, jobs=(job,))), plan
        answers.append(nobody.request("GET", f"/v1/jobs/{LEFT}/use")[0])
    assert answers == [404, 404, 200, 404]


def test_what_was_done_for_idle_gpus_takes_the_place_of_its_warning(
    backend: FakeBackend, nobody: ApiTestClient
) -> None:
    done = "burstd cancelled the job at 14:13:20 UTC: its GPU was idle for 30 min"

    def said() -> list[str]:
        return [remark["reason"] for remark in nobody.get(f"/v1/jobs/{IDLE}")["remarks"]]

    explained = nobody.get(f"/v1/jobs/{IDLE}/explanation")
    assert said() == [remark["reason"] for remark in explained["remarks"]] == [done]
    assert explained["summary"] == f"it has left the queue; {done}"
    assert done in nobody.text(f"/jobs/{IDLE}")
    assert backend.loop is not None
    snapshot, plan = backend.loop
    assert isinstance(snapshot.slurm, SlurmView)
    ending = Job(IDLE, USER, JobState.COMPLETING, ("burst",), NOW - 3600, start=NOW - 1900, restarts=1)
    for job, shown in ((ending, [done]), (replace(ending, restarts=2), []), (replace(ending, start=NOW + 9), [])):
        backend.loop = replace(snapshot, slurm=replace(snapshot.slurm, jobs=(job,))), plan
        assert said() == shown
        assert (done in nobody.get(f"/v1/jobs/{IDLE}/explanation")["summary"]) is bool(shown)
    again = Job(REQUEUED, USER, JobState.PENDING, ("burst",), NOW, restarts=1)
    backend.loop = replace(snapshot, slurm=replace(snapshot.slurm, jobs=(again,))), plan
    last = nobody.get(f"/v1/jobs/{REQUEUED}/explanation")["interruption"]
    assert (last["state"], last["reason"]) == ("requeued", "its GPU was idle for 30 min")


def test_machines_that_were_started_for_others_are_shown_of_what_ran_on_them(nobody: ApiTestClient) -> None:
    """Not of the job of another user, who had the number before."""
    shown = nobody.get(f"/v1/jobs/{IDLE}")
    assert [(node["slot"], node["reason"]) for node in shown["nodes"]] == [("gpu6", "")]
    assert nobody.get(f"/v1/jobs/{REQUEUED}")["nodes"] == []


@pytest.mark.parametrize(
    ("fields", "collect_s", "said"),
    [
        ({}, 180.0, "no figures so far, the first come in about 2 min"),
        ({"start": NOW - 600}, 180.0, "gpu1 sent no figures so far: burstd's log says why (python3 in the image?)"),
        ({}, None, "nodes do not measure ([sampler] enabled)"),
        ({"node_list": ("cn1",)}, 180.0, ""),
        ({"state": JobState.PENDING}, 180.0, ""),
    ],
)
def test_a_running_job_without_figures_says_when_they_come(
    backend: FakeBackend, nobody: ApiTestClient, fields: dict[str, Any], collect_s: float | None, said: str
) -> None:
    assert backend.loop is not None
    snapshot, plan = backend.loop
    assert isinstance(snapshot.slurm, SlurmView)
    job = replace(Job("7", USER, JobState.RUNNING, ("burst",), NOW, start=NOW - 60, node_list=("gpu1",)), **fields)
    backend.loop = replace(snapshot, slurm=replace(snapshot.slurm, jobs=(job,))), plan
    backend.collect_every_s = collect_s
    assert nobody.get("/v1/jobs/7")["no_use"] == said
    assert ("What it used" in nobody.text("/jobs/7")) is bool(said)


def test_gpus_without_figures_are_named() -> None:
    job = Job("7", USER, JobState.RUNNING, ("gpu",), NOW, gres_per_node=(Gres("gpu", "a100", 1),))
    use = JobUse("7", "7", 0, USER, "lab", "gpu", (replace(NODE, gpus=()),), 1, NOW - 60)
    said = "its GPUs have no figures (nvidia-smi on cn is missing or does not list them)"
    assert job_use_view(use, NOW, series=False, job=job).missing == said
    for other in (replace(job, gres_per_node=()), replace(job, restarts=1)):
        assert job_use_view(use, NOW, series=False, job=other).missing == ""
    assert job_use_view(replace(use, nodes=(NODE,)), NOW, series=False, job=job).missing == ""


@pytest.mark.parametrize(
    ("nodes", "allocated", "ended", "missing"),
    [
        ((NODE,), 1, NOW, ""),
        ((replace(NODE, cut=True),), 1, NOW, "its last figures are missing"),
        ((NODE,), 3, None, "2 of its 3 nodes sent no figures so far"),
        ((NODE, replace(NODE, cut=True)), 3, NOW,
         "1 of its 3 nodes sent no figures, and the last figures of 1 node are missing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(nodes: tuple[NodeUse, ...], allocated: int, ended: float | None, missing: str) -> None:
    use = JobUse("7", "7", 0, USER, "lab", "gpu", nodes, allocated, NOW - 60, ended)
    assert job_use_view(use, NOW, series=False).missing == missing


def test_the_parts_of_a_job_that_have_figures_are_named(nobody: ApiTestClient) -> None:
    """Not those of another user, whose job had the number."""
    assert nobody.get(f"/v1/jobs/{LEFT}")["measured_parts"] == [f"{LEFT}+1", f"{LEFT}_7"]


def test_a_plot_reads_the_series_that_it_draws(nobody: ApiTestClient, unpacked: list[int]) -> None:
    svg = nobody.get(f"/v1/jobs/{LEFT}/use/plot")["svg"]
    assert svg.count(" CPUs</text>") == svg.count(" GPU 0</text>") == 8
    assert "; the first 24 plots are drawn" in svg
    assert len(unpacked) == 12
    assert all(node["cpu_series"] for node in nobody.get(f"/v1/jobs/{LEFT}/use?series=true")["nodes"])
    assert len(unpacked) == 12 + 30


def test_the_values_of_the_interface_have_plain_names(root: ApiTestClient, backend: FakeBackend) -> None:
    """Of two that have one name OpenAPI makes ``burstd__api__answers__job_use__SeriesView``."""
    names = root.get("/v1/openapi.json")["components"]["schemas"]
    assert {"SeriesView", "UseSeriesView"} <= names.keys()
    assert [name for name in names if "__" in name] == []
