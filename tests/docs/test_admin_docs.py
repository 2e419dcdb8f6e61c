"""docs/admin.md, run from its first command to its last, on a cluster that has never heard of burstd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.docs.blocks import Block, shell_blocks
from tests.lab import programs, slurm_files
from tests.lab.cluster import Cluster

DOCUMENT = programs.PROJECT / "docs" / "admin.md"
STEPS = (
    "2. The program", "3. A cloud to try it with", "4. The settings", "5. Slurm", "6. Start it", "7. The first job",
    "8. Watch it and overrule it", "Upgrading burstd", "Backup", "Taking it away",
)  # fmt: skip
# As a site has it that never burst: some settings that burstd's must be joined with, some that are to be replaced.
PLAIN = """\
ClusterName=site
SlurmctldHost=head(10.77.0.2)
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SlurmctldParameters=enable_configless
SchedulerParameters=bf_continue
ReturnToService=1
NodeName=op1 NodeAddr=10.77.0.11 CPUs=2 RealMemory=1000
PartitionName=onprem Nodes=op1 Default=YES MaxTime=INFINITE State=UP
"""


class PlainCluster(Cluster):
    """A cluster without a burst partition."""

    def _conf_files(self) -> list[BoxFile]:
        files = [BoxFile("/etc/slurm/slurm.conf", PLAIN), BoxFile("/etc/slurm/gres.conf", "")]
        cgroup = slurm_files.cgroup_text(self.release)
        return files if cgroup is None else [*files, BoxFile("/etc/slurm/cgroup.conf", cgroup)]

    def _program_binds(self) -> list[BindMount]:
        return []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With the wheel in /root, what it needs installed already (a box has no network), and boxes' image cached."""
    rootfs, wheel = ensure_rootfs("bookworm"), programs.wheel()
    setup = [["rm", "-rf", "/run/burstd", "/var/spool/burstd"], ["mkdir", "-p", "/var/cache/burstd/rootfs"]]
    with PlainCluster(
        "bookworm",
        onprem=1,
        head_layers=[programs.needs(rootfs)],
        head_binds=[
            BindMount(wheel, f"/root/{wheel.name}"),
            BindMount(rootfs.path, f"/var/cache/burstd/rootfs/{rootfs.key}"),
        ],
        head_files=[
            BoxFile("/usr/local/bin/systemctl", Path(__file__).with_name("systemctl.py").read_text("utf-8"), 0o755),
            BoxFile("/etc/pip.conf", "[global]\nno-index = true\ndisable-pip-version-check = true\n"),
        ],
        head_setup=setup,
    ) as made:
        yield made


def run(cluster: Cluster, block: Block) -> str:
    """One block, as a person pastes it; the first command that fails ends it."""
    home = "/root" if block.user == "root" else f"/home/{block.user}"
    words = ["timeout", "50", "bash", "-eu", "-o", "pipefail", "-c", block.text]
    done = cluster.head.run(words, user=block.user, cwd=home, check=False)
    where = f"docs/admin.md, line {block.line} ({block.section})"
    assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{log(cluster)}"
    return done.stdout


def log(cluster: Cluster) -> str:
    """What a person would look at next."""
    look = "sinfo -N; squeue; burstctl status; burstctl event list -n 20; tail -n 30 /var/log/burstd*.log"
    return cluster.sh(look, check=False)


@pytest.mark.boxes
@pytest.mark.slurm
def test_the_document_from_its_first_command_to_its_last(cluster: Cluster) -> None:
    blocks = shell_blocks(DOCUMENT)
    assert tuple(dict.fromkeys(b.section for b in blocks)) == STEPS
    said: dict[str, str] = {}
    for block in blocks:
        said[block.section] = said.get(block.section, "") + run(cluster, block)
    assert said["4. The settings"].endswith("2 pools, 8 slots, 1 provider, policies backlog, idle, limits.\n")
    assert "idle~ burst-cpu[1-4]" in said["5. Slurm"]
    assert "Slurm 22.05.8 has what the pools need." in said["6. Start it"]
    assert "ReservationName=burstd" in said["6. Start it"]
    assert "burst-cpu[1-4],burst-gpu[1-4]" in said["6. Start it"]
    # The jobs succeeded (sbatch --wait); that they ran on machines of the cloud is in burstd's record.
    shown = said["8. Watch it and overrule it"]
    assert "burst-cpu1" in shown
    assert "burst-gpu1" in shown
    assert cluster.sh("cat /etc/slurm/slurm.conf") == PLAIN
    assert cluster.sh("cat /etc/slurm/gres.conf") == ""
    assert cluster.sh("ls -d /opt/burstd /etc/burstd /var/lib/burstd /var/spool/burstd 2>/dev/null || true") == ""
    assert "burst" not in cluster.sh("sinfo -h; scontrol show reservation")
    assert cluster.sh("ip -o link | grep -c '^[0-9]*: bd' || true") == "0\n"
    assert cluster.sh("pgrep -a python || true") == ""
