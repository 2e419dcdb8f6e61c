"""Transfers of the staging controller: how each begins, and what is recorded when it ends or fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import structlog

from burstd.db import Store, stage_subject
from burstd.domain.billing.use import Payer
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock, backoff_s
from burstd.domain.errors import BurstdError
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging, Tree
from burstd.planner.staging.transfer_schedule import TransferRates, ready_at, with_measurement
from burstd.runtime.workers import Workers
from burstd.slurm.commands.job_facts import JobFacts
from burstd.staging.controller.decision import REQUEUED
from burstd.staging.controller.isolation import StagingQuarantine
from burstd.staging.controller.job_runs import FinishedTask, StagingCycle, StagingRun
from burstd.staging.controller.recovery import missing_output_reason
from burstd.staging.controller.tasks import (
    CollectedOutput,
    DeliveredOutput,
    InputSize,
    JobSummary,
    Meter,
    StageFailed,
    StagingTask,
    Transfers,
    UploadedInput,
)
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.errors import printable

log = structlog.get_logger(__name__)

RETRY_S = 2.0
MAX_BACKOFF_S = 300.0
MAX_RETRY_AFTER_S = 3600.0
MEASUREMENTS_PER_USER = 2
"""So that a file system of one user that does not answer keeps nobody else's input waiting."""
_SHOWN_FILES, _SHOWN_CHARS = 5, 200
_LOCAL_LANE = "stage:look"
"""The queue of work on this machine's file systems."""

AfterInput = Callable[[Staging, StagingRun, Mapping[str, Claim]], tuple[Staging, bool]]
"""What a job's nodes get once they have its input; the record, and whether that is done."""


