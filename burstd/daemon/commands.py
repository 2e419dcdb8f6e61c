"""Carries out what a person asked through the control interface, in the deciding thread."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from burstd.daemon.project_commands import ProjectCommands
from burstd.daemon.settings_in_force import PolicyReloader
from burstd.db import Store
from burstd.domain.clock import Clock
from burstd.domain.cloud.quoting import one_line
from burstd.domain.command import (
    ChangeProject,
    ClearPin,
    ClearReference,
    Command,
    CommandResult,
    Confirm,
    DeleteProject,
    DiscardOutput,
    DrainSlots,
    Evict,
    ForgetMachines,
    Pause,
    PlanNow,
    QuoteJobs,
    ReleaseSlots,
    Reload,
    RemoveVolume,
    Resume,
    RetryStage,
    SetPin,
    SetReference,
    StageCommand,
    TryPolicies,
    WhatIf,
)
from burstd.domain.snapshot import Pin
from burstd.node.reference import REFERENCE_KEY, Reference
from burstd.node.validator import SlurmNodeValidator
from burstd.reconciler.reconciler import PAUSED_KEY, Reconciler
from burstd.runtime.clock import CLOCK_TRUSTED_KEY, clock_alarm

log = structlog.get_logger(__name__)


class CommandHandler:
    """One method a kind of command. Raises the store's errors and SchedulerUnavailable."""

    def __init__(
        self,
        store: Store,
        reconciler: Reconciler,
        clock: Clock,
        policies: PolicyReloader,
        validator: SlurmNodeValidator,
        run_stage_command: Callable[[StageCommand], CommandResult] | None = None,
    ) -> None:
        self._projects = ProjectCommands(store, clock, policies, lambda: reconciler.latest and reconciler.latest[0])
        self._store = store
        self._reconciler = reconciler
        self._clock = clock
        self._policies = policies
        self._validator = validator
        self._run_stage_command = run_stage_command

    def execute(self, command: Command) -> CommandResult:
        """Executes the command and returns its result in words."""
        log.info("command", command=type(command).__name__, by=command.by)
        match command:
            case SetPin():
                return self._set_pin(command)
            case ClearPin():
                count = self._store.remove_scale_overrides(command.pool, command.by)
                text = f"pool {command.pool} is no longer pinned" if count else f"pool {command.pool} was not pinned"
                return CommandResult(text, changed=bool(count))
            case DrainSlots():
                return self._drain_slots(command)
            case ReleaseSlots():
                freed = self._store.undrain_slots(command.slots, command.by)
                names = ", ".join(held.slot for held in freed)
                return CommandResult(f"{names}: back in use" if freed else "no slot was drained", changed=bool(freed))
            case ForgetMachines():
                return self._forget_machines(command)
            case SetReference():
                return self._set_reference(command)
            case ClearReference():
                return self._clear_reference(command.by)
            case Pause():
                changed = self._store.metadata(PAUSED_KEY) != command.reason
                self._store.set_metadata(PAUSED_KEY, command.reason, command.by)
                return CommandResult(
                    "no node is booted, and no wanted node is terminated, until burstctl unhold", changed=changed
                )
            case Resume():
                changed = bool(self._store.metadata(PAUSED_KEY))
                self._store.set_metadata(PAUSED_KEY, "", command.by)
                return CommandResult("burstd goes on" if changed else "burstd was not on hold", changed=changed)
            case Confirm(what):
                return self._confirm(what, command.by)
            case PlanNow():
                return CommandResult("what the next loop would do", changed=False, dry_run=self._reconciler.preview())
            case Reload():
                return self._policies.reload(command.by)
            case TryPolicies():
                return self._policies.dry_run()
            case WhatIf(job_id):
                found = self._reconciler.what_if(job_id)
                return CommandResult("what would start the job", changed=False, option_changes=found)
            case QuoteJobs(jobs, usable):
                quotes = self._reconciler.quote_jobs(jobs, usable)
                return CommandResult("what the job would meet", changed=False, quotes=quotes)
            case ChangeProject():
                return self._projects.change(command)
            case DeleteProject():
                return self._projects.delete(command)
            case RetryStage() | DiscardOutput() | Evict() | RemoveVolume():
                if self._run_stage_command is None:
                    text = "jobs' data is not staged: burstd.toml has no table [staging]"
                    return CommandResult(text, done=False, changed=False)
                return self._run_stage_command(command)

    def _forget_machines(self, command: ForgetMachines) -> CommandResult:
        texts = []
        if command.places:
            self._store.forget_machines(command.places, command.by)
            texts.append(f"{', '.join(command.places)}: past machines do not count any more")
        for key, cause in command.breakers:
            self._store.clear_breakers(command.by, key, cause)
        if command.breakers:
            closed = ", ".join(f"{key} ({cause})" for key, cause in command.breakers)
            texts.append(f"circuit breakers closed: {closed}")
        return CommandResult("; ".join(texts))

    def _confirm(self, what: str, by: str) -> CommandResult:
        if what == "record":
            changed = bool(self._reconciler.confirm_record(by))
            return CommandResult("the record is confirmed" if changed else "nothing to confirm", changed=changed)
        wrong, off = self._reconciler.head_clock.why_wrong(), clock_alarm(self._clock.wall(), self._clock.now())
        self._reconciler.head_clock.confirm()
        if off:
            self._store.set_metadata(CLOCK_TRUSTED_KEY, "yes", by)
            return CommandResult("burstd accepts the system clock after systemctl restart burstd")
        return CommandResult("the clock is confirmed" if wrong else "nothing to confirm", changed=bool(wrong))

    def _set_pin(self, command: SetPin) -> CommandResult:
        pool = self._reconciler.config.pools.get(command.pool)
        if pool is None:
            return CommandResult(f"there is no pool {command.pool} any more", done=False, changed=False)
        if command.nodes > len(pool.slots):
            most = len(pool.slots)
            return CommandResult(
                f"pool {command.pool} has only {most} slots, not {command.nodes}", done=False, changed=False
            )
        now = self._clock.now()
        pin = Pin(command.pool, command.nodes, command.kind, command.until, command.by, now)
        self._store.set_scale_override(pin)
        bound_text = {"exact": "exactly", "floor": "at least", "ceiling": "at most"}[command.kind]
        ends = "" if command.until is None else f" for {_span(command.until - now)}"
        return CommandResult(f"pool {command.pool} has {bound_text} {command.nodes} nodes{ends}")

    def _drain_slots(self, command: DrainSlots) -> CommandResult:
        known = {slot for pool in self._reconciler.config.pools.values() for slot in pool.slots}
        unknown = sorted(set(command.slots) - known)
        if unknown:
            return CommandResult(f"{', '.join(unknown)}: not in any pool", done=False, changed=False)
        held = self._store.drain_slots(command.slots, command.by, command.reason)
        names = ", ".join(command.slots)
        return CommandResult(
            f"{names}: drained; burstd terminates the machine when its jobs have ended", changed=bool(held)
        )

    def _set_reference(self, command: SetReference) -> CommandResult:
        try:
            reference = Reference.from_answer(command.node, self._clock.now(), command.answer)
        except ValueError as error:
            return CommandResult(str(error), done=False, changed=False)
        seen = ", ".join(f"{name} {value}" for name, value in reference.summary().items())
        with self._store.batch():
            self._store.set_metadata(REFERENCE_KEY, reference.to_record(), command.by, logged=False)
            self._store.log_event("reference", new=reference.node, reason=one_line(seen), cause=command.by)
        self._validator.reference = reference
        text = f"machines are compared with {reference.node} from now on"
        return CommandResult("\n".join([text, *(f"warning: {one}" for one in self._validator.reference_warnings())]))

    def _clear_reference(self, by: str) -> CommandResult:
        was = self._validator.reference
        if was is None:
            return CommandResult("there was no reference", changed=False)
        with self._store.batch():
            self._store.set_metadata(REFERENCE_KEY, "", by, logged=False)
            self._store.log_event("reference", old=was.node, reason="taken back", cause=by)
        self._validator.reference = None
        return CommandResult(f"machines are no longer compared with {was.node}")


def _span(seconds: float) -> str:
    """A length of time for a person: ``90 s``, ``15 min``, ``2 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
