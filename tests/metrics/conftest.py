"""Prometheus' own programs, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Runs promtool with these arguments and this input; returns what it says, and asserts that it passes."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")

    def run(*words: object, text: bytes = b"") -> str:
        done = subprocess.run([program, *map(str, words)], input=text, capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, said
        return said

    return run
