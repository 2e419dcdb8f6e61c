"""The pages of a daemon beside a real Slurm, in Chromium: as administrator, as the job's owner, as another user."""

from __future__ import annotations

import http.client
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.api.client import connect_as
from tests.e2e.sites import claims_of
from tests.lab.site import Site
from tests.lab.web_page import web_page
from tests.web.served import CHROMIUM

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium"),
]

HOSTILE = '"><img src=x onerror=alert(1)><script>{{7*7}}'
ASKED = 60


class _Relay(socketserver.BaseRequestHandler):
    """Carries one connection of a browser to the control socket, as one user."""

    path: Path
    uid: int

    def handle(self) -> None:
        there = connect_as(self.path, self.uid, self.uid)
        back = threading.Thread(target=_copy, args=(there, self.request), daemon=True)
        back.start()
        _copy(self.request, there)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return  # One of them has gone, as browsers do.


@contextmanager
def relay(site: Site, user: str) -> Iterator[str]:
    """The address of the pages for a user."""
    uid = int(site.cluster.sh(f"id -u {user}"))
    bound = {"path": site.cluster.head.path("/run/burstd/control.sock"), "uid": uid}
    handler = type("UserRelay", (_Relay,), bound)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def window(browser: Browser, site: Site, user: str) -> Iterator[Page]:
    """A page that may complain of nothing but answers of 403."""
    faults: list[str] = []
    with relay(site, user) as address:
        page = browser.new_context(base_url=address).new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" and "403" not in m.text else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        yield page
        page.context.close()
    assert faults == []


def rpcs(site: Site) -> int:
    """How often burstd's user, or root, has asked slurmctld so far."""
    text = site.cluster.sh("sdiag").partition("by user")[2]
    return sum(int(found) for found in re.findall(r"(?:root|slurm)\s+\(\s*\d+\) count:(\d+)", text))


def test_every_page_as_administrator_owner_and_other_user(site: Site) -> None:
    name = site.cluster.head.path("/home/ada/hostile.sh")
    name.write_text(f"#!/bin/sh\n#SBATCH -p burst -C solo -c1 --mem=100 -t5\n#SBATCH -J '{HOSTILE}'\nsleep 100\n")
    job = site.cluster.head.run(["sbatch", "--parsable", "hostile.sh"], user="ada", cwd="/home/ada").stdout.strip()
    site.wait_job(job, ["RUNNING"])
    (claim,) = claims_of(site, job)
    waiting = site.submit("-p burst -C solo -c1 --mem=100 -t5 --hold -J hers")
    site.wait(lambda: any(j["id"] == waiting for j in site.api("/v1/jobs")["jobs"]), 10, "burstd knows it")
    pages = ["/", "/queue?state=all", "/nodes", "/gpus", "/nodes/solo1", f"/nodes/{claim['claim']}", f"/jobs/{job}",
             f"/jobs/{waiting}", "/projects", "/costs", "/policies", "/clouds", "/clouds/sandbox"]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for user in ("root", "ada"):
            with window(browser, site, user) as page:
                for path in pages:
                    answer = page.goto(path)
                    assert answer is not None
                    assert answer.status == (403 if (user, path) == ("ada", "/policies") else 200), path
                page.goto("/queue?state=all")
                expect(page.get_by_text(HOSTILE)).to_be_visible()
                page.get_by_role("link", name=waiting, exact=True).click()
                expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {waiting}")
                expect(page.get_by_text("held by its user").first).to_be_visible()
        with window(browser, site, "bob") as page:
            for path in pages:
                answer = page.goto(path)
                assert answer is not None
                assert answer.status == (403 if path == "/policies" or "/jobs/" in path else 200), path
                text = page.content()
                assert "onerror" not in text
                assert "hers" not in text.split()
                assert f"/jobs/{job}" not in text or path == f"/jobs/{job}"
        browser.close()
    site.cluster.sh(f"scancel {job} {waiting}")


def test_pages_ask_slurmctld_nothing(site: Site) -> None:
    with relay(site, "root") as address:
        before = rpcs(site)
        link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        for number in range(ASKED):
            link.request("GET", ("/", "/queue", "/nodes", "/gpus")[number % 4])
            answer = link.getresponse()
            assert (answer.status, answer.read()[:9]) == (200, b"<!DOCTYPE")
        asked = rpcs(site) - before
    assert before > 0
    assert asked < ASKED // 2, "burstd's own looks alone"


def test_burstctl_web_while_burstd_restarts_and_slurm_is_down(site: Site, figure: Callable[[str], None]) -> None:
    with sync_playwright() as playwright, web_page(site, "ada") as address:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(base_url=address.partition("?")[0]).new_page()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_have_text("Now")
        assert "token" not in page.url
        expect(page.locator(".caller")).to_have_text("ada")
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)
        other = browser.new_page()
        answer = other.goto(address)
        assert (answer and answer.status, "Now" in other.content()) == (403, False)

        site.kill_burstd("TERM")
        expect(page.locator("#connection")).to_contain_text("burstd has not answered since", timeout=30_000)
        late = page.context.new_page()
        late.goto("/queue")
        expect(late.get_by_text("burstd does not answer: ")).to_be_visible()
        site.start_burstd()
        begun = time.monotonic()
        expect(page.locator("#connection")).to_be_hidden(timeout=30_000)
        expect(late.get_by_role("heading", level=1)).to_have_text("Queue", timeout=30_000)
        figure(f"the page recovers {time.monotonic() - begun:.1f} s after burstd's start")

        site.cluster.stop_slurmctld()
        try:
            warning = page.locator(".warnings", has_text=re.compile(r"Slurm cannot be read \(last read \d+ s ago\)"))
            expect(warning).to_be_visible(timeout=60_000)
        finally:
            site.cluster.start_slurmctld()
        expect(warning).to_be_hidden(timeout=60_000)
        browser.close()


def test_forms_by_burstctl_web_are_on_record_and_those_of_other_sites_refused(site: Site) -> None:
    with sync_playwright() as playwright, web_page(site, "root") as address:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(base_url=address.partition("?")[0]).new_page()
        page.goto(address)
        page.goto("/act/hold")
        page.locator("main [name=reason]").fill("roof")
        page.locator("main form button").click()
        expect(page).to_have_url(re.compile("/done/hold"))
        assert site.burstctl_json("status")["daemon"]["paused"]
        held = [event for event in site.api("/v1/events", limit=1000)["events"] if event["subject"] == "meta:paused"]
        assert ("roof" in str(held[-1]), held[-1]["by"]) == (True, "root"), held
        token = page.goto("/act/unhold") and page.locator("main [name=token]").get_attribute("value")
        evil = page.context.new_page()
        evil.set_content(
            f"<form method=post action={page.url}><input name=token value={token}><button>Win</button></form>"
        )
        with evil.expect_navigation() as sent:
            evil.get_by_role("button").click()
        answer = sent.value
        assert answer is not None
        assert (answer.status, site.burstctl_json("status")["daemon"]["paused"]) == (403, "roof")
        page.locator("main form button").click()
        expect(page).to_have_url(re.compile("/done/unhold"))
        assert not site.burstctl_json("status")["daemon"]["paused"]
        browser.close()
