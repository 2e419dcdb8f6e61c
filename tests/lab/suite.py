"""Runs the tests on real systems, two files at a time. What fails on a busy machine beside another is tried once more.

It is tried alone. Files from sbatch to the cloud and back are tried again whole: a test that looks at what the others
of its file left must have something to look at.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.lab.programs import PROJECT

_WHICH = "boxes or slurm or clouds"
_WHOLE = "tests/e2e/"
_FAILED = 1
"""pytest's status where tests failed and all of them ran: https://docs.pytest.org/en/stable/reference/exit-codes.html"""


def _pytest(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-m", _WHICH, *words], cwd=PROJECT, check=False).returncode


def main() -> int:
    """pytest's exit status."""
    status = _pytest("--cache-clear", "-n", "2", "--dist", "loadfile", "--durations=15")
    if status != _FAILED:
        return status
    failed = json.loads((PROJECT / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8"))
    return _pytest(*sorted({test.partition("::")[0] if test.startswith(_WHOLE) else test for test in failed}))


if __name__ == "__main__":
    raise SystemExit(main())
