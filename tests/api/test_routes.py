"""Web addresses of jobs' ports on the control interface: who opens, sees and closes which."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.errors import BadRequest, CloudUnavailable, NotFound
from burstd.domain.plugins.provider import Route
from burstd.domain.slurm.job import JobState
from burstd.reconciler.pollers.ingress import ProviderRoute

from .client import ApiTestClient
from .fake_backend import PLAN, FakeBackend
from .world import SLURM, SNAPSHOT, USER, job

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
OPENED = {
    "job": "101", "port": 8888, "node": "gpu1", "provider": "sandbox", "url": "https://job101-8888.apps.example"
}  # fmt: skip


@needs_root
def test_the_owner_opens_sees_and_closes_his_own(
    nobody: ApiTestClient, root: ApiTestClient, backend: FakeBackend
) -> None:
    for _ in range(2):
        assert nobody.request("POST", "/v1/jobs/101/routes", {"port": 8888}) == (200, OPENED)
    assert root.request("POST", "/v1/jobs/102/routes", {"port": 9000})[0] == 200
    assert nobody.get("/v1/routes")["routes"] == [OPENED]
    assert [(r["job"], r["node"]) for r in root.get("/v1/routes")["routes"]] == [("101", "gpu1"), ("102", "gpu2")]
    assert nobody.request("DELETE", "/v1/jobs/102/routes")[0] == 403
    status, answer = nobody.request("DELETE", "/v1/jobs/101/routes?port=8888")
    assert (status, answer["text"]) == (200, "Closed https://job101-8888.apps.example.")
    assert [held.route.job_id for held in backend.routes.list_routes()] == ["102"]


@needs_root
@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("102", {"port": 8888}, 403, f"You are {USER}, and job 102 is not yours."),
        ("105", {"port": 8888}, 409, "Job 105 does not run: burstd saw it pending 1 s ago"),
        ("999", {"port": 8888}, 404, "Job 999 is not in the queue."),
        ("101", {"port": 22}, 422, "greater than or equal to 1024"),
        ("101", {"port": 6818}, 422, "Port 6818 is slurmd's"),
        ("101", {"port": 8888, "node": "gpu2"}, 404, "Job 101 has no node 'gpu2'"),
    ],
)
def test_the_rest_is_denied_with_a_sentence(
    nobody: ApiTestClient, backend: FakeBackend, path: str, body: object, status: int, says: str
) -> None:
    found, answer = nobody.request("POST", f"/v1/jobs/{path}/routes", body)
    assert found == status
    assert says in answer["error"]
    assert backend.routes.list_routes() == []


def test_a_cloud_without_them_names_what_there_is(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.routes.unsupported = True
    status, answer = root.request("POST", "/v1/jobs/101/routes", {"port": 8888})
    assert status == 409
    assert answer["error"] == (
        "Provider sandbox has no routes. burstctl port-forward 101 8888 brings the port to this host."
    )


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (NotFound("no pod x"), 409, "The machine of gpu1 is gone."),
        (BadRequest("this cluster has no Routes"), 409, "this cluster has no Routes"),
        (CloudUnavailable("no answer"), 503, "no answer"),
    ],
)
def test_what_the_cloud_says_is_told(
    root: ApiTestClient, backend: FakeBackend, error: Exception, status: int, says: str
) -> None:
    backend.routes.refuses = error
    found, answer = root.request("POST", "/v1/jobs/101/routes", {"port": 8888})
    assert (found, answer["error"]) == (status, says)


def test_all_of_a_job_are_closed_at_once(root: ApiTestClient, backend: FakeBackend) -> None:
    for port in (8000, 8001):
        assert root.request("POST", "/v1/jobs/101/routes", {"port": port})[0] == 200
    assert root.request("DELETE", "/v1/jobs/101/routes")[0] == 200
    assert backend.routes.list_routes() == []
    assert root.request("DELETE", "/v1/jobs/101/routes")[0] == 404


def test_one_of_an_array_is_its_tasks(root: ApiTestClient, backend: FakeBackend) -> None:
    rows: Any = (
        job("7", USER, array_job_id="7", array_tasks="2-9", tasks=8),
        job("7_1", USER, JobState.RUNNING, array_job_id="7", node_list=("gpu1",)),
    )
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=rows)), PLAN)
    assert root.request("POST", "/v1/jobs/7/routes", {"port": 8888})[1]["job"] == "7_1"
    backend.routes.routes.append(ProviderRoute("sandbox", Route("8", 8888, "i-gpu2", "https://other.example")))
    assert root.request("DELETE", "/v1/jobs/7/routes")[0] == 200
    assert [held.route.job_id for held in backend.routes.list_routes()] == ["8"]
