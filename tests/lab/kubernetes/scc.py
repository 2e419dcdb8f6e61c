"""OpenShift's security context constraints: what the admission of a pod fills in and refuses, in its words. Pure.

https://docs.openshift.com/container-platform/4.14/authentication/managing-security-context-constraints.html has what
they mean; the messages are those of sccmatching and sccadmission in openshift/apiserver-library-go.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Pod = dict[str, Any]
Constraint = Mapping[str, Any]
UID_RANGE, GROUPS = "openshift.io/sa.scc.uid-range", "openshift.io/sa.scc.supplemental-groups"
MCS = "openshift.io/sa.scc.mcs"
CHOSEN = "openshift.io/scc"
"""Annotations: of a namespace, and the one that says which constraints a pod was admitted by."""
_SIZE = 10000
_FIRST = 1000660000


class Denied(Exception):
    """No constraints allow the pod; the text is OpenShift's."""


def namespace_annotations(number: int) -> dict[str, str]:
    """What OpenShift gives the ``number``th namespace."""
    block = f"{_FIRST + number * _SIZE}/{_SIZE}"
    return {UID_RANGE: block, GROUPS: block, MCS: f"s0:c{26 + number // 25},c{5 * (number % 25)}"}


@dataclass(frozen=True)
class Place:
    """A namespace's own range of user ids, ends included, and its SELinux level."""

    low: int
    high: int
    level: str

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str]) -> Place:
        """From the namespace's annotations."""
        low, _, size = annotations[UID_RANGE].partition("/")
        return cls(int(low), int(low) + int(size) - 1, annotations.get(MCS, "s0"))


def admit(pod: Pod, constraints: Sequence[Constraint], place: Place, usable: Callable[[Constraint], bool]) -> Pod:
    """The pod as the first constraints that allow it complete it. Raises Denied."""
    said: list[str] = []
    for one in sorted(constraints, key=_rank):
        name = one["metadata"]["name"]
        if not usable(one):
            said.append(f'provider "{name}": Forbidden: not usable by user or serviceaccount')
            continue
        made = _complete(pod, one, place)
        wrong = _wrong(made, one, place)
        if not wrong:
            made["metadata"].setdefault("annotations", {})[CHOSEN] = name
            return made
        said += [f"provider {name}: {text}" for text in wrong]
    raise Denied(f"unable to validate against any security context constraint: [{', '.join(said)}]")


def _rank(one: Constraint) -> tuple[int, int, str]:
    """Those with the highest priority first, then the strictest, then by name."""
    user = ("MustRunAs", "MustRunAsRange", "MustRunAsNonRoot", "RunAsAny").index(one["runAsUser"]["type"])
    laxness = 100 * bool(one["allowPrivilegedContainer"]) + 10 * bool(one["allowHostDirVolumePlugin"]) + 2 * user
    laxness += "ALL" not in (one.get("requiredDropCapabilities") or ())
    return -(one.get("priority") or 0), laxness, one["metadata"]["name"]


def _uids(one: Constraint, place: Place) -> tuple[int, int] | None:
    """Which users it allows, ends included; None: any."""
    rule = one["runAsUser"]
    match rule["type"]:
        case "MustRunAs":
            return rule["uid"], rule["uid"]
        case "MustRunAsRange":
            return rule.get("uidRangeMin", place.low), rule.get("uidRangeMax", place.high)
        case _:
            return None


def _complete(pod: Pod, one: Constraint, place: Place) -> Pod:
    made = copy.deepcopy(pod)
    whole = made["spec"].setdefault("securityContext", {})
    if one["fsGroup"]["type"] == "MustRunAs":
        whole.setdefault("fsGroup", place.low)
    if one["seLinuxContext"]["type"] == "MustRunAs":
        whole.setdefault("seLinuxOptions", {"level": place.level})
    if (one.get("seccompProfiles") or [""])[0] == "runtime/default":
        whole.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    uids = _uids(one, place)
    for _, container in _containers(made):
        own = container.setdefault("securityContext", {})
        if uids is not None and "runAsUser" not in own and "runAsUser" not in whole:
            own["runAsUser"] = uids[0]
        if one["runAsUser"]["type"] in {"MustRunAsRange", "MustRunAsNonRoot"} and "runAsNonRoot" not in whole:
            own.setdefault("runAsNonRoot", True)
        if not one.get("allowPrivilegeEscalation", True) or one.get("defaultAllowPrivilegeEscalation") is False:
            own.setdefault("allowPrivilegeEscalation", False)
        drop = one.get("requiredDropCapabilities") or []
        if drop:
            capabilities = own.setdefault("capabilities", {})
            capabilities["drop"] = list(dict.fromkeys([*capabilities.get("drop", ()), *drop]))
        if one["readOnlyRootFilesystem"]:
            own.setdefault("readOnlyRootFilesystem", True)
    return made


