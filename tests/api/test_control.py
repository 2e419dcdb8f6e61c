"""The control interface over a real unix socket: who may see and do what, and how a no is said."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pytest

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.api.server import MAX_API_CONNECTIONS, ApiServer
from burstd.db import StoreFull, StoreReader
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.command import (
    ClearPin,
    ClearReference,
    Command,
    CommandResult,
    DrainSlots,
    Pause,
    PlanNow,
    ReleaseSlots,
    Reload,
    Resume,
    SetPin,
    SetReference,
)
from burstd.domain.errors import NoAnswer
from burstd.domain.idle_gpus import IdleJob
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Unavailable
from burstd.node.reference import MAX_ANSWER_CHARS, Reference
from burstd.runtime.sockets import listen

from .client import ME, ApiTestClient
from .fake_backend import PLAN, FakeBackend, serving_api
from .world import CLAIMS, G4, NOW, OTHER_USER, SLURM, SNAPSHOT, USER, job

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")


def test_status_counts_every_claim_once(root: ApiTestClient) -> None:
    status = root.get("/v1/status")
    assert status["you"] == {"user": ME, "admin": True}
    gpu, cpu = status["pools"]
    counted = {k: gpu[k] for k in ("slots", "free", "held", "wanted", "booting", "ready", "busy", "idle", "failed")}
    assert counted == {
        "slots": 8, "free": 2, "held": 1, "wanted": 6, "booting": 1, "ready": 1, "busy": 1, "idle": 1, "failed": 1
    }  # fmt: skip
    sorts = ("booting", "ready", "busy", "idle", "leaving", "failed")
    assert sum(pool[sort] for pool in (gpu, cpu) for sort in sorts) == len(CLAIMS)
    assert gpu["pins"][0] | {"created": ""} == {
        "kind": "floor", "nodes": 4, "until": "2026-09-21T16:13:20Z", "by": "root", "created": ""
    }  # fmt: skip
    assert status["cost_per_hour"] == [{"amount": "15.500000", "currency": "EUR"}]
    assert status["alarms"] == ["provider sky cannot be read: no answer"]
    assert status["waiting"]["verdicts"] == {"boot": 1, "covered": 1, "impossible": 1, "wait": 1}
    assert status["waiting"]["tasks"] == 6


def test_status_has_jobs_with_idle_gpus_and_what_these_cost(root: ApiTestClient, backend: FakeBackend) -> None:
    assert root.get("/v1/status")["idle_gpus"] is None
    idle = [
        IdleJob(str(n), 0, n, 4, NOW, 900.0, (("EUR", Decimal(n)),), (("EUR", Decimal("0.25")),)) for n in (1, 4)
    ]  # fmt: skip
    waiting = root.get("/v1/status")["waiting"]
    warning = Remark("idle_gpus", "job:101", "warn", "its GPU has been idle")
    backend.loop = (SNAPSHOT, replace(PLAN, idle_gpus=tuple(idle), remarks=(*PLAN.remarks, warning)))
    assert root.get("/v1/status")["waiting"] == waiting, "a job that runs waits for nothing"
    (shown,) = [one for one in root.get("/v1/jobs")["jobs"] if one["id"] == "101"]
    assert (shown["verdict"], shown["reason"]) == ("warn", "its GPU has been idle")
    cost = [{"amount": "5.000000", "currency": "EUR"}]
    assert root.get("/v1/status")["idle_gpus"] == {"jobs": 2, "gpus": 5, "cost_per_hour": cost}


@needs_root
def test_another_user_sees_the_state_of_things_and_his_own_jobs(nobody: ApiTestClient, root: ApiTestClient) -> None:
    status = nobody.get("/v1/status")
    assert status["you"] == {"user": USER, "admin": False}
    assert status["pools"] == root.get("/v1/status")["pools"]
    assert status["waiting"]["jobs"] == 4
    assert [g["examples"] for g in status["waiting"]["groups"]] == [["104"], ["105"]]
    assert [j["id"] for j in nobody.get("/v1/jobs")["jobs"]] == ["101", "104", "105"]

    nodes = {n["slot"]: n for n in nobody.get("/v1/nodes")["nodes"]}
    assert nodes["gpu1"]["reason"] == "for job 101"
    assert nodes["gpu2"]["jobs"] == ["101"]
    assert nodes["gpu2"]["reason"] == ""
    assert (nodes["gpu3"]["jobs"], nodes["gpu3"]["reason"], nodes["gpu3"]["gang"]) == ([], "", "")

    events = nobody.get("/v1/events?job=101")["events"]
    assert {e["subject"] for e in events} >= {"claim:c-gpu1", "claim:c-gpu2"}
    assert {e["reason"] for e in events if e["subject"] == "claim:c-gpu2"} == {""}
    assert "secret-project" not in str([status, nodes, events])

    assert [line["key"] for line in nobody.get("/v1/bill?since=0")["lines"]] == [USER]
    # Nothing is on record of runs: machines in service were idle, and which job of gpu2 is whose is not known.
    assert {line["key"] for line in nobody.get("/v1/bill?since=0&group=job")["lines"]} == {"", "101"}
    own = [nobody.get(f"/v1/bill?since=0&group={group}")["total"] for group in get_args(BillGrouping)]
    assert own.count(own[0]) == len(own)
    pages: list[dict[str, Any]] = []
    path = "/v1/bill/charges?since=0&limit=1"
    while not pages or pages[-1]["next"]:
        pages.append(nobody.get(path + (f"&cursor={quote(pages[-1]['next'])}" if pages else "")))
    assert {charge["user"] for page in pages for charge in page["charges"]} == {USER}
    assert [sum(Decimal(charge["cost"]) for page in pages for charge in page["charges"])] == [
        Decimal(sum_["amount"]) for sum_ in own[0]
    ]
    old = root.get("/v1/bill/charges?cursor=" + quote('[951868799,0,-1,"",-1]'))
    assert (old["since"], old["until"]) == ("2000-02-01T00:00:00Z", "2000-02-29T23:59:59Z"), "the first page's month"
    on_site = {"key": USER, "cost": {"amount": "1.000000", "currency": "EUR"}, "node_s": 1800.0, "others": 0}
    assert nobody.get("/v1/bill?since=0")["site_lines"] == [on_site]
    assert root.get("/v1/bill?since=0&group=pool")["site_total"] == [{"amount": "2.000000", "currency": "EUR"}]
    assert nobody.get("/v1/jobs/90")["nodes"][0]["state"] == "gone"
    explained = nobody.get("/v1/jobs/104_2/explanation")
    assert (explained["verdict"], explained["job"]["id"]) == ("boot", "104")
    assert [c["offer"] for way in explained["ways"] for c in way["candidates"] if c["chosen"]] == [G4.id]
    shared = nobody.get("/v1/jobs/101/explanation")["serving"]
    assert [(s["slot"], s["reason"]) for s in shared] == [("gpu1", "for job 101"), ("gpu2", "")]


@needs_root
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/jobs/103", None),
        ("GET", "/v1/jobs/103/explanation", None),
        ("GET", "/v1/jobs?user=daemon", None),
        ("GET", "/v1/events", None),
        ("GET", "/v1/events?job=103", None),
        ("GET", "/v1/events?claim=c-gpu2", None),
        ("PUT", "/v1/pools/gpu/pin", {"nodes": 1}),
        ("DELETE", "/v1/pools/gpu/pin", None),
        ("POST", "/v1/nodes/hold", {"nodes": ["gpu1"]}),
        ("POST", "/v1/nodes/release", {"nodes": ["gpu1"]}),
        ("PUT", "/v1/hold", {"reason": "mine"}),
        ("DELETE", "/v1/hold", None),
        ("POST", "/v1/plan", None),
        ("POST", "/v1/reload", None),
        ("GET", "/v1/reference", None),
        ("PUT", "/v1/reference", {"node": "cn17", "answer": "end=1"}),
        ("DELETE", "/v1/reference", None),
        ("POST", "/v1/reference/check", None),
    ],
)
def test_the_rest_is_denied_with_a_sentence(
    nobody: ApiTestClient, backend: FakeBackend, method: str, path: str, body: object
) -> None:
    status, answer = nobody.request(method, path, body)
    assert status == 403
    assert USER in answer["error"]
    assert answer["error"].endswith(".")
    assert backend.commands == []


@needs_root
def test_an_owner_reads_what_was_decided_about_a_job_that_never_got_a_node(
    nobody: ApiTestClient, root: ApiTestClient
) -> None:
    # That a node was kept for its output is over.
    assert [r["reason"] for r in nobody.get("/v1/jobs/88")["remarks"]] == ["no pool has four h100"]
    explained = nobody.get("/v1/jobs/88/explanation")
    assert (explained["verdict"], explained["summary"]) == ("gone", "it has left the queue")
    for asked in ("88", "88_3"):
        said, _ = nobody.get(f"/v1/events?job={asked}")["events"]
        assert (said["new"], said["by"], said["reason"]) == ("impossible", "placement", "no pool has four h100")
    # The id was another user's before.
    assert [e["reason"] for e in nobody.get("/v1/events?job=89")["events"]] == ["five"]
    assert len(root.get("/v1/events?job=89")["events"]) == 3


@needs_root
def test_how_a_job_ended_is_told_as_long_as_slurm_knows(nobody: ApiTestClient, backend: FakeBackend) -> None:
    """Of an id that was given again the last run counts; another user's is his."""
    failed = job("700", USER, JobState.FAILED, end=NOW - 60, exit_code="3:0", node_list=("op1",))
    before = replace(failed, state=JobState.COMPLETED, end=NOW - 90)
    theirs = job("701", OTHER_USER, JobState.COMPLETED, end=NOW - 60)
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, ended=(failed, before, theirs))), PLAN)
    end = nobody.get("/v1/jobs/700")["end"]
    assert (end["state"], end["exit_code"], end["nodes"]) == ("FAILED", "3:0", ["op1"])
    explained = nobody.get("/v1/jobs/700/explanation")
    assert (explained["verdict"], explained["end"]) == ("gone", end)
    assert explained["summary"] == "it has ended, FAILED 60 s ago, exit code 3:0; its launch on gpu1 failed: x"
    for said in (explained, nobody.get("/v1/jobs/700")):
        assert said["remarks"][-1]["reason"] == "its launch on gpu1 failed: x"
    assert explained["summary"] in nobody.text("/jobs/700")
    assert nobody.request("GET", "/v1/jobs/701")[0] == 403


