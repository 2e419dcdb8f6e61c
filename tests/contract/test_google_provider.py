"""The Google provider on the lab's Compute Engine, with burstd's role: the contract, and what a provider must survive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from burstd.testing.provider_contract import FaultContract, ProviderContract
from tests.lab.google.world import GoogleWorld

pytestmark = pytest.mark.clouds


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def world(key: rsa.RSAPrivateKey, tmp_path: Path) -> Iterator[GoogleWorld]:
    made = GoogleWorld(tmp_path, key)
    yield made
    made.close()


class TestGoogle(ProviderContract, FaultContract):
    @pytest.fixture
    def world(self, world: GoogleWorld) -> GoogleWorld:
        return world
