"""How the data of each job stands, for decisions on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from burstd.domain.slurm.job import Job
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging, StagingView
from burstd.domain.units import size_text
from burstd.planner.staging.transfer_schedule import TransferRates, ready_at
from burstd.staging.controller.decision import has_undelivered_output
from burstd.staging.controller.job_runs import StagingRun
from burstd.staging.controller.tasks import MeterReading
from burstd.transfer.privsep.errors import printable

_OUTPUT_STATES = (S.COLLECTING, S.DELIVERING)
_BEFORE_END_STATES = (S.WAITING, S.UPLOADING, S.STAGED, S.FETCHING, S.HELD)
STALLED_AFTER_S = 120.0
"""Input that has not moved for so long comes nobody knows when."""


def data_views(
    rows: Sequence[Staging],
    run_of: Callable[[str], StagingRun],
    rates: TransferRates,
    now: float,
    ended: Callable[[Staging, StagingRun], float],
    contain_errors: Callable[[str], AbstractContextManager[None]] = lambda _job_id: nullcontext(),
) -> dict[str, StagingView]:
    """By the job's id in the queue, and by its number where that is another. ``ended``: when a job's output was due.

    ``each``: within what a job is looked at. Of one for which that fails there is what its record says.
    """
    found: dict[str, StagingView] = {}
    queued_bytes = 0
    for row in sorted(rows, key=lambda r: r.created):
        # Output that is owed keeps its nodes, whether somebody is at it or not.
        state = S(row.resume) if has_undelivered_output(row) else row.state
        view = StagingView(
            state, 0.0, row.nodes, row.since, row.error, 0.0, row.store, row.bytes_in, 0,
            checkpoint=checkpoint_text(row),
            checkpoint_taken=row.checkpoints[-1].taken if row.checkpoints else 0.0,
            scratch=row.directives.all_scratch_bytes,
        )  # fmt: skip
        # The first name is the one that people are told.
        found[row.name] = found[row.job_id] = view
        with contain_errors(row.job_id):
            run = run_of(row.job_id)
            ready, rate = 0.0, rates.rate(row.store, "in")
            size, left, activity = run.cycle.input_bytes or 0, 0, ""
            if row.state is S.WAITING:
                # What failed, or waits for another job, has no time at which it will be there.
                ready = ready_at(now, size, queued_bytes, rate) if size and not row.error else 0.0
                left = size
            elif row.state is S.UPLOADING:
                reading = run.task_progress("in")
                left = max(size - reading.done, 0) if reading else size
                activity = reading.activity if reading else ""
                ready = ready_at(now, left, 0, rate) if _is_progressing(row, reading) and not activity else 0.0
            queued_bytes += left
            over = ended(row, run) if state in _OUTPUT_STATES else 0.0
            view = replace(
                view, ready_at=ready, activity=activity, ended=over, size=size or row.bytes_in, bytes_left=left,
                last_checkpoint_until=0.0 if run.cycle.checkpoint.last_done else run.cycle.checkpoint.last_until,
            )  # fmt: skip
            for job_id in {row.job_id, run.facts.queue_id if run.facts else row.job_id}:
                found[job_id] = view
    return found


def checkpoint_text(row: Staging) -> str:
    """How a job's checkpoints stand, for a person; empty: it names none."""
    if row.directives.checkpoint is None:
        return ""
    newest = row.checkpoints[-1] if row.checkpoints else None
    stored = f"checkpoint {printable(newest.path)} has {size_text(newest.size)}" if newest else "it has no checkpoint"
    return f"{stored}; {row.checkpoint_error}" if row.checkpoint_error else stored


def unrecorded_stage_outs(
    found: Mapping[str, StagingView], staging_out: Iterable[tuple[Job, float]]
) -> dict[str, StagingView]:
    """Jobs that stage out, and since when, of which or of whose nodes the record does not know: they are not let go."""
    news = {}
    for job, since in staging_out:
        known = found.get(job.id)
        if known is None or known.state in _BEFORE_END_STATES or not set(job.node_list) <= set(known.nodes):
            news[job.id] = StagingView(S.COLLECTING, 0.0, job.node_list, since, ended=since)
    return news


def _is_progressing(row: Staging, reading: MeterReading | None) -> bool:
    """Whether input that is being sent gets on: where the last try failed, this one must have sent something first."""
    if reading is None:
        return not row.error
    return reading.still_s < STALLED_AFTER_S and bool(reading.sent or not row.error)
