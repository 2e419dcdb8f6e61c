"""What this process knows of each machine beyond the record. All of it may be lost: it is then found out again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.snapshot import RuntimeState, Sighting
from burstd.runtime.poller import RepeatedCall


class Step(StrEnum):
    """How far burstd has come with a machine within its claim's state."""

    NONE = "none"
    VALIDATED = "validated"
    """The machine passed the checks."""
    SLURMD_STARTED = "slurmd_started"
    FABRIC_TESTED = "fabric_tested"
    """The machine reaches another of its job."""
    TERMINATION_ACCEPTED = "termination_accepted"
    """The cloud took the request to terminate."""


STEPS: dict[S, dict[Step, frozenset[Step]]] = {
    S.VALIDATING: {
        Step.NONE: frozenset({Step.VALIDATED}),
        Step.VALIDATED: frozenset({Step.VALIDATED, Step.SLURMD_STARTED}),
        # A slurmctld that was restarted may not know of it: slurmd is started again.
        Step.SLURMD_STARTED: frozenset({Step.SLURMD_STARTED}),
    },
    S.READY: {
        Step.NONE: frozenset({Step.FABRIC_TESTED}),
        Step.FABRIC_TESTED: frozenset({Step.FABRIC_TESTED}),
    },
    S.TERMINATING: {
        Step.NONE: frozenset({Step.TERMINATION_ACCEPTED}),
        Step.TERMINATION_ACCEPTED: frozenset({Step.TERMINATION_ACCEPTED}),
    },
}
"""By the state of the claim, which step may follow which. States that are not here have no steps.

A claim that leaves its state begins at NONE again, and so do all when burstd starts.
"""


@dataclass(slots=True)
class ClaimProgress:
    """Of one claim."""

    call: RepeatedCall = field(default_factory=RepeatedCall)
    """To its cloud or its machine."""
    probe: RepeatedCall = field(default_factory=RepeatedCall)
    """To its shell, while lists lack the machine."""
    step: Step = Step.NONE
    slurmd_started: float = 0.0
    """When slurmd was last started, in burstd's time."""
    last_error: str = ""
    """What the machine said when it was not ready, for the day when its time is over."""
    last_cause: str = ""
    """The word for it, where it is the machine's own fault."""
    unreachable_at: float | None = None
    """When the last probe found no answer."""
    ever_listed: bool = False
    """A list has shown the machine."""
    missing: Sighting | None = None
    """In how many complete lists in a row it was missing."""

    def advance(self, state: S, step: Step) -> None:
        """Takes a step of this state. One that the table does not have came too late and is dropped."""
        self.enter(state)
        if step in STEPS.get(state, {}).get(self.step, ()):
            if step is not self.step:
                self.last_error = self.last_cause = ""
            self.step = step

    def enter(self, state: S) -> None:
        """Forgets what does not hold in this state of the claim."""
        if self.step not in STEPS.get(state, ()):
            self.step = Step.NONE
        if state not in (S.BOOTING, S.VALIDATING):
            self.last_error = self.last_cause = ""


@dataclass(slots=True)
class OrphanProgress:
    """Of an instance or leftover with our tag and without a claim."""

    call: RepeatedCall = field(default_factory=RepeatedCall)
    sighting: Sighting | None = None


class ProgressTable:
    """Used in the deciding thread only."""

    def __init__(self) -> None:
        self.claims: defaultdict[str, ClaimProgress] = defaultdict(ClaimProgress)
        """By claim id."""
        self.orphans: defaultdict[str, OrphanProgress] = defaultdict(OrphanProgress)
        """By ``provider/id``."""

    def follow(self, claims: Iterable[Claim], now: float) -> None:
        """Takes the states of the claims on record, and drops what is over."""
        states = {claim.id: claim.state for claim in claims}
        for claim_id, progress in [*self.claims.items()]:
            if claim_id in states:
                progress.enter(states[claim_id])
            elif not (progress.call.in_flight or progress.probe.in_flight):
                del self.claims[claim_id]
        for key, orphan in [*self.orphans.items()]:
            if orphan.sighting is None and not orphan.call.is_busy(now):
                del self.orphans[key]

    def orphan_sighting(self, key: str) -> Sighting | None:
        """How often in a row this was listed as an orphan; None: not in the last list."""
        return self.orphans[key].sighting if key in self.orphans else None

    def count_orphans(self, prefix: str, seen: Collection[str], *, kept: Collection[str], at: float) -> None:
        """Counts ``seen`` once more; of the others with this prefix only ``kept`` stay orphans."""
        for key, orphan in self.orphans.items():
            if key.startswith(prefix) and key not in kept:
                orphan.sighting = None
        for key in seen:
            self.orphans[key].sighting = seen_again(self.orphans[key].sighting, at)

    def next_retry(self, now: float) -> float:
        """When the next pause ends, in burstd's time."""
        return min((call.due for _, call in self._calls() if call.due > now), default=float("inf"))

    def _calls(self) -> Iterable[tuple[str, RepeatedCall]]:
        for claim_id, progress in self.claims.items():
            yield claim_id, progress.call
            yield f"reach:{claim_id}", progress.probe
        for key, orphan in self.orphans.items():
            yield key, orphan.call

    def runtime_state(self, now: float) -> RuntimeState:
        """The part of it that a decision needs."""
        every = self.claims.items()
        validating = {claim_id for claim_id, p in every if p.step in (Step.VALIDATED, Step.SLURMD_STARTED)}
        return RuntimeState(
            busy=frozenset(key for key, call in self._calls() if call.is_busy(now)),
            termination_accepted=frozenset(c for c, p in every if p.step is Step.TERMINATION_ACCEPTED),
            validated=frozenset(validating),
            fabric_tested=frozenset(c for c, p in every if p.step is Step.FABRIC_TESTED),
            slurmd_started={c: p.slurmd_started for c, p in every if p.step is Step.SLURMD_STARTED},
            missing_sightings={c: p.missing for c, p in every if p.missing is not None},
            unreachable_at={c: p.unreachable_at for c, p in every if p.unreachable_at is not None},
            orphan_sightings={k: o.sighting for k, o in self.orphans.items() if o.sighting is not None},
        )


def seen_again(seen: Sighting | None, at: float) -> Sighting:
    """One sighting more in a list that began at ``at``."""
    return Sighting(1, at) if seen is None else Sighting(seen.times + 1, seen.first)
