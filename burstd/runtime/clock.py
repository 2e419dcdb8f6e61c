"""The real clock, and what it is worth: over the lives of the process, and beside the clocks of machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from burstd.domain.snapshot import CircuitBreaker

JUMP_S = 5.0
"""How far the system clock must move against the steady one to be called a jump."""
MAX_DRIFT_S = 60.0
"""How far the system clock may be from burstd's time before burstd raises an alarm and stops following it."""
CLOCK_KEY = "clock"
"""Key under which the store keeps the latest ClockMark: of the start, and of each hour since."""
CLOCK_TRUSTED_KEY = "clock-trusted"
"""Key under which the store keeps that an administrator confirmed the system clock, until the next start."""
MAX_ABSENCE_S = 86400.0
"""After a boot of the head a record with live claims is not believed to be older than this."""


@dataclass(frozen=True, slots=True)
class ClockCheckpoint:
    """burstd's time at one moment of one boot of the head: within that boot no change of its clock can falsify it."""

    boot: str
    steady: float
    """Seconds since that boot, time asleep included."""
    time: float
    """burstd's time, in seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.boot} {self.steady!r} {self.time!r}"

    @classmethod
    def parse(cls, text: str) -> ClockCheckpoint | None:
        """The reverse of ``str``; None for anything else."""
        try:
            boot, steady, at = text.split()
            return cls(boot, float(steady), float(at))
        except ValueError:
            return None


def resumed_time(
    wall: float, here: ClockCheckpoint, checkpoint: ClockCheckpoint | None, last: float, *, has_live_claims: bool
) -> float:
    """burstd's time at a start, in seconds since 1970.

    ``wall``: the system's time; ``here``: boot and steady time now; ``mark``: of the life before; ``last``: the time of
    the latest event, 0 where there is none; ``owed``: claims are live. Within one boot the steady clock tells how long
    burstd was away. After another one the system's time is followed, but not back, and not by more than AWAY_S while
    machines may run: each second would be billed.
    """
    last = max(last, checkpoint.time if checkpoint is not None else 0.0)
    if checkpoint is not None and checkpoint.boot == here.boot:
        expected = max(last, checkpoint.time + max(0.0, here.steady - checkpoint.steady))
        return expected if abs(wall - expected) > MAX_DRIFT_S else max(wall, last)
    if last and (wall < last - MAX_DRIFT_S or (has_live_claims and wall > last + MAX_ABSENCE_S)):
        return last
    return max(wall, last)


class SteadyClock:
    """Starts at the system's time, then runs with the steady clock of this boot: jumps do not reach the timeouts."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        boot: str = "",
    ) -> None:
        self._wall, self._steady = wall, steady
        self._boot = boot or Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self._offset = self._last_offset = wall() - steady()

    def set_time(self, at: float) -> None:
        """burstd's time is ``at`` now; see ``resumed``."""
        self._offset = at - self._steady()

    def checkpoint(self) -> ClockCheckpoint:
        """For the next life."""
        steady = self._steady()
        return ClockCheckpoint(self._boot, steady, steady + self._offset)

    def now(self) -> float:
        """burstd's time, in seconds since 1970."""
        return self._steady() + self._offset

    def wall(self) -> float:
        """The system's time, in seconds since 1970."""
        return self._wall()

    def seconds_jumped(self) -> float:
        """Seconds by which the system clock has jumped since the last call; 0: not, or by less than JUMP_S."""
        offset = self._wall() - self._steady()
        jump = offset - self._last_offset
        self._last_offset = offset if abs(jump) >= JUMP_S else self._last_offset
        return jump if abs(jump) >= JUMP_S else 0.0


def clock_alarm(wall: float, now: float) -> str:
    """What to do where the system clock and burstd's time differ by more than OFF_S; else empty."""
    drift = wall - now
    if abs(drift) <= MAX_DRIFT_S:
        return ""
    says = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"the system clock says {says}, {duration_text(drift)} {'ahead of' if drift > 0 else 'behind'} the "
        f"time that burstd has "
        "counted; burstd goes by its own count. If the system clock is wrong, set it (timedatectl, chronyc makestep). "
        "If it is right, 'burstctl confirm clock' and 'systemctl restart burstd' put the record right"
    )


