"""What bears the cluster's mark and is no machine: dead pods, volumes, and the ways in of notebooks.

A pod whose containers have ended is told both as an instance that has ended and as a leftover, since somebody must
remove it. Nothing is removed that is not looked at again first, by its name, and deleted by its uid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from burstd.domain.cloud.instance import Leftover
from burstd.domain.errors import NotAllowed, NotFound, ProviderError
from providers.batch_calls import BatchCall
from providers.leftovers import remove_leftovers
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import KubernetesConflict, NoSuchApi
from providers.openshift.pods import status
from providers.openshift.pods.listing import PodListing
from providers.openshift.settings import OpenShiftSettings

POD, VOLUME, SERVICE, ROUTE = "pod", "volume", "service", "route"
ROUTES_API = "route.openshift.io/v1"
_API_RESOURCES = {
    ROUTE: ("routes", ROUTES_API),
    SERVICE: ("services", "v1"),
    VOLUME: ("persistentvolumeclaims", "v1"),
    POD: ("pods", "v1"),
}
"""Kind of leftover: what the API calls it, and which; in the order in which they go."""
KubeObject = Mapping[str, Any]


class OpenShiftLeftovers:
    """Of one cluster."""

    def __init__(
        self, name: str, cluster: str, settings: OpenShiftSettings, calls: OpenShiftCalls, listing: PodListing
    ) -> None:
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._listing = listing

    def list_leftovers(self) -> Iterator[Leftover]:
        """Volumes, services and routes with the pod of their claim; dead pods."""
        things = [(kind, thing) for kind in (ROUTE, SERVICE, VOLUME) for thing in self._all(kind)]
        # Last, so that a pod is in the list whose volume is.
        self._listing.refresh()
        pods = self._listing.cached_pods()
        users = {labels.claim_of(pod): labels.name_of(pod) for pod in pods}
        for kind, thing in things:
            yield self._left(kind, thing, users.get(labels.claim_of(thing), ""))
        for pod in pods:
            if status.is_dead(pod):
                yield self._left(POD, pod, "")

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """Looks at all of them first. What is in use by now is left alone.

        Raises BadRequest, and removes nothing, where one is not ours; else the first error when all were tried.
        """
        mark = f"mark of cluster {self._cluster}"
        remove_leftovers(leftovers, _API_RESOURCES, "Kubernetes", mark, self._named, self._strange, self._delete_spare)

    def _named(self, kind: str, names: Sequence[str]) -> list[KubeObject]:
        """Those that are there, whoever's they are."""
        found: list[KubeObject] = []
        for one in BatchCall(self._settings.side_by_side).call_each(partial(self._find, kind), names):
            if isinstance(one, ProviderError):
                raise one
            found += [] if one is None else [one]
        return found

    def _strange(self, _: str, thing: KubeObject) -> str:
        return "" if labels.belongs_to_cluster(thing, self._cluster) else labels.name_of(thing)

    def _delete_spare(self, kind: str, things: Sequence[KubeObject]) -> Sequence[object]:
        """Those that no pod needs."""
        self._listing.refresh()
        used = {labels.claim_of(pod) for pod in self._listing.cached_pods() if not status.is_dead(pod)}
        spare = [one for one in things if (status.is_dead(one) if kind == POD else labels.claim_of(one) not in used)]
        return BatchCall(self._settings.side_by_side).call_each(partial(self._delete, kind), spare)

    def _left(self, kind: str, thing: KubeObject, user: str) -> Leftover:
        return Leftover(kind, labels.name_of(thing), self._name, labels.claim_of(thing), user)

    def _all(self, kind: str) -> list[KubeObject]:
        """Ours."""
        query = {"labelSelector": labels.claim_selector(self._cluster)}
        try:
            listed, _ = self._calls.list_objects(self._path(kind), query, what=f"list {_API_RESOURCES[kind][0]}")
        except NoSuchApi:
            if kind != ROUTE:
                raise
            return []
        except NotAllowed:
            # Without the right there are none of ours: a site that wants no notebooks may leave it out of the Role.
            if kind not in (ROUTE, SERVICE):
                raise
            return []
        return [one for one in listed if labels.belongs_to_cluster(one, self._cluster)]

    def _find(self, kind: str, name: str) -> KubeObject | None:
        try:
            return self._calls.request_json("GET", self._path(kind, name), what=f"look at {kind} {name}")
        except (NotFound, NoSuchApi):
            return None

    def _delete(self, kind: str, thing: KubeObject) -> None:
        name = labels.name_of(thing)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": labels.uid_of(thing)}}
        try:
            self._calls.request_json("DELETE", self._path(kind, name), options, what=f"delete {kind} {name}")
        except (NotFound, KubernetesConflict):
            return  # That one is gone; another of its name is not what was asked for.

    def _path(self, kind: str, name: str = "") -> str:
        plural, api = _API_RESOURCES[kind]
        return self._calls.path_of(plural, name, api=api)
