"""Hints from slurmctld's state folder, played by a folder that looks like it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.slurm.state_watch import StateWatch


class WakeListener:
    """Counts hints, and waits for one."""

    def __init__(self) -> None:
        self._rang = threading.Event()

    def __call__(self) -> None:
        self._rang.set()

    def wakes(self, timeout_s: float = 5.0) -> bool:
        found = self._rang.wait(timeout_s)
        self._rang.clear()
        return found


@pytest.fixture
def ear() -> WakeListener:
    return WakeListener()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / "state" / f"hash.{number}").mkdir(parents=True)
    return tmp_path / "state"


@pytest.fixture
def watch(state: Path, ear: WakeListener) -> Iterator[StateWatch]:
    found = StateWatch(state, ear)
    assert found.start() == ""
    yield found
    found.stop()


def test_a_job_that_comes_or_goes_is_heard(watch: StateWatch, state: Path, ear: WakeListener) -> None:
    (state / "hash.1" / "job.11").mkdir()
    assert ear.wakes()
    shutil.rmtree(state / "hash.1" / "job.11")
    assert ear.wakes()


def test_the_state_that_is_rewritten_all_the_time_is_not(watch: StateWatch, state: Path, ear: WakeListener) -> None:
    for _ in range(3):
        (state / "job_state.new").write_text("x", encoding="utf-8")
        (state / "job_state.new").rename(state / "job_state")
    assert not ear.wakes(0.2)


def test_a_folder_that_is_made_later_is_watched_too(watch: StateWatch, state: Path, ear: WakeListener) -> None:
    (state / "hash.7").mkdir()
    (state / "hash.2").rmdir()
    (state / "hash.2").mkdir()
    # The watch on a new folder is there a moment after it: jobs keep coming until then.
    for folder in ("hash.7", "hash.2"):
        assert any(_job_comes(state / folder, number, ear) for number in range(50))


def test_a_folder_that_is_put_in_place_anew_is_taken_up(state: Path, ear: WakeListener) -> None:
    watch = StateWatch(state, ear, rescan_s=0.05)
    assert watch.start() == ""
    state.rename(state.with_name("old"))
    (state / "hash.1").mkdir(parents=True)
    assert any(_job_comes(state / "hash.1", number, ear) for number in range(50))
    watch.stop()


def _job_comes(folder: Path, number: int, ear: WakeListener) -> bool:
    (folder / f"job.{number}").mkdir()
    return ear.wakes(0.1)


def test_why_it_cannot_is_said(tmp_path: Path, ear: WakeListener) -> None:
    assert "is not on this host" in StateWatch(tmp_path / "none", ear).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not")
def test_a_lacking_right_is_said(state: Path, ear: WakeListener) -> None:
    state.chmod(0o700)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os.write(writing, StateWatch(state, ear).start().encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    assert said
    assert str(state) in said
