"""Runs all tests: the quick ones, then, file by file, those that crash burstd and those on real systems.

Lint runs beside the quick ones, and what it says comes after them. The control planes are built meanwhile.

Tests on real systems mostly wait, many of the quick ones do for programs that they started, so four processes have
tests at once on two processors, and of the files the longest begin first. A test that crashes burstd never waits; it
has the processor meanwhile.

Tests marked ``thorough`` come last, and only where the time allows it.

What fails on a busy machine beside another is tried once more, alone, and told as flaky in the last lines where it
passes then. Files from sbatch to the cloud and back are tried again whole: a test that looks at what the others of its
file left must have something to look at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.lab.marks import LONG, names_long_mark, names_thorough
from tests.lab.programs import PROJECT

_LONG = " or ".join(LONG)
_FILES = [str(file) for file in sorted((PROJECT / "tests").rglob("test_*.py")) if names_long_mark(file)]
"""Files with tests that take long: each of four processes would import all the others for nothing."""
_SYSTEMS = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "tests.lab.suite", "--durations=15")
_STAGES = (
    (f"not ({_LONG})", "-n", "4"),
    (f"({_LONG}) and not thorough", *_SYSTEMS, *_FILES),
)
_THOROUGH = ("thorough", *_SYSTEMS, *filter(names_thorough, _FILES))
_TIME_S = 2100.0
"""Who has waited so long does not wait for tests of which others see most; BURSTD_THOROUGH=1 runs them all the same."""
_TOGETHER = (
    (
        "tests/contract/test_openstack_plane.py",
        "tests/contract/test_openstack_faults.py",
        "tests/contract/test_openstack_provider.py",
    ),
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
    "tests/contract/test_openstack_plane.py",
    "tests/contract/test_openstack_faults.py",
    "tests/docs/test_openstack_docs.py",
    "tests/packaging/test_takeover.py",
    "tests/docs/test_admin_docs.py",
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
    "tests/crash/test_spot.py",
    "tests/e2e/test_aws.py",
    "tests/e2e/test_azure.py",
    "tests/crash/test_directed.py",
    "tests/crash/test_reuse.py",
    "tests/e2e/test_commands.py",
    "tests/node/test_machines.py",
    "tests/node/test_conditions.py",
    "tests/e2e/test_policies.py",
    "tests/e2e/test_main_path.py",
    "tests/e2e/test_kill.py",
    "tests/e2e/test_own_nodes.py",
    "tests/docs/test_openshift_docs.py",
    "tests/providers/openshift/test_scripts.py",
    "tests/docs/test_staging_docs.py",
    "tests/crash/test_budget.py",
    "tests/node/test_with_systemd.py",
    "tests/mounts/test_streams.py",
    "tests/crash/test_storage_node.py",
    "tests/e2e/test_slurmctld.py",
    "tests/contract/test_stagers.py",
    "tests/security/test_a03_errors_of_one.py",
)
"""Files whose tests take forty seconds and more together, the longest first."""
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


def _pytest(*words: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.lab.failures", *words]
    return subprocess.run(command, cwd=PROJECT, check=False).returncode


def _failed() -> set[str]:
    """Ids of the tests whose last run failed."""
    return set(json.loads((PROJECT / ".pytest_cache/v/cache/lastfailed").read_text(encoding="utf-8")))


def _stage(which: str, *words: str) -> tuple[int, set[str]]:
    """Runs the tests with these marks: pytest's exit status, and which failed at first and passed alone."""
    status = _pytest("--cache-clear", "-m", which, *words)
    if status != _FAILED:
        return status, set()
    failed = _failed()
    again = _pytest("-m", which, *sorted({t.partition("::")[0] if t.startswith(_WHOLE) else t for t in failed}))
    return again, failed - _failed()


def _lint_status(lint: subprocess.Popen[str]) -> int:
    """Writes what lint has said, and waits for its end."""
    said, _ = lint.communicate()
    sys.stdout.write(said)
    sys.stdout.flush()
    return lint.returncode


def main() -> int:
    """pytest's exit status: of the last stage, or of the first with a test that failed twice."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flaky: set[str] = set()
    begun = time.monotonic()
    with (
        subprocess.Popen([sys.executable, "-m", "tests.lab.prepare"], cwd=PROJECT) as prepare,
        subprocess.Popen(
            ["make", "lint"], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as lint,
    ):
        try:
            for stage in (*_STAGES, _THOROUGH):
                if stage is _STAGES[-1] and (status := _lint_status(lint) or prepare.wait()):
                    break
                gone_s = time.monotonic() - begun
                if stage is _THOROUGH and gone_s > _TIME_S and not os.environ.get("BURSTD_THOROUGH"):
                    sys.stdout.write(f"tests marked thorough are left out, as {gone_s / 60:.0f} minutes are gone\n")
                    break
                status, unsteady = _stage(*stage)
                flaky |= unsteady
                if status:
                    break
        finally:
            lint.terminate()
            prepare.terminate()
    sys.stdout.write("\n".join([f"flaky: {len(flaky)}", *sorted(flaky)]) + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
