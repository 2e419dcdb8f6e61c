from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db import StoreReader

from .client import ApiTestClient
from .fake_backend import FakeBackend, sample_database, serving_api

NOBODY = 65534


@pytest.fixture(scope="session")
def record() -> Iterator[StoreReader]:
    with sample_database() as reader:
        yield reader


@pytest.fixture(scope="module")
def served(record: StoreReader) -> Iterator[tuple[FakeBackend, Path]]:
    with serving_api(record) as found:
        yield found


@pytest.fixture
def backend(served: tuple[FakeBackend, Path]) -> FakeBackend:
    served[0].reset()
    return served[0]


@pytest.fixture
def control(served: tuple[FakeBackend, Path]) -> Path:
    """The path of a socket on which the control interface answers."""
    return served[1]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A path for a socket that every user can reach, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "control.sock"


@pytest.fixture
def root(control: Path) -> Iterator[ApiTestClient]:
    with ApiTestClient(control) as client:
        yield client


@pytest.fixture
def nobody(control: Path) -> Iterator[ApiTestClient]:
    """Another user's client; only root can make one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with ApiTestClient(control, NOBODY) as client:
        yield client
