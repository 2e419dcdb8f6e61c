"""A real node of the lab's Kubernetes: a box in which containerd and the kubelet run, and a device plug-in for GPUs.

with Cluster() as slurm, KubernetesPlane(lab=slurm.lab) as plane, Node(plane, slurm.lab, images=[...]) as node:

Its pods have addresses in the lab's network, as boxes have. It has more processors than this machine.
"""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs, ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from tests.lab import slurm_files
from tests.lab.kept import LabFailed
from tests.lab.kubernetes.images import PAUSE, Image, Layer, archive
from tests.lab.kubernetes.plane import KubernetesPlane

_HERE = Path(__file__).parent
_SUITE = "bookworm"
_DISK_MIB = 16384
"""In memory, as it is used: what all pods may write."""
_READY_S = 60.0
_CLEAN_S = 30.0
# The packages start their daemons where they are not kept from it.
_INSTALL = """set -e
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get update -qq
apt-get install -y -qq --no-install-recommends containerd runc containernetworking-plugins python3-grpcio >/dev/null
rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /tmp/*
"""
# Pods may run as any user, who is then in the group 0.
_POD = "chmod g=u /etc/passwd /etc/group /home /run /run/munge /var/lib/slurm/slurmd /var/log/slurm"
REPOSITORY = "registry.lab.test/hpc/node"


def pod_layers(rootfs: Rootfs) -> tuple[Layer, ...]:
    """What slurmd's images have in common: the boxes' root file system, the site's users, folders for any user."""
    *shell, script = slurm_files.prepare()
    build = [*shell, f"{script}; {_POD}"]
    return Layer("rootfs", rootfs.path), Layer("site", ensure_layer(rootfs, " ".join(build), build))


class Node:
    """One node; ``images`` are all that its pods can have: there is no registry.

    ``address`` is its own, pods get the last 200 addresses of ``pods``/24. ``gpus`` are numbers of its GPUs'
    devices, nvidia.com/gpu. It ends with ``down``, with ``with``, and with the lab.
    """

    def __init__(
        self,
        plane: KubernetesPlane,
        lab: Lab,
        name: str = "node1",
        address: str = "10.77.0.50",
        *,
        pods: str = "10.77.100.0",
        cpus: int = 16,
        gpus: Sequence[int] = (),
        images: Sequence[Image],
        labels: Mapping[str, str] | None = None,
        progress: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self.plane = plane
        self.lab = lab
        self.name = name
        self.address = address
        self._pods = ipaddress.ip_address(pods)
        self._cpus = cpus
        self._gpus = tuple(gpus)
        self._images = tuple(images)
        self._labels = dict(labels or {})
        self._progress = progress
        self._group = f"burstd-{lab.network.name}-{name}"
        self._cleaner: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def box(self) -> Box:
        """The machine."""
        return self.lab.box(self.name)

    def up(self) -> Self:
        """Starts it; returns when pods can be made on it. Raises LabFailed, SandboxError."""
        rootfs = ensure_rootfs(_SUITE, progress=self._progress)
        programs = ensure_layer(rootfs, _INSTALL, ["sh", "-c", _INSTALL], progress=self._progress)
        box = self.lab.start(self._spec([programs, rootfs.path]))
        words = [sys.executable, "-I", "-S", str(_HERE / "cgroups.py"), str(box.directory / "process.json")]
        self._cleaner = subprocess.Popen([*words, self._group], start_new_session=True, cwd="/")
        box.wait_booted()
        done = box.run(["/opt/node.sh", *self._words()], check=False)
        if done.returncode != 0:
            raise LabFailed(f"the node {self.name} could not be made: {done.stderr.strip()[-2000:]}")
        self._wait_ready()
        return self

    def _spec(self, layers: Sequence[Path]) -> BoxSpec:
        files = self.plane.node(self.name, self.address)
        pause = next(image.layers[:1] for image in self._images)
        images = [Image(PAUSE.rpartition(":")[0], "1", pause, ("/usr/bin/sleep", "infinity")), *self._images]
        folders = {one.name: one.folder for image in images for one in image.layers if one.folder is not None}
        certificates = {files.ca: "ca.crt", files.serving.cert: "kubelet.crt", files.serving.key: "kubelet.key"}
        return BoxSpec(
            self.name,
            self.address,
            layers,
            ssh=False,
            disk_mib=_DISK_MIB,
            binds=[
                BindMount(Path(self.plane.kubectl).parent, "/opt/kubernetes"),
                # The kubeconfig names its certificates by where they are on this machine.
                BindMount(files.ca.parent),
                BindMount(files.kubeconfig, "/etc/kubernetes/kubeconfig"),
                *(BindMount(file, f"/etc/kubernetes/{name}") for file, name in certificates.items()),
                *(BindMount(folder, f"/images/{name}") for name, folder in folders.items()),
            ],
            files=[
                BoxFile("/opt/node.sh", (_HERE / "node.sh").read_text(encoding="utf-8"), 0o755),
                BoxFile("/opt/device_plugin.py", (_HERE / "device_plugin.py").read_text(encoding="utf-8")),
                BoxFile("/run/node/images.tar", archive(images)),
            ],
        )

    def _words(self) -> list[str]:
        network = self.lab.network
        return [
            self.name, self.address, network.subnet, str(self._pods + 50), str(self._pods + 249), network.gateway,
            str(self._cpus), self._group, *map(str, self._gpus),
        ]  # fmt: skip

    def _wait_ready(self) -> None:
        path = f"/api/v1/nodes/{self.name}"

        def ready() -> bool:
            if not self.box.alive:
                raise LabFailed(f"the node {self.name} has ended: {self.box.console()[-2000:]}")
            node = self.plane.api.find(path)
            return node is not None and _takes_pods(node, len(self._gpus))

        with self.plane.reach():
            try:
                self.plane.wait(ready, f"the node {self.name} is ready")
            except LabFailed as failed:
                raise LabFailed(f"{failed}\n{self.log('kubelet')[-3000:]}") from None
            if self._labels:
                self.plane.api.patch(path, {"metadata": {"labels": self._labels}})

    def log(self, name: str) -> str:
        """What ``containerd``, ``kubelet`` or ``device_plugin`` has said."""
        return self.box.run(["cat", f"/var/log/{name}.log"], check=False).stdout

    def groups(self) -> list[Path]:
        """Its control groups on this machine: none when it is down."""
        return sorted(Path("/sys/fs/cgroup").glob(f"*/{self._group}"))

    def down(self) -> None:
        """Ends it as a power cut would, and removes all of it but its record in the cluster. May be repeated."""
        found = Box.load(self.lab.boxes_directory / self.name)
        if found is not None:
            found.stop()
        if self._cleaner is not None:
            cleaner, self._cleaner = self._cleaner, None
            if cleaner.wait(_CLEAN_S) != 0:
                raise BoxFailed(f"the control groups {self._group} are left", "remove them from /sys/fs/cgroup")


def _takes_pods(node: Mapping[str, Any], gpus: int) -> bool:
    status = node["status"]
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    offered = int(status.get("allocatable", {}).get("nvidia.com/gpu", 0))
    return ready and not node["spec"].get("taints") and offered == gpus
