"""The pages in Debian's Chromium: light and dark, on a narrow screen, by keyboard alone, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from burstd.db import StoreReader
from burstd.domain.snapshot import SlurmView
from burstd.planner.decide import decide
from burstd.planner.timeouts import Tuning
from tests.api.compared_jobs import compared_jobs, give_nodes
from tests.api.conftest import NOBODY
from tests.api.fake_backend import FakeBackend
from tests.api.world import JOBS, SNAPSHOT

from .served import CHROMIUM, UID_HEADER, serving
from .test_page_content import HOSTILE
from .test_pages import PAGES

VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 780}},
}
CONTRAST = Path(__file__).with_name("contrast.js").read_text()
REACHABLE = """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
    .filter((one) => one.type !== "hidden" && one.checkVisibility()).length"""
FOCUSED = """() => {
    const one = document.activeElement;
    if (!one || one === document.body) return "";
    one.dataset.reached ??= String(document.querySelectorAll("[data-reached]").length + 1);
    return one.dataset.reached + (getComputedStyle(one).outlineStyle === "none" ? " without outline" : "");
}"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs Debian's chromium")]


@pytest.fixture(scope="module")
def site(record: StoreReader) -> Iterator[tuple[FakeBackend, str]]:
    backend = FakeBackend(record)
    with serving(backend) as port:
        yield backend, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@contextmanager
def window(chromium: Browser, site: tuple[FakeBackend, str], uid: int = 0, **options: Any) -> Iterator[Page]:
    """A page that may complain of nothing."""
    backend, address = site
    backend.reset()
    faults: list[str] = []
    context: BrowserContext = chromium.new_context(
        base_url=address, extra_http_headers={UID_HEADER: str(uid)}, **options
    )
    page = context.new_page()
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    try:
        yield page
    finally:
        context.close()
    assert faults == []


@pytest.mark.parametrize("view", VIEWS)
def test_pages_can_be_read_and_fit(chromium: Browser, site: tuple[FakeBackend, str], view: str) -> None:
    with window(chromium, site, **VIEWS[view]) as page:
        for path in (*PAGES, "/jobs/103"):
            page.goto(path)
            assert page.evaluate(CONTRAST, 4.5) == [], path
            width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert width <= 0, path


def test_a_comparison_can_be_read_and_fits(chromium: Browser) -> None:
    with compared_jobs() as record, serving(backend := FakeBackend(record)) as port:
        options = {**VIEWS["narrow"], "color_scheme": "dark"}
        with window(chromium, (backend, f"http://127.0.0.1:{port}"), **options) as page:
            give_nodes(backend)
            page.goto("/jobs/17")
            page.get_by_role("link", name="Here beside there").click()
            expect(page.get_by_role("meter")).to_have_count(2)
            assert page.evaluate(CONTRAST, 4.5) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS["narrow"]["viewport"]["width"]


def test_a_page_is_printed_dark_on_white_and_without_what_is_for_a_screen(
    chromium: Browser, site: tuple[FakeBackend, str]
) -> None:
    with window(chromium, site, **VIEWS["dark"]) as page:
        page.goto("/costs")
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.evaluate(CONTRAST, 4.5) == []
        expect(page.get_by_role("button")).to_have_count(0)
        expect(page.get_by_role("link", name="Queue")).to_be_hidden()
        expect(page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize("path", ["/", "/queue", "/nodes?state=all", "/costs", "/jobs/103"])
def test_the_keyboard_reaches_everything(chromium: Browser, site: tuple[FakeBackend, str], path: str) -> None:
    with window(chromium, site, **VIEWS["light"]) as page:
        page.goto(path)
        wanted = page.evaluate(REACHABLE)
        reached: set[str] = set()
        for _ in range(3 * wanted + 10):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if not focused and reached:
                break
            assert "without outline" not in focused
            reached.add(focused)
        assert len(reached) >= wanted > 10


def test_the_keyboard_alone_leads_to_a_job(chromium: Browser, site: tuple[FakeBackend, str]) -> None:
    with window(chromium, site, **VIEWS["light"]) as page:
        page.goto("/queue")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "103":
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Job 103")


def test_pages_read_and_lists_are_filtered_without_javascript(chromium: Browser, site: tuple[FakeBackend, str]) -> None:
    with window(chromium, site, java_script_enabled=False) as page:
        for path in PAGES:
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.get_by_text(re.compile("^As of"))).to_be_visible()
        page.goto("/queue")
        page.locator("select[name=user]").select_option("nobody")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("1 to 2 of 2 jobs").first).to_be_visible()
        page.get_by_role("link", name="104").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Job 104")


def test_hostile_names_do_nothing(chromium: Browser, site: tuple[FakeBackend, str]) -> None:
    backend = site[0]
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    rows = tuple(replace(JOBS[4], id=str(200 + n), name=name, account=name) for n, name in enumerate(HOSTILE))
    snapshot = replace(SNAPSHOT, slurm=replace(SNAPSHOT.slurm, jobs=rows))
    with window(chromium, site, NOBODY, **VIEWS["narrow"]) as page:
        backend.loop = (snapshot, decide(snapshot, (), Tuning()))
        for path in ("/queue", *(f"/jobs/{row.id}" for row in rows)):
            page.goto(path)
            assert page.locator("#main img, #main script").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS["narrow"]["viewport"]["width"]


def test_what_changes_is_fetched_and_neither_focus_nor_place_is_lost(
    chromium: Browser, site: tuple[FakeBackend, str]
) -> None:
    backend = site[0]
    with window(chromium, site, viewport={"width": 900, "height": 400}) as page:
        page.goto("/queue?state=all")
        link = page.get_by_role("link", name="106", exact=True)
        link.focus()
        page.evaluate("scrollTo(0, 120)")
        with page.expect_response(lambda answer: "/queue" in answer.url, timeout=20_000) as polled:
            pass
        assert polled.value.status == 304
        snapshot, plan = backend.loop or pytest.fail("no loop")
        assert isinstance(snapshot.slurm, SlurmView)
        jobs = tuple(job for job in snapshot.slurm.jobs if job.id != "105")
        backend.loop = (replace(snapshot, now=snapshot.now + 0.5, slurm=replace(snapshot.slurm, jobs=jobs)), plan)
        expect(page.get_by_role("link", name="105", exact=True)).to_have_count(0, timeout=20_000)
        expect(link).to_be_focused()
        assert page.evaluate("scrollY") == 120
        # What has been swapped in goes on asking.
        with page.expect_response(lambda answer: "/queue" in answer.url, timeout=20_000) as again:
            pass
        assert again.value.status == 304


def test_a_page_says_that_burstd_is_away_and_goes_on_by_itself(chromium: Browser, record: StoreReader) -> None:
    backend = FakeBackend(record)
    with serving(backend) as port:
        page = chromium.new_context().new_page()
        page.goto(f"http://127.0.0.1:{port}/")
    line = page.locator("#connection")
    expect(line).to_contain_text("burstd has not answered since", timeout=20_000)
    with serving(backend, port):
        expect(line).to_be_hidden(timeout=10_000)
    page.context.close()
