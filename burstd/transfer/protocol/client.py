"""A client of a storage node's program (server.py), over any pair of byte streams. Standard library only."""

from __future__ import annotations

import io
import json
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from burstd.domain.cloud.quoting import one_line
from burstd.domain.plugins.stager import StagerError, StoreBusy, StoredObject, StoreRefused, Unfinished, checked
from burstd.transfer.content_store.manifest import LARGEST
from burstd.transfer.protocol.frames import BODY_LIMIT, ERRORS, HEADER, MAGIC, PAGE, Ask, HungUp, Say

_NOISE = 1 << 16
"""How much a login's own scripts may print, in bytes."""
_SENTENCE = 4000
"""Bytes of an error that are looked at."""
_LATEST_S = 1e11
_LOOK_S = 1.0
_KEYS_AT_ONCE = 10_000


@dataclass(slots=True, eq=False)
class _Due:
    """An answer that is to come."""

    room: memoryview | None = None
    """For an object's content; nothing writes into it any more when ``future`` is done."""
    length: int = -1
    """Of what is in the room."""
    future: Future[bytes] = field(default_factory=Future)


class WireClient:
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
        patience_s: float = 60.0,
        why: Callable[[str], StagerError] | None = None,
    ) -> None:
        self._name = name
        self._why = why or (lambda reason: StoreBusy(f"{name}: {reason}"))
        self._streams = (read_file, write_file)
        self._flow = _Flow(read_file.fileno(), write_file.fileno(), patience_s, lambda: bool(self.under_way))
        self._writing = threading.Lock()
        self._state = threading.Lock()
        self._waiting: dict[int, _Due] = {}
        self._filling: _Due | None = None
        """Taken out of ``waiting`` by the thread that reads, which alone ends it."""
        self._number = 0
        self._broken: StagerError | None = None
        self._reader = threading.Thread(target=self._read, name="burstd-wire", daemon=True)
        self._reader.start()

    @property
    def broken(self) -> bool:
        """Whether it is of no use any more."""
        return self._broken is not None

    @property
    def under_way(self) -> int:
        """Requests without an answer so far."""
        return len(self._waiting) + (self._filling is not None)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Returns when the object is there under its name."""
        self._ask(Ask.PUT, checked(key), body)

    def get(self, key: str) -> bytes:
        """Raises NoSuchObject."""
        return self._ask(Ask.GET, checked(key))

    def get_into(self, key: str, room: memoryview) -> int:
        """As get, into ``room``; the object's length. StoreRefused where that is more than there is room for.

        However this ends, nothing is written into ``room`` afterwards.
        """
        due = _Due(room)
        body = self._ask(Ask.GET, checked(key), due=due)
        if due.length < 0:
            raise StoreRefused(f"{self._name}: the object {key} has {len(body)} bytes, more than there is room for")
        return due.length

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Those that are there, with their sizes in bytes."""
        found: dict[str, int] = {}
        asked = set(keys)
        for lines in _lines([checked(key) for key in keys]):
            said = self._json(self._ask(Ask.PRESENT, "", lines))
            if not isinstance(said, dict) or not all(key in asked and _is_size(size) for key, size in said.items()):
                raise self._strange()
            found.update(said)
        return found

    def copy(self, source: str, target: str) -> None:
        """Raises NoSuchObject."""
        self._ask(Ask.COPY, f"{checked(source)}\n{checked(target)}")

    def delete(self, keys: Sequence[str]) -> None:
        """What is gone already is no error."""
        for lines in _lines([checked(key) for key in keys]):
            self._ask(Ask.DELETE, "", lines)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Page by page."""
        after = ""
        while True:
            page = [
                StoredObject(*row) for row in self._rows(Ask.LIST, f"{prefix}\n{after}", (_is_text, _is_size, _is_time))
            ]
            for stored in page:
                # Else a list might have no end.
                if not stored.key.startswith(prefix) or (after and stored.key.split("/") <= after.split("/")):
                    raise self._strange()
                after = stored.key
                yield stored
            if len(page) < PAGE:
                return

    def unfinished(self) -> Iterator[Unfinished]:
        """Temporary files there."""
        yield from (Unfinished(*row) for row in self._rows(Ask.UNFINISHED, "", (_is_text, _is_text, _is_time)))

    def abort(self, unfinished: Sequence[Unfinished]) -> None:
        """Removes them."""
        for lines in _lines([u.id for u in unfinished]):
            self._ask(Ask.ABORT, "", lines)

    def free_bytes(self) -> int:
        """Room left there."""
        free = self._json(self._ask(Ask.FREE))
        if not _is_size(free):
            raise self._strange()
        return int(free)

    def close(self) -> None:
        """Hangs up; what is under way fails. May be repeated."""
        self._break("it was closed")
        self._reader.join(5 * _LOOK_S)

    def _rows(self, what: Ask, text: str, columns: Sequence[Callable[[object], bool]]) -> list[list[Any]]:
        """Rows whose columns are what these functions take."""
        rows = self._json(self._ask(what, text))
        whole = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(columns) for row in rows)
        if not whole or not all(fits(value) for row in rows for fits, value in zip(columns, row, strict=True)):
            raise self._strange()
        return list(rows)

    def _json(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._strange() from None

    def _strange(self) -> StoreRefused:
        return StoreRefused(
            f"{self._name} answers what no program of burstd's does: see who else is root or user there"
        )

    def _ask(self, what: Ask, text: str = "", body: bytes | memoryview = b"", due: _Due | None = None) -> bytes:
        words, content = text.encode("utf-8", "surrogateescape"), memoryview(body).cast("B")
        if len(content) > BODY_LIMIT or len(words) > 0xFFFF:
            raise StoreRefused(f"{self._name} takes no object of {len(content)} bytes: the limit is {BODY_LIMIT}")
        due = due or _Due()
        with self._writing:
            with self._state:
                if self._broken is not None:
                    raise _again(self._broken)
                self._number = number = self._number % 0xFFFFFFFF + 1
                if not self.under_way:
                    self._flow.moved()
                self._waiting[number] = due
            try:
                self._flow.write([HEADER.pack(number, what, len(words), len(content)) + words, content])
            except HungUp as gone:
                self._break(str(gone))
            except BaseException:
                # Half a frame may be out: what follows would be taken for the rest of it.
                self._break("a request was broken off")
                raise
        return due.future.result()

    def _read(self) -> None:
        incoming: io.BufferedReader[Any] = io.BufferedReader(self._flow, 1 << 16)
        try:
            self._greet(incoming)
            while True:
                number, say, length = self._head(incoming)
                if say == Say.OK and self._fills(number, length, incoming):
                    continue
                body = _exactly(incoming, length)
                with self._state:
                    due = self._waiting.pop(number, None)
                if due is None:
                    self._break("it answers what was not asked")
                    return
                if say == Say.OK:
                    due.future.set_result(body)
                else:
                    due.future.set_exception(self._error(say, body))
                del body, due
        except HungUp as gone:
            self._break(str(gone))
        except MemoryError:
            self._break("there is not enough memory for an answer")
        finally:
            filling, self._filling = self._filling, None
            if filling is not None:
                filling.future.set_exception(_again(self._broken or StoreBusy(f"{self._name}: an answer broke off")))
            # Not while another thread writes: the descriptor's number would be another file's by then.
            with self._writing:
                for stream in self._streams:
                    with suppress(OSError):
                        stream.close()

    def _greet(self, incoming: io.BufferedReader[Any]) -> None:
        said = bytearray()
        while not said.endswith(MAGIC):
            said += _exactly(incoming, 1)
            if len(said) > _NOISE:
                raise HungUp(f"it does not answer as burstd's program does, but says {bytes(said[:80])!r}")
        _, say, length = self._head(incoming)
        body = _exactly(incoming, length)
        if say != Say.OK:
            error = self._error(say, body)
            self._break(str(error), error)
            raise HungUp(str(error))

    def _fills(self, number: int, length: int, incoming: io.BufferedReader[Any]) -> bool:
        """Reads a body into the room that is there for it. False: there is none."""
        with self._state:
            due = self._waiting.get(number)
            if due is None or due.room is None or length > len(due.room):
                return False
            self._filling = self._waiting.pop(number)
        rest = due.room[:length]
        while rest:
            count = incoming.readinto(rest)
            if not count:
                raise HungUp("it hung up")
            rest = rest[count:]
        due.length, self._filling = length, None
        due.future.set_result(b"")
        return True

    def _head(self, incoming: io.BufferedReader[Any]) -> tuple[int, int, int]:
        """Number, what is said, and the length of what follows."""
        number, say, text_length, length = HEADER.unpack(_exactly(incoming, HEADER.size))
        if text_length or length > BODY_LIMIT or say not in Say.__members__.values():
            raise HungUp("it answers with what is no frame of ours")
        return number, say, length

    def _error(self, say: int, body: bytes) -> StagerError:
        return ERRORS[Say(say)](f"{self._name}: {one_line(body[:_SENTENCE].decode('utf-8', 'replace'))}")

    def _break(self, reason: str, error: StagerError | None = None) -> None:
        with self._state:
            if self._broken is not None:
                return
            self._broken = error or StoreBusy(f"{self._name}: {reason}")
        self._flow.stop(reason)
        if error is None:
            # Asks the ssh program, which may take a moment: not while others want to know whether it is broken.
            self._broken = self._why(reason)
        with self._state:
            lost, self._waiting = self._waiting, {}
        for due in lost.values():
            if not due.future.done():
                due.future.set_exception(_again(self._broken))


class _Flow(io.RawIOBase):
    """Reads and writes descriptors, and raises HungUp where nothing moves though ``due``."""

    def __init__(self, incoming: int, outgoing: int, patience_s: float, due: Callable[[], bool]) -> None:
        self._in = incoming
        self._out = outgoing
        self._patience_s = patience_s
        self._due = due
        self._last = time.monotonic()
        self._stopped = ""
        self._readable = select.poll()
        self._readable.register(incoming, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(outgoing, select.POLLOUT)
        os.set_blocking(outgoing, False)

    def moved(self) -> None:
        self._last = time.monotonic()

    def stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason

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
                raise HungUp(f"the connection broke: {error.strerror}") from None
            self.moved()
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
                raise HungUp(f"the connection broke: {error.strerror}") from None
            except ValueError:
                raise HungUp("the connection is closed") from None
            self.moved()
            done += count
            while rest and count >= len(rest[0]):
                count -= len(rest.pop(0))
            if count:
                rest[0] = rest[0][count:]
        return done

    def _wait(self, ready: select.poll) -> None:
        while not self._stopped and not ready.poll(_LOOK_S * 1000):
            still = time.monotonic() - self._last
            if still > self._patience_s and self._due():
                raise HungUp(f"no answer within {self._patience_s:.0f} s")
        if self._stopped:
            raise HungUp(self._stopped)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LATEST_S  # type: ignore[arg-type]


def _exactly(incoming: io.BufferedReader[Any], count: int) -> bytes:
    if not count:
        return b""
    body = incoming.read(count)
    if body is None or len(body) != count:
        raise HungUp("it hung up")
    return body


def _again(error: StagerError) -> StagerError:
    """The same for another thread: an exception has one traceback."""
    return type(error)(str(error))


def _lines(words: Sequence[str]) -> Iterator[bytes]:
    for start in range(0, len(words), _KEYS_AT_ONCE):
        yield "\n".join(words[start : start + _KEYS_AT_ONCE]).encode("utf-8", "surrogateescape")