@needs_root
def test_the_queue_says_first_whose_a_task_was_that_has_ended(nobody: ApiTestClient, backend: FakeBackend) -> None:
    """Slurm gives numbers again: what the record has of 88 was another's."""
    theirs = job("88", OTHER_USER, array_job_id="88", array_tasks="3-4", tasks=2)
    assert nobody.request("GET", "/v1/jobs/88_1")[0] == 200
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(theirs,))), PLAN)
    assert nobody.request("GET", "/v1/jobs/88_1")[0] == 403
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(replace(theirs, user=USER),))), PLAN)
    assert nobody.get("/v1/jobs/88_1")["job"] is None
    assert nobody.get("/v1/jobs/88_4")["job"]["id"] == "88"


@needs_root
def test_members_of_the_admin_group_act(record: StoreReader) -> None:
    with serving_api(record, "nogroup") as (backend, path):
        with (
            ApiTestClient(path, NOBODY) as member,
            ApiTestClient(path, 54321) as stranger,
            ApiTestClient(path, 54321, NOBODY) as own,
        ):
            assert member.request("POST", "/v1/reload")[0] == 200
            assert stranger.get("/v1/status")["you"] == {"user": "uid 54321", "admin": False}
            assert own.get("/v1/status")["you"]["admin"]
        assert backend.commands == [Reload(f"user:{USER}")]


