"""Objects from a store into slots, verified: a few threads that read ahead, in the order of requests."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from burstd.domain.plugins.stager import NoSuchObject, ObjectTooLarge, StagerError
from burstd.domain.staging import ObjectRange
from burstd.transfer.agent.user_process import BUFFER_COUNT, AgentFault, PacketChannel, SharedBuffers
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.protocol.transports import ObjectTransport

FETCH_THREADS = 4


def fetch_verified(transport: ObjectTransport, prefix: str, key: str, buffer: memoryview) -> int:
    """Gets an object into the buffer and returns its length; no other content passes. Raises AgentFault."""
    for turn in (1, 2):
        try:
            length = transport.get_into(object_key(prefix, key), buffer)
        except NoSuchObject as error:
            raise AgentFault("damaged", f"an object of the input is gone from the store: {error}", (key,)) from None
        except ObjectTooLarge as error:
            raise AgentFault("damaged", str(error), (key,)) from None
        except StagerError as error:
            raise AgentFault("store", str(error)) from None
        if hashlib.sha256(buffer[:length]).hexdigest() == key:
            return length
        if turn == 2:
            break
    raise AgentFault(
        "damaged", f"the object {object_key(prefix, key)} is not what its name says: {length} bytes", (key,)
    )


def read_pieces(
    transport: ObjectTransport, prefix: str, pieces: Iterable[ObjectRange], buffer: memoryview
) -> Iterator[memoryview]:
    """The content of pieces in turn, verified; each is good until the next. Raises AgentFault."""
    for piece in pieces:
        length = fetch_verified(transport, prefix, piece.key, buffer)
        if piece.offset + piece.length > length:
            raise AgentFault("damaged", f"the object {piece.key} is too short for what it is to hold", (piece.key,))
        yield buffer[piece.offset : piece.offset + piece.length]


class WindowFetcher:
    """Objects of one tree, for the child. Each is asked for by window; a slot is free again when all are done with it.

    An object that several windows need and that is still there is not fetched again.
    """

    def __init__(self, transport: ObjectTransport, prefix: str, buffers: SharedBuffers, channel: PacketChannel) -> None:
        self._transport = transport
        self._prefix = prefix
        self._buffers = buffers
        self._channel = channel
        self._condition = threading.Condition()
        self._requested: deque[tuple[int, str]] = deque()
        self._free = list(range(BUFFER_COUNT))
        self._buffer_of: dict[str, int] = {}
        self._users: dict[int, int] = {}
        self._length: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._stopped = False
        self.fault: AgentFault | None = None
        self.fetched_bytes = 0
        """Bytes that came from the store."""
        self._threads = [
            threading.Thread(target=self._run_thread, name=f"fetch-{n}", daemon=True) for n in range(FETCH_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def request_objects(self, window: int, keys: list[str]) -> None:
        """The child will want these, in this order."""
        self._transport.announce_gets(object_key(self._prefix, key) for key in keys)
        with self._condition:
            self._requested.extend((window, key) for key in keys)
            self._condition.notify_all()

    def release_buffer(self, buffer: int) -> None:
        """One window does not need the slot any more."""
        with self._condition:
            self._users[buffer] -= 1
            if not self._users[buffer]:
                self._buffer_of = {key: at for key, at in self._buffer_of.items() if at != buffer}
                del self._length[buffer]
                self._free.append(buffer)
                self._condition.notify_all()

    def close(self) -> None:
        """Ends the threads; waits for what they are fetching."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _run_thread(self) -> None:
        while (item := self._next_request()) is not None:
            window, key, buffer = item
            try:
                length = fetch_verified(self._transport, self._prefix, key, self._buffers.view(buffer))
                with self._condition:
                    self.fetched_bytes += length
                    self._length[buffer] = length
                    windows = [window, *self._waiting.pop(buffer, [])]
                for each in windows:
                    self._channel.send({"have": key, "slot": buffer, "length": length, "window": each})
            except AgentFault as fault:
                self._fail(fault)
            except OSError:
                self._fail(AgentFault("agent", "the process with the user's rights is gone"))

    def _next_request(self) -> tuple[int, str, int] | None:
        with self._condition:
            while not self._stopped:
                if self._requested:
                    window, key = self._requested[0]
                    buffer = self._buffer_of.get(key)
                    if buffer is not None:
                        self._requested.popleft()
                        self._users[buffer] += 1
                        if buffer in self._length:
                            self._channel.send(
                                {"have": key, "slot": buffer, "length": self._length[buffer], "window": window}
                            )
                        else:
                            self._waiting.setdefault(buffer, []).append(window)
                        continue
                    if self._free:
                        self._requested.popleft()
                        buffer = self._free.pop()
                        self._buffer_of[key] = buffer
                        self._users[buffer] = 1
                        return window, key, buffer
                self._condition.wait()
        return None

    def _fail(self, fault: AgentFault) -> None:
        """The first fault counts; of damage, all that the threads find."""
        with self._condition:
            if self.fault is None:
                self.fault = fault
            elif self.fault.kind == fault.kind == "damaged":
                self.fault = AgentFault("damaged", str(self.fault), (*self.fault.keys, *fault.keys))
            first, self._stopped = not self._stopped, True
            self._condition.notify_all()
        if first:
            try:
                self._channel.send({"stop": True})
            except OSError:
                return
