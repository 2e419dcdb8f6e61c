"""Tags between Amazon's form and ours, and the filter for what is ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER

NAME = "Name"
"""The tag that Amazon's console shows as the name."""


def to_aws(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As every call takes them, in an order that is always the same."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def from_aws(tags: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """As every answer has them, but such as are said twice and differ: those are none."""
    said = [(str(tag["Key"]), str(tag["Value"])) for tag in tags or ()]
    found = dict(said)
    differ = {key for key, value in said if found[key] != value}
    return {key: value for key, value in found.items() if key not in differ}


def specifications(tags: Mapping[str, str], *kinds: str) -> list[dict[str, Any]]:
    """``TagSpecifications`` for things of these kinds that one call makes."""
    return [{"ResourceType": kind, "Tags": to_aws(tags)} for kind in kinds]


def cluster_filters(cluster: str) -> list[dict[str, Any]]:
    """``Filters`` for what bears exactly our cluster's tag. In a filter ``*``, ``?`` and ``\\`` are special; a
    cluster's name has none of them.
    """
    return [{"Name": f"tag:{TAG_CLUSTER}", "Values": [cluster]}]


def belongs_to_cluster(tags: Mapping[str, str], cluster: str) -> bool:
    """Whether it bears exactly our cluster's tag."""
    return tags.get(TAG_CLUSTER) == cluster


def common_tags(many: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The tags that all of them have with the same value."""
    first, *rest = many
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in rest)}
