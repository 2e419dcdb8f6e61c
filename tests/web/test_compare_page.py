"""Own nodes beside clouds: what `burstctl compare` says, to whom it says it, and no more than once."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.client import ApiTestClient
from tests.api.compared_jobs import serving_compared_jobs
from tests.api.fake_backend import FakeBackend
from tests.api.world import USER

from .test_page_content import HOSTILE


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeBackend, Path]]:
    with serving_compared_jobs() as found:
        yield found


@pytest.fixture
def client(served: tuple[FakeBackend, Path]) -> Iterator[ApiTestClient]:
    with ApiTestClient(served[1]) as found:
        yield found


def shown(path: Path, address: str, uid: int | None = None) -> tuple[int, str]:
    """Status, and the text of a page without its tags."""
    with ApiTestClient(path, uid) as client:
        answer = client.fetch("GET", address)
    return answer.status, " ".join(re.sub(r"<[^>]*>", " ", answer.body.decode()).split())


def test_a_job_and_a_month_have_the_figures_of_burstctl(served: tuple[FakeBackend, Path]) -> None:
    _, job = shown(served[1], "/costs/compare?job=17")
    for words in (
        "Job 17 of ada (train.sh)",
        "Submission to end 5 h 10 min measured 1 h 40 min estimated by 2 like jobs",
        "Cost, used price idle hours included: to buy or to rent 10.10 EUR measured",
        "Cost, marginal price added: where to run the next 0.30 EUR measured",
        "Cost, charged as on the bill 6.20 EUR estimated by 2 like jobs",
        "Own nodes cost as much as there when 83.1 % of their hours are used.",
        "gpu 4 50.0 % 50.0 % 20 Sep 2026 00:00 UTC Break-even 83.1 % 83.1 %",
        "The first run on record ended on 2026-09-21 01:34 UTC.",
    ):
        assert words in job
    _, month = shown(served[1], "/costs/compare?month=2026-09&account=atlas&user=ada")
    assert "3 jobs of ada of project atlas that ended from 01 Sep 2026 00:00 UTC" in month
    assert "18.60 EUR 2 measured, 1 estimated by 2 like jobs" in month
    assert "0 jobs of project belle" in shown(served[1], "/costs/compare?month=2026-09&account=belle")[1]


def test_a_job_that_is_over_and_costs_lead_to_it(client: ApiTestClient) -> None:
    assert 'href="/costs/compare?job=17"' in client.text("/jobs/17")
    assert 'href="/costs/compare?job=' not in client.text("/jobs/101"), "it runs"
    assert 'href="/costs/compare?month=2026-08"' in client.text("/costs?since=2026-08-03&until=2026-08-04")


def test_it_is_not_worked_out_again_while_it_is_read(client: ApiTestClient) -> None:
    assert "data-hx-get" not in client.text("/costs/compare?job=17")


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("job=99", 404, "No run of job 99 that is over is on record."),
        ("month=2026-13", 422, "Month: &#39;2026-13&#39; is no month; write 2026-10."),
    ],
)
def test_what_there_is_not_is_said(served: tuple[FakeBackend, Path], query: str, code: int, says: str) -> None:
    status, text = shown(served[1], f"/costs/compare?{query}")
    assert (status, says in text) == (code, True), text


def test_while_another_is_worked_out_the_browser_tries_again(served: tuple[FakeBackend, Path]) -> None:
    with served[0].comparing, ApiTestClient(served[1]) as client:
        answer = client.fetch("GET", "/costs/compare")
    assert (answer.status, answer.headers["refresh"]) == (503, "5")


def test_hostile_names_are_text() -> None:
    with serving_compared_jobs("".join(HOSTILE[:3])) as (_, path), ApiTestClient(path) as client:
        text = client.text("/costs/compare?job=17") + client.text("/costs/compare?account=%3Cimg+src%3Dx%3E")
    assert "&lt;script&gt;alert(1)" in text
    assert "{{7*7}}" in text
    assert "<script>alert" not in text
    assert "<img" not in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_a_user_sees_his_own_jobs_only(served: tuple[FakeBackend, Path]) -> None:
    uid = pwd.getpwnam(USER).pw_uid
    found = [shown(served[1], f"/costs/compare?{query}", uid) for query in ("job=17", "user=ada", "account=atlas")]
    assert [status for status, _ in found] == [404, 403, 200]
    assert f"0 jobs of {USER} of project atlas" in found[2][1]
    assert "User" not in found[2][1]