@pytest.mark.parametrize(
    ("method", "path", "body", "command"),
    [
        ("PUT", "pools/gpu/pin", {"nodes": 8}, SetPin("gpu", 8, "exact", None, f"user:{ME}")),
        (
            "PUT",
            "pools/gpu/pin",
            {"nodes": 2, "kind": "ceiling", "for_s": 7200},
            SetPin("gpu", 2, "ceiling", NOW + 7200, f"user:{ME}"),
        ),
        ("DELETE", "pools/gpu/pin", None, ClearPin("gpu", f"user:{ME}")),
        (
            "POST",
            "nodes/hold",
            {"nodes": ["gpu[1-2],cpu1", "c-gpu2"], "reason": "hot"},
            DrainSlots(("gpu1", "gpu2", "cpu1"), "hot", f"user:{ME}"),
        ),
        ("POST", "nodes/release", {"nodes": ["gpu8"]}, ReleaseSlots(("gpu8",), f"user:{ME}")),
        ("PUT", "hold", {"reason": "audit"}, Pause("audit", f"user:{ME}")),
        ("DELETE", "hold", None, Resume(f"user:{ME}")),
        ("POST", "reload", None, Reload(f"user:{ME}")),
        ("POST", "plan", None, PlanNow(f"user:{ME}")),
    ],
)
def test_what_is_asked_becomes_one_command(
    root: ApiTestClient, backend: FakeBackend, method: str, path: str, body: object, command: Command
) -> None:
    status, answer = root.request(method, f"/v1/{path}", body)
    assert (status, backend.commands) == (200, [command])
    assert ("steps" in answer) if isinstance(command, PlanNow) else answer["text"].startswith("Carried out")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("PUT", "pools/tpu/pin", {"nodes": 1}, 404, "There is no pool 'tpu'; there are: gpu, cpu."),
        ("PUT", "pools/gpu/pin", {"nodes": 9}, 422, "Pool gpu has only 8 slots, not 9."),
        ("PUT", "pools/gpu/pin", {"nodes": -1}, 422, "nodes: Input should be greater than or equal to 0"),
        ("PUT", "pools/gpu/pin", {"nodes": 1, "for": 3}, 422, "for: Extra inputs are not permitted"),
        ("POST", "nodes/hold", {"nodes": ["gpu[1-"]}, 422, "gpu[1-"),
        ("POST", "nodes/hold", {"nodes": ["gpu99"]}, 404, "No pool has a node 'gpu99'."),
        ("POST", "nodes/hold", {"nodes": [""]}, 422, "No node is named."),
        ("GET", "nodes/gpu99", None, 404, "There is no node and no claim 'gpu99'."),
        ("GET", "jobs/999", None, 404, "Job 999 is neither in the queue nor on burstd's record."),
        ("GET", "events?claim=nope", None, 404, "There is no claim 'nope' on record."),
        ("GET", "events?claim=a&job=b", None, 422, "Choose one of job, node and claim."),
        ("GET", "bill?since=2000000000", None, 422, "end later than it begins"),
        ("GET", "bill/charges?cursor=[1,9]", None, 422, "what the answer before had as 'next'"),
        ("GET", f"bill/charges?cursor=[1e9,1,{2**63},%22x%22,1]", None, 422, "what the answer before had as 'next'"),
        ("GET", f"bill/charges?cursor=[1e9,1,5,%22x%22,{-(2**64)}]", None, 422, "what the answer before had as 'next'"),
        ("GET", "bill/charges?cursor=[NaN,1]", None, 422, "what the answer before had as 'next'"),
        ("GET", "bill/charges?cursor=[1e300,1]", None, 422, "what the answer before had as 'next'"),
        ("GET", "bill/charges?cursor=[1e9,1,5,%22%5Cu0000%22,1]", None, 422, "what the answer before had as 'next'"),
        ("GET", "nothing", None, 404, "Not Found"),
        ("PUT", "hold", {"reason": "x" * (1 << 20)}, 413, "1048576 bytes"),
    ],
)
def test_what_cannot_be_is_said(
    root: ApiTestClient, backend: FakeBackend, method: str, path: str, body: object, status: int, says: str
) -> None:
    found, answer = root.request(method, f"/v1/{path}", body)
    assert (found, backend.commands) == (status, [])
    assert says in answer["error"]
    assert ("gpu" in answer["known"]) == ("tpu" in path)


