"""A whole site whose cloud is the lab's Kubernetes with a real node: ``with OpenShiftSite() as site``.

burstd has two providers: ``openshift`` in the namespace ``burst``, whose pods run as root, and ``restricted`` in
``students``. It has the rights that config/openshift asks for there, and no others. Jobs' data goes through a claim
that the pods of one of them mount.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import OfferRule, Pool
from tests.lab.base_site import BaseSite
from tests.lab.kept import LabFailed
from tests.lab.kubernetes.api import shut
from tests.lab.kubernetes.images import Image, Layer
from tests.lab.kubernetes.node import REPOSITORY, Node, pod_layers
from tests.lab.kubernetes.plane import KubernetesPlane

BURST, STUDENTS = "burst", "students"
STREAM = "burst-node"
CLAIM, STAGE = "burst-stage", "/stage"
KEY_SECRET = "burst-munge"
LATE = "on-first-use"
"""Class of users' volumes, which are made for their first pod."""
GPUS = (3, 5)
"""Numbers of the node's devices."""
SLURM_UID = 64030
"""Debian's, of the user slurm: slurmctld gives its configuration to nobody else but root."""
_CONFIG = Path(__file__).parents[3] / "config" / "openshift"
_KUBECONFIG = "/etc/burstd/{}.kubeconfig"
_STREAMS = "/apis/image.openshift.io/v1/namespaces/{}/imagestreams"


