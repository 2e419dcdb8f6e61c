"""Has providers look at themselves for the control interface: in a lane of its own, one check of each at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import structlog

from burstd.api.backend import PROVIDER_CHECK_TIMEOUT_S, CheckInProgress, NoAnswer
from burstd.domain.plugins.provider import Finding, Provider, SelfCheck
from burstd.runtime.workers import Workers

log = structlog.get_logger(__name__)


class ProviderChecks:
    """Implements ``burstd.api.backend.ProviderCheckBackend``."""

    def __init__(self, providers: Mapping[str, Provider], workers: Workers) -> None:
        self._able = {name: p if isinstance(p, SelfCheck) else None for name, p in providers.items()}
        self._workers = workers
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[str]] = {}

    def self_check_support(self) -> Mapping[str, bool]:
        """See ProviderCheckBackend."""
        return {name: check is not None for name, check in self._able.items()}

    def run_check(
        self, name: str, images: Sequence[str], timeout_s: float = PROVIDER_CHECK_TIMEOUT_S
    ) -> tuple[Finding, ...]:
        """See ProviderCheckBackend."""
        provider = self._able[name]
        if provider is None:
            return ()
        ended: Future[str] = Future()
        with self._lock:
            if name in self._under_way:
                raise CheckInProgress(f"a check of provider {name} is under way; try again when it has ended")
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
                log.error("the check of a provider broke off", provider=name, exc_info=result)
                broken = f"the check broke off ({type(result).__name__}); journalctl -u burstd has the details"
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
            cut_off = f"the check did not end within {timeout_s:.0f} s: what is not listed was not looked at"
        return (*found, Finding("the rest", None, cut_off)) if cut_off else tuple(found)

    def close(self) -> None:
        """Lets go who still waits."""
        with self._lock:
            for ended in self._under_way.values():
                if not ended.done():
                    ended.set_exception(NoAnswer("burstd is ending"))
