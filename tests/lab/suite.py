"""Runs all tests, two at a time: quick ones, those that crash burstd, and, file by file, those on real systems.

What fails on a busy machine beside another is tried once more, alone, and told as flaky in the last lines where it
passes then. Files from sbatch to the cloud and back are tried again whole: a test that looks at what the others of its
file left must have something to look at.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from tests.lab.programs import PROJECT

_REAL = "boxes or slurm or clouds"
_STAGES = (
    (f"not crash and not ({_REAL})",),
    (f"crash and not ({_REAL})",),
    (_REAL, "--dist", "loadfile", "--no-loadscope-reorder", "--durations=15"),
)
_WHOLE = "tests/e2e/"
_FAILED = 1
"""pytest's status where tests failed and all of them ran: https://docs.pytest.org/en/stable/reference/exit-codes.html"""


def _pytest(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *words], cwd=PROJECT, check=False).returncode


def _failed() -> set[str]:
    """Ids of the tests whose last run failed."""
    return set(json.loads((PROJECT / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")))


def _stage(which: str, *words: str) -> tuple[int, set[str]]:
    """Runs the tests with these marks: pytest's exit status, and which failed at first and passed alone."""
    status = _pytest("--cache-clear", "-m", which, "-n", "2", *words)
    if status != _FAILED:
        return status, set()
    failed = _failed()
    again = _pytest("-m", which, *sorted({t.partition("::")[0] if t.startswith(_WHOLE) else t for t in failed}))
    return again, failed - _failed()


def main() -> int:
    """pytest's exit status: of the last stage, or of the first with a test that failed twice."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flaky: set[str] = set()
    with subprocess.Popen([sys.executable, "-m", "tests.lab.prepare"], cwd=PROJECT) as prepare:
        try:
            for stage in _STAGES:
                if stage is _STAGES[-1] and (status := prepare.wait()):
                    break
                status, unsteady = _stage(*stage)
                flaky |= unsteady
                if status:
                    break
        finally:
            prepare.terminate()
    sys.stdout.write("\n".join([f"flaky: {len(flaky)}", *sorted(flaky)]) + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