@pytest.mark.parametrize(
    ("outcome", "status", "says"),
    [
        (CommandResult("pools.gpu.cpus: must be set", done=False), 409, "pools.gpu.cpus: must be set"),
        (NoAnswer("the daemon is busy"), 503, "the daemon is busy"),
        (StoreFull("no space is left for the database"), 503, "no space is left"),
        (KeyError("private detail"), 500, "burstd failed to answer (KeyError); journalctl -u burstd has the details."),
    ],
)
def test_a_command_that_fails(
    root: ApiTestClient, backend: FakeBackend, outcome: CommandResult | Exception, status: int, says: str
) -> None:
    def answer(command: Command) -> CommandResult:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    backend.answer = answer
    found, body = root.request("POST", "/v1/reload")
    assert found == status
    assert says in body["error"]
    assert "private detail" not in str(body)


def test_before_the_first_loop(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.loop = None
    status = root.get("/v1/status")
    assert (status["seen"], status["pools"], status["slurm"]["error"]) == (None, [], "not read yet")
    assert status["alarms"] == ["burstd has not completed a loop since its start; see journalctl -u burstd"]
    found, answer = root.request("GET", "/v1/nodes")
    assert found == 503
    assert "just started" in answer["error"]


def test_a_slurm_that_does_not_answer_is_not_an_empty_queue(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.loop = (replace(SNAPSHOT, slurm=Unavailable("slurmctld does not answer", NOW - 60)), PLAN)
    status = root.get("/v1/status")
    assert (status["slurm"]["ok"], status["slurm"]["last_known"]) == (False, "2026-09-21T14:12:20Z")
    assert "Slurm cannot be read: slurmctld does not answer" in status["alarms"]
    assert {n["state"] for n in root.get("/v1/nodes?all=1")["nodes"] if not n["claim"]} == {"held", "unknown"}
    for path in ("/v1/jobs", "/v1/jobs/103", "/v1/jobs/999"):
        found, answer = root.request("GET", path)
        assert (path, found) == (path, 200 if path.endswith("103") else 503), answer


def test_events_are_followed_without_a_gap(root: ApiTestClient) -> None:
    every = [e["seq"] for e in root.get("/v1/events?limit=10000")["events"]]
    assert len(every) > 20
    assert every == sorted(set(every))
    followed: list[int] = []
    last = 1
    while True:
        page = root.get(f"/v1/events?after={last}&limit=7")
        if not page["events"]:
            break
        followed += [e["seq"] for e in page["events"]]
        last = page["last"]
    assert followed == every[1:]
    some = root.get("/v1/events?node=gpu3&limit=3")["events"]
    assert [e["new"] for e in some] == ["planned", "launching", "booting"]
    assert root.get(f"/v1/events?since={NOW - 2}")["events"][0]["subject"] == "slot:gpu8"


@pytest.mark.slow
@needs_root
def test_one_user_cannot_keep_the_others_out(control: Path, root: ApiTestClient) -> None:
    crowd = [ApiTestClient(control, NOBODY) for _ in range(MAX_API_CONNECTIONS // 5 + 1)]
    assert crowd[-1].get("/v1/status")
    with pytest.raises(OSError, match=r"Broken pipe|reset|closed"), ApiTestClient(control, NOBODY) as one_more:
        one_more.get("/v1/status")
    assert root.get("/v1/status")
    for client in crowd:
        client.__exit__(None, None, None)


@pytest.mark.slow
def test_it_stops_cleanly_whatever_is_under_way(backend: FakeBackend, socket_path: Path) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    asked, release = threading.Event(), threading.Event()

    def answer(command: Command) -> CommandResult:
        asked.set()
        release.wait(30)
        return CommandResult("late")

    backend.answer = answer
    server = ApiServer(create_api_app(backend, Authorizer("")), listen(socket_path, {}))
    server.start()
    idle = ApiTestClient(socket_path)
    assert idle.get("/v1/status")
    outcome: list[Any] = []

    def ask() -> None:
        outcome.append(ApiTestClient(socket_path).request("POST", "/v1/reload"))

    caller = threading.Thread(target=ask)
    caller.start()
    assert asked.wait(10)
    server.stop()
    server.stop()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(str(socket_path))
    release.set()
    caller.join(10)
    assert outcome[0][0] == 503
    assert outcome[0][1]["error"].startswith("burstd is stopping")
    assert {s: signal.getsignal(s) for s in before} == before
    again = ApiServer(create_api_app(backend, Authorizer("")), listen(socket_path, {}))
    again.start()
    with ApiTestClient(socket_path) as client:
        assert client.get("/v1/status")
    again.stop()


def test_a_node_becomes_the_reference(root: ApiTestClient, backend: FakeBackend) -> None:
    answer = "os=rocky 9.4\nlimit=stack unlimited\nmodule=GCC GCC/12\nend=1\n"
    none = root.get("/v1/reference")
    assert (none["node"], none["values"], none["missing"]) == ("", {}, [])
    assert "set -- '/dev/nvidia[0-9]*' within=20 sentinel=/cvmfs/one/versions module=GCC\n" in none["script"]
    body = {"node": "cn17", "answer": answer}
    assert root.request("PUT", "/v1/reference", body)[0] == root.request("DELETE", "/v1/reference")[0] == 200
    assert root.request("PUT", "/v1/reference", body | {"answer": "x" * (MAX_ANSWER_CHARS + 1)})[0] == 422
    assert backend.commands == [SetReference("cn17", answer, f"user:{ME}"), ClearReference(f"user:{ME}")]
    backend.validator.reference = Reference.from_answer("cn17", NOW - 60, answer)
    assert Reference.from_record(backend.validator.reference.to_record()) == backend.validator.reference
    shown = root.get("/v1/reference")
    assert (shown["node"], shown["missing"]) == ("cn17", ["/cvmfs/one/versions"])
    assert shown["values"] == {"os": "rocky 9.4", "stack": "unlimited", "module GCC": "GCC/12"}
    fuller = answer.replace("end=1", "sentinel=5c1f /cvmfs/one/versions\nruntime=podman podman version 4.3.1\nend=1")
    backend.validator.reference = Reference.from_answer("cn17", NOW - 60, fuller)
    shown = root.get("/v1/reference")
    assert shown["missing"] == ["revision of /cvmfs/one/versions (attr reads it)"]
    assert shown["values"]["podman"] == "4.3.1"


@pytest.mark.parametrize("answer", ["os=rocky 9.4\n", "", "x" * MAX_ANSWER_CHARS])
def test_half_of_what_a_node_says_makes_no_reference(answer: str) -> None:
    with pytest.raises(ValueError, match="run that script there again"):
        Reference.from_answer("cn17", NOW, answer)
