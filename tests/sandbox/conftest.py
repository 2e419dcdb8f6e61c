"""Labs for tests: each with a name and a state directory of its own, gone at the end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.sandbox.boxes.images import rootfs
from providers.sandbox.boxes.images.rootfs import SUITES, Rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Boxes need root; without it their tests are left out, visibly."""
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("boxes"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture(scope="session")
def root_of() -> Callable[[str], Rootfs]:
    """The root file system of a suite, built on first use."""
    return rootfs.ensure_rootfs


@pytest.fixture(params=SUITES)
def base(request: pytest.FixtureRequest, root_of: Callable[[str], Rootfs]) -> Rootfs:
    """The root file system of each suite in turn."""
    suite: str = request.param
    return root_of(suite)


@pytest.fixture
def bookworm(root_of: Callable[[str], Rootfs]) -> Rootfs:
    """The quickest one."""
    return root_of("bookworm")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab that is up."""
    made = Lab(tmp_path / "lab", LabNetwork(f"t{uuid.uuid4().hex[:8]}"))
    made.up()
    try:
        yield made
    finally:
        made.down()
