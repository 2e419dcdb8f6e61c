from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from tests.providers.openshift.things import settings

SIZE = {"cpus": 4, "memory": "60G"}


def groups(**words: Any) -> dict[str, Any]:
    return {"g": {"prices": {"cpu": "0.1"}, "sizes": {"one": SIZE}, **words}}


def test_sizes_have_units_as_everywhere() -> None:
    made = settings(groups=groups(), shm=512, scratch={"size": "1.5T"}, mounts=[{"claim": "data", "path": "/data"}])
    size = made.size("g", "one")
    assert size is not None
    assert (size.memory, made.shm, made.scratch.size) == (60 * 1024, 512, 1536 * 1024)
    assert made.groups["g"].prices is not None
    assert made.groups["g"].prices.cpu == Decimal("0.1")
    assert made.size("g", "two") is made.size("other", "one") is None


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {"group": {}}, "Extra inputs"),
    ("no-group", {"groups": {}}, "at least 1 item"),
    ("no-size", {"groups": groups(sizes={})}, "at least 1 item"),
    ("no-price", {"groups": groups(prices=None)}, "one"),
    ("cpus", {"groups": groups(sizes={"one": {**SIZE, "cpus": 0}})}, "greater than or equal to 1"),
    ("memory", {"groups": groups(sizes={"one": {**SIZE, "memory": "60 apples"}})}, "512M"),
    ("resource", {"groups": groups(gpu_resource="gpu")}, "pattern"),
    ("name", {"groups": {"not a label": groups()["g"]}}, "pattern"),
    ("namespace", {"namespace": "Not.One"}, "pattern"),
    ("path", {"scratch": {"path": "burst"}}, "absolute path"),
    ("one-path", {"mounts": [{"claim": "a", "path": "/var/spool/burst"}]}, "one volume only"),
    ("run-as", {"run_as": 1000}, "restricted"),
    ("networks", {"network": "fast", "host_network": True}, "either"),
    ("own-label", {"labels": {"burstd-claim": "x"}}, "burstd-claim"),
    ("own-note", {"annotations": {"burstd/tags": "x"}}, "burstd/tags"),
]


@pytest.mark.parametrize(("name", "words", "said"), WRONG, ids=[row[0] for row in WRONG])
def test_what_cannot_be(name: str, words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(**words)
