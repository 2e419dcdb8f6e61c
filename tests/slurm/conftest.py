"""So that the contract's assertions tell what they saw."""

import pytest

pytest.register_assert_rewrite(
    "burstd.testing.slurm.jobs_contract",
    "burstd.testing.slurm.scheduler_contract",
    "burstd.testing.slurm.cluster",
    "burstd.testing.slurm.slurm_tests",
)
