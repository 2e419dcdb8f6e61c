"""The store on a storage node that burstd launches: the ssh store, wherever its node is at the moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from burstd.domain.plugins.stager import Reach, StoreBusy, StoredObject, StoreRefused, Unfinished
from burstd.domain.storage_node import NodePlace, NodeWish

if TYPE_CHECKING:
    from staging.ssh.settings import SshSettings
    from staging.ssh.stager import SshStager

LOOK_AGAIN_S = 5.0


class LaunchedSshStager:
    """See Stager and OnNode."""

    def __init__(self, name: str, cluster: str, settings: SshSettings, wish: NodeWish) -> None:
        self.name = name
        self._cluster = cluster
        self._settings = settings
        self._wish = wish
        self._lock = threading.Lock()
        self._place: NodePlace | None = None
        self._node: SshStager | None = None
        self._why = "burstd has just started"
        self._empty = False

    @property
    def wish(self) -> NodeWish | None:
        """See OnNode."""
        return self._wish

    def here(self, place: NodePlace) -> None:
        """See OnNode."""
        from staging.ssh.stager import SshStager  # noqa: PLC0415 - which makes these

        with self._lock:
            if place == self._place:
                return
            old, self._place = self._node, place
            at = {
                "host": place.host, "port": place.port, "user": place.user, "key_file": Path(place.key_file),
                "node_key_file": Path(place.node_key_file), "known_hosts_file": Path(place.known_hosts_file),
                "launch": (),
            }  # fmt: skip
            self._node = SshStager(self.name, self._cluster, self._settings.model_copy(update=at))
        if old is not None:
            old.close()

    def away(self, why: str, *, empty: bool) -> None:
        """See OnNode."""
        with self._lock:
            old, self._node, self._place = self._node, None, None
            self._why, self._empty = why, empty
        if old is not None:
            old.close()

    def put(self, key: str, body: bytes | memoryview) -> None:
        """See Stager."""
        self._there().put(key, body)

    def get(self, key: str) -> bytes:
        """See Stager."""
        return self._there().get(key)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """See Stager."""
        node = self._there_or_nothing()
        return node.present(keys) if node is not None else {}

    def copy(self, source: str, target: str) -> None:
        """See Stager."""
        self._there().copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """See Stager."""
        node = self._there_or_nothing()
        if node is not None:
            node.delete(keys)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """See Stager."""
        node = self._there_or_nothing()
        return node.objects(prefix) if node is not None else iter(())

    def unfinished(self) -> Iterator[Unfinished]:
        """See Stager."""
        node = self._there_or_nothing()
        return node.unfinished() if node is not None else iter(())

    def abort(self, unfinished: Sequence[Unfinished]) -> None:
        """See Stager."""
        node = self._there_or_nothing()
        if node is not None:
            node.abort(unfinished)

    def free_bytes(self) -> int | None:
        """Of the node's folder; None while there is no node."""
        node = self._there_or_nothing()
        return node.free_bytes() if node is not None else None

    def reach(self) -> Reach:
        """See Stager."""
        return self._there().reach()

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:
        """There are no URLs."""
        raise StoreRefused(f"the store {self.name} is reached by ssh: there is no URL to {method} {len(keys)} objects")

    def close(self) -> None:
        """Ends the ssh programs."""
        self.away("it was closed", empty=False)

    def _there(self) -> SshStager:
        with self._lock:
            if self._node is None:
                raise self._waits()
            return self._node

    def _there_or_nothing(self) -> SshStager | None:
        """None: there is no object anywhere."""
        with self._lock:
            if self._node is None and not self._empty:
                raise self._waits()
            return self._node

    def _waits(self) -> StoreBusy:
        return StoreBusy(f"the store {self.name} waits for its storage node: {self._why}", LOOK_AGAIN_S)
