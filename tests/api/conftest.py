from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db import Reader

from .client import Client
from .office import FakeOffice, record_of_the_world, serving


@pytest.fixture(scope="session")
def record() -> Iterator[Reader]:
    with record_of_the_world() as reader:
        yield reader


@pytest.fixture(scope="module")
def served(record: Reader) -> Iterator[tuple[FakeOffice, Path]]:
    with serving(record) as found:
        yield found


@pytest.fixture
def office(served: tuple[FakeOffice, Path]) -> FakeOffice:
    served[0].reset()
    return served[0]


@pytest.fixture
def control(served: tuple[FakeOffice, Path]) -> Path:
    """The path of a socket on which the control interface answers."""
    return served[1]


@pytest.fixture
def place() -> Iterator[Path]:
    """A path for a socket that every user can reach, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "control.sock"


@pytest.fixture
def root(control: Path) -> Iterator[Client]:
    with Client(control) as client:
        yield client
