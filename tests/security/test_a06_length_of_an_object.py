"""What a node says of an object's length is nothing that others rely on: it is refused, and nothing of it is kept."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import ObjectRange, Tree
from burstd.staging.movement.agent_requests import repair_objects
from burstd.staging.movement.output_reuse import OutputReuse
from burstd.transfer.agent.fetch import fetch_verified
from burstd.transfer.agent.user_process import AgentFault
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import ManifestDamaged, object_key
from burstd.transfer.content_store.object_folder import ObjectFolder
from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.protocol.transports import FolderObjectTransport
from burstd.transfer.trees.restore import TreeRestorer
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.doubles.hostile_agent import Forger
from tests.transfer.ground import USER, give_to_user, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]


@pytest.mark.parametrize("piece", [(0, 9), (1, 4), (4, 1), (-4, 4), (0, 1 << 40), (1 << 40, 4)])
def test_a_piece_that_its_object_has_not_is_known_to_nobody(piece: tuple[int, int]) -> None:
    from tests.reconciler.test_output_delivery import open_user_workers

    store, index = MemoryStager(), ContentIndex(None)
    forger = Forger(store, {"prefix": "out/7/n1", "patterns": ["."], "files": []})
    key = forger.put(b"evil")
    row = {"p": "x", "t": "f", "m": 0o644, "n": 5, "s": piece[1], "c": [[key, *piece]]}
    said = forger.tree(row, size=1 << 50)
    manifest = tuple(ObjectRange(*each) for each in said["manifest"])
    tree = Tree("out/7/n1", said["digest"], manifest, said["entries"], said["size"])
    with user_folder() as place, open_user_workers(place) as user_workers, pytest.raises(ManifestDamaged):
        TreeRestorer(store.get, "memory", reuse=OutputReuse(store, index)).restore(
            user_workers.files, tree, str(place / "to"), job="7", cancelled=threading.Event()
        )
    contents = [hashlib.sha256(b"evil"[slice(*cut)]).digest() for cut in ((0, 4), (1, 4), (0, 0), (4, 9))]
    assert index.content_pieces("memory", "in", contents) == {}
    index.close()


def test_a_length_that_was_wrong_once_is_mended_by_the_next_that_is_known() -> None:
    index = ContentIndex(None)
    key = "ab" * 32
    index.record_put_begun("s", "in", key, 1)
    index.record_put("s", "in", {key: 5})
    assert index.present_objects("s", "in", [key]) == {key: 5}
    index.close()


def test_one_that_is_longer_than_any_is_damaged_and_removed(tmp_path: Path) -> None:
    """A node put it with a signed URL in the place of one that had been verified."""
    stager, index = MemoryStager(), ContentIndex(None)
    with user_folder() as place, start_user_worker(USER, USER) as worker:
        (place / "large").write_bytes(os.urandom(3 << 20))
        give_to_user(place)
        tree = TreeUploader(index, stager).upload(worker, str(place / "large"), owner=StagedFor(USER))
        (name,) = (key for key in stager.stored if key != object_key("in", tree.manifest[0].key))
        key = name.rpartition("/")[2]
        stager.stored[name] = bytes(OBJECT_BYTES + 1)
        assert repair_objects(stager, index, [tree], [key], threading.Event())
        assert name not in stager.stored
    folder = ObjectFolder(tmp_path / "store")
    folder.put(name, bytes(OBJECT_BYTES + 1))
    with pytest.raises(AgentFault, match="larger than") as caught:
        fetch_verified(FolderObjectTransport(str(tmp_path / "store")), "in", key, memoryview(bytearray(OBJECT_BYTES)))
    assert (caught.value.kind, caught.value.keys) == ("damaged", (key,))
