"""An error about one job holds that job, with the reason, and never ends the loop."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import structlog

from burstd.db import ChangeRefused, Store, StoreError
from burstd.domain.clock import Clock
from burstd.domain.staging import STAGE_TRANSITIONS, Staging
from burstd.domain.staging import StageState as S

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 2.0
MAX_PAUSE_S = 300.0
_BEFORE_RUN_STATES = (S.WAITING, S.UPLOADING, S.STAGED, S.FETCHING)


class StagingQuarantine:
    """The staging controller does everything for one job within ``job``."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._pauses: dict[str, tuple[float, float]] = {}
        """How long a job is skipped, and until when."""
        self._reasons: dict[str, str] = {}
        self.failure_count = 0
        """How often a step broke."""

    def hold_staging(self, row: Staging, error: str, *, lasting: bool = False, by_owner: bool = False) -> Staging:
        """Until a person has it tried again. ``by_owner``: the job's owner has to mend something.

        ``lasting``: of a job that has nodes, also when Slurm, which starts a job again after a refused pre_run, asks
        for its input once more. Others are tried again by that.
        """
        may_repeat = row.state in _BEFORE_RUN_STATES and not (lasting and row.state is S.FETCHING)
        resume = S.WAITING if may_repeat else row.state
        report = log.info if by_owner else log.error
        report("a job's data is held", job=row.job_id, state=row.state.value, error=error)
        return self._store.transition_staging(
            row.job_id, row.state, S.HELD, error, error=error, resume=resume.value,
            attempts=0 if by_owner else max(1, row.attempts),
        )  # fmt: skip

    @contextmanager
    def contain_errors(self, job_id: str) -> Iterator[None]:
        """What is raised within is about this job: it is held, and skipped for a while that grows.

        Raises StoreError where the record as a whole cannot be had.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, ChangeRefused):
                raise
            self.failure_count += 1
            if self.quarantine_reason(job_id):
                return
            log.exception("a step for a job's data broke", job=job_id)
            self._quarantine_job(
                job_id, f"burstd failed at its data ({type(error).__name__}: {str(error)[:200]}); see its log"
            )

    def quarantine_reason(self, job_id: str) -> str:
        """Why a job is skipped now; empty: it is not."""
        _, until = self._pauses.get(job_id, (0.0, 0.0))
        return self._reasons[job_id] if self._clock.now() < until else ""

    def next_release(self, now: float) -> float:
        """When the next of them is looked at again."""
        return min((until for _, until in self._pauses.values() if until > now), default=float("inf"))

    def forget_except(self, alive: AbstractSet[str]) -> None:
        """Forgets jobs that are not there any more."""
        for job_id in [job_id for job_id in self._pauses if job_id not in alive]:
            self.lift(job_id)

    def lift(self, job_id: str) -> None:
        """A person has it tried again."""
        self._pauses.pop(job_id, None)
        self._reasons.pop(job_id, None)

    def _quarantine_job(self, job_id: str, reason: str) -> None:
        previous_pause, _ = self._pauses.get(job_id, (0.0, 0.0))
        pause = min(2 * previous_pause, MAX_PAUSE_S) or FIRST_PAUSE_S
        self._pauses[job_id], self._reasons[job_id] = (pause, self._clock.now() + pause), reason
        try:
            row = self._store.find_staging(job_id)
            if row is not None and row.state is S.FETCHED:
                # The job may be at work: its output is fetched when it has ended, whatever a person does before.
                self._store.update_staging(job_id, reason, error=reason)
            elif row is not None and S.HELD in STAGE_TRANSITIONS[row.state]:
                self.hold_staging(row, reason)
        except Exception as error:  # noqa: BLE001  the pause holds it as well, and after it this is tried again
            log.error("a job whose data broke is not on record as held", job=job_id, error=str(error))
