"""The desk of a store whose storage node burstd launches: what needs the node waits while there is none."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from burstd.domain.claim import Claim
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.staging.controller.controller import StageDesk
from burstd.staging.controller.job_runs import Run

log = structlog.get_logger(__name__)


class NodeDesk(StageDesk):
    """``waits`` says why there is no node; empty: there is one."""

    waits = "burstd has just started"

    def busy(self) -> bool:
        """Whether transfers are under way that were told to end, as those with a node that is gone."""
        return any(task.cancelled.is_set() for run in self._runs.all() for task in run.tasks.values())

    def _waits_for_its_turn(self, row: Staging, run: Run) -> bool:
        return not self.waits and super()._waits_for_its_turn(row, run)

    def _go_on(self, row: Staging, run: Run, machines: Mapping[str, Claim]) -> Staging:
        if self.waits and self._needs_node(row, run):
            return self._store.tell_staging(row.job_id, f"waits for the storage node: {self.waits}")
        after = super()._go_on(row, run, machines)
        if self.waits and after.state is S.WAITING:
            return self._store.tell_staging(row.job_id, f"waits for the storage node: {self.waits}")
        return after

    def _needs_node(self, row: Staging, run: Run) -> bool:
        match row.state:
            case S.PLACING:
                return bool(row.trees)
            case S.COLLECTING:
                return bool(self._moves.cloud_of(row, run))
            case S.BRINGING:
                return bool(row.outputs)
            case _:
                return False

    def store_is_empty(self, claims: Mapping[str, Claim], why: str) -> None:
        """No object is anywhere: no record may go on as if there were. ``claims``: machines by slot. May be repeated.

        Input is sent again. Output is fetched again from the nodes that still have it, else its job is held.
        """
        self._look_at_pools()
        rows, self._seen = self.rows(), None
        for row in rows:
            if row.store != self.rules.store:
                continue
            with self._isolation.job(row.job_id):
                self._without_objects(row, claims, why)

    def _without_objects(self, row: Staging, claims: Mapping[str, Claim], why: str) -> None:
        run = self._runs.of(row.job_id)
        if row.trees and row.state not in (S.STAGED, S.PLACING):
            # Whoever has read its input has it; what starts over sends it again.
            row = self._store.touch_staging(row.job_id, why, trees={})
        match row.state:
            case S.SENDING:
                run.stop()
            case S.STAGED | S.PLACING if row.trees:
                run.stop()
                run.life.placed.clear()
                reason = f"its input has to be sent again: {why}"
                self._store.move_staging(row.job_id, row.state, S.WAITING, reason, trees={})
            case S.COLLECTING:
                if self._moves.cloud_of(row, run):
                    run.stop()
                if row.outputs:
                    self._fetch_again(row, run, claims, why)
            case S.BRINGING if row.outputs:
                run.stop()
                self._fetch_again(row, run, claims, why)
            case S.HELD if row.outputs and row.resume in (S.COLLECTING, S.BRINGING):
                gone = _gone(row, why)
                self._store.touch_staging(
                    row.job_id, gone, error=gone, resume=S.COLLECTING.value, outputs={}, bytes_out=0
                )
            case _:
                pass

    def _fetch_again(self, row: Staging, run: Run, claims: Mapping[str, Claim], why: str) -> None:
        placed = self._moves.came(row, run.life, S.PLACING)
        fetched = {key.partition("/")[0] for key in row.outputs}
        there = {node for node in fetched if node in claims and claims[node].created <= placed}
        with self._store.batch():
            if row.state is S.BRINGING:
                reason = f"its output has to be fetched again: {why}"
                row = self._store.move_staging(row.job_id, S.BRINGING, S.COLLECTING, reason)
            self._store.touch_staging(row.job_id, why, outputs={}, bytes_out=0)
            if there != fetched:
                error = _gone(row, why)
                log.error("a job's output is lost", job=row.job_id, nodes=sorted(fetched - there), error=error)
                self._store.move_staging(
                    row.job_id, S.COLLECTING, S.HELD, error, error=error, resume=S.COLLECTING.value
                )


def _gone(row: Staging, why: str) -> str:
    nodes = ", ".join(sorted({key.partition("/")[0] for key in row.outputs}))
    return (
        f"{why}, and output of {nodes} was nowhere else: burstctl stage retry brings home what is left of the job's"
        " output and says what is missing"
    )
