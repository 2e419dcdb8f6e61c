"""A plain script, unchanged, on a cloud node: home, folder, output and rights are those of the site."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.sites import MISSED_SOON, QUICK, site_up
from tests.lab import programs
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

WORDS = "-p burst -t5 --mem=100"
PROLOG = f"PrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
SETTINGS = (
    QUICK
    + """
[policies.idle]
keep_alive_s = 600
[mounts]
line_timeout_s = 30
[mounts.trees]
home = { path = "/home/{user}" }
software = { path = "/opt/software", read_only = true, public = true }
"""
).replace("[policies.idle]\nkeep_alive_s = 2\n", "", 1)


@pytest.fixture(scope="module", params=["bookworm", "forky"])
def whole_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site_up(request.param, settings=SETTINGS, extra_conf=f"{MISSED_SOON}\n{PROLOG}", comments=True) as up:
        up.cluster.sh("mkdir -p /opt/software/tool; echo 'echo tool 1.0' >/opt/software/tool/run; chmod 700 /home/bob")
        yield up


@pytest.fixture
def site(whole_site: Site) -> Site:
    """The site with burstd and without jobs, whatever a test before has left."""
    if not whole_site.burstd_runs():
        whole_site.start_burstd()
    whole_site.cluster.sh("scancel -u ada; scancel -u bob")
    whole_site.wait(lambda: not whole_site.cluster.sh("squeue -h") and not streams(whole_site), 30, "no job, no mount")
    return whole_site


def sbatch(site: Site, script: str, words: str = WORDS, user: str = "ada", folder: str = "project") -> str:
    """As a user does it: a script in a folder at home, and no other line."""
    home = site.cluster.head.path(f"/home/{user}")
    site.cluster.sh(f"mkdir -p ~/{folder}", user)
    (home / folder / "train.sh").write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    return site.cluster.sh(f"cd ~/{folder} && sbatch --parsable {words} train.sh", user).strip()


def at_home(site: Site, path: str, user: str = "ada") -> str:
    return site.cluster.sh(f"cat ~/{path}", user, check=False)


def test_a_plain_script(site: Site) -> None:
    site.cluster.sh("chmod 700 .; mkdir -p project; echo input >project/input.txt", "ada")
    number = sbatch(
        site,
        "pwd; id -un; echo $SLURMD_NODENAME; cat input.txt; sh /opt/software/tool/run\n"
        "touch /opt/software/new 2>&1\n"
        "(umask 027; mkdir -p out; echo result >out/result.txt)\n"
        "echo ready; while [ ! -e go ]; do sleep 0.2; done; echo end",
    )
    said = f"project/slurm-{number}.out"
    site.wait(lambda: "ready" in at_home(site, said), 60, "live output at home")
    lines = at_home(site, said).splitlines()
    assert lines[:2] == ["/home/ada/project", "ada"]
    node = lines[2]
    assert node.startswith(("cpu", "gpu"))
    assert lines[3:5] == ["input", "tool 1.0"]
    assert "Read-only file system" in lines[5]
    assert "end" not in lines
    assert site.burstctl("job", "logs", number, user="ada").stdout.splitlines() == lines
    # Another user's job beside it, in a folder of his own.
    other = sbatch(site, "pwd; cat /home/ada/project/input.txt", f"{WORDS} -w {node}", "bob")
    site.wait_job(other, ("FAILED",))
    assert at_home(site, f"project/slurm-{other}.out", "bob").startswith("/home/bob/project\n")
    assert "Permission denied" in at_home(site, f"project/slurm-{other}.out", "bob")
    site.cluster.sh("touch project/go", "ada")
    site.wait_job(number)
    assert at_home(site, said).splitlines()[-1] == "end"
    listing = site.cluster.sh("stat -c '%U %a %n' project/out project/out/result.txt", "ada")
    assert listing.splitlines() == ["ada 750 project/out", "ada 640 project/out/result.txt"]
    site.wait(lambda: not streams(site), 20, "no mount without a job")


def test_every_kind_of_job(site: Site) -> None:
    site.cluster.sh("mkdir -p real; ln -sfn real linked; mkdir -p deep/er", "ada")
    array = sbatch(site, "pwd; echo $SLURM_ARRAY_TASK_ID >task.$SLURM_ARRAY_TASK_ID", f"{WORDS} --array=1-3")
    linked = sbatch(site, "pwd -P; echo here >made", folder="linked")
    moved = sbatch(site, "cd ../deep/er && pwd && echo moved >made", folder="deep")
    gang = sbatch(site, "srun sh -c 'echo $SLURM_PROCID >rank.$SLURM_PROCID'", f"{WORDS} -N2", folder="gang")
    run = site.cluster.sh(f"cd ~/real && srun {WORDS} sh -c 'pwd; echo srun >srun.txt'", "ada", timeout_s=90)
    assert run.strip() == "/home/ada/real"
    alloc = site.cluster.sh(f"cd ~/real && salloc {WORDS} srun cat srun.txt 2>/dev/null", "ada", timeout_s=90)
    assert alloc.strip() == "srun"
    for number in (f"{array}_1", f"{array}_2", f"{array}_3", linked, moved, gang):
        site.wait_job(number)
    made = site.cluster.sh("cat project/task.1 project/task.3 real/made deep/er/made gang/rank.0 gang/rank.1", "ada")
    assert made.split() == ["1", "3", "here", "moved", "0", "1"]
    assert at_home(site, f"linked/slurm-{linked}.out").strip() == "/home/ada/real"


def test_a_job_does_not_notice_that_burstd_dies(site: Site) -> None:
    number = sbatch(site, "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep 0.01; done", folder="count")
    said = f"count/slurm-{number}.out"
    site.wait(lambda: len(at_home(site, said).splitlines()) > 20, 60, "it counts")
    site.kill_burstd()
    before = len(at_home(site, said).splitlines())
    site.wait(lambda: len(at_home(site, said).splitlines()) > before + 50, 20, "it counts on without burstd")
    site.start_burstd()
    site.wait(lambda: len(at_home(site, said).splitlines()) > before + 300, 30, "it counts on with burstd")
    # With no burstd a job waits for its trees, and one on premises does not.
    site.kill_burstd()
    assert site.cluster.sh("srun -p onprem -t5 hostname", "bob").startswith("op")
    waiting = sbatch(site, "pwd", user="bob")
    site.start_burstd()
    site.wait_job(waiting)
    site.cluster.sh("touch count/stop", "ada")
    site.wait_job(number)
    lines = at_home(site, said).split()
    assert lines == [str(i) for i in range(1, len(lines) + 1)], "nothing is lost or doubled"
    site.wait(lambda: not streams(site), 20, "no mount without a job")


def test_a_broken_line_has_the_job_begin_anew(site: Site) -> None:
    number = sbatch(site, "echo run $SLURM_RESTART_COUNT; while [ ! -e stop ]; do sleep 0.2; done", folder="broken")
    said = f"broken/slurm-{number}.out"
    site.wait(lambda: "run" in at_home(site, said), 60, "it runs")
    site.cluster.sh("pkill -x ssh")
    site.wait(lambda: "Restarts=1" in site.cluster.sh(f"scontrol show job {number}"), 30, "it is requeued")
    events = site.burstctl("event", "list", "--job", number).stdout
    assert "the line between the head and the node is broken" in " ".join(events.split())
    site.wait(lambda: "run 1" in at_home(site, said), 60, "it runs again")
    site.cluster.sh("touch broken/stop", "ada")
    site.wait_job(number)
    site.wait(lambda: not streams(site), 20, "no mount without a job")


def test_a_home_that_cannot_be_mounted_is_explained(site: Site) -> None:
    number = sbatch(site, "pwd", f"{WORDS} --begin=now+1", folder="closed")
    site.cluster.sh("chmod 000 /usr/lib/openssh/sftp-server")
    try:
        site.wait(lambda: "Restarts=1" in site.cluster.sh(f"scontrol show job {number}"), 60, "its start is refused")
        said = " ".join(site.burstctl("explain", number).stdout.split())
        assert "its trees could not be mounted on" in said
        assert f"job {number} cannot start" in " ".join(site.burstctl("status").stdout.split())
        assert "no sftp-server on the head: install OpenSSH's" in said
    finally:
        site.cluster.sh("chmod 755 /usr/lib/openssh/sftp-server")
    site.cluster.sh(f"scancel {number}")
    site.wait(lambda: not streams(site), 20, "no mount without a job")


def streams(site: Site) -> list[str]:
    """Processes of the head that show trees to nodes."""
    return site.cluster.sh("pgrep -af '[s]ftp-server|[m]ount_worker' || true").splitlines()
