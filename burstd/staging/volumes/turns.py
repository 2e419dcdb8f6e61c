"""Whose turn it is to have a volume, and what the other jobs that name one wait for."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping

from burstd.db import Store
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging, VolumeLine
from burstd.domain.volume import Volume, VolumeNeed
from burstd.domain.volume import VolumeState as S
from burstd.planner.staging.volume_life import (
    HolderPhase,
    VolumeLimits,
    disk_size,
    holder_phase,
    job_fault,
    line_fault,
    size_fault,
    submitted_job_fault,
)
from burstd.staging.volumes.disk_calls import DiskCalls
from burstd.staging.volumes.steps import VolumeSteps

UNMOUNT_S = 120.0
"""For so long the output of a job waits for a volume that cannot be unmounted."""
MAKER_WAIT_S = 30.0
"""For so long a job that names no size waits for another that has the volume made."""
_MAX_ANNOUNCED = 10_000


class VolumeTurns:
    """``give`` decides; the others say why a job has to wait. In the deciding thread, but for ``submit_fault``."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pools: Callable[[], Mapping[str, Pool]],
        calls: DiskCalls,
        steps: VolumeSteps,
        limits: VolumeLimits,
    ) -> None:
        self.limits = limits
        """Those in force; replaced whole."""
        self._store, self._clock, self._pools = store, clock, pools
        self._calls, self._steps = calls, steps
        self.volumes: tuple[Volume, ...] = ()
        """Those that are not GONE, as the last step left them; also read in other threads."""
        self.rows: tuple[Staging, ...] = ()
        """Of the jobs that name a volume."""
        self._jobs: Mapping[str, Job] = {}
        self._bound: frozenset[str] = frozenset()
        """Jobs that can start on their own node only."""
        self._announced: deque[tuple[int, str]] = deque(maxlen=_MAX_ANNOUNCED)
        """Volumes, by uid and name, that jobs which were let in of late have made."""

    def give(self, slurm: SlurmView) -> None:
        """Each volume that is nobody's goes to the oldest job that waits for it."""
        self._jobs = {job.id: job for job in slurm.jobs}
        names = {r.job_id: r.name for r in slurm.reservations if r.job_id}
        self._bound = frozenset(j for j, name in names.items() if j in self._jobs and self._jobs[j].reservation == name)
        for row in sorted(self.rows, key=lambda row: (row.created, row.job_id)):
            line = row.directives.volume
            job = self._jobs.get(row.job_id)
            if line is None or row.state is not T.STAGED or job is None or self.hold_reason(row):
                continue
            volume = self._find(row, line)
            if volume is None and line.size_bytes:
                now = self._clock.now()
                self._store.make_volume(
                    Volume(
                        f"v-{secrets.token_hex(8)}", line.name, row.user, row.uid, row.gid, row.account,
                        disk_size(line.size_bytes), S.PLANNED, now, now, f"for job {row.job_id}", job_id=row.job_id,
                    )
                )  # fmt: skip
            elif volume is not None and not volume.job_id and volume.state is S.AVAILABLE:
                self._store.update_volume(volume.id, f"it is the turn of job {row.job_id}", job_id=row.job_id)
            else:
                continue
            self.volumes = self._store.volumes()

    def hold_reason(self, row: Staging, queue_id: str = "") -> str:
        """Why a job with a volume can never start as it is; empty: it can, or names none.

        ``queue_id``: as in the queue, where a part of an array or a het job has another id than for its hooks.
        """
        if row.directives.volume is None or row.state not in (T.WAITING, T.STAGED, T.FETCHING):
            return ""
        if queue_id and queue_id != row.job_id:
            fault = job_fault(is_part=True, nodes=1, partitions=(), cloud_partitions=())
            return f"volume {row.directives.volume.name}: {fault}"
        if row.state is T.WAITING:
            return ""
        if all(row.job_id != known.job_id for known in self.rows):
            return ""  # It came after the last step, perhaps with others of which that step knows nothing either.
        return self._steps.faults.get(row.job_id, "") or self._row_fault(row, row.directives.volume)

    def allocation_wait(self, row: Staging) -> str:
        """Why Slurm is not to give the job a node now; empty: it may."""
        line = row.directives.volume
        if line is None:
            return ""
        volume = self._find(row, line)
        if volume is None or volume.job_id != row.job_id:
            return _waiting_reason(line, volume)
        if not self._awaits_machine(volume):
            return f"volume {line.name} is {volume.state.value} after the last run"
        return "" if row.job_id in self._bound else f"its machine for volume {line.name} is on its way"

    def start_wait(self, row: Staging) -> str:
        """Why a job that has its node is not to start now; empty: its volume is mounted, or it names none."""
        line = row.directives.volume
        if line is None:
            return ""
        volume = self._find(row, line)
        machine = self._steps.machine(row)
        if (
            volume is not None
            and machine is not None
            and volume.state is S.IN_USE
            and (volume.job_id, volume.claim_id) == (row.job_id, machine.id)
            and (volume.id, machine.id) in self._steps.mounted
        ):
            return ""
        if volume is None or volume.job_id != row.job_id:
            return _waiting_reason(line, volume)
        return self._calls.with_error(f"volume {line.name} is {volume.state.value}", volume)

    def unmount_wait(self, row: Staging) -> str:
        """Why the node of a job that has ended is needed on; empty: its volume is off the node, or it names none."""
        line = row.directives.volume
        volume = self._find(row, line) if line is not None else None
        if volume is None or volume.job_id != row.job_id or volume.state is not S.IN_USE:
            return ""
        if self._clock.now() - row.since > UNMOUNT_S:
            return ""  # The output does not wait for it; its machine stays all the same.
        return self._calls.with_error(f"volume {volume.name} is being unmounted", volume)

    def mounted_nodes(self) -> dict[str, str]:
        """By job that needs its volume no more, the node where it may still be mounted, with what was written last."""
        slots = {claim.id: claim.slot for claim in self._steps.claims}
        stagings = {row.job_id: row for row in self.rows}
        return {
            volume.job_id: slots[volume.claim_id]
            for volume in self.volumes
            if volume.state is S.IN_USE
            and volume.claim_id in slots
            and holder_phase(stagings.get(volume.job_id)) is HolderPhase.OVER
        }

    def view_reason(self, row: Staging) -> str:
        """What a decision on nodes is told of a job whose input is there: none is to be placed for it."""
        line = row.directives.volume
        if line is None or row.state is not T.STAGED:
            return ""
        need = self.needs().get(row.job_id)
        if need is not None:
            return f"it gets a machine of its own in {need.place}, for volume {line.name}"
        return self.allocation_wait(row) or f"its machine for volume {line.name} is there"

    def needs(self) -> dict[str, VolumeNeed]:
        """The jobs whose turn it is and that have no node, with what their machine must be."""
        stagings = {row.job_id: row for row in self.rows}
        found = {}
        for volume in self.volumes:
            row = stagings.get(volume.job_id)
            if row is not None and row.state is T.STAGED and self._awaits_machine(volume) and not volume.error:
                found[row.job_id] = self._calls.need(volume)
        return found

    def _awaits_machine(self, volume: Volume) -> bool:
        """Whether the machine of its job may be made now; one that has it from its launch on is asked for before it."""
        if volume.state is S.CREATING:
            return self._calls.is_at_launch(volume.provider)
        return volume.state in (S.PLANNED, S.AVAILABLE)

    # At sbatch, from any thread.

    def submit_fault(self, line: VolumeLine, uid: int | None, info: Mapping[str, str]) -> str:
        """Why a job that is submitted cannot have its volume; empty: as far as is known now it can.

        ``info``: see StageCall.
        """
        if not self._calls.providers:
            return "no provider of this site has volumes"
        if fault := submitted_job_fault(info, self._cloud_partitions()):
            return fault
        if uid is None:
            return size_fault(line, self.limits)
        own = [volume for volume in self.volumes if volume.uid == uid]
        volume = next((volume for volume in own if volume.name == line.name), None)
        if volume is None and not line.size_bytes and (uid, line.name) in self._announced:
            return ""
        fault = line_fault(line, volume, sum(v.size_bytes for v in own if v is not volume), self.limits)
        if not fault and line.size_bytes:
            self._announced.append((uid, line.name))
        return fault

    # The jobs that are there.

    def _row_fault(self, row: Staging, line: VolumeLine) -> str:
        """What is wrong with the job itself, or its line."""
        job = self._jobs.get(row.job_id)
        subject = f"volume {line.name}: "
        if not self._calls.providers:
            return subject + "no provider of this site has volumes"
        if job is None:
            return ""
        fault = job_fault(
            is_part=bool(job.array_job_id or job.het_job_id), nodes=job.nodes, partitions=job.partitions,
            cloud_partitions=self._cloud_partitions(),
        )  # fmt: skip
        if fault:
            return subject + fault
        if job.reservation and job.id not in self._bound and row.state is T.STAGED:
            return subject + f"it cannot be had in a reservation ({job.reservation})"
        volume = self._find(row, line)
        if volume is not None and volume.error and volume.state is S.AVAILABLE:
            return f"{subject}{volume.error}; an administrator has to look at it"
        if volume is None and not line.size_bytes and self._is_awaited(row, line):
            return ""
        own = sum(v.size_bytes for v in self.volumes if v.uid == row.uid and v is not volume)
        fault = line_fault(line, volume, own, self.limits)
        return subject + fault if fault else ""

    def _cloud_partitions(self) -> frozenset[str]:
        return frozenset(partition for pool in self._pools().values() for partition in pool.partitions)

    def _is_awaited(self, row: Staging, line: VolumeLine) -> bool:
        """Whether another job may be about to have the volume made: hooks of jobs come in any order."""
        if self._clock.now() - row.since < MAKER_WAIT_S:
            return True
        return any(_makes_volume(other, row, line) for other in self.rows)

    def _find(self, row: Staging, line: VolumeLine) -> Volume | None:
        return next((v for v in self.volumes if v.uid == row.uid and v.name == line.name), None)


def _makes_volume(other: Staging, row: Staging, line: VolumeLine) -> bool:
    """Whether another job, of the same user, is about to have the volume made."""
    named = other.directives.volume
    before_start = other.state in (T.WAITING, T.UPLOADING, T.STAGED, T.FETCHING)
    return (
        other.job_id != row.job_id
        and before_start
        and other.uid == row.uid
        and named is not None
        and (named.name == line.name and bool(named.size_bytes))
    )


def _waiting_reason(line: VolumeLine, volume: Volume | None) -> str:
    if volume is None:
        return f"volume {line.name} is not there so far, and the line has no size to make it"
    if volume.job_id:
        return f"volume {line.name} is in use by job {volume.job_id}"
    return f"volume {line.name} is {volume.state.value}" + (f": {volume.error}" if volume.error else "")