def duration_text(seconds: float) -> str:
    """``3 min``, ``5.0 h``, ``40.0 d``."""
    seconds = abs(seconds)
    if seconds < 7200:
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


SAME_OFFSET_S = 5.0
MAX_OFFSETS = 20
LAUNCH_RETRY_S = 3600.0
"""So long after the last of the machines that called the head wrong is gone, others are tried; then twice as long."""
MAX_LAUNCH_RETRY_S = 86400.0
CLOCK_CAUSE = "clock"
"""Of the breakers that keep launches off every cloud while the head's clock is wrong."""


class HeadClockMonitor:
    """Tells a head whose clock is wrong from machines whose clocks are: many of these are not off by the same."""

    def __init__(self) -> None:
        self._offsets: dict[str, tuple[str, float]] = {}
        self._last_live: dict[str, float] = {}
        """When each of them was last on record, in burstd's time."""
        self._retry_s = LAUNCH_RETRY_S

    def record_offset(self, claim_id: str, offer_id: str, off_s: float) -> None:
        """A machine's clock is off by so many seconds (ahead: more than 0)."""
        self._offsets.pop(claim_id, None)
        self._offsets[claim_id] = (offer_id, off_s)
        while len(self._offsets) > MAX_OFFSETS:
            del self._offsets[next(iter(self._offsets))]

    def confirm(self) -> None:
        """A machine agrees with the head, or the head's clock was set: what was seen before counts no more."""
        self._offsets.clear()
        self._retry_s = LAUNCH_RETRY_S

    def forget_machines(self, live: Collection[str], now: float) -> None:
        """Drops machines whose claims are gone, but not at once: while the head is wrong it would buy others for them.

        ``live``: the ids of claims on record at ``now``, in burstd's time.
        """
        was = bool(self.why_wrong())
        self._last_live = {one: now if one in live else self._last_live.get(one, now) for one in self._offsets}
        self._offsets = {one: off for one, off in self._offsets.items() if now - self._last_live[one] < self._retry_s}
        if was and not self.why_wrong():
            self._retry_s = min(2 * self._retry_s, MAX_LAUNCH_RETRY_S)

    def clock_breakers(self, providers: Iterable[str], now: float) -> tuple[CircuitBreaker, ...]:
        """A breaker for each cloud while the head's clock is wrong. What runs goes on, and ends, as ever."""
        why = self.why_wrong()
        return tuple(CircuitBreaker(f"{name.replace('/', '%2F')}/*/*/*/*", CLOCK_CAUSE, 0, now + LAUNCH_RETRY_S, why)
                     for name in providers if why)  # fmt: skip

    def why_wrong(self) -> str:
        """Why the head's clock is wrong, and what to do; empty: it is not known to be.

        Three machines in a row, or two of different offers, are off by the same within ALIKE_S.
        """
        seen = list(self._offsets.values())[-3:]
        if len(seen) == 3 and not _same_offset(seen):
            seen = seen[-2:]
        if len(seen) < 2 or not _same_offset(seen) or (len(seen) == 2 and seen[0][0] == seen[1][0]):
            return ""
        off = seen[-1][1]
        where = "behind" if off > 0 else "ahead of"
        return (
            f"the clock of this head is {duration_text(off)} {where} those of {len(seen)} machines in a "
            f"row: it is the head "
            "that is wrong. Set its clock (timedatectl, chronyc makestep); nothing new is launched until it is set, or "
            f"'burstctl confirm clock' says that it is right, or those machines are gone for "
            f"{duration_text(self._retry_s)}"
        )


def _same_offset(seen: list[tuple[str, float]]) -> bool:
    offs = [off for _, off in seen]
    return max(offs) - min(offs) <= SAME_OFFSET_S
