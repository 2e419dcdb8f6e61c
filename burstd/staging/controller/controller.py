"""The staging controller: takes and answers Slurm's hooks, and advances the data of each job. In the deciding thread.

All that matters is in the store; what is kept here is found out again after a crash: transfers that were under way
begin anew and skip what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import structlog

from burstd.db import Store
from burstd.domain.claim import Claim
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import Directives, Staging, StagingView
from burstd.domain.staging import StageState as S
from burstd.planner.staging.transfer_schedule import PendingTransfer, TransferLimits, next_transfers
from burstd.runtime.workers import Workers
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.decision import (
    DEALLOCATED_REPLY,
    INPUT_HOOKS,
    START_HOOKS,
    StagingDecision,
    begins_next_cycle,
    end_state_name,
    has_undelivered_output,
    hook_reply,
    is_lasting_hold,
    job_end_state,
    lost_teardown_advice,
    output_requested,
    staging_decision,
)
from burstd.staging.controller.isolation import StagingQuarantine
from burstd.staging.controller.job_runs import (
    ACTIVE_STATES,
    OUTPUT_HOOKS,
    QUEUED_STATES,
    HookAnswer,
    StagingCycle,
    StagingRun,
    StagingRuns,
)
from burstd.staging.controller.recovery import record_unseen_run
from burstd.staging.controller.snapshot_view import data_views, unrecorded_stage_outs
from burstd.staging.controller.tasks import MeterReading, Transfers
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.checkpoints import CheckpointDispatcher
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.moves import RETRY_S, TransferDispatcher, reachable_machines
from burstd.staging.movement.shared_scratch import SharedScratchDispatcher
from burstd.staging.submission.container import ContainerRules, container_variables
from burstd.staging.submission.job_chains import OutputDependencies
from burstd.staging.submission.quota import (
    EvictTrees,
    FindQuotaUsage,
    eviction_text,
    hold_text,
    keep_all,
    no_quota,
    over_quota,
    trees_to_evict,
)
from burstd.staging.volumes.turns import VolumeTurns
from burstd.transfer.privsep.client import Account, account

log = structlog.get_logger(__name__)

_MAX_QUERY_INTERVAL_S = 30.0
NOBODY: Mapping[str, float] = MappingProxyType({})
_AT_WORK = (ACTIVE_STATES | QUEUED_STATES) - {"COMPLETING"}
"""Jobs that write nothing more are in other states."""


@dataclass(frozen=True, slots=True)
class StageRules:
    """What the settings say. Times in seconds."""

    folders: JobFolders
    store: str
    limits: TransferLimits
    retries: int = 8
    containers: ContainerRules = field(default_factory=ContainerRules)


class StagingController:
    """``hear`` takes a hook's call, ``step`` brings everything on by what is due, ``views`` says how things stand."""

    def __init__(
        self,
        *,
        store: Store,
        workers: Workers,
        clock: Clock,
        transfers: Transfers,
        pools: Callable[[], Mapping[str, Pool]],
        rules: StageRules,
        find_account: Callable[[str], Account] = account,
        quotas: FindQuotaUsage = no_quota,
        evict: EvictTrees = keep_all,
        volumes: VolumeTurns | None = None,
    ) -> None:
        """``accounts`` tells of a user, or raises UserWorkerError."""
        self.rules = rules
        self._store = store
        self._workers = workers
        self._clock = clock
        self._transfers = transfers
        self._pools = pools
        self._runs = StagingRuns()
        self._quarantine = StagingQuarantine(store, clock)
        self._dispatcher = TransferDispatcher(
            store, workers, clock, transfers, lambda: self.rules.retries, self._quarantine
        )
        self._checkpoints = CheckpointDispatcher(store, clock, transfers, self._dispatcher, quotas)
        self._output_dependencies = OutputDependencies(find_account)
        self._quotas = quotas
        self._evict = evict
        self._volumes = volumes
        self._cached_stagings: tuple[Staging, ...] | None = None
        """The records as the last step left them; None: something has changed since."""
        self._partitions: frozenset[str] = frozenset()
        self._shared_scratch = SharedScratchDispatcher(self._dispatcher, self._quarantine)
        self._rows: Mapping[str, Staging] = {row.job_id: row for row in store.stagings()}
        """The records as of the last step, by job; replaced whole."""

    # What Slurm asks.

    def handle_hook(self, call: StageCall, answer: HookAnswer) -> None:
        """One call of a hook; the answer may come much later. Only remembers: the next step acts."""
        with self._quarantine.contain_errors(call.job_id):
            self._handle_hook(call, answer)
            return
        why = self._quarantine.quarantine_reason(call.job_id)
        answer(StageReply("refused", why) if call.hook in START_HOOKS else StageReply("busy", why))

    def _handle_hook(self, call: StageCall, answer: HookAnswer) -> None:
        run = self._runs.run_of(call.job_id)
        life = run.cycle
        if call.uid is not None:
            run.hook_owner = (call.uid, call.gid)
        life.end_state = end_state_name(call.info.get("job_state", "")) or life.end_state
        match call.hook:
            case "teardown":
                life.torn_down, life.hurry, life.paused_until = True, life.hurry or call.hurry, 0.0
                # Slurm kills these at the same moment, and pre_run where the job is cancelled.
                run.drop_hooks("setup", *INPUT_HOOKS)
                run.request_query()
                answer(StageReply("ok"))
            case "setup" | "data_in" | "test_data_in" | "pre_run" | "data_out" | "test_data_out":
                if call.text:
                    run.directives = self._parse_directives(call)
                if call.hook in INPUT_HOOKS:
                    # That of a life before this one: its client is dead.
                    run.drop_hooks(*OUTPUT_HOOKS)
                # A client that asks again waits for what is under way; but a pre_run may be that of a Slurm which has
                # forgotten the one before, and the nodes that it gave.
                if not run.register_hook(call.hook, answer, self._clock.now()) or call.hook == "pre_run":
                    run.setup_seen = run.setup_seen or call.hook == "setup"
                    run.request_query()
            case _:
                answer(StageReply("ok"))

    def _parse_directives(self, call: StageCall) -> Directives:
        # Where a line has a %, Slurm gives the hooks a script of another name, with %j and the like filled in.
        directives, faults = parse_directives(
            call.text, symbols_replaced=not call.script.endswith("/script"), submitted=True
        )
        if faults:
            log.info("directives that were let in cannot be read", job=call.job_id, faults=[str(f) for f in faults])
        return directives

    def _query_slurm(self, run: StagingRun) -> None:
        """Asks Slurm about a job, elsewhere: it may hold its locks while a hook waits."""
        if run.fresh or run.query.is_busy(self._clock.now()):
            return
        query_number, user, asked_at = run.queries_wanted, run.uid, self._clock.now()
        run.query.in_flight = True

        def back(result: JobFacts | Exception | None) -> None:
            with self._quarantine.contain_errors(run.job_id):
                run.query.in_flight = False
                if isinstance(result, Exception):
                    run.query.fail(self._clock.now(), RETRY_S, _MAX_QUERY_INTERVAL_S)
                    log.warning("slurm was not heard about a job", job=run.job_id, error=str(result))
                elif result is not None and (text := run.owner_mismatch(result)):
                    run.query.due = self._clock.now() + _MAX_QUERY_INTERVAL_S
                    log.error("nothing is staged for a job", job=run.job_id, reason=text)
                    run.refuse_hooks(text, *START_HOOKS)
                else:
                    run.record_answer(result, query_number, asked_at)

        self._workers.submit("stage:slurm", lambda: self._transfers.query_job(run.job_id), back, user=user)

    # What is due.

    def step(
        self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], leaving: Mapping[str, float] = NOBODY
    ) -> float:
        """Brings on what is due and answers hooks. Returns when the next pause ends, in burstd's time.

        ``leaving``: by the id in the queue, when running jobs are requeued for others.

        Raises StoreError; what could not be written is tried again by the next step.
        """
        now = self._clock.now()
        self._cached_stagings = None
        live = self._store.stagings()
        records: dict[str, Staging | None] = {row.job_id: row for row in live}
        contain_errors = self._quarantine.contain_errors
        self._runs.forget_dead(records, now, contain_errors)
        self._quarantine.forget_except(records.keys() | {run.job_id for run in self._runs.all_runs()})
        failures_before = self._quarantine.failure_count
        if isinstance(slurm, SlurmView):
            self._runs.note_listing(slurm, {record.job_id: record for record in live}, now, contain_errors)
            for record in live:
                with contain_errors(record.job_id):
                    run = self._runs.run_of(record.job_id)
                    until = leaving.get(run.facts.queue_id if run.facts else record.job_id, 0.0)
                    self._checkpoints.note_interruption(record, run, slurm, until)
        self._refresh_pools()
        self._output_dependencies.update(live, self._output_requested, now, contain_errors)
        machines = reachable_machines(claims)
        waiting: list[PendingTransfer] = []
        moving: list[PendingTransfer] = []
        for job_id in dict.fromkeys([*records, *(run.job_id for run in self._runs.all_runs() if run.waiting_hooks)]):
            if self._quarantine.quarantine_reason(job_id):
                continue
            with contain_errors(job_id):
                run = self._runs.run_of(job_id)
                self._query_slurm(run)
                self._checkpoints.give_up_late(run)
                if run.deallocated:
                    run.answer_hooks(lambda hook: DEALLOCATED_REPLY if hook == "pre_run" else None)
                row = records[job_id] = self._advance_as_far_as_possible(records.get(job_id), run, machines)
                if row is None:
                    continue
                waiting_job = PendingTransfer(
                    id=job_id, user=row.user, size_bytes=run.cycle.input_bytes or 0, since=row.created
                )
                if row.state is S.UPLOADING:
                    moving.append(waiting_job)
                elif self._is_queued_for_upload(row, run):
                    waiting.append(waiting_job)
        for job_id in next_transfers(waiting, moving, self.rules.limits):
            with contain_errors(job_id):
                if (row := records[job_id]) is not None:
                    records[job_id] = self._upload_within_quota(
                        row, self._runs.run_of(job_id), [r for r in records.values() if r is not None]
                    )
        self._rows = {job_id: row for job_id, row in records.items() if row is not None}
        for run in self._runs.all_runs():
            if run.waiting_hooks:
                with contain_errors(run.job_id):
                    self._answer_hooks(records.get(run.job_id), run)
        if self._quarantine.failure_count == failures_before:
            self._cached_stagings = tuple(row for row in records.values() if row is not None)
        return self._next_due(now)

    def _next_due(self, now: float) -> float:
        due = float("inf")
        for run in self._runs.all_runs():
            if not self._quarantine.quarantine_reason(run.job_id):
                with self._quarantine.contain_errors(run.job_id):
                    due = min(due, run.next_due(now))
        return min(due, self._quarantine.next_release(now))

    def _upload_within_quota(self, row: Staging, run: StagingRun, records: Sequence[Staging]) -> Staging:
        others = [(other, self._runs.run_of(other.job_id).cycle) for other in records]
        usage = self._quotas(row, run.cycle.sources)
        shortage, certain = over_quota(row, run.cycle, others, usage, self._clock.now())
        if shortage is None or usage is None:
            return self._dispatcher.upload_input(row, run, image_only=self._runs_on_premises(run))
        run.cycle.paused_until = self._clock.now() + RETRY_S
        if not certain:
            return row
        if trees := trees_to_evict(row, shortage, usage, others):
            row = self._store.set_staging_reason(row.job_id, eviction_text(shortage, trees))
            self._evict(row.uid, trees)
            return row
        return self._quarantine.hold_staging(row, hold_text(row, run.cycle, shortage, usage, others), by_owner=True)

    def recorded_stagings(self) -> tuple[Staging, ...]:
        """The data of all jobs as recorded, oldest first; read once for each step. Raises StoreError."""
        if self._cached_stagings is None:
            self._cached_stagings = self._store.stagings()
        return self._cached_stagings

    def pop_out_of_space(self) -> tuple[Staging, ...]:
        """Data for which the store had no space, as it was while it moved. Each failure is reported once."""
        out_of_space = tuple(self._dispatcher.out_of_space.values())
        self._dispatcher.out_of_space.clear()
        return out_of_space

    def _refresh_pools(self) -> None:
        pools = self._pools().values()
        self._dispatcher.pool_slots = frozenset(slot for pool in pools for slot in pool.slots)
        self._partitions = frozenset(partition for pool in pools for partition in pool.partitions)

    def _advance_as_far_as_possible(
        self, row: Staging | None, run: StagingRun, machines: Mapping[str, Claim]
    ) -> Staging | None:
        """As far as the data of one job can go now."""
        for _ in S:
            after = self._advance(row, run, machines) if row is not None else self._admit(run)
            if after is row:
                break
            row = after
        return row

    def _admit(self, run: StagingRun) -> Staging | None:
        """Puts a job on record whose hooks ask for its input, or for output that is not on record."""
        facts, due = run.facts, output_requested(run)
        starts = not run.ended and any(hook in run.waiting_hooks for hook in START_HOOKS)
        if not run.fresh or run.unknown_to_slurm or facts is None or not (starts or due):
            return None
        directives = run.directives
        before = self._store.find_staging(run.job_id)
        recorded = before is not None and run.facts_of_record(before) is not None
        if due and recorded and before is not None and not run.ran_on_other_nodes(before):
            return None  # Its output is home, and nothing of it is left.
        if directives is None and before is not None and recorded:
            # Slurm does not tell the script at every hook.
            directives = before.directives
        if directives is None and not due:
            return None
        now = self._clock.now()
        new = Staging(
            job_id=run.job_id, user=facts.user, uid=facts.uid, gid=facts.gid, directives=directives or Directives(),
            state=S.WAITING, since=now, created=now, store=self.rules.store, account=facts.account,
            work_dir=facts.work_dir, array_task=facts.queue_id if "_" in facts.queue_id else "",
            reason=f"Slurm asked for its {'output' if due else 'input'}",
            # A job that never began has none: another had its number.
            checkpoints=before.checkpoints if before is not None and recorded and facts.restarts else (),
        )  # fmt: skip
        with self._store.batch():
            row = self._store.make_staging(new)
            if not due and before is not None and recorded and is_lasting_hold(before):
                row = self._quarantine.hold_staging(row, before.error, by_owner=not before.attempts)
        run.cycle, run.setup_seen = run.cycle if due else StagingCycle(), False
        return row

    def _advance(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> Staging | None:
        """One move, if any is due; the same record: none is."""
        if run.finished_tasks:
            row = self._dispatcher.record_results(row, run)
            if row.state is S.CLEARED:
                run.cycle = StagingCycle()
                run.directives = run.directives if run.waiting_hooks else None
                return None
        if not run.fresh:
            return row
        # A setup is the first hook of a life; one that finds unreported input has begun this one.
        begun, run.setup_seen = run.setup_seen and row.state not in (S.WAITING, S.UPLOADING), False
        run.cycle.restarted = run.cycle.restarted or begun or begins_next_cycle(row, run)
        match staging_decision(row, run):
            case StagingDecision.DISCARD_OUTPUT:
                return self._discard_output(row, run, "Slurm was told to hurry: its output is given up")
            case StagingDecision.COLLECT if not self._is_stopping_work(run, machines):
                return self._begin_collecting(row, run)
            case StagingDecision.CLEAR if (
                not self._is_stopping_work(run, machines) and self._clock.now() >= run.cycle.paused_until
            ):
                if lost := lost_teardown_advice(run):
                    log.warning("slurm has lost a teardown", job=run.job_id, reason=lost)
                    row = self._store.set_staging_reason(run.job_id, lost)
                self._dispatcher.remove_job_data(row, run, machines)
            case StagingDecision.RECOVER if run.facts is not None and not self._is_stopping_work(run, machines):
                return record_unseen_run(self._store, row, run.facts)
            case StagingDecision.SUPERSEDED if not self._is_stopping_work(run, machines):
                # Slurm has started it again since, so what that run left was home. The run now goes on record anew.
                reason = "Slurm asks for the output of a later run than the one on record"
                self._store.transition_staging(row.job_id, row.state, S.CLEARED, reason)
                run.cycle.entered_at.clear()
                return None
            case StagingDecision.CONTINUE if not run.tasks and self._clock.now() >= run.cycle.paused_until:
                return self._next_step(row, run, machines)
            case _:
                pass
        return row

    def _is_stopping_work(self, run: StagingRun, machines: Mapping[str, Claim]) -> bool:
        """Whether work is under way that is no longer needed; it is cancelled.

        A node that goes while it is cleared away has nothing left on it: nobody waits for its answer.
        """
        if "clear" not in run.tasks or not run.clearing_claims <= {claim.id for claim in machines.values()}:
            run.cancel_tasks()
        return bool(run.tasks)

    def _next_step(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> Staging:
        """The next step of data that is wanted, with nothing under way."""
        if self._volumes is not None and row.directives.volume is not None:
            if fault := self._volumes.hold_reason(row, run.facts.queue_id if run.facts else ""):
                return self._quarantine.hold_staging(row, fault, lasting=True, by_owner=True)
            if wait := self._volume_wait(row, run, self._volumes):
                return row if row.reason == wait else self._store.set_staging_reason(row.job_id, wait)
        match row.state:
            case S.WAITING if self._asks_for_running_job(row):
                pass
            case S.WAITING if before := self._awaited_job(row):
                run.cycle.paused_until = self._clock.now() + RETRY_S
                reason = f"its input is what job {before} leaves, which is on its way home"
                return row if row.error == reason else self._store.update_staging(row.job_id, reason, error=reason)
            case S.WAITING if self._runs_on_premises(run) and row.directives.registry_image is None:
                return self._store.transition_staging(row.job_id, S.WAITING, S.STAGED, "it runs where its data is")
            case S.WAITING if not row.directives.input_names:
                return self._store.transition_staging(row.job_id, S.WAITING, S.STAGED, "it has no input")
            case S.WAITING if run.cycle.input_bytes is None:
                self._dispatcher.measure_sources(row, run, image_only=self._runs_on_premises(run))
            case S.UPLOADING:
                return self._store.transition_staging(
                    row.job_id, S.UPLOADING, S.WAITING, "it was broken off", estimated_ready=row.estimated_ready
                )
            case S.STAGED if "pre_run" in run.waiting_hooks:
                return self._begin_fetching(row, run)
            case S.FETCHING:
                return self._dispatcher.fetch_input(
                    row, run, machines, (self._shared_scratch.share, self._checkpoints.put_back)
                )
            case S.FETCHED if self._checkpoints.is_due(row, run):
                return self._checkpoints.collect(row, run, machines, self._store.stagings())
            case S.COLLECTING:
                return self._dispatcher.collect_output(row, run, machines)
            case S.DELIVERING:
                self._dispatcher.deliver_output(row, run)
            case S.HELD if row.resume == S.COLLECTING and not self._dispatcher.nodes_with_output(row, run, machines):
                return self._store.transition_staging(
                    row.job_id, S.HELD, S.COLLECTING, "there is no node any more from which output is missing"
                )
            case _:
                pass
        return row

    def _asks_for_running_job(self, row: Staging) -> bool:
        """Whether it is being found out if a job has ended that leaves its output where this one's input comes from."""
        before = self._output_dependencies.running_job(row)
        if not before:
            return False
        run = self._runs.run_of(before)
        if run.fresh and run.asked_at <= row.created:
            run.request_query()
        return not run.fresh

    def _awaited_job(self, row: Staging) -> str:
        """The id of a job whose output is to come home before this one's input is looked at; empty: there is none."""
        before = self._output_dependencies.running_job(row)
        run = self._runs.run_of(before) if before else None
        return before if run and run.state not in _AT_WORK else self._output_dependencies.awaited_job(row)

    @staticmethod
    def _volume_wait(row: Staging, run: StagingRun, volumes: VolumeTurns) -> str:
        """Why the job's volume keeps its data from going on; empty: it does not."""
        match row.state:
            case S.STAGED if "pre_run" not in run.waiting_hooks:
                return volumes.allocation_wait(row)
            case S.FETCHING:
                return volumes.start_wait(row)
            case S.COLLECTING:
                return volumes.unmount_wait(row)
            case _:
                return ""

    def _output_requested(self, job_id: str) -> bool:
        """Whether Slurm has asked for a job's output."""
        return output_requested(self._runs.run_of(job_id))

    def _begin_fetching(self, row: Staging, run: StagingRun) -> Staging:
        """The job has nodes."""
        nodes = run.facts.nodes if run.facts else ()
        if not nodes:
            run.request_query(self._clock.now() + RETRY_S)
            return row
        unsent = any(name not in row.trees for name in row.directives.input_names)
        if unsent and self._dispatcher.cloud_nodes(nodes, self._clock.now()):
            return self._store.transition_staging(
                row.job_id, S.STAGED, S.WAITING, "it was to run on premises and was given cloud nodes"
            )
        return self._store.transition_staging(row.job_id, S.STAGED, S.FETCHING, "Slurm gave it nodes", nodes=nodes)

    def _begin_collecting(self, row: Staging, run: StagingRun) -> Staging:
        state, facts = job_end_state(row, run), run.facts_of_record(row)
        return self._store.transition_staging(
            row.job_id, row.state, S.COLLECTING, f"the job has ended ({state or 'unheard'})",
            job_state=state, exit_code=facts.exit_code if facts and not run.unknown_to_slurm else "",
        )  # fmt: skip

    def _discard_output(self, row: Staging, run: StagingRun, reason: str, cause: str = "slurm") -> Staging:
        """The nodes are not kept for it from now on."""
        run.cancel_tasks()
        run.cycle.paused_until = 0.0
        self._cached_stagings = None
        with self._store.batch():
            if row.state is S.FETCHED:
                row = self._store.transition_staging(
                    row.job_id, S.FETCHED, S.COLLECTING, reason, cause=cause, job_state=job_end_state(row, run)
                )
            elif row.state is S.HELD:
                row = self._store.transition_staging(row.job_id, S.HELD, S(row.resume), reason, cause=cause)
            return self._store.transition_staging(row.job_id, row.state, S.DELIVERED, reason, cause=cause, error="")

    def _is_queued_for_upload(self, row: Staging, run: StagingRun) -> bool:
        idle = not run.tasks and self._clock.now() >= run.cycle.paused_until
        return (
            row.state is S.WAITING
            and run.cycle.input_bytes is not None
            and run.fresh
            and idle
            and not run.finished_tasks
        )

    def _runs_on_premises(self, run: StagingRun) -> bool:
        if (facts := run.facts) is None:
            return False
        return self._partitions.isdisjoint(facts.partitions) and not self._dispatcher.cloud_nodes(
            facts.nodes, self._clock.now()
        )

    # What is reported.

    def job_environment(self, job_id: str) -> dict[str, str]:
        """What a job finds in its environment; from any thread."""
        row = self._rows.get(job_id)
        found = self.rules.folders.job_environment(job_id, row)
        if row is not None and row.directives.container:
            found |= container_variables(row.directives, row.user, found["BURST_IN"], self.rules.containers)
        return found

    def _answer_hooks(self, row: Staging | None, run: StagingRun) -> None:
        env = self.job_environment(run.job_id)
        if quarantine_reason := self._quarantine.quarantine_reason(run.job_id):
            run.answer_hooks(lambda hook: StageReply("refused", quarantine_reason) if hook in START_HOOKS else None)
            return
        # Slurm takes any node that is open for a job whose input it believes to be there.
        volumes = self._volumes
        kept = row is not None and row.state is S.STAGED and volumes is not None and bool(volumes.allocation_wait(row))
        replies = run.answer_hooks(
            lambda hook: None if kept and hook in INPUT_HOOKS else hook_reply(row, run, hook, env)
        )
        if any(
            hook in ("data_in", "test_data_in") and sent_reply.result == "ok" for hook, sent_reply in replies.items()
        ):
            self._notify_slurm(run, "nudged", lambda: self._transfers.nudge_scheduler(run.job_id))

    def _notify_slurm(self, run: StagingRun, what: str, notify: Callable[[], None]) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception):
                log.warning(f"a job could not be {what}", job=run.job_id, error=str(result))

        self._workers.submit("stage:slurm", notify, done, user=run.uid)

    def data_views(self) -> dict[str, StagingView]:
        """How the data of each job stands, by the job's id in the queue."""
        data_views_found = data_views(
            self.recorded_stagings(), self._runs.run_of, self._dispatcher.rates, self._clock.now(),
            lambda row, run: self._dispatcher.entered_at(row, run.cycle, S.COLLECTING), self._quarantine.contain_errors,
        )  # fmt: skip
        return data_views_found | unrecorded_stage_outs(data_views_found, self._runs.staging_out(self._clock.now()))

    def progress_by_job(self) -> dict[str, tuple[MeterReading, ...]]:
        """The transfers under way, by job; from any thread."""
        return self._runs.progress_by_job()

    # What a person asks.

    def retry(self, job_id: str, by: str) -> str:
        """Lets a held one go on. A sentence on what came of it; empty: it is not held."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is not S.HELD:
            return ""
        run = self._runs.run_of(job_id)
        run.cycle.paused_until = 0.0
        self._quarantine.lift(job_id)
        self._cached_stagings = None
        if has_undelivered_output(row):
            self._store.transition_staging(job_id, S.HELD, S(row.resume), f"{by} asked to try again", cause=by)
        elif is_lasting_hold(row):
            row = self._store.update_staging(job_id, f"{by} asked to try again", cause=by, resume=S.WAITING.value)
        # A job whose input was refused is held by Slurm, where only an administrator can release it: its hooks come
        # again then.
        self._notify_slurm(run, "released", lambda: self._transfers.release_hold(job_id))
        return f"the data of job {row.name} goes on from {row.resume}"

    def discard(self, job_id: str, by: str) -> str:
        """Gives up what a job has left. A sentence on what came of it; empty: it has no data."""
        row = self._store.find_staging(job_id)
        if row is None or row.state is S.CLEARED:
            return ""
        run = self._runs.run_of(job_id)
        if row.state in (S.COLLECTING, S.DELIVERING) or has_undelivered_output(row):
            self._discard_output(row, run, f"{by} gave its output up", cause=by)
            return f"what is left of job {row.name}'s data is removed"
        if row.state is S.DELIVERED:
            return f"the data of job {row.name} is home; nothing had to be given up"
        return f"job {row.name} has not ended, so there is nothing to give up: cancel it first"
