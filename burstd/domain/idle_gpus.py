"""Jobs that hold GPUs and do not use them: by which rule that is so, what is known of each, and what is done to it.

Root on a rented node may lie in the figures that this comes from: it can spare its own jobs, and end no other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

ANY_PARTITION = "*"
"""Name of the rule for partitions that have none of their own."""


class IdleAct(StrEnum):
    """What follows when a job goes on without its GPUs after the warning."""

    NOTHING = "nothing"
    SHORTEN = "shorten"
    """Its time limit is shortened."""
    REQUEUE = "requeue"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class IdleGpuRule:
    """``[idle_gpus.PARTITION]``. Lengths of time in seconds; those of idle GPUs are without what does not count."""

    warn_after_s: float = 900.0
    act: IdleAct = IdleAct.NOTHING
    act_after_s: float = 1800.0
    start_s: float = 300.0
    """The beginning of a job, which does not count."""
    time_left_s: float = 600.0
    """What SHORTEN leaves a job."""


RunKey = tuple[str, int]
"""A job's id in the queue, and its restarts before."""


@dataclass(frozen=True, slots=True)
class IdleNode:
    """What a job leaves idle on one of its nodes."""

    node: str
    gpus: int
    cost_per_hour: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class IdleJob:
    """A running job of which GPUs are idle for long enough to warn."""

    job_id: str
    """As the queue, and scontrol, have it."""
    restarts: int
    idle: int
    """How many of its GPUs."""
    gpus: int
    """How many it has."""
    since: float
    """Since when the last of these is idle, without what does not count, in burstd's time."""
    idle_s: float
    """How long all of these are idle, by the clocks of their nodes."""
    cost_per_hour: tuple[tuple[str, Decimal], ...] = ()
    """Of the idle GPUs, by currency."""
    cost: tuple[tuple[str, Decimal], ...] = ()
    """What they have cost while they were idle: an estimate, and no part of a bill."""
    nodes: tuple[IdleNode, ...] = ()
    """Where they are."""
    text: str = ""
    """Since when they are idle. Everybody reads it on the map of GPUs: it tells nothing else of the job."""
    run_start: int = 0
    """As Job has it."""
    user: str = ""

    @property
    def key(self) -> RunKey:
        """Of its run."""
        return self.job_id, self.restarts

    @property
    def all_idle(self) -> bool:
        """It uses none."""
        return self.idle == self.gpus

    def warning(self, now: float) -> IdleWarning:
        """Its figures may be minutes old: what follows is counted from ``now`` on."""
        idle_s = max(self.idle_s, now - self.since)
        return IdleWarning(self.idle, self.since, idle_s, run_start=self.run_start, user=self.user)


@dataclass(frozen=True, slots=True)
class IdleWarning:
    """What is on record of a run that was warned."""

    idle: int
    """Of how many GPUs it was warned."""
    since: float
    """As IdleJob has it, when it was warned."""
    idle_s: float
    """So long it had been idle when it was warned."""
    act: IdleAct = IdleAct.NOTHING
    """What was written down to be done to it."""
    limit_s: float = 0.0
    """Its time limit then, in seconds from its start, for SHORTEN."""
    done: bool = False
    """Slurm has answered: it is not done again, whatever becomes of the run."""
    refusal: str = ""
    """What Slurm said against it."""
    run_start: int = 0
    """As Job has it: Slurm gives ids again."""
    user: str = ""
    """Whose job it is; empty: an older release wrote this."""

    def holds_for(self, idle: IdleJob) -> bool:
        """Whether the job needs no new one.

        A job that has used a GPU since this warning, as while burstd was down, is idle since a later time.
        """
        if self.run_start != idle.run_start:
            return False
        unbroken = idle.since < self.since + self.idle_s
        return self.done or (unbroken and (self.idle == idle.idle or self.act is not IdleAct.NOTHING))


@dataclass(frozen=True, slots=True)
class IdleRun:
    """One run, and what is to be done to it."""

    job_id: str
    restarts: int
    start: float
    """When it started, in burstd's time: another start is another run."""
    act: IdleAct
    limit_s: float
    """As IdleWarning has it."""
    reason: str

    @property
    def key(self) -> RunKey:
        """Of this run."""
        return self.job_id, self.restarts
