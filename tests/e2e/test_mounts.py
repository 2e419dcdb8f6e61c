"""A plain script, unchanged, on a cloud node: home, folder, output and rights are those of the site."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.e2e.sites import QUICK, STATE, events, node_box, site_up
from tests.e2e.test_running_job import Terminal
from tests.lab import programs
from tests.lab.base_site import CONFIG
from tests.lab.boxes import line_cut
from tests.lab.releases import releases
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

WORDS = "-p burst -t5 --mem=100"
PROLOG = f"PrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
CUT_S = float(os.environ.get("BURSTD_CUT_S", "5"))
"""How long a line is cut that comes back in time."""
PATIENT = f"line_timeout_s = {CUT_S + 30}\n"
IMPATIENT = "line_timeout_s = 3\n"
MISSED_LATER = f"SlurmdTimeout={CUT_S + 25:.0f}"
"""slurmctld does not give up a node whose line comes back in time."""
SETTINGS = (
    QUICK
    + f"""
[policies.idle]
keep_alive_s = 600
[mounts]
{PATIENT}[mounts.trees]
home = {{ path = "/home/{{user}}" }}
software = {{ path = "/opt/software", read_only = true, public = true }}
"""
).replace("[policies.idle]\nkeep_alive_s = 2\n", "", 1)


@pytest.fixture(scope="module", params=releases("forky", "bookworm"))
def whole_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    conf = f"{MISSED_LATER}\n{PROLOG}"
    with site_up(request.param, settings=SETTINGS, extra_conf=conf, comments=True, staging="") as up:
        up.cluster.sh("mkdir -p /opt/software/tool; echo 'echo tool 1.0' >/opt/software/tool/run; chmod 700 /home/bob")
        yield up


burstd_alone = pytest.mark.parametrize("whole_site", ["forky"], indirect=True)
"""What hangs on burstd, the kernel and ssh, and is the same with every Slurm."""


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


COUNT = """i=0
run=${SLURM_RESTART_COUNT:-0}
while [ ! -e stop ]; do i=$((i+1)); echo $i; echo "$run $i" >>log; sleep 0.05; done
echo $SLURMD_NODENAME >>nodes"""


def counted(site: Site, folder: str) -> list[tuple[int, int]]:
    """What a job has appended so far: run and number, each line whole."""
    lines = site.cluster.head.path(f"/home/ada/{folder}/log").read_text(encoding="ascii").splitlines()
    return [(int(run), int(number)) for run, number in (line.split(" ") for line in lines)]


def has_counted(site: Site, folder: str, run: int = 0, least: int = 20) -> bool:
    return f"\n{run} {least}\n" in at_home(site, f"{folder}/log")


def set_line_timeout(site: Site, line: str) -> None:
    """For streams that begin from now on."""

    def reloads() -> int:
        return sum(event["new"] == "reloaded" for event in events(site, "daemon"))

    before = reloads()
    site.write(CONFIG, site.burstd_toml().replace(PATIENT, line))
    site.signal_burstd("HUP")
    site.wait(lambda: reloads() > before, 20, "the settings are taken")


def test_a_folder_that_nodes_do_not_show_is_told_before_the_start(site: Site) -> None:
    number = site.cluster.sh(f"cd /var && sbatch --parsable -H {WORDS} --wrap true", "ada").strip()
    text = "working directory /var is not shown on nodes of pools gpu, cpu"
    site.wait(lambda: text in site.burstctl_in_process("explain", number), 20, "it is told")
    site.wait(lambda: text in site.cluster.sh(f"squeue -h -o %k -j {number}"), 20, "its comment says so")


@burstd_alone
def test_lines_are_cut_and_others_notice_nothing(site: Site, figure: Callable[[str], None]) -> None:
    waiting = sbatch(site, COUNT, f"{WORDS} --exclusive -w cpu1", folder="waiting")
    site.wait(lambda: has_counted(site, "waiting"), 60, "it counts")
    set_line_timeout(site, IMPATIENT)
    back = sbatch(site, COUNT, f"{WORDS} --exclusive -w cpu2", folder="back")
    away = sbatch(site, COUNT, f"{WORDS} -x cpu[1-2]", folder="away")
    site.wait(lambda: has_counted(site, "back") and has_counted(site, "away"), 60, "they count")
    set_line_timeout(site, PATIENT)
    lost = site.job(away)["NodeList"]
    hosts = {slot: node_box(site, slot).name for slot in ("cpu1", "cpu2", lost)}
    network = site.cluster.lab.network
    with line_cut(network, hosts[lost]):
        with line_cut(network, hosts["cpu2"]):
            with line_cut(network, hosts["cpu1"]):
                before = len(counted(site, "waiting"))
                time.sleep(CUT_S)  # how long the line is cut is what is tried
                assert len(counted(site, "waiting")) <= before + 1
            mended = time.monotonic()
            for job in (back, away):
                site.wait(lambda job=job: site.job(job)["Restarts"] == "1", 60, "it is requeued")  # type: ignore[misc]
        site.wait(lambda: len(counted(site, "waiting")) > before + 20, 3 * CUT_S + 60, "it counts on")
        figure(f"{site.release}: cut for {CUT_S:.0f} s, counts on {time.monotonic() - mended:.1f} s later at most")
        assert len(servers(site)) == 2, "the head serves cpu1 alone, its user and everybody"
        for job, node in ((back, "cpu2"), (away, lost)):
            for words in (("event", "list", "--job", job), ("explain", job)):
                said = " ".join(site.burstctl(*words).stdout.split())
                assert f"{node}: the line between the head and the node is broken" in said
        assert site.job(waiting)["Restarts"] == "0"
        every_kind_of_job(site)
        site.wait(lambda: has_counted(site, "back", 1), 90, "it counts anew on the same node")
        site.wait(lambda: has_counted(site, "away", 1), 3 * CUT_S + 60, "it counts anew on another node")
        site.cluster.sh("touch waiting/stop back/stop away/stop", "ada")
        for folder, job, runs in (("waiting", waiting, 1), ("back", back, 2), ("away", away, 2)):
            site.wait_job(job)
            found = counted(site, folder)
            last = [max((number for of, number in found if of == run), default=0) for run in range(runs)]
            assert found == [(run, number) for run in range(runs) for number in range(1, last[run] + 1)]
            shown = at_home(site, f"{folder}/slurm-{job}.out").split()
            assert shown == [str(number) for number in range(1, last[-1] + 1)]
        assert at_home(site, "back/nodes") == "cpu2\n"
        assert at_home(site, "away/nodes").strip() not in ("", lost)
    site.wait(lambda: not streams(site), 20, "no mount without a job")
    assert node_box(site, "cpu2").run(["ls", "/run/burstd/mounts"]).stdout == ""


@pytest.mark.parametrize("whole_site", ["bookworm"], indirect=True)
def test_every_kind_of_job(site: Site) -> None:
    """With the latest Slurm they run while lines are cut."""
    every_kind_of_job(site)


def every_kind_of_job(site: Site) -> None:
    site.cluster.sh("mkdir -p real; ln -sfn real linked; mkdir -p deep/er", "ada")
    array = sbatch(site, "pwd; echo $SLURM_ARRAY_TASK_ID >task.$SLURM_ARRAY_TASK_ID", f"{WORDS} --array=1-3")
    linked = sbatch(site, "pwd -P; echo here >made", folder="linked")
    moved = sbatch(site, "cd ../deep/er && pwd && echo moved >made", folder="deep")
    site.cluster.sh("mkdir -p -m 1777 /srv/unseen")
    unseen = site.cluster.sh(f"sbatch --parsable {WORDS} -D /srv/unseen --wrap pwd", "ada").strip()
    gang = sbatch(site, "srun sh -c 'echo $SLURM_PROCID >rank.$SLURM_PROCID'", f"{WORDS} -N2", folder="gang")
    run = site.cluster.sh(f"cd ~/real && srun {WORDS} sh -c 'pwd; echo srun >srun.txt'", "ada", timeout_s=90)
    assert run.strip() == "/home/ada/real"
    alloc = site.cluster.sh(f"cd ~/real && salloc {WORDS} srun cat srun.txt 2>/dev/null", "ada", timeout_s=90)
    assert alloc.strip() == "srun"
    with contextlib.closing(Terminal(site, f"sh -c 'cd ~/real && exec srun {WORDS} --pty bash'")) as shell:
        shell.expect("$ ")
        shell.type("echo $(pwd) $(cat srun.txt)")
        shell.expect("/home/ada/real srun\r\n")
        shell.type("exit 5")
        assert shell.close() == 5, shell.shown
    for number in (f"{array}_1", f"{array}_2", f"{array}_3", linked, moved, gang):
        site.wait_job(number)
    site.wait_job(unseen, ("FAILED",))
    assert site.cluster.sh("ls /srv/unseen") == ""
    made = site.cluster.sh("cat project/task.1 project/task.3 real/made deep/er/made gang/rank.0 gang/rank.1", "ada")
    assert made.split() == ["1", "3", "here", "moved", "0", "1"]
    assert at_home(site, f"linked/slurm-{linked}.out").strip() == "/home/ada/real"


FULL = """said=$(head -c 4M /dev/zero 2>&1 >big)
said="$said; $(df --output=avail . | tail -1)"
said="$said; $(echo x | dd of=small conv=fsync 2>&1)"
echo x >smaller
sync smaller && test -s smaller || said="$said; found"
mkdir told
until [ -e room ]; do sleep 0.2; done
echo "$said"
echo after >after && sync after && cat after"""


@burstd_alone
def test_a_full_home(site: Site) -> None:
    """The job is told, and goes on once there is room."""
    site.cluster.sh("mount -t tmpfs -o size=1m,mode=700,uid=3002,gid=3002 tmpfs /home/bob")
    try:
        number = sbatch(site, FULL, user="bob")
        told = site.cluster.head.path("/home/bob/project/told")
        site.wait(told.exists, 60, "its home is full")
        assert site.cluster.sh("df --output=avail /home/bob").split() == ["Avail", "0"]
        beside = sbatch(site, "pwd", folder="beside")
        site.wait_job(beside)
        assert number in site.burstctl("status").stdout + site.burstctl("job", "list").stdout
        site.cluster.sh("rm project/big; touch project/room", "bob")
        site.wait_job(number)
        first, *_ = at_home(site, f"project/slurm-{number}.out", "bob").splitlines()
        assert "Input/output error" in first
    finally:
        site.cluster.sh("umount -l /home/bob")
    site.wait(lambda: not streams(site), 20, "no mount without a job")


@burstd_alone
def test_a_job_does_not_notice_that_burstd_dies(site: Site) -> None:
    number = sbatch(site, "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep 0.05; done", folder="count")
    said = f"count/slurm-{number}.out"
    site.wait(lambda: len(at_home(site, said).splitlines()) > 20, 60, "it counts")
    site.kill_burstd()
    before = len(at_home(site, said).splitlines())
    site.wait(lambda: len(at_home(site, said).splitlines()) > before + 20, 20, "it counts on without burstd")
    site.start_burstd()
    site.wait(lambda: len(at_home(site, said).splitlines()) > before + 60, 30, "it counts on with burstd")
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


def test_slurmctld_ends_while_a_job_waits_for_its_trees(site: Site) -> None:
    """Slurm 26.05 then shows the job as running and never starts it; earlier versions run the prolog again."""
    site.wait_job(sbatch(site, "true", folder="first"))
    site.wait(lambda: not site.cluster.sh(f"ls {STATE}/mounts").split(), 20, "no mount without a job is on record")
    site.kill_burstd()
    number = sbatch(site, "pwd; echo run $SLURM_RESTART_COUNT", folder="waits")
    site.wait_job(number, ("CONFIGURING",))
    site.cluster.restart_slurmctld()
    site.start_burstd()
    again = site.cluster.release == "forky"
    if again:
        site.wait(lambda: "Restarts=1" in site.cluster.sh(f"scontrol show job {number}"), 60, "it is requeued")
        site.wait_job(number, ("PENDING",))
        site.cluster.sh(f"scontrol update jobid={number} starttime=now+3")
    site.wait_job(number)
    assert at_home(site, f"waits/slurm-{number}.out").splitlines() == [
        "/home/ada/waits",
        f"run {1 if again else ''}".strip(),
    ]
    said = " ".join(site.burstctl("event", "list", "--job", number, check=False).stdout.split())
    assert ("slurmctld ended while PrologSlurmctld ran" in said) == again


def test_a_home_that_cannot_be_mounted_is_explained_and_the_job_held(site: Site) -> None:
    number = sbatch(site, "pwd", f"{WORDS} --begin=now+1", folder="closed")
    site.cluster.sh("chmod 000 /usr/lib/openssh/sftp-server")
    try:
        site.wait(lambda: "Restarts=1" in site.cluster.sh(f"scontrol show job {number}"), 60, "its start is refused")
        said = " ".join(site.burstctl("explain", number).stdout.split())
        assert "its trees could not be mounted on" in said
        assert f"job {number} cannot start" in " ".join(site.burstctl("status").stdout.split())
        assert "no sftp-server on the head: install OpenSSH's" in said
        for restarts in ("Restarts=2", "Restarts=3"):
            site.wait_job(number, ("PENDING",))
            site.cluster.sh(f"scontrol update jobid={number} starttime=now+3")
            site.wait(partial(shows, site, number, restarts), 60, "its start is refused again")
        site.wait(lambda: "JobHeldUser" in site.cluster.sh(f"squeue -h -o %r -j {number}"), 30, "it is held")
        site.wait(lambda: "it is held" in site.burstctl_in_process("explain", number), 30, "it is told")
        assert f"then: scontrol release {number}" in " ".join(site.burstctl("explain", number).stdout.split())
    finally:
        site.cluster.sh("chmod 755 /usr/lib/openssh/sftp-server")
    site.cluster.sh(f"scontrol update jobid={number} starttime=now; scontrol release {number}", "ada")
    site.wait_job(number)
    site.wait(lambda: not streams(site), 20, "no mount without a job")


SHARED = """#BURST scratch shared 1M
#BURST scratch 1M
echo first >"$BURST_SHARED/first"
srun -N1 -n1 -r1 sh -c 'cat "$BURST_SHARED/first"; umask 027; mkdir "$BURST_SHARED/deep"
    echo second >"$BURST_SHARED/deep/second"; echo $SLURMD_NODENAME; ls -A "$BURST_SCRATCH"'
