"""A client of a storage node's program (server.py), over any pair of byte streams. Standard library only."""

from __future__ import annotations

import io
import json
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from burstd.domain.cloud.quoting import one_line
from burstd.domain.plugins.stager import StagerError, StoreBusy, StoredObject, StoreRefused, UnfinishedUpload, valid_key
from burstd.transfer.content_store.manifest import MAX_FILE_BYTES
from burstd.transfer.protocol.frames import (
    ERROR_OF_STATUS,
    HEADER,
    LIST_PAGE_SIZE,
    MAGIC,
    MAX_BODY_BYTES,
    ConnectionClosed,
    ReplyStatus,
    RequestKind,
)

_MAX_BANNER_BYTES = 1 << 16
"""How much a login's own scripts may print, in bytes."""
_MAX_ERROR_BYTES = 4000
"""Bytes of an error that are looked at."""
_LATEST_S = 1e11
_POLL_S = 1.0
_KEYS_AT_ONCE = 10_000


@dataclass(slots=True, eq=False)
class _PendingReply:
    """An answer that is to come."""

    buffer: memoryview | None = None
    """For an object's content; nothing writes into it any more when ``future`` is done."""
    length: int = -1
    """Length of the content in the buffer."""
    future: Future[bytes] = field(default_factory=Future)


