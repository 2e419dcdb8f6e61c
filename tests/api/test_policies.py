"""The routes of policies: who may ask, and how two plans are told apart."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from burstd.api.routers.policies import policy_test_view
from burstd.domain.claim import Cause
from burstd.domain.command import CommandResult, TryPolicies
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import NodeRelease, PolicyFailed, Remark, Target, Want

from .client import ME, ApiTestClient
from .fake_backend import FakeBackend
from .world import G4, G8, NOW, SNAPSHOT


def test_all_that_is_known_of_each_is_told(root: ApiTestClient) -> None:
    answer = root.get("/v1/policies")
    idle, nights, limits = answer["policies"]
    assert (idle["place"], idle["took_s"], idle["failed_at"], idle["settings"]) == (
        1, 0.0021, None, {"keep_alive_s": 300.0},
    )  # fmt: skip
    assert (nights["failing"], nights["hard"], nights["failed_at"]) == (True, True, "2026-09-21T14:13:08Z")
    assert (limits["place"], limits["took_s"]) == (None, None)
    assert nights["settings"] == {"from_h": 22, "token": "***"}, "what is named as a secret is not shown"
    assert root.get("/v1/status")["policies"] == [{"name": "idle", "took_s": 0.0021}]


def test_a_try_is_one_command(root: ApiTestClient, backend: FakeBackend) -> None:
    status, answer = root.request("POST", "/v1/policies/test")
    assert (status, backend.commands) == (200, [TryPolicies(f"user:{ME}")])
    [change] = answer["changes"]
    assert (change["change"], change["jobs"], change["nodes_before"], change["by"], change["reason"]) == (
        "goes", ["104"], 2, "nights", "it is night",
    )  # fmt: skip


def test_a_broken_file_is_told_as_such(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.answer = lambda _: CommandResult("/etc/burstd/policies/nights.py:12: NameError", done=False)
    assert root.request("POST", "/v1/policies/test") == (
        409, {"error": "/etc/burstd/policies/nights.py:12: NameError", "known": []},
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/policies"), ("POST", "/v1/policies/test")])
def test_policies_are_the_administrators(nobody: ApiTestClient, backend: FakeBackend, method: str, path: str) -> None:
    assert nobody.request(method, path)[0] == 403
    assert backend.commands == []


def want(*jobs: str, nodes: int = 1, cause: Cause = Cause.DEMAND) -> Want:
    return Want("gpu", nodes, cause, f"for {','.join(jobs)}", (G4, G8), jobs=jobs)


def plan(wants: tuple[Want, ...] = (), releases: tuple[NodeRelease, ...] = (), *remarks: Remark) -> Plan:
    return Plan((), Target(wants, releases, remarks), remarks)


LETS_GO = (NodeRelease("c-gpu1", "gpu", "gpu1 is idle"),)
MOVED = replace(want("1"), offers=(G8,))
LIMIT = Remark("limits", "job:2", "wait", "ada has 8 nodes")


@pytest.mark.parametrize(
    ("force", "disk", "found"),
    [
        (plan((want("1"), want("2"))), plan((want("1"), want("2"))), []),
        (plan(), plan((want("1"),)), [("comes", "want", 0, 1, "", "for 1")]),
        (plan((want("1"),)), plan(), [("goes", "want", 1, 0, "", "for 1")]),
        (
            plan((want("1"), want("2"))),
            plan((want("1"),), (), LIMIT),
            [("goes", "want", 1, 0, "limits", "ada has 8 nodes")],
        ),
        # Part of its jobs is left, on other nodes.
        (
            plan((want("1", "2", nodes=2),)),
            plan((want("1"),), (), LIMIT),
            [("changes", "want", 2, 1, "limits", "ada has 8 nodes")],
        ),
        (plan((want("1"),)), plan((MOVED,)), [("changes", "want", 1, 1, "", "for 1")]),
        # The tasks of an array, and spare nodes, are alike.
        (plan(), plan((want("3"),) * 40), [("comes", "want", 0, 40, "", "for 3")]),
        (plan((want(cause=Cause.FLOOR),)), plan((want(cause=Cause.FLOOR),) * 3), [("comes", "want", 0, 2, "", "for ")]),
        (plan(), plan((), LETS_GO), [("comes", "release", 0, 0, "", "gpu1 is idle")]),
        (
            plan((), LETS_GO),
            plan((), (), Remark("idle", "claim:c-gpu1", "keep", "idle for 3 s")),
            [("goes", "release", 0, 0, "idle", "idle for 3 s")],
        ),
    ],
)
def test_what_would_be_otherwise(force: Plan, disk: Plan, found: list[tuple[object, ...]]) -> None:
    view = policy_test_view(SNAPSHOT, force, disk, NOW)
    assert [(c.change, c.kind, c.nodes_before, c.nodes, c.by, c.reason) for c in view.changes] == found
    assert all(c.slots == ["gpu1"] for c in view.changes if c.kind == "release")


def test_policies_that_fail_are_named_on_both_sides() -> None:
    broken = plan()
    broken = replace(broken, target=replace(broken.target, failed_policies=(PolicyFailed("nights", "x.py:3: no"),)))
    view = policy_test_view(SNAPSHOT, broken, plan(), NOW)
    assert (view.failing, view.failed) == (["policy nights: x.py:3: no"], [])
    assert policy_test_view(SNAPSHOT, plan(), broken, NOW).failed == ["policy nights: x.py:3: no"]
