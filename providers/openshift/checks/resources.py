"""Whether what pods use is there: images, Secrets, claims, classes of storage."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burstd.domain.errors import NotAllowed, NotFound, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.findings import first_few
from providers.openshift.checks import rights
from providers.openshift.checks.findings import finding_for_error
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.pods.images import ImageVersions
from providers.openshift.settings import OpenShiftSettings, PodMount

_KEY = "munge.key"
_PULLS = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_LATE = "WaitForFirstConsumer"
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}
KubeObject = Mapping[str, Any]


def check_images(settings: OpenShiftSettings, known: ImageVersions, words: Sequence[str]) -> Iterator[Finding]:
    """What each word stands for now."""
    if not words:
        yield Finding("image", False, "neither the provider nor a pool names one", "set image in the provider's table")
    for word in words:
        subject = f"image {word}"
        key = "image of the provider's table" if word == settings.image else "image in the pools' offers"
        try:
            versions = known.versions(word)
        except ProviderError as error:
            yield finding_for_error(subject, error, f"mend {key}")
            continue
        if versions == (word,):
            text = "by its digest" if "@" in word else "each node keeps what it pulled first under this tag"
            yield Finding(subject, True, f"a reference; {text}")
        else:
            yield Finding(subject, True, f"{versions[0]}, and {len(versions) - 1} before it")


def check_secrets(settings: OpenShiftSettings, calls: OpenShiftCalls) -> Iterator[Finding]:
    """The cluster's key, and those for the registry. burstd need not be allowed to read Secrets, and better is not."""
    wanted = [*([settings.key_secret] if settings.key_secret else []), *settings.pull_secrets]
    unseen = []
    for name in dict.fromkeys(wanted):
        try:
            if not rights.is_allowed(calls, settings.namespace, "get", "secrets", name):
                unseen.append(name)
                continue
            said = calls.request_json("GET", calls.path_of("secrets", name), what=f"read Secret {name}")
        except NotFound as error:
            yield Finding(f"secret {name}", False, str(error), _make(name, settings))
        except ProviderError as error:
            yield finding_for_error(f"secret {name}", error, "look at 'oc get secrets'")
        else:
            yield _secret(name, said, settings)
    if unseen:
        yield Finding(
            "secrets", None, f"{first_few(unseen)}: burstd may not read Secrets, which is well, and cannot tell",
            f"see 'oc get secret -n {settings.namespace} {' '.join(unseen)}': without them pods do not start",
        )  # fmt: skip


def _secret(name: str, said: KubeObject, settings: OpenShiftSettings) -> Finding:
    data = said.get("data") or {}
    wrong = ""
    if name == settings.key_secret and _KEY not in data:
        wrong = f"it has {first_few(sorted(data)) or 'nothing'}, and no {_KEY}"
    elif name == settings.key_secret and not 32 <= _size(data[_KEY]) <= 1024:
        wrong = f"its {_KEY} has {_size(data[_KEY])} bytes: munge wants 32 to 1024"
    elif name != settings.key_secret and said.get("type") not in _PULLS:
        wrong = f"of type {said.get('type')}, which is none for a registry"
    return Finding(f"secret {name}", not wrong, wrong or "is there", wrong and _make(name, settings))


def _size(text: str) -> int:
    try:
        return len(base64.b64decode(text, validate=True))
    except binascii.Error:
        return 0


def _make(name: str, settings: OpenShiftSettings) -> str:
    space = settings.namespace
    if name == settings.key_secret:
        return f"make it: oc create secret generic {name} -n {space} --from-file={_KEY}=/etc/munge/{_KEY}"
    return f"make it: oc create secret docker-registry {name} -n {space} --docker-server=... or mend pull_secrets"


def check_storage(settings: OpenShiftSettings, calls: OpenShiftCalls) -> Iterator[Finding]:
    """The class of scratch, and the claims of mounts."""
    if settings.scratch.storage_class is None and not settings.mounts:
        return
    classes: dict[str, KubeObject] | None
    try:
        listed = calls.pages(_CLASSES, what="list classes of storage")
        classes = {one["metadata"]["name"]: one for one in listed}
    except NotAllowed:
        classes = None  # The finding on this right has said so.
    except ProviderError as error:
        yield finding_for_error("storage", error, "look at 'oc get storageclasses'")
        return
    if settings.scratch.storage_class is not None and classes is not None:
        yield _class(settings.scratch.storage_class, classes)
    for mount in settings.mounts:
        yield _claim(calls, settings, mount, classes)


def _class(name: str, classes: Mapping[str, KubeObject]) -> Finding:
    there = first_few(sorted(classes)) or "none"
    if not name:
        default = [
            one for one, said in classes.items() if (said["metadata"].get("annotations") or {}).get(_DEFAULT) == "true"
        ]
        if default:
            return Finding("scratch", True, f"the default class, {default[0]}")
        return Finding(
            "scratch", False, f"no class is the default one; there are: {there}", "set scratch.storage_class"
        )
    if name not in classes:
        return Finding(
            "scratch", False, f"no class of storage is named {name}; there are: {there}",
            "set scratch.storage_class to one of 'oc get storageclasses', or leave it out for the node's own disk",
        )  # fmt: skip
    return Finding("scratch", True, f"class {name}")


def _claim(
    calls: OpenShiftCalls, settings: OpenShiftSettings, mount: PodMount, classes: Mapping[str, KubeObject] | None
) -> Finding:
    subject = f"claim {mount.claim}"
    try:
        said = calls.request_json(
            "GET",
            calls.path_of("persistentvolumeclaims", mount.claim),
            what=f"read PersistentVolumeClaim {mount.claim}",
        )
    except ProviderError as error:
        return finding_for_error(
            subject, error, f"make it, or set mounts to claims of 'oc get pvc -n {settings.namespace}'"
        )  # fmt: skip
    phase = (said.get("status") or {}).get("phase", "Pending")
    modes = (said.get("status") or {}).get("accessModes") or said["spec"].get("accessModes") or ()
    if said["metadata"].get("deletionTimestamp"):
        return Finding(subject, False, "is being deleted", "set mounts to another claim")
    if phase != "Bound":
        return _unbound(subject, phase, said["spec"].get("storageClassName") or "", classes)
    size = (said["status"].get("capacity") or {}).get("storage", "")
    summary = f"bound, {', '.join(modes)}, {size}"
    if not mount.read_only and set(modes) == {"ReadOnlyMany"}:
        return Finding(subject, False, f"{summary}: nobody can write there", "set read_only = true for this mount")
    if "ReadWriteOncePod" in modes and not _SHARED & set(modes):
        return Finding(subject, False, f"{summary}: one pod alone can mount it", "use a ReadWriteMany claim")
    if not _SHARED & set(modes):
        return Finding(subject, None, f"{summary}: pods of one node alone can mount it", "use a ReadWriteMany claim")
    return Finding(subject, True, summary)


def _unbound(subject: str, phase: str, name: str, classes: Mapping[str, KubeObject] | None) -> Finding:
    remedy = f"'oc describe pvc {subject.removeprefix('claim ')}' says why it has no volume"
    if phase == "Lost":
        return Finding(subject, False, "its volume is lost", remedy)
    if classes is None:
        return Finding(subject, None, "not bound yet; it may be by its first pod", remedy)
    if name in classes and classes[name].get("volumeBindingMode") == _LATE:
        return Finding(subject, True, f"bound by its first pod (class {name})")
    return Finding(subject, False, f"not bound to a volume (class {name or 'none'})", remedy)
