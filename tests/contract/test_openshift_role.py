"""The files of config/openshift on a real API server: burstd with exactly these rights, and without each of them.

What was asked of the API server, by whom, and whether that was allowed is in its own audit log:
https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, InstanceState
from burstd.domain.errors import NodeNotReady, ProviderError
from burstd.domain.plugins.provider import Finding, LaunchRequest
from burstd.share import share_path
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.provider import OpenShiftProvider, plugin
from providers.openshift.settings import OpenShiftSettings
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.plane import KubernetesPlane

pytestmark = pytest.mark.clouds
Rules = list[dict[str, Any]]
LATER = {("create", "pods/exec"), ("create", "pods/portforward")}
"""What API servers since 1.35 ask for beside ``get``; this one is older."""
INSIDE = {("create", "routes/custom-host")}
"""Not asked for: OpenShift itself looks for this right where a Route comes with a host."""
FREE = ("selfsubjectaccessreviews", "selfsubjectreviews", "users")
"""Everybody may ask who they are, and what they may do; clusters that do not have the question refuse it."""
AUDIT = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}],
}  # fmt: skip
SHARED = "/apis/quota.openshift.io/v1/namespaces/default/appliedclusterresourcequotas"
_KIND = "appliedclusterresourcequota"
SHARED_QUOTAS = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{_KIND}s.quota.openshift.io"},
    "spec": {
        "group": "quota.openshift.io", "scope": "Namespaced",
        "names": {"plural": f"{_KIND}s", "singular": _KIND, "kind": "AppliedClusterResourceQuota"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": True,
        }}}],
    },
}  # fmt: skip
"""OpenShift's own kind, as far as burstd reads it."""