class ObjectServerClient:
    """One connection, for several threads at once, each of which may have a request under way.

    ``read_file`` and ``write_file`` need descriptors (pipes, sockets) and are this client's from now on: it closes
    them. Where nothing moves for ``patience_s`` seconds while an answer is due, or the other end is gone, the
    connection is broken for good: what is under way and what is asked later raises the error that ``why`` makes of the
    reason (StoreBusy without it). Calls are as those of a Stager; ``name`` begins each message.
    """

    def __init__(
        self,
        read_file: IO[bytes],
        write_file: IO[bytes],
        *,
        name: str = "the storage node",
        timeout_s: float = 60.0,
        error_for: Callable[[str], StagerError] | None = None,
    ) -> None:
        self._name = name
        self._error_for = error_for or (lambda reason: StoreBusy(f"{name}: {reason}"))
        self._streams = (read_file, write_file)
        self._stream = _TimedStream(
            read_file.fileno(), write_file.fileno(), timeout_s, lambda: bool(self.requests_in_flight)
        )
        self._write_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._pending: dict[int, _PendingReply] = {}
        self._receiving: _PendingReply | None = None
        """Taken out of ``waiting`` by the thread that reads, which alone ends it."""
        self._last_number = 0
        self._broken: StagerError | None = None
        self._reader = threading.Thread(target=self._run_reader, name="burstd-wire", daemon=True)
        self._reader.start()

    @property
    def broken(self) -> bool:
        """Whether it is of no use any more."""
        return self._broken is not None

    @property
    def requests_in_flight(self) -> int:
        """Requests without an answer so far."""
        return len(self._pending) + (self._receiving is not None)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Returns when the object is there under its name."""
        self._request(RequestKind.PUT, valid_key(key), body)

    def get(self, key: str) -> bytes:
        """Raises NoSuchObject."""
        return self._request(RequestKind.GET, valid_key(key))

    def get_into(self, key: str, buffer: memoryview) -> int:
        """As get, into ``buffer``; the object's length. StoreRefused where that is more than fit.

        However this ends, nothing is written into ``buffer`` afterwards.
        """
        pending = _PendingReply(buffer)
        body = self._request(RequestKind.GET, valid_key(key), pending=pending)
        if pending.length < 0:
            raise StoreRefused(f"{self._name}: the object {key} has {len(body)} bytes, more than fit")
        return pending.length

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Those that are there, with their sizes in bytes."""
        found: dict[str, int] = {}
        asked = set(keys)
        for lines in _name_batches([valid_key(key) for key in keys]):
            answer = self._json(self._request(RequestKind.PRESENT, "", lines))
            if not isinstance(answer, dict) or not all(key in asked and _is_size(size) for key, size in answer.items()):
                raise self._protocol_error()
            found.update(answer)
        return found

    def copy(self, source: str, target: str) -> None:
        """Raises NoSuchObject."""
        self._request(RequestKind.COPY, f"{valid_key(source)}\n{valid_key(target)}")

    def delete(self, keys: Sequence[str]) -> None:
        """What is gone already is no error."""
        for lines in _name_batches([valid_key(key) for key in keys]):
            self._request(RequestKind.DELETE, "", lines)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Page by page."""
        after = ""
        while True:
            page = [
                StoredObject(*row)
                for row in self._list_rows(RequestKind.LIST, f"{prefix}\n{after}", (_is_text, _is_size, _is_time))
            ]
            for stored in page:
                # Else a list might have no end.
                if not stored.key.startswith(prefix) or (after and stored.key.split("/") <= after.split("/")):
                    raise self._protocol_error()
                after = stored.key
                yield stored
            if len(page) < LIST_PAGE_SIZE:
                return

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Temporary files there."""
        yield from (
            UnfinishedUpload(*row)
            for row in self._list_rows(RequestKind.UNFINISHED, "", (_is_text, _is_text, _is_time))
        )

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes them."""
        for lines in _name_batches([u.id for u in unfinished]):
            self._request(RequestKind.ABORT, "", lines)

    def free_bytes(self) -> int:
        """Bytes free there."""
        free = self._json(self._request(RequestKind.FREE))
        if not _is_size(free):
            raise self._protocol_error()
        return int(free)

    def close(self) -> None:
        """Hangs up; what is under way fails. May be repeated."""
        self._disconnect("it was closed")
        self._reader.join(5 * _POLL_S)

    def _list_rows(
        self, request: RequestKind, text: str, columns: Sequence[Callable[[object], bool]]
    ) -> list[list[Any]]:
        """Rows whose columns are what these functions take."""
        rows = self._json(self._request(request, text))
        whole = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
        if not whole or not all(fits(value) for row in rows for fits, value in zip(columns, row, strict=True)):
            raise self._protocol_error()
        return list(rows)

    def _json(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._protocol_error() from None

    def _protocol_error(self) -> StoreRefused:
        return StoreRefused(
            f"{self._name} answers what no program of burstd's does: see who else is root or user there"
        )

    def _request(
        self, request: RequestKind, text: str = "", body: bytes | memoryview = b"", pending: _PendingReply | None = None
    ) -> bytes:
        text_bytes, content = text.encode("utf-8", "surrogateescape"), memoryview(body).cast("B")
        if len(content) > MAX_BODY_BYTES or len(text_bytes) > 0xFFFF:
            raise StoreRefused(f"{self._name} takes no object of {len(content)} bytes: the limit is {MAX_BODY_BYTES}")
        pending = pending or _PendingReply()
        with self._write_lock:
            with self._state_lock:
                if self._broken is not None:
                    raise _copied_error(self._broken)
                self._last_number = number = self._last_number % 0xFFFFFFFF + 1
                if not self.requests_in_flight:
                    self._stream.record_activity()
                self._pending[number] = pending
            try:
                self._stream.write([HEADER.pack(number, request, len(text_bytes), len(content)) + text_bytes, content])
            except ConnectionClosed as gone:
                self._disconnect(str(gone))
            except BaseException:
                # Half a frame may be out: what follows would be taken for the rest of it.
                self._disconnect("a request was broken off")
                raise
        return pending.future.result()

    def _run_reader(self) -> None:
        incoming: io.BufferedReader[Any] = io.BufferedReader(self._stream, 1 << 16)
        try:
            self._read_greeting(incoming)
            while True:
                number, status, length = self._read_header(incoming)
                if status == ReplyStatus.OK and self._receive_into_buffer(number, length, incoming):
                    continue
                body = _read_exactly(incoming, length)
                with self._state_lock:
                    pending = self._pending.pop(number, None)
                if pending is None:
                    self._disconnect("it answers what was not asked")
                    return
                if status == ReplyStatus.OK:
                    pending.future.set_result(body)
                else:
                    pending.future.set_exception(self._reply_error(status, body))
                del body, pending
        except ConnectionClosed as gone:
            self._disconnect(str(gone))
        except MemoryError:
            self._disconnect("there is not enough memory for an answer")
        finally:
            receiving, self._receiving = self._receiving, None
            if receiving is not None:
                receiving.future.set_exception(
                    _copied_error(self._broken or StoreBusy(f"{self._name}: an answer broke off"))
                )
            # Not while another thread writes: the descriptor's number would be another file's by then.
            with self._write_lock:
                for stream in (*self._streams, self._stream):
                    with suppress(OSError):
                        stream.close()

    def _read_greeting(self, incoming: io.BufferedReader[Any]) -> None:
        banner = bytearray()
        while not banner.endswith(MAGIC):
            banner += _read_exactly(incoming, 1)
            if len(banner) > _MAX_BANNER_BYTES:
                raise ConnectionClosed(f"it does not answer as burstd's program does, but says {bytes(banner[:80])!r}")
        _, status, length = self._read_header(incoming)
        body = _read_exactly(incoming, length)
        if status != ReplyStatus.OK:
            error = self._reply_error(status, body)
            self._disconnect(str(error), error)
            raise ConnectionClosed(str(error))

    def _receive_into_buffer(self, number: int, length: int, incoming: io.BufferedReader[Any]) -> bool:
        """Reads a body into its buffer. False: there is none."""
        with self._state_lock:
            pending = self._pending.get(number)
            if pending is None or pending.buffer is None or length > len(pending.buffer):
                return False
            self._receiving = self._pending.pop(number)
        rest = pending.buffer[:length]
        while rest:
            count = incoming.readinto(rest)
            if not count:
                raise ConnectionClosed("it hung up")
            rest = rest[count:]
        pending.length, self._receiving = length, None
        pending.future.set_result(b"")
        return True

    def _read_header(self, incoming: io.BufferedReader[Any]) -> tuple[int, int, int]:
        """Number, what is said, and the length of what follows."""
        number, status, text_length, length = HEADER.unpack(_read_exactly(incoming, HEADER.size))
        if text_length or length > MAX_BODY_BYTES or status not in ReplyStatus.__members__.values():
            raise ConnectionClosed("it answers with what is no frame of ours")
        return number, status, length

    def _reply_error(self, status: int, body: bytes) -> StagerError:
        return ERROR_OF_STATUS[ReplyStatus(status)](
            f"{self._name}: {one_line(body[:_MAX_ERROR_BYTES].decode('utf-8', 'replace'))}"
        )

    def _disconnect(self, reason: str, error: StagerError | None = None) -> None:
        with self._state_lock:
            if self._broken is not None:
                return
            self._broken = error or StoreBusy(f"{self._name}: {reason}")
        self._stream.stop(reason)
        if error is None:
            # Asks the ssh program, which may take a moment: not while others want to know whether it is broken.
            self._broken = self._error_for(reason)
        with self._state_lock:
            lost, self._pending = self._pending, {}
        for pending in lost.values():
            if not pending.future.done():
                pending.future.set_exception(_copied_error(self._broken))


class _TimedStream(io.RawIOBase):
    """Reads and writes descriptors, and raises HungUp where nothing moves though ``due``."""

    def __init__(self, incoming: int, outgoing: int, timeout_s: float, reply_pending: Callable[[], bool]) -> None:
        self._in = incoming
        self._out = outgoing
        self._timeout_s = timeout_s
        self._reply_pending = reply_pending
        self._moved_at = time.monotonic()
        self._stopped = ""
        self._stop, stopping = self._stop_pair = socket.socketpair()
        self._readable = select.poll()
        self._readable.register(incoming, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(outgoing, select.POLLOUT)
        for waiting in (self._readable, self._writable):
            waiting.register(stopping, select.POLLIN)
        os.set_blocking(outgoing, False)

    def record_activity(self) -> None:
        self._moved_at = time.monotonic()

    def stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        self._stop.close()  # wakes whoever waits

    def close(self) -> None:
        super().close()
        for end in self._stop_pair:
            end.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._wait(self._readable)
            try:
                count = os.readv(self._in, [buffer])
            except BlockingIOError:
                continue
            except OSError as error:
                raise ConnectionClosed(f"the connection broke: {error.strerror}") from None
            self.record_activity()
            return count

    def write(self, parts: Any) -> int:
        """All of several parts."""
        rest = [view for part in parts if (view := memoryview(part))]
        done = 0
        while rest:
            try:
                count = os.writev(self._out, rest)
            except BlockingIOError:
                self._wait(self._writable)
                continue
            except OSError as error:
                raise ConnectionClosed(f"the connection broke: {error.strerror}") from None
            except ValueError:
                raise ConnectionClosed("the connection is closed") from None
            self.record_activity()
            done += count
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]
        return done

    def _wait(self, ready: select.poll) -> None:
        while not self._stopped and not ready.poll(_POLL_S * 1000):
            still = time.monotonic() - self._moved_at
            if still > self._timeout_s and self._reply_pending():
                raise ConnectionClosed(f"no answer within {self._timeout_s:.0f} s")
        if self._stopped:
            raise ConnectionClosed(self._stopped)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_FILE_BYTES


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LATEST_S  # type: ignore[arg-type]


def _read_exactly(incoming: io.BufferedReader[Any], count: int) -> bytes:
    if not count:
        return b""
    body = incoming.read(count)
    if body is None or len(body) != count:
        raise ConnectionClosed("it hung up")
    return body


def _copied_error(error: StagerError) -> StagerError:
    """The same for another thread: an exception has one traceback."""
    return type(error)(str(error))


def _name_batches(names: Sequence[str]) -> Iterator[bytes]:
    for start in range(0, len(names), _KEYS_AT_ONCE):
        yield "\n".join(names[start : start + _KEYS_AT_ONCE]).encode("utf-8", "surrogateescape")
