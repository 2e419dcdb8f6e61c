"""A node uses a folder as the store only where it is the store's: else output would count as stored that is lost."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

import pytest

from burstd.domain.plugins.stager import StoreRefused
from burstd.testing.store_world import node_transport
from staging.names import store_marker
from staging.shared import SharedSettings, SharedStager


def shared(path: Path, seen: Path, name: str = "near") -> SharedStager:
    settings = SharedSettings(path=PurePosixPath(path), node_path=PurePosixPath(seen))
    return SharedStager(name, "lab", settings)


@pytest.mark.parametrize("there", ["no folder", "folder", "store without a mark", "another store"])
def test_what_is_not_mounted_is_no_store(there: str, tmp_path: Path) -> None:
    on_head, on_node, other = tmp_path / "head", tmp_path / "node", tmp_path / "other"
    for folder in (on_head, on_node, other):
        folder.mkdir()
    if there == "folder":
        (on_node / "lab").mkdir()
    elif there == "store without a mark":
        (on_node / "lab/.tmp").mkdir(parents=True)
    elif there == "another store":
        shared(other, other).put("in/ab/x", b"theirs")
        shutil.copytree(other / "lab", on_node / "lab")
    before = sorted(on_node.rglob("*"))
    store = shared(on_head, on_node)
    store.put("in/ab/x", b"x")
    with node_transport(store) as agent:
        for use in (
            lambda: agent.put("out/7/n1/ab/y", b"y"),
            lambda: agent.get("in/ab/none"),
            lambda: agent.present(["out/7/n1/ab/y"]),
        ):
            with pytest.raises(StoreRefused, match=f"{on_node}/lab is not the store's here"):
                use()
    assert sorted(on_node.rglob("*")) == before
    # It is mounted by now.
    on_node.rename(tmp_path / "image")
    on_node.symlink_to(on_head)
    with node_transport(store) as agent:
        agent.put("out/7/n1/ab/y", b"y")
    assert store.get("out/7/n1/ab/y") == b"y"
    assert [o.key for o in store.objects("")] == ["in/ab/x", "out/7/n1/ab/y"]


def test_each_place_has_a_mark_of_its_own() -> None:
    places = [("a", "b"), ("ab", ""), ("a b",), ("a", "c"), (None, "b")]
    assert len({store_marker(*place) for place in places}) == len(places)