class TransferDispatcher:
    """Each method begins what is missing of one step and returns the record, moved on where nothing is missing."""

    def __init__(
        self,
        store: Store,
        workers: Workers,
        clock: Clock,
        transfers: Transfers,
        retries: Callable[[], int],
        quarantine: StagingQuarantine,
    ) -> None:
        self.rates = TransferRates()
        self.pool_slots: frozenset[str] = frozenset()
        """Those of today's settings."""
        self._quarantine = quarantine
        self._store = store
        self._workers = workers
        self._clock = clock
        self.transfers = transfers
        self._retries = retries
        self._measuring: Counter[int] = Counter()
        self.out_of_space: dict[str, Staging] = {}
        """Data by job for which the store had no space since this was emptied, as it was while it moved."""

    def cloud_nodes(self, nodes: Iterable[str], since: float) -> frozenset[str]:
        """Which of these nodes are in the cloud: slots of the settings, and those that had a machine since then.

        A slot may leave the settings while a job is on its machine. Raises StoreError.
        """
        return frozenset(
            n for n in nodes if n in self.pool_slots or self._store.find_claims(slot=n, since=since, limit=1)
        )

    def cloud_nodes_of(self, row: Staging, run: StagingRun) -> frozenset[str]:
        """Which of a job's nodes are in the cloud. Raises StoreError."""
        return self.cloud_nodes(row.nodes, self.entered_at(row, run.cycle, S.FETCHING))

    # Input.

    def measure_sources(self, row: Staging, run: StagingRun, *, image_only: bool) -> None:
        """How much it is, unless its user has others looked at already: then a later step looks.

        ``image_only``: only the image of a registry has to be sent.
        """
        if self._measuring[row.uid] >= MEASUREMENTS_PER_USER:
            return

        def done(row: Staging, found: InputSize) -> Staging:
            run.cycle.input_bytes, run.cycle.sources = found.size, found.sources
            return row

        self.start_task(
            _with_image_only(row) if image_only else row, run, "in", self.transfers.measure_sources, done,
            lane=_LOCAL_LANE,
        )  # fmt: skip

    def upload_input(self, row: Staging, run: StagingRun, *, image_only: bool) -> Staging:
        """To the store; ``image_only``: of it the image of a registry."""
        began = self._clock.now()
        ready = row.estimated_ready or ready_at(began, run.cycle.input_bytes or 0, 0, self.rates.rate(row.store, "in"))
        row = self._store.transition_staging(
            row.job_id, S.WAITING, S.UPLOADING, "its turn has come", estimated_ready=ready
        )

        def done(row: Staging, sent: UploadedInput) -> Staging:
            after = self._store.transition_staging(
                row.job_id, S.UPLOADING, S.STAGED, f"{sent.size} bytes are in the store, {sent.sent} had to be sent",
                trees=sent.trees, bytes_in=sent.size, bytes_sent=sent.sent, attempts=0, error="",
            )  # fmt: skip
            self.rates = with_measurement(self.rates, row.store, "in", sent.sent, self._clock.now() - began)
            return after

        self.start_task(
            _with_image_only(row) if image_only else row, run, "in", self.transfers.upload_input, done,
            lane="stage:in", total=run.cycle.input_bytes or 0,
        )  # fmt: skip
        return row

    def fetch_input(
        self, row: Staging, run: StagingRun, machines: Mapping[str, Claim], after_input: Sequence[AfterInput]
    ) -> Staging:
        """To its nodes, and then what ``after_input`` brings, one after the other."""
        cloud = sorted(self.cloud_nodes_of(row, run))
        missing = [node for node in cloud if node not in machines]
        if missing:
            return self._quarantine.hold_staging(
                row, f"burstd has no machine for {', '.join(missing)}: look at burstctl status"
            )

        def done(fetched: str, row: Staging, _nothing: object) -> Staging:
            run.cycle.fetched_on.add(fetched)
            return row

        for node in cloud:
            claim = machines[node]
            if claim.id not in run.cycle.fetched_on:
                work = partial(
                    self.transfers.fetch_input, claim=claim, files=_own_output_files(run.facts_of_record(row))
                )
                self.start_task(row, run, f"place {node}", work, partial(done, claim.id), lane="stage:nodes")
        if len(cloud) < len(row.nodes) and "link" not in run.cycle.fetched_on:
            self.start_task(row, run, "link", self.transfers.link_on_premises, partial(done, "link"), lane=_LOCAL_LANE)
        if run.tasks:
            return row
        for bring in after_input:
            row, is_done = bring(row, run, machines)
            if not is_done:
                return row
        return self._store.transition_staging(
            row.job_id, S.FETCHING, S.FETCHED, "its data is on its nodes", attempts=0, error=""
        )

    # Output.

    def nodes_with_output(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> dict[str, Claim]:
        """Nodes in the cloud that have output which is not in the store."""
        allocated_at = self.entered_at(row, run.cycle, S.FETCHING)
        # A machine that came later to the same slot never had this job.
        machines_then = {n: machines[n] for n in row.nodes if n in machines and machines[n].created <= allocated_at}
        return {node: claim for node, claim in machines_then.items() if node not in _collected_nodes(row)}

    def collect_output(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> Staging:
        """From its nodes to the store; what is lost is reported when the rest is delivered."""
        if run.directives and not row.directives:
            row = self._store.update_staging(row.job_id, "its script was read", directives=run.directives)
        remaining, facts = self.nodes_with_output(row, run, machines), run.facts_of_record(row)
        if remaining and row.directives:
            if row.error and not row.attempts:
                row = self._store.update_staging(row.job_id, "its nodes are known", error="")
        elif missing_reason := missing_output_reason(
            self._store, row, self._lost_nodes(row, run), self.entered_at(row, run.cycle, S.FETCHING)
        ):
            run.cycle.paused_until = self._clock.now() + RETRY_S
            return self._store.update_staging(row.job_id, missing_reason, error=missing_reason)
        files: tuple[str, ...] = ()
        if facts is not None:
            files = _own_output_files(facts)
        elif remaining:
            run.cycle.warnings = ("Slurm had forgotten the job, so its own output files were not looked for",)

        def done(node: str, row: Staging, result: CollectedOutput) -> Staging:
            trees = {f"{node}/{name}": tree for name, tree in result.trees.items()}
            size = sum(tree.size for tree in trees.values())
            # A node without output is on record too: it need not be asked again, and is not lost.
            trees = trees or {f"{node}/": Tree(f"out/{row.job_id}/{node}", "", (), 0, 0)}
            after = self._store.update_staging(
                row.job_id, f"{node}: {size} bytes of output are in the store",
                outputs={**row.outputs, **trees}, bytes_out=row.bytes_out + size,
            )  # fmt: skip
            run.cycle.warnings += result.warnings
            self.rates = with_measurement(self.rates, row.store, "collect", result.sent, result.seconds)
            return after

        for node, claim in remaining.items():
            work = partial(self.transfers.collect_output, claim=claim, files=files)
            self.start_task(row, run, f"collect {node}", work, partial(done, node), lane="stage:nodes")
        if remaining:
            return row
        reason = "its output is in the store" if row.outputs else "nothing has to be fetched from a cloud node"
        if lost_nodes := self._lost_nodes(row, run):
            reason += f"; {', '.join(lost_nodes)} went before its output was fetched"
        return self._store.transition_staging(row.job_id, S.COLLECTING, S.DELIVERING, reason, attempts=0, error="")

    def deliver_output(self, row: Staging, run: StagingRun) -> None:
        """To its destinations."""
        summary = JobSummary(
            lost_nodes=self._lost_nodes(row, run), cost=self._node_cost(row, run),
            on_premises=not self.cloud_nodes_of(row, run).issuperset(row.nodes), warnings=run.cycle.warnings,
        )  # fmt: skip

        def done(row: Staging, delivered: DeliveredOutput) -> Staging:
            facts = run.facts_of_record(row)
            job, partitions = (row.job_id, ()) if facts is None else (facts.queue_id, facts.partitions)
            payer = Payer(job, row.user, row.account, partitions[0] if len(partitions) == 1 else "")
            return self._store.deliver_staging(
                row.job_id, _delivered_text(delivered), delivered.size, delivered.sent, payer
            )

        self.start_task(
            row, run, "home", lambda task: self.transfers.deliver_output(task, summary), done, lane="stage:home"
        )

    def _lost_nodes(self, row: Staging, run: StagingRun) -> tuple[str, ...]:
        """Nodes in the cloud whose output was not fetched."""
        return tuple(sorted(self.cloud_nodes_of(row, run) - _collected_nodes(row)))

    def _node_cost(self, row: Staging, run: StagingRun) -> str:
        """Of its nodes while they were the job's, those that are gone by now too."""
        facts = run.facts_of_record(row)
        seconds = Decimal(facts.run_seconds if facts else 0.0)
        allocated_at = self.entered_at(row, run.cycle, S.FETCHING)
        prices: dict[str, Decimal] = {}
        for node in row.nodes:
            claims_then = [
                c for c in self._store.find_claims(slot=node, since=allocated_at, limit=10) if c.created <= allocated_at
            ]
            for offer in (claim.offer for claim in claims_then[:1]):
                prices[offer.currency] = prices.get(offer.currency, Decimal(0)) + offer.price
        return " + ".join(f"{price * seconds / 3600:.4f} {unit}" for unit, price in prices.items()) if seconds else ""

    def remove_job_data(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> None:
        """What is left of it in the store and on nodes."""
        machines_left = [machines[node] for node in row.nodes if node in machines]
        # Its next run begins with the newest.
        keep = row.checkpoints if not run.ended and row.job_state in ("", REQUEUED) else ()

        def done(row: Staging, _nothing: object) -> Staging:
            left = f"of it only checkpoints are left in the store ({len(keep)})"
            reason = left if keep else "nothing of it is left in the store and on nodes"
            return self._store.transition_staging(row.job_id, row.state, S.CLEARED, reason, checkpoints=keep)

        def clear(task: StagingTask) -> None:
            self.transfers.remove_job_data(task, machines_left, checkpoints=not keep)

        run.clearing_claims = frozenset(claim.id for claim in machines_left)
        self.start_task(row, run, "clear", clear, done, lane="stage:clear")

    # All of them.

    def start_task(
        self,
        row: Staging,
        run: StagingRun,
        name: str,
        work: Callable[[StagingTask], Any],
        done: Callable[[Staging, Any], Staging],
        *,
        lane: str,
        total: int = 0,
    ) -> None:
        """Has a piece of work done, of ``total`` bytes where that is known; several may be under way for one job."""
        task = StagingTask(row, Meter(name, name.partition(" ")[0]))
        task.meter.expect_total(total)
        run.add_task(name, task)
        self._measuring[row.uid] += lane == _LOCAL_LANE

        def finish(result: Any) -> None:
            with self._quarantine.contain_errors(row.job_id):
                self._measuring[row.uid] -= lane == _LOCAL_LANE
                run.remove_task(name)
                run.finished_tasks[name] = FinishedTask(task, result, done)

        self._workers.submit(lane, lambda: work(task), finish, user=row.uid)

    def record_results(self, row: Staging, run: StagingRun) -> Staging:
        """Writes down what has come back; what cannot be written, for want of space, is kept and written later.

        Raises StoreError.
        """
        clearing = "clear" in run.finished_tasks
        for name, finished in tuple(run.finished_tasks.items()):
            is_current = finished.task.job.state is row.state and finished.task.job.created == row.created
            if isinstance(finished.result, Exception):
                if is_current and not isinstance(finished.result, TransferCancelled):
                    run.cycle.failures.append(finished.result)
            elif is_current:
                row = finished.record_result(row, finished.result)
            del run.finished_tasks[name]
            if row.state is S.CLEARED:
                return row
        if run.cycle.failures and not run.tasks:
            row = self._record_failures(row, run, may_hold=not clearing)
            run.cycle.failures.clear()
        return row

    def _record_failures(self, row: Staging, run: StagingRun, *, may_hold: bool) -> Staging:
        """All that was begun together has come back, and some of it without success.

        ``may_hold`` False: it is tried for ever.
        """
        errors = run.cycle.failures
        for error in errors:
            if not isinstance(error, BurstdError):
                log.error("staging broke", job=row.job_id, exc_info=error)
        final = [e for e in errors if isinstance(e, StageFailed) and not e.retryable]
        text = str(final[0] if final else errors[0])
        waits = all(getattr(error, "waits", False) for error in errors)
        attempts = row.attempts if waits else row.attempts + 1
        if any(getattr(error, "full", False) for error in errors):
            self.out_of_space[row.job_id] = row
        if may_hold and (final or (attempts >= self._retries() and not waits)):
            return self._quarantine.hold_staging(row, text, lasting=bool(final), by_owner=bool(final))
        retry_after_s = max(getattr(error, "retry_after_s", 0.0) for error in errors)
        pause = max(min(retry_after_s, MAX_RETRY_AFTER_S), backoff_s(attempts, RETRY_S, MAX_BACKOFF_S))
        reason = f"tried again in {pause:.0f} s: {text}"
        if row.state is S.FETCHING and any(getattr(error, "resend", False) for error in errors):
            run.cycle.fetch_anew()
            after = self._store.transition_staging(
                row.job_id, S.FETCHING, S.WAITING, f"its input is sent again: {text}", attempts=attempts, error=text,
                trees={},
            )  # fmt: skip
        elif row.state is S.UPLOADING:
            # Others have their turn meanwhile.
            after = self._store.transition_staging(
                row.job_id, S.UPLOADING, S.WAITING, reason, attempts=attempts, error=text,
                estimated_ready=row.estimated_ready,
            )  # fmt: skip
        else:
            after = self._store.update_staging(row.job_id, reason, attempts=attempts, error=text)
        run.cycle.paused_until = self._clock.now() + pause
        report = log.info if waits else log.warning
        report("staging is tried again", job=row.job_id, error=text, pause_s=round(pause, 1))
        return after

    def entered_at(self, row: Staging, life: StagingCycle, state: S) -> float:
        """When the data first came into a state in this life, in burstd's time; 0: never."""
        if state not in life.entered_at:
            events = self._store.events(subject=stage_subject(row.job_id), limit=100_000)
            found = next((e.time for e in events if e.old != e.new == state and e.time >= row.created), 0.0)
            if not found:
                return 0.0
            life.entered_at[state] = found
        return life.entered_at[state]


_REACHABLE_STATES = frozenset({ClaimState.IN_SERVICE, ClaimState.DRAINING, ClaimState.READY})


def _with_image_only(row: Staging) -> Staging:
    image = row.directives.registry_image
    return replace(row, directives=replace(row.directives, stage_in=(image,) if image else (), workdir=None))


def reachable_machines(claims: Collection[Claim]) -> dict[str, Claim]:
    """By slot, the claims whose machine answers."""
    return {
        claim.slot: claim
        for claim in claims
        if claim.state in _REACHABLE_STATES
        or (claim.state is ClaimState.VALIDATING and claim.in_service_from is not None)
    }


def _own_output_files(facts: JobFacts | None) -> tuple[str, ...]:
    """Where Slurm writes what the job says."""
    return tuple(dict.fromkeys(f for f in (facts.std_out, facts.std_err) if f)) if facts is not None else ()


def _delivered_text(delivered: DeliveredOutput) -> str:
    text = f"{delivered.size} bytes of output are home"
    if not delivered.beside:
        return text
    more = f" and {len(delivered.beside) - _SHOWN_FILES} more" if len(delivered.beside) > _SHOWN_FILES else ""
    names = ", ".join(printable(path[:_SHOWN_CHARS]) for path in delivered.beside[:_SHOWN_FILES])
    return f"{text}; files that changed there meanwhile stay as they are, and the job's came beside them: {names}{more}"


def _collected_nodes(row: Staging) -> set[str]:
    return {key.partition("/")[0] for key in row.outputs}
