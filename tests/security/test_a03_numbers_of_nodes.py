"""What storage nodes and nodes count is a number that burstd can store, or their word is refused where it comes in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import NodeRefused
from burstd.domain.plugins.shell import CompletedCommand
from burstd.domain.plugins.stager import StoredObject, StoreRefused
from burstd.domain.slurm.shape import Shape
from burstd.domain.storage_node import StorageNodeSpec
from burstd.node.storage_node import StorageNodeValidator
from burstd.node.validator import SlurmNodeValidator
from burstd.staging.controller.tasks import StageFailed
from burstd.staging.movement.agent_requests import parse_collected_output
from burstd.staging.movement.garbage_collection import GarbageCollectionRules, GarbageCollector
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import MAX_TREE_BYTES
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import LIST_PAGE_SIZE, ReplyStatus
from tests.doubles.hostile_storage import HostileStorage
from tests.security.test_a02_what_a_node_writes import OFFER
from tests.transfer.memory import MemoryStager

KEY = "in/ab/" + "ab" * 32
DEEP = b"[" * 100_000
LONG = b"9" * 10_000


def objects(client: ObjectServerClient) -> list[Any]:
    return list(client.objects("in/"))


def present(client: ObjectServerClient) -> dict[str, int]:
    return dict(client.present([KEY]))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (present, {KEY: 1 << 63}), (present, {KEY: -1}), (present, {KEY: True}), (present, {KEY: "5"}),
        (present, {KEY: None}), (present, {"in/another": 5}), (present, [KEY]), (present, 7),
        (objects, [[KEY, 1 << 63, 5]]), (objects, [[KEY, 5, float("nan")]]), (objects, [[KEY, 5, float("inf")]]),
        (objects, [[KEY, 5, 10**300]]), (objects, [[KEY, 5]]), (objects, [[KEY, 5, 5, 5]]), (objects, [[7, 5, 5]]),
        (objects, [["out/7/n1/x", 5, 5]]), (objects, [[KEY, 5, 5]] * LIST_PAGE_SIZE), (objects, [7]),
        (objects, {"a": 1}),
        (objects, [["in/b", 5, 5], ["in/a", 5, 5]]),
        (lambda c: list(c.unfinished()), [["x", "y", "z"]]), (lambda c: list(c.unfinished()), [["x", 7, 1.0]]),
        (ObjectServerClient.free_bytes, 1 << 63), (ObjectServerClient.free_bytes, -1),
        (ObjectServerClient.free_bytes, "5"),
        (ObjectServerClient.free_bytes, 0.5), (ObjectServerClient.free_bytes, None),
        (present, DEEP), (objects, DEEP), (ObjectServerClient.free_bytes, LONG),
        (ObjectServerClient.free_bytes, b"\xff"),
    ],
)  # fmt: skip
def test_a_storage_node_answers_in_the_form_of_burstds_program(
    ask: Callable[[ObjectServerClient], Any], said: Any
) -> None:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    with (
        HostileStorage(body) as node,
        pytest.raises(StoreRefused, match="the node answers what no program of burstd's"),
    ):
        ask(node.client)


def test_a_list_without_end_ends() -> None:
    page = json.dumps([[f"in/{n:04}", 5, 5] for n in range(LIST_PAGE_SIZE)]).encode()
    with HostileStorage(page) as node, pytest.raises(StoreRefused):
        objects(node.client)
    assert node.requests == 2


def test_an_error_is_one_line_of_bounded_length() -> None:
    words = b"\x1b[2J\nno" + b"x" * (1 << 20)
    with HostileStorage(words, status=ReplyStatus.REFUSED) as node, pytest.raises(StoreRefused) as caught:
        node.client.free_bytes()
    assert len(str(caught.value)) < 1100
    assert str(caught.value).isprintable()


def test_objects_of_strange_names_do_not_end_the_sweep() -> None:
    class Strange(MemoryStager):
        def objects(self, prefix: str) -> Any:
            return iter([StoredObject(f"{prefix}{name}", 5, 0) for name in ("x", "ab/not hex", "7/n1/ab/" + "²" * 64)])

    store = Strange()
    index = ContentIndex(None)
    GarbageCollector("s", store, index, GarbageCollectionRules(1.0, None)).sweep([], 1e9)
    index.close()


def test_all_trees_of_a_node_are_a_number_that_can_be_stored() -> None:
    tree = {"digest": "ab" * 32, "manifest": [], "entries": 1, "size": MAX_TREE_BYTES, "single": False}
    said = {"trees": [tree], "files": [], "missing": None, "sent": 0, "seconds": 1.0, "warnings": []}
    assert parse_collected_output("n1", "out/7/n1", [0], [], said).trees["0"].size == MAX_TREE_BYTES
    with pytest.raises(StageFailed, match="more bytes than any node has"):
        parse_collected_output("n1", "out/7/n1", [0, 1], [], {**said, "trees": [tree, tree]})


@pytest.mark.parametrize("out", ["", "²", "-5", "9" * 5000, "much", "1e9"])
def test_a_storage_node_says_its_room_as_a_number(out: str, tmp_path: Path) -> None:
    class Said:
        host_key = "ssh-ed25519 AAAA"

        def script(self, *_: Any, **__: Any) -> CompletedCommand:
            return CompletedCommand(0, out, "")

        def __enter__(self) -> Self:
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
        ) -> None:
            return

    class Nodes:
        def ssh_session(self, *_: Any) -> Said:
            return Said()

    spec = StorageNodeSpec((), "/srv/burst", 1, "python3", 600.0)
    prover = StorageNodeValidator(cast("SlurmNodeValidator", Nodes()), tmp_path, lambda: {"storage": spec})
    claim = Claim("c", "x", "storage", "storage", OFFER, Cause.STORAGE, ClaimState.BOOTING, 0.0, 0.0, address="h")
    with pytest.raises(NodeRefused, match="cannot say how much room it has"):
        prover.validate(claim, Pool("storage", ("storage",), (), Shape(1, 1)), None, lambda: None)
