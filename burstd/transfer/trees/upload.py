"""Bringing a source into a store: what is there already is not sent, and what two want is sent once."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from burstd.domain.plugins.stager import Stager, StoreBusy
from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import TreeTooLarge, encode_manifest
from burstd.transfer.content_store.upload_pool import (
    STORE_BUSY_TIMEOUT_S,
    SharedUploadState,
    TransferCancelled,
    UploadPool,
    UploadProgress,
)
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, printable
from burstd.transfer.trees.ignore import IgnoreRow
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.source_scan import RescanNeeded, SourceScan

__all__ = ["StagedFor", "TransferCancelled", "TreeUploader"]

_MAX_SCANS = 20
"""Each but the first is caused by an object that the store has lost, or by another transfer that failed."""


@dataclass(frozen=True, slots=True)
class StagedFor:
    """For whom something is staged: the user, and the Slurm account that pays for the space."""

    uid: int
    account: str = ""


@dataclass(slots=True)
class _Leader:
    """A transfer of a source: a second one of the same user waits for it, and then finds all in the store."""

    progress: UploadProgress
    ended: threading.Event = field(default_factory=threading.Event)


class TreeUploader:
    """Sends to one store. For all threads of the process; there is one for each store and index."""

    def __init__(
        self,
        index: ContentIndex,
        stager: Stager,
        limits: BandwidthLimits | None = None,
        *,
        patience_s: float = STORE_BUSY_TIMEOUT_S,
    ) -> None:
        """``patience_s``: how long a busy store is asked for the same thing."""
        self.index = index
        self.stager = stager
        self._shared = SharedUploadState(index, stager, limits or BandwidthLimits(), patience_s)
        self._leaders: dict[tuple[int, str, str], _Leader] = {}
        self._lock = threading.Lock()

    def upload(
        self,
        worker: UserWorker,
        source: str,
        *,
        owner: StagedFor,
        prefix: str = "in",
        progress: UploadProgress | None = None,
        cancelled: threading.Event | None = None,
        ignore: Sequence[IgnoreRow] = (),
    ) -> Tree:
        """Brings a file, directory or pattern into the store and returns it, whole and noted in the index.

        ``ignore``: what of a directory is left out.

        Read with the worker's rights only. A busy store is asked again for a while; what was sent by then is not sent
        again. Raises UserWorkerError (it cannot be read, or changes all the time), StoreBusy, StoreRefused,
        StoreSpaceGone, TransferCancelled (``cancelled`` is set).
        """
        progress = progress or UploadProgress()
        upload_pool = UploadPool(self._shared, prefix, owner.uid, progress, cancelled or threading.Event())
        name = (owner.uid, source, prefix)
        with self._lock:
            leader = self._leaders.get(name)
            if leader is None:
                own_transfer = self._leaders[name] = _Leader(progress)
        try:
            if leader is not None:
                self._wait_for_leader(leader, upload_pool)
            for _ in range(_MAX_SCANS):
                progress.restart()
                tree = self._scan_and_upload(upload_pool, worker, source, owner, ignore)
                if tree is not None:
                    return tree
            raise StoreBusy(
                f"{self.stager.name}: objects are missing again and again; see that nothing else deletes there"
            )
        finally:
            if leader is None:
                with self._lock:
                    del self._leaders[name]
                own_transfer.ended.set()
            upload_pool.close()

    def reuse(self, source: str, owner: StagedFor, cancelled: threading.Event, prefix: str = "in") -> Tree | None:
        """The tree that anybody brought from a source whose name stands for its content, noted for this owner too.

        None: the store does not have it, or not whole. Raises StoreBusy, StoreRefused, TransferCancelled.
        """
        found = self.index.tree_of_source(self.stager.name, source)
        if found is None:
            return None
        tree, keys = found
        upload_pool = UploadPool(self._shared, prefix, owner.uid, UploadProgress(), cancelled)
        try:
            if upload_pool.pin_known(keys | {piece.key for piece in tree.manifest}) or upload_pool.verify_with_store():
                return None
            self.index.add_tree(self.stager.name, tree, keys, uid=owner.uid, account=owner.account, source=source)
            return tree
        finally:
            upload_pool.close()

    @staticmethod
    def _wait_for_leader(leader: _Leader, upload_pool: UploadPool) -> None:
        while not leader.ended.wait(0.2):
            upload_pool.raise_if_failed()
            upload_pool.progress.bytes_done = leader.progress.bytes_done

    def _scan_and_upload(
        self,
        upload_pool: UploadPool,
        worker: UserWorker,
        source: str,
        owner: StagedFor,
        ignore: Sequence[IgnoreRow],
    ) -> Tree | None:
        """The tree; None: the store had lost something, or another transfer did not bring its part."""
        scan = SourceScan(upload_pool, worker, source, ignore)
        digest = hashlib.sha256()
        bodies: list[bytes] = []
        keys: dict[int, str] = {}

        def put(number: int, body: bytes) -> None:
            def ended(key: str, there: bool, error: BaseException | None) -> None:  # noqa: ARG001 - Ended
                keys[number] = key

            upload_pool.submit_put(body, ended)

        sizes: list[int] = []
        entries = scan.entries()
        try:
            for body in encode_manifest(entries):
                digest.update(body)
                # The last one waits until all else is there.
                if bodies:
                    put(len(sizes) - 1, bodies.pop())
                bodies.append(body)
                sizes.append(len(body))
        except RescanNeeded:
            upload_pool.wait_idle()
            upload_pool.raise_if_failed()
            return None
        except TreeTooLarge as error:
            text = f"cannot be staged as it is: {error}. Pack it into one archive, or name parts of it"
            raise UserWorkerError(source, errno.EFBIG, f"{printable(source)} {text}") from None
        finally:
            entries.close()  # type: ignore[attr-defined]
        upload_pool.wait_idle()
        upload_pool.raise_if_failed()
        if upload_pool.verify_with_store():
            return None
        put(len(sizes) - 1, bodies.pop())
        upload_pool.wait_idle()
        upload_pool.raise_if_failed()
        if upload_pool.verify_with_store():
            return None
        manifest = tuple(ObjectRange(keys[number], 0, size) for number, size in enumerate(sizes))
        tree = Tree(upload_pool.prefix, digest.hexdigest(), manifest, scan.count, scan.size, single=scan.single)
        self.index.add_tree(
            self.stager.name,
            tree,
            scan.keys | set(keys.values()),
            uid=owner.uid,
            account=owner.account,
            source=os.fspath(source),
        )
        return tree