def documents(name: str) -> list[dict[str, Any]]:
    text = share_path("config", "openshift", f"{name}.yaml").read_text(encoding="utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def rules_of(name: str) -> Rules:
    return [rule for one in documents(name) for rule in one.get("rules", ())]


ROLE, NODES = rules_of("role"), rules_of("clusterrole-nodes")


@dataclass
class Site:
    """A control plane that writes down what accounts ask of it, with two nodes."""

    plane: KubernetesPlane
    log: Path

    def namespace(self) -> str:
        """A new one."""
        return self.plane.namespace(f"role-{secrets.token_hex(3)}")

    def settings(self, space: str, kubeconfig: Path, **words: Any) -> OpenShiftSettings:
        """All that the Role is for is in use."""
        sizes = {"one": {"cpus": 2, "memory": "2G", "gpus": 1, "price": "1"}}
        settings = {
            "kubeconfig": kubeconfig, "namespace": space, "image": "imagestream:node:latest",
            "groups": {"gpu": {"selector": {"kind": "gpu"}, "sizes": sizes}}, "security": "restricted",
            "scratch": {"storage_class": "standard"}, "mounts": [{"claim": "data", "path": "/data"}],
            "route_domain": "apps.lab.test", **words,
        }  # fmt: skip
        return OpenShiftSettings.model_validate(settings)

    def audited_requests(self, who: str) -> set[tuple[str, str, bool]]:
        """Verb and resource of what an account has asked so far, and whether that was allowed."""
        found = set()
        for line in self.log.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            about = event.get("objectRef")
            if about and event["user"]["username"] == who and about["resource"] not in FREE:
                thing = "/".join(word for word in (about["resource"], about.get("subresource")) if word)
                thing += "" if about.get("namespace") else " everywhere"
                found.add((event["verb"], thing, event["annotations"]["authorization.k8s.io/decision"] == "allow"))
        return found


def open_provider(settings: OpenShiftSettings) -> OpenShiftProvider:
    made = plugin.make("ocp", "ada", settings)
    assert isinstance(made, OpenShiftProvider)
    return made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("audit")
    policy, log = folder / "policy.yaml", folder / "log"
    policy.write_text(yaml.safe_dump(AUDIT), encoding="utf-8")
    flags = {"kube-apiserver": [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]}
    with KubernetesPlane(openshift=True, flags=flags) as plane, HollowNodes(plane) as nodes:
        nodes.add("gpu1", cpus=16, memory_gib=64, gpus=4, labels={"kind": "gpu"})
        plane.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", SHARED_QUOTAS)
        plane.wait(lambda: plane.api.find(SHARED) is not None, "quotas over several projects are served")
        yield Site(plane, log)


@pytest.fixture
def space(site: Site) -> str:
    """A namespace with an image and a claim."""
    name, api = site.namespace(), site.plane.api
    stream = f"/apis/image.openshift.io/v1/namespaces/{name}/imagestreams"
    api.post(stream, {"apiVersion": "image.openshift.io/v1", "kind": "ImageStream", "metadata": {"name": "node"}})
    item = {"dockerImageReference": "registry.lab/node@sha256:aa", "created": "2026-01-01T00:00:00Z", "generation": 1}
    status = {"tags": [{"tag": "latest", "items": [{**item, "image": "sha256:aa"}]}]}
    api.patch(f"{stream}/node/status", {"status": status})
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{name}/persistentvolumeclaims"
    api.post(claims, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": claim})
    site.plane.wait(lambda: api.get(f"{claims}/data")["status"]["phase"] == "Bound", "the claim is bound")
    return name


def account(site: Site, space: str, rules: Rules, everywhere: Rules) -> Path:
    """The kubeconfig of one with just these rules."""
    name = f"burstd-{secrets.token_hex(3)}"
    made = site.plane.user(space, rules, name=name)
    site.plane.grant(space, name, everywhere, everywhere=True)
    return made


def request(provider: OpenShiftProvider, claim: str) -> LaunchRequest:
    (offer,) = provider.offers()
    tags = {TAG_CLUSTER: "ada", TAG_CLAIM: claim}
    image = provider.images("")[0]
    return LaunchRequest(claim, f"burst-{claim}", offer, image, "#cloud-config\n", tags)


def live(site: Site, provider: OpenShiftProvider, settings: OpenShiftSettings) -> None:
    """A machine's whole life, with all that burstd can do with one."""
    asked = request(provider, "c1")
    for _ in range(2):  # the second time it is there
        (outcome,) = provider.launch([asked])
        assert not isinstance(outcome.result, ProviderError), outcome.result
    site.plane.wait(lambda: [i.state for i in provider.instances()] == [InstanceState.RUNNING], "it runs")
    (instance,) = provider.instances()
    with pytest.raises((NodeNotReady, ProviderError)) as no_kubelet:
        provider.shell(instance.id, 5.0).run(["true"])
    assert "forbidden" not in str(no_kubelet.value)
    with closing(OpenShiftCalls(settings)) as calls, pytest.raises(ProviderError) as no_kubelet:
        calls.forward_socket(instance.id, 8888)  # as the shell's dial, once it has seen that somebody listens
    assert "forbidden" not in str(no_kubelet.value)
    for _ in range(2):
        route = provider.open_route(instance.id, "7", 8888)
    assert [one.job_id for one in provider.routes()] == ["7"]
    provider.close_routes([route])
    provider.notices()
    provider.terminate([instance.id])
    site.plane.wait(lambda: not list(provider.instances()), "it is gone")
    provider.remove(list(provider.leftovers()))


def test_burstd_needs_all_rights_of_the_files_and_no_other(site: Site, space: str) -> None:
    kubeconfig = account(site, space, ROLE, NODES)
    settings = site.settings(space, kubeconfig)
    with closing(open_provider(settings)) as provider:
        findings = list(provider.check([]))
        provider.quotas()
        live(site, provider, settings)
        orphan(site, space)
        provider.remove(list(provider.leftovers()))
    assert [f for f in findings if f.ok is False] == []
    who = f"system:serviceaccount:{space}:{kubeconfig.stem.removeprefix(f'{space}-')}"
    # Of a watch it is told when the API server has seen its end.
    last = {("list", "services", True), ("watch", "pods", True)}
    site.plane.wait(lambda: last <= site.audited_requests(who), "the audit log has it")
    asked = site.audited_requests(who)
    assert sorted(one for one in asked if not one[2]) == []
    given = set(flat(ROLE)) | {(verb, f"{thing} everywhere") for verb, thing in flat(NODES)}
    assert sorted(given - LATER - INSIDE - {(verb, thing) for verb, thing, _ in asked}) == []


def orphan(site: Site, space: str) -> None:
    """A disk of a machine that is no more."""
    labels = {TAG_CLUSTER: "ada", TAG_CLAIM: "c9"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "burst-c9", "labels": labels},
        "spec": spec,
    }  # fmt: skip
    site.plane.api.post(f"/api/v1/namespaces/{space}/persistentvolumeclaims", body)


def flat(rules: Rules) -> list[tuple[str, str]]:
    return [(verb, thing) for rule in rules for thing in rule["resources"] for verb in rule["verbs"]]


def findings_of(provider: OpenShiftProvider) -> Sequence[Finding]:
    with closing(provider):
        return list(provider.check([]))


@pytest.mark.parametrize("number", range(len(ROLE)), ids=["+".join(rule["resources"]) for rule in ROLE])
def test_a_rule_that_lacks_is_named(site: Site, space: str, number: int) -> None:
    dropped = ROLE[number]
    kubeconfig = account(site, space, [*ROLE[:number], *ROLE[number + 1 :]], NODES)
    found = findings_of(open_provider(site.settings(space, kubeconfig)))
    missing = [f for f in found if f.subject.startswith("right ")]
    assert [f.subject.removeprefix("right ") for f in missing] == dropped["resources"]
    assert all("config/openshift/role.yaml" in f.remedy for f in missing)


@pytest.mark.parametrize("number", range(len(NODES)), ids=["+".join(rule["resources"]) for rule in NODES])
def test_without_a_look_at_the_cluster_the_settings_are_trusted(site: Site, space: str, number: int) -> None:
    kubeconfig = account(site, space, ROLE, [*NODES[:number], *NODES[number + 1 :]])
    provider = open_provider(site.settings(space, kubeconfig))
    assert [offer.instance_type for offer in provider.offers()] == ["one"]
    found = findings_of(provider)
    missing = [f for f in found if f.subject.startswith("right ")]
    assert [f.subject for f in missing] == [f"right {one} everywhere" for one in NODES[number]["resources"]]
    assert [f for f in found if f.ok is False] == []


def test_administrators_can_apply_every_file(site: Site) -> None:
    """As the docs say, with its namespace."""
    space = site.namespace()
    for file in sorted(share_path("config", "openshift").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        assert " burst\n" in text
        text = text.replace(": burst\n", f": {space}\n")
        done = subprocess.run(
            [site.plane.kubectl, "--kubeconfig", site.plane.admin(), "apply", "-f", "-"],
            input=text, text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_a_pod_as_root_takes_the_constraints_of_the_file(site: Site, space: str) -> None:
    kubeconfig = account(site, space, ROLE, NODES)

    def tried() -> Finding:
        found = findings_of(open_provider(site.settings(space, kubeconfig, security="root")))
        return next(f for f in found if f.subject == "pod of group gpu")

    refused = tried()
    assert refused.ok is False
    assert "unable to validate against any security context constraint" in refused.text
    assert "config/openshift/scc.yaml" in refused.text + refused.remedy
    scc, role, binding = documents("scc")
    binding["metadata"]["namespace"] = space
    binding["subjects"][0] |= {"name": kubeconfig.stem.removeprefix(f"{space}-"), "namespace": space}
    api, roles = site.plane.api, "/apis/rbac.authorization.k8s.io/v1"
    for path, thing in (  # applied before, or now
        ("/apis/security.openshift.io/v1/securitycontextconstraints", scc),
        (f"{roles}/clusterroles", role),
        (f"{roles}/namespaces/{space}/rolebindings", binding),
    ):
        if api.find(f"{path}/{thing['metadata']['name']}") is None:
            api.post(path, thing)
    site.plane.wait(lambda: tried().ok is True, "the constraints are in force")
    assert "SCC burstd" in tried().text
