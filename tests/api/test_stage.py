"""The data of jobs on the control interface: who sees and does what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.command import Command, DiscardOutput, Evict, RetryStage

from .client import ME, ApiTestClient
from .fake_backend import FakeBackend
from .stages import GIB, FakeStaging
from .world import OTHER_USER, USER

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")


@pytest.fixture(autouse=True)
def _staging(backend: FakeBackend) -> None:
    backend.stage = FakeStaging()


@pytest.fixture
def nobody(control: Path) -> Iterator[ApiTestClient]:
    with ApiTestClient(control, NOBODY) as client:
        yield client


def test_what_is_on_its_way_and_what_is_held(root: ApiTestClient) -> None:
    answer = root.get("/v1/stage")
    assert (answer["on"], answer["more"]) == (True, "")
    jobs = {job["job"]: job for job in answer["jobs"]}
    assert list(jobs) == ["101", "103", "104"]
    assert jobs["104"]["transfers"] == [
        {"name": "in", "direction": "in", "bytes_done": 2 * GIB, "bytes_total": 8 * GIB, "bytes_sent": GIB,
         "bytes_hits": GIB, "rate": 100 * 1024**2, "eta_s": 61.4, "since_s": 20.0}
    ]  # fmt: skip
    assert jobs["104"]["inputs"][0]["source"] == "/data/im\\xe9 x"
    held = jobs["101"]
    assert (held["state"], held["resume"], held["error"], held["nodes"]) == (
        "held", "collecting", "the store is full", ["gpu1"]
    )  # fmt: skip
    assert (held["bytes_in"], held["bytes_sent"], held["bytes_hits"]) == (3 * GIB, GIB, 2 * GIB)
    assert [(i["name"], i["bytes"], i["entries"]) for i in held["inputs"]] == [
        ("images", 3 * GIB, 1000), ("run.py", None, None)
    ]  # fmt: skip
    assert held["collected"] == [{"node": "gpu1", "what": "0", "bytes": 3 * GIB, "entries": 1000}]
    assert [(k["node"], k["job"]) for k in answer["kept"]] == [("gpu1", "101")]
    assert (answer["store"]["objects"], answer["store"]["leftovers"]) == (700, 2)
    history = root.get("/v1/stage/101")["history"]
    assert [e["new"] for e in history] == [
        "waiting", "uploading", "staged", "fetching", "fetched", "collecting", "collecting", "held"
    ]  # fmt: skip
    assert {e["subject"] for e in root.get("/v1/events?job=101")["events"]} >= {"stage:101", "claim:c-gpu1"}


def test_status_has_the_data_at_a_glance(root: ApiTestClient, backend: FakeBackend) -> None:
    assert root.get("/v1/status")["data"] == {
        "store": "site", "error": "", "jobs": 3, "states": {"waiting": 1, "uploading": 1, "held": 1},
        "rate": 100 * 1024**2, "kept": 1,
    }  # fmt: skip
    backend.stage = None
    assert root.get("/v1/status")["data"] is None
    answer = root.get("/v1/stage")
    assert (answer["on"], answer["store"], len(answer["jobs"])) == (False, None, 3)
    assert root.get("/v1/stage/usage") | {"now": ""} == {
        "now": "", "on": False, "store": None, "users": [], "projects": []
    }  # fmt: skip


def test_history_comes_in_pages(root: ApiTestClient) -> None:
    found: list[str] = []
    before = ""
    while True:
        page = root.get(f"/v1/stage?all=true&limit=2&before={before}")
        found += [job["job"] for job in page["jobs"]]
        before = page["more"]
        if not before:
            break
    assert found == ["104", "103", "101", "90"]
    assert root.request("GET", "/v1/stage?all=true&before=yesterday")[0] == 422


@needs_root
def test_another_user_sees_his_own(nobody: ApiTestClient, root: ApiTestClient) -> None:
    assert [job["job"] for job in nobody.get("/v1/stage")["jobs"]] == ["101", "104"]
    assert [job["job"] for job in nobody.get("/v1/stage?all=true")["jobs"]] == ["104", "101", "90"]
    assert nobody.get("/v1/stage/101") == root.get("/v1/stage/101")
    usage = nobody.get("/v1/stage/usage")
    assert usage["users"] == [{"name": USER, "bytes": 3 * GIB, "quota": 4 * GIB}]
    assert usage["projects"] == [{"name": "proj", "bytes": 5 * GIB, "quota": None}]
    assert {u["name"] for u in root.get("/v1/stage/usage")["users"]} == {USER, OTHER_USER}


@needs_root
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/stage/103", None),
        ("GET", "/v1/stage?user=daemon", None),
        ("POST", "/v1/stage/103/retry", None),
        ("POST", "/v1/stage/103/discard", None),
        ("POST", "/v1/stage/evict", {"kind": "user", "name": OTHER_USER}),
    ],
)
def test_the_rest_is_denied_with_a_sentence(
    nobody: ApiTestClient, backend: FakeBackend, method: str, path: str, body: object
) -> None:
    status, answer = nobody.request(method, path, body)
    assert status == 403
    assert USER in answer["error"]
    assert backend.commands == []


@needs_root
@pytest.mark.parametrize(
    ("path", "body", "command"),
    [
        ("101/retry", None, RetryStage("101", f"user:{USER}")),
        ("101+1/retry", None, RetryStage("101", f"user:{USER}")),
        ("101_7/discard", None, DiscardOutput("101", f"user:{USER}")),
        ("101/discard", None, DiscardOutput("101", f"user:{USER}")),
        ("evict", {"kind": "unneeded"}, Evict("unneeded", "", f"user:{USER}", USER)),
        ("evict", {"kind": "tree", "name": "abab"}, Evict("tree", "abab", f"user:{USER}", USER)),
        ("evict", {"kind": "user", "name": USER}, Evict("user", USER, f"user:{USER}", USER)),
    ],
)
def test_the_owner_acts_upon_his_own(
    nobody: ApiTestClient, backend: FakeBackend, path: str, body: object, command: Command
) -> None:
    assert nobody.request("POST", f"/v1/stage/{path}", body)[0] == 200
    assert backend.commands == [command]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "dataset", "name": "imagenet@2021"}, 200),
        ({"kind": "unneeded"}, 200),
        ({"kind": "unneeded", "name": "x"}, 422),
        ({"kind": "user"}, 422),
        ({"kind": "all"}, 422),
    ],
)
def test_eviction(root: ApiTestClient, backend: FakeBackend, body: dict[str, str], status: int) -> None:
    assert root.request("POST", "/v1/stage/evict", body)[0] == status
    evict = Evict(body["kind"], body.get("name", ""), f"user:{ME}")
    assert backend.commands == ([evict] if status == 200 else [])


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "999", 404, "Job 999 has no data on burstd's record."),
        ("POST", "104/retry", 409, "The data of job 104 is uploading, not held; there is nothing to retry."),
        ("POST", "104/discard", 409, "it can be given up while it is held or collecting."),
        ("POST", "90/discard", 409, "The data of job 90 is cleared"),
    ],
)
def test_what_cannot_be_is_said(
    root: ApiTestClient, backend: FakeBackend, method: str, path: str, status: int, says: str
) -> None:
    found, answer = root.request(method, f"/v1/stage/{path}")
    assert (found, backend.commands) == (status, [])
    assert says in answer["error"]
    assert answer["known"] == (["101", "103", "104"] if status == 404 else [])
