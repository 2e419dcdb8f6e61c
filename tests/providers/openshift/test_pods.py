from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer
from burstd.domain.cloud.volume import LaunchDisk
from burstd.domain.errors import BadRequest
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.slurm.shape import Shape
from providers.openshift import labels
from providers.openshift.pods import manifest
from tests.providers.openshift.things import CLUSTER, settings

Pod = dict[str, Any]


def request(name: str = "lab-claim-1", *, group: str = "gpu", size: str = "one", claim: str = "") -> LaunchRequest:
    offer = Offer("p", "burst", group, size, spot=False, shape=Shape(4, 16384), price=Decimal(1))
    tags = {TAG_CLUSTER: CLUSTER, TAG_CLAIM: claim or f"claim-{name}", "burstd-slot": "cl1"}
    return LaunchRequest(tags[TAG_CLAIM], name, offer, "registry/node@sha256:1", "#cloud-config\n", tags)


def built(name: str = "lab-claim-1", *, group: str = "gpu", **words: Any) -> Pod:
    return manifest.pod_manifest(settings(**words), request(name, group=group))


def container(pod: Pod) -> Pod:
    (only,) = pod["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def volume(pod: Pod, name: str) -> Pod:
    return next(dict(one) for one in pod["spec"]["volumes"] if one["name"] == name)


def test_a_pod_bears_its_claim_and_asks_for_its_size_only() -> None:
    pod = built(labels={"team": "x"}, annotations={"note": "y"})
    own_labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert labels.belongs_to_cluster(pod, CLUSTER)
    assert (labels.claim_of(pod), labels.group_of(pod), labels.size_of(pod)) == ("claim-lab-claim-1", "gpu", "one")
    assert labels.tags_of(pod)["burstd-slot"] == "cl1"
    assert (own_labels["team"], notes["note"], notes["burstd/user-data"]) == ("x", "y", "#cloud-config\n")
    resources = container(pod)["resources"]
    assert resources["limits"] == {"cpu": "4", "memory": "16384Mi", "nvidia.com/gpu": "1"}
    assert resources["requests"] == resources["limits"]
    assert "nvidia.com/gpu" not in container(built(group="cloud"))["resources"]["limits"]
    assert json.dumps(pod)


def test_the_scripts_and_the_key_are_files_in_the_pod() -> None:
    pod = built(key_secret="munge")
    sources = volume(pod, "burstd")["projected"]["sources"]
    files = {one["path"]: one["fieldRef"]["fieldPath"] for one in sources[0]["downwardAPI"]["items"]}
    assert files["init.sh"] == "metadata.annotations['burstd/init']"
    for name in manifest.SCRIPTS:
        assert pod["metadata"]["annotations"][f"burstd/{name}"] == manifest.script_text(name)
    assert sources[1] == {
        "secret": {"name": "munge", "items": [{"key": "munge.key", "path": "key/munge.key", "mode": 0o600}]}
    }
    assert len(volume(built(), "burstd")["projected"]["sources"]) == 1
    assert container(pod)["command"] == ["/bin/sh", "/burstd/init.sh"]


@pytest.mark.parametrize(
    ("words", "whole", "own"),
    [
        ({}, {}, {"runAsUser": 0}),
        ({"security": "restricted"}, {"runAsNonRoot": True}, {}),
        ({"security": "restricted", "run_as": 64030}, {"runAsNonRoot": True, "runAsUser": 64030, "fsGroup": 64030}, {}),
    ],
)  # fmt: skip
def test_rights_are_few(words: dict[str, Any], whole: Pod, own: Pod) -> None:
    pod = built(**words)
    assert pod["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, **whole}
    said = container(pod)["securityContext"]
    capabilities = said.pop("capabilities")
    assert said == {"allowPrivilegeEscalation": False, "runAsGroup": 0, **own}
    assert capabilities["drop"] == ["ALL"]
    assert capabilities.get("add", []) == ([] if words else list(manifest.CAPABILITIES))
    assert (pod["spec"]["automountServiceAccountToken"], pod["spec"]["enableServiceLinks"]) == (False, False)


def test_volumes_are_those_of_the_settings() -> None:
    pod = built(
        shm="2G", scratch={"path": "/scratch", "size": "5G"},
        mounts=[{"claim": "data", "path": "/data", "read_only": True}, {"claim": "home", "path": "/home"},
                {"claim": "data", "path": "/refs", "sub_path": "refs"}],
    )  # fmt: skip
    assert volume(pod, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "2048Mi"}
    assert volume(pod, "scratch")["emptyDir"] == {"sizeLimit": "5120Mi"}
    claims = [one["persistentVolumeClaim"] for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
    assert claims == [{"claimName": "data"}, {"claimName": "home"}]
    mounts = {one["mountPath"]: one for one in container(pod)["volumeMounts"]}
    assert mounts["/data"] == {"name": "claim-0", "mountPath": "/data", "readOnly": True}
    assert mounts["/refs"] == {"name": "claim-0", "mountPath": "/refs", "subPath": "refs"}
    assert mounts["/home"]["name"] == "claim-1"
    assert mounts["/scratch"]["name"] == "scratch"
    own = built(scratch={"storage_class": ""})
    assert volume(own, "scratch")["persistentVolumeClaim"] == {"claimName": "lab-claim-1"}


def test_a_users_volume_comes_with_the_pod() -> None:
    asked = replace(request(), disks=(LaunchDisk("lab-v-1", "/run/burst-volumes/7/corpus"),))
    pod = manifest.pod_manifest(settings(), asked)
    assert volume(pod, "disk-0")["persistentVolumeClaim"] == {"claimName": "lab-v-1"}
    assert container(pod)["volumeMounts"][-1] == {"name": "disk-0", "mountPath": "/run/burst-volumes/7/corpus"}
    assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_a_pod_goes_where_its_group_says() -> None:
    group = {
        "selector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}}, "gpu_resource": "nvidia.com/mig-1g.10gb",
        "sizes": {"one": {"cpus": 4, "memory": 16384, "gpus": 2, "price": "1"}},
    }  # fmt: skip
    pod = built(groups={"gpu": group}, node_lost_s=7, priority_class="low", pull_secrets=["hub"], grace_s=33)
    spec = pod["spec"]
    assert (spec["nodeSelector"], spec["affinity"]) == ({"pool": "gpu"}, {"nodeAffinity": {}})
    assert spec["tolerations"][0] == {"key": "gpu", "operator": "Exists"}
    assert {(one["key"], one["tolerationSeconds"]) for one in spec["tolerations"][1:]} == {
        ("node.kubernetes.io/not-ready", 7), ("node.kubernetes.io/unreachable", 7)
    }  # fmt: skip
    assert container(pod)["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "2"
    assert (spec["priorityClassName"], spec["imagePullSecrets"]) == ("low", [{"name": "hub"}])
    assert spec["terminationGracePeriodSeconds"] == 33
    assert "runtimeClassName" not in spec
    assert "hostNetwork" not in spec
    assert "k8s.v1.cni.cncf.io/networks" not in pod["metadata"]["annotations"]


def test_networks_of_other_kinds() -> None:
    assert built(network="fast")["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "fast"
    pod = built(host_network=True)
    assert pod["spec"]["hostNetwork"] is True
    assert [one["hostPort"] for one in container(pod)["ports"]] == [6818], "two on one node would share slurmd's port"
    assert "ports" not in container(built())


@pytest.mark.parametrize(
    ("name", "hostname"),
    [("a", "a"), ("lab.example.org-1", "lab-example-org-1"), ("a" * 62 + ".b", "a" * 62)],
)
def test_the_host_name_is_one_label(name: str, hostname: str) -> None:
    pod = manifest.pod_manifest(settings(), request(name, claim="c"))
    assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == (name, hostname)


def test_lines_of_slurm_conf_come_through_as_they_are() -> None:
    said = {one["name"]: one["value"] for one in container(built(slurm_conf=["A=1", "B=$(x)"]))["env"]}
    assert said["BURSTD_SLURM_CONF"] == "A=1\nB=$$(x)"
    assert (said["BURSTD_CPUS"], said["BURSTD_MEMORY_MIB"], said["BURSTD_GPUS"]) == ("4", "16384", "1")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(size="huge"), "no size huge of a group gpu"),
        (request(group="old"), "no size one of a group old"),
        (request(claim="no label!"), "cannot be the value of the label"),
    ],
)
def test_what_the_settings_do_not_have_is_refused(asked: LaunchRequest, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        manifest.pod_manifest(settings(), asked)
