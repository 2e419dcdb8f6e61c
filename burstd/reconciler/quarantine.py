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

MIN_QUARANTINE_S = 60.0
"""Seconds before a subject is tried again, even if it changes with every poll."""
STEP_ALARM_S = 600.0
"""How long an alarm of a step without a subject stands after it failed last."""
_MAX_SHOWN = 8
LOOP_ERRORS = (SchedulerUnavailable, StoreError)
"""Errors of the whole, not of a subject: the loop deals with them."""


@dataclass(slots=True)
class _Entry:
    since: float
    step: str
    error: str
    input: object = None
    """What it was made from when it failed; None: not noted so far."""


class Quarantine:
    """Used in the deciding thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def add_subject(self, subject: str, step: str, error: Exception) -> None:
        """Leaves the subject alone from now on: ``job:ID``, ``node:NAME``, ``cloud:NAME``, or the name of a step."""
        log.error("left alone: burstd failed on it", subject=subject, step=step, exc_info=error)
        self._entries[subject] = _Entry(self._clock.now(), step, f"{type(error).__name__}: {error}"[:200])

    @contextmanager
    def contain_errors(self, step: str, *subjects: str) -> Iterator[None]:
        """Keeps an error of these subjects from being one of all."""
        try:
            yield
        except LOOP_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  logged with its traceback, and an alarm until it is over
            for subject in subjects:
                self.add_subject(subject, step, error)

    def __contains__(self, subject: object) -> bool:
        return subject in self._entries

    def quarantined_subjects(self, snapshot: Snapshot) -> frozenset[str]:
        """The subjects that are left alone; those whose input has changed are not any more."""
        if not self._entries:
            return frozenset()
        if not isinstance(snapshot.slurm, SlurmView):
            return frozenset(self._entries)
        now, inputs = self._clock.now(), _subject_inputs(snapshot, snapshot.slurm)
        for subject, entry in [*self._entries.items()]:
            seen = inputs.get(subject)
            if entry.input is None:
                entry.input = seen
            is_subject = subject.partition(":")[0] in ("job", "node", "cloud")
            over = (
                seen != entry.input and now - entry.since >= MIN_QUARANTINE_S
                if is_subject
                else now - entry.since >= STEP_ALARM_S
            )
            if over or (is_subject and seen is None and now - entry.since >= MIN_QUARANTINE_S):
                log.info("no longer left alone", subject=subject)
                del self._entries[subject]
        return frozenset(self._entries)

    def clear(self) -> None:
        """All are tried again."""
        self._entries.clear()

    def alarms(self) -> list[str]:
        """One sentence for each."""
        found = [
            f"burstd fails on {subject.replace(':', ' ', 1)} ({entry.step}: {entry.error}): it is left alone until it "
            "changes or systemctl reload burstd; the journal has the traceback"
            for subject, entry in sorted(self._entries.items())
        ]
        more = [f"and on {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
        return [*found[:_MAX_SHOWN], *more]


def _subject_inputs(snapshot: Snapshot, slurm: SlurmView) -> dict[str, object]:
    """What each subject is made from."""
    found: dict[str, object] = {isolation.cloud_subject(name): view for name, view in snapshot.clouds.items()}
    claims = {c.slot: c for c in (*snapshot.claims, *snapshot.storage_claims)}
    found |= {
        isolation.node_subject(name): (slurm.nodes.get(name), claims.get(name)) for name in (*slurm.nodes, *claims)
    }
    found |= {isolation.job_subject(job_id): data for job_id, data in snapshot.data.items()}
    found |= {isolation.job_subject(job.id): (job, snapshot.data.get(job.id)) for job in slurm.jobs}
    return found
