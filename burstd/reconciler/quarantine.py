"""What burstd's own code fails on: a job, a node, a cloud. It is left alone, with an alarm, and the loop goes on.

It comes back with a changed input (its row of the queue, its node, its claim), a minute later at the earliest, and with
every reload of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from burstd.db import StoreError
from burstd.domain.clock import Clock
from burstd.domain.errors import SchedulerUnavailable
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner import isolation

log = structlog.get_logger(__name__)

LEAST_S = 60.0
"""A subject that changes with every look is tried again no sooner."""
STEP_S = 600.0
"""How long an alarm of a step without a subject stands after it failed last."""
_SHOWN = 8
MEANT = (SchedulerUnavailable, StoreError)
"""Errors of the whole, not of a subject: the loop deals with them."""


@dataclass(slots=True)
class _Hold:
    since: float
    step: str
    error: str
    seen: object = None
    """What it was made from when it failed; None: not noted so far."""


class Holds:
    """Used in the deciding thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: dict[str, _Hold] = {}

    def broke(self, subject: str, step: str, error: Exception) -> None:
        """Leaves the subject alone from now on: ``job:ID``, ``node:NAME``, ``cloud:NAME``, or the name of a step."""
        log.error("left alone: burstd failed on it", subject=subject, step=step, exc_info=error)
        self._holds[subject] = _Hold(self._clock.now(), step, f"{type(error).__name__}: {error}"[:200])

    @contextmanager
    def guard(self, step: str, *subjects: str) -> Iterator[None]:
        """Keeps an error of these subjects from being one of all."""
        try:
            yield
        except MEANT:
            raise
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm until it is over
            for subject in subjects:
                self.broke(subject, step, error)

    def __contains__(self, subject: object) -> bool:
        return subject in self._holds

    def held(self, snapshot: Snapshot) -> frozenset[str]:
        """The subjects that are left alone; those whose input has changed are not any more."""
        if not self._holds:
            return frozenset()
        if not isinstance(snapshot.slurm, SlurmView):
            return frozenset(self._holds)
        now, inputs = self._clock.now(), _inputs(snapshot, snapshot.slurm)
        for subject, hold in [*self._holds.items()]:
            seen = inputs.get(subject)
            if hold.seen is None:
                hold.seen = seen
            known = subject.partition(":")[0] in ("job", "node", "cloud")
            over = seen != hold.seen and now - hold.since >= LEAST_S if known else now - hold.since >= STEP_S
            if over or (known and seen is None and now - hold.since >= LEAST_S):
                log.info("no longer left alone", subject=subject)
                del self._holds[subject]
        return frozenset(self._holds)

    def clear(self) -> None:
        """All are tried again."""
        self._holds.clear()

    def alarms(self) -> list[str]:
        """One sentence for each."""
        found = [
            f"burstd fails on {subject.replace(':', ' ', 1)} ({hold.step}: {hold.error}): it is left alone until it "
            "changes or systemctl reload burstd; the journal has the traceback"
            for subject, hold in sorted(self._holds.items())
        ]
        more = [f"and on {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return [*found[:_SHOWN], *more]


def _inputs(snapshot: Snapshot, slurm: SlurmView) -> dict[str, object]:
    """What each subject is made from."""
    found: dict[str, object] = {isolation.cloud(name): view for name, view in snapshot.clouds.items()}
    claims = {c.slot: c for c in (*snapshot.claims, *snapshot.storage)}
    found |= {isolation.node(name): (slurm.nodes.get(name), claims.get(name)) for name in (*slurm.nodes, *claims)}
    found |= {isolation.job(job_id): data for job_id, data in snapshot.data.items()}
    found |= {isolation.job(job.id): (job, snapshot.data.get(job.id)) for job in slurm.jobs}
    return found
