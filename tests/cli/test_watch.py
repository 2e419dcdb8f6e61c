"""--watch: listings that are asked for and drawn again and again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from burstd.cli import watch

from .conftest import Run

LISTINGS = (
    "bill", "job list", "node faults", "node list", "plan", "policy list", "project list", "provider list",
    "provider offers sandbox", "route list", "stage status", "stage usage", "status", "volume list",
)  # fmt: skip


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has these done in the place of each wait in turn, and then Ctrl-C pressed."""

    def set_steps(*steps: Callable[[], object]) -> None:
        left = iter(steps)

        def sleep(seconds: float) -> None:
            assert seconds == watch.WATCH_INTERVAL_S
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep))

    return set_steps


@pytest.mark.parametrize("words", LISTINGS)
def test_every_listing_is_drawn_again_until_ctrl_c(run: Run, between: Callable[..., None], words: str) -> None:
    once = run(*words.split())
    between(lambda: None)
    watched = run(*words.split(), "--watch")
    assert (watched.code, watched.err) == (0, "")
    assert re.split(r"(?m)^\w{3} \d\d \w{3} \d{4} [\d:]{8}\n", watched.out) == ["", once.out, once.out]
    between(lambda: None)
    answers = [json.loads(line) for line in run(*words.split(), "--watch", "--json").out.splitlines()]
    assert [a.keys() for a in answers] == [json.loads(run(*words.split(), "--json").out).keys()] * 2


def test_watching_outlives_the_daemon(run: Run, control: Path, between: Callable[..., None]) -> None:
    away = control.with_name("away.sock")
    try:
        between(lambda: control.rename(away), lambda: None, lambda: away.rename(control))
        outcome = run("provider", "list", "--watch")
    finally:
        if away.exists():
            away.rename(control)
    assert (outcome.code, outcome.out.count("PROVIDER")) == (0, 2)
    assert outcome.err == (
        f"burstctl: There is no socket {control}: burstd does not run here, or listens elsewhere (say where with "
        "--socket or BURSTD_SOCKET). Trying again.\n"
    )


def test_what_cannot_be_shown_once_is_not_watched(run: Run, between: Callable[..., None], tmp_path: Path) -> None:
    between()
    assert run("status", "--watch", socket=tmp_path / "none.sock").code == 3
    assert run("provider", "offers", "moon", "--watch").code == 5
    assert "--watch goes with the text, or with --json." in run("bill", "--watch", "--format", "csv").err
    assert "say it after verify" in run("bill", "--watch", "verify", "2026-08").err
