"""Time that stands still until it is told to move."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

_Action = Callable[[], None]


@dataclass(slots=True, order=True)
class Alarm:
    """Something to be done at a moment; ``cancel`` makes it be forgotten."""

    when: float
    number: int
    action: _Action | None = field(compare=False)

    def cancel(self) -> None:
        """It will not be done. May be repeated, and called after it was done."""
        self.action = None


class VirtualClock:
    """burstd's time and the system's, and alarms by either. Times in seconds since 1970."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._offset = 0.0
        self._steady: list[Alarm] = []
        self._by_wall: list[Alarm] = []
        self._made = 0

    def now(self) -> float:
        """burstd's own time."""
        return self._now

    def wall(self) -> float:
        """The system's time: burstd's own and the sum of all jumps."""
        return self._now + self._offset

    def jump(self, seconds: float) -> None:
        """Sets the system's clock forward, or back. What is then due by it is done by the next ``advance``."""
        self._offset += seconds

    def at(self, when: float, action: _Action) -> Alarm:
        """Has ``action`` done at ``when`` in burstd's time; at the next ``advance`` if that is past."""
        return self._add(self._steady, when, action)

    def at_wall(self, when: float, action: _Action) -> Alarm:
        """Has ``action`` done once the system's clock shows ``when``: what programs that read that clock do."""
        return self._add(self._by_wall, when, action)

    def _add(self, heap: list[Alarm], when: float, action: _Action) -> Alarm:
        self._made += 1
        alarm = Alarm(when, self._made, action)
        heapq.heappush(heap, alarm)
        return alarm

    def next_alarm(self) -> float:
        """When the next alarm is due, in burstd's time; infinite: there is none."""
        for heap in (self._steady, self._by_wall):
            while heap and heap[0].action is None:
                heapq.heappop(heap)
        steady = self._steady[0].when if self._steady else float("inf")
        by_wall = self._by_wall[0].when - self._offset if self._by_wall else float("inf")
        return max(self._now, min(steady, by_wall))

    def advance(self, seconds: float) -> None:
        """Lets time pass; every alarm that falls due on the way is done at its own moment, in order."""
        self.advance_to(self._now + seconds)

    def advance_to(self, when: float) -> None:
        """Lets time pass until ``when`` in burstd's time."""
        while (due := self.next_alarm()) <= when:
            self._now = due
            steady = self._steady and self._steady[0].when <= due
            alarm = heapq.heappop(self._steady if steady else self._by_wall)
            action, alarm.action = alarm.action, None
            if action is not None:
                action()
        self._now = max(self._now, when)
