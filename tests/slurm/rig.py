"""The lab's cluster as the scheduler contract wants it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.domain.plugins.scheduler import Scheduler
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hooks.power_server import PowerCall, PowerServer
from burstd.slurm.hostlist import expand
from burstd.slurm.scheduler import CommandScheduler
from burstd.testing.slurm.cluster import ClusterUnderTest
from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.lab import pyslurm_wheel, slurm_files
from tests.lab.cluster import Cluster
from tests.slurm.remote import Remote

PROJECT = Path(__file__).parents[2]
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
        self._scheduler: Scheduler = CommandScheduler(SlurmCommands(self.run))

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def use_pyslurm(self) -> None:
        """From now on the scheduler is one in the head that uses pyslurm."""
        process = self.cluster.head.popen(
            ["python3", "-m", "tests.slurm.remote", "pyslurm"],
            cwd="/opt/project",
            env={"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        remote = Remote(process)
        assert remote.kind == "PyslurmScheduler"
        self._scheduler = remote.as_scheduler()

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

    def power_calls(self) -> Sequence[tuple[str, frozenset[str]]]:
        return [(call.kind, frozenset(expand(call.nodes))) for call in list(self._power)]

    def report(self, text: str) -> None:
        sys.stdout.write(f"{self.cluster.release}: {text}\n")


@contextmanager
def rig(release: str, state: Path, *, pyslurm: bool = False) -> Iterator[Rig]:
    """A cluster with burstd's side of the power programs listening on its head.

    Where the root file system of a newer release, or pyslurm, cannot be had, the tests are skipped and say why.
    """
    try:
        rootfs = ensure_rootfs(release)
        layers = [pyslurm_wheel.installed(rootfs)] if pyslurm else []
    except SandboxError as error:
        if release == "bookworm":
            raise
        pytest.skip(f"{release}: {error}")
    power: list[PowerCall] = []
    binds = [BindMount(PROJECT / name, f"/opt/project/{name}") for name in ("burstd", "tests")]
    with Cluster(
        release,
        state=state,
        pools=[slurm_files.burst_pool()],
        extra_conf=EXTRA,
        head_layers=layers,
        head_binds=binds if pyslurm else [],
    ) as cluster:
        runtime = cluster.head.path("/run/burstd")
        uid = int(cluster.sh("id -u slurm"))
        server = PowerServer(runtime / "power.sock", runtime / "spool", power.append, frozenset({uid}))
        server.start()
        found = Rig(cluster, power)
        try:
            if pyslurm:
                found.use_pyslurm()
            yield found
        finally:
            server.stop()
