"""A provider looks at itself: in a lane, through the deciding thread, once at a time, no longer than it may."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from burstd.domain.errors import NoAnswer
from burstd.domain.plugins.provider import Finding
from burstd.reconciler.pollers.provider_checks import CheckInProgress, ProviderChecks
from burstd.runtime.wake import Wake
from burstd.runtime.workers import ThreadWorkers


class CheckedProvider:
    """A provider of which only the check matters. It waits for ``go`` after its first finding; ``begun`` says so."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def check(self, images: Sequence[str]) -> Iterator[Finding]:
        yield Finding("images", True, ", ".join(images))
        self.begun.set()
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        yield Finding("lane", True, threading.current_thread().name.rpartition("_")[0])
        yield Finding("quota", False, "none left", "ask for more")


@contextmanager
def deciding(provider: CheckedProvider) -> Iterator[ProviderChecks]:
    """With a thread that does what the deciding one does for it."""
    drained = threading.Event()
    ended = threading.Event()
    workers = ThreadWorkers(drained.set, width=1)
    checks = ProviderChecks({"sky": provider}, workers)  # type: ignore[dict-item]

    def decide() -> None:
        while not ended.is_set():
            assert drained.wait(20)
            drained.clear()
            workers.run_callbacks()

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        yield checks
    finally:
        provider.go.set()
        ended.set()
        drained.set()
        thread.join()
        workers.close()


def test_all_that_was_found_in_its_own_lane() -> None:
    looking = CheckedProvider()
    looking.go.set()
    with deciding(looking) as checks:
        found = checks.run_check("sky", ("debian", "ubuntu"))
    assert [(f.subject, f.ok, f.text) for f in found] == [
        ("images", True, "debian, ubuntu"), ("lane", True, "sky:check"), ("quota", False, "none left")
    ]  # fmt: skip


def test_one_at_a_time_and_what_was_found_in_time() -> None:
    looking = CheckedProvider()
    with deciding(looking) as checks, ThreadPoolExecutor(1) as other:
        first = other.submit(checks.run_check, "sky", (), 0.2)
        assert looking.begun.wait(20)
        with pytest.raises(CheckInProgress, match="a check of provider sky is already running"):
            checks.run_check("sky", ())
        found = first.result()
        assert [f.subject for f in found] == ["images", "the rest"]
        assert (found[1].ok, "did not end within 0 s" in found[1].text) == (None, True)
        # Nobody waits for it any more, and it still is under way.
        with pytest.raises(CheckInProgress):
            checks.run_check("sky", ())


def test_a_check_that_breaks_off_says_so_and_may_be_repeated() -> None:
    looking = CheckedProvider()
    looking.go.set()
    looking.error = RuntimeError("bug")
    with deciding(looking) as checks:
        for _ in range(2):
            found = checks.run_check("sky", ())
            assert (found[-1].ok, "the check failed (RuntimeError)" in found[-1].text) == (None, True)


def test_nobody_is_left_waiting_when_the_daemon_ends() -> None:
    looking = CheckedProvider()
    with deciding(looking) as checks, ThreadPoolExecutor(1) as other:
        waiting = other.submit(checks.run_check, "sky", ())
        assert looking.begun.wait(20)
        checks.close()
        with pytest.raises(NoAnswer, match="is ending"):
            waiting.result(20)


def test_a_provider_without_a_check_is_named_as_such() -> None:
    checks = ProviderChecks({"sim": object()}, ThreadWorkers(Wake(), 1))  # type: ignore[dict-item]
    assert checks.self_check_support() == {"sim": False}
    assert checks.run_check("sim", ()) == ()
