"""What holds for all tests of AWS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import botocore.loaders
import botocore.session
import pytest


@pytest.fixture(scope="session", autouse=True)
def models_are_read_once() -> Iterator[None]:
    """EC2's own takes a quarter of a second, for each session of boto3."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.loaders.create_loader))
        yield
