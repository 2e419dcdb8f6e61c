"""The nodes that burstd has had Slurm keep jobs off, on record before Slurm is told: all others are the users' own."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from burstd.db import Store
from burstd.domain.slurm.job import Job, JobState

EXCLUDED_NODES_KEY = "excluded nodes"
"""Key under which the store keeps them: JSON, each list of nodes with its jobs."""
_NONE: frozenset[str] = frozenset()


class ExcludedNodes:
    """Used in the deciding thread only. All methods raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._nodes: dict[str, frozenset[str]] = {}
        for nodes, jobs in json.loads(store.metadata(EXCLUDED_NODES_KEY) or "[]"):
            self._nodes.update(dict.fromkeys(jobs, frozenset(nodes)))
        self._recorded_at = dict.fromkeys(self._nodes, float("-inf"))
        """Of those that Slurm has not been seen to have since."""

    def by_job(self) -> Mapping[str, frozenset[str]]:
        """By job, or array, the nodes that burstd has put there, or was about to."""
        return dict(self._nodes)

    def record(self, job_ids: Collection[str], nodes: frozenset[str], now: float) -> None:
        """To be called before Slurm is told. What was there before stays on record until Slurm shows the new list."""
        # Thousands of jobs share the same sets, also in memory.
        unions: dict[int, frozenset[str]] = {}
        changed = dict(self._nodes)
        for job_id in job_ids:
            before = self._nodes.get(job_id, _NONE)
            if id(before) not in unions:
                unions[id(before)] = before if before >= nodes else before | nodes
            if unions[id(before)]:
                changed[job_id] = unions[id(before)]
        self._write(changed)
        self._recorded_at.update(dict.fromkeys(job_ids, now))

    def forget(self, jobs: Iterable[Job], read_at: float) -> None:
        """Strikes out jobs that have left the queue, and nodes that Slurm does not have any more.

        ``jobs``: the queue, read from ``read_at`` on.
        """
        if not self._nodes:
            self._recorded_at.clear()
            return
        shown: dict[str, dict[int, tuple[str, ...]]] = {}
        started: set[str] = set()
        for job in jobs:
            # Tasks that have left an array's row, and are requeued, have what the array had.
            for key in {job.id, job.array_job_id}:
                if key in self._nodes:
                    shown.setdefault(key, {})[id(job.excluded_nodes)] = job.excluded_nodes
                    if job.state is not JobState.PENDING:
                        # Some versions of Slurm do not show what it excludes.
                        started.add(key)
        cut: dict[tuple[int, ...], frozenset[str]] = {}
        kept: dict[str, frozenset[str]] = {}
        for job_id, lists in shown.items():
            nodes = self._nodes[job_id]
            if self._recorded_at.get(job_id, read_at) < read_at:
                del self._recorded_at[job_id]
                same = id(nodes), *lists
                if same not in cut:
                    there = frozenset().union(*lists.values())
                    cut[same] = nodes if nodes <= there else nodes & there
                nodes = nodes if job_id in started else cut[same]
            if nodes:
                kept[job_id] = nodes
        self._write(kept)
        self._recorded_at = {job: at for job, at in self._recorded_at.items() if job in kept}

    def _write(self, nodes: dict[str, frozenset[str]]) -> None:
        if nodes == self._nodes:
            return
        jobs: dict[frozenset[str], list[str]] = {}
        for job_id, excluded in nodes.items():
            jobs.setdefault(excluded, []).append(job_id)
        rows = [[sorted(excluded), job_ids] for excluded, job_ids in jobs.items()]
        self._store.set_metadata(EXCLUDED_NODES_KEY, json.dumps(rows) if rows else "", logged=False)
        self._nodes = nodes
