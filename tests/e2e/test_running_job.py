"""Running jobs, watched and entered by their owners, on the shared site."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator

import pytest

from burstd.cli.session import ExitCode
from tests.e2e.conftest import SETTINGS
from tests.e2e.conftest import SOLO as SOLO_POOL
from tests.e2e.sites import MISSED_SOON, queue, site_up
from tests.lab.programs import PREFIX
from tests.lab.releases import releases
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SOLO = "-p burst -C solo -c1 --mem=200 -t5"
_SCRIPT = """echo begun; echo trouble >&2; ln -s /etc/shadow err2.txt
until [ -e go ]; do sleep 0.2; done
printf '\\033[31mred\\n'; seq 3
"""


def burstctl(site: Site, *words: str, user: str = "ada") -> subprocess.Popen[bytes]:
    """burstctl in the background."""
    return site.cluster.head.popen(
        [f"{PREFIX}/bin/burstctl", *words], user=user, cwd=f"/home/{user}",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_running_jobs_output_is_its_owners(site: Site) -> None:
    waiting = burstctl(site, "job", "logs", "-f", site.submit(f"{SOLO} --begin=now+1hour"))
    job = site.submit(f"{SOLO} -e err.txt", _SCRIPT)
    # It keeps the machine until the end of the first one's output was read.
    site.submit(SOLO, "sleep 300")

    def logs(*words: str, user: str = "ada") -> subprocess.CompletedProcess[str]:
        return site.burstctl("job", "logs", job, *words, user=user, check=False)

    site.wait(lambda: logs().stdout == "begun\n", 60, "the job has begun to write")
    assert logs("--stderr").stdout == "trouble\n"
    assert logs(user="root").stdout == "begun\n"
    refused = logs(user="bob")
    assert (refused.returncode, refused.stdout) == (ExitCode.FORBIDDEN, "")
    assert f"You are bob, and job {job} is not yours." in refused.stderr
    follower = burstctl(site, "job", "logs", "-f", job)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"begun\n"
    # burstd is started again under it.
    site.kill_burstd()
    site.start_burstd()
    site.cluster.sh(f"srun --jobid {job} --overlap touch go", "ada")
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, out) == (0, b"\x1b[31mred\n1\n2\n3\n"), err
    assert b"burstd hung up" in err
    assert logs("-n", "1").stdout == "3\n", "its machine is still there"
    _notebook_is_its_owners(site)
    assert waiting.poll() is None
    waiting.kill()
    assert b"pending: BeginTime" in waiting.communicate()[1]


def _notebook_is_its_owners(site: Site) -> None:
    """With a server of Python's own in the place of Jupyter."""
    serve = 'serve() { python3 -m http.server -b 127.0.0.1 "$port"; }; serve'
    shown = burstctl(site, "--json", "notebook", *SOLO.split(), "--command", serve)
    assert shown.stdout is not None
    found = next(one for line in shown.stdout if "url" in (one := json.loads(line)))
    token, job = found["url"].partition("token=")[2], found["job"]
    read = f"{PREFIX}/bin/python -c 'import httpx; print(httpx.get(\"{found['url']}\"))'"
    assert site.cluster.sh(read, "ada") == "<Response [200 OK]>\n"
    script = f"scontrol write batch_script {job} - || true"
    assert f"token={token}\n" in site.cluster.sh(script, "ada")
    seen = site.cluster.sh(f"squeue -a -o %all; scontrol -dd show job {job}; ps axww -o args; {script}", "bob")
    assert len(token) == 48
    assert token not in seen
    site.cluster.sh(f"scancel {job}", "ada")
    assert f"Job {job} does not run any more." in shown.communicate(timeout=60)[1].decode()


_SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


