"""docs/admin.md, run from its first command to its last, on a cluster that has never heard of burstd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from subprocess import CompletedProcess

import pytest

from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.docs.blocks import Block, shell_blocks
from tests.lab import programs, slurm_files
from tests.lab.cluster import Cluster
from tests.lab.deb import ensure_deb
from tests.systemd.pid1 import SystemdBox, cgroup2, systemd_in

DOCUMENT = programs.PROJECT / "docs" / "admin.md"
RELEASE = "trixie"  # its root file system has systemd
STEPS = (
    "Install", "The first job", "The settings", "Watch it and overrule it", "Upgrading burstd", "Backup",
    "Taking it away",
)  # fmt: skip
# As a site has it that never burst: some settings that burstd's must be joined with, some that are to be replaced.
PLAIN = """\
ClusterName=site
SlurmctldHost=head
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
SuspendTime=-1
ReturnToService=1
NodeName=DEFAULT CoresPerSocket=1
NodeName=op1 NodeAddr=10.77.0.11 CPUs=2 RealMemory=1000
PartitionName=onprem Nodes=ALL Default=YES MaxTime=INFINITE State=UP"""
_LOOKED_AT = "/etc /opt /usr /srv /var/lib /var/cache /var/spool /run/burstd"
_OTHERS = "/var/lib/(slurm|systemd|dpkg|apt)|/var/cache/(ldconfig|apt|debconf)|__pycache__|/etc/[a-z]+-$|/etc/.pwd.lock"
_APT = 'APT::Get::Assume-Yes "true";\nDpkg::Options { "--force-unsafe-io"; };\nAPT::Sandbox::User "root";\n'
_CGROUPS = "s,proctrack/linuxproc,proctrack/cgroup,; s,task/none,task/affinity\\nEpilog=/etc/slurm/epilog.clean,"
# Where slurmctld is asked to start with burstd's lines.
_REFUSING = "ExecStartPre=+/bin/sh -c 'grep -q burst-cpu /etc/slurm/slurm.conf || exit 0; {}'"


class PlainCluster(Cluster):
    """A cluster without a burst partition."""

    def _conf_files(self) -> list[BoxFile]:
        files = [BoxFile("/etc/slurm/slurm.conf", PLAIN)]
        cgroup = slurm_files.cgroup_text(self.release)
        return files if cgroup is None else [*files, BoxFile("/etc/slurm/cgroup.conf", cgroup)]

    def _program_binds(self) -> list[BindMount]:
        return []


@dataclass(frozen=True, slots=True)
class Head:
    """The head, where systemd has started slurmctld. ``files``: all paths before burstd came."""

    cluster: Cluster
    systemd: SystemdBox
    cached: str
    files: frozenset[str]

    def sh(self, text: str, user: str = "root", *, check: bool = True) -> CompletedProcess[str]:
        """As a person pastes it; the first command that fails ends it."""
        home = "/root" if user == "root" else f"/home/{user}"
        words = ["env", f"--chdir={home}", f"HOME={home}", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        words += ["bash", "-eu", "-o", "pipefail", "-c", text]
        become = [] if user == "root" else ["runuser", "-u", user, "--"]
        return self.systemd.run([*become, *words], check=check, timeout=200)

    def run(self, block: Block) -> str:
        """One block of the document; its output."""
        done = self.sh(block.text, block.user, check=False)
        where = f"docs/admin.md, line {block.line} ({block.section})"
        log = "sinfo -N; squeue; burstctl status; burstctl event list -n 20; journalctl -q -n 40 -u 'burstd*'"
        said = "" if done.returncode == 0 else self.sh(log, check=False).stdout
        assert done.returncode == 0, f"{where} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{said}"
        return done.stdout

    def paths(self) -> frozenset[str]:
        """All of the folders in which programs keep files."""
        find = f"find {_LOOKED_AT} -xdev 2>/dev/null | grep -Ev '{_OTHERS}' || true"
        return frozenset(self.systemd.run(["sh", "-c", find]).stdout.splitlines())

    def slurm_files(self) -> str:
        """What Slurm reads, by name and content."""
        return self.sh(
            'cd /etc/slurm; for f in *.conf* burst*; do if test -f $f; then echo "$f:"; cat $f; fi; done'
        ).stdout


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """With the package in /root, and boxes' image cached, as a box has no network."""
    if cgroup2() is None:
        pytest.skip("systemd needs cgroup v2, and this machine has none mounted")
    rootfs, package = ensure_rootfs(RELEASE), ensure_deb(RELEASE)
    cached = f"/var/cache/burstd/rootfs/{rootfs.key}"
    with PlainCluster(
        RELEASE,
        onprem=1,
        head_binds=[BindMount(package, f"/root/{package.name}"), BindMount(rootfs.path, cached)],
        head_files=[BoxFile("/etc/apt/apt.conf.d/90test", _APT)],
        head_setup=[["rm", "-rf", "/run/burstd", "/var/spool/burstd"]],
    ) as cluster:
        cluster.stop_slurmctld()
        # As sites have it. The node on premises has no cgroups, and goes on with what it was started with.
        cluster.sh(f"sed -i '{_CGROUPS}' /etc/slurm/slurm.conf")
        with systemd_in(cluster.head, shared_run=True, mask=("munge", "slurmd", "ssh")) as systemd:
            systemd.systemctl("start", "slurmctld")
            made = Head(cluster, systemd, cached, frozenset())
            yield Head(cluster, systemd, cached, made.paths())


