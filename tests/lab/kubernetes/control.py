"""The command lines of one control plane's processes, and the files that they read."""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.sandbox.boxes.machine import tool_path
from tests.lab.kubernetes.certificates import Authority, signing_key

PORT = 6443
_ETCD, _PEER, _HEALTH = 2379, 2380, 10251
APISERVER, CONTROLLERS, SCHEDULER, ETCD = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"
_CONTROLLERS = (
    "attachdetach", "clusterrole-aggregation", "daemonset", "deployment", "disruption", "endpoint", "garbagecollector",
    "job", "namespace", "nodelifecycle", "persistentvolume-binder", "podgc", "pv-protection", "pvc-protection",
    "replicaset", "resourcequota", "root-ca-cert-publisher", "serviceaccount", "serviceaccount-token", "statefulset",
)  # fmt: skip
_OWN_VOLUMES = 'mkdir -p "$0" /tmp/hostpath_pv && mount --bind "$0" /tmp/hostpath_pv && exec "$@"'
"""The controllers make volumes in that folder, wherever they run: theirs is in their own state."""
_ADMISSION = ("NodeRestriction", "ResourceQuota", "LimitRanger")


@dataclass(frozen=True)
class Control:
    """What the processes of one control plane are told. ``host`` is the address that the API is at.

    ``flags`` are more words for a program, by its name.
    """

    state: Path
    bin: Path
    host: str
    node_lost_s: float
    watch_cache: bool
    flags: Mapping[str, Sequence[str]]
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def inner(self) -> str:
        """The address of what only the control plane itself speaks to."""
        return self.host if ipaddress.ip_address(self.host).is_loopback else "127.0.0.1"

    @property
    def etcd(self) -> str:
        """Its URL."""
        return f"http://{self.inner}:{_ETCD}"

    @property
    def server(self) -> str:
        """The API's URL."""
        return f"https://{self.host}:{PORT}"

    @property
    def pki(self) -> Path:
        """Where certificates and keys are."""
        return self.state / "pki"

    @property
    def ca(self) -> Path:
        """What clients are to trust."""
        return self.pki / "ca.crt"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "admin.kubeconfig"

    def write(self) -> Authority:
        """Writes the files."""
        authority = Authority(self.pki)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        authority.pair("server", hosts=(self.host, "127.0.0.1", *names))
        authority.pair("kubelet-client", organization="system:masters")
        signing_key(self.pki)
        self._private("tokens.csv", f'{self.token},admin,admin,"system:masters"\n')
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(self.config({"token": self.token}), encoding="utf-8")
        scheduler = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 500, "burst": 1000},
            "leaderElection": {"leaderElect": False},
            "podMaxBackoffSeconds": 2,
            "healthzBindAddress": f"{self.inner}:{_HEALTH}",
            "metricsBindAddress": f"{self.inner}:{_HEALTH}",
        }
        self._private("scheduler.yaml", json.dumps(scheduler))
        return authority

    def config(self, user: Mapping[str, str], namespace: str = "default") -> str:
        """A kubeconfig with the API's address and the CA in it. JSON is YAML."""
        found: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "user", "user": dict(user)}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user", "namespace": namespace}}],
            "current-context": "lab",
        }
        return json.dumps(found, indent=1)

    def words(self, name: str) -> list[str]:
        """A program's command line."""
        made = {
            ETCD: self._etcd_words,
            APISERVER: self._api_words,
            CONTROLLERS: self._controller_words,
            SCHEDULER: self._scheduler_words,
        }[name]()
        program = name if name == ETCD else str(self.bin / name)
        alone = [tool_path("unshare"), "--mount", "--", "sh", "-c", _OWN_VOLUMES, f"{self.state}/volumes"]
        return [*(alone if name == CONTROLLERS else ()), program, *made, *self.flags.get(name, ())]

    def _etcd_words(self) -> list[str]:
        peer = f"http://{self.inner}:{_PEER}"
        return [
            f"--data-dir={self.state}/etcd", "--unsafe-no-fsync",
            f"--listen-client-urls={self.etcd}", f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        ]  # fmt: skip

    def _api_words(self) -> list[str]:
        pki = self.pki
        return [
            f"--etcd-servers={self.etcd}", f"--bind-address={self.host}", f"--advertise-address={self.host}",
            f"--secure-port={PORT}", "--insecure-port=0", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key",
            f"--client-ca-file={self.ca}", f"--kubelet-certificate-authority={self.ca}",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key", "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/tokens.pub", f"--service-account-signing-key-file={pki}/tokens.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.200.0.0/24",
            f"--token-auth-file={self.state}/tokens.csv", "--authorization-mode=Node,RBAC", "--allow-privileged=true",
            f"--enable-admission-plugins={','.join(_ADMISSION)}", f"--watch-cache={str(self.watch_cache).lower()}",
            # Compaction is made on order.
            "--etcd-compaction-interval=0", "--profiling=false",
        ]  # fmt: skip

    def _controller_words(self) -> list[str]:
        period_s = min(1.0, self.node_lost_s / 4)
        return [
            f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0", "--secure-port=0",
            f"--service-account-private-key-file={self.pki}/tokens.key", f"--root-ca-file={self.ca}",
            f"--controllers={','.join(_CONTROLLERS)}", "--profiling=false",
            "--kube-api-qps=500", "--kube-api-burst=1000",
            f"--node-monitor-grace-period={self.node_lost_s}s", f"--node-monitor-period={period_s}s",
            "--node-startup-grace-period=30s", "--node-eviction-rate=100", "--secondary-node-eviction-rate=100",
            "--unhealthy-zone-threshold=1", "--pvclaimbinder-sync-period=2s", "--enable-hostpath-provisioner=true",
        ]  # fmt: skip

    def _scheduler_words(self) -> list[str]:
        return [f"--config={self.state}/scheduler.yaml", "--secure-port=0", "--profiling=false"]

    def _private(self, name: str, text: str) -> None:
        file = self.state / name
        file.touch(mode=0o600)
        file.write_text(text, encoding="utf-8")
