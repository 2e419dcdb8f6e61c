"""Writes each failure when it happens: a run that is cut off has said what failed before."""

from __future__ import annotations

import os
import sys

import pytest

_LINES = 60


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The last lines of a failure; in the process that gathers the results only."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        last = report.longreprtext.splitlines()[-_LINES:]
        sys.stdout.write("\n".join(["", f"failed in {report.when}: {report.nodeid}", *last, ""]))
        sys.stdout.flush()