class Terminal:
    """A command on a terminal of the head, which somebody types into and reads."""

    def __init__(self, site: Site, command: str, user: str = "ada") -> None:
        words = ["sh", "-c", f"stty rows 33 cols 99; exec {command}"]
        self._process = site.cluster.head.popen(
            [f"{PREFIX}/bin/python", "-c", _SPAWN, *words], user=user, cwd=f"/home/{user}",
            env={"PATH": f"{PREFIX}/bin:/usr/bin:/bin", "SHELL": "/bin/bash"}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.shown = b""

    def expect(self, text: str, timeout_s: float = 60.0) -> None:
        """Returns once this is shown, after what was expected before."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while text.encode() not in self.shown:
            left = deadline - time.monotonic()
            piece = b""
            if left > 0 and select.select([self._process.stdout], [], [], left)[0]:
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
            assert piece, f"{text!r} was not shown: {self.shown!r}"
            self.shown += piece
        self.shown = self.shown.partition(text.encode())[2]

    def type(self, text: str) -> None:
        """Types a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def close(self) -> int:
        """The exit status, once the command has ended."""
        try:
            out, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        self.shown += out
        return self._process.returncode


@pytest.fixture(scope="module", params=releases("bookworm", "forky"))
def any_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The shared site, and one with the latest Slurm."""
    if request.param == "bookworm":
        yield request.getfixturevalue("whole_site")
        return
    ports = "SrunPortRange=61001-61100"
    with site_up(request.param, pools=[SOLO_POOL], settings=SETTINGS, extra_conf=f"{MISSED_SOON}\n{ports}") as up:
        yield up


def test_salloc_srun_and_shells_behave_as_on_premises(any_site: Site) -> None:
    site = any_site
    if site.release != "bookworm":
        # On a node that boots salloc looks at longer and longer intervals whether it is there; once is enough.
        site.wait_job(site.submit(SOLO, "sleep 300"), ["RUNNING"])
    node = "echo on-$(uname -n | grep -o solo1) $(stty size) in-$SLURM_JOB_ID"
    with contextlib.closing(Terminal(site, f"salloc {SOLO}")) as allocated:
        allocated.expect("Granted job allocation ")
        job = re.match(rb"(\d+)", allocated.shown)
        allocated.expect("$ ")
        allocated.type("srun uname -n | sed s/^/step-on-/")
        allocated.expect("step-on-lab-solo1-")
        allocated.expect("$ ")
        # The allocation can be entered while it has no step.
        assert job is not None
        for way in ("srun", "node"):
            with contextlib.closing(Terminal(site, f"burstctl job shell --via {way} {job[1].decode()}")) as shell:
                shell.expect("$ ")
                shell.type(node)
                shell.expect(f"on-solo1 33 99 in-{job[1].decode()}")
                shell.type("exit 6")
                assert shell.close() == 6, shell.shown
        allocated.type("exit 3")
        assert allocated.close() == 3, allocated.shown
    with contextlib.closing(Terminal(site, f"srun {SOLO} --pty bash")) as shell:
        shell.expect("$ ")
        shell.type(node)
        shell.expect("on-solo1 33 99 in-")
        shell.type("exit 5")
        assert shell.close() == 5, shell.shown


def test_where_srun_is_not_reached_burstd_enters_the_node(any_site: Site) -> None:
    site = any_site
    if site.release == "bookworm":
        pytest.skip("the shared site is left as it is")
    job = site.submit(SOLO, "sleep 300")
    site.wait_job(job, ["RUNNING"])
    # As a firewall does: the node reaches slurmctld, and not srun's ports.
    (node,) = site.cloud.instances()
    enter = "ssh -i /var/lib/burstd/ssh_key -o BatchMode=yes -o StrictHostKeyChecking=no"
    rule = "ip rule add to 10.77.0.2 ipproto tcp dport 61001-61100 blackhole"
    site.cluster.sh(f"{enter} root@{node.address} {rule}")
    told = site.burstctl("job", "shell", job, "--", "id", "-un", user="ada", check=False)
    assert (told.returncode, told.stdout) == (0, "ada\n")
    assert "no step began within 5 s; solo1 may not reach this host's ports" in told.stderr
    steps = f"squeue -hs -j {job} -o %i"
    site.wait(lambda: site.cluster.sh(steps) == f"{job}.batch\n", 60, "the step that was tried is gone")


def test_a_shell_in_a_batch_job_is_its_owners_and_ends_with_it(site: Site) -> None:
    job = site.submit(f"{SOLO} --export=ALL,COLOUR=teal", "mkdir -p here; cd here; touch in; sleep 300")
    site.submit(SOLO, "sleep 300")

    def enter(*words: str, user: str = "ada") -> subprocess.CompletedProcess[str]:
        return site.burstctl("job", "shell", *words, user=user, check=False)

    tell = ("--", "sh", "-c", 'echo "$(id -un) $COLOUR $(ls) $SLURM_JOB_ID"; echo trouble >&2; exit 7')
    site.wait(lambda: enter("--via", "node", job, *tell).stdout.startswith("ada teal in "), 60, "it has begun")
    told = enter("--via", "node", job, *tell)
    assert (told.returncode, told.stdout) == (7, f"ada teal in {job}\ntrouble\n")
    told = enter(job, "--", "sh", "-c", "echo $SLURM_JOB_ID; exit 7")
    assert (told.returncode, told.stdout) == (7, f"{job}\n"), "srun enters it where it can"
    told = enter(job, *tell, user="root")
    assert (told.returncode, told.stdout) == (7, f"ada teal in {job}\ntrouble\n")
    assert "srun cannot enter the job (the job is ada's)" in told.stderr
    for refused in (enter(job, "id", user="bob"), enter("--via", "node", job, "id", user="bob")):
        assert (refused.returncode, refused.stdout) == (ExitCode.FORBIDDEN, "")
    missing = enter("--node", "gpu1", job, "id")
    assert (missing.returncode, missing.stdout) == (ExitCode.NOT_FOUND, "")

    with contextlib.closing(Terminal(site, f"burstctl job shell --via node {job}")) as shell:
        shell.expect("$ ")
        shell.type("nohup sleep 7777 >left & sleep 8888")
        shell.expect("sleep 8888")
        # Another of ada's jobs on the node sees her processes.
        other = next(row[0] for row in queue(site, "running") if row[0] != job)
        seen = ("--via", "node", other, "--", "pgrep", "-fc", "^sleep [78]{4}$")
        site.wait(lambda: enter(*seen).stdout == "2\n", 20, "both run")
        site.cluster.sh(f"scancel {job}")
        assert shell.close() == ExitCode.NEGATIVE
        assert f"Job {job} does not run any more.".encode() in shell.shown
        site.wait(lambda: enter(*seen).stdout == "0\n", 20, "both have ended with the job")
