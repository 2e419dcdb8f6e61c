"""Every page: what it bears whoever asks, and what it does not say to others."""

from __future__ import annotations

import re

import pytest

from burstd.web.middleware import SECURITY_HEADERS
from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend

pytestmark = pytest.mark.usefixtures("backend")

PAGES = (
    "/", "/queue", "/queue?state=all", "/nodes", "/nodes?state=all", "/gpus?state=all", "/nodes/gpu1", "/nodes/gpu8",
    "/nodes/c-gpu7", "/jobs/101", "/projects", "/costs", "/costs?group=job", "/costs/compare",
    "/history", "/policies", "/clouds", "/clouds/sandbox",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_a_page_bears_what_keeps_other_sites_out(root: ApiTestClient, path: str) -> None:
    answer = root.fetch("GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert answer.headers["cache-control"] == "no-store"
    text = answer.body.decode()
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|javascript:|https?://", text)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_shown_below_the_path_of_a_proxy(root: ApiTestClient, path: str) -> None:
    text = root.fetch("GET", path, headers={"x-forwarded-prefix": "/pun/sys/burstd"}).body.decode()
    addresses = re.findall(r'(?:href|src|action|data-hx-get)="(/[^"]*)"', text)
    assert len(addresses) > 4
    assert all(address.startswith("/pun/sys/burstd/") for address in addresses)
    for hostile in ("//evil.example", "https://evil.example", '/"><script>', "/a b", "/" + "a/" * 300):
        assert 'href="/static/' in root.fetch("GET", path, headers={"x-forwarded-prefix": hostile}).body.decode()


def test_an_error_is_a_page_for_a_browser_only(root: ApiTestClient) -> None:
    answer = root.fetch("GET", "/nothing")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "<h1>Not found</h1>" in answer.body.decode()
    assert answer.headers["content-security-policy"] == SECURITY_HEADERS["content-security-policy"]
    assert root.request("GET", "/nothing") == (404, {"error": "Not Found", "known": []})
    assert root.fetch("GET", "/v1/nothing").headers["content-type"] == "application/json"


def test_a_page_is_compressed_where_it_bears_no_token(root: ApiTestClient) -> None:
    for path, encoding in (("/queue", "gzip"), ("/static/htmx.js", "gzip"), ("/act/hold", None), ("/v1/jobs", None)):
        answer = root.fetch("GET", path, headers={"accept-encoding": "gzip, br"})
        assert (answer.status, answer.headers["content-encoding"]) == (200, encoding)
    assert root.fetch("GET", "/queue", headers={"accept-encoding": "identity"}).headers["content-encoding"] is None
    assert root.fetch("GET", "/none", headers={"accept-encoding": "gzip"}).status == 404


def test_a_page_says_that_burstd_has_just_started(root: ApiTestClient, backend: FakeBackend) -> None:
    backend.loop = None
    assert "has not read Slurm and the clouds yet" in root.text("/")


def test_now_shows_what_a_cloud_that_is_down_said_and_when_it_was_last_read(root: ApiTestClient) -> None:
    text = root.text("/")
    assert "Provider sky cannot be read (last read 5 min ago): no answer" in text
    assert "As of <time" in text


def test_another_user_sees_his_own_jobs_on_now(nobody: ApiTestClient, root: ApiTestClient) -> None:
    assert "four h100" not in nobody.text("/")
    assert "your own are shown" in nobody.text("/")
    assert "(administrator)" in root.text("/")
