"""So that the contract's assertions tell what they saw."""

import pytest

pytest.register_assert_rewrite("burstd.testing.scheduler_contract", "burstd.testing.slurm_cluster")
