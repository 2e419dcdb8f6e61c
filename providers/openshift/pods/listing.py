"""The pods of one cluster, from a cache that one watch keeps; whoever asks lists them where that cannot be relied on.

It cannot before the first list, after the watch lost its place, while it is not open, once a list is old, and for a
while after a launch without an answer: the watch may be of a connection that has died without a word.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from burstd.domain.cloud.instance import Instance
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.pods import status
from providers.openshift.pods.cache import CachedPod, Pod, PodCache, resource_version
from providers.openshift.pods.watcher import PAUSES_S, PodWatch
from providers.openshift.settings import OpenShiftSettings


class PodListing:
    """Used from many threads. ``clock`` need not know the date; ``pauses``: those of the watch."""

    def __init__(
        self,
        name: str,
        cluster: str,
        settings: OpenShiftSettings,
        calls: OpenShiftCalls,
        clock: Callable[[], float] = time.monotonic,
        pauses: Sequence[float] = PAUSES_S,
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._pauses = pauses
        self._cache = PodCache(clock)
        self._watch: PodWatch | None = None
        self._closed = False
        self._one = threading.Lock()
        """Held for a list: others wait for that one and take its word."""
        self._listed: float | None = None
        self._distrusted_until = 0.0
        """Until then every list is a call."""
        self._dropped = float("-inf")
        """When the cache last did not take what it was told: a list that was asked for before may not have it."""

    def instances(self) -> Iterator[Instance]:
        """All that bear our mark, each once. Raises what a list raises where one is needed; nothing is left out."""
        self.refresh()
        now = self._calls.server_time()
        return iter([self._instance(known, now) for known in self._cache.pods()])

    def refresh(self) -> None:
        """Lists them, where that is needed."""
        began = self._clock()
        with self._one:
            if not self._is_good(began):
                self._list()

    def cached_pods(self) -> list[Pod]:
        """The pods, as far as is known, without a call."""
        return [known.pod for known in self._cache.pods()]

    def find(self, name: str) -> Pod | None:
        """Ours of that name, as far as is known, without a call."""
        return self._cache.find(name)

    def put(self, pod: Pod) -> Instance:
        """What a launch, or a look at a pod of ours, was answered. The machine that it is."""
        if not self._cache.put(pod):
            self._dropped = self._clock()
        return self._instance(CachedPod(pod, None, ran=False), self._calls.server_time())

    def distrust_cache(self) -> None:
        """A launch had no answer: its pod may come to be until ``settle_s`` have passed."""
        self._distrusted_until = self._clock() + self._settings.settle_s

    def close(self) -> None:
        """Ends the watch."""
        self._closed = True
        if self._watch is not None:
            self._watch.close(wait=True)

    def _instance(self, known: CachedPod, now: float) -> Instance:
        return status.instance_of_pod(known.pod, self._name, self._settings, now, known.pull, ran=known.ran)

    def _is_good(self, began: float) -> bool:
        listed, now = self._listed, self._clock()
        if listed is None or listed <= self._dropped:
            return False
        if listed > began:
            return True  # Another thread's list was asked for after this one was.
        young = now - listed < self._settings.relist_s
        return young and now >= self._distrusted_until and self._watch is not None and self._watch.alive

    def _list(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._cache.begin_list()
        began, self._listed = self._clock(), None
        path, query = self._calls.path_of("pods"), {"labelSelector": labels.claim_selector(self._cluster)}
        pods, said = self._calls.list_objects(path, query, what="list pods")
        at = resource_version({"metadata": {"resourceVersion": said}})
        for pod in pods:
            resource_version(pod)
        self._cache.apply_list([pod for pod in pods if labels.belongs_to_cluster(pod, self._cluster)], at)
        self._listed = began
        if self._settings.relist_s:
            self._watch = PodWatch(self._calls, self._cluster, self._cache, at, self._clock, self._pauses)
            if self._closed:
                self._watch.close()
