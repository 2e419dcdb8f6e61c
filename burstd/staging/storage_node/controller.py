"""The staging controller of a store whose storage node burstd launches: without a node, work waits."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from burstd.domain.claim import Claim
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.staging.controller.controller import StagingController
from burstd.staging.controller.job_runs import StagingRun

log = structlog.get_logger(__name__)


class StorageNodeController(StagingController):
    """``waits`` says why there is no node; empty: there is one."""

    unavailable_reason = "burstd has just started"

    def is_stopping_transfers(self) -> bool:
        """Whether transfers are under way that were cancelled, as those with a node that is gone."""
        return any(task.cancelled.is_set() for run in self._runs.all_runs() for task in run.tasks.values())

    def _is_queued_for_upload(self, row: Staging, run: StagingRun) -> bool:
        return not self.unavailable_reason and super()._is_queued_for_upload(row, run)

    def _next_step(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> Staging:
        if self.unavailable_reason and self._needs_node(row, run):
            return self._store.set_staging_reason(row.job_id, f"waits for the storage node: {self.unavailable_reason}")
        after = super()._next_step(row, run, machines)
        if self.unavailable_reason and after.state is S.WAITING:
            return self._store.set_staging_reason(row.job_id, f"waits for the storage node: {self.unavailable_reason}")
        return after

    def _needs_node(self, row: Staging, run: StagingRun) -> bool:
        match row.state:
            case S.FETCHING:
                return bool(row.trees or row.checkpoints)
            case S.FETCHED:
                return self._checkpoints.is_due(row, run)
            case S.COLLECTING:
                return bool(self._dispatcher.cloud_nodes_of(row, run))
            case S.DELIVERING:
                return bool(row.outputs)
            case _:
                return False

    def handle_empty_store(self, claims: Mapping[str, Claim], why: str) -> None:
        """No object is anywhere: no record may go on as if there were. ``claims``: machines by slot. May be repeated.

        Input is sent again. Output is fetched again from the nodes that still have it, else its job is held.
        """
        self._refresh_pools()
        rows, self._cached_stagings = self.recorded_stagings(), None
        for row in rows:
            if row.store != self.rules.store:
                continue
            with self._quarantine.contain_errors(row.job_id):
                self._handle_lost_objects(row, claims, why)

    def _handle_lost_objects(self, row: Staging, claims: Mapping[str, Claim], why: str) -> None:
        run = self._runs.run_of(row.job_id)
        if row.trees and row.state not in (S.STAGED, S.FETCHING):
            # Whoever has read its input has it; what starts over sends it again.
            row = self._store.update_staging(row.job_id, why, trees={})
        if row.checkpoints:
            row = self._store.update_staging(row.job_id, why, checkpoints=(), checkpoint_error=why)
        match row.state:
            case S.UPLOADING:
                run.cancel_tasks()
            case S.STAGED | S.FETCHING if row.trees:
                run.cancel_tasks()
                run.cycle.fetch_anew()
                reason = f"its input has to be sent again: {why}"
                self._store.transition_staging(row.job_id, row.state, S.WAITING, reason, trees={})
            case S.COLLECTING:
                if self._dispatcher.cloud_nodes_of(row, run):
                    run.cancel_tasks()
                if row.outputs:
                    self._collect_again(row, run, claims, why)
            case S.DELIVERING if row.outputs:
                run.cancel_tasks()
                self._collect_again(row, run, claims, why)
            case S.HELD if row.outputs and row.resume in (S.COLLECTING, S.DELIVERING):
                gone = _lost_output_reason(row, why)
                self._store.update_staging(
                    row.job_id, gone, error=gone, resume=S.COLLECTING.value, outputs={}, bytes_out=0
                )
            case _:
                pass

    def _collect_again(self, row: Staging, run: StagingRun, claims: Mapping[str, Claim], why: str) -> None:
        allocated_at = self._dispatcher.entered_at(row, run.cycle, S.FETCHING)
        fetched = {key.partition("/")[0] for key in row.outputs}
        still_on_nodes = {node for node in fetched if node in claims and claims[node].created <= allocated_at}
        with self._store.batch():
            if row.state is S.DELIVERING:
                reason = f"its output has to be fetched again: {why}"
                row = self._store.transition_staging(row.job_id, S.DELIVERING, S.COLLECTING, reason)
            self._store.update_staging(row.job_id, why, outputs={}, bytes_out=0)
            if still_on_nodes != fetched:
                error = _lost_output_reason(row, why)
                log.error("a job's output is lost", job=row.job_id, nodes=sorted(fetched - still_on_nodes), error=error)
                self._store.transition_staging(
                    row.job_id, S.COLLECTING, S.HELD, error, error=error, resume=S.COLLECTING.value
                )


def _lost_output_reason(row: Staging, why: str) -> str:
    nodes = ", ".join(sorted({key.partition("/")[0] for key in row.outputs}))
    return (
        f"{why}, and output of {nodes} was nowhere else: burstctl stage retry brings home what is left of the job's"
        " output and says what is missing"
    )
