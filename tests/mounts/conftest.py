"""One site for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burstd.domain.claim import Claim
from providers.sandbox.boxes.box import Box
from tests.mounts.rig import MountSite, mount_site
from tests.node.conftest import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]


@pytest.fixture(scope="module")
def site() -> Iterator[MountSite]:
    """The module's thread is on its network."""
    with mount_site() as made:
        yield made


@pytest.fixture(scope="module")
def node(site: MountSite) -> tuple[Box, Claim]:
    """A node of it."""
    return site.boot()
