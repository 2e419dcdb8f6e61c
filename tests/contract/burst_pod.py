"""A pod as the provider makes it for a machine, and burstd's staging agent in it, without Slurm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.plugins.stager import Stager
from burstd.domain.slurm.shape import Shape
from burstd.node.agent import NodeAgent
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.shell import PodShell
from providers.openshift.pods import manifest
from providers.openshift.settings import OpenShiftSettings
from tests.contract.pvc_world import IMAGE, NAMESPACE, PODS, PVCS, ClaimSite
from tests.transfer.ground import USER

OFFER = Offer("openshift", NAMESPACE, "any", "one", spot=False, shape=Shape(1, 512), price=Decimal(1))
CLAIM = Claim("c1", "lab", "any", "n1", OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0)


@contextmanager
def burst_pod(site: ClaimSite, security: str) -> Iterator[tuple[PodShell, str]]:
    """One that mounts the claim ``for-SECURITY``, entered as burstd does; and the uid that jobs' files have."""
    name = f"for-{security}"
    if site.plane.api.find(f"{PVCS}/{name}") is None:
        site.create_claim(name, "ReadWriteMany", f"/srv/{name}", open_to_all=security == "restricted")
    settings = OpenShiftSettings.model_validate(
        {
            "kubeconfig": site.kubeconfig, "namespace": NAMESPACE, "security": security, "shm": 16,
            "groups": {"any": {"sizes": {"one": {"cpus": 1, "memory": 512, "price": 1}}}},
            "mounts": [{"claim": name, "path": str(site.path)}], "scratch": {"size": "256M"},
        }
    )  # fmt: skip
    request = LaunchRequest("c1", name, OFFER, IMAGE, "", tags={"burstd-cluster": "lab", "burstd-claim": "c1"})
    calls = OpenShiftCalls(settings)
    try:
        calls.request_json("POST", calls.path_of("pods"), manifest.pod_manifest(settings, request), what="make a pod")
        site.plane.wait(lambda: _started(site, name), f"the pod {name} has started")
        uid = site.plane.api.get(f"{PODS}/{name}")["spec"]["containers"][0]["securityContext"]["runAsUser"]
        with PodShell(calls, name) as shell:
            yield shell, str(uid or USER)
        calls.request_json("DELETE", calls.path_of("pods", name), {"gracePeriodSeconds": 0}, what="end the pod")
    finally:
        calls.close()


def _started(site: ClaimSite, name: str) -> bool:
    states = site.plane.api.get(f"{PODS}/{name}").get("status", {}).get("containerStatuses") or [{}]
    return bool(states[0].get("started"))


class PodAgent:
    """Asks burstd's agent in the pod, as the head does for job 7."""

    folder = "/var/spool/burst"

    def __init__(self, shell: PodShell, stager: Stager) -> None:
        self._agent = NodeAgent(lambda _claim: shell)
        self._stager = stager

    def run_operation(self, do: str, **more: Any) -> dict[str, Any]:
        """What it says is done."""
        access = self._stager.node_access()
        request = {
            "do": do, "job": "7", "user": "ada", "uid": USER, "gid": USER, "groups": [USER],
            "dir": f"{self.folder}/7", "reach": {"kind": access.kind, "facts": dict(access.facts)}, "scratch": 0,
            "cache": {"dir": f"{self.folder}/cache", "keep_free": 0}, "prefix": "out/7/n1", **more,
        }  # fmt: skip
        return self._agent.run(
            CLAIM, request, answer=lambda _said: {}, progress=lambda _done, _of: None, cancelled=threading.Event()
        )
