"""Jobs that have ended, as far as they tell of jobs like them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One run of a job that is over. Times in burstd's seconds since 1970."""

    id: str
    user: str
    account: str
    name: str
    partitions: tuple[str, ...]
    nodes: int
    cpus: int
    gpus: int
    """Of all its nodes."""
    time_limit_s: float
    """0: unlimited, or not known."""
    eligible: float
    started: float
    ended: float
    burst: bool
    """It ran on nodes of burstd's."""

    @property
    def run_s(self) -> float:
        """How long it ran."""
        return self.ended - self.started

    @property
    def wait_s(self) -> float:
        """How long it waited."""
        return max(0.0, self.started - self.eligible)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A length of time that is expected of a job, in seconds, and from how many jobs like it that comes."""

    seconds: float
    jobs: int
    basis: str
    """Which jobs count as like it: ``jobs of ada with 2 GPUs``."""


@dataclass(frozen=True, slots=True)
class History:
    """What jobs that have ended tell. Immutable; an empty one tells nothing."""
