"""The scheduler contract on the real Slurm of each Debian release."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burstd.testing.scheduler_contract import ClusterUnderTest, SchedulerContract
from tests.slurm.rig import rig

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


@pytest.fixture(scope="module", params=["bookworm", "trixie", "forky"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    with rig(request.param, tmp_path_factory.mktemp("cluster")) as found:
        yield found


class TestRealSlurm(SchedulerContract):
    pass
