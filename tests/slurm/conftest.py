"""The contract's assertions tell what they saw; its long tests are thorough but on one release of Slurm."""

import pytest

FULL = "trixie"
LONG = {
    "test_a_boot_that_fails_leaves_job_and_slot_usable",
    "test_a_het_job_begins_anew_by_its_number",
    "test_closing_never_races_with_starting",
    "test_components_of_a_het_job_are_bound_one_by_one",
    "test_slurmctld_may_come_and_go",
    "test_without_a_gate_slurm_asks_for_nodes_by_itself",
}
"""Tests of SchedulerContract that take five seconds and more."""

pytest.register_assert_rewrite(
    "burstd.testing.slurm.jobs_contract",
    "burstd.testing.slurm.scheduler_contract",
    "burstd.testing.slurm.cluster",
    "burstd.testing.slurm.slurm_tests",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.path.name == "test_real_slurm.py"
            and item.originalname in LONG
            and item.callspec.params["cluster"] != FULL
        ):
            item.add_marker(pytest.mark.thorough)
