"""Fewer words from the daemon, and a database that is made once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from burstd.db import Store
from tests.crash.world import memory_folder
from tests.virtual.clock import VirtualClock


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of loops would drown what a failing test says."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing that was handed to the kernel."""
    with memory_folder(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    Store.open(path, VirtualClock()).close()
    return path
