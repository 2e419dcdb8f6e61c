"""The database that is made once for all worlds."""

from __future__ import annotations

from tests.crash.conftest import template

__all__ = ["template"]
