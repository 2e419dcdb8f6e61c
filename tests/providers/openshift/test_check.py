"""What the check tells of a namespace that is set up, and of one where something is missing; on a cluster in memory."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from burstd.domain.errors import AuthFailed, BadRequest, CloudUnavailable, NotAllowed, NotFound, QuotaExceeded
from burstd.domain.plugins.provider import Finding
from providers.openshift.checks.check import check
from providers.openshift.errors import NoSuchApi
from tests.providers.openshift.cluster import (
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    QUOTAS,
    SPACE,
    STREAMS,
    FakeCluster,
    claim,
    node,
    pod,
    quota,
    settings,
    stream,
)

MOUNT: dict[str, Any] = {"mounts": [{"claim": "data", "path": "/data"}]}
DATA = f"{CLAIMS}/data"
LATE = {"metadata": {"name": "late"}, "volumeBindingMode": "WaitForFirstConsumer"}
DEFAULT = {"metadata": {"name": "std", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
PLAIN = {"groups": [{"name": "apps"}]}


def findings(
    answers: Mapping[str, Any] | None = None,
    denied: Sequence[tuple[str, str]] = (),
    images: Sequence[str] = (),
    user: str = "system:serviceaccount:burst:burstd",
    **words: Any,
) -> dict[str, Finding]:
    """Findings by their subjects, in order."""
    cluster = FakeCluster(settings(**words), answers)
    cluster.denied |= set(denied)
    cluster.user = user
    found = list(check("ocp", "ada", settings(**words), cluster, images))
    assert len({f.subject for f in found}) == len(found), [f.subject for f in found]
    assert all(f.text and (f.ok is True or f.remedy or f.subject == "all else") for f in found)
    return {f.subject: f for f in found}


def test_all_is_well() -> None:
    found = findings({DATA: claim(), CLASSES: [DEFAULT]}, scratch={"storage_class": ""}, **MOUNT)
    assert [subject for subject, finding in found.items() if finding.ok is not True] == []
    assert list(found) == [
        "API server", "account", "rights", "namespace burst", "image node:1", "scratch", "claim data", "group cpu",
        "group gpu", "pod of group cpu", "pod of group gpu",
    ]  # fmt: skip
    assert found["API server"].text == "OpenShift, v1.29.0"
    assert found["account"].text == "system:serviceaccount:burst:burstd, for namespace burst"
    assert found["group cpu"].text == "1 node; free now: 8 c4, 2 c16"


@pytest.mark.parametrize(
    ("answers", "subject", "ok", "text"),
    [
        ({"/version": CloudUnavailable("refused")}, "API server", False, "refused"),
        ({"/apis": AuthFailed("expired")}, "account", False, "expired"),
        ({"/apis": NotAllowed("not you")}, "account", False, "not you"),
        ({SPACE: NotFound("no burst")}, "namespace burst", False, "no burst"),
        ({SPACE: {"metadata": {}, "status": {"phase": "Terminating"}}}, "namespace burst", False, "is being deleted"),
    ],
)
def test_what_all_else_needs(answers: Mapping[str, Any], subject: str, ok: bool, text: str) -> None:
    found = findings(answers)
    assert (found[subject].ok, found[subject].text) == (ok, text)
    assert list(found)[-2:] == [subject, "all else"]


@pytest.mark.parametrize(
    ("user", "answers", "text"),
    [
        ("", {"/apis/user.openshift.io/v1/users/~": {"metadata": {"name": "ada"}}}, "ada, for namespace burst"),
        (
            "",
            {"/apis/user.openshift.io/v1/users/~": NoSuchApi("404")},
            "accepted; this API server does not say its name",
        ),
        ("system:anonymous", {}, "takes burstd for nobody"),
    ],
)
def test_who_burstd_is(user: str, answers: Mapping[str, Any], text: str) -> None:
    assert text in findings(answers, user=user)["account"].text


def test_an_account_that_may_do_everything_is_said() -> None:
    cluster = FakeCluster(settings())
    cluster.denied.discard(("*", "*"))
    found = {f.subject: f for f in check("ocp", "ada", settings(), cluster, ())}
    assert found["account"].ok is None
    assert "config/openshift/role.yaml" in found["account"].remedy


@pytest.mark.parametrize(
    ("verb", "thing", "words", "ok", "file"),
    [
        ("create", "pods", {}, False, "role"), ("watch", "pods", {}, False, "role"),
        ("get", "pods/exec", {}, False, "role"), ("create", "pods/exec", {}, False, "role"),
        ("create", "pods/portforward", {}, False, "role"), ("patch", "persistentvolumeclaims", {}, False, "role"),
        ("list", "services", {}, False, "role"), ("delete", "routes", {}, False, "role"),
        ("create", "services", {}, None, "role"), ("create", "routes", {}, None, "role"),
        ("create", "routes/custom-host", {"route_domain": "apps.example.org"}, False, "role"),
        ("create", "routes/custom-host", {}, True, ""),
        ("get", "imagestreams", {"image": "imagestream:node:latest"}, False, "role"),
        ("get", "imagestreams", {}, True, ""),
        ("list", "resourcequotas", {}, None, "role"), ("list", "limitranges", {}, None, "role"),
        ("list", "appliedclusterresourcequotas", {}, None, "role"), ("get", "namespaces", {}, None, "role"),
        ("list", "nodes!", {}, None, "clusterrole-nodes"), ("list", "pods!", {}, None, "clusterrole-nodes"),
        ("list", "storageclasses!", MOUNT, None, "clusterrole-nodes"), ("list", "storageclasses!", {}, True, ""),
        ("get", "services!", {}, True, ""),
    ],
)  # fmt: skip
def test_a_missing_right_is_named(verb: str, thing: str, words: Mapping[str, Any], ok: bool | None, file: str) -> None:
    found = findings({DATA: claim()}, [(verb, thing)], **words)
    finding = found.get(f"right {thing.replace('!', ' everywhere')}")
    if ok is True:
        assert finding is None
        return
    assert finding is not None
    assert finding.ok is ok
    assert finding.text.startswith(f"not allowed: {verb} {thing.strip('!')}: ")
    assert f"the rule on {thing.strip('!')} " in finding.remedy
    assert f"config/openshift/{file}.yaml" in finding.remedy


def test_plain_kubernetes() -> None:
    found = findings({"/apis": PLAIN}, [("list", "appliedclusterresourcequotas")])
    assert found["API server"].text == "plain Kubernetes, v1.29.0"
    assert "routes" in found["rights"].text, "they are listed, and would be refused, even where there are none"
    assert all(f.ok for f in found.values())


@pytest.mark.parametrize(("security", "level", "ok"), [
    ("root", "restricted", False), ("restricted", "restricted", True), ("root", "baseline", True), ("root", "", True),
])  # fmt: skip
def test_pod_security_of_the_namespace(security: str, level: str, ok: bool) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    found = findings({SPACE: {"metadata": {"labels": labels}, "status": {"phase": "Active"}}}, security=security)
    assert found["namespace burst"].ok is ok
    assert ("enforces" in found["namespace burst"].text) is bool(level)


@pytest.mark.parametrize(
    ("image", "answers", "ok", "text"),
    [
        ("", {}, False, "neither the provider nor a pool names one"),
        ("r/node@sha256:aa", {}, True, "a reference; by its digest"),
        ("r/node:1", {}, True, "a reference; each node keeps"),
        (
            "imagestream:node:latest",
            {f"{STREAMS}/node": stream("node", latest=["r@b", "r@a"])},
            True,
            "r@b, and 1 before",
        ),
        ("imagestream:node:latest", {}, False, "has no ImageStream node"),
        ("imagestream:node:latest", {f"{STREAMS}/node": CloudUnavailable("down")}, None, "down"),
    ],
)
def test_images(image: str, answers: Mapping[str, Any], ok: bool | None, text: str) -> None:
    finding = findings(answers, image=image)[f"image {image}".strip()]
    assert (finding.ok, text in finding.text) == (ok, True), finding


def test_images_that_pools_name() -> None:
    found = findings(images=["node:2", "node:1", "imagestream:x:y"])
    assert found["image node:2"].ok
    assert found["image imagestream:x:y"].remedy == "mend image in the pools' offers"


KEY = base64.b64encode(b"k" * 128).decode()


@pytest.mark.parametrize(
    ("answer", "ok", "text"),
    [
        ({"data": {"munge.key": KEY}}, True, "is there"),
        ({"data": {"key": KEY}}, False, "it has key, and no munge.key"),
        ({}, False, "it has nothing, and no munge.key"),
        ({"data": {"munge.key": base64.b64encode(b"short").decode()}}, False, "has 5 bytes: munge wants 32 to 1024"),
        (NotFound("no Secret"), False, "no Secret"),
    ],
)
def test_the_secret_of_the_key_where_burstd_may_read_it(answer: Any, ok: bool, text: str) -> None:
    cluster = FakeCluster(settings(key_secret="munge"), {f"{SPACE}/secrets/munge": answer})
    cluster.denied.discard(("get", "secrets"))
    found = {f.subject: f for f in check("ocp", "ada", settings(key_secret="munge"), cluster, ())}
    assert found["secret munge"].ok is ok
    assert text in found["secret munge"].text
    assert ok or "oc create secret generic munge -n burst --from-file=munge.key" in found["secret munge"].remedy
    assert not any(KEY in f.text for f in found.values())


def test_pull_secrets_and_that_secrets_need_not_be_readable() -> None:
    found = findings(key_secret="munge", pull_secrets=["reg"])
    assert found["secrets"].ok is None
    assert "oc get secret -n burst munge reg" in found["secrets"].remedy
    cluster = FakeCluster(settings(pull_secrets=["reg"]), {f"{SPACE}/secrets/reg": {"type": "Opaque"}})
    cluster.denied.discard(("get", "secrets"))
    (finding,) = [f for f in check("ocp", "ada", settings(pull_secrets=["reg"]), cluster, ()) if "reg" in f.subject]
    assert (finding.ok, finding.text) == (False, "of type Opaque, which is none for a registry")


@pytest.mark.parametrize(
    ("answer", "classes", "ok", "text"),
    [
        (claim(), [], True, "bound, ReadWriteMany, 1Ti"),
        (claim(modes=["ReadWriteOnce"]), [], None, "pods of one node alone"),
        (claim(modes=["ReadWriteOncePod"]), [], False, "one pod alone"),
        (claim(modes=["ReadOnlyMany"]), [], False, "nobody can write there"),
        (claim("Pending", storageClassName="late"), [LATE], True, "bound by its first pod (class late)"),
        (claim("Pending", storageClassName="std"), [DEFAULT], False, "not bound to a volume (class std)"),
        (claim("Pending"), [], False, "not bound to a volume (class none)"),
        (claim("Pending", storageClassName="late"), NotAllowed("no"), None, "not bound yet"),
        (claim("Lost"), [], False, "its volume is lost"),
        (NotFound("no claim"), [], False, "no claim"),
        (NotAllowed("no"), [], None, "no"),
        ({**claim(), "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, [], False, "is being deleted"),
    ],
)
def test_the_claims_of_mounts(answer: Any, classes: Any, ok: bool | None, text: str) -> None:
    finding = findings({DATA: answer, CLASSES: classes}, **MOUNT)["claim data"]
    assert (finding.ok, text in finding.text) == (ok, True), finding


def test_a_claim_that_nobody_writes_to_may_be_read_only() -> None:
    mount: dict[str, Any] = {"mounts": [{"claim": "data", "path": "/data", "read_only": True}]}
    assert findings({DATA: claim(modes=["ReadOnlyMany"])}, **mount)["claim data"].ok


@pytest.mark.parametrize(
    ("name", "classes", "ok", "text"),
    [
        ("", [DEFAULT], True, "the default class, std"),
        ("", [LATE], False, "no class is the default one; there are: late"),
        ("late", [LATE], True, "class late"),
        ("fast", [LATE], False, "no class of storage is named fast; there are: late"),
        ("fast", CloudUnavailable("down"), None, "down"),
    ],
)
def test_the_class_of_scratch(name: str, classes: Any, ok: bool | None, text: str) -> None:
    found = findings({CLASSES: classes}, scratch={"storage_class": name})
    finding = found["scratch" if "scratch" in found else "storage"]
    assert (finding.ok, finding.text) == (ok, text)


def test_the_class_of_volumes() -> None:
    finding = findings({CLASSES: [DEFAULT]}, volumes={"storage_class": "fast"})["volumes"]
    assert (finding.ok, finding.text) == (False, "no class of storage is named fast; there are: std")
    assert finding.remedy.startswith("set volumes.storage_class to one of")


TAINTED = [node("n", "cpu"), node("g", "gpu", gpus="1", taints=[{"key": "x", "effect": "NoSchedule"}])]


@pytest.mark.parametrize(
    ("answers", "subject", "ok", "text"),
    [
        ({NODES: NotAllowed("no")}, "group cpu", True, "burstd may not see the nodes"),
        ({NODES: CloudUnavailable("down")}, "groups", None, "down"),
        ({NODES: [node("n", "cpu")]}, "group gpu", False, "none of the cluster's 1 nodes has the labels"),
        ({NODES: TAINTED}, "group gpu", False, "1 taint x:NoSchedule is not tolerated: no pod may go there now"),
        ({NODES: [node("n", "cpu", ready=False)]}, "group cpu", None, "1 node, 1 not ready: no pod may go there now"),
        ({NODES: [node("n", "cpu"), node("m", "cpu", unschedulable=True)]}, "group cpu", True,
         "2 nodes, 1 cordoned; free now: 8 c4, 2 c16"),
        ({PODS: NotAllowed("no")}, "group cpu", True, "1 node"),
        ({PODS: [pod("n1", "29")]}, "group cpu", None, "1 node; free now: 0 c4, 0 c16"),
        ({PODS: [pod("n1", "14")]}, "group cpu", True, "1 node; free now: 4 c4, 1 c16"),
        ({NODES: [node("n", "cpu"), node("g", "gpu", gpus="7", labels={"nvidia.com/gpu.product": "NVIDIA-H100"})]},
         "group gpu", True, "1 node, NVIDIA-H100; free now: 4 g1"),
        ({NODES: [node("n", "cpu", cpu="8")]}, "size c16 of group cpu", False,
         "not offered: it takes 16 cpu, the largest has 8"),
    ],
)  # fmt: skip
def test_groups_and_sizes(answers: Mapping[str, Any], subject: str, ok: bool | None, text: str) -> None:
    finding = findings(answers)[subject]
    assert (finding.ok, text in finding.text) == (ok, True), finding


@pytest.mark.parametrize(
    ("resource", "hard", "used", "ok", "text"),
    [
        ("pods", "10", "4", True, "4 of 10 in use, room for 6 machines"),
        ("requests.cpu", "40", "8", True, "8 of 40 in use, room for 2 c16 of cpu or 8 c4 of cpu"),
        ("limits.memory", "64Gi", "60Gi", None, "room for 0 c16 of cpu or 0 c4 of cpu: all is taken now"),
        ("requests.nvidia.com/gpu", "0", "0", False, "0 of 0 in use, room for 0 machines"),
    ],
)
def test_quotas(resource: str, hard: str, used: str, ok: bool | None, text: str) -> None:
    finding = findings({QUOTAS: [quota("q", {resource: hard}, {resource: used})]})[f"quota q {resource}"]
    assert (finding.ok, text in finding.text) == (ok, True), finding


def test_quotas_of_other_things_are_not_spoken_of() -> None:
    assert not [word for word in findings({QUOTAS: [quota("q", {"services": "0"}, {})]}) if word.startswith("quota")]


REFUSED = f"POST {SPACE}/pods"


@pytest.mark.parametrize(
    ("answer", "ok", "text"),
    [
        ({"metadata": {"annotations": {"openshift.io/scc": "burstd"}}, "spec": {"containers": [{}]}}, True,
         "size c4: admitted under SCC burstd"),
        ({"metadata": {}, "spec": {"containers": [{"securityContext": {"runAsUser": 1000680000}}]}}, True,
         "admitted, as uid 1000680000"),
        (NotAllowed("no constraint: config/openshift/scc.yaml"), False, "no constraint"),
        (NotAllowed("no right: config/openshift/role.yaml"), None, "no right"),
        (NotAllowed("denied by a webhook"), False, "denied by a webhook"),
        (BadRequest("maximum cpu usage per Container is 2"), False, "maximum cpu"),
        (QuotaExceeded("exceeded quota"), None, "exceeded quota"),
        (CloudUnavailable("down"), None, "down"),
    ],
)  # fmt: skip
def test_a_pod_that_is_not_made_shows_what_admission_would_say(answer: Any, ok: bool | None, text: str) -> None:
    finding = findings({REFUSED: answer})["pod of group cpu"]
    assert (finding.ok, text in finding.text) == (ok, True), finding


def test_the_pod_that_is_tried_is_the_smallest_of_its_group() -> None:
    cluster = FakeCluster(settings())
    assert list(check("ocp", "ada", settings(), cluster, ()))
    limits = [one["spec"]["containers"][0]["resources"]["limits"]["cpu"] for one in cluster.sent]
    assert [str(one) for one in limits] == ["4", "8"]
