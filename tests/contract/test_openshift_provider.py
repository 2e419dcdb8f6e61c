"""The OpenShift provider on a real Kubernetes API server: the contract, with lists and with a watch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burstd.testing.provider_contract import FaultContract, ProviderContract
from burstd.testing.volume_contract import VolumeContract
from providers.openshift.provider import OpenShiftProvider
from tests.lab.kubernetes.world import Ground, OpenShiftWorld

pytestmark = pytest.mark.clouds


class Watched(OpenShiftWorld):
    """Lists come from the watch, and scratch volumes are claims."""

    def provider(self, cluster: str, **words: Any) -> OpenShiftProvider:
        return super().provider(cluster, **{"relist_s": 300, "scratch": {"storage_class": ""}, **words})


class TestListed(ProviderContract, FaultContract, VolumeContract):
    @pytest.fixture
    def world(self, openshift_world: OpenShiftWorld) -> OpenShiftWorld:
        return openshift_world


class TestWatched(ProviderContract, VolumeContract):
    @pytest.fixture
    def world(self, kubernetes_ground: Ground, tmp_path: Path) -> Iterator[Watched]:
        made = Watched(kubernetes_ground, tmp_path)
        yield made
        made.close()
