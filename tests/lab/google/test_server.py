"""The server refuses what Google's schema does not have: else no test against it would mean anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from burstd.domain.errors import BadRequest
from providers.google.calls import GoogleCalls
from tests.lab.google.api import fits
from tests.lab.google.cloud import SUBNETWORK, ZONES
from tests.lab.google.schema import SchemaViolation, masked, methods
from tests.lab.google.world import INSERT, PROJECT, GoogleWorld

pytestmark = pytest.mark.clouds


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def world(key: rsa.RSAPrivateKey, tmp_path: Path) -> Iterator[GoogleWorld]:
    made = GoogleWorld(tmp_path, key)
    yield made
    made.server.close()


def body(**words: Any) -> dict[str, Any]:
    at = f"projects/{PROJECT}/zones/{ZONES[0]}"
    made = {"sourceImage": f"projects/{PROJECT}/global/images/node-0", "labels": {}}
    return {
        "name": "a", "machineType": f"{at}/machineTypes/n2-standard-2", "labels": {}, "description": "",
        "disks": [{"boot": True, "initializeParams": made}],
        "networkInterfaces": [{"subnetwork": f"projects/{PROJECT}/regions/europe-west4/subnetworks/{SUBNETWORK}"}],
        "scheduling": {"provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}, **words,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"tag": {"items": []}}, "'tag'"),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "CHEAP"),
        ({"status": "RUNNING"}, "status"),
        ({"creationTimestamp": "2026"}, "creationTimestamp"),
        ({"labels": {"a": 1}}, "labels"),
        ({"disks": [{"boot": "yes"}]}, "boot"),
        ({"scheduling": {"maxRunDuration": {"seconds": 60}}}, "seconds"),
    ],
)
def test_a_request_of_another_form(world: GoogleWorld, words: dict[str, Any], says: str) -> None:
    calls = GoogleCalls(world.settings("ours"))
    place = {"project": PROJECT, "zone": ZONES[0]}
    with pytest.raises(BadRequest, match=says):
        calls.mutate(INSERT, "make it", body=body(**words), **place)
    assert len(world.server.violations) == 1
    assert calls.mutate(INSERT, "make it", body=body(), **place)["kind"] == "compute#operation"
    calls.close()


def test_answers_are_held_to_it_too() -> None:
    insert = next(one for one in methods() if one.id == INSERT)
    insert.check_answer({"kind": "compute#operation", "status": "RUNNING", "targetId": "7"})
    strange: list[Any] = [{"status": "BUSY"}, {"targetId": 7}, {"target": "x"}, []]
    for wrong in strange:
        with pytest.raises(SchemaViolation):
            insert.check_answer(wrong)
    with pytest.raises(SchemaViolation):
        insert.check_query({"requestID": "x"})


def test_partial_answers() -> None:
    said = {"items": {"a": {"things": [{"id": 1, "x": {"y": 2, "z": 3}}], "more": 1}}, "next": "t", "kind": "k"}
    assert masked(said, "next,items/*/things(id,x/y)") == {
        "items": {"a": {"things": [{"id": 1, "x": {"y": 2}}]}}, "next": "t",
    }  # fmt: skip
    assert masked(said, "items/*/more") == {"items": {"a": {"more": 1}}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", True), ('labels.a-b = "x"', True), ('labels.a-b = "y"', False), ('name = "n"', True),
        ('labels.none = "x"', False),
    ],
)  # fmt: skip
def test_filters(text: str, *, found: bool) -> None:
    assert fits({"name": "n", "labels": {"a-b": "x"}}, text) is found


@pytest.mark.parametrize(
    ("method", "place"), [("compute.zoneOperations.list", {"zone": ZONES[0]}), ("compute.images.list", {})]
)
def test_no_list_takes_a_filter_and_an_order(world: GoogleWorld, method: str, place: dict[str, str]) -> None:
    calls = GoogleCalls(world.settings("ours"))
    words: dict[str, Any] = {"project": PROJECT, "orderBy": "creationTimestamp desc", "filter": 'name = "a"', **place}
    with pytest.raises(BadRequest, match="both a list filter and sort order"):
        list(calls.items(method, "list them", **words))
    calls.close()
