"""Objects from a store into slots, verified: a few lanes that read ahead, in the order in which they are asked for."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from burstd.domain.plugins.stager import NoSuchObject, ObjectTooLarge, StagerError
from burstd.domain.staging import Piece
from burstd.transfer.agent.user_process import SLOTS, AgentFault, Line, Slots
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.protocol.transports import Transport

LANES = 4


def verified(transport: Transport, prefix: str, key: str, room: memoryview) -> int:
    """Gets an object into ``room`` and returns its length; no other content passes. Raises AgentFault."""
    for turn in (1, 2):
        try:
            length = transport.fetch(object_key(prefix, key), room)
        except NoSuchObject as error:
            raise AgentFault("damaged", f"an object of the input is gone from the store: {error}", (key,)) from None
        except ObjectTooLarge as error:
            raise AgentFault("damaged", str(error), (key,)) from None
        except StagerError as error:
            raise AgentFault("store", str(error)) from None
        if hashlib.sha256(room[:length]).hexdigest() == key:
            return length
        if turn == 2:
            break
    raise AgentFault(
        "damaged", f"the object {object_key(prefix, key)} is not what its name says: {length} bytes", (key,)
    )


def pieces_of(transport: Transport, prefix: str, pieces: Iterable[Piece], room: memoryview) -> Iterator[memoryview]:
    """The content of pieces in turn, verified; each is good until the next. Raises AgentFault."""
    held, length = "", 0
    for piece in pieces:
        if piece.key != held:
            held, length = "", verified(transport, prefix, piece.key, room)
            held = piece.key
        if piece.offset + piece.length > length:
            raise AgentFault("damaged", f"the object {piece.key} is too short for what it is to hold", (piece.key,))
        yield room[piece.offset : piece.offset + piece.length]


class Fetch:
    """Objects of one tree, for the child. Each is asked for by window; a slot is free again when all are done with it.

    An object that several windows need and that is still there is not fetched again.
    """

    def __init__(self, transport: Transport, prefix: str, slots: Slots, line: Line) -> None:
        self._transport = transport
        self._prefix = prefix
        self._slots = slots
        self._line = line
        self._turn = threading.Condition()
        self._asked: deque[tuple[int, str]] = deque()
        self._free = list(range(SLOTS))
        self._slot_of: dict[str, int] = {}
        self._users: dict[int, int] = {}
        self._length: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._stopped = False
        self.fault: AgentFault | None = None
        self.fetched = 0
        """Bytes that came from the store."""
        self._lanes = [threading.Thread(target=self._lane, name=f"fetch-{n}", daemon=True) for n in range(LANES)]
        for lane in self._lanes:
            lane.start()

    def need(self, window: int, keys: list[str]) -> None:
        """The child will want these, in this order."""
        self._transport.expect(object_key(self._prefix, key) for key in keys)
        with self._turn:
            self._asked.extend((window, key) for key in keys)
            self._turn.notify_all()

    def done_with(self, slot: int) -> None:
        """One window does not need the slot any more."""
        with self._turn:
            self._users[slot] -= 1
            if not self._users[slot]:
                self._slot_of = {key: at for key, at in self._slot_of.items() if at != slot}
                del self._length[slot]
                self._free.append(slot)
                self._turn.notify_all()

    def close(self) -> None:
        """Ends the lanes; what they are fetching is waited for."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
        for lane in self._lanes:
            lane.join()

    def _lane(self) -> None:
        while (turn := self._next()) is not None:
            window, key, slot = turn
            try:
                length = verified(self._transport, self._prefix, key, self._slots.view(slot))
                with self._turn:
                    self.fetched += length
                    self._length[slot] = length
                    windows = [window, *self._waiting.pop(slot, [])]
                for each in windows:
                    self._line.send({"have": key, "slot": slot, "length": length, "window": each})
            except AgentFault as fault:
                self._fail(fault)
            except OSError:
                self._fail(AgentFault("agent", "the process with the user's rights is gone"))

    def _next(self) -> tuple[int, str, int] | None:
        with self._turn:
            while not self._stopped:
                if self._asked:
                    window, key = self._asked[0]
                    slot = self._slot_of.get(key)
                    if slot is not None:
                        self._asked.popleft()
                        self._users[slot] += 1
                        if slot in self._length:
                            self._line.send({"have": key, "slot": slot, "length": self._length[slot], "window": window})
                        else:
                            self._waiting.setdefault(slot, []).append(window)
                        continue
                    if self._free:
                        self._asked.popleft()
                        slot = self._free.pop()
                        self._slot_of[key] = slot
                        self._users[slot] = 1
                        return window, key, slot
                self._turn.wait()
        return None

    def _fail(self, fault: AgentFault) -> None:
        """The first fault counts; of damage, all that the lanes find."""
        with self._turn:
            if self.fault is None:
                self.fault = fault
            elif self.fault.kind == fault.kind == "damaged":
                self.fault = AgentFault("damaged", str(self.fault), (*self.fault.keys, *fault.keys))
            first, self._stopped = not self._stopped, True
            self._turn.notify_all()
        if first:
            try:
                self._line.send({"stop": True})
            except OSError:
                return
