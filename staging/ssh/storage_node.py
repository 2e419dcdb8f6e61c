"""The store on a storage node that burstd launches: the ssh store, wherever its node is at the moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from burstd.domain.plugins.stager import NodeAccess, StoreBusy, StoredObject, StoreRefused, UnfinishedUpload
from burstd.domain.storage_node import StorageNodeAddress, StorageNodeSpec

if TYPE_CHECKING:
    from staging.ssh.settings import SshSettings
    from staging.ssh.stager import SshStager

RETRY_AFTER_S = 5.0


class LaunchedSshStager:
    """An SshStager on a storage node that burstd launches."""

    def __init__(self, name: str, cluster: str, settings: SshSettings, node_spec: StorageNodeSpec) -> None:
        self.name = name
        self._cluster = cluster
        self._settings = settings
        self._node_spec = node_spec
        self._lock = threading.Lock()
        self._location: StorageNodeAddress | None = None
        self._node: SshStager | None = None
        self._why = "burstd has just started"
        self._empty = False

    @property
    def node_spec(self) -> StorageNodeSpec | None:
        """Returns the node to launch."""
        return self._node_spec

    def node_ready(self, place: StorageNodeAddress) -> None:
        """Connects to the node at this address."""
        from staging.ssh.stager import SshStager  # noqa: PLC0415 - which makes these

        with self._lock:
            if place == self._location:
                return
            old, self._location = self._node, place
            at = {
                "host": place.host, "port": place.port, "user": place.user, "key_file": Path(place.key_file),
                "node_key_file": Path(place.node_key_file), "known_hosts_file": Path(place.known_hosts_file),
                "launch": (),
            }  # fmt: skip
            self._node = SshStager(self.name, self._cluster, self._settings.model_copy(update=at))
        if old is not None:
            old.close()

    def node_gone(self, why: str, *, empty: bool) -> None:
        """Drops the connection to the node."""
        with self._lock:
            old, self._node, self._location = self._node, None, None
            self._why, self._empty = why, empty
        if old is not None:
            old.close()

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._node_stager().put(key, body)

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        return self._node_stager().get(key)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        node = self._node_stager_or_none()
        return node.present(keys) if node is not None else {}

    def copy(self, source: str, target: str) -> None:
        """Makes a second object of the same content."""
        self._node_stager().copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; a missing one is no error."""
        node = self._node_stager_or_none()
        if node is not None:
            node.delete(keys)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose key begins so, page by page."""
        node = self._node_stager_or_none()
        return node.objects(prefix) if node is not None else iter(())

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Lists puts of burstd that have not ended."""
        node = self._node_stager_or_none()
        return node.unfinished() if node is not None else iter(())

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes unfinished puts; a missing one is no error."""
        node = self._node_stager_or_none()
        if node is not None:
            node.abort(unfinished)

    def free_bytes(self) -> int | None:
        """Of the node's folder; None while there is no node."""
        node = self._node_stager_or_none()
        return node.free_bytes() if node is not None else None

    def node_access(self) -> NodeAccess:
        """Returns how nodes reach the store."""
        return self._node_stager().node_access()

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"the store {self.name} is reached by ssh: there is no URL to {method} {len(keys)} objects")

    def close(self) -> None:
        """Ends the ssh programs."""
        self.node_gone("it was closed", empty=False)

    def _node_stager(self) -> SshStager:
        with self._lock:
            if self._node is None:
                raise self._waiting_error()
            return self._node

    def _node_stager_or_none(self) -> SshStager | None:
        """None: there is no object anywhere."""
        with self._lock:
            if self._node is None and not self._empty:
                raise self._waiting_error()
            return self._node

    def _waiting_error(self) -> StoreBusy:
        return StoreBusy(f"the store {self.name} waits for its storage node: {self._why}", RETRY_AFTER_S)
