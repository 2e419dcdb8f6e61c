"""What each project has used lately, for shares that depend on it. Kept in the database, as nothing else knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import log

from burstd.db import Store
from burstd.domain.project import FairShare, Share

USAGE_KEY = "project usage"
SAVE_EVERY_S = 60.0


class ProjectUsage:
    """GPU seconds by project, of which half count no more after each half-life. Used in the deciding thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._at, self._saved_at, self._used = 0.0, 0.0, dict[str, float]()
        self._is_read = False

    def usage(self, now: float, how: FairShare) -> Mapping[str, float]:
        """As of now; nothing where usage does not count."""
        if not how.usage_factor:
            return {}
        if not self._is_read:
            saved = json.loads(self._store.metadata(USAGE_KEY) or "[0, {}]")
            self._at, self._used = saved
            self._is_read = True
        left = 0.5 ** (max(0.0, now - self._at) / how.usage_half_life_s)
        return {name: used * left for name, used in self._used.items()}

    def add(self, shares: Mapping[str, Share], now: float, how: FairShare, *, since: float) -> None:
        """Counts what runs now for the time since the last call; ``since``: from when on burstd has looked at all."""
        if not how.usage_factor:
            return
        used = dict(self.usage(now, how))
        passed = max(0.0, now - max(self._at, since))
        # As if half of each second's use went within a half-life, the last second's included.
        counted = (1 - 0.5 ** (passed / how.usage_half_life_s)) * how.usage_half_life_s / log(2)
        for name, share in shares.items():
            used[name] = used.get(name, 0.0) + float(share.running) * counted
        self._used, self._at = used, now
        if now - self._saved_at >= SAVE_EVERY_S:
            self._saved_at = now
            kept = {name: round(seconds, 3) for name, seconds in used.items() if name in shares}
            self._store.set_metadata(USAGE_KEY, json.dumps([now, kept]), logged=False)
