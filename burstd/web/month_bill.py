"""What each caller has spent this month, for a page that many keep open: the record is read once a minute for each."""

from __future__ import annotations

import threading

from burstd.api.answers.plan import BillView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.routers.status import get_bill

KEEP_S = 60.0
_MAX_CALLERS = 256


class MonthBills:
    """The bills of the last callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Caller, tuple[float, BillView]] = {}

    def bill(self, caller: Caller, backend: Backend) -> BillView:
        """The caller's bill since the first of the month, at most KEEP_S seconds old."""
        now = backend.now()
        with self._lock:
            made, found = self._made.get(caller, (0.0, None))
        if found is not None and 0 <= now - made < KEEP_S:
            return found
        found = get_bill(caller, backend)
        with self._lock:
            if len(self._made) >= _MAX_CALLERS:
                self._made.clear()
            self._made[caller] = (now, found)
        return found
