"""Shared scratch of a job: made on its first node, mounted on the others before the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from burstd.domain.claim import Claim
from burstd.domain.staging import Staging
from burstd.staging.controller.isolation import StagingQuarantine
from burstd.staging.controller.job_runs import StagingRun
from burstd.staging.controller.tasks import SharedScratchServer, StageFailed, StagingTask
from burstd.staging.movement.moves import TransferDispatcher

_NODES_LANE = "stage:nodes"
_MARK = "shared scratch "


class SharedScratchDispatcher:
    """Used in the deciding thread. After a restart of burstd a job that has not begun gets it anew, with new keys."""

    def __init__(self, dispatcher: TransferDispatcher, quarantine: StagingQuarantine) -> None:
        self._dispatcher = dispatcher
        self._quarantine = quarantine

    def share(self, row: Staging, run: StagingRun, machines: Mapping[str, Claim]) -> tuple[Staging, bool]:
        """Brings it to the nodes that the job has been given; and whether that is done."""
        cloud = self._dispatcher.cloud_nodes_of(row, run)
        if row.directives.shared_scratch_bytes is None or not cloud:
            # On premises it is in a directory that the nodes share, with the job's folder.
            return row, True
        if len(cloud) < len(row.nodes):
            reason = "'scratch shared' does not join nodes in the cloud and on premises: submit to one partition"
            return self._quarantine.hold_staging(row, reason, lasting=True, by_owner=True), False
        first, *others = (machines[node] for node in row.nodes)
        brought = run.cycle.brought
        if _mark(first) not in brought:
            serve = partial(self._dispatcher.transfers.serve_shared_scratch, claim=first)
            done = partial(self._served, run, first)
            self._dispatcher.start_task(row, run, f"shared {first.slot}", serve, done, lane=_NODES_LANE)
            return row, False
        if (server := run.cycle.shared_scratch) is not None:
            for claim in others:
                if _mark(claim) not in brought:
                    mount = partial(self._mount, claim=claim, server=server)
                    done = partial(self._mounted, run, claim, server)
                    self._dispatcher.start_task(row, run, f"shared {claim.slot}", mount, done, lane=_NODES_LANE)
        return row, not run.tasks

    def _served(self, run: StagingRun, claim: Claim, row: Staging, server: SharedScratchServer | None) -> Staging:
        run.cycle.shared_scratch = server
        run.cycle.brought.add(_mark(claim))
        return row

    def _mount(self, task: StagingTask, claim: Claim, server: SharedScratchServer) -> StageFailed | None:
        try:
            self._dispatcher.transfers.mount_shared_scratch(task, claim, server)
        except StageFailed as error:
            return error
        return None

    def _mounted(
        self, run: StagingRun, claim: Claim, server: SharedScratchServer, row: Staging, failed: StageFailed | None
    ) -> Staging:
        cycle = run.cycle
        if failed is not None:
            # What serves it may be gone: the next try begins at the first node.
            cycle.failures.append(failed)
            cycle.brought = {mark for mark in cycle.brought if not mark.startswith(_MARK)}
            cycle.shared_scratch = None
        elif cycle.shared_scratch is server:
            cycle.brought.add(_mark(claim))
        return row


def _mark(claim: Claim) -> str:
    return f"{_MARK}{claim.id}"
