"""Runs all tests in two runs beside each other: those on real systems, and the others.

A test on a real system mostly waits, so five files run at once and the longest begin first. The others never wait: they
have the processors meanwhile, and step back where a real system wants them. What they print comes when both have ended.

What fails on a busy machine beside another is tried once more, alone, and told as flaky in the last lines where it
passes then. Files from sbatch to the cloud and back are tried again whole: a test that looks at what the others of its
file left must have something to look at.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.lab.programs import PROJECT

_REAL = "boxes or slurm or clouds"
_TOGETHER = (
    ("tests/contract/test_openstack_faults.py", "tests/contract/test_openstack_provider.py"),
    (
        "tests/contract/test_openshift_ends.py",
        "tests/contract/test_openshift_answers.py",
        "tests/contract/test_openshift_faults.py",
        "tests/contract/test_openshift_provider.py",
    ),
    (
        "tests/e2e/test_commands.py",
        "tests/e2e/test_comments.py",
        "tests/e2e/test_full_disk.py",
        "tests/e2e/test_gate_to_start.py",
        "tests/e2e/test_metrics.py",
    ),
)
"""Files that share a control plane or a site (a fixture of their package): one process runs them one after another."""
_LONGEST = (
    "tests/contract/test_openstack_faults.py",
    "tests/docs/test_openstack_docs.py",
    "tests/slurm/test_real_slurm.py",
    "tests/e2e/test_mounts.py",
    "tests/e2e/test_staging.py",
    "tests/contract/test_openshift_ends.py",
    "tests/e2e/test_spot.py",
    "tests/e2e/test_openshift.py",
    "tests/e2e/test_projects.py",
    "tests/e2e/test_many_mounts.py",
    "tests/e2e/test_checkpoint.py",
    "tests/e2e/test_workdir.py",
    "tests/e2e/test_volumes.py",
    "tests/e2e/test_running_job.py",
    "tests/contract/test_pvc_store.py",
    "tests/e2e/test_storage_node.py",
    "tests/e2e/test_containers.py",
    "tests/slurm/test_projects.py",
    "tests/e2e/test_shards.py",
    "tests/e2e/test_restricted_pods.py",
    "tests/docs/test_project_docs.py",
    "tests/e2e/test_cloud_faults.py",
    "tests/slurm/test_stage_hooks.py",
    "tests/e2e/test_openstack.py",
    "tests/web/test_in_browser.py",
    "tests/e2e/test_aws.py",
    "tests/e2e/test_commands.py",
    "tests/node/test_machines.py",
    "tests/node/test_conditions.py",
    "tests/lab/openstack/test_plane.py",
    "tests/e2e/test_policies.py",
    "tests/e2e/test_main_path.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/test_own_nodes.py",
    "tests/docs/test_admin_docs.py",
    "tests/docs/test_openshift_docs.py",
    "tests/providers/openshift/test_scripts.py",
    "tests/docs/test_staging_docs.py",
    "tests/node/test_with_systemd.py",
    "tests/mounts/test_streams.py",
    "tests/e2e/test_slurmctld.py",
    "tests/contract/test_stagers.py",
    "tests/security/test_a03_errors_of_one.py",
)
"""Files on real systems whose tests take forty seconds and more together, the longest first."""
_WHOLE = "tests/e2e/"
_FAILED = 1
"""pytest's status where tests failed and all of them ran: https://docs.pytest.org/en/stable/reference/exit-codes.html"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first: no process is left alone with one of them at the end."""
    turns = {PROJECT / file: turn for turn, file in enumerate(_LONGEST)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))


class _Files(LoadFileScheduling):  # type: ignore[misc]
    """Gives each file, or all files that belong together, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((files[0] for files in _TOGETHER if file in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """The scheduler of the last stage."""
    return _Files(config, log)


@dataclass(frozen=True, slots=True)
class _Run:
    """The tests with some marks. Its cache is its own: the other run would write it at the same time."""

    marks: str
    cache: str
    words: Sequence[str]
    nice: int = 0

    def command(self, *words: str) -> list[str]:
        """pytest's command line."""
        program = ["nice", f"-n{self.nice}", sys.executable, "-m", "pytest", "-q", "-m", self.marks]
        return [*program, "-o", f"cache_dir={self.cache}", *words]

    def begin(self, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Starts it; ``output``: where what it prints goes."""
        words = self.command("--cache-clear", *self.words)
        return subprocess.Popen(words, cwd=PROJECT, stdout=output, stderr=output)

    def failed(self) -> set[str]:
        """Ids of the tests whose last run failed."""
        return set(json.loads((PROJECT / self.cache / "v/cache/lastfailed").read_text(encoding="utf-8")))

    def repeat_failed(self) -> tuple[int, set[str]]:
        """Tries what failed again, alone: pytest's exit status, and which passed."""
        failed = self.failed()
        again = sorted({test.partition("::")[0] if test.startswith(_WHOLE) else test for test in failed})
        status = subprocess.run(self.command(*again), cwd=PROJECT, check=False).returncode
        return status, failed - self.failed()


_PLAIN_RUN = _Run(f"not ({_REAL})", ".pytest_cache/plain", ("-n", "2"), nice=5)
_REAL_RUN = _Run(
    _REAL,
    ".pytest_cache/real",
    ("-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "tests.lab.suite", "--durations=40"),
)


def _run_both(plain_output: IO[bytes]) -> list[tuple[_Run, int]]:
    """Runs all tests once: pytest's exit status of each run. Ends what it has begun when it is ended itself."""
    with ExitStack() as last:

        def ends(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            last.enter_context(process)
            last.callback(process.terminate)
            return process

        prepare = ends(subprocess.Popen([sys.executable, "-m", "tests.lab.prepare"], cwd=PROJECT))
        plain = ends(_PLAIN_RUN.begin(plain_output))
        if prepare.wait():
            sys.exit(prepare.returncode)
        real = ends(_REAL_RUN.begin())
        return [(_PLAIN_RUN, plain.wait()), (_REAL_RUN, real.wait())]


def main() -> int:
    """pytest's exit status: that of a run with a test that failed twice, or that could not run all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flaky: set[str] = set()
    statuses = []
    with tempfile.TemporaryFile() as plain_output:
        ended = _run_both(plain_output)
        plain_output.seek(0)
        sys.stdout.write(plain_output.read().decode(errors="replace"))
        sys.stdout.flush()
    for run, status in ended:
        again, unsteady = run.repeat_failed() if status == _FAILED else (status, set())
        flaky |= unsteady
        statuses.append(again)
    sys.stdout.write("\n".join([f"flaky: {len(flaky)}", *sorted(flaky)]) + "\n")
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    raise SystemExit(main())
