"""The far end of a served store: objects in a folder, asked for by frames on standard input.

Run there as ``python3 PROGRAM ROOT`` for each connection; it ends with the connection. Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import signal
import sys
from itertools import islice
from typing import IO

from burstd.domain.plugins.stager import StagerError, StoreRefused
from burstd.transfer.content_store.object_folder import ObjectFolder, write_all
from burstd.transfer.protocol.frames import (
    HEADER,
    LIST_PAGE_SIZE,
    MAGIC,
    MAX_BODY_BYTES,
    ConnectionClosed,
    ReplyStatus,
    RequestKind,
    read_exactly,
    reply_status,
    send_file,
    write_exactly,
)

_NODE_REQUESTS = frozenset({RequestKind.GET, RequestKind.PRESENT, RequestKind.PUT})


def serve_objects(
    root: str,
    read: IO[bytes],
    write: IO[bytes],
    *,
    sync: bool = False,
    idle_s: float = 0.0,
    marker: str = "",
    for_nodes: bool = False,
) -> None:
    """Answers until ``read`` ends. Both need descriptors, and nothing else may use them meanwhile.

    ``idle_s``: ends too when nothing of a request came, or of an answer went, for so long (main thread only); 0: never
    by itself. ``marker``: as ObjectFolder. ``for_nodes``: who asks is the root of a rented node: it gets, looks up
    and puts objects whose keys it knows, under their SHA-256 only, so that none is replaced by another; no other
    request.
    """
    if idle_s:
        signal.signal(signal.SIGALRM, _on_idle)
    _Server(
        ObjectFolder(root, sync=sync, marker=marker), read.fileno(), write.fileno(), idle_s, for_nodes=for_nodes
    ).run()


def _on_idle(number: int, frame: object) -> None:  # noqa: ARG001 - a handler
    raise ConnectionClosed("nothing was asked for long")


class _Server:
    def __init__(self, folder: ObjectFolder, incoming: int, outgoing: int, idle_s: float, *, for_nodes: bool) -> None:
        self._folder = folder
        self._for_nodes = for_nodes
        self._in = incoming
        self._out = outgoing
        self._idle_s = idle_s
        self._buffer = memoryview(bytearray(1 << 20))
        self._can_splice = True
        self._readable = select.poll()
        self._readable.register(self._in, select.POLLIN)

    def run(self) -> None:
        try:
            write_exactly(self._out, MAGIC)
            try:
                self._folder.ensure_root()
            except StagerError as error:
                self._reply(0, reply_status(error), str(error).encode())
                return
            self._reply(0, ReplyStatus.OK)
            while True:
                self._arm_idle_timer()
                self._handle_request(*HEADER.unpack(read_exactly(self._in, HEADER.size)))
        except ConnectionClosed:
            return

    def _handle_request(self, number: int, request: int, text_length: int, length: int) -> None:
        text = read_exactly(self._in, text_length).decode("utf-8", "replace") if text_length else ""
        self._disarm_idle_timer()
        left = [length]
        try:
            if self._for_nodes and request not in _NODE_REQUESTS:
                raise StoreRefused(f"nodes may not ask request {request}: with their key objects are got and put only")
            if request == RequestKind.PUT:
                self._receive_object(text, left)
                self._reply(number, ReplyStatus.OK)
            elif request == RequestKind.GET:
                self._send_object(number, text)
            else:
                body = self._read_body(left)
                if "\0" in text or b"\0" in body:
                    raise StoreRefused("a request has a NUL in it")
                self._reply(
                    number,
                    ReplyStatus.OK,
                    b"" if (answer := self._answer_to(request, text, body)) is None else _json(answer),
                )
        except StagerError as error:
            while left[0]:
                self._read_chunk(left)
            self._reply(number, reply_status(error), str(error).encode("utf-8", "replace"))

    def _receive_object(self, key: str, left: list[int]) -> None:
        if left[0] > MAX_BODY_BYTES:
            raise StoreRefused(f"the object {key} is larger than {MAX_BODY_BYTES} bytes")
        digest = hashlib.sha256() if self._for_nodes else None
        with self._folder.open_for_writing(key) as descriptor:
            while left[0]:
                if digest is None and self._splice_chunk(descriptor, left):
                    continue
                body = self._read_chunk(left)
                if digest is not None:
                    digest.update(body)
                write_all(descriptor, body)
            if digest is not None and digest.hexdigest() != key.rpartition("/")[2]:
                raise StoreRefused(f"the object {key} is not what its name says: nodes put objects under their SHA-256")

    def _send_object(self, number: int, key: str) -> None:
        with self._folder.open_for_reading(key) as (descriptor, size):
            self._arm_idle_timer()
            if size > MAX_BODY_BYTES:
                raise StoreRefused(f"the object {key} is larger than {MAX_BODY_BYTES} bytes: it is none of burstd's")
            write_exactly(self._out, HEADER.pack(number, ReplyStatus.OK, 0, size))
            sent = 0
            try:
                sent = send_file(descriptor, self._out, size)
            finally:
                if sent != size:
                    # The length is sent already: only the end of the connection says that this was not it.
                    raise ConnectionClosed(f"the object {key} could not be read to its end")

    def _answer_to(self, request: int, text: str, body: bytes) -> object:
        lines = body.decode("utf-8", "replace").split("\n") if body else []
        folder = self._folder
        if request == RequestKind.PRESENT:
            return dict(folder.present(lines))
        if request == RequestKind.DELETE:
            folder.delete(lines)
            return None
        if request == RequestKind.ABORT:
            folder.abort(lines)
            return None
        if request == RequestKind.COPY:
            source, _, target = text.partition("\n")
            folder.copy(source, target)
            return None
        if request == RequestKind.LIST:
            prefix, _, after = text.partition("\n")
            return [[o.key, o.size, o.modified] for o in islice(folder.objects(prefix, after), LIST_PAGE_SIZE)]
        if request == RequestKind.UNFINISHED:
            return [[u.id, u.key, u.started] for u in folder.unfinished()]
        if request == RequestKind.FREE:
            return folder.free_bytes()
        raise StoreRefused(f"this end does not know request {request}: it is of another release of burstd")

    def _splice_chunk(self, descriptor: int, left: list[int]) -> bool:
        """Moves a part of the body into a file without copying it here. False: not from or to what these are."""
        if not self._can_splice:
            return False
        self._arm_idle_timer()
        self._readable.poll()
        self._disarm_idle_timer()
        try:
            count = os.splice(self._in, descriptor, left[0])
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
            self._can_splice = False
            return False
        if not count:
            raise ConnectionClosed("end of file")
        left[0] -= count
        return True

    def _read_chunk(self, left: list[int]) -> memoryview:
        """A part of the body that is coming, at least one byte; ``left`` counts what has not come."""
        self._arm_idle_timer()
        try:
            count = os.readv(self._in, [self._buffer[: min(left[0], len(self._buffer))]])
        except OSError as error:
            raise ConnectionClosed(str(error)) from None
        if not count:
            raise ConnectionClosed("end of file")
        self._disarm_idle_timer()
        left[0] -= count
        return self._buffer[:count]

    def _arm_idle_timer(self) -> None:
        if self._idle_s:
            # Again and again: one that comes just before the call that waits interrupts nothing.
            signal.setitimer(signal.ITIMER_REAL, self._idle_s, self._idle_s)

    def _disarm_idle_timer(self) -> None:
        """Nobody is waited for while the disk is."""
        if self._idle_s:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _read_body(self, left: list[int]) -> bytes:
        if left[0] > MAX_BODY_BYTES:
            raise StoreRefused(f"a request of {left[0]} bytes is too long")
        count, left[0] = left[0], 0
        self._arm_idle_timer()
        body = read_exactly(self._in, count) if count else b""
        self._disarm_idle_timer()
        return body

    def _reply(self, number: int, status: ReplyStatus, body: bytes = b"") -> None:
        if len(body) > MAX_BODY_BYTES:
            status, body = ReplyStatus.BUSY, f"an answer of {len(body)} bytes is too long".encode()
        self._arm_idle_timer()
        write_exactly(self._out, HEADER.pack(number, status, 0, len(body)), body)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main(arguments: list[str] | None = None) -> int:
    """``[--nodes] [--sync] [--idle SECONDS] [--mark WORD] ROOT``: the program of a storage node, and of a mover pod."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    for_nodes = words[:1] == ["--nodes"]
    del words[:for_nodes]
    sync = words[:1] == ["--sync"]
    del words[:sync]
    idle_s = 0.0
    if words[:1] == ["--idle"] and len(words) > 1:
        idle_s = float(words[1])
        del words[:2]
    marker = ""
    if words[:1] == ["--mark"] and len(words) > 1:
        marker = words[1]
        del words[:2]
    if len(words) != 1:
        sys.stderr.write("usage: [--nodes] [--sync] [--idle SECONDS] [--mark WORD] ROOT\n")
        return 2
    serve_objects(
        words[0], sys.stdin.buffer, sys.stdout.buffer, sync=sync, idle_s=idle_s, marker=marker, for_nodes=for_nodes
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
