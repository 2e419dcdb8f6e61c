"""Bringing a source into a store: what is there already is not sent, and what two want is sent once."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from dataclasses import dataclass, field

from burstd.domain.plugins.stager import Stager, StoreBusy
from burstd.domain.staging import Piece, Tree
from burstd.transfer.content_store.index import Index
from burstd.transfer.content_store.manifest import TreeTooLarge, encode
from burstd.transfer.content_store.upload_pool import PATIENCE_S, Lanes, Shared, TransferCancelled
from burstd.transfer.privsep.client import Hand, HandError, printable
from burstd.transfer.trees.progress import Progress
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.source_scan import Again, Pass

__all__ = ["Owner", "Sender", "TransferCancelled"]

_PASSES = 20
"""Each but the first is caused by an object that the store has lost, or by another transfer that failed."""


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom something is staged: the user, and the Slurm account that pays for the room."""

    uid: int
    account: str = ""


@dataclass(slots=True)
class _Leader:
    """A transfer of a source: a second one of the same user waits for it, and then finds all in the store."""

    progress: Progress
    ended: threading.Event = field(default_factory=threading.Event)


class Sender:
    """Sends to one store. For all threads of the process; there is one for each store and index."""

    def __init__(
        self, index: Index, stager: Stager, limits: Limits | None = None, *, patience_s: float = PATIENCE_S
    ) -> None:
        """``patience_s``: how long a busy store is asked for the same thing."""
        self.index = index
        self.stager = stager
        self._shared = Shared(index, stager, limits or Limits(), patience_s)
        self._leaders: dict[tuple[int, str, str], _Leader] = {}
        self._lock = threading.Lock()

    def send(
        self,
        hand: Hand,
        source: str,
        *,
        owner: Owner,
        prefix: str = "in",
        progress: Progress | None = None,
        cancelled: threading.Event | None = None,
    ) -> Tree:
        """Brings a file, directory or pattern into the store and returns it, whole and noted in the index.

        Read with the hand's rights only. A busy store is asked again for a while; what was sent by then is not sent
        again. Raises HandError (it cannot be read, or changes all the time), StoreBusy, StoreRefused, StoreSpaceGone,
        TransferCancelled (``cancelled`` is set).
        """
        progress = progress or Progress()
        lanes = Lanes(self._shared, prefix, owner.uid, progress, cancelled or threading.Event())
        name = (owner.uid, source, prefix)
        with self._lock:
            leader = self._leaders.get(name)
            if leader is None:
                mine = self._leaders[name] = _Leader(progress)
        try:
            if leader is not None:
                self._follow(leader, lanes)
            for _ in range(_PASSES):
                progress.again()
                tree = self._pass(lanes, hand, source, owner)
                if tree is not None:
                    return tree
            raise StoreBusy(
                f"{self.stager.name}: objects are missing again and again; see that nothing else deletes there"
            )
        finally:
            if leader is None:
                with self._lock:
                    del self._leaders[name]
                mine.ended.set()
            lanes.close()

    @staticmethod
    def _follow(leader: _Leader, lanes: Lanes) -> None:
        while not leader.ended.wait(0.2):
            lanes.check()
            lanes.progress.follow(leader.progress)
        lanes.progress.joined = False

    def _pass(self, lanes: Lanes, hand: Hand, source: str, owner: Owner) -> Tree | None:
        """The tree; None: the store had lost something, or another transfer did not bring its part."""
        this = Pass(lanes, hand, source)
        digest = hashlib.sha256()
        bodies: list[bytes] = []
        keys: dict[int, str] = {}

        def put(number: int, body: bytes) -> None:
            def ended(key: str, there: bool, error: BaseException | None) -> None:  # noqa: ARG001 - Ended
                keys[number] = key

            lanes.put(body, ended)

        sizes: list[int] = []
        entries = this.entries()
        try:
            for body in encode(entries):
                digest.update(body)
                # The last one waits until all else is there.
                if bodies:
                    put(len(sizes) - 1, bodies.pop())
                bodies.append(body)
                sizes.append(len(body))
        except Again:
            lanes.settle()
            lanes.check()
            return None
        except TreeTooLarge as error:
            text = f"cannot be staged as it is: {error}. Pack it into one archive, or name parts of it"
            raise HandError(source, errno.EFBIG, f"{printable(source)} {text}") from None
        finally:
            entries.close()  # type: ignore[attr-defined]
        lanes.settle()
        lanes.check()
        if lanes.lost():
            return None
        put(len(sizes) - 1, bodies.pop())
        lanes.settle()
        lanes.check()
        if lanes.lost():
            return None
        manifest = tuple(Piece(keys[number], 0, size) for number, size in enumerate(sizes))
        tree = Tree(lanes.prefix, digest.hexdigest(), manifest, this.count, this.size, single=this.single)
        self.index.add_tree(
            self.stager.name,
            tree,
            this.keys | set(keys.values()),
            uid=owner.uid,
            account=owner.account,
            source=os.fspath(source),
        )
        return tree
