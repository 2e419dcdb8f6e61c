"""Which partitions are those of projects, and in which parts of a GPU Slurm counts there."""

from __future__ import annotations

from fractions import Fraction

import pytest

from burstd.domain.project import Project
from burstd.slurm.config.projects import NODE_GRES, counted_shards, projects_without_preemption

HALF = {"QoS": "q-a", "AllowAccounts": "team-a", "PriorityTier": "1"}
OTHER = {"QoS": "o-a", "AllowAccounts": "team-a", "PriorityTier": "1"}


@pytest.mark.parametrize(
    ("partitions", "found"),
    [
        ({"q-a": HALF, "o-a": OTHER}, {"a"}),
        ({"q-a": {**HALF, "PriorityTier": "10000"}, "o-a": OTHER}, set()),
        ({"q-a": HALF}, set()),
        ({"q-a": HALF, "o-a": {**OTHER, "QoS": "N/A"}}, set()),
        ({"q-a": HALF, "o-a": {**OTHER, "AllowAccounts": "team-b"}}, set()),
        ({"q-a": {**HALF, "AllowAccounts": "ALL"}, "o-a": {**OTHER, "AllowAccounts": "ALL"}}, set()),
    ],
)
def test_a_partition_of_the_site_is_no_projects_for_its_name(
    partitions: dict[str, dict[str, str]], found: set[str]
) -> None:
    assert projects_without_preemption(partitions) == found


@pytest.mark.parametrize(
    ("features", "gres", "shards"),
    [
        ((), "(null) gpu:2,shard:8", 4),
        ((), "a100 gpu:2,shard:8|t4 gpu:2,shard:4", 0),
        (("a100",), "a100,new gpu:2,shard:8|t4 gpu:2,shard:4", 4),
        (("a100",), "a100 gpu:8|t4 gpu:2,shard:4", 0),
        ((), "", 0),
    ],
)
def test_shards_are_those_of_the_projects_own_nodes(features: tuple[str, ...], gres: str, shards: int) -> None:
    project = Project("a", "team-a", Fraction(1), partitions=("gpu",), features=features)
    assert counted_shards(project, {"gpu": {NODE_GRES: gres}}) == shards
