"""Whether the API server can be reached, who burstd is to it, with which rights, and whether the namespace is there."""

from __future__ import annotations

from collections.abc import Generator

from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotAllowed, NotFound, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.openshift.checks import rights
from providers.openshift.checks.findings import DOC, ROLE, finding_for_error
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import NoSuchApi
from providers.openshift.settings import OpenShiftSettings

_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_OPENSHIFT = "/apis/user.openshift.io/v1/users/~"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_ANONYMOUS = "system:anonymous"


def check_server(settings: OpenShiftSettings, calls: OpenShiftCalls) -> Generator[Finding, None, frozenset[str] | None]:
    """Returns the groups of API that the cluster has; None: nothing else can be looked at."""
    try:
        version = calls.request_json("GET", "/version", what="read the API server's version")
        listed = calls.request_json("GET", "/apis", what="see which kinds of things the cluster has")
    except CloudUnavailable as error:
        yield Finding(
            "API server", False, str(error),
            "let burstd's user reach the server of the kubeconfig (proxy-url there where there is a proxy; "
            "certificate-authority where the certificate is the site's own)",
        )  # fmt: skip
        return None
    except NotAllowed as error:
        yield Finding(
            "account", False, str(error), f"give the kubeconfig's context another user ({DOC}, Account)"
        )  # fmt: skip
        return None
    except ProviderError as error:
        yield Finding(
            "account", False, str(error),
            f"set kubeconfig and context so that 'oc get --raw /apis' works as burstd's user ({DOC}, Account)",
        )  # fmt: skip
        return None
    groups = frozenset(group["name"] for group in listed.get("groups") or ())
    kind = "OpenShift" if rights.ROUTES in groups else "plain Kubernetes"
    yield Finding("API server", True, f"{kind}, {version.get('gitVersion', 'of unknown version')}")
    return groups if (yield from _account(settings, calls)) else None


def _account(settings: OpenShiftSettings, calls: OpenShiftCalls) -> Generator[Finding, None, bool]:
    """Whether there is one that may be more than anybody."""
    try:
        name = _name(calls)
        powerful = rights.is_cluster_admin(calls)
    except ProviderError as error:
        yield finding_for_error("account", error, "look at 'oc whoami'")
        return not isinstance(error, AuthFailed)
    if name == _ANONYMOUS:
        yield Finding(
            "account", False, "the API server takes burstd for nobody in particular",
            f"give the kubeconfig's context a user with a token or a certificate ({DOC}, Account)",
        )  # fmt: skip
        return False
    summary = f"{name or 'accepted; this API server does not say its name'}, for namespace {settings.namespace}"
    if powerful:
        yield Finding(
            "account", None, f"{summary}: it may do everything in the whole cluster",
            f"use the account of {ROLE}, which may do what burstd needs and nothing else ({DOC}, Account)",
        )  # fmt: skip
    else:
        yield Finding("account", True, summary)
    return True


def _name(calls: OpenShiftCalls) -> str:
    """Kubernetes tells it since 1.28, OpenShift in its own way before that; empty: it does not."""
    what = "ask who burstd is"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = calls.request_json("POST", _REVIEW, body, what=what, changes=False)
        return str(said["status"]["userInfo"]["username"])
    except (NoSuchApi, NotAllowed):
        pass
    try:
        return str(calls.request_json("GET", _OPENSHIFT, what=what)["metadata"]["name"])
    except (NoSuchApi, NotAllowed, NotFound):
        return ""


def check_namespace(settings: OpenShiftSettings, calls: OpenShiftCalls) -> Generator[Finding, None, bool]:
    """Whether it can be that there is one."""
    space = settings.namespace
    subject, remedy = f"namespace {space}", f"make it: oc new-project {space}, or set namespace to another"
    try:
        said = calls.request_json("GET", f"/api/v1/namespaces/{space}", what=f"read namespace {space}")
    except NotAllowed:
        return True  # The finding on this right has said so.
    except (NotFound, BadRequest) as error:
        yield Finding(subject, False, str(error), remedy)
        return False
    except ProviderError as error:
        yield finding_for_error(subject, error, remedy)
        return True
    phase = said.get("status", {}).get("phase", "")
    if phase == "Terminating":
        yield Finding(subject, False, "is being deleted", f"wait until it is gone, then {remedy}")
        return False
    level = (said["metadata"].get("labels") or {}).get(_ENFORCE, "")
    summary = "is there" + (f"; it enforces the Pod Security Standard {level}" if level else "")
    if level == "restricted" and settings.security == "root":
        yield Finding(
            subject, False, f"{summary}, which lets no pod run as root",
            f"set security = 'restricted', or: oc label --overwrite namespace {space} {_ENFORCE}=baseline",
        )  # fmt: skip
    else:
        yield Finding(subject, True, summary)
    return True
