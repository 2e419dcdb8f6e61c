"""What Slurm's word means for the data of a job, and what its hooks are told. Pure: reads the record and the run."""

from __future__ import annotations

from enum import Enum, auto

from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.slurm.hooks.stage_server import StageReply
from burstd.staging.controller.job_runs import AFTER, Run

OK = StageReply("ok")
DEALLOCATED = StageReply("refused", "its nodes are gone: Slurm starts the job again, unless that was not wanted")
"""For a pre_run: an ``ok`` would leave a requeued job pending for good, for its data would count as a running job's."""
REQUEUED = "REQUEUED"
"""As a job's last state: it will start again."""
_OUTPUT = (S.PLACED, S.COLLECTING, S.BRINGING)
BEFORE = ("data_in", "test_data_in")
_ENDED_AS = {
    3: "COMPLETED", 4: "CANCELLED", 5: "FAILED", 6: "TIMEOUT", 7: "NODE_FAIL", 8: "PREEMPTED", 9: "BOOT_FAIL",
    10: "DEADLINE", 11: "OUT_OF_MEMORY",
}  # fmt: skip
"""enum job_states in slurm.h, the base states that are an end."""
_BASE = 256
"""What lies above in a job's state are flags."""
STARTING = ("setup", *BEFORE, "pre_run")
"""Hooks of a job that is to have its input."""


class Fate(Enum):
    """Where the data of a job goes."""

    ON = auto()
    """On its way."""
    COLLECT = auto()
    """The job has stopped: its output is due."""
    GIVE_UP = auto()
    """Its output is not wanted."""
    CLEAR = auto()
    """Nothing of it is needed."""
    RAN = auto()
    """It has run, and the record does not know that."""
    OTHER = auto()
    """The record is of a run before the one whose output is due."""


def owed(row: Staging) -> bool:
    """Whether a held one has output that is not home."""
    return row.state is S.HELD and row.resume in (S.COLLECTING, S.BRINGING)


def ending(run: Run) -> bool:
    """Whether Slurm asks for its output."""
    return any(hook in run.hooks for hook in AFTER)


def fate(row: Staging, run: Run) -> Fate:
    """``run`` must be fresh."""
    life = run.life
    if row.state in _OUTPUT or owed(row):
        # A hurried teardown tells that its owner gives the output up, unless the job goes on: then Slurm starts it
        # over by itself, and the hurry is not about this run.
        if life.hurry and not run.queued and not life.again and (ending(run) or row.job_state != REQUEUED):
            return Fate.GIVE_UP
        if run.ran_elsewhere(row):
            return Fate.OTHER
        if row.state is S.PLACED and (life.over or life.again or ending(run) or not run.active or run.elsewhere(row)):
            return Fate.COLLECT
        return Fate.ON
    if ending(run) and not run.unknown and row.state is not S.HOME:
        return Fate.RAN
    if row.state is S.HOME and run.ran_elsewhere(row):
        return Fate.OTHER
    if row.state is S.HELD:
        # Slurm tears a job down whose input was refused, and holds it: the reason stays on record meanwhile.
        return Fate.CLEAR if life.again or run.ended else Fate.ON
    if row.state is S.PLACING and (run.queued or run.elsewhere(row)):
        return Fate.CLEAR
    return Fate.CLEAR if life.over or life.again or run.ended else Fate.ON


def lost_teardown(run: Run) -> str:
    """What to do where Slurm killed the teardown of a job together with the hook that it was cancelled in.

    Slurm does not call it again before it is started anew. Empty: it was called.
    """
    if run.state != "CANCELLED" or run.life.over or run.life.again:
        return ""
    commands = f"'scontrol requeuehold {run.job_id}', then 'scancel {run.job_id}'"
    return f"it was cancelled, and Slurm has lost its teardown; {commands} end it where it shows up for ever"


def ended_as(told: str) -> str:
    """The name of an end that a hook tells as a number; empty: it is none."""
    return _ENDED_AS.get(int(told) % _BASE, "") if told.isdigit() else ""


def outcome(row: Staging, run: Run) -> str:
    """How a job that has stopped ended, by Slurm's name; empty: nobody knows."""
    if run.queued or run.life.again or run.elsewhere(row):
        return REQUEUED
    return run.life.ended_as or run.state


def starts_over(row: Staging, run: Run) -> bool:
    """Whether a hook that waits tells that Slurm has begun another life of the job than the one on record."""
    left = row.state in (S.COLLECTING, S.BRINGING, S.HOME) or owed(row)
    if any(hook in run.hooks for hook in BEFORE) and (left or row.state in (S.PLACING, S.PLACED)):
        return True
    if "pre_run" in run.hooks and (left or (row.state is S.PLACED and run.elsewhere(row))):
        return True
    # A Slurm that lost its newest jobs gives their numbers again.
    other = run.facts is not None and run.facts_of(row) is None
    changed = run.directives is not None and run.directives != row.directives
    return (other or changed) and any(hook in run.hooks for hook in STARTING)


def reply(row: Staging | None, run: Run, hook: str, env: dict[str, str]) -> StageReply | None:
    """What a hook that waits is told now; None: it waits on."""
    if hook in AFTER:
        # Never refused: Slurm would forget the job, and ask no more.
        if row is None or (run.unknown and row.state not in _OUTPUT and not owed(row)):
            return OK if run.fresh else None
        return OK if row.state is S.HOME and run.fresh and not run.ran_elsewhere(row) else None
    if row is None:
        if not run.fresh:
            return None
        return OK if hook == "setup" else StageReply("refused", _why_none(run))
    if hook == "setup":
        # Where another life has to end first, data_in waits for that.
        return OK
    if not run.fresh:
        return None
    if row.state is S.HELD:
        if owed(row):
            return StageReply("refused", f"what the job left in its last run is not home: {row.error}")
        return None if run.life.again else StageReply("refused", row.error)
    if run.life.again or run.life.over:
        return None
    if hook in BEFORE:
        return StageReply("ok", env=env) if row.state is S.STAGED else None
    return OK if row.state is S.PLACED and not run.elsewhere(row) else None


def _why_none(run: Run) -> str:
    if run.ended:
        return "Slurm does not want to start this job any more"
    return "burstd does not know the job's script: requeue the job"
