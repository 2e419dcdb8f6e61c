"""Runs tests, two at a time: ``quick`` ones and those that crash burstd, or, file by file, those on ``real`` systems.

What fails on a busy machine beside another is tried once more, alone. Files from sbatch to the cloud and back are tried
again whole: a test that looks at what the others of its file left must have something to look at.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.lab.programs import PROJECT

_REAL = ("boxes or slurm or clouds", "--dist", "loadfile", "--durations=15")
_OTHERS = "not boxes and not slurm and not clouds"
_STAGES = {"quick": ((f"not crash and {_OTHERS}",), (f"crash and {_OTHERS}",)), "real": (_REAL,)}
_WHOLE = "tests/e2e/"
_FAILED = 1
"""pytest's status where tests failed and all of them ran: https://docs.pytest.org/en/stable/reference/exit-codes.html"""


def _pytest(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=PROJECT, check=False).returncode


def _twice(which: str, *words: str) -> int:
    """The tests with these marks; pytest's exit status."""
    status = _pytest("--cache-clear", "-m", which, "-n", "2", *words)
    if status != _FAILED:
        return status
    failed = json.loads((PROJECT / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8"))
    return _pytest("-m", which, *sorted({t.partition("::")[0] if t.startswith(_WHOLE) else t for t in failed}))


def main(stage: str) -> int:
    """``quick`` or ``real``. pytest's exit status."""
    return next((status for some in _STAGES[stage] if (status := _twice(*some))), 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
