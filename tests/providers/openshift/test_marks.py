from __future__ import annotations

from typing import Any

import pytest

from burstd.domain.errors import BadRequest
from providers.openshift import labels
from tests.providers.openshift.things import pod


def test_labels_say_whose_it_is() -> None:
    said = labels.claim_labels("hpc", "claim-1", "gpu", "one")
    thing: Any = {"metadata": {"labels": said}}
    assert labels.claim_selector("hpc") == "burstd-cluster=hpc,burstd-claim"
    assert labels.belongs_to_cluster(thing, "hpc")
    assert (labels.claim_of(thing), labels.group_of(thing), labels.size_of(thing)) == ("claim-1", "gpu", "one")
    assert labels.claim_labels("hpc", "claim-1").keys() == {"burstd-cluster", "burstd-claim"}


STRANGE: list[Any] = [
    {}, {"metadata": {}}, {"metadata": {"labels": None}}, {"metadata": {"labels": {"burstd-cluster": "hpc"}}},
    {"metadata": {"labels": {"burstd-cluster": "hpc", "burstd-claim": ""}}},
    {"metadata": {"labels": {"burstd-cluster": "hpc2", "burstd-claim": "c"}}},
    {"metadata": {"labels": {"burstd-claim": "c"}}},
]  # fmt: skip


@pytest.mark.parametrize("thing", STRANGE, ids=range(len(STRANGE)))
def test_everything_else_is_not_ours(thing: Any) -> None:
    assert not labels.belongs_to_cluster(thing, "hpc")
    assert not labels.belongs_to_cluster(thing, "")


@pytest.mark.parametrize("word", ["", "a b", "-a", "a" * 64, "a/b", "é"])
def test_what_cannot_be_a_label_is_refused(word: str) -> None:
    with pytest.raises(BadRequest, match="label"):
        labels.claim_labels(word, "claim-1")
    with pytest.raises(BadRequest, match="label"):
        labels.claim_labels("hpc", word)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"a": 1, "burstd-cluster": "other"}'])
def test_tags_are_read_whatever_is_in_them(text: str | None) -> None:
    said = labels.tags_of(pod("n", metadata={"annotations": None if text is None else {labels.TAGS: text}}))
    assert said.pop("a", "1") == "1"
    assert said == {"burstd-cluster": "hpc", "burstd-claim": "claim-n"}
