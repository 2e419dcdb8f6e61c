"""What Slurm shows of the replay: rows of its queue, and nodes of the site. The decision code sees nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import StageState, StagingView
from burstd.simulate.traces.window import ReplayJob, Unit
from burstd.simulate.world.market import SITE_PARTITION, shape_of
from burstd.simulate.world.queue import BackfillQueue
from burstd.simulate.world.site import OnPremSite
from burstd.simulate.world.slots import gres_used

_PLANNED = frozenset({"PLANNED"})


class SlurmViewBuilder:
    """Rows and nodes, made anew only where something has changed."""

    def __init__(self, site: OnPremSite, unit: Unit, partitions: tuple[str, ...], staging_s: float) -> None:
        """``partitions``: all that jobs are submitted to."""
        self.pending_inputs: dict[str, StagingView] = {}
        """Of pending jobs whose input is not in the store."""
        self._site = site
        self._unit = unit
        self._partitions = partitions
        self._staging_s = staging_s
        self._shape: Shape = shape_of(site.size, unit)
        self._rows: dict[int, Job] = {}
        self._names = [f"site-{i}" for i in range(1, site.nodes + 1)]
        self._nodes: dict[str, Node] = {}
        self._known: dict[tuple[int, int, bool], Node] = {}
        self._planned: frozenset[int] = frozenset()
        self._head: tuple[int, float] | None = None

    def add_pending(self, job: ReplayJob, restarts: int = 0) -> None:
        """It waits."""
        self._rows[job.number] = Job(
            id=str(job.number), user=job.user, state=JobState.PENDING, partitions=self._partitions,
            submitted=job.submitted, name=job.name, account=job.account, reason="Priority", nodes=job.nodes,
            cpus=job.total_units, gres_per_node=(Gres("gpu", "", job.units),) if self._unit == "gpu" else (),
            time_limit_s=job.limit_s, eligible=job.submitted, restarts=restarts,
        )  # fmt: skip
        ready = job.submitted + self._staging_s
        if self._staging_s and not restarts:
            self.pending_inputs[str(job.number)] = StagingView(StageState.UPLOADING, ready, since=job.submitted)

    def mark_staged(self, job: ReplayJob) -> None:
        """Its input is in the store."""
        self.pending_inputs.pop(str(job.number), None)

    def mark_running(self, job: ReplayJob, now: float, site_nodes: tuple[int, ...], slots: tuple[str, ...]) -> None:
        """It runs."""
        self.mark_staged(job)
        self._rows[job.number] = replace(
            self._rows[job.number], state=JobState.RUNNING, reason="None", start=now, end=now + job.limit_s,
            node_list=slots or tuple(self._names[node] for node in site_nodes),
        )  # fmt: skip

    def remove_ended(self, job: ReplayJob) -> Job:
        """It has ended: its last row."""
        return self._rows.pop(job.number)

    def build_view(self, queue: BackfillQueue, slots: Mapping[str, Node], now: float) -> SlurmView:
        """All of it, with the nodes of the cloud."""
        self._estimate(queue)
        planned = frozenset(queue.reservation.spare) if queue.reservation is not None else frozenset[int]()
        for node in self._site.changed | (planned ^ self._planned):
            self._nodes[self._names[node]] = self._node(node, node in planned)
        self._site.changed.clear()
        self._planned = planned
        return SlurmView(tuple(self._rows.values()), self._nodes | dict(slots), (), now)

    def _estimate(self, queue: BackfillQueue) -> None:
        """Slurm tells when it expects to start the head of its queue."""
        head = (
            (queue.head.number, queue.reservation.shadow_time)
            if queue.head is not None and queue.reservation is not None
            else None
        )
        if head == self._head:
            return
        if self._head is not None:
            row = self._rows.get(self._head[0])
            if row is not None and row.state is JobState.PENDING:
                self._rows[self._head[0]] = replace(row, reason="Priority", start=0.0)
        if head is not None:
            self._rows[head[0]] = replace(self._rows[head[0]], reason="Resources", start=head[1])
        self._head = head

    def _node(self, node: int, planned: bool) -> Node:
        free = self._site.free[node]
        made = self._known.get((node, free, planned))
        if made is None:
            shape, used = self._shape, self._site.size - free
            made = Node(
                self._names[node], ("ALLOCATED" if not free else "MIXED") if used else "IDLE",
                _PLANNED if planned else frozenset(), (SITE_PARTITION,), shape.cpus, used, shape.memory_mib, 0,
                shape.gres, gres_used(shape, used, self._unit),
            )  # fmt: skip
            self._known[node, free, planned] = made
        return made
