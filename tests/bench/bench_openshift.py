"""Two hundred pods at once, from the request to the end of the last: ``python -m tests.bench.bench_openshift`` (root).

First the provider's calls one by one, then the real provider, observer, launcher, store and loop, against the lab's
control plane: the real API server, scheduler, controllers and etcd, with hollow nodes that are in a process of their
own and run nothing. Slurm and the insides of the pods are simulated in this process, and their processor time is left
out. For each call or phase: API calls by method and kind, and processor seconds of burstd, of HTTP in it, and of the
control plane with etcd.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import urllib3

from burstd.domain.slurm.shape import Shape
from burstd.runtime import logs
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.provider import OpenShiftProvider
from providers.openshift.settings import OpenShiftSettings
from tests.bench.burst import CLUSTER, DaemonBench, LibraryMeter, ProviderBench
from tests.lab.kubernetes.api import Api
from tests.lab.kubernetes.hollow import HollowNodes
from tests.lab.kubernetes.plane import KubernetesPlane
from tests.lab.kubernetes.world import CPUS, KIND, role

NODES, MEMORY_MIB, LIBRARY, CLOUD = 8, 3072, "http", "plane"
_PATIENCE_S = 300.0


class OpenShiftMeter:
    """A control plane, as one provider uses it."""

    def __init__(self, plane: KubernetesPlane, calls: OpenShiftCalls) -> None:
        self._plane = plane
        self._calls = calls

    def cpu_s(self) -> float:
        """Of all its processes; the hollow nodes are none of them."""
        return self._plane.cpu_s()

    def calls(self) -> Counter[str]:
        """The provider's own count of what it sends."""
        return Counter(self._calls.call_counts)


@contextmanager
def http_counted(library: LibraryMeter) -> Iterator[None]:
    """What is used to send requests and to receive the heads of answers."""
    real = urllib3.PoolManager.request

    def counted(*words: Any, **more: Any) -> Any:
        with library.counted():
            return real(*words, **more)

    urllib3.PoolManager.request = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        urllib3.PoolManager.request = real  # type: ignore[method-assign]


@contextmanager
def hollow_nodes(plane: KubernetesPlane) -> Iterator[None]:
    """In a process of their own, which ends with this one."""
    fork = multiprocessing.get_context("fork")
    read_end, theirs = fork.Pipe()
    process = fork.Process(target=_nodes, args=(plane, read_end, theirs))
    process.start()
    theirs.close()
    try:
        read_end.recv()
        yield
    finally:
        read_end.close()
        process.join()


def _nodes(plane: KubernetesPlane, ours: Connection, theirs: Connection) -> None:
    ours.close()
    # Connections are not shared between processes.
    plane.api = Api(plane.server, plane.control.ca, plane.control.token)
    with HollowNodes(plane) as nodes:
        for number in range(NODES):
            nodes.add(f"node{number}", cpus=64, memory_gib=256, labels={KIND: "cpu"})
        theirs.send("ready")
        theirs.poll(None)


def provider_for(plane: KubernetesPlane, namespace: str) -> tuple[OpenShiftProvider, OpenShiftCalls]:
    """Of a site with this namespace, with the rights that the project asks for."""
    kubeconfig = plane.user(namespace, role("role.yaml"), name="burstd")
    plane.grant(namespace, "burstd", role("clusterrole-nodes.yaml"), everywhere=True)
    words = {"kubeconfig": kubeconfig, "namespace": namespace, "image": "registry.lab/node:1", "groups": {"cpu": CPUS}}
    settings = OpenShiftSettings.model_validate(words)
    calls = OpenShiftCalls(settings)
    return OpenShiftProvider("openshift", CLUSTER, settings, calls), calls


def bench_provider(plane: KubernetesPlane, machines: int) -> None:
    """The provider's calls without a daemon."""
    provider, calls = provider_for(plane, "alone")
    library = LibraryMeter()
    table = ProviderBench(OpenShiftMeter(plane, calls), library, LIBRARY, CLOUD)
    with http_counted(library):
        table.bench_life(provider, machines, _PATIENCE_S, 0.1, " from the watch")
    provider.close()


def bench_daemon(plane: KubernetesPlane, folder: Path, machines: int, quiet_s: float) -> None:
    """The same with the daemon's loop."""
    provider, calls = provider_for(plane, "whole")
    bench = DaemonBench(
        provider, OpenShiftMeter(plane, calls), folder, machines, Shape(2, MEMORY_MIB, (), frozenset({"cloud"}))
    )
    try:
        bench.run(quiet_s, LIBRARY, CLOUD)
    finally:
        bench.close()
        provider.close()


def main() -> None:
    """Runs the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_openshift", description=__doc__)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds that the jobs run")
    arguments = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    with ExitStack() as up:
        plane = up.enter_context(KubernetesPlane())
        up.enter_context(hollow_nodes(plane))
        folder = Path(up.enter_context(tempfile.TemporaryDirectory(prefix="burstd-bench-")))
        bench_provider(plane, arguments.machines)
        sys.stdout.write("\n")
        bench_daemon(plane, folder, arguments.machines, arguments.quiet)


if __name__ == "__main__":
    main()
