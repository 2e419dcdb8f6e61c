"""The Azure provider on the cloud that plays Azure, with burstd's roles: the contract, and what it must survive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract

if TYPE_CHECKING:
    from tests.lab.azure.world import AzureWorld

pytestmark = pytest.mark.clouds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    from tests.lab.azure.world import AzureWorld

    made = AzureWorld(tmp_path)
    yield made
    made.close()


class TestAzure(ProviderContract, FaultContract, VolumeContract):
    @pytest.fixture
    def world(self, world: AzureWorld) -> AzureWorld:
        return world
