"""Routes to ports of pods: for each a Service that selects the one pod, and OpenShift's Route to it.

The Route is the record: what burstd knows of one is read from its labels. Both are owned by the pod, so that Kubernetes
removes them with it whatever becomes of burstd. https://docs.openshift.com/container-platform/4.14/networking/routes/
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import BadRequest, NotFound
from burstd.domain.plugins.provider import Route
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import KubernetesAlreadyExists, NoSuchApi

JOB = "burstd-job"
"""Label; what a label may not hold is in it as ``.``, which no job's id has."""
PORT = "burstd-port"
_API = "route.openshift.io/v1"
_NAMED = "job"
"""Name of the Service's port."""
KubeObject = dict[str, Any]


class PodRoutes:
    """The provider's ability Routes. ``domain``: hosts are made below it; empty: the router chooses."""

    def __init__(self, calls: OpenShiftCalls, cluster: str, domain: str) -> None:
        self._calls = calls
        self._cluster = cluster
        self._domain = domain

    def open_route(self, instance_id: str, job_id: str, port: int) -> Route:
        """Makes a Service and a Route."""
        pod = self._calls.request_json(
            "GET", self._calls.path_of("pods", instance_id), what=f"look at pod {instance_id}"
        )
        if not labels.belongs_to_cluster(pod, self._cluster):
            raise NotFound(f"pod {instance_id} is not one of cluster {self._cluster}")
        name = self._name(instance_id, job_id, port)
        # The Route first: where the cluster has none, no Service is made for it.
        route = self._make("routes", _route(name, self._metadata(pod, job_id, port), self._domain), _API)
        self._make("services", _service(name, self._metadata(pod, job_id, port), labels.claim_of(pod), port), "v1")
        return Route(job_id, port, instance_id, _url(route))

    def routes(self) -> Sequence[Route]:
        """The cluster's Routes."""
        path = self._calls.path_of("routes", api=_API)
        try:
            found = list(self._calls.pages(path, {"labelSelector": f"{TAG_CLUSTER}={self._cluster},{JOB}"},
                                           what="list Routes"))  # fmt: skip
        except NoSuchApi:
            return ()
        return tuple(
            made for one in found if labels.belongs_to_cluster(one, self._cluster) and (made := _parse_route(one))
        )

    def close_routes(self, routes: Sequence[Route]) -> None:
        """Deletes Services and Routes. The Service goes first: as long as the Route is there, the rest is found."""
        for route in routes:
            name = self._name(route.instance_id, route.job_id, route.port)
            for kind, api in (("services", "v1"), ("routes", _API)):
                with contextlib.suppress(NotFound, NoSuchApi):
                    self._calls.request_json(
                        "DELETE", self._calls.path_of(kind, name, api=api), what=f"remove {kind[:-1]} {name}"
                    )

    def _make(self, kind: str, thing: KubeObject, api: str) -> KubeObject:
        """What is there under its name by now."""
        name = labels.name_of(thing)
        try:
            return self._calls.request_json(
                "POST", self._calls.path_of(kind, api=api), thing, what=f"make {kind[:-1]} {name}"
            )
        except NoSuchApi:
            raise BadRequest(
                "this cluster has no Routes, which are OpenShift's own: burstctl port-forward leads to a job's port"
            ) from None
        except KubernetesAlreadyExists:
            found = self._calls.request_json(
                "GET", self._calls.path_of(kind, name, api=api), what=f"look at {kind[:-1]} {name}"
            )
        if not labels.belongs_to_cluster(found, self._cluster):
            raise BadRequest(f"there is a {kind[:-1]} {name} in {self._calls.namespace} that is not burstd's")
        return found

    def _name(self, instance_id: str, job_id: str, port: int) -> str:
        """The same for the same: short, for OpenShift makes a host's first word of it and of the namespace.

        That word may have 63 letters.
        """
        words = "/".join((self._cluster, instance_id, job_id, str(port)))
        digest = hashlib.sha256(words.encode()).hexdigest()[:8]
        return f"job{re.sub(r'[^0-9]', '-', job_id)}-{port}-{digest}"

    def _metadata(self, pod: KubeObject, job_id: str, port: int) -> KubeObject:
        """The metadata of both, without a name."""
        name = labels.name_of(pod)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": labels.uid_of(pod)}
        own = {JOB: job_id.replace("+", "."), PORT: str(port)}
        return {"labels": labels.claim_labels(self._cluster, labels.claim_of(pod)) | own, "ownerReferences": [owner]}


def _route(name: str, metadata: KubeObject, domain: str) -> KubeObject:
    """TLS ends at the router, with its certificate; plain HTTP is sent on to it."""
    return {
        "apiVersion": _API,
        "kind": "Route",
        "metadata": {**metadata, "name": name},
        "spec": {
            **({"host": f"{name}.{domain}"} if domain else {}),
            "to": {"kind": "Service", "name": name, "weight": 100},
            "port": {"targetPort": _NAMED},
            "tls": {"termination": "edge", "insecureEdgeTerminationPolicy": "Redirect"},
            "wildcardPolicy": "None",
        },
    }


def _service(name: str, metadata: KubeObject, claim: str, port: int) -> KubeObject:
    selector = {TAG_CLUSTER: metadata["labels"][TAG_CLUSTER], TAG_CLAIM: claim}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**metadata, "name": name},
        "spec": {
            "selector": selector,
            "ports": [{"name": _NAMED, "port": port, "targetPort": port, "protocol": "TCP"}],
            "publishNotReadyAddresses": True,
        },
    }


def _parse_route(thing: KubeObject) -> Route | None:
    """None: it bears our labels and was not made by burstd."""
    own_labels = thing["metadata"]["labels"]
    owners = [one["name"] for one in thing["metadata"].get("ownerReferences") or () if one["kind"] == "Pod"]
    port = str(own_labels.get(PORT, ""))
    if not owners or not port.isdigit():
        return None
    return Route(str(own_labels[JOB]).replace(".", "+"), int(port), owners[0], _url(thing))


def _url(route: KubeObject) -> str:
    """Empty: the router has not chosen a host so far."""
    host = (route.get("spec") or {}).get("host", "")
    return f"https://{host}" if host else ""
