"""A claim on a real node as a world of the stagers' contract: kubelet, containerd, pods/exec through the API server.

The cluster admits pods as OpenShift does, and burstd has exactly the rights of config/openshift/role.yaml.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from burstd.domain.plugins.stager import Stager
from burstd.testing.store_world import CLUSTER, FaultyProxy, ProxiedStoreWorld
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from staging.pvc.settings import PvcSettings
from staging.pvc.stager import PvcStager
from tests.lab.guard import LabWatchdog
from tests.lab.kubernetes.images import Image
from tests.lab.kubernetes.node import REPOSITORY, Node, pod_layers
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.programs import PROJECT

NAMESPACE = "burst"
IMAGE = f"{REPOSITORY}:1"
FOLDER = "/srv/claim"
"""On the node, with what the claim holds."""
ACCOUNT = "burstd"
CONFIG = PROJECT / "config/openshift"
SCCS = "/apis/security.openshift.io/v1/securitycontextconstraints"
PVS, PVCS = "/api/v1/persistentvolumes", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class ClaimSite:
    """A cluster with a node and a claim, ``data``."""

    plane: KubernetesPlane
    node: Node
    kubeconfig: Path
    path: Path
    """Where pods have the claim, and this process too: a link into the node."""

    def create_claim(self, name: str, mode: str, path: str = FOLDER, *, open_to_all: bool = True) -> None:
        """Makes one of a folder of the node."""
        folder = self.node.box.path(path)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777 if open_to_all else 0o755)
        capacity = {"storage": "1Gi"}
        common = {"accessModes": [mode], "storageClassName": "folders"}
        volume = {**common, "capacity": capacity, "hostPath": {"path": path}}
        volume["claimRef"] = {"namespace": NAMESPACE, "name": name}
        api = self.plane.api
        api.post(PVS, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
        spec = {**common, "resources": {"requests": capacity}, "volumeName": name}
        made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        api.post(PVCS, made)
        self.plane.wait(lambda: api.get(f"{PVCS}/{name}")["status"].get("phase") == "Bound", f"{name} is bound")

    def allow_root(self) -> None:
        """Lets burstd make pods of root, as config/openshift/scc.yaml does."""
        scc, role, _ = yaml.safe_load_all((CONFIG / "scc.yaml").read_text(encoding="utf-8"))
        if self.plane.api.find(f"{SCCS}/{scc['metadata']['name']}") is None:
            self.plane.api.post(SCCS, scc)
            self.plane.grant(NAMESPACE, ACCOUNT, role["rules"])

    def movers(self, store: str) -> list[dict[str, Any]]:
        """Those of a store of our cluster."""
        wanted = {"burstd-cluster": CLUSTER, "burstd-store": store}
        return [pod for pod in self.plane.api.get(PODS)["items"] if pod["metadata"]["labels"] == wanted]


@contextmanager
def claim_site() -> Iterator[ClaimSite]:
    """One from nothing. Use it within ``plane.reach()``."""
    folder = Path(tempfile.mkdtemp(prefix="burstd-claims-"))
    guard = LabWatchdog(folder)
    lab = Lab(folder, LabNetwork(f"c{secrets.token_hex(4)}"))
    try:
        lab.up()
        _, role, _ = yaml.safe_load_all((CONFIG / "role.yaml").read_text(encoding="utf-8"))
        image = Image(REPOSITORY, "1", pod_layers(ensure_rootfs("bookworm")))
        with KubernetesPlane(lab=lab, openshift=True) as plane, Node(plane, lab, images=[image]) as node:
            site = ClaimSite(plane, node, plane.user(NAMESPACE, role["rules"], name=ACCOUNT), folder / "claim")
            site.path.symlink_to(node.box.path(FOLDER))
            with plane.reach():
                site.create_claim("data", "ReadWriteMany")
                site.create_claim("one-node", "ReadWriteOnce")
                site.create_claim("roots", "ReadWriteMany", "/srv/roots", open_to_all=False)
            yield site
    finally:
        lab.down()
        shutil.rmtree(folder, ignore_errors=True)
        guard.end()


@dataclass
class PvcWorld(ProxiedStoreWorld):
    """The claim."""

    site: ClaimSite
    folder: Path
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        host, _, port = self.site.plane.server.rpartition("/")[2].partition(":")
        self.address = (host, int(port))

    def stager(self, cluster: str, name: str = "claim", **changes: Any) -> PvcStager:
        settings = {
            "kubeconfig": self.site.kubeconfig,
            "namespace": NAMESPACE,
            "claim": "data",
            "path": str(self.site.path),
            "image": IMAGE,
            "cpu": "100m",
            "memory": 256,
            "security": "restricted",
            "start_s": 90.0,
        }
        return PvcStager(name, cluster, PvcSettings.model_validate(settings | changes))

    def stager_through(self, proxy: FaultyProxy) -> Stager:
        return self.stager(
            CLUSTER, kubeconfig=self._changed(f"line-{proxy.port}", proxy.port), timeout_s=self.timeout_s
        )

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        token = secrets.token_urlsafe(40)
        return {
            "another token": (self.stager(CLUSTER, kubeconfig=self._changed("stranger", token=token)), token),
            "no kubeconfig": (self.stager(CLUSTER, kubeconfig=self.folder / "none"), ""),
            "no claim": (self.stager(CLUSTER, "none", claim="none"), ""),
            "one node's claim": (self.stager(CLUSTER, "one-node", claim="one-node"), ""),
            "another's folder": (self.stager(CLUSTER, "roots", claim="roots"), ""),
        }

    def begin_put(self, key: str) -> bool:
        self.stager(CLUSTER).free_bytes()
        name = f"{time.time_ns() // 1_000_000}.abcdef.{key.replace('/', '~')}"
        (self.site.path / CLUSTER / ".tmp" / name).write_bytes(b"half")
        return True

    def _changed(self, name: str, port: int = 0, token: str = "") -> Path:
        """The kubeconfig with another server or token."""
        said = yaml.safe_load(self.site.kubeconfig.read_text(encoding="utf-8"))
        if port:
            at = said["clusters"][0]["cluster"]
            at |= {"server": f"https://127.0.0.1:{port}", "tls-server-name": self.address[0]}
        if token:
            said["users"][0]["user"] = {"token": token}
        file = self.folder / f"{name}.kubeconfig"
        file.write_text(yaml.safe_dump(said), encoding="utf-8")
        return file
