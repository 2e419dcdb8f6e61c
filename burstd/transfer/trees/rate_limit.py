"""Bytes per second, for a site and for each user, shared by all transfers of the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """So many bytes a second on the average. A second's worth may go at once; what is larger waits for all of it."""

    def __init__(self, bytes_per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if bytes_per_s <= 0:
            raise ValueError("a rate is above 0")
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock() - 1.0
        """When all that was asked for will have gone."""

    def reserve(self, size: int) -> float:
        """Takes ``size`` bytes' time; seconds to wait before they may go."""
        with self._lock:
            now = self._clock()
            begin = max(self._free_at, now - 1.0)
            self._free_at = begin + size / self.bytes_per_s
            return max(0.0, self._free_at - now)

    def refund(self, size: int) -> None:
        """What was reserved does not go."""
        with self._lock:
            self._free_at -= size / self.bytes_per_s


class BandwidthLimits:
    """Rates in bytes per second; None: no limit. ``parallel_uploads``: objects that a transfer sends at once."""

    def __init__(
        self, *, site_bytes_s: float | None = None, user_bytes_s: float | None = None, parallel_uploads: int = 4
    ) -> None:
        self.parallel_uploads = parallel_uploads
        self._lock = threading.Lock()
        self.set_rates(site_bytes_s, user_bytes_s)

    def set_rates(self, site_bytes_s: float | None, user_bytes_s: float | None) -> None:
        """Other rates, for all that goes from now on."""
        with self._lock:
            self._site = TokenBucket(site_bytes_s) if site_bytes_s else None
            self._user_bytes_s = user_bytes_s
            self._users: dict[int, TokenBucket] = {}

    def wait(self, uid: int, size: int, cancelled: threading.Event) -> bool:
        """Until so many bytes of a user may go. False: cancelled, and nothing was used up."""
        with self._lock:
            buckets = [bucket for bucket in (self._user_bucket(uid), self._site) if bucket is not None]
        for at, bucket in enumerate(buckets):
            # The user's own limit first: who waits for it uses nothing of the site's.
            if cancelled.wait(bucket.reserve(size)):
                for used in buckets[: at + 1]:
                    used.refund(size)
                return False
        return True

    def _user_bucket(self, uid: int) -> TokenBucket | None:
        if self._user_bytes_s is None:
            return None
        if uid not in self._users:
            self._users[uid] = TokenBucket(self._user_bytes_s)
        return self._users[uid]
