"""A process that takes a lab down when the one that made it is gone, however it went."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROJECT = Path(__file__).parents[2]


class LabWatchdog:
    """Watches over the lab of a state directory, and removes that directory with the lab, from now until ``end``."""

    def __init__(self, state: Path) -> None:
        words = [sys.executable, "-m", "tests.lab.cluster", "--state", str(state), "guard"]
        environment = {**os.environ, "PYTHONPATH": "."}
        # It waits for the end of this pipe, whose other end nobody else has.
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, cwd=_PROJECT, start_new_session=True, env=environment
        )

    def end(self) -> None:
        """Lets it take down what is left, and returns when it has."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(30)
