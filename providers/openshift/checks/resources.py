"""Whether what pods use is there: images, Secrets, claims, classes of storage."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from burstd.domain.errors import NotAllowed, NotFound, ProviderError
from providers.checks import Verdict, bad, first_few, good, image_key, unclear
from providers.openshift.checks import rights
from providers.openshift.checks.namespace import CheckedNamespace, KubeObject, error_verdict
from providers.openshift.settings import OpenShiftSettings, PodMount

_KEY = "munge.key"
_PULLS = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED = {"ReadWriteMany", "ReadOnlyMany"}


def judge_image(at: CheckedNamespace, word: str) -> Verdict:
    """What the word stands for now."""
    try:
        versions = at.known_images.versions(word)
    except ProviderError as error:
        return error_verdict(error, f"mend {image_key(at.settings.image, word)}")
    if versions == (word,):
        return good(
            f"a reference; {'by its digest' if '@' in word else 'each node keeps what it pulled first under this tag'}"
        )
    return good(f"{versions[0]}, and {len(versions) - 1} before it")


def judge_secrets(at: CheckedNamespace) -> Iterator[Verdict]:
    """The cluster's key, and those for the registry. burstd need not be allowed to read Secrets, and better is not."""
    space, unseen = at.settings.namespace, []
    for name in dict.fromkeys(filter(None, [at.settings.key_secret, *at.settings.pull_secrets])):
        verdict: Verdict | None
        try:
            verdict = _secret(at, name)
        except NotFound as error:
            verdict = bad(str(error), _make(name, at.settings))
        except ProviderError as error:
            verdict = error_verdict(error, "look at 'oc get secrets'")
        if verdict is None:
            unseen.append(name)
        else:
            yield replace(verdict, subject=f"secret {name}")
    if unseen:
        yield unclear(
            f"{first_few(unseen)}: burstd may not read Secrets, which is well, and cannot tell",
            f"see 'oc get secret -n {space} {' '.join(unseen)}': without them pods do not start",
        )


def _secret(at: CheckedNamespace, name: str) -> Verdict | None:
    """None: it may not be read."""
    if not rights.is_allowed(at.calls, namespace=at.settings.namespace, verb="get", resource="secrets", name=name):
        return None
    said = at.calls.request_json("GET", at.calls.path_of("secrets", name), what=f"read Secret {name}")
    data, own = said.get("data") or {}, name == at.settings.key_secret
    wrong = ""
    if own and _KEY not in data:
        wrong = f"it has {first_few(sorted(data)) or 'nothing'}, and no {_KEY}"
    elif own and not 32 <= _size(data[_KEY]) <= 1024:
        wrong = f"its {_KEY} has {_size(data[_KEY])} bytes: munge wants 32 to 1024"
    elif not own and said.get("type") not in _PULLS:
        wrong = f"of type {said.get('type')}, which is none for a registry"
    return bad(wrong, _make(name, at.settings)) if wrong else good("is there")


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


def judge_storage(at: CheckedNamespace) -> Iterator[Verdict]:
    """The classes of scratch and of users' volumes, and the claims of mounts."""
    asked = at.settings.storage_classes
    if not asked and not at.settings.mounts:
        return
    with suppress(NotAllowed):  # The finding on this right has said so.
        at.classes = {one["metadata"]["name"]: one for one in at.calls.pages(_CLASSES, what="list classes of storage")}
    if at.classes is not None:
        for subject, name in asked.items():
            yield replace(_class(subject, name, at.classes), subject=subject)
    for mount in at.settings.mounts:
        path = at.calls.path_of("persistentvolumeclaims", mount.claim)
        try:
            said = at.calls.request_json("GET", path, what=f"read PersistentVolumeClaim {mount.claim}")
            verdict = _claim(at, mount, said)
        except ProviderError as error:
            remedy = f"make it, or set mounts to claims of 'oc get pvc -n {at.settings.namespace}'"
            verdict = error_verdict(error, remedy)
        yield replace(verdict, subject=f"claim {mount.claim}")


def _class(subject: str, name: str, classes: Mapping[str, KubeObject]) -> Verdict:
    there = first_few(sorted(classes)) or "none"
    if not name:
        for one, said in classes.items():
            if (said["metadata"].get("annotations") or {}).get(_DEFAULT) == "true":
                return good(f"the default class, {one}")
        return bad(f"no class is the default one; there are: {there}", f"set {subject}.storage_class")
    if name not in classes:
        return bad(
            f"no class of storage is named {name}; there are: {there}",
            f"set {subject}.storage_class to one of 'oc get storageclasses', or leave it out",
        )
    return good(f"class {name}")


def _claim(at: CheckedNamespace, mount: PodMount, said: KubeObject) -> Verdict:
    status = said.get("status") or {}
    phase, modes = (
        status.get("phase", "Pending"),
        set(status.get("accessModes") or said["spec"].get("accessModes") or ()),
    )
    if said["metadata"].get("deletionTimestamp"):
        return bad("is being deleted", "set mounts to another claim")
    if phase != "Bound":
        return _unbound(at, mount.claim, phase, said["spec"].get("storageClassName") or "")
    summary = f"bound, {', '.join(sorted(modes))}, {(status.get('capacity') or {}).get('storage', '')}"
    if not mount.read_only and modes == {"ReadOnlyMany"}:
        return bad(f"{summary}: nobody can write there", "set read_only = true for this mount")
    if _SHARED & modes:
        return good(summary)
    if "ReadWriteOncePod" in modes:
        return bad(f"{summary}: one pod alone can mount it", "use a ReadWriteMany claim")
    return unclear(f"{summary}: pods of one node alone can mount it", "use a ReadWriteMany claim")


def _unbound(at: CheckedNamespace, claim: str, phase: str, name: str) -> Verdict:
    remedy = f"'oc describe pvc {claim}' says why it has no volume"
    if phase == "Lost":
        return bad("its volume is lost", remedy)
    if at.classes is None:
        return unclear("not bound yet; it may be by its first pod", remedy)
    if at.classes.get(name, {}).get("volumeBindingMode") == "WaitForFirstConsumer":
        return good(f"bound by its first pod (class {name})")
    return bad(f"not bound to a volume (class {name or 'none'})", remedy)
