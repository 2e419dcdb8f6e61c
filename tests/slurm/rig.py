"""The lab's cluster as the scheduler contract wants it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.model.scheduler import Scheduler
from burstd.slurm.commands import Commands
from burstd.slurm.hostlist import expand
from burstd.slurm.power_server import PowerCall, PowerServer
from burstd.slurm.scheduler import CommandScheduler
from burstd.testing.scheduler_contract import ClusterUnderTest
from providers.sandbox.errors import SandboxError
from providers.sandbox.rootfs import ensure
from tests.lab import slurm_files
from tests.lab.cluster import Cluster

# Slurm's own default_queue_depth: what bind and the gate do must not hang on burstd's advice.
EXTRA = """\
SchedulerParameters=batch_sched_delay=0
ResumeTimeout=7
SuspendTimeout=2
MaxArraySize=10001
MaxJobCount=30000
"""


class Rig(ClusterUnderTest):
    """A cluster of one release, spoken to through Slurm's commands on its head."""

    resume_timeout_s = 7.0

    def __init__(self, cluster: Cluster, power: list[PowerCall]) -> None:
        self.cluster = cluster
        self.slots = cluster.pools[0].slots
        self._power = power
        self._scheduler: Scheduler = CommandScheduler(Commands(self.run))

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def run(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """A Runner on the head."""
        return self.cluster.head.run(argv, env=environment, timeout=timeout_s, check=False)

    def shell(self, command: str, user: str = "root") -> str:
        return self.cluster.sh(command, user)

    def boot(self, slots: Sequence[str]) -> Sequence[tuple[str, str]]:
        self.cluster.boot_slots(slots)
        return [(slot, self.cluster.address_of(slot)) for slot in slots]

    def start_slurmd(self, slot: str) -> None:
        self.cluster.start_slurmd(slot)

    def kill(self, slot: str) -> None:
        self.cluster.kill_machine(slot)

    def machines(self) -> frozenset[str]:
        return frozenset(box.name for box in self.cluster.lab.boxes() if box.alive)

    def stop_slurmctld(self) -> None:
        self.cluster.stop_slurmctld()

    def start_slurmctld(self) -> None:
        self.cluster.start_slurmctld()

    def calls(self) -> Sequence[tuple[str, frozenset[str]]]:
        return [(call.kind, frozenset(expand(call.nodes))) for call in list(self._power)]

    def say(self, text: str) -> None:
        sys.stdout.write(f"{self.cluster.release}: {text}\n")


@contextmanager
def rig(release: str, state: Path) -> Iterator[Rig]:
    """A cluster with burstd's side of the power programs listening on its head.

    Where the root file system of a newer release cannot be had, the tests are skipped and say why.
    """
    try:
        ensure(release)
    except SandboxError as error:
        if release == "bookworm":
            raise
        pytest.skip(f"{release}: {error}")
    power: list[PowerCall] = []
    with Cluster(release, state=state, pools=[slurm_files.burst_pool()], extra_conf=EXTRA) as cluster:
        runtime = cluster.head.path("/run/burstd")
        uid = int(cluster.sh("id -u slurm"))
        server = PowerServer(runtime / "power.sock", runtime / "spool", power.append, frozenset({uid}))
        server.start()
        try:
            yield Rig(cluster, power)
        finally:
            server.stop()
