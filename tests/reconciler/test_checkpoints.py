"""Checkpoints in the store: what is released, and what the head itself sees of one that a node says is damaged."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from burstd.domain.staging import Checkpoint, Directives, ObjectRange, StageState, Staging, Tree
from burstd.staging.controller.tasks import Meter, StagingTask
from burstd.staging.movement.agent_requests import is_damaged
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.content_store.manifest import ManifestEntry, encode_manifest, object_key
from tests.transfer.memory import MemoryStager

PREFIX = "checkpoint/7"


def put(stager: MemoryStager, body: bytes) -> str:
    key = hashlib.sha256(body).hexdigest()
    stager.put(object_key(PREFIX, key), body)
    return key


def stored_tree(stager: MemoryStager, *bodies: bytes, path: bytes = b"", single: bool = False) -> Tree:
    """A directory with a file for each body, or only the file."""
    entries = [] if single else [ManifestEntry(b"", "d", 0o755, 1)]
    for number, body in enumerate(bodies):
        pieces = (ObjectRange(put(stager, body), 0, len(body)),)
        entries.append(ManifestEntry(path + b"%d" % number, "f", 0o644, 1, len(body), pieces=pieces))
    (manifest,) = encode_manifest(entries)
    piece = ObjectRange(put(stager, manifest), 0, len(manifest))
    size = sum(map(len, bodies))
    return Tree(PREFIX, hashlib.sha256(manifest).hexdigest(), (piece,), len(entries), size, single)


def transfers(stager: MemoryStager) -> HeadTransfers:
    unused = cast("Any", None)
    return HeadTransfers(
        commands=unused, stager=stager, uploader=unused, agent=unused, output_delivery=unused, open_worker=unused,
        open_object_worker=unused, folders=unused, cache_dir="", datasets=unused,
    )  # fmt: skip


def test_what_no_kept_checkpoint_needs_is_released() -> None:
    stager = MemoryStager()
    first = stored_tree(stager, b"old", b"shared")
    kept = [stored_tree(stager, b"shared", b"two"), stored_tree(stager, b"three")]
    put(stager, b"of a try that failed")
    other = object_key("checkpoint/70", "ab" * 32)
    stager.put(other, b"of another job")
    checkpoints = tuple(Checkpoint(1.0, "c", {"0": tree}, 1, {"0": ""}) for tree in kept)
    job = Staging("7", "ada", 1, 1, Directives(), StageState.FETCHED, 1.0, 1.0, checkpoints=checkpoints)
    transfers(stager).remove_other_checkpoints(StagingTask(job, Meter("checkpoint", "checkpoint")))
    assert {body for body in stager.stored.values() if len(body) < 30} == {
        b"shared", b"two", b"three", b"of another job"
    }  # fmt: skip
    assert {object_key(PREFIX, tree.manifest[0].key) in stager.stored for tree in kept} == {True}
    assert object_key(PREFIX, first.manifest[0].key) not in stager.stored
    del stager.stored[object_key(PREFIX, kept[0].manifest[0].key)]
    put(stager, b"new")
    transfers(stager).remove_other_checkpoints(StagingTask(job, Meter("checkpoint", "checkpoint")))
    assert b"new" in stager.stored.values(), "nothing is removed where one cannot be read"


def nothing(_stager: MemoryStager, _tree: Tree) -> None:
    return


def content_is_gone(stager: MemoryStager, _tree: Tree) -> None:
    del stager.stored[object_key(PREFIX, hashlib.sha256(b"one").hexdigest())]


def content_is_another(stager: MemoryStager, _tree: Tree) -> None:
    stager.stored[object_key(PREFIX, hashlib.sha256(b"one").hexdigest())] = b"eno"


def manifest_is_gone(stager: MemoryStager, tree: Tree) -> None:
    del stager.stored[object_key(PREFIX, tree.manifest[0].key)]


@pytest.mark.parametrize(
    ("trouble", "path", "damaged"),
    [
        (nothing, b"", False),
        (content_is_gone, b"", True),
        (content_is_another, b"", True),
        (manifest_is_gone, b"", True),
        (nothing, b"../", True),
    ],
)
def test_a_node_alone_cannot_make_burstd_give_a_checkpoint_up(
    trouble: Callable[[MemoryStager, Tree], None], path: bytes, *, damaged: bool
) -> None:
    stager = MemoryStager()
    tree = stored_tree(stager, b"one", path=path)
    trouble(stager, tree)
    named = [hashlib.sha256(b"one").hexdigest(), "ff" * 32]
    assert is_damaged(stager, tree, named, threading.Event()) is damaged
