from __future__ import annotations

import pytest

from providers.openstack.servers import metadata
from providers.openstack.servers.metadata import ResourceOwner, ServerGroupOwner

DESCRIPTIONS: list[tuple[str | None, ResourceOwner | None]] = [
    (metadata.owner_description("ours", "c1"), ResourceOwner("ours", "c1")),
    (metadata.owner_description("ours", ""), ResourceOwner("ours", "")),
    ("burstd-cluster=ours", None),
    ("burstd-cluster=ours burstd-claim=c1 and more", None),
    ("burstd-claim=c1 burstd-cluster=ours", None),
    ("burstd-cluster= burstd-claim=c1", None),
    ("my port", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("text", "mark"), DESCRIPTIONS)
def test_descriptions(text: str | None, mark: ResourceOwner | None) -> None:
    assert metadata.parse_description(text) == mark


GROUPS: list[tuple[str, ServerGroupOwner | None]] = [
    (metadata.group_name("ours", "a/b 7", 12.9), ServerGroupOwner("ours", 12, "a/b 7")),
    ("burstd/ours/12", None),
    ("burstd/ours/12/", None),
    ("burstd//12/x", None),
    ("burstd/ours/soon/x", None),
    ("mine/ours/12/x", None),
    ("nodes", None),
]


@pytest.mark.parametrize(("name", "mark"), GROUPS)
def test_groups(name: str, mark: ServerGroupOwner | None) -> None:
    assert metadata.parse_group_name(name) == mark


def test_a_name_that_nova_would_not_take() -> None:
    with pytest.raises(ValueError, match="255"):
        metadata.group_name("ours", "x" * 255, 0)


def test_whose_it_is() -> None:
    assert metadata.belongs_to_cluster(ResourceOwner("ours", ""), "ours")
    assert not metadata.belongs_to_cluster(ResourceOwner("ours2", ""), "ours")
    assert not metadata.belongs_to_cluster(None, "ours")
    assert metadata.parse_metadata({"burstd-cluster": "ours"}) == ResourceOwner("ours", "")
    assert metadata.parse_metadata({"burstd-claim": "c1"}) is metadata.parse_metadata(None) is None
