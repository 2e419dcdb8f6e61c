"""Which rights burstd's account has in the namespace, as the API server itself tells.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from providers.checks import Verdict, good
from providers.openshift.checks.namespace import NODES, ROLE, CheckedNamespace
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.settings import OpenShiftSettings

IMAGES, QUOTAS, ROUTES = "image.openshift.io", "quota.openshift.io", "route.openshift.io"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """What the account must be allowed to do with things of one kind, ``resource/subresource`` of an API ``group``."""

    resource: str
    verbs: tuple[str, ...]
    without: str
    """What is so where it lacks."""
    group: str = ""
    needed: bool = True
    """Whether nothing can be launched, or surely ended, without it."""
    spare: tuple[str, ...] = ()
    """Verbs that a site may well keep to itself."""
    everywhere: bool = False
    """In all namespaces, or of things that are in none."""


RIGHTS = (
    Right("pods", ("create", "delete", "get", "list", "watch"), "no machine can be made, seen or ended"),
    Right("pods/exec", ("create", "get"), "no machine can be entered"),
    Right("pods/portforward", ("create", "get"), "no port of a machine can be reached"),
    Right(
        "persistentvolumeclaims", ("create", "delete", "get", "list", "patch"), "scratch is neither made nor cleared up"
    ),
    Right(
        "services", ("create", "delete", "get", "list"), "no notebook gets an address, or it is not cleared up",
        spare=("create",),
    ),
    Right(
        "routes", ("create", "delete", "get", "list"), "no notebook gets a web address, or it is not cleared up",
        ROUTES, spare=("create",),
    ),
    Right("routes/custom-host", ("create",), "hosts below route_domain cannot be chosen", ROUTES),
    Right("imagestreams", ("get",), "the newest image is not known", IMAGES),
    Right("resourcequotas", ("list",), "sizes that no quota allows are offered all the same", needed=False),
    Right("limitranges", ("list",), "sizes that no LimitRange allows are offered all the same", needed=False),
    Right(
        "appliedclusterresourcequotas", ("list",), "sizes that no quota over several projects allows are offered",
        QUOTAS, needed=False,
    ),
    Right("namespaces", ("get",), "whether it is there, and which pods its labels allow, is not known", needed=False),
    Right("nodes", ("list",), "sizes are offered that no node may hold", needed=False, everywhere=True),
    Right("pods", ("list",), "what is free now is not known", needed=False, everywhere=True),
    Right(
        "storageclasses", ("list",), "whether there is a class for disks is not known", "storage.k8s.io",
        needed=False, everywhere=True,
    ),
)  # fmt: skip
"""All that ``ROLE`` gives, and then what ``NODES`` gives."""


def needed_rights(settings: OpenShiftSettings, groups: frozenset[str], images: Sequence[str]) -> Iterator[Right]:
    """Those that these settings need on a cluster with these API groups."""
    unused = set()
    if not settings.route_domain:
        unused.add("routes/custom-host")
    if not any(word.startswith("imagestream:") for word in images):
        unused.add("imagestreams")
    if not settings.storage_classes and not settings.mounts:
        unused.add("storageclasses")
    if QUOTAS not in groups:
        unused.add("appliedclusterresourcequotas")
    # Routes are listed in any case: without the right that is refused even where there are none.
    return (right for right in RIGHTS if right.resource not in unused)


def judge_rights(at: CheckedNamespace) -> Iterator[Verdict]:
    """One call for each right and verb. What is allowed is one finding, what lacks one each."""
    allowed = []
    for right in needed_rights(at.settings, at.groups, at.images):
        resource, _, part = right.resource.partition("/")
        words = {"group": right.group, "resource": resource, "subresource": part}
        words |= {} if right.everywhere else {"namespace": at.settings.namespace}
        lacking = [verb for verb in right.verbs if not is_allowed(at.calls, verb=verb, **words)]
        if lacking:
            yield _missing(right, lacking)
        else:
            allowed.append(f"{right.resource}{' everywhere' if right.everywhere else ''}")
    if allowed:
        yield good(f"allowed: {', '.join(allowed)}")


def _missing(right: Right, lacking: Sequence[str]) -> Verdict:
    where, anywhere = (" everywhere", "in all namespaces ") if right.everywhere else ("", "")
    file = NODES if right.everywhere else ROLE
    of_group = f" of {right.group}" if right.group else ""
    return Verdict(
        False if right.needed and not set(lacking) <= set(right.spare) else None,
        f"not allowed: {', '.join(lacking)} {right.resource}: {right.without}",
        f"give burstd's account the rule on {right.resource}{of_group} {anywhere}as in {file}: oc apply -f {file}",
        f"right {right.resource}{where}",
    )


def is_allowed(calls: OpenShiftCalls, **attributes: str) -> bool:
    """Whether the account may do this: ``verb`` on a ``resource`` of that ``group``, ``namespace`` and ``name``."""
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }  # fmt: skip
    said = calls.request_json("POST", _REVIEWS, body, what="ask which rights burstd's account has", changes=False)
    return bool(said["status"].get("allowed"))
