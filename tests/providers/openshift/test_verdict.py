from __future__ import annotations

import json
from typing import Any

import pytest

from burstd.domain.cloud.instance import InstanceState
from providers.openshift.pods import status
from providers.openshift.pods.status import ImagePullFailure
from tests.providers.openshift.things import BORN_S, Pod, going, over, pod, running, settings, unplaced, waiting

S = InstanceState
FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
CLAIM = {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}], "containers": [{"name": "node"}]}}
UNBOUND = 'running "VolumeBinding": pod has unbound immediate PersistentVolumeClaims'
READY = [{"type": "Ready", "status": "True"}]
TABLE: list[tuple[str, Pod, float, S, str, str]] = [
    ("made", pod(), 0, S.PENDING, "", ""),
    ("nothing-said", {**pod(), "status": {}}, 0, S.PENDING, "", ""),
    ("runs", running(), 0, S.RUNNING, "", ""),
    ("start-up-probe", running(container={"state": {"running": {}}, "started": False}), 0, S.PENDING, "", ""),
    ("no-word-on-probes", running(container={"state": {"running": {}}}), 0, S.RUNNING, "", ""),
    ("no-address", running(podIP=""), 0, S.PENDING, "", ""),
    ("image-comes", waiting("ContainerCreating"), 0, S.PENDING, "", ""),
    ("full-for-a-moment", unplaced(FULL), 29, S.PENDING, "", ""),
    ("full", unplaced(FULL), 30, S.ERROR, "capacity", "3 Insufficient nvidia.com/gpu"),
    ("full-nodes-come", unplaced(FULL, group="cloud"), 899, S.PENDING, "", ""),
    ("full-none-came", unplaced(FULL, group="cloud"), 900, S.ERROR, "capacity", "Insufficient"),
    ("full-group-unknown", unplaced(FULL, group="old"), 30, S.ERROR, "capacity", "Insufficient"),
    ("others-make-room", unplaced(FULL, nominatedNodeName="w"), 99, S.PENDING, "", ""),
    ("gated", unplaced("", reason="SchedulingGated"), 99, S.PENDING, "", ""),
    ("unbound", {**unplaced(UNBOUND), **CLAIM}, 30, S.ERROR, "request", "claim data"),
    ("claim-missing", {**unplaced('persistentvolumeclaim "data" not found'), **CLAIM}, 30, S.ERROR, "request", "data"),
    ("claim-soon", {**unplaced(UNBOUND), **CLAIM}, 29, S.PENDING, "", ""),
    ("no-image", waiting("ErrImagePull", "manifest unknown"), 0, S.ERROR, "image", "manifest unknown"),
    ("no-right", waiting("ErrImagePull", "unauthorized: authentication required"), 0, S.ERROR, "image", "unauthorized"),
    ("registry-down", waiting("ErrImagePull", "dial tcp: i/o timeout"), 999, S.PENDING, "", ""),
    ("back-off", waiting("ImagePullBackOff", 'Back-off pulling image "x"'), 999, S.PENDING, "", ""),
    ("bad-name", waiting("InvalidImageName", "couldn't parse"), 0, S.ERROR, "image", "InvalidImageName"),
    ("never-pull", waiting("ErrImageNeverPull", "not present"), 0, S.ERROR, "image", "ErrImageNeverPull"),
    ("no-config", waiting("CreateContainerConfigError", "secret x"), 0, S.ERROR, "request", "secret x"),
    ("runtime-is-busy", waiting("CreateContainerError", "context deadline exceeded"), 999, S.PENDING, "", ""),
    ("evicted", over("Failed", 137, "Error", reason="Evicted", message="low on memory"), 0, S.TERMINATED, "",
     "Evicted: low on memory"),
    ("evicted-old", pod(phase="Failed", reason="Evicted", message="disk"), 0, S.TERMINATED, "", "Evicted: disk"),
    ("not-admitted", pod(phase="Failed", reason="Evicted", message="Pod The node had condition: [MemoryPressure]. "), 0,
     S.ERROR, "capacity", "MemoryPressure"),
    ("memory", over("Failed", 137, "OOMKilled"), 0, S.TERMINATED, "", "exit code 137: OOMKilled"),
    ("ended", over("Succeeded", 0, "Completed"), 0, S.TERMINATED, "", "exit code 0"),
    ("ended-silently", pod(phase="Succeeded"), 0, S.TERMINATED, "", "it ended"),
    ("no-room-after-all", pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough"), 0,
     S.ERROR, "capacity", "OutOfcpu"),
    ("device-gone", pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed"), 0,
     S.ERROR, "capacity", "Allocate failed"),
    ("not-admitted-any-more", pod(phase="Failed", reason="NodeShutdown", message="Pod was rejected as the node"), 0,
     S.ERROR, "capacity", "NodeShutdown"),
    *((f"taken-{why}", pod(phase="Failed", reason=why, message="words"), 0, S.TERMINATED, "", f"it ended: {why}: words")
      for why in ("Shutdown", "Terminated", "Preempting", "DeadlineExceeded", "NodeLost")),
    ("container-lost", over("Failed", 137, "ContainerStatusUnknown", "could not be located", started=None), 0,
     S.TERMINATED, "", "ContainerStatusUnknown"),
    ("no-program", over("Failed", 128, "StartError", 'exec: "/bin/sh": no such file or directory', started=None), 0,
     S.ERROR, "image", "cannot start"),
    ("bad-driver", over("Failed", 128, "StartError", "nvidia-container-cli: driver error", started=None), 0,
     S.ERROR, "", "driver error"),
    ("taken", {**going(), "status": running(conditions=READY)["status"]}, -1, S.RUNNING, "", ""),
    ("taken-time-over", {**going(), "status": running(conditions=READY)["status"]}, 0, S.STOPPING, "", ""),
    ("taken-node-lost", going(), -1, S.STOPPING, "", ""),
    ("ended-by-us", {**going(grace=10), "status": running(conditions=READY)["status"]}, -1, S.STOPPING, "", ""),
    ("going-dead", {**over("Failed", 1, "Error"), "metadata": going()["metadata"]}, -1, S.STOPPING, "", ""),
    ("kept", going(finalizers=["example.com/backup"]), 1, S.STOPPING, "", "example.com/backup"),
    ("not-confirmed", going(), 61, S.STOPPING, "", "node worker does not confirm"),
    ("lost", pod(phase="Unknown", message="node is gone"), 0, S.UNKNOWN, "", "node is gone"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said", "after", "state", "cause", "words"), TABLE, ids=[row[0] for row in TABLE])
def test_verdicts(name: str, said: Pod, after: float, state: S, cause: str, words: str) -> None:
    found = status.pod_verdict(said, settings(), BORN_S + after)
    assert (found.state, found.cause) == (state, cause)
    assert words in found.error
    assert bool(found.error) == bool(words)


@pytest.mark.parametrize(
    ("words", "for_s", "state"),
    [("dial tcp: i/o timeout", 119, S.PENDING), ("dial tcp: i/o timeout", 120, S.ERROR), ("denied", 0, S.ERROR)],
)
def test_an_image_is_waited_for_but_not_for_ever(words: str, for_s: float, state: S) -> None:
    found = status.pod_verdict(
        waiting("ImagePullBackOff", "Back-off pulling image"), settings(), 0, ImagePullFailure(words, for_s)
    )
    assert found.state is state
    if state is S.ERROR:
        assert (found.cause, words in found.error) == ("image", True)


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "NodeAffinity", "OutOfcpu", ""])
def test_what_has_started_has_ended_whatever_a_kubelet_says(reason: str) -> None:
    """One that was restarted admits its pods anew."""
    said = pod(phase="Failed", reason=reason, message="Allocate failed")
    found = status.pod_verdict(said, settings(), BORN_S, ran=True)
    assert (found.state, found.cause) == (S.TERMINATED, "")
    assert "Allocate failed" in found.error


