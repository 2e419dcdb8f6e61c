"""The pods of one cluster as far as is known, from lists, from events of a watch and from answers to launches.

Which of two words on a pod is newer their resourceVersions tell: one counter for all of a cluster's pods, see
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions. A pod leaves by the event of its end or
by being absent from a complete list that is newer than it, by nothing else. A second pod of the same name is another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from burstd.domain.errors import CloudUnavailable
from providers.openshift import labels
from providers.openshift.pods.status import ImagePullFailure, has_started, image_pull_message, says_why

Pod = Mapping[str, Any]


def resource_version(thing: Pod) -> int:
    """resourceVersion. Raises CloudUnavailable where it is no number."""
    try:
        return int(thing["metadata"]["resourceVersion"])
    except (KeyError, TypeError, ValueError):
        raise CloudUnavailable("the API server's answer has no resourceVersion: is there a proxy in between?") from None


class CachedPod(NamedTuple):
    """A pod, and what it said earlier: of an image that does not come, and whether it has ever started."""

    pod: Pod
    pull: ImagePullFailure | None
    ran: bool


class PodCache:
    """Used from many threads. ``clock`` need not know the date: it only has to run on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._seen = 0
        """All that happened up to this resourceVersion is in here."""
        self._new: set[str] = set()
        """Uids of those that were put since ``begin``."""
        self._pulls: dict[str, tuple[str, float]] = {}
        """By uid: words on an image that fails to come, and since when."""
        self._ran: set[str] = set()
        """Uids of those that were seen to have started."""

    def pods(self) -> list[CachedPod]:
        """All, with what is remembered of them."""
        with self._lock:
            return [CachedPod(pod, self._pull(pod), labels.uid_of(pod) in self._ran) for pod in self._pods.values()]

    def find(self, name: str) -> Pod | None:
        """That of the name."""
        with self._lock:
            return self._pods.get(name)

    def put(self, pod: Pod) -> bool:
        """The answer to a launch or a look. What a list or the watch has seen the end of does not come back by it.

        False: it was not taken. Then either it has ended, or the cluster was restored from a backup.
        """
        with self._lock:
            known = self._pods.get(labels.name_of(pod))
            if known is None and resource_version(pod) <= self._seen:
                return False
            self._new.add(labels.uid_of(pod))
            self._store(pod)
            return True

    def apply_change(self, pod: Pod) -> None:
        """An event ADDED or MODIFIED."""
        with self._lock:
            self._store(pod)
            self._seen = max(self._seen, resource_version(pod))

    def apply_removal(self, pod: Pod) -> None:
        """An event DELETED: of this pod, not of a later one of its name."""
        with self._lock:
            known = self._pods.get(labels.name_of(pod))
            if known is not None and labels.uid_of(known) == labels.uid_of(pod):
                self._drop(known)
            self._seen = max(self._seen, resource_version(pod))

    def advance_to(self, seen: int) -> None:
        """A bookmark: nothing else happened until then."""
        with self._lock:
            self._seen = max(self._seen, seen)

    def begin_list(self) -> None:
        """A list is about to be asked for. No event is to be told until ``replace``."""
        with self._lock:
            self._new.clear()

    def apply_list(self, pods: Iterable[Pod], at: int) -> None:
        """A complete list, as of that resourceVersion, asked for after ``begin``.

        It is newer than all that was known before it was asked for. (Where the cluster was restored from a backup its
        counter has gone back, and the list is right all the same.) Of what was put since then, it may be older.
        """
        with self._lock:
            listed = {labels.name_of(pod): pod for pod in pods}
            for name, known in list(self._pods.items()):
                fresh = labels.uid_of(known) in self._new and resource_version(known) > at
                if name not in listed and not fresh:
                    self._drop(known)
                elif name in listed and not (fresh and resource_version(known) > resource_version(listed[name])):
                    self._pods[name] = listed[name]
            for name, pod in listed.items():
                self._pods.setdefault(name, pod)
            for pod in self._pods.values():
                self._note(pod)
            alive = {labels.uid_of(pod) for pod in self._pods.values()}
            self._pulls = {uid: pull for uid, pull in self._pulls.items() if uid in alive}
            self._ran &= alive
            self._seen = at

    def _store(self, pod: Pod) -> None:
        name = labels.name_of(pod)
        known = self._pods.get(name)
        if known is None or resource_version(known) < resource_version(pod):
            if known is not None and labels.uid_of(known) != labels.uid_of(pod):
                self._drop(known)
            self._pods[name] = pod
            self._note(pod)

    def _drop(self, known: Pod) -> None:
        del self._pods[labels.name_of(known)]
        self._pulls.pop(labels.uid_of(known), None)
        self._ran.discard(labels.uid_of(known))

    def _note(self, pod: Pod) -> None:
        """A kubelet says why an image does not come for a moment only, then that it waits for the next try.

        Of a pod that it takes it may no longer say that there was a container.
        """
        uid, words = labels.uid_of(pod), image_pull_message(pod)
        if has_started(pod):
            self._ran.add(uid)
        if words is None:
            self._pulls.pop(uid, None)
            return
        before, since = self._pulls.get(uid, (words, self._clock()))
        self._pulls[uid] = (before if says_why(before) and not says_why(words) else words, since)

    def _pull(self, pod: Pod) -> ImagePullFailure | None:
        known = self._pulls.get(labels.uid_of(pod))
        return None if known is None else ImagePullFailure(known[0], self._clock() - known[1])
