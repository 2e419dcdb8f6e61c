"""A job's output from a node into the store: read by the child, named by its digest and put here."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from burstd.domain.plugins.stager import StagerError, StoreSpaceGone
from burstd.transfer.agent.job_folder import JobFolder
from burstd.transfer.agent.user_process import (
    FAULT_LIMIT,
    FAULT_STOPPED,
    LIMIT_REMEDY,
    AgentFault,
    JsonObject,
    SharedBuffers,
    UserProcess,
)
from burstd.transfer.content_store.manifest import MAX_TREE_BYTES, object_key
from burstd.transfer.protocol.transports import ObjectTransport

PUT_THREADS = 4
_MAX_MISSING = 100
_MAX_WARNINGS = 1000


class OutputUploader:
    """Objects in slots, put under their digests unless they are there already. Use with ``with``."""

    def __init__(
        self, transport: ObjectTransport, prefix: str, user: UserProcess, progress: Callable[[int], None]
    ) -> None:
        """``progress`` takes the bytes that are in the store, those that were there among them."""
        self._transport = transport
        self._prefix = prefix
        self._user = user
        self._buffers: SharedBuffers = user.buffers
        self._progress = progress
        self._threads = ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="put")
        self._lock = threading.Lock()
        self._stored_bytes = 0
        self.fault: AgentFault | None = None
        self.sent_bytes = 0
        """Bytes that went to the store."""

    def on_message(self, message: JsonObject) -> None:
        """The child has filled a slot."""
        self._threads.submit(self._put_buffer, message["object"], message["length"])

    def close(self) -> None:
        """What is under way is waited for."""
        self._threads.shutdown(wait=True)

    def _put_buffer(self, buffer: int, length: int) -> None:
        try:
            if self.fault is None:
                body = self._buffers.view(buffer, length)
                key = hashlib.sha256(body).hexdigest()
                self._put(object_key(self._prefix, key), body)
                self._user.channel.send({"key": key, "slot": buffer})
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
                self.sent_bytes += len(body)
            self._stored_bytes += len(body)
            self._progress(self._stored_bytes)

    def _fail(self, fault: AgentFault) -> None:
        with self._lock:
            first, self.fault = self.fault is None, self.fault or fault
        if first:
            try:
                self._user.channel.send({"stop": True})
            except OSError:
                return


def owned_job_folder(request: JsonObject) -> JobFolder:
    """The folder of the request's job. Raises AgentFault where it is another's."""
    folder = JobFolder(request["dir"])
    record = folder.read_record()
    if record is None or record["job"] != request["job"] or record["uid"] != request["uid"]:
        text = f"{folder.path} is not the folder of job {request['job']} of uid {request['uid']}"
        remedy = "where job-folders.key in burstd's state_dir was lost, put it back from the backup and restart burstd"
        raise AgentFault("agent", f"{text}: {remedy}")
    return folder


def collect_output(
    request: JsonObject, user: UserProcess, transport: ObjectTransport, progress: Callable[[int, int], None]
) -> JsonObject:
    """Puts a job's output into the store. Raises AgentFault. ``progress``: bytes in the store; how many in all is 0."""
    began = time.monotonic()
    folder = owned_job_folder(request)
    user.drop_privileges(request["uid"], request["gid"], request["groups"])
    uploader = OutputUploader(transport, request["prefix"], user, lambda there: progress(there, 0))
    size = 0
    warnings: list[str] = []
    missing: list[tuple[str, str]] = []

    def pack(what: JsonObject, *descriptors: int) -> JsonObject:
        nonlocal size
        tree: JsonObject = user.call_operation({"do": "gather", **what}, *descriptors, on_message=uploader.on_message)
        size += tree["size"]
        if size > MAX_TREE_BYTES:
            text = f"the output in {folder.path}/out cannot be brought home as it is: by the sizes of its files"
            raise AgentFault(
                FAULT_LIMIT, f"{text}, holes included, it has more than {MAX_TREE_BYTES} bytes. {LIMIT_REMEDY}"
            )
        warnings.extend(tree.pop("warnings"))
        missing.extend(tree.pop("missing"))
        return tree

    try:
        trees = [
            {"pattern": pattern, **pack({"base": f"{folder.path}/out", "pattern": pattern})}
            for pattern in request["patterns"]
        ]
        files = [pack({"file": path}) for path in request["files"]]
        workdir = _collect_workdir(folder, request.get("workdir"), pack)
        # In the store too: nothing of this may be forgotten before the manifest at the destination tells it.
        lost = pack({"missing": missing[:_MAX_MISSING]}) if missing else None
    except AgentFault as fault:
        uploader.close()
        raise (uploader.fault or fault) if fault.kind == FAULT_STOPPED else fault from None
    finally:
        uploader.close()
    seconds = round(time.monotonic() - began, 3)
    return {
        "trees": trees, "files": [tree if tree["entries"] else None for tree in files],
        "workdir": workdir, "missing": lost, "sent": uploader.sent_bytes, "seconds": seconds,
        "warnings": warnings[:_MAX_WARNINGS],
    }  # fmt: skip


def _collect_workdir(folder: JobFolder, asked: JsonObject | None, pack: Callable[..., JsonObject]) -> JsonObject | None:
    """What is new or changed in the job's working directory; None: it has none here."""
    record = (folder.read_record() or {}).get("workdir") or {}
    if asked is None or not record.get("filled_ns"):
        return None
    manifest = os.open(f"{record['entry']}/manifest", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        what = {"path": record["path"], "ignore": record["ignore"], "filled_ns": record["filled_ns"], **asked}
        return pack({"workdir": what}, manifest)
    finally:
        os.close(manifest)
