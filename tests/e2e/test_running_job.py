"""Running jobs, watched and entered by their owners, on the shared site."""

from __future__ import annotations

import subprocess

import pytest

from burstd.cli.session import ExitCode
from tests.lab.programs import PREFIX
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
    assert waiting.poll() is None
    waiting.kill()
    assert b"pending: BeginTime" in waiting.communicate()[1]
