"""So that the contract's assertions tell what they saw."""

import pytest

pytest.register_assert_rewrite(
    "burstd.testing.jobs_contract",
    "burstd.testing.scheduler_contract",
    "burstd.testing.slurm_cluster",
    "burstd.testing.slurm_tests",
)
