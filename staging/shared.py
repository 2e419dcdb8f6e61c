"""The store that is a folder of a file system which the cloud's nodes mount too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.plugins.stager import NodeAccess, StagerPlugin, StoredObject, StoreRefused, UnfinishedUpload
from burstd.transfer.content_store.object_folder import ObjectFolder
from staging.names import cluster_prefix, store_marker
from staging.roots import AbsolutePath, SharedRoots


class SharedSettings(BaseModel):
    """``[staging.stores.NAME]`` of kind ``shared``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: AbsolutePath
    """The folder as the head sees it. It must be there: burstd makes none, lest it writes under a mount that failed."""
    node_path: AbsolutePath | None = None
    """The same folder as nodes see it; the same path where it is not given."""
    roots: Mapping[AbsolutePath, AbsolutePath] = Field(default_factory=dict)
    """Folders with users' data, as the head sees them, and as nodes do: inputs from there are not copied at all."""
    sync: bool = False
    """Whether a put has reached the disk before it counts."""


class SharedStager:
    """Objects as files, for the head and the nodes' root."""

    def __init__(self, name: str, cluster: str, settings: SharedSettings) -> None:
        self.name = name
        part = cluster_prefix(cluster)
        self._marker = store_marker(name, settings.path)
        self._folder = ObjectFolder(Path(settings.path) / part, sync=settings.sync, marker=self._marker)
        self._node_path = str((settings.node_path or settings.path) / part)
        self._roots = SharedRoots(settings.roots)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._folder.put(key, body)

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        return self._folder.get(key)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        return self._folder.present(keys)

    def copy(self, source: str, target: str) -> None:
        """Makes a hard link."""
        self._folder.copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; a missing one is no error."""
        self._folder.delete(keys)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose key begins so, page by page."""
        return self._folder.objects(prefix)

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Lists temporary files."""
        return self._folder.unfinished()

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes unfinished puts; a missing one is no error."""
        self._folder.abort([u.id for u in unfinished])

    def free_bytes(self) -> int:
        """Of the file system, for burstd's user."""
        return self._folder.free_bytes()

    def node_access(self) -> NodeAccess:
        """The folder as nodes see it."""
        self._folder.ensure_root()
        return NodeAccess("dir", {"path": self._node_path, "mark": self._marker})

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"the store {self.name} is a folder: there is no URL to {method} {len(keys)} objects")

    def in_place(self, path: str) -> str | None:
        """Returns the path by which nodes see this path of the head; None: they do not."""
        return self._roots.node_path(path)

    def close(self) -> None:
        """Nothing is open."""


def _make(name: str, cluster: str, settings: SharedSettings) -> SharedStager:
    return SharedStager(name, cluster, settings)


plugin = StagerPlugin(name="shared", settings=SharedSettings, make=_make)
