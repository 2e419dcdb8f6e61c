"""One control plane of each cloud for the files that try its provider: they take long to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.doubles.nova_machines import NovaMachines

if TYPE_CHECKING:
    from tests.lab.kubernetes.world import Ground, OpenShiftWorld
    from tests.lab.openstack.world import Account, OpenStackWorld


@pytest.fixture(scope="package")
def nova_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NovaMachines]:
    """Stand behind the servers of OpenStack's control plane."""
    with NovaMachines(tmp_path_factory.mktemp("m") / "s") as made:
        yield made
        made.shutdown()


@pytest.fixture(scope="package")
def openstack_account(nova_machines: NovaMachines) -> Iterator[Account]:
    """A control plane behind a proxy."""
    from tests.lab.openstack.plane import ControlPlane
    from tests.lab.openstack.proxy import Proxy
    from tests.lab.openstack.world import Account

    machines = Path(str(nova_machines.server_address))
    with ControlPlane(machines=machines) as cloud, Proxy(cloud.lab.network.hub or "") as proxy:
        yield Account(cloud, proxy)


@pytest.fixture
def openstack_world(openstack_account: Account, tmp_path: Path) -> Iterator[OpenStackWorld]:
    """A project of it."""
    from tests.lab.openstack.world import OpenStackWorld

    made = OpenStackWorld(openstack_account, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="package")
def kubernetes_ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A control plane of Kubernetes with hollow nodes, behind a proxy."""
    from tests.lab.kubernetes.world import ground

    with ground(tmp_path_factory.mktemp("kubernetes")) as made:
        yield made


@pytest.fixture
def openshift_world(kubernetes_ground: Ground, tmp_path: Path) -> Iterator[OpenShiftWorld]:
    """A namespace of it."""
    from tests.lab.kubernetes.world import OpenShiftWorld

    made = OpenShiftWorld(kubernetes_ground, tmp_path)
    yield made
    made.close()
