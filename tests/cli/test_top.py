"""burstctl top: its views, keys, a daemon that goes away, and how much it writes to a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from burstd.cli.session import ApiClient
from burstd.cli.top.app import TopApp
from burstd.cli.top.views import Window, load
from burstd.db import Store, StoreReader
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView
from tests.api.fake_backend import FakeBackend, serving_api
from tests.api.world import NOW, SNAPSHOT, FixedClock, job
from tests.cli.conftest import Run
from tests.cli.test_process import BURSTCTL

pytestmark = pytest.mark.slow
ESCAPES = re.compile(rb"\x1b\[[0-9;?<>$]*[a-zA-Z]")


def play(app: TopApp, steps: Callable[[Pilot[None]], Coroutine[Any, Any, None]], width: int = 80) -> None:
    async def run() -> None:
        async with app.run_test(size=(width, 24)) as pilot:
            await steps(pilot)

    asyncio.run(run())


async def shown(pilot: Pilot[None], *words: str) -> list[str]:
    """Waits until all these words are on the screen."""
    app = pilot.app
    assert isinstance(app, TopApp)
    for _ in range(3000):
        lines = app.sheet.text()
        if all(any(word in line for line in lines) for word in words):
            return lines
        await pilot.pause(0.02)
    raise AssertionError(f"{words} not in:\n" + "\n".join(app.sheet.text()))


def top(control: Path, interval_s: float = 60.0, **options: Any) -> TopApp:
    return TopApp(ApiClient(control, as_json=False), interval_s, **options)


def test_every_view_can_be_reached_and_a_job_and_a_node_opened(control: Path, backend: FakeBackend) -> None:
    """Nodes are the site's own, too."""
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    assert backend.loop is not None
    own = Node("op1", "IDLE", frozenset({"DRAIN"}), ("onprem",), gres=(Gres("gpu", "", 2),), reason="a fan is loud")
    slurm = replace(SNAPSHOT.slurm, nodes={**SNAPSHOT.slurm.nodes, "op1": own})
    backend.loop = (replace(SNAPSHOT, slurm=slurm), backend.loop[1])

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "burstd on ada", "15.50 EUR/h", "[1 status]", "POOL", "4 jobs wait")
        await pilot.press("2")
        lines = await shown(pilot, "[2 jobs]", "JOB ", "1-6 of 6, by priority", "impossible")
        assert lines[3].startswith("103 ")
        await pilot.press("down", "enter")
        await shown(pilot, "job 104", "Job 104 of nobody")
        await pilot.press("escape")
        await shown(pilot, "1-6 of 6")
        await pilot.press("s")
        await shown(pilot, "by waiting")
        await pilot.press("3")
        await shown(pilot, "NODE ", "gpu3", "booting")
        await pilot.press("enter")
        await shown(pilot, "node gpu1", "gpu1 (pool gpu)")
        await pilot.press("escape", "end", "enter")
        await shown(pilot, "node op1", "op1 (on premises)", "IDLE+DRAIN a fan is loud")
        await pilot.press("4")
        assert next(line for line in await shown(pilot, "1-9 of 9") if line.startswith("gpu4")).count("\u2026") == 4
        await pilot.press("5")
        await shown(pilot, "15.50 EUR an hour", "MACHINE TIME")
        await pilot.press("6")
        await shown(pilot, "! provider sky cannot be read", "interrupted")
        await pilot.press("7")
        await shown(pilot, "[7 history]", "last hour", "Nothing is on record")
        await pilot.press("s")
        await shown(pilot, "last day")
        await pilot.press("?")
        await shown(pilot, "Esc, Backspace")
        await pilot.press("x", "tab")
        await shown(pilot, "[1 status]")

    play(top(control), steps)


def test_a_job_that_is_looked_at_costs_the_deciding_thread_nothing(control: Path, backend: FakeBackend) -> None:
    _, page = load(ApiClient(control, as_json=False), "job", Window(50, 80, subject="105"))
    assert page.rows[0].text.plain.startswith("Job 105 of nobody")
    assert backend.commands == []


def test_the_screen_of_a_job_has_what_it_used(tmp_path: Path) -> None:
    gpu = GpuUse("GPU-1", 0, "A100", GpuShare.WHOLE, 70.0, 99.5, 900, 81920, 7200.0, 3600.0, 0.0, NOW)
    node = NodeUse("gpu1", 8, 1024, NOW - 60, NOW, 50.0, 0.5, 1.5, 300, 310, gpus=(gpu,))
    clock = FixedClock()
    with Store.open(tmp_path / "burstd.db", clock) as store:
        store.save_job_uses([JobUse("104", "104", 0, "nobody", "lab", "gpu", (node,), 1, NOW - 60, None)])
    with StoreReader.open(tmp_path / "burstd.db", clock) as reader, serving_api(reader) as (_, control):
        _, page = load(ApiClient(control, as_json=False), "job", Window(50, 80, subject="104"))
    text = "\n".join(row.text.plain for row in page.rows)
    assert text.startswith("Job 104 of nobody")
    assert "1.0 of 2.0 GPU hours were idle" in text


