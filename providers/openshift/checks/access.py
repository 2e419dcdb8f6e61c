"""Whether the API server can be reached, who burstd is to it, with which rights, and whether the namespace is there."""

from __future__ import annotations

from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotAllowed, NotFound, ProviderError
from providers.checks import Verdict, bad, good, unclear
from providers.openshift.checks import rights
from providers.openshift.checks.namespace import DOC, ROLE, CheckedNamespace, error_verdict
from providers.openshift.errors import NoSuchApi

_ENFORCE = "pod-security.kubernetes.io/enforce"


def judge_server(at: CheckedNamespace) -> Verdict:
    """Which groups of API the cluster has."""
    subject = "account"
    try:
        version = at.calls.request_json("GET", "/version", what="read the API server's version")
        listed = at.calls.request_json("GET", "/apis", what="see which kinds of things the cluster has")
    except CloudUnavailable as error:
        subject, text = "API server", str(error)
        remedy = (
            "let burstd's user reach the server of the kubeconfig (proxy-url there where there is a proxy; "
            "certificate-authority where the certificate is the site's own)"
        )
    except NotAllowed as error:
        text, remedy = str(error), f"give the kubeconfig's context another user ({DOC}, Account)"
    except ProviderError as error:
        text = str(error)
        remedy = f"set kubeconfig and context so that 'oc get --raw /apis' works as burstd's user ({DOC}, Account)"
    else:
        at.groups = frozenset(group["name"] for group in listed.get("groups") or ())
        kind = "OpenShift" if rights.ROUTES in at.groups else "plain Kubernetes"
        return good(f"{kind}, {version.get('gitVersion', 'of unknown version')}")
    return bad(text, remedy, subject, fatal=True)


def judge_account(at: CheckedNamespace) -> Verdict:
    """Whether there is one that may be more than anybody, and not everything."""
    try:
        name = _name(at)
        powerful = rights.is_allowed(at.calls, verb="*", group="*", resource="*")
    except AuthFailed:
        raise
    except ProviderError as error:
        return error_verdict(error, "look at 'oc whoami'")
    if name == "system:anonymous":
        return bad(
            "the API server takes burstd for nobody in particular",
            f"give the kubeconfig's context a user with a token or a certificate ({DOC}, Account)", fatal=True,
        )  # fmt: skip
    summary = f"{name or 'accepted; this API server does not say its name'}, for namespace {at.settings.namespace}"
    if powerful:
        return unclear(
            f"{summary}: it may do everything in the whole cluster",
            f"use the account of {ROLE}, which may do what burstd needs and nothing else ({DOC}, Account)",
        )
    return good(summary)


def _name(at: CheckedNamespace) -> str:
    """Kubernetes tells it since 1.28, OpenShift in its own way before that; empty: it does not."""
    what, review = "ask who burstd is", "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        said = at.calls.request_json("POST", review, body, what=what, changes=False)
        return str(said["status"]["userInfo"]["username"])
    except (NoSuchApi, NotAllowed):
        pass
    try:
        return str(at.calls.request_json("GET", "/apis/user.openshift.io/v1/users/~", what=what)["metadata"]["name"])
    except (NoSuchApi, NotAllowed, NotFound):
        return ""


def judge_namespace(at: CheckedNamespace, space: str) -> Verdict | None:
    """Whether it can be that there is one."""
    remedy = f"make it: oc new-project {space}, or set namespace to another"
    try:
        said = at.calls.request_json("GET", f"/api/v1/namespaces/{space}", what=f"read namespace {space}")
    except NotAllowed:
        return None  # The finding on this right has said so.
    except (NotFound, BadRequest) as error:
        return bad(str(error), remedy, fatal=True)
    except ProviderError as error:
        return error_verdict(error, remedy)
    if said.get("status", {}).get("phase", "") == "Terminating":
        return bad("is being deleted", f"wait until it is gone, then {remedy}", fatal=True)
    level = (said["metadata"].get("labels") or {}).get(_ENFORCE, "")
    summary = "is there" + (f"; it enforces the Pod Security Standard {level}" if level else "")
    if level == "restricted" and at.settings.security == "root":
        return bad(
            f"{summary}, which lets no pod run as root",
            f"set security = 'restricted', or: oc label --overwrite namespace {space} {_ENFORCE}=baseline",
        )
    return good(summary)
