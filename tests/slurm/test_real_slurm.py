"""The scheduler contract on the real Slurm of each Debian release."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from burstd.slurm.commands.controller import read_controller_config
from burstd.slurm.commands.nodes import NodeReader
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.config import check
from burstd.slurm.config.render import SlurmConfOptions
from burstd.slurm.state_watch import StateWatch
from burstd.testing.slurm.cluster import submit_job
from burstd.testing.slurm.scheduler_contract import SchedulerContract
from tests.lab import slurm_files
from tests.slurm.rig import Rig, rig

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


LEGS = {"bookworm": False, "trixie": False, "forky": False, "forky-pyslurm": True}


@pytest.fixture(scope="module", params=LEGS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    release = request.param.removesuffix("-pyslurm")
    with rig(release, tmp_path_factory.mktemp("cluster"), pyslurm=LEGS[request.param]) as found:
        yield found


class TestRealSlurm(SchedulerContract):
    def test_what_is_said_of_the_configuration_holds(self, cluster: Rig) -> None:
        commands = SlurmCommands(cluster.run)
        controller = read_controller_config(commands)
        assert str(controller.state_save_location) == slurm_files.STATE
        assert controller.slurm_uid == int(cluster.shell("id -u slurm"))
        version = slurm_files.VERSIONS[cluster.cluster.release]
        options = SlurmConfOptions(version, onprem_partitions=("onprem",), resume_timeout_s=7, suspend_timeout_s=2)
        running = check.read_running_slurm(commands)
        found = check.compare_slurm_conf(cluster.cluster.pools, options, running)
        assert [(f.subject, f.recommended) for f in found] == [("SchedulerParameters", True), ("AllocNodes", True)]

    def test_nodes_are_read_with_one_command_once_sinfo_has_told_their_names(self, cluster: Rig) -> None:
        asked: list[str] = []

        def run(
            argv: Sequence[str], environment: Mapping[str, str], timeout_s: float
        ) -> subprocess.CompletedProcess[str]:
            asked.append(argv[0])
            return cluster.run(argv, environment, timeout_s)

        reader = NodeReader(SlurmCommands(run), lambda wall: wall)
        found = reader.read_all()
        assert asked == ["scontrol", "sinfo"]
        assert [node.name for node in reader.read_all()] == [node.name for node in found]
        assert asked == ["scontrol", "sinfo", "scontrol"]
        named = [node.name for node in found]
        assert [node.name for node in reader.read_named([*named, "no-such-node"])] == named
        assert not any(node.unreliable_because for node in found)

    def test_a_job_is_heard_of_in_the_state_folder(self, cluster: Rig) -> None:
        heard = threading.Event()
        watch = StateWatch(cluster.cluster.head.path(slurm_files.STATE), heard.set)
        assert watch.start() == ""
        before = time.monotonic()
        submit_job(cluster, "")
        assert heard.wait(10)
        cluster.report(f"sbatch started to hint: {time.monotonic() - before:.2f} s")
        watch.stop()
