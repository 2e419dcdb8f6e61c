"""One OpenStack for the files that try its provider: it takes long to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.openstack.plane import ControlPlane
from tests.lab.openstack.proxy import Proxy
from tests.lab.openstack.world import Account, OpenStackWorld


@pytest.fixture(scope="package")
def openstack_account() -> Iterator[Account]:
    """A control plane behind a proxy."""
    with ControlPlane() as cloud, Proxy(cloud.lab.network.hub or "") as proxy:
        yield Account(cloud, proxy)


@pytest.fixture
def openstack_world(openstack_account: Account, tmp_path: Path) -> Iterator[OpenStackWorld]:
    """A project of it."""
    made = OpenStackWorld(openstack_account, tmp_path)
    yield made
    made.close()