def _wrong(pod: Pod, one: Constraint, place: Place) -> list[str]:
    spec, whole = pod["spec"], pod["spec"]["securityContext"]
    found = []
    for key, allowed, what in (
        ("hostNetwork", "allowHostNetwork", "Host network"),
        ("hostPID", "allowHostPID", "Host PID"),
        ("hostIPC", "allowHostIPC", "Host IPC"),
    ):
        if spec.get(key) and not one[allowed]:
            found.append(f".spec.securityContext.{key}: Invalid value: true: {what} is not allowed to be used")
    group = whole.get("fsGroup")
    if one["fsGroup"]["type"] == "MustRunAs" and not place.low <= group <= place.high:
        found.append(
            f".spec.securityContext.fsGroup: Invalid value: []int64{{{group}}}: {group} is not an allowed group"
        )
    kinds = one.get("volumes") or ()
    for number, volume in enumerate(spec.get("volumes", ())):
        kind = next((key for key in volume if key != "name"), "emptyDir")
        if "*" not in kinds and kind not in kinds:
            found.append(f'spec.volumes[{number}]: Invalid value: "{kind}": {kind} volumes are not allowed to be used')
    for path, container in _containers(pod):
        found += _wrong_container(path, container["securityContext"], whole, one, place)
    return found


def _wrong_container(
    path: str, own: Mapping[str, Any], whole: Mapping[str, Any], one: Constraint, place: Place
) -> list[str]:
    found = []
    uid, uids = own.get("runAsUser", whole.get("runAsUser")), _uids(one, place)
    if uids is not None and not uids[0] <= uid <= uids[1]:
        found.append(f"{path}.runAsUser: Invalid value: {uid}: must be in the ranges: [{uids[0]}, {uids[1]}]")
    if one["runAsUser"]["type"] == "MustRunAsNonRoot" and uid == 0:
        found.append(f"{path}.runAsUser: Invalid value: 0: running with the root UID is forbidden")
    if own.get("privileged") and not one["allowPrivilegedContainer"]:
        found.append(f"{path}.privileged: Invalid value: true: Privileged containers are not allowed")
    if own.get("allowPrivilegeEscalation", True) and not one.get("allowPrivilegeEscalation", True):
        why = "Allowing privilege escalation for containers is not allowed"
        found.append(f"{path}.allowPrivilegeEscalation: Invalid value: true: {why}")
    allowed = {*(one.get("allowedCapabilities") or ()), *(one.get("defaultAddCapabilities") or ())}
    found += [
        f'{path}.capabilities.add: Invalid value: "{name}": capability may not be added'
        for name in own.get("capabilities", {}).get("add", ())
        if "*" not in allowed and name not in allowed
    ]
    profile = own.get("seccompProfile", whole.get("seccompProfile"))
    profiles = one.get("seccompProfiles") or ()
    if profile is not None and "*" not in profiles and _profile(profile) not in profiles:
        found.append(f"{path}.seccomp: Forbidden: {_profile(profile)} is not an allowed seccomp profile")
    return found


def _profile(profile: Mapping[str, str]) -> str:
    names = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
    return names.get(profile["type"]) or f"localhost/{profile.get('localhostProfile', '')}"


def _containers(pod: Pod) -> list[tuple[str, dict[str, Any]]]:
    kinds = ("initContainers", "containers")
    return [(f".{kind}[{n}]", one) for kind in kinds for n, one in enumerate(pod["spec"].get(kind, ()))]


_VOLUMES = ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
_ANY, _MUST = {"type": "RunAsAny"}, {"type": "MustRunAs"}


def _constraint(name: str, user: str, **words: Any) -> dict[str, Any]:
    host = ("DirVolumePlugin", "IPC", "Network", "PID", "Ports")
    return {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": name},
        **{f"allowHost{what}": False for what in host},
        "allowPrivilegedContainer": False,
        "allowPrivilegeEscalation": True,
        "readOnlyRootFilesystem": False,
        "runAsUser": {"type": user},
        "seLinuxContext": _MUST,
        "fsGroup": _MUST,
        "supplementalGroups": _ANY,
        "volumes": _VOLUMES,
        "users": [],
        "groups": [],
        **words,
    }


_V2 = {
    "allowPrivilegeEscalation": False, "requiredDropCapabilities": ["ALL"],
    "allowedCapabilities": ["NET_BIND_SERVICE"], "seccompProfiles": ["runtime/default"],
}  # fmt: skip
_DROPS = ["KILL", "MKNOD", "SETUID", "SETGID"]
CONSTRAINTS = (
    # A new cluster gives it to everybody through a role; here its own list does.
    _constraint("restricted-v2", "MustRunAsRange", **_V2, groups=["system:authenticated"]),
    _constraint("restricted", "MustRunAsRange", requiredDropCapabilities=_DROPS),
    _constraint("nonroot-v2", "MustRunAsNonRoot", **_V2, fsGroup=_ANY),
    _constraint("anyuid", "RunAsAny", priority=10, requiredDropCapabilities=["MKNOD"], fsGroup=_ANY),
    _constraint(
        "privileged", "RunAsAny", allowPrivilegedContainer=True, allowedCapabilities=["*"], seccompProfiles=["*"],
        volumes=["*"], seLinuxContext=_ANY, fsGroup=_ANY,
        **{f"allowHost{what}": True for what in ("DirVolumePlugin", "IPC", "Network", "PID", "Ports")},
    ),
)  # fmt: skip
"""Those of a new cluster that burst nodes may meet."""