@pytest.mark.parametrize("reason", ["CreateContainerError", "RunContainerError"])
@pytest.mark.parametrize(
    ("words", "for_s", "state", "cause"),
    [('name "node" is reserved for "0a1b"', 119, S.PENDING, ""), ('name "node" is reserved', 120, S.ERROR, ""),
     ("exec: sh: executable file not found in $PATH", 120, S.ERROR, "image")],
)  # fmt: skip
def test_a_runtime_is_given_time_to_make_the_container(
    reason: str, words: str, for_s: float, state: S, cause: str
) -> None:
    said = waiting(reason, words)
    assert status.image_pull_message(said) == words
    found = status.pod_verdict(said, settings(), 0, ImagePullFailure(words, for_s))
    assert (found.state, found.cause, words in found.error) == (state, cause, state is S.ERROR)


def test_why_somebody_else_takes_it() -> None:
    said = going()
    said["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "message": "preempted by urgent"}]
    assert status.pod_verdict(said, settings(), BORN_S - 60).error == "preempted by urgent"


def network(*networks: Any) -> Pod:
    return running(metadata={"annotations": {"k8s.v1.cni.cncf.io/network-status": json.dumps(networks)}})


@pytest.mark.parametrize(
    ("said", "address"),
    [(network({"name": "burst/fast", "ips": ["192.168.9.1"]}), "192.168.9.1"),
     (network({"name": "ovn", "ips": ["10.0.0.1"]}, {"name": "fast", "ips": ["192.168.9.2"]}), "192.168.9.2"),
     (network({"name": "burst/fast"}), ""), (network("no"), ""), (running(), "")],
)  # fmt: skip
def test_the_address_may_be_of_another_network(said: Pod, address: str) -> None:
    made = status.instance_of_pod(said, "p", settings(network="fast"), BORN_S)
    assert (made.address, made.state) == (address, S.RUNNING if address else S.PENDING)


def test_an_instance() -> None:
    notes = {"burstd/tags": json.dumps({"burstd-slot": "gpu01", "burstd-claim": "not this one"})}
    made = status.instance_of_pod(running(metadata={"annotations": notes}), "p", settings(), BORN_S)
    assert (made.id, made.name, made.claim_id, made.provider) == ("node-1", "node-1", "claim-node-1", "p")
    assert (made.zone, made.instance_type, made.address, made.launched) == ("gpu", "one", "10.1.0.5", BORN_S)
    assert made.tags == {"burstd-slot": "gpu01", "burstd-claim": "claim-node-1", "burstd-cluster": "hpc"}


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_it_has_ended_with_our_container(phase: str) -> None:
    """One that a cluster put beside it may go on, or still wait for its image."""
    said = over(phase, 1, "Error", podIP="10.1.0.5")
    said["status"]["containerStatuses"].insert(0, {"name": "mesh", "state": {"running": {}}, "started": True})
    assert status.pod_verdict(said, settings(), BORN_S) == (
        S.TERMINATED,
        "its container ended with exit code 1: Error",
        "",
    )
    assert status.is_dead(said)
    said["metadata"] |= going()["metadata"]
    assert status.pod_verdict(said, settings(), BORN_S - 1).state is S.STOPPING
    assert not status.is_dead(said)


def test_a_container_that_a_cluster_put_beside_ours_says_nothing() -> None:
    said = running()
    said["status"]["containerStatuses"].insert(0, {"name": "mesh", "state": {"waiting": {"reason": "ErrImagePull"}}})
    assert status.pod_verdict(said, settings(), BORN_S).state is S.RUNNING
