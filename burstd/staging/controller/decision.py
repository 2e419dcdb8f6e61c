"""What Slurm's word means for the data of a job, and what its hooks answer. Pure: reads the record and the run."""

from __future__ import annotations

from enum import Enum, auto

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.slurm.hooks.stage_server import StageReply
from burstd.staging.controller.job_runs import OUTPUT_HOOKS, StagingRun

OK_REPLY = StageReply("ok")
DEALLOCATED_REPLY = StageReply("refused", "its nodes are gone: Slurm starts the job again, unless that was not wanted")
"""For a pre_run: an ``ok`` would leave a requeued job pending for good, for its data would count as a running job's."""
REQUEUED = "REQUEUED"
"""As a job's last state: it will start again."""
_OUTPUT_STATES = (S.FETCHED, S.COLLECTING, S.DELIVERING)
INPUT_HOOKS = ("data_in", "test_data_in")
_END_STATE_NAMES = {
    3: "COMPLETED", 4: "CANCELLED", 5: "FAILED", 6: "TIMEOUT", 7: "NODE_FAIL", 8: "PREEMPTED", 9: "BOOT_FAIL",
    10: "DEADLINE", 11: "OUT_OF_MEMORY",
}  # fmt: skip
"""enum job_states in slurm.h, the base states that are an end."""
_STATE_BASE = 256
"""What lies above in a job's state are flags."""
START_HOOKS = ("setup", *INPUT_HOOKS, "pre_run")
"""Hooks of a job that is to have its input."""


class StagingDecision(Enum):
    """Where the data of a job goes."""

    CONTINUE = auto()
    """On its way."""
    COLLECT = auto()
    """The job has stopped: its output is due."""
    DISCARD_OUTPUT = auto()
    """Its output is not wanted."""
    CLEAR = auto()
    """Nothing of it is needed."""
    RECOVER = auto()
    """It has run, and the record does not know that."""
    SUPERSEDED = auto()
    """The record is of a run before the one whose output is due."""


def has_undelivered_output(row: Staging) -> bool:
    """Whether a held one has output that is not home."""
    return row.state is S.HELD and row.resume in (S.COLLECTING, S.DELIVERING)


def is_lasting_hold(row: Staging) -> bool:
    """Whether a job was held when it had its nodes, and is not to get others before a person has it tried again."""
    return row.state in (S.HELD, S.CLEARED) and row.resume == S.FETCHING


def output_requested(run: StagingRun) -> bool:
    """Whether Slurm asks for its output."""
    return any(hook in run.waiting_hooks for hook in OUTPUT_HOOKS)


def staging_decision(row: Staging, run: StagingRun) -> StagingDecision:
    """``run`` must be fresh."""
    life = run.cycle
    if row.state in _OUTPUT_STATES or has_undelivered_output(row):
        # A hurried teardown tells that its owner gives the output up, unless the job goes on: then Slurm starts it
        # over by itself, and the hurry is not about this run.
        if (
            life.hurry
            and not run.queued
            and not life.restarted
            and (output_requested(run) or row.job_state != REQUEUED)
        ):
            return StagingDecision.DISCARD_OUTPUT
        if run.ran_on_other_nodes(row):
            return StagingDecision.SUPERSEDED
        if row.state is S.FETCHED and (
            life.torn_down
            or life.restarted
            or output_requested(run)
            or not run.active
            or run.starts_on_other_nodes(row)
        ):
            return StagingDecision.COLLECT
        return StagingDecision.CONTINUE
    if output_requested(run) and not run.unknown_to_slurm and row.state is not S.DELIVERED:
        return StagingDecision.RECOVER
    if row.state is S.DELIVERED and run.ran_on_other_nodes(row):
        return StagingDecision.SUPERSEDED
    if row.state is S.HELD:
        # Slurm tears a job down whose input was refused, and holds it: the reason stays on record meanwhile.
        return StagingDecision.CLEAR if life.restarted or run.ended else StagingDecision.CONTINUE
    if row.state is S.FETCHING and (run.queued or run.starts_on_other_nodes(row)):
        return StagingDecision.CLEAR
    return StagingDecision.CLEAR if life.torn_down or life.restarted or run.ended else StagingDecision.CONTINUE


