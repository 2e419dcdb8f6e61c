"""What the page can change: as burstctl does, for whom burstctl does, and from burstd's own forms only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import urlencode

import pytest
import structlog.testing

from burstd.api.auth import Caller
from burstd.domain.command import (
    ClearPin,
    Command,
    CommandResult,
    DiscardOutput,
    DrainSlots,
    Pause,
    ReleaseSlots,
    Resume,
    RetryStage,
    SetPin,
)
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import StageState, StagingView
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from burstd.web.forms import FormTokens
from burstd.web.pages.acts import ACTS
from tests.api.client import ME, ApiTestClient, HttpAnswer
from tests.api.fake_backend import FakeBackend
from tests.api.world import JOBS, NOW, SNAPSHOT

BY = f"user:{ME}"
CASES: dict[str, tuple[dict[str, str], Command]] = {
    "scale": ({"pool": "gpu", "kind": "floor", "nodes": "3", "for": "2h"}, SetPin("gpu", 3, "floor", NOW + 7200, BY)),
    "unpin": ({"pool": "gpu"}, ClearPin("gpu", BY)),
    "drain": ({"nodes": "gpu[1-2] gpu4", "reason": "fan"}, DrainSlots(("gpu1", "gpu2", "gpu4"), "fan", BY)),
    "release": ({"nodes": "gpu8"}, ReleaseSlots(("gpu8",), BY)),
    "hold": ({"reason": "work on the roof"}, Pause("work on the roof", BY)),
    "unhold": ({}, Resume(BY)),
    "retry": ({"job": "101"}, RetryStage("101", BY)),
    "discard": ({"job": "101"}, DiscardOutput("101", BY)),
}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def token(client: ApiTestClient, name: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', client.text(f"/act/{name}"))
    assert found is not None
    return found[1]


def send(
    client: ApiTestClient, name: str, fields: Mapping[str, str], headers: Mapping[str, str] = NO_HEADERS
) -> HttpAnswer:
    return client.fetch("POST", f"/act/{name}", urlencode(fields), headers)


@pytest.mark.parametrize("name", ACTS)
def test_an_act_is_the_command_that_burstctl_gives(root: ApiTestClient, backend: FakeBackend, name: str) -> None:
    fields, command = CASES[name]
    answer = send(root, name, {**fields, "token": token(root, name)}, {"sec-fetch-site": "same-origin"})
    assert (answer.status, backend.commands) == (303, [command]), answer.body
    done = root.text(answer.headers["location"])
    assert f"Carried out {type(command).__name__}." in done
    assert backend.commands == [command]


def test_a_form_is_filled_in_from_the_address(root: ApiTestClient) -> None:
    assert 'value="gpu"' in root.text("/act/scale?pool=gpu")
    assert 'value="&#34;&gt;&lt;script&gt;"' in root.text("/act/scale?pool=%22%3E%3Cscript%3E")


def test_links_to_forms_keep_the_number_of_a_part_of_a_het_job(root: ApiTestClient, backend: FakeBackend) -> None:
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    part = replace(JOBS[0], id="101+1", het_job_id="101", het_offset=1)
    slurm = replace(SNAPSHOT.slurm, jobs=(part, *JOBS[1:]))
    held = replace(SNAPSHOT, slurm=slurm, data={"101": StagingView(StageState.HELD, 0.0)})
    backend.loop = (held, decide(held, (), Tuning()))
    links = re.findall(r'href="(/act/(?:retry|discard)[^"]*)"', root.text("/jobs/101+1"))
    assert len(links) == 2
    for link in links:
        assert 'value="101+1"' in root.text(link)


def test_only_burstds_own_sentence_is_shown_as_a_result(root: ApiTestClient) -> None:
    assert root.fetch("GET", "/done/hold?text=Send+your+password&mark=00").status == 404


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"sec-fetch-site": "cross-site"}, "another site"),
        ({"sec-fetch-site": "same-site"}, "another site"),
        ({"sec-fetch-site": "none"}, "another site"),
        ({"host": "head:1", "origin": "https://evil.example"}, "another site"),
        ({"host": "head:1", "origin": "http://head:2"}, "another site"),
        ({"origin": "null"}, "another site"),
    ],
)
def test_a_form_of_another_site_is_refused_and_logged(
    root: ApiTestClient, backend: FakeBackend, headers: dict[str, str], why: str
) -> None:
    fields = {"reason": "x", "token": token(root, "hold")}
    with structlog.testing.capture_logs() as logs:
        answer = send(root, "hold", fields, headers)
    assert (answer.status, backend.commands) == (403, [])
    assert why in answer.body.decode()
    assert [(line["event"], line["user"]) for line in logs] == [("a form was refused", ME)]


def test_a_form_without_a_token_of_its_user_and_day_is_refused(root: ApiTestClient, backend: FakeBackend) -> None:
    other = FormTokens().form_token(Caller(ME, admin=True), NOW)
    good = token(root, "hold")
    for bad in ("", other, good[:-1] + ("0" if good[-1] != "0" else "1"), "\ud800".encode("utf-8", "replace").decode()):
        answer = send(root, "hold", {"reason": "x", "token": bad})
        assert (answer.status, backend.commands) == (403, []), bad
    assert send(root, "hold", {"reason": "x", "token": good}).status == 303


def test_a_token_is_one_users_and_ends_with_the_next_day() -> None:
    tokens, ada, bob = FormTokens(), Caller("ada", admin=True), Caller("bob", admin=True)
    made = tokens.form_token(ada, NOW)
    assert tokens.is_form_token(ada, NOW + 86400, made)
    assert not tokens.is_form_token(ada, NOW + 2 * 86400, made)
    assert not tokens.is_form_token(bob, NOW, made)


def test_who_is_no_administrator_sees_no_form_and_may_do_nothing(
    root: ApiTestClient, nobody: ApiTestClient, backend: FakeBackend
) -> None:
    assert "/act/" in root.text("/")
    assert "/act/" not in nobody.text("/")
    stolen = token(root, "hold")
    for name, act in ACTS.items():
        if not act.admins_only:
            continue
        assert nobody.fetch("GET", f"/act/{name}").status == 403
        for mark in (stolen, token(nobody, "retry")):
            assert send(nobody, name, {**CASES[name][0], "token": mark}).status == 403
    # Another user's data, by whoever has a good form.
    answer = send(nobody, "retry", {"job": "103", "token": token(nobody, "retry")})
    assert (answer.status in (403, 404), backend.commands) == (True, [])


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("scale", {"pool": "gpu", "nodes": "many"}, "nodes: Input should be a valid integer"),
        ("scale", {"pool": "gpu", "nodes": "3", "for": "soon"}, "is no length of time"),
        ("scale", {"pool": "none", "nodes": "3"}, "There is no pool"),
        ("drain", {"nodes": "gpu[1-"}, "gpu[1-"),
        ("drain", {"nodes": ""}, "nodes"),
        ("hold", {}, "reason"),
    ],
)
def test_what_makes_no_sense_is_said(
    root: ApiTestClient, backend: FakeBackend, name: str, fields: dict[str, str], text: str
) -> None:
    answer = send(root, name, {**fields, "token": token(root, name)})
    assert (answer.status in (404, 422), backend.commands) == (True, []), answer.body
    assert text in answer.body.decode()


def test_what_the_daemon_refuses_is_said(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.answer = lambda _: CommandResult("It is on hold already.", done=False)
    answer = send(root, "hold", {"reason": "x", "token": token(root, "hold")})
    assert (answer.status, "It is on hold already." in answer.body.decode()) == (409, True)


def test_a_pin_stands_on_the_page(root: ApiTestClient) -> None:
    assert SNAPSHOT.pins[0].nodes == 4
    assert "pinned: at least 4 nodes until" in root.text("/")
