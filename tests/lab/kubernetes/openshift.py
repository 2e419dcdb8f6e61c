"""What makes an OpenShift of the lab's Kubernetes: admission by security context constraints, hosts of routes.

``openshift.py WORDS`` (JSON: server, ca, token, host, port, cert, key) answers the API server's admission reviews, see
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/, and is the router that
admits routes. It lasts until it is ended.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.lab.kubernetes import scc
from tests.lab.kubernetes.api import Api, Refused

PORT = 6444
DOMAIN = "apps.lab.test"
"""Where routes get their hosts from the cluster."""
NAME = "openshift.lab.test"
_SCCS = "/apis/security.openshift.io/v1/securitycontextconstraints"
_ROUTES = "/apis/route.openshift.io/v1"
_EXEMPT = ("default", "kube-", "openshift-")
_PAUSE_S = 0.2
_USED_S = 5.0
"""So long a right to use constraints is not asked for again."""


class Refusal(Exception):
    """Of a request: the API's answer."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {"code": code, "reason": reason, "message": message}


class Admission:
    """Decides on requests; for any thread."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._namespaces = itertools.count()
        self._used: dict[tuple[str, ...], float] = {}

    def review(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Changes of the object, as a JSON patch. Raises Refusal."""
        made = request["object"]
        match request["resource"]["resource"]:
            case "namespaces":
                ours = scc.namespace_annotations(next(self._namespaces))
                return [_annotations(made, {**ours, **made["metadata"].get("annotations", {})})]
            case "pods" if not request["namespace"].startswith(_EXEMPT):
                return self._pod(request, made)
            case "routes":
                return self._route(request, made)
            case _:
                return []

    def _pod(self, request: Mapping[str, Any], pod: dict[str, Any]) -> list[dict[str, Any]]:
        namespace, spec = request["namespace"], pod["spec"]
        place = scc.Place.from_annotations(self._api.get(f"/api/v1/namespaces/{namespace}")["metadata"]["annotations"])
        name = spec.get("serviceAccountName") or "default"
        account = {
            "username": f"system:serviceaccount:{namespace}:{name}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        }
        users = (request["userInfo"], account)
        constraints = self._api.get(_SCCS)["items"]
        try:
            made = scc.admit(pod, constraints, place, lambda one: any(self._may_use(u, one, namespace) for u in users))
        except scc.Denied as denied:
            called = request.get("name") or pod["metadata"].get("generateName", "")
            raise Refusal(403, "Forbidden", f'pods "{called}" is forbidden: {denied}') from denied
        return [
            {"op": "replace", "path": "/spec", "value": made["spec"]},
            _annotations(pod, made["metadata"]["annotations"]),
        ]

    def _may_use(self, user: Mapping[str, Any], one: Mapping[str, Any], namespace: str) -> bool:
        if user["username"] in (one.get("users") or ()) or set(user["groups"]) & set(one.get("groups") or ()):
            return True
        name = one["metadata"]["name"]
        key = (user["username"], namespace, name)
        if time.monotonic() - self._used.get(key, float("-inf")) < _USED_S:
            return True
        what = {"group": "security.openshift.io", "resource": "securitycontextconstraints", "name": name}
        allowed = self._allowed(user, {**what, "verb": "use", "namespace": namespace})
        if allowed:
            self._used[key] = time.monotonic()
        return allowed

    def _route(self, request: Mapping[str, Any], route: dict[str, Any]) -> list[dict[str, Any]]:
        spec, name = dict(route["spec"]), route["metadata"]["name"]
        annotations = dict(route["metadata"].get("annotations", {}))
        if spec.get("host"):
            what = {"group": "route.openshift.io", "resource": "routes", "subresource": "custom-host", "verb": "create"}
            if not self._allowed(request["userInfo"], {**what, "namespace": request["namespace"]}):
                why = "spec.host: Forbidden: you do not have permission to set the host field of the route"
                raise Refusal(422, "Invalid", f'Route.route.openshift.io "{name}" is invalid: {why}')
        else:
            spec["host"] = f"{name}-{request['namespace']}.{DOMAIN}"
            annotations["openshift.io/host.generated"] = "true"
        spec = {"wildcardPolicy": "None", **spec, "to": {"weight": 100, **spec["to"]}}
        return [{"op": "replace", "path": "/spec", "value": spec}, _annotations(route, annotations)]

    def _allowed(self, user: Mapping[str, Any], what: Mapping[str, str]) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user["username"], "groups": user["groups"], "resourceAttributes": what},
        }
        found = self._api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(found["status"]["allowed"])


def _annotations(thing: Mapping[str, Any], annotations: Mapping[str, str]) -> dict[str, Any]:
    word = "replace" if "annotations" in thing["metadata"] else "add"
    return {"op": word, "path": "/metadata/annotations", "value": dict(annotations)}


def configuration(host: str, ca: bytes) -> dict[str, Any]:
    """What tells the API server to ask us."""
    rule = {"operations": ["CREATE"], "apiVersions": ["v1"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": NAME,
                "clientConfig": {"url": f"https://{host}:{PORT}/", "caBundle": base64.b64encode(ca).decode()},
                "rules": [
                    {**rule, "apiGroups": [""], "resources": ["pods", "namespaces"]},
                    {**rule, "apiGroups": ["route.openshift.io"], "resources": ["routes"]},
                ],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
            }
        ],
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one packet, else the client's kernel waits for the second.
    wbufsize = -1

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        answer: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        try:
            changes = self.server.admission.review(request)
        except Refusal as refusal:
            answer |= {"allowed": False, "status": refusal.status}
        else:
            if changes:
                patch = base64.b64encode(json.dumps(changes).encode()).decode()
                answer |= {"patchType": "JSONPatch", "patch": patch}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing of what goes well."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, words: Mapping[str, Any], admission: Admission) -> None:
        self.admission = admission
        super().__init__((words["host"], words["port"]), _Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(words["cert"], words["key"])
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)


def _admit_routes(api: Api) -> None:
    """As the router does: says that it serves each route. Does not return."""
    while True:
        try:
            found = api.get(f"{_ROUTES}/routes")
            for route in found["items"]:
                _admit_route(api, route)
            for event in api.events(f"{_ROUTES}/routes", found["metadata"]["resourceVersion"], lambda _stream: None):
                if event["type"] == "ERROR":
                    break
                if event["type"] == "ADDED":
                    _admit_route(api, event["object"])
        except (httpx.HTTPError, Refused):
            time.sleep(_PAUSE_S)


def _admit_route(api: Api, route: Mapping[str, Any]) -> None:
    meta = route["metadata"]
    admitted = {
        "host": route["spec"].get("host", ""),
        "routerName": "default",
        "routerCanonicalHostname": f"router-default.{DOMAIN}",
        "conditions": [{"type": "Admitted", "status": "True", "lastTransitionTime": meta["creationTimestamp"]}],
    }
    if not route.get("status", {}).get("ingress"):
        path = f"{_ROUTES}/namespaces/{meta['namespace']}/routes/{meta['name']}/status"
        api.patch(path, {"status": {"ingress": [admitted]}})


def main() -> None:
    """Serves."""
    words = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    api = Api(words["server"], Path(words["ca"]), words["token"])
    threading.Thread(target=_admit_routes, args=(api,), daemon=True).start()
    _Server(words, Admission(api)).serve_forever()


if __name__ == "__main__":
    main()