def lost_teardown_advice(run: StagingRun) -> str:
    """What to do where Slurm killed the teardown of a job together with the hook that it was cancelled in.

    Slurm does not call it again before it is started anew. Empty: it was called.
    """
    if run.state != "CANCELLED" or run.cycle.torn_down or run.cycle.restarted:
        return ""
    commands = f"'scontrol requeuehold {run.job_id}', then 'scancel {run.job_id}'"
    return f"it was cancelled, and Slurm has lost its teardown; {commands} end it; repeat them while the job is there"


def end_state_name(state_number: str) -> str:
    """The name of an end that a hook tells as a number; empty: it is none."""
    return _END_STATE_NAMES.get(int(state_number) % _STATE_BASE, "") if state_number.isdigit() else ""


def job_end_state(row: Staging, run: StagingRun) -> str:
    """How a job that has stopped ended, by Slurm's name; empty: nobody knows."""
    if run.queued or run.cycle.restarted or run.starts_on_other_nodes(row):
        return REQUEUED
    return run.cycle.end_state or run.state


def begins_next_cycle(row: Staging, run: StagingRun) -> bool:
    """Whether a hook that waits tells that Slurm has begun another life of the job than the one on record."""
    output_left = row.state in (S.COLLECTING, S.DELIVERING, S.DELIVERED) or has_undelivered_output(row)
    if any(hook in run.waiting_hooks for hook in INPUT_HOOKS) and (output_left or row.state in (S.FETCHING, S.FETCHED)):
        return True
    if "pre_run" in run.waiting_hooks and (output_left or (row.state is S.FETCHED and run.starts_on_other_nodes(row))):
        return True
    # A Slurm that lost its newest jobs gives their numbers again.
    other = run.facts is not None and run.facts_of_record(row) is None
    changed = run.directives is not None and run.directives != row.directives
    return (other or changed) and any(hook in run.waiting_hooks for hook in START_HOOKS)


def hook_reply(row: Staging | None, run: StagingRun, hook: str, env: dict[str, str]) -> StageReply | None:
    """The answer for a hook that waits; None: it waits on."""
    if hook in OUTPUT_HOOKS:
        # Never refused: Slurm would forget the job, and ask no more.
        if row is None or (
            run.unknown_to_slurm and row.state not in _OUTPUT_STATES and not has_undelivered_output(row)
        ):
            return OK_REPLY if run.fresh else None
        return OK_REPLY if row.state is S.DELIVERED and run.fresh and not run.ran_on_other_nodes(row) else None
    if row is None:
        if not run.fresh:
            return None
        return OK_REPLY if hook == "setup" else StageReply("refused", _missing_record_reason(run))
    if hook == "setup":
        # Where another life has to end first, data_in waits for that.
        return OK_REPLY
    if not run.fresh:
        return None
    if row.state is S.HELD:
        if has_undelivered_output(row):
            return StageReply("refused", f"what the job left in its last run is not home: {row.error}")
        return None if run.cycle.restarted else StageReply("refused", row.error)
    if run.cycle.restarted or run.cycle.torn_down:
        return None
    if hook in INPUT_HOOKS:
        return StageReply("ok", env=env) if row.state is S.STAGED else None
    if row.state is S.FETCHING and run.cycle.checkpoint.requeue_refused:
        return StageReply("refused", row.checkpoint_error)
    return OK_REPLY if row.state is S.FETCHED and not run.starts_on_other_nodes(row) else None


def _missing_record_reason(run: StagingRun) -> str:
    if run.ended:
        return "Slurm does not want to start this job any more"
    return "burstd does not know the job's script: requeue the job"
