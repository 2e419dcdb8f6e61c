from __future__ import annotations

import pytest

from providers.openstack import metadata
from providers.openstack.metadata import GroupMark, Mark

DESCRIPTIONS: list[tuple[str | None, Mark | None]] = [
    (metadata.description("ours", "c1"), Mark("ours", "c1")),
    (metadata.description("ours", ""), Mark("ours", "")),
    ("burstd-cluster=ours", None),
    ("burstd-cluster=ours burstd-claim=c1 and more", None),
    ("burstd-claim=c1 burstd-cluster=ours", None),
    ("burstd-cluster= burstd-claim=c1", None),
    ("my port", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("text", "mark"), DESCRIPTIONS)
def test_descriptions(text: str | None, mark: Mark | None) -> None:
    assert metadata.of_description(text) == mark


GROUPS: list[tuple[str, GroupMark | None]] = [
    (metadata.group_name("ours", "a/b 7", 12.9), GroupMark("ours", 12, "a/b 7")),
    ("burstd/ours/12", None),
    ("burstd/ours/12/", None),
    ("burstd//12/x", None),
    ("burstd/ours/soon/x", None),
    ("mine/ours/12/x", None),
    ("nodes", None),
]


@pytest.mark.parametrize(("name", "mark"), GROUPS)
def test_groups(name: str, mark: GroupMark | None) -> None:
    assert metadata.of_group(name) == mark


def test_a_name_that_nova_would_not_take() -> None:
    with pytest.raises(ValueError, match="255"):
        metadata.group_name("ours", "x" * 255, 0)


def test_whose_it_is() -> None:
    assert metadata.is_ours(Mark("ours", ""), "ours")
    assert not metadata.is_ours(Mark("ours2", ""), "ours")
    assert not metadata.is_ours(None, "ours")
    assert metadata.of_metadata({"burstd-cluster": "ours"}) == Mark("ours", "")
    assert metadata.of_metadata({"burstd-claim": "c1"}) is metadata.of_metadata(None) is None
