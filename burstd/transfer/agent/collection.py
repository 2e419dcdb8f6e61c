"""A job's output from a node into the store: read by the child, named by its digest and put here."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from burstd.domain.plugins.stager import StagerError, StoreSpaceGone
from burstd.transfer.agent.placement import JobFolder
from burstd.transfer.agent.user_process import LIMIT, STOPPED, TO_PACK, AgentFault, Message, Slots, UserSide
from burstd.transfer.content_store.manifest import TREE_BYTES, object_key
from burstd.transfer.protocol.transports import Transport

LANES = 4
_MISSING = 100
_WARNINGS = 1000


class Putting:
    """Objects in slots, put under their digests unless they are there already. Use with ``with``."""

    def __init__(self, transport: Transport, prefix: str, user: UserSide, progress: Callable[[int], None]) -> None:
        """``progress`` is told the bytes that are in the store, those that were there among them."""
        self._transport = transport
        self._prefix = prefix
        self._user = user
        self._slots: Slots = user.slots
        self._progress = progress
        self._lanes = ThreadPoolExecutor(LANES, thread_name_prefix="put")
        self._lock = threading.Lock()
        self._there = 0
        self.fault: AgentFault | None = None
        self.sent = 0
        """Bytes that went to the store."""

    def said(self, message: Message) -> None:
        """The child has filled a slot."""
        self._lanes.submit(self._one, message["object"], message["length"])

    def close(self) -> None:
        """What is under way is waited for."""
        self._lanes.shutdown(wait=True)

    def _one(self, slot: int, length: int) -> None:
        try:
            if self.fault is None:
                body = self._slots.view(slot, length)
                key = hashlib.sha256(body).hexdigest()
                self._put(object_key(self._prefix, key), body)
                self._user.line.send({"key": key, "slot": slot})
        except StagerError as error:
            self._fail(AgentFault("full" if isinstance(error, StoreSpaceGone) else "store", str(error)))
        except AgentFault as fault:
            self._fail(fault)
        except OSError as error:
            self._fail(AgentFault("agent", f"an object cannot be put: {error}"))

    def _put(self, key: str, body: memoryview) -> None:
        there = self._transport.present([key])
        if key not in there:
            self._transport.put(key, body)
        with self._lock:
            if key not in there:
                self.sent += len(body)
            self._there += len(body)
            self._progress(self._there)

    def _fail(self, fault: AgentFault) -> None:
        with self._lock:
            first, self.fault = self.fault is None, self.fault or fault
        if first:
            try:
                self._user.line.send({"stop": True})
            except OSError:
                return


def collect(request: Message, user: UserSide, transport: Transport, progress: Callable[[int, int], None]) -> Message:
    """Puts a job's output into the store. Raises AgentFault. ``progress``: bytes in the store; how many in all is 0."""
    began = time.monotonic()
    folder = JobFolder(request["dir"])
    record = folder.read()
    if record is None or record["job"] != request["job"] or record["uid"] != request["uid"]:
        text = f"{folder.path} is not the folder of job {request['job']} of uid {request['uid']}"
        remedy = "where job-folders.key in burstd's state_dir was lost, put it back from the backup and restart burstd"
        raise AgentFault("agent", f"{text}: {remedy}")
    user.become(request["uid"], request["gid"], request["groups"])
    putting = Putting(transport, request["prefix"], user, lambda there: progress(there, 0))
    size = 0
    warnings: list[str] = []
    missing: list[tuple[str, str]] = []

    def gather(what: Message) -> Message:
        nonlocal size
        tree: Message = user.ask({"do": "gather", **what}, said=putting.said)
        size += tree["size"]
        if size > TREE_BYTES:
            text = f"the output in {folder.path}/out cannot be brought home as it is: by the sizes of its files"
            raise AgentFault(LIMIT, f"{text}, holes included, it has more than {TREE_BYTES} bytes. {TO_PACK}")
        warnings.extend(tree.pop("warnings"))
        missing.extend(tree.pop("missing"))
        return tree

    try:
        trees = [
            {"pattern": pattern, **gather({"base": f"{folder.path}/out", "pattern": pattern})}
            for pattern in request["patterns"]
        ]
        files = [gather({"file": path}) for path in request["files"]]
        # In the store too: nothing of this may be forgotten before the manifest at the destination tells it.
        lost = gather({"missing": missing[:_MISSING]}) if missing else None
    except AgentFault as fault:
        putting.close()
        raise (putting.fault or fault) if fault.kind == STOPPED else fault from None
    finally:
        putting.close()
    seconds = round(time.monotonic() - began, 3)
    return {
        "trees": trees, "files": [tree if tree["entries"] else None for tree in files],
        "missing": lost, "sent": putting.sent, "seconds": seconds,
        "warnings": warnings[:_WARNINGS],
    }  # fmt: skip
