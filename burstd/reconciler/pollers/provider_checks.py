"""Runs self-checks of providers for the API, each in a lane of its own, one at a time for a provider."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import structlog

from burstd.domain.errors import BurstdError, NoAnswer
from burstd.domain.plugins.provider import Finding, Provider, SelfCheck
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)

PROVIDER_CHECK_TIMEOUT_S = 120.0
"""How long a caller waits for a provider's self-check, in seconds: some dozens of calls in sequence."""


class CheckInProgress(BurstdError):
    """A self-check of this provider is already running."""


class ProviderChecks:
    """``self_check_support`` and ``run_check`` may be called from any thread."""

    def __init__(self, providers: Mapping[str, Provider], workers: Workers) -> None:
        self._able = {name: p if isinstance(p, SelfCheck) else None for name, p in providers.items()}
        self._workers = workers
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[str]] = {}

    def self_check_support(self) -> Mapping[str, bool]:
        """Every provider's name, and whether it has a self-check."""
        return {name: check is not None for name, check in self._able.items()}

    def run_check(
        self, name: str, images: Sequence[str], timeout_s: float = PROVIDER_CHECK_TIMEOUT_S
    ) -> tuple[Finding, ...]:
        """Runs the provider's self-check with the images of the pools and waits; the last finding tells of a time-out.

        Without a self-check it finds nothing. Raises KeyError for no such provider, CheckInProgress and NoAnswer.
        """
        provider = self._able[name]
        if provider is None:
            return ()
        ended: Future[str] = Future()
        with self._lock:
            if name in self._under_way:
                raise CheckInProgress(f"a check of provider {name} is already running; try again when it has ended")
            self._under_way[name] = ended
        found: list[Finding] = []
        enough = threading.Event()

        def run_checks() -> str:
            for finding in provider.check(images):
                found.append(finding)
                if enough.is_set():
                    break
            return ""

        def done(result: str | Exception) -> None:
            broken = ""
            if isinstance(result, Exception):
                log.error("the check of a provider failed unexpectedly", provider=name, exc_info=result)
                broken = f"the check failed ({type(result).__name__}); journalctl -u burstd has the details"
            with self._lock:
                del self._under_way[name]
                if not ended.done():
                    ended.set_result(broken)

        # Lanes are the deciding thread's.
        self._workers.post(lambda: self._workers.submit(f"{name}:check", run_checks, done))
        try:
            cut_off = ended.result(timeout_s)
        except FutureTimeoutError:
            enough.set()
            cut_off = f"the check did not end within {timeout_s:.0f} s: items not listed here are unchecked"
        return (*found, Finding("the rest", None, cut_off)) if cut_off else tuple(found)

    def close(self) -> None:
        """Releases callers that still wait."""
        with self._lock:
            for ended in self._under_way.values():
                if not ended.done():
                    ended.set_exception(NoAnswer("burstd is ending"))