def test_a_filter_is_the_servers_and_names_cannot_command_the_terminal(control: Path, backend: FakeBackend) -> None:
    hostile = "[bold]\x1b[31m\u202eevil[/]\n"
    jobs = [job(str(n), "nobody", name=hostile) for n in range(1000, 11_000)]
    assert isinstance(SNAPSHOT.slurm, SlurmView)
    assert backend.loop is not None
    odd = replace(jobs[0], reason=hostile)
    backend.loop = (replace(SNAPSHOT, slurm=replace(SNAPSHOT.slurm, jobs=(odd, *jobs[1:]))), backend.loop[1])

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await shown(pilot, "1-20 of 10000")
        await pilot.press("end")
        await shown(pilot, "9981-10000 of 10000")
        await pilot.press("pageup")
        await shown(pilot, "9961-9980 of 10000")
        await pilot.press("home", "/", *"1000")
        await shown(pilot, "/1000_", "10009 ")
        await pilot.press("enter")
        await shown(pilot, "1-11 of 11, by priority, with '1000'")
        await pilot.press("enter")
        lines = await shown(pilot, "Job 100")
        assert "[bold]\ufffd[31m\ufffdevil[/]" in " ".join(lines)
        assert all(line.isprintable() for line in lines)

    play(top(control), steps)


def test_while_the_daemon_is_gone_it_says_since_when_and_goes_on_by_itself(
    control: Path, backend: FakeBackend, tmp_path: Path
) -> None:
    link = tmp_path / "control.sock"
    link.symlink_to(control)

    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "burstd on ada", "POOL")
        link.unlink()
        lines = await shown(pilot, "no answer since", "POOL")
        assert "this is of" in lines[0]
        link.symlink_to(control)
        lines = await shown(pilot, "burstd on ada")
        assert "no answer" not in lines[0]

    play(top(link, 0.1), steps)


def test_pause_stops_the_requests(control: Path, backend: FakeBackend) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await shown(pilot, "burstd on ada")
        await pilot.press("space")
        await shown(pilot, "PAUSED")
        backend.alarms = ("the roof is on fire",)
        await pilot.press("r")
        await shown(pilot, "2 alarms", "PAUSED")

    play(top(control, 0.1), steps)


def test_without_utf_8_all_is_ascii_and_a_narrow_window_cuts(control: Path, backend: FakeBackend) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("4")
        lines = await shown(pilot, "gpu4          ready       ~ ~")
        assert all(line.isascii() and len(line) <= 30 for line in lines)

    play(top(control, ascii_only=True), steps, width=30)


def test_without_a_terminal_or_a_daemon_it_does_not_begin(run: Run) -> None:
    done = run("top")
    assert (done.code, done.out) == (2, "")
    assert "needs a terminal" in done.err


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 50)])
def test_a_quiet_refresh_writes_less_than_a_kilobyte(
    control: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, columns: int, rows: int
) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**os.environ, "BURSTD_SOCKET": str(control), "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm",
           "NO_COLOR": "1", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC"}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", BURSTCTL, "top", "--interval", "0.5"], stdin=terminal, stdout=terminal,
        stderr=terminal, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        begun = _read_until(master, b"4 jobs wait")
        assert b"\x1b[31m" not in begun
        assert len(begun) < 12 * 1024, "blanks are not written"
        os.write(master, b"2")
        _read_until(master, b"1-6 of 6")
        _read_for(master, 1.0)
        clock = FixedClock()
        monkeypatch.setattr(backend, "clock", clock)
        quiet = b""
        for _ in range(6):
            clock.time += 5
            quiet += _read_for(master, 0.6)
        assert b"14:13:" in ESCAPES.sub(b"", quiet), "the time goes on"
        assert len(quiet) < 6 * 1024, quiet
        os.write(master, b"q")
        _read_until(master, b"\x1b[?1049l")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _read_until(master: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in ESCAPES.sub(b"", seen) and wanted not in seen:
        readable, _, _ = select.select([master], [], [], 60)
        assert readable, seen
        seen += os.read(master, 1 << 16)
    return seen


def _read_for(master: int, seconds: float) -> bytes:
    seen, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            seen += os.read(master, 1 << 16)
    return seen
