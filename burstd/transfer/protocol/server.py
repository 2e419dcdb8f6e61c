"""The far end of a served store: objects in a folder, asked for by frames on standard input.

Run there as ``python3 PROGRAM ROOT`` for each connection; it ends with the connection. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from itertools import islice
from typing import IO

from burstd.domain.plugins.stager import StagerError, StoreRefused
from burstd.transfer.content_store.object_folder import ObjectFolder, write_all
from burstd.transfer.protocol.frames import (
    BODY_LIMIT,
    HEADER,
    MAGIC,
    PAGE,
    Ask,
    HungUp,
    Say,
    read_exactly,
    send_file,
    word_for,
    write_exactly,
)

_OF_NODES = frozenset({Ask.GET, Ask.PRESENT, Ask.PUT})


def serve(
    root: str,
    read: IO[bytes],
    write: IO[bytes],
    *,
    sync: bool = False,
    idle_s: float = 0.0,
    mark: str = "",
    nodes: bool = False,
) -> None:
    """Answers until ``read`` ends. Both need descriptors, and nothing else may use them meanwhile.

    ``idle_s``: ends too when nothing of a request came, or of an answer went, for so long (main thread only); 0: never
    by itself. ``mark``: see ObjectFolder. ``nodes``: who asks is the root of a rented node: it gets, looks up and puts
    objects whose keys it knows, under their SHA-256 only, so that none is replaced by another; no other request.
    """
    if idle_s:
        signal.signal(signal.SIGALRM, _idle)
    _Server(ObjectFolder(root, sync=sync, mark=mark), read.fileno(), write.fileno(), idle_s, nodes=nodes).run()


def _idle(number: int, frame: object) -> None:  # noqa: ARG001 - a handler
    raise HungUp("nothing was asked for long")


class _Server:
    def __init__(self, folder: ObjectFolder, incoming: int, outgoing: int, idle_s: float, *, nodes: bool) -> None:
        self._folder = folder
        self._nodes = nodes
        self._in = incoming
        self._out = outgoing
        self._idle_s = idle_s
        self._buffer = memoryview(bytearray(1 << 20))

    def run(self) -> None:
        try:
            write_exactly(self._out, MAGIC)
            try:
                self._folder.check()
            except StagerError as error:
                self._answer(0, word_for(error), str(error).encode())
                return
            self._answer(0, Say.OK)
            while True:
                self._alive()
                self._one(*HEADER.unpack(read_exactly(self._in, HEADER.size)))
        except HungUp:
            return

    def _one(self, number: int, what: int, text_length: int, length: int) -> None:
        text = read_exactly(self._in, text_length).decode("utf-8", "replace") if text_length else ""
        self._rest()
        left = [length]
        try:
            if self._nodes and what not in _OF_NODES:
                raise StoreRefused(f"nodes may not ask request {what}: with their key objects are got and put only")
            if what == Ask.PUT:
                self._take(text, left)
                self._answer(number, Say.OK)
            elif what == Ask.GET:
                self._give(number, text)
            else:
                body = self._body(left)
                if "\0" in text or b"\0" in body:
                    raise StoreRefused("a request has a NUL in it")
                self._answer(number, Say.OK, b"" if (said := self._do(what, text, body)) is None else _json(said))
        except StagerError as error:
            while left[0]:
                self._some(left)
            self._answer(number, word_for(error), str(error).encode("utf-8", "replace"))

    def _take(self, key: str, left: list[int]) -> None:
        if left[0] > BODY_LIMIT:
            raise StoreRefused(f"the object {key} is larger than {BODY_LIMIT} bytes")
        digest = hashlib.sha256() if self._nodes else None
        with self._folder.writing(key) as descriptor:
            while left[0]:
                body = self._some(left)
                if digest is not None:
                    digest.update(body)
                write_all(descriptor, body)
            if digest is not None and digest.hexdigest() != key.rpartition("/")[2]:
                raise StoreRefused(f"the object {key} is not what its name says: nodes put objects under their SHA-256")

    def _give(self, number: int, key: str) -> None:
        with self._folder.reading(key) as (descriptor, size):
            self._alive()
            if size > BODY_LIMIT:
                raise StoreRefused(f"the object {key} is larger than {BODY_LIMIT} bytes: it is none of burstd's")
            write_exactly(self._out, HEADER.pack(number, Say.OK, 0, size))
            sent = 0
            try:
                sent = send_file(descriptor, self._out, size)
            finally:
                if sent != size:
                    # The length is told already: only the end of the connection says that this was not it.
                    raise HungUp(f"the object {key} could not be read to its end")

    def _do(self, what: int, text: str, body: bytes) -> object:
        lines = body.decode("utf-8", "replace").split("\n") if body else []
        folder = self._folder
        if what == Ask.PRESENT:
            return dict(folder.present(lines))
        if what == Ask.DELETE:
            folder.delete(lines)
            return None
        if what == Ask.ABORT:
            folder.abort(lines)
            return None
        if what == Ask.COPY:
            source, _, target = text.partition("\n")
            folder.copy(source, target)
            return None
        if what == Ask.LIST:
            prefix, _, after = text.partition("\n")
            return [[o.key, o.size, o.modified] for o in islice(folder.objects(prefix, after), PAGE)]
        if what == Ask.UNFINISHED:
            return [[u.id, u.key, u.begun] for u in folder.unfinished()]
        if what == Ask.FREE:
            return folder.free_bytes()
        raise StoreRefused(f"this end does not know request {what}: it is of another release of burstd")

    def _some(self, left: list[int]) -> memoryview:
        """A part of the body that is coming, at least one byte; ``left`` counts what has not come."""
        self._alive()
        try:
            count = os.readv(self._in, [self._buffer[: min(left[0], len(self._buffer))]])
        except OSError as error:
            raise HungUp(str(error)) from None
        if not count:
            raise HungUp("end of file")
        self._rest()
        left[0] -= count
        return self._buffer[:count]

    def _alive(self) -> None:
        if self._idle_s:
            signal.setitimer(signal.ITIMER_REAL, self._idle_s)

    def _rest(self) -> None:
        """Nobody is waited for while the disk is."""
        if self._idle_s:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _body(self, left: list[int]) -> bytes:
        if left[0] > BODY_LIMIT:
            raise StoreRefused(f"a request of {left[0]} bytes is too long")
        count, left[0] = left[0], 0
        self._alive()
        body = read_exactly(self._in, count) if count else b""
        self._rest()
        return body

    def _answer(self, number: int, say: Say, body: bytes = b"") -> None:
        if len(body) > BODY_LIMIT:
            say, body = Say.BUSY, f"an answer of {len(body)} bytes is too long".encode()
        self._alive()
        write_exactly(self._out, HEADER.pack(number, say, 0, len(body)), body)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main(arguments: list[str] | None = None) -> int:
    """``[--nodes] [--sync] [--idle SECONDS] [--mark WORD] ROOT``: the program of a storage node, and of a mover pod."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    nodes = words[:1] == ["--nodes"]
    del words[:nodes]
    sync = words[:1] == ["--sync"]
    del words[:sync]
    idle_s = 0.0
    if words[:1] == ["--idle"] and len(words) > 1:
        idle_s = float(words[1])
        del words[:2]
    mark = ""
    if words[:1] == ["--mark"] and len(words) > 1:
        mark = words[1]
        del words[:2]
    if len(words) != 1:
        sys.stderr.write("usage: [--nodes] [--sync] [--idle SECONDS] [--mark WORD] ROOT\n")
        return 2
    serve(words[0], sys.stdin.buffer, sys.stdout.buffer, sync=sync, idle_s=idle_s, mark=mark, nodes=nodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