class OpenShiftSite(BaseSite):
    """One site. ``builds`` are images that the node has beside the first one, by tag: what each has on top of that.

    The ImageStream begins with the first one. ``openshift`` are more keys of both providers' tables, ``store`` is the
    namespace whose pods have jobs' data.
    """

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool],
        builds: Mapping[str, Sequence[Layer]] | None = None,
        openshift: Mapping[str, object] | None = None,
        store: str = BURST,
        **more: Any,
    ) -> None:
        super().__init__(release, pools=pools, staging="", **more)
        self._builds = {"1": (), **(builds or {})}
        self._more = dict(openshift or {})
        self._store = store
        self._up = ExitStack()
        self.plane: KubernetesPlane
        self.node: Node
        self.images: dict[str, Image] = {}
        """By tag."""
        self._ever: list[dict[str, Any]] = []
        self._streams: list[httpx.Response] = []

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts Kubernetes at the hub's address, one node, and what burstd is to find in its namespaces."""
        del layers  # They are those of machines that are entered by ssh.
        lab = self.cluster.lab
        self.plane = self._up.enter_context(KubernetesPlane(lab=lab, openshift=True, progress=self._progress))
        common = pod_layers(self.cluster.rootfs)
        for tag, more in self._builds.items():
            self.images[tag] = Image(REPOSITORY, tag, [*common, *more], labels={"build": tag})
        self.node = self._up.enter_context(
            Node(self.plane, lab, gpus=GPUS, images=[*self.images.values()], labels={"lab/kind": "burst"})
        )
        uids = {"openshift.io/sa.scc.uid-range": f"{SLURM_UID}/1"}
        self._namespace(BURST, ("role.yaml", "clusterrole-nodes.yaml", "scc.yaml"))
        self._namespace(STUDENTS, ("role.yaml",), annotations=uids)
        with self.plane.reach():
            self._claim()
        self.plane.storage_class(LATE, volumeBindingMode="WaitForFirstConsumer")
        watcher = threading.Thread(target=self._watch, name="pods", daemon=True)
        watcher.start()
        self._up.callback(watcher.join)
        self._up.callback(lambda: [*map(shut, self._streams)])

    def stop_cloud(self) -> None:
        """Ends Kubernetes and its node."""
        self._up.close()

    def _namespace(self, name: str, files: Sequence[str], **metadata: Any) -> None:
        """One with burstd's account, the key of the cluster and an ImageStream; the head gets the kubeconfig."""
        self.plane.namespace(name, **metadata)
        for file in files:
            text = (_CONFIG / file).read_text(encoding="utf-8").replace("namespace: burst\n", f"namespace: {name}\n")
            self.kubectl("apply", "-f", "-", given=text)
        kubeconfig = json.loads(self.plane.user(name, [], name="burstd").read_text(encoding="utf-8"))
        cluster = kubeconfig["clusters"][0]["cluster"]
        authority = Path(cluster.pop("certificate-authority")).read_bytes()
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
        self.write(_KUBECONFIG.format(name), json.dumps(kubeconfig), 0o600)
        key = self.cluster.state / "munge.key"
        self.kubectl("-n", name, "create", "secret", "generic", KEY_SECRET, f"--from-file=munge.key={key}")
        stream = {
            "apiVersion": "image.openshift.io/v1",
            "kind": "ImageStream",
            "metadata": {"name": STREAM, "namespace": name},
        }
        with self.plane.reach():
            self.plane.api.post(_STREAMS.format(name), stream)
        self.publish("1", name)

    def publish(self, tag: str, namespace: str = BURST) -> None:
        """The newest of the ImageStream from now on, as a build or an import would make it."""
        image = self.images[tag]
        path = f"{_STREAMS.format(namespace)}/{STREAM}"
        with self.plane.reach():
            tags = self.plane.api.get(path).get("status", {}).get("tags") or [{"tag": "latest", "items": []}]
            digest = image.reference.rpartition("@")[2]
            newest = {"dockerImageReference": image.reference, "image": digest, "generation": 1, "created": _CREATED}
            status = {"tags": [{**tags[0], "items": [newest, *tags[0]["items"]]}]}
            self.plane.api.patch(f"{path}/status", {"status": status})

    def _claim(self) -> None:
        """The claim for jobs' data: a folder of the node."""
        folder = "/srv/stage"
        self.node.box.run(["mkdir", "-p", "-m", "0777", folder])
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": "folders"}
        room = {"storage": "1Gi"}
        volume = {
            **common,
            "capacity": room,
            "hostPath": {"path": folder},
            "claimRef": {"namespace": self._store, "name": CLAIM},
        }
        volumes, claims = "/api/v1/persistentvolumes", f"/api/v1/namespaces/{self._store}/persistentvolumeclaims"
        api, head = self.plane.api, {"apiVersion": "v1", "metadata": {"name": CLAIM}}
        api.post(volumes, {**head, "kind": "PersistentVolume", "spec": volume})
        wanted = {**common, "resources": {"requests": room}, "volumeName": CLAIM}
        api.post(claims, {**head, "kind": "PersistentVolumeClaim", "spec": wanted})
        self.plane.wait(lambda: api.get(f"{claims}/{CLAIM}")["status"].get("phase") == "Bound", "the claim is bound")

    def provider_toml(self) -> str:
        """Both sections of burstd.toml."""
        size = "cpus = 2, memory = 1200"
        common = {"kind": "openshift", "image": f"imagestream:{STREAM}:latest", "key_secret": KEY_SECRET, "shm": "16M"}
        scratch = 'scratch = { size = "256M" }\n'
        groups = {
            "cpu": f'prices = {{ cpu = "0.02" }}\nsizes.two = {{ {size} }}\n',
            "gpu": f'prices = {{ gpu = "2.00" }}\ngres = "h100"\nsizes.one = {{ {size}, gpus = 1 }}\n',
        }
        found = ""
        for name, namespace in (("openshift", BURST), ("restricted", STUDENTS)):
            words = {**common, "namespace": namespace, "kubeconfig": _KUBECONFIG.format(namespace), **self._more}
            if name == "restricted":
                words["security"] = "restricted"
            lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())
            volumes = f'volumes = {{ storage_class = "{LATE}" }}\n' if name == "openshift" else ""
            found += f"[providers.{name}]\n{lines}{scratch}{volumes}"
            if namespace == self._store:
                found += f'[[providers.{name}.mounts]]\nclaim = "{CLAIM}"\npath = "{STAGE}"\n'
            for group, text in groups.items():
                found += f'[providers.{name}.groups.{group}]\nselector = {{ "lab/kind" = "burst" }}\n{text}'
        return found

    def _staging_toml(self) -> str:
        return (
            '[staging]\nstore = "near"\n[staging.stores.near]\nkind = "pvc"\n'
            f'kubeconfig = "{_KUBECONFIG.format(self._store)}"\nnamespace = "{self._store}"\n'
            f'claim = "{CLAIM}"\npath = "{STAGE}"\nsecurity = "{"root" if self._store == BURST else "restricted"}"\n'
            f'image = "{self.images["1"].reference}"\ncpu = "100m"\nmemory = 128\nidle_s = 5\n'
            f"{self._workdir_toml()}"
        )

    def _start_storage(self) -> None:
        """The claim is there already."""

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """The size that has GPUs, or the one that has none, of the pods that run as root."""
        return (OfferRule("openshift", ("one" if pool.shape.gres else "two",)),)

    def pods(self, namespace: str = "") -> list[dict[str, Any]]:
        """Our cluster's, of one namespace or both, as the API has them."""
        found: list[dict[str, Any]] = []
        with self.plane.reach():
            for name in (namespace,) if namespace else (BURST, STUDENTS):
                found += self.plane.api.get(f"/api/v1/namespaces/{name}/pods", labelSelector=_OURS)["items"]
        return found

    def _watch(self) -> None:
        with self.plane.reach(), suppress(httpx.HTTPError):
            for event in self.plane.api.events("/api/v1/pods", "0", self._streams.append, labelSelector=_OURS):
                if event["type"] == "ADDED":
                    self._ever.append(event["object"])

    def ever(self, pool: str) -> list[dict[str, Any]]:
        """All pods that were ever made for a pool, oldest first, as they were made."""
        tags = [(json.loads(one["metadata"]["annotations"]["burstd/tags"]), one) for one in [*self._ever]]
        return [one for words, one in tags if words["burstd-pool"] == pool]

    def instances(self) -> list[str]:
        """Names of our cluster's pods."""
        return [one["metadata"]["name"] for one in self.pods()]

    def kubectl(self, *words: str, given: str = "") -> str:
        """Runs kubectl as the cluster's administrator; what it says. Raises LabFailed."""
        argv = [*self.cluster.lab.network.enter(), self.plane.kubectl, f"--kubeconfig={self.plane.admin()}", *words]
        done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise LabFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


_OURS = f"{TAG_CLUSTER}=lab,{TAG_CLAIM}"
_CREATED = "2026-01-01T00:00:00Z"
