"""What the process knows between loops beyond the store. All of it may be lost: it is then found out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from burstd.domain.plan import Action, BindJob
from burstd.domain.snapshot import RuntimeState
from burstd.reconciler.observer import Observer, PollIntervals

REFUSAL_PAUSE_S = 5.0
UNBINDABLE_S = 3600.0
REQUEUE_RETRY_S = 20.0
"""A job that Slurm did not requeue is asked for again after this pause."""


@dataclass(slots=True)
class LoopState:
    """Calls under way, pauses before the next try, and steps within a state."""

    intervals: PollIntervals
    process_start: float = 0.0
    """When the process began, or went on after a sleep."""
    in_flight: set[str] = field(default_factory=set)
    """Claims, and orphans by ``provider/id``, with a call under way."""
    backoff_until: dict[str, float] = field(default_factory=dict)
    """Until when a claim is left alone."""
    retries: dict[str, int] = field(default_factory=dict)
    termination_accepted: set[str] = field(default_factory=set)
    validated: set[str] = field(default_factory=set)
    slurmd_started: dict[str, float] = field(default_factory=dict)
    last_error: dict[str, str] = field(default_factory=dict)
    """What a claim's machine said when it was not ready, for the day when its time is over."""
    last_cause: dict[str, str] = field(default_factory=dict)
    """The word for it, where it is the machine's own fault."""
    unreachable_at: dict[str, float] = field(default_factory=dict)
    """When machines that lists lack were reached for in vain."""
    address_sent_at: dict[str, float] = field(default_factory=dict)
    """When Slurm last got a slot's address."""
    power_down_sent_at: dict[str, float] = field(default_factory=dict)
    bound_since: dict[str, float] = field(default_factory=dict)
    unbindable: dict[str, float] = field(default_factory=dict)
    stuck_on_burst_since: Mapping[str, float] = field(default_factory=dict)
    stuck_since: Mapping[str, float] = field(default_factory=dict)
    boot_durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    affordable_inputs: frozenset[str] = frozenset()
    """Jobs for whose input a storage node may be paid, by the last decision."""
    requeued: set[tuple[str, int]] = field(default_factory=set)
    """Runs of jobs of the queue whose requeue Slurm has taken."""
    requeue_refused_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """Runs of jobs of the queue whose requeue Slurm has refused, and when last."""
    refusals: dict[Action, tuple[float, str]] = field(default_factory=dict)

    def wait_before_retry(self, key: str, now: float, pause: float) -> None:
        """Leaves it alone for a while."""
        self.backoff_until[key] = now + pause

    def back_off(self, key: str, now: float, min_pause: float = 0.0, *, spread: str = "") -> None:
        """Leaves it alone for longer at each failure: ``call_retry_s`` doubling to a minute, or what was asked for.

        With ``spread`` up to a quarter more or less, the same for the same word, so that not all come back at once.
        """
        tries = self.retries[key] = self.retries.get(key, 0) + 1
        pause = min(self.intervals.call_retry_s * 2 ** min(tries - 1, 10), 60.0)
        if spread:
            pause *= 0.75 + 0.5 * (crc32(f"{spread} {tries}".encode()) / 2**32)
        self.wait_before_retry(key, now, max(min_pause, pause))

    def reset_back_off(self, key: str) -> None:
        """The next failure starts from the short pause again."""
        self.retries.pop(key, None)
        self.backoff_until.pop(key, None)

    def forget_validation(self, claim_id: str) -> None:
        """The claim has left VALIDATING."""
        self.validated.discard(claim_id)
        self.slurmd_started.pop(claim_id, None)
        self.last_error.pop(claim_id, None)
        self.last_cause.pop(claim_id, None)

    def record_refusal(self, action: Action, error: str, now: float) -> None:
        """Slurm refused: the step pauses for a few seconds."""
        self.refusals = {a: refusal for a, refusal in self.refusals.items() if now - refusal[0] < 2 * REFUSAL_PAUSE_S}
        self.refusals[action] = (now, error)
        if isinstance(action, BindJob):
            self.unbindable = {job: at for job, at in self.unbindable.items() if now - at < UNBINDABLE_S}
            self.unbindable[action.job_id] = now

    def alarms(self, now: float) -> list[str]:
        """What Slurm refused in the last seconds."""
        return [text for at, text in self.refusals.values() if now - at < 2 * REFUSAL_PAUSE_S]

    def was_refused_lately(self, action: Action, now: float) -> bool:
        """True while the pause after a refusal lasts."""
        refusal = self.refusals.get(action)
        return refusal is not None and now - refusal[0] < REFUSAL_PAUSE_S

    def progress(self, observer: Observer, now: float) -> RuntimeState:
        """The part of it that a decision needs."""
        self.backoff_until = {key: until for key, until in self.backoff_until.items() if until > now}
        return RuntimeState(
            process_start=self.process_start,
            termination_accepted=frozenset(self.termination_accepted),
            busy=frozenset(self.in_flight | self.backoff_until.keys()),
            validated=frozenset(self.validated),
            slurmd_started=dict(self.slurmd_started),
            missing_sightings=dict(observer.missing_sightings),
            unreachable_at=dict(self.unreachable_at),
            orphan_sightings=dict(observer.orphan_sightings),
            power_down_sent_at=dict(self.power_down_sent_at),
            bound_since=dict(self.bound_since),
            unbindable=frozenset(job for job, at in self.unbindable.items() if now - at < UNBINDABLE_S),
            stuck_on_burst_since=dict(self.stuck_on_burst_since),
            stuck_since=dict(self.stuck_since),
            boot_durations=dict(self.boot_durations),
            requeued=frozenset(
                self.requeued.union(r for r, at in self.requeue_refused_at.items() if now - at < REQUEUE_RETRY_S)
            ),
            requeue_refused=frozenset(self.requeue_refused_at),
        )

    def next_retry(self, now: float) -> float:
        """When the next pause ends, in burstd's time."""
        return min((until for until in self.backoff_until.values() if until > now), default=float("inf"))
