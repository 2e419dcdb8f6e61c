"""Fifty servers at once, from the request to the end of the last: ``python -m tests.bench.bench_openstack`` (root).

First the provider's calls one by one, then the real provider, observer, launcher, store and loop, against the lab's
control plane: real services with a real scheduler, and records instead of machines. Slurm and the machines' insides are
simulated in this process, and their processor time is left out. For each call or phase: API calls by method and path,
and processor seconds of burstd, of HTTP in it, and of the control plane with its database and broker.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import requests

from burstd.domain.slurm.shape import Shape
from burstd.runtime import logs
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.provider import OpenStackProvider
from providers.openstack.settings import OpenStackSettings
from tests.bench.burst import CLUSTER, DaemonBench, LibraryMeter, ProviderBench
from tests.lab.openstack.plane import ControlPlane
from tests.lab.openstack.projects import SECURITY_GROUP, Project

FLAVOR, MEMORY_MIB, LIBRARY, CLOUD = "cpu.small", 3000, "http", "plane"


class OpenStackMeter:
    """A control plane, as one provider uses it."""

    def __init__(self, plane: ControlPlane, calls: OpenStackCalls) -> None:
        self._plane = plane
        self._calls = calls

    def cpu_s(self) -> float:
        """Of all its processes."""
        return self._plane.cpu_s()

    def calls(self) -> Counter[str]:
        """The provider's own count of what it sends."""
        return Counter(self._calls.call_counts)


@contextmanager
def http_counted(library: LibraryMeter) -> Iterator[None]:
    """What is used to send requests and to receive answers; what openstacksdk does with them is counted as ours."""
    real = requests.Session.request

    def counted(*words: Any, **more: Any) -> requests.Response:
        with library.counted():
            return real(*words, **more)

    requests.Session.request = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        requests.Session.request = real  # type: ignore[method-assign]


_PATIENCE_S = 600.0


def provider_for(plane: ControlPlane, project: Project, folder: Path) -> tuple[OpenStackProvider, OpenStackCalls]:
    """Of a site with this project."""
    clouds = folder / "clouds.yaml"
    clouds.write_text(project.clouds_yaml(), encoding="utf-8")
    settings = OpenStackSettings(
        cloud="burst", clouds_yaml=clouds, networks=(project.network,), security_groups=(SECURITY_GROUP,),
        flavors=(FLAVOR,), image="node", prices={"*": Decimal("0.10")}, unused_s=0, timeout_s=300,
    )  # fmt: skip
    calls = OpenStackCalls(settings)
    return OpenStackProvider("openstack", CLUSTER, settings, calls), calls


def bench_provider(plane: ControlPlane, project: Project, folder: Path, machines: int) -> None:
    """The provider's calls without a daemon."""
    provider, calls = provider_for(plane, project, folder)
    library = LibraryMeter()
    table = ProviderBench(OpenStackMeter(plane, calls), library, LIBRARY, CLOUD)
    with http_counted(library):
        table.bench_life(provider, machines, _PATIENCE_S, 1.0)
    provider.close()


def bench_daemon(plane: ControlPlane, project: Project, folder: Path, machines: int, quiet_s: float) -> None:
    """The same with the daemon's loop."""
    provider, calls = provider_for(plane, project, folder)
    bench = DaemonBench(
        provider, OpenStackMeter(plane, calls), folder, machines, Shape(2, MEMORY_MIB, (), frozenset({"cloud"}))
    )
    try:
        bench.run(quiet_s, LIBRARY, CLOUD)
    finally:
        bench.close()


def main() -> None:
    """Runs the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_openstack", description=__doc__)
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds that the jobs run")
    arguments = parser.parse_args()
    logs.set_up("text", "error")
    gc.freeze()  # as the daemon does
    with (
        ControlPlane() as plane,
        tempfile.TemporaryDirectory(prefix="burstd-bench-") as folder,
    ):
        projects = [plane.project(name) for name in ("alone", "whole")]
        for project in projects:
            plane.quota(project, instances=-1, cores=-1, ram=-1, ports=-1)
        with plane.reach():
            bench_provider(plane, projects[0], Path(folder), arguments.machines)
            sys.stdout.write("\n")
            bench_daemon(plane, projects[1], Path(folder), arguments.machines, arguments.quiet)


if __name__ == "__main__":
    main()