@pytest.mark.boxes
@pytest.mark.slurm
def test_an_init_that_fails_or_is_killed_is_undone(head: Head) -> None:
    before = head.slurm_files()
    install = next(block for block in shell_blocks(DOCUMENT) if block.section == "Install")
    assert "burstctl init" in install.text
    head.sh(install.text.partition("burstctl init")[0])
    drop_in = "/etc/systemd/system/slurmctld.service.d/test.conf"

    def slurmctld_does(what: str) -> None:
        head.sh(f"mkdir -p $(dirname {drop_in})")
        head.systemd.run(["sh", "-c", f'printf "%s\\n" "[Service]" "$1" >{drop_in}', "sh", _REFUSING.format(what)])
        head.systemd.systemctl("daemon-reload")

    slurmctld_does('echo "fatal: no such plugin" >>/var/log/slurm/slurmctld.log; exit 1')
    failed = head.sh("burstctl init --yes --no-deep", check=False)
    assert failed.returncode == 1
    assert "It failed, and is undone: slurmctld does not start:\n  fatal: no such plugin\n" in failed.stdout
    assert failed.stderr == "burstctl: burstd is not installed into Slurm, whose files are as they were.\n"
    assert head.slurm_files() == before
    assert head.sh("scontrol ping").returncode == 0
    slurmctld_does("kill -9 $(cat /run/init.pid)")
    killed = head.sh("echo $$ >/run/init.pid; exec burstctl init --yes --no-deep", check=False)
    assert killed.returncode in (-9, 137)
    assert head.slurm_files() != before
    again = head.sh(
        "rm -r /etc/systemd/system/slurmctld.service.d /run/init.pid; systemctl daemon-reload; burstctl uninit -y"
    )
    assert "burstd is out of Slurm.\n" in again.stdout
    assert head.slurm_files() == before
    assert head.sh("burstctl uninit -y").stdout == "There is nothing to undo: burstctl init did nothing here.\n"


@pytest.mark.boxes
@pytest.mark.slurm
def test_the_document_from_its_first_command_to_its_last(head: Head) -> None:
    before = head.slurm_files()
    blocks = shell_blocks(DOCUMENT)
    assert tuple(dict.fromkeys(b.section for b in blocks)) == STEPS
    commands = [line for b in blocks if b.section in STEPS[:2] for line in b.text.splitlines() if "cd " not in line]
    assert len(commands) == 4, "from nothing to the output of a job"
    said: dict[str, str] = {}
    for block in blocks:
        if block.section == "Taking it away":
            # An uninit that fails goes on when it is run again. The file system is the box's own: it stands for what
            # 'burstctl init' downloads.
            failed = head.sh("burstctl uninit --purge --yes", check=False)
            assert (failed.returncode, "so /var/cache/burstd was not removed" in failed.stderr) == (1, True), failed
            head.sh(f"umount -l {head.cached}")
        said[block.section] = said.get(block.section, "") + head.run(block)
    install = said["Install"]
    assert "+PartitionName=burst Nodes=burst-cpu[1-4],burst-gpu[1-4] MaxTime=INFINITE State=UP\n" in install
    assert "Slurm 24.11.5 has what the pools need.\n" in install
    assert "it ran as ada (uid 3001) in /home/ada\nIt works. The trial cost " in install
    assert said["The first job"].endswith("/home/ada\nGPU 0\n")
    assert "idle~ burst-cpu[2-6],burst-gpu[2-4]" in said["The settings"]
    # The jobs succeeded (sbatch --wait); that they ran on machines of the cloud is in burstd's record.
    shown = said["Watch it and overrule it"]
    assert "burst-cpu1" in shown
    assert "burst-gpu1" in shown
    assert head.slurm_files() == before
    head.sh("rm -rf /var/backups/burstd")
    assert sorted(head.paths() - head.files) == []
    assert "burst" not in head.sh("sinfo -h; scontrol show reservation; getent group").stdout
    assert head.sh("ip -o link | grep -c '^[0-9]*: bd' || true").stdout == "0\n"
    assert head.sh("pgrep -a python || true").stdout == ""
