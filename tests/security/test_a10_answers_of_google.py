"""A10. Whatever Google's answers hold: an error is one of the interface's, a thing of another form is told as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.errors import CloudUnavailable, ProviderError
from providers.google import labels
from providers.google.catalog.catalog import parse_machine_type
from providers.google.catalog.prices import parse_sku
from providers.google.errors import error_for_response, operation_error
from providers.google.provider import GoogleProvider
from providers.http_errors import HttpResponse
from providers.parsing import malformed_as_unavailable
from tests.providers.google.things import settings
from tests.security.fuzz import fuzzed

KEYS = (
    "accelerators", "architecture", "bundledLocalSsds", "category", "clientOperationId", "code", "creationTimestamp",
    "description", "details", "error", "errors", "guestCpus", "id", "insertTime", "labels", "machineType", "memoryMb",
    "message", "name", "networkInterfaces", "operationType", "pricingInfo", "reason", "scheduling", "status",
    "targetId", "targetLink", "usageType", "zone", "burstd-cluster", "burstd-claim",
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(
    LEAVES | st.sampled_from(["insert", "zones/a", "7", "ours", "projects/p/instances/burstd-c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
THING = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=12)


@fuzzed
@given(said=JSON | st.fixed_dictionaries({"error": THING}), status=st.sampled_from([300, 400, 403, 404, 429, 503]))
def test_fuzz_errors(said: Any, status: int) -> None:
    answer = HttpResponse(status, {}, json.dumps(said))
    for changes in (False, True):
        found = error_for_response(answer, "make it", changes=changes)
        assert isinstance(found, ProviderError)
        assert "\n" not in str(found)
        assert len(str(found)) < 1100


@fuzzed
@given(said=THING)
def test_fuzz_operations(said: dict[str, Any]) -> None:
    assert isinstance(operation_error(said), ProviderError)


@fuzzed
@given(said=THING, read=st.sampled_from([parse_machine_type, parse_sku, labels.tags_of, labels.name_of]))
def test_fuzz_things(said: dict[str, Any], read: Callable[[dict[str, Any]], object]) -> None:
    with suppress(CloudUnavailable):
        malformed_as_unavailable(read)(said)


class Answers:
    """Calls to Google that are all answered with the same things."""

    def __init__(self, things: list[dict[str, Any]]) -> None:
        self._things = things

    def items(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return self._things

    def query(self, *_: object, **__: object) -> dict[str, Any]:
        return {"zones": ["zones/europe-west4-a"]}

    def server_time(self) -> float:
        return 1e9

    answered_at = server_time

    def close(self) -> None:
        """Nothing is open."""


@fuzzed
@given(things=st.lists(THING, max_size=4))
def test_fuzz_lists(things: list[dict[str, Any]]) -> None:
    ours = [{**one, "labels": {"burstd-cluster": "ours"}} for one in things]
    provider = GoogleProvider("google", "ours", settings(zones=["europe-west4-a"]), Answers(ours))  # type: ignore[arg-type]
    for read in (provider.instances, provider.leftovers):
        with suppress(CloudUnavailable):
            list(read())


def test_a_claim_is_not_taken_from_another_cluster_s_operation() -> None:
    link = "projects/p/zones/europe-west4-a/instances/burstd-c1"
    failed = {
        "operationType": "insert", "targetId": "7", "targetLink": link, "insertTime": "2026-01-01T00:00:00Z",
        "error": {"errors": [{"code": "STOCKOUT"}]},
    }  # fmt: skip
    for cluster, found in (("ours", ["c1"]), ("theirs", [])):
        operation = {**failed, "clientOperationId": labels.request_id(cluster, "c1")}
        provider = GoogleProvider("g", "ours", settings(zones=["europe-west4-a"]), Answers([operation]))  # type: ignore[arg-type]
        assert [one.claim_id for one in provider.instances()] == found
    with pytest.raises(ProviderError):
        labels.instance_name("C/1")
