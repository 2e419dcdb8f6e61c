"""The mover pod of a PVC store: when it is made, taken, replaced and waited for, and what people are told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import staging.pvc.mover
from burstd.domain.errors import CloudUnavailable, NotAllowed, NotFound, OutcomeUnknown, QuotaExceeded
from burstd.domain.plugins.stager import StagerError, StoreBusy, StoreRefused
from providers.openshift.errors import KubernetesAlreadyExists, KubernetesConflict
from staging.pvc.mover_pod import CONTAINER, MoverPod, mover_pod_manifest, mover_pod_name, pvc_fault
from staging.pvc.settings import PvcSettings

pytestmark = pytest.mark.slow

SHARED = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
PENDING = {"phase": "Pending"}
RUNNING = {"phase": "Running"}


def settings(**changes: Any) -> PvcSettings:
    return PvcSettings.model_validate(
        {"namespace": "burst", "claim": "data", "path": "/data", "image": "node:1", "start_s": 0.2} | changes
    )


class Cluster:
    """Stands in for Calls: one pod at most, whose status is told in steps; the last one lasts."""

    def __init__(self, *statuses: Mapping[str, Any]) -> None:
        self.statuses = list(statuses)
        self.found: dict[str, Any] | None = None
        self.claim: Mapping[str, Any] | Exception = SHARED
        self.wrong: dict[str, Exception] = {}
        """By method: what is raised, once."""
        self.lasts = False
        """It is raised each time."""
        self.asked: list[str] = []

    def request_json(self, method: str, path: str, body: Any = None, **more: object) -> Any:  # noqa: ARG002 - as Calls.ask
        self.asked.append(method)
        if "persistentvolumeclaims" in path:
            if isinstance(self.claim, Exception):
                raise self.claim
            return self.claim
        if method in self.wrong:
            raise self.wrong[method] if self.lasts else self.wrong.pop(method)
        if method == "POST":
            self.found = {**body, "metadata": {**body["metadata"], "uid": "1"}}
        elif self.found is None:
            raise NotFound("no such pod")
        elif method == "DELETE":
            assert body["preconditions"] == {"uid": self.found["metadata"]["uid"]}
            self.found = None
        else:
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return {**self.found, "status": status}
        return {}

    def mover(self, **changes: Any) -> MoverPod:
        return MoverPod("near", "lab", settings(**changes), lambda: self)  # type: ignore[arg-type, return-value]

    def changes(self) -> list[str]:
        return [method for method in self.asked if method != "GET"]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": CONTAINER, "state": state}]}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": CONTAINER, "state": state}]}


def unscheduled(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def test_it_is_made_once_and_taken_from_then_on() -> None:
    cluster = Cluster(PENDING, waiting("ContainerCreating"), RUNNING)
    cluster.mover(start_s=20.0).ensure_running(threading.Event())
    cluster.mover(start_s=20.0).ensure_running(threading.Event())
    assert cluster.changes() == ["POST"]


@pytest.mark.parametrize("error", [KubernetesAlreadyExists("there"), OutcomeUnknown("no answer")])
def test_one_that_another_has_made_or_that_may_be_there_is_looked_for(error: Exception) -> None:
    cluster = Cluster(RUNNING)
    cluster.wrong["POST"] = error
    cluster.mover(start_s=20.0).ensure_running(threading.Event())
    assert cluster.changes() == ["POST", "POST"]


@pytest.mark.parametrize("error", [KubernetesAlreadyExists("there"), OutcomeUnknown("no answer")])
def test_one_that_never_shows_is_waited_for_no_longer_than_any(error: Exception) -> None:
    cluster = Cluster(RUNNING)
    cluster.wrong["POST"], cluster.lasts = error, True
    done: list[Exception] = []

    def up(stop: threading.Event) -> None:
        try:
            cluster.mover().ensure_running(stop)
        except StoreBusy as busy:
            done.append(busy)

    stop = threading.Event()
    thread = threading.Thread(target=up, args=(stop,))
    thread.start()
    thread.join(20)
    stop.set()
    thread.join()
    assert "not up after 0 s: it is made" in str(done[0])
    assert len(cluster.changes()) < 5


@pytest.mark.parametrize("name", [CONTAINER, "mesh"])
def test_it_has_ended_when_its_own_container_has(name: str) -> None:
    """In a pod into which the cluster has put another container."""
    cluster = Cluster({"phase": "Running", "containerStatuses": [
        {"name": name, "state": {"terminated": {"exitCode": 0}}},
        {"name": CONTAINER + name, "state": {"running": {}}},
    ]}, RUNNING)  # fmt: skip
    cluster.found = mover_pod_manifest(mover_pod_name("lab", "near"), "lab", "near", settings())
    cluster.found["metadata"]["uid"] = "0"
    cluster.mover(start_s=20.0).ensure_running(threading.Event())
    assert cluster.changes() == (["DELETE", "POST"] if name == CONTAINER else [])
    cluster.statuses = [{"phase": "Running", "containerStatuses": ended(0)["containerStatuses"]}]
    assert not cluster.mover(start_s=20.0).delete_if_ended()
    assert cluster.found is None


def test_one_that_has_ended_or_is_of_other_settings_is_made_anew() -> None:
    cluster = Cluster({"phase": "Succeeded"}, RUNNING)
    cluster.found = mover_pod_manifest(mover_pod_name("lab", "near"), "lab", "near", settings())
    cluster.found["metadata"]["uid"] = "0"
    cluster.mover(start_s=20.0).ensure_running(threading.Event())
    assert cluster.changes() == ["DELETE", "POST"]
    cluster.wrong["DELETE"] = KubernetesConflict("another one by now")
    cluster.mover(image="node:2", start_s=20.0).ensure_running(threading.Event())
    assert cluster.changes()[2:] == ["DELETE", "DELETE", "POST"]


def test_one_that_has_ended_is_tidied_away_and_no_other() -> None:
    cluster = Cluster(RUNNING)
    mover = cluster.mover()
    mover.ensure_running(threading.Event())
    assert mover.delete_if_ended()
    cluster.statuses = [{"phase": "Succeeded"}]
    assert not mover.delete_if_ended()
    assert cluster.found is None
    assert not mover.delete_if_ended()


def test_somebody_elses_is_let_alone() -> None:
    cluster = Cluster(RUNNING)
    cluster.found = {
        "metadata": {"name": mover_pod_name("lab", "near"), "uid": "0", "labels": {"burstd-cluster": "other"}}
    }
    with pytest.raises(StoreRefused, match="not this store's"):
        cluster.mover().ensure_running(threading.Event())
    cluster.mover().delete_if_ended()
    assert cluster.changes() == []


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (waiting("ErrImagePull", "manifest unknown"), StoreRefused, r"node:1 .*ErrImagePull: manifest unknown"),
        (waiting("ImagePullBackOff"), StoreRefused, "pull_secrets"),
        (waiting("CreateContainerConfigError", "runAsNonRoot"), StoreRefused, "cannot start .*runAsNonRoot"),
        (ended(128, "StartError", "exec: python9: not found"), StoreRefused, r"no python3: .* \(python\)"),
        (
            ended(staging.pvc.mover.OLD_PYTHON, message="Python 3.9 is older than 3.11"),
            StoreRefused,
            "Python 3.9 .*image",
        ),
        (ended(137, "OOMKilled"), StoreBusy, "OOMKilled, exit status 137"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, StoreBusy, "low on memory"),
        (unscheduled("0/3 nodes are available: 3 Insufficient cpu"), StoreBusy, r"after 0 s: no node .*cpu"),
        (unscheduled('persistentvolumeclaim "data" not found'), StoreRefused, "make the claim"),
        (unscheduled("pod has unbound immediate PersistentVolumeClaims"), StoreBusy, "unbound"),
        (waiting("ContainerCreating"), StoreBusy, "ContainerCreating"),
    ],
)
def test_why_it_does_not_come_up(status: Mapping[str, Any], kind: type[StagerError], says: str) -> None:
    with pytest.raises(kind, match=says) as told:
        Cluster(status).mover().ensure_running(threading.Event())
    assert "the store near (claim data in burst)" in str(told.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CloudUnavailable("down", retry_after_s=7.0), StoreBusy),
        (QuotaExceeded("exceeded quota"), StoreBusy),
        (NotAllowed("no right; bind the Role"), StoreRefused),
    ],
)
def test_what_the_api_server_says(error: Exception, kind: type[StagerError]) -> None:
    cluster = Cluster(RUNNING)
    cluster.wrong["POST"] = error
    with pytest.raises(kind, match=str(error)) as told:
        cluster.mover().ensure_running(threading.Event())
    if isinstance(told.value, StoreBusy):
        assert told.value.retry_after_s == getattr(error, "retry_after_s", 0.0)


def test_a_claim_that_is_not_there_or_may_not_be_read() -> None:
    cluster = Cluster(RUNNING)
    cluster.claim = NotFound("none")
    with pytest.raises(StoreRefused, match=r"make a PersistentVolumeClaim data \(ReadWriteMany\) in burst"):
        cluster.mover().ensure_running(threading.Event())
    assert cluster.changes() == []
    cluster.claim = NotAllowed("no right")
    cluster.mover().ensure_running(threading.Event())


@pytest.mark.parametrize(
    ("claim", "one_node", "says"),
    [
        (SHARED, False, ""),
        ({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}, False, ""),
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, True, ""),
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, False, "only one node at a time can mount"),
        ({"spec": {"accessModes": ["ReadOnlyMany"]}}, True, "ReadOnlyMany, and pods must write"),
        ({"spec": {"accessModes": ["ReadWriteOncePod"]}}, True, "ReadWriteOncePod"),
        ({"spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}}, False, "block device"),
        ({**SHARED, "status": {"phase": "Lost"}}, False, "its volume is lost"),
    ],
)
def test_which_claims_pods_can_share(claim: Mapping[str, Any], one_node: bool, says: str) -> None:
    fault = pvc_fault(claim, one_node=one_node)
    assert says in fault
    assert bool(says) == bool(fault)


def test_the_pod_is_what_a_restricted_cluster_takes() -> None:
    made = mover_pod_manifest(
        "name", "lab", "near", settings(security="restricted", run_as=1007, sub_path="burst", memory="1G")
    )
    spec = made["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"}, "runAsNonRoot": True, "runAsUser": 1007,
    }  # fmt: skip
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"cpu": "500m", "memory": "1024Mi"}
    assert container["volumeMounts"] == [{"name": "store", "mountPath": "/data", "subPath": "burst"}]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert made["metadata"]["labels"] == {"burstd-cluster": "lab", "burstd-store": "near"}


def test_names_are_those_of_pods_and_never_two_stores_the_same() -> None:
    stores = [("lab", "near"), ("lab-near", "x"), ("lab", "near-x"), ("Lab", "near"), ("l" * 80, "n" * 80), ("_", "-")]
    names = [mover_pod_name(cluster, store) for cluster, store in stores]
    assert len(set(names)) == len(stores)
    for name in names:
        assert len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert name[-1].isalnum()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"run_as": 5}, "run_as is for"),
        ({"image": "imagestream:node:1"}, "must be a reference"),
        ({"image": ""}, "image"),
        ({"path": "data"}, "absolute path"),
        ({"page": 5}, "page"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(**wrong)


def test_the_first_process_ends_when_nobody_is_there(tmp_path: Path) -> None:
    """In a process namespace of its own, as in a pod: a session keeps it, the end of the session lets it go."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    program = Path(staging.pvc.mover.__file__).read_text(encoding="utf-8")
    words = [sys.executable, "-I", "-c", program, "0.2", "0.2"]
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    with subprocess.Popen([*alone, *words], stdin=subprocess.DEVNULL) as pid1:
        assert pid1.wait(20) == 0
    # A session that has lost its parent is this one's to bury.
    session = "import os, time; os.fork() or time.sleep(0.4)"
    script = f'"$1" -c "{session}" & exec "$@"'
    with subprocess.Popen([*alone, "sh", "-c", script, "sh", *words], stdin=subprocess.DEVNULL) as pid1:
        with pytest.raises(subprocess.TimeoutExpired):
            pid1.wait(0.45)
        assert pid1.wait(20) == 0
