"""Pods that somebody else takes: evicted, preempted, deleted by hand, or on a node that is drained or lost.

The API server says so by a deletionTimestamp, the moment at which the pod is killed at the latest; the watch brings it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from burstd.domain.plugins.provider import Notice, NoticeKind
from providers.openshift import labels
from providers.openshift.pods import status
from providers.openshift.pods.listing import PodListing


class PodNotices:
    """Of one cluster; no calls are made. ``is_own``: whether burstd itself asked for the end of the pod of that uid."""

    def __init__(self, listing: PodListing, is_own: Callable[[str], bool]) -> None:
        self._listing = listing
        self._is_terminated_by_burstd = is_own
        self._lock = threading.Lock()
        self._done: set[str] = set()
        """Uids of those that are on record and still there."""

    def notices(self) -> Sequence[Notice]:
        """Those of pods that are known, until they are acknowledged."""
        going = {
            labels.uid_of(one): one for one in self._listing.cached_pods() if one["metadata"].get("deletionTimestamp")
        }
        with self._lock:
            self._done &= going.keys()
            news = {
                uid: one
                for uid, one in going.items()
                if uid not in self._done and not self._is_terminated_by_burstd(uid)
            }
        return [
            Notice(
                labels.name_of(one),
                NoticeKind.INTERRUPTION,
                status.parse_time(one["metadata"]["deletionTimestamp"]),
                uid,
            )
            for uid, one in news.items()
        ]

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """They are not told again."""
        with self._lock:
            self._done |= {notice.receipt for notice in notices if notice.receipt}
