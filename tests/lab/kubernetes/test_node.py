"""The real node of the lab: what its pods have, and that nothing of it is left, however it ends."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.lab.guard import LabWatchdog
from tests.lab.kubernetes import device_plugin
from tests.lab.kubernetes.images import Image, Layer
from tests.lab.kubernetes.node import REPOSITORY, Node, pod_layers
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.remains import remains

PROJECT = Path(__file__).parents[3]
PODS = "/api/v1/namespaces/burst/pods"
PATIENCE_S = 60.0
BESIDE = "10.77.0.9"
ALONE = """
import json, signal
from tests.lab.kubernetes.test_node import ground
with ground() as (node, _):
    print(json.dumps([str(node.lab.state), node.lab.network.name, str(node.plane.state)]), flush=True)
    signal.pause()
"""
LOOK = f"cat /made; ls /dev/nvidia*; until ping -c 1 -W 1 {BESIDE} >/dev/null; do :; done; exec sleep infinity"


def image() -> Image:
    """With a file of its own."""
    return Image(
        REPOSITORY, "1", [*pod_layers(ensure_rootfs("bookworm")), Layer("made", files={"made": b"by a layer\n"})]
    )


@contextmanager
def ground() -> Iterator[tuple[Node, Box]]:
    """A node with two GPUs in a lab of its own, and a box beside it."""
    folder = Path(tempfile.mkdtemp(prefix="burstd-node-"))
    guard = LabWatchdog(folder)
    lab = Lab(folder, LabNetwork(f"n{secrets.token_hex(4)}"))
    rootfs = ensure_rootfs("bookworm")
    try:
        lab.up()
        beside = lab.start(BoxSpec("beside", BESIDE, [rootfs.path], ssh=False))
        with KubernetesPlane(lab=lab) as plane, Node(plane, lab, gpus=(3, 5), images=[image()]) as node:
            plane.namespace("burst")
            yield node, beside
    finally:
        lab.down()
        shutil.rmtree(folder, ignore_errors=True)
        guard.end()


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


def pod(name: str, gpus: int = 0) -> dict[str, Any]:
    """By the image's digest."""
    limits = {"cpu": "4", "memory": "64Mi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {
        "name": "main",
        "image": image().reference,
        "command": ["sh", "-c", LOOK],
        "resources": {"limits": limits},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def unscheduled(found: dict[str, Any]) -> str:
    """Why the scheduler has no node for a pod, as far as it has said."""
    conditions = found["status"].get("conditions", ())
    return "".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")


def test_messages_of_the_device_plug_in() -> None:
    long = "n" * 300
    message = device_plugin.field(1, "3") + device_plugin.field(2, long) + device_plugin.field(1, b"")
    assert message[:6] == b"\x0a\x013\x12\xac\x02", "a length of 300 takes two bytes"
    assert device_plugin.fields(message) == [(1, b"3"), (2, long.encode()), (1, b"")]


@pytest.mark.boxes
@pytest.mark.clouds
def test_a_pod_is_on_the_labs_network_with_the_devices_it_asked_for() -> None:
    with ground() as (node, beside), node.plane.reach():
        api = node.plane.api
        for number, gpus in enumerate((2, 1)):
            api.post(PODS, pod(f"pod{number}", gpus))
        wait(lambda: api.get(f"{PODS}/pod0")["status"]["phase"] == "Running", "the pod runs")
        said = "by a layer\n/dev/nvidia3\n/dev/nvidia5\n"
        wait(lambda: api.ask("GET", f"{PODS}/pod0/log")["message"] == said, "it sees its layer and its GPUs")
        address = api.get(f"{PODS}/pod0")["status"]["podIP"]
        beside.run(["ping", "-c", "1", "-W", "5", address])
        wait(lambda: "Insufficient nvidia.com/gpu" in unscheduled(api.get(f"{PODS}/pod1")), "the other has no GPU")
        api.delete(f"{PODS}/pod0")
        wait(lambda: api.get(f"{PODS}/pod1")["status"]["phase"] == "Running", "its GPU is given to the other")
        groups = node.groups()
        assert groups
    assert node.groups() == []


@pytest.mark.boxes
@pytest.mark.clouds
def test_nothing_is_left_of_a_node_whose_test_is_killed() -> None:
    words = [sys.executable, "-c", ALONE]
    with subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True, start_new_session=True) as killed:
        assert killed.stdout is not None
        state, name, plane = json.loads(killed.stdout.readline())
        groups = Path("/sys/fs/cgroup")
        assert [*groups.glob(f"*/burstd-{name}-node1")]
        killed.kill()
    wait(lambda: not remains(name, Path(state)) and not remains(plane, Path(plane)), "nothing is left of it")
    wait(lambda: not [*groups.glob(f"*/burstd-{name}-node1")], "its control groups are gone")
