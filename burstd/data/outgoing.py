"""Objects on their way from the process with the user's rights to the one that has the store."""

from __future__ import annotations

from burstd.data.userside import SLOTS, STOPPED, AgentFault, Line, Slots


class Sent:
    """An object on its way to the store; its key is told when it is there."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = ""


class Outgoing:
    """Slots that are filled here and put into the store by the other half."""

    def __init__(self, line: Line, slots: Slots) -> None:
        self._line = line
        self._slots = slots
        self._free = list(range(SLOTS))
        self._under_way: dict[int, Sent] = {}

    def room(self) -> int:
        """A slot to fill; waits for one. Raises AgentFault when the other half has given up."""
        while not self._free:
            self.wait()
        return self._free.pop()

    def view(self, slot: int) -> memoryview:
        """Its memory."""
        return self._slots.view(slot)

    def send(self, slot: int, length: int, sent: Sent | None = None) -> Sent:
        """Has it put."""
        sent = sent or Sent()
        self._under_way[slot] = sent
        self._line.send({"object": slot, "length": length})
        return sent

    def give_back(self, slot: int) -> None:
        """It was not needed."""
        self._free.append(slot)

    def wait(self) -> None:
        """Until one more is in the store."""
        message, _ = self._line.receive()
        if "stop" in message:
            raise AgentFault(STOPPED, "stopped")
        self._under_way.pop(message["slot"]).key = message["key"]
        self._free.append(message["slot"])