stat -c '%U %a' "$BURST_SHARED" "$BURST_SHARED/deep" "$BURST_SHARED/deep/second"; cat "$BURST_SHARED/deep/second"
echo "$SLURMD_NODENAME $BURST_SHARED"
while [ ! -e go ]; do sleep 0.2; done; srun -N1 -n1 -r1 cat "$BURST_SHARED/first"
"""


@burstd_alone
def test_the_nodes_of_a_job_share_a_directory(site: Site) -> None:
    said = "gang/out"

    def begun() -> tuple[str, str, str]:
        """Its second node, its first one, and the directory."""
        site.wait(lambda: "burst" in at_home(site, said), 90, "it runs")
        lines = at_home(site, said).splitlines()
        assert [lines[0], *lines[2:-1]] == ["first", "ada 700", "ada 750", "ada 640", "second"]
        node, _, path = lines[-1].partition(" ")
        return lines[1], node, path

    site.cluster.sh("mkdir -p gang; rm -f gang/go gang/out", "ada")
    number = sbatch(site, SHARED, f"{WORDS} -N2 -o out", folder="gang")
    second, first, path = begun()
    assert first != second
    # A second user sees nothing of it on either node.
    for node in (first, second):
        other = sbatch(site, f"ls {path}/", f"{WORDS} -w {node}", "bob")
        site.wait_job(other, ("FAILED",))
        assert "Permission denied" in at_home(site, f"project/slurm-{other}.out", "bob")
    # Who has no key of this job does not get in, and who has it gets SFTP and nothing else.
    server = node_box(site, first)
    port = server.run(["sh", "-c", "sed -n 's/^Port //p' /run/burstd/shared/*/sshd_config"]).stdout.strip()
    strange = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=no", f"-p{port}", f"ada@{server.address}", "id"]
    assert "Permission denied (publickey)" in site.storage.box.run(strange, check=False).stderr
    other_node = node_box(site, second)
    ssh = "ssh -F /run/burstd/shared/*/ssh_config"
    assert "uid" not in other_node.run(["sh", "-c", f"{ssh} shared id </dev/null"], check=False).stdout
    forward = other_node.run(["sh", "-c", f"{ssh} -W 127.0.0.1:22 shared </dev/null"], check=False)
    assert "administratively prohibited" in forward.stderr
    # ada's other processes can neither read the memory of her sshd nor run code in it: it is beyond the job's limits.
    user = ["setpriv", "--reuid=ada", "--regid=ada", "--clear-groups", "sh", "-c"]
    tried = server.run(
        [*user, "cat /proc/$$/maps >/dev/null && for p in $(pgrep -u ada sshd); do true <>/proc/$p/mem; done; true"]
    )
    assert tried.stderr.count("Permission denied") >= 2
    # burstd is killed meanwhile, and the job does not notice.
    site.kill_burstd()
    site.cluster.sh("touch gang/go", "ada")
    site.start_burstd()
    site.wait_job(number)
    assert at_home(site, said).splitlines()[-1] == "first"
    site.wait(lambda: not shared_on(site, first, second), 30, "nothing is left")
    site.cluster.sh("rm gang/go gang/out", "ada")
    number = sbatch(site, SHARED, f"{WORDS} -N2 -o out", folder="gang")
    second, first, _ = begun()
    assert shared_on(site, first, second)
    # The first node does not answer any more, as one that is gone.
    server.run(["pkill", "-STOP", "-u", "ada", "sshd"])
    site.cluster.sh(f"scancel {number}", "ada")
    site.wait(lambda: not shared_on(site, first, second), 30, "nothing is left of a job that was cancelled")


def shared_on(site: Site, *nodes: str) -> str:
    """Processes, mounts, keys and directories of shared scratch on nodes."""
    script = (
        "pgrep -af 'burstd/shared[/]'; grep -a burstd-shared /proc/mounts; ls -A /run/burstd/shared 2>/dev/null; "
        "ls -d /var/spool/burst/*.shared 2>/dev/null; true"
    )
    return "".join(node_box(site, node).run(["sh", "-c", script]).stdout for node in nodes)


def shows(site: Site, number: str, text: str) -> bool:
    """Whether Slurm says this of a job."""
    return text in site.cluster.sh(f"scontrol show job {number}")


def servers(site: Site) -> list[str]:
    return [line for line in streams(site) if "mount_worker" not in line]


def streams(site: Site) -> list[str]:
    """Processes of the head that show trees to nodes."""
    return site.cluster.sh("pgrep -af '[s]ftp-server|[m]ount_worker' || true").splitlines()
