"""Ends pods. What belongs to one goes with it: each thing names the pod as its owner, and the cluster collects it.

Burstd ends a machine when its job is gone, so little time is given. A pod whose node does not answer stays until the
node confirms, or until it is ended by force; the machine may then still run, cut off from all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from burstd.domain.errors import BadRequest, NotFound, ProviderError
from providers.batch_calls import BatchCall
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import KubernetesConflict
from providers.openshift.pods import status
from providers.openshift.pods.listing import PodListing
from providers.openshift.settings import OpenShiftSettings

_TRIES = 3
_REMEMBERED = 10_000


class PodTerminator:
    """The only one who ends pods that run."""

    def __init__(self, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, listing: PodListing) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._listing = listing
        self._lock = threading.Lock()
        self._asked: dict[str, None] = {}
        """Uids, the latest last."""

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end."""
        batch = BatchCall(self._settings.side_by_side)
        results = batch.call_each(self._terminate_pod, list(dict.fromkeys(instance_ids)))
        for one in results:
            if isinstance(one, ProviderError):
                raise one

    def has_terminated(self, uid: str) -> bool:
        """Whether this process asked for the pod's end."""
        with self._lock:
            return uid in self._asked

    def _terminate_pod(self, name: str) -> None:
        pod: Any = self._listing.find(name)
        if pod is not None and self._is_asked_for(pod):
            return
        what = f"end pod {name}"
        for _ in range(_TRIES):
            try:
                pod = pod or self._calls.request_json("GET", self._calls.path_of("pods", name), what=what)
                if not labels.belongs_to_cluster(pod, self._cluster):
                    raise BadRequest(f"pod {name} does not bear the mark of cluster {self._cluster}")
                self._remember(labels.uid_of(pod))
                options = {
                    "gracePeriodSeconds": 0 if self._is_stuck(pod) else status.OUR_GRACE_S,
                    "propagationPolicy": "Background",
                    "preconditions": {"uid": labels.uid_of(pod)},
                }
                self._calls.request_json("DELETE", self._calls.path_of("pods", name), options, what=what)
            except NotFound:
                return
            except KubernetesConflict as error:
                # It was another pod of that name, which is gone by now.
                pod, failed = None, error
            else:
                return
        raise failed

    def _is_asked_for(self, pod: Any) -> bool:
        """It goes already, within the time that it would be given here. That never changes for a pod."""
        grace = pod["metadata"].get("deletionGracePeriodSeconds")
        going = bool(pod["metadata"].get("deletionTimestamp")) and grace is not None and grace <= status.OUR_GRACE_S
        return going and (grace == 0 or not self._is_stuck(pod))

    def _is_stuck(self, pod: Any) -> bool:
        until = status.parse_time(pod["metadata"].get("deletionTimestamp"))
        return until is not None and self._calls.server_time() - until >= self._settings.force_after_s

    def _remember(self, uid: str) -> None:
        with self._lock:
            self._asked[uid] = None
            while len(self._asked) > _REMEMBERED:
                del self._asked[next(iter(self._asked))]
