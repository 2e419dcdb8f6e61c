"""What the process knows between loops beyond the store. All of it may be lost: it is then found out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from burstd.domain.plan import Action, Bind
from burstd.domain.snapshot import Progress
from burstd.reconciler.observer import Observer, Pace

REFUSED_S = 5.0
UNBINDABLE_S = 3600.0
UNMOVED_S = 20.0
"""A job that Slurm did not requeue is asked for again after this pause."""


@dataclass(slots=True)
class Memory:
    """Calls under way, pauses before the next try, and steps within a state."""

    pace: Pace
    born: float = 0.0
    """When the process began, or went on after a sleep."""
    calling: set[str] = field(default_factory=set)
    """Claims, and orphans by ``provider/id``, with a call under way."""
    resting: dict[str, float] = field(default_factory=dict)
    """Until when a claim is left alone."""
    tries: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    proved: set[str] = field(default_factory=set)
    started: dict[str, float] = field(default_factory=dict)
    last_word: dict[str, str] = field(default_factory=dict)
    """What a claim's machine said when it was not ready, for the day when its time is over."""
    last_cause: dict[str, str] = field(default_factory=dict)
    """The word for it, where it is the machine's own fault."""
    silent: dict[str, float] = field(default_factory=dict)
    """When machines that lists lack were reached for in vain."""
    registered: dict[str, float] = field(default_factory=dict)
    """When Slurm was last told a slot's address."""
    tidied: dict[str, float] = field(default_factory=dict)
    bound_since: dict[str, float] = field(default_factory=dict)
    unbindable: dict[str, float] = field(default_factory=dict)
    tried_since: Mapping[str, float] = field(default_factory=dict)
    covered_since: Mapping[str, float] = field(default_factory=dict)
    booted: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    payable: frozenset[str] = frozenset()
    """Jobs for whose input a storage node may be paid, by the last decision."""
    requeued: set[tuple[str, int]] = field(default_factory=set)
    """Runs of jobs of the queue whose requeue Slurm has taken."""
    unmoved: dict[tuple[str, int], float] = field(default_factory=dict)
    """Runs of jobs of the queue whose requeue Slurm has refused, and when last."""
    refusals: dict[Action, tuple[float, str]] = field(default_factory=dict)

    def rest(self, key: str, now: float, pause: float) -> None:
        """Leaves it alone for a while."""
        self.resting[key] = now + pause

    def back_off(self, key: str, now: float, asked: float = 0.0, *, spread: str = "") -> None:
        """Leaves it alone for longer at each failure: ``call_retry_s`` doubling to a minute, or what was asked for.

        With ``spread`` up to a quarter more or less, the same for the same word, so that not all come back at once.
        """
        tries = self.tries[key] = self.tries.get(key, 0) + 1
        pause = min(self.pace.call_retry_s * 2 ** min(tries - 1, 10), 60.0)
        if spread:
            pause *= 0.75 + 0.5 * (crc32(f"{spread} {tries}".encode()) / 2**32)
        self.rest(key, now, max(asked, pause))

    def succeeded(self, key: str) -> None:
        """The next failure starts from the short pause again."""
        self.tries.pop(key, None)
        self.resting.pop(key, None)

    def forget_proof(self, claim_id: str) -> None:
        """The claim has left PROVING."""
        self.proved.discard(claim_id)
        self.started.pop(claim_id, None)
        self.last_word.pop(claim_id, None)
        self.last_cause.pop(claim_id, None)

    def refused(self, action: Action, error: str, now: float) -> None:
        """Slurm said no: the same step is not tried again for a few seconds."""
        self.refusals = {a: kept for a, kept in self.refusals.items() if now - kept[0] < 2 * REFUSED_S}
        self.refusals[action] = (now, error)
        if isinstance(action, Bind):
            self.unbindable = {job: at for job, at in self.unbindable.items() if now - at < UNBINDABLE_S}
            self.unbindable[action.job_id] = now

    def alarms(self, now: float) -> list[str]:
        """What Slurm refused in the last seconds."""
        return [text for at, text in self.refusals.values() if now - at < 2 * REFUSED_S]

    def refused_lately(self, action: Action, now: float) -> bool:
        """True while the pause after a refusal lasts."""
        kept = self.refusals.get(action)
        return kept is not None and now - kept[0] < REFUSED_S

    def progress(self, observer: Observer, now: float) -> Progress:
        """The part of it that a decision needs."""
        self.resting = {key: until for key, until in self.resting.items() if until > now}
        return Progress(
            born=self.born,
            ended=frozenset(self.ended),
            busy=frozenset(self.calling | self.resting.keys()),
            proved=frozenset(self.proved),
            started=dict(self.started),
            absent=dict(observer.absent),
            silent=dict(self.silent),
            strays=dict(observer.strays),
            tidied=dict(self.tidied),
            bound_since=dict(self.bound_since),
            unbindable=frozenset(job for job, at in self.unbindable.items() if now - at < UNBINDABLE_S),
            tried_since=dict(self.tried_since),
            covered_since=dict(self.covered_since),
            booted=dict(self.booted),
            requeued=frozenset(self.requeued.union(r for r, at in self.unmoved.items() if now - at < UNMOVED_S)),
            unmoved=frozenset(self.unmoved),
        )

    def due(self, now: float) -> float:
        """When the next pause ends, in burstd's time."""
        return min((until for until in self.resting.values() if until > now), default=float("inf"))
