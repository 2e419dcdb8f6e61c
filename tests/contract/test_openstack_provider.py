"""The OpenStack provider on a real OpenStack: the contract."""

from __future__ import annotations

import pytest

from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract
from tests.lab.openstack.world import OpenStackWorld

pytestmark = pytest.mark.clouds


class TestOpenStack(ProviderContract, FaultContract, VolumeContract):
    @pytest.fixture
    def world(self, openstack_world: OpenStackWorld) -> OpenStackWorld:
        return openstack_world
