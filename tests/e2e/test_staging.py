"""A job's data, end to end: input in the store before Slurm allocates, output home whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.sites import QUICK, site_up, wait_all_gone
from tests.lab.site import CPU, Site
from tests.lab.ssh_store import DATA

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SCRIPT = """#!/bin/sh
#BURST stage_in data/{data} as set
#BURST stage_out . to results
cat "$BURST_IN/set/a.txt" > "$BURST_OUT/copy.txt"
{run}
"""
BIG_MB = 96
SLOW = 'bandwidth = "24MB"\n'
"""So that there is time to kill things while a large input or output is on its way."""
OBJECT_MB = 32


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with site_up(pools=[CPU], settings=QUICK, staging=SLOW) as up:
        yield up


@pytest.fixture
def site(whole: Site) -> Site:
    """No job, no machine, nothing of a job in the store; ada's data as in the beginning."""
    whole.cluster.sh("scancel --hurry -u ada")
    whole.wait(lambda: not whole.api("/v1/stage")["jobs"], 60, "no job's data")
    wait_all_gone(whole)
    whole.cluster.sh(
        "rm -rf data results slurm-*; mkdir -p data/set data/big; echo hello > data/set/a.txt; ln -s a.txt data/set/b; "
        f"echo hello > data/big/a.txt; head -c {BIG_MB}M /dev/urandom > data/big/large",
        "ada",
    )
    return whole


def submit(site: Site, run: str = "true", data: str = "set", words: str = "-p burst -c1 --mem=100") -> str:
    return site.submit_script(SCRIPT.format(run=run, data=data), words)


def stage(site: Site, job: str) -> dict[str, Any]:
    """The data of a job, as ``burstctl stage status`` has it."""
    found: dict[str, Any] = site.api(f"/v1/stage/{job}")["job"]
    return found


def wait_stage(
    site: Site, job: str, condition: Callable[[dict[str, Any]], bool], what: str, limit_s: float = 60
) -> None:
    """Asks burstd itself: a phase may be over before burstctl has started on a busy machine."""

    def condition_met() -> bool:
        try:
            return condition(stage(site, job))
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return False  # burstd has not looked at the queue since

    site.wait(condition_met, limit_s, f"job {job}: {what}")


def wait_over(site: Site, job: str, limit_s: float = 40) -> None:
    """The job has left Slurm's hands and nothing of its data is left."""
    wait_stage(site, job, lambda row: row["state"] == "cleared", "its data is cleared", limit_s)
    left = site.storage.box.run(["sh", "-c", f"find {DATA} -path '*/out/{job}/*' -type f"]).stdout
    assert not left, left
    assert (
        site.cluster.sh(f"ls -d /var/spool/burst/{job} /var/spool/burst/{job}-* 2>/dev/null || echo gone").strip()
        == "gone"
    )


def manifest(site: Site, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.cluster.sh(f"cat results/burst-{job}.json", "ada"))
    return found


def ends_partial(site: Site, job: str, state: str) -> None:
    """Output of a job that did not end well is home, and marked."""
    wait_over(site, job)
    told = manifest(site, job)
    assert not told["complete"], told
    assert told["state"] == state, told
    assert site.cluster.sh("cat results/copy.txt", "ada") == "hello\n"
    assert "did not end well" in site.cluster.sh(f"cat results/burst-{job}.PARTIAL", "ada")


@pytest.mark.thorough
def test_a_staged_job_is_watched_and_entered(site: Site) -> None:
    job = submit(site, "echo begun; until [ -e go ]; do sleep 0.2; done; echo ended")

    def logs(user: str = "ada") -> str:
        return site.burstctl("job", "logs", job, user=user, check=False).stdout

    site.wait(lambda: logs() == "begun\n", 60, "it has begun to write")
    assert logs("bob") == ""
    enter = site.burstctl("job", "shell", "--via", "node", job, "--", "sh", "-c", "cat $BURST_IN/set/a.txt", user="ada")
    assert enter.stdout == "hello\n"
    assert site.burstctl("job", "shell", job, "id", user="bob", check=False).stdout == ""
    site.burstctl(
        "job", "shell", job, "--", "sh", "-c", f"touch /proc/$(pgrep -of job0*{job}/slurm_script)/cwd/go", user="ada"
    )
    wait_over(site, job)
    wait_all_gone(site)
    assert logs() == "begun\nended\n", "it is home"


def test_the_main_path(site: Site) -> None:
    """The allocation comes after the data; the output comes home with its owner, modes, times and links."""
    run = 'cd "$BURST_OUT"; hostname > where; chmod 750 where; touch -d @1700000000 where; ln -s where link; echo said'
    job = submit(site, run, "big")
    waiting = site.cluster
    site.wait(lambda: waiting.sh(f"squeue -h -j {job} -o %r").strip() == "BurstBufferStageIn", 20, "Slurm's reason")
    # One look: between two of them a busy machine may have sent it.
    site.wait(lambda: "to the store" in site.burstctl_in_process("stage", "status", job), 20, "it is shown on its way")
    assert not site.job(job).get("NodeList", "").replace("(null)", "")
    site.wait_job(job)
    row = stage(site, job)
    started = site.cluster.sh(f"SLURM_TIME_FORMAT=%s scontrol -o show job {job} | grep -o 'StartTime=[0-9]*'")
    staged = site.cluster.sh(f"date -d {row['staged']} +%s")
    assert int(started.partition("=")[2]) >= int(staged) - 1
    assert row["bytes_sent"] >= BIG_MB << 20
    assert site.cluster.sh("cat results/copy.txt", "ada") == "hello\n"
    assert site.cluster.sh("cat results/where", "ada").startswith("lab-cpu")
    assert (
        site.cluster.sh("stat -c '%U %a %Y' results/where; readlink results/link", "ada")
        == "ada 750 1700000000\nwhere\n"
    )
    assert site.cluster.sh(f"cat slurm-{job}.out", "ada") == "said\n"
    told = manifest(site, job)
    assert told["complete"], told
    assert told["state"] == "COMPLETED"
    digests = {f["path"]: f["sha256"] for f in told["files"]}
    digest = site.cluster.sh("sha256sum < results/where", "ada").split()[0]
    assert digests["/home/ada/results/where"] == digest
    assert not site.cluster.sh(f"ls results/burst-{job}.PARTIAL", "ada", check=False).startswith("results")
    wait_over(site, job)
    again = submit(site, data="big")
    site.wait_job(again)
    assert stage(site, again)["bytes_sent"] == 0


def test_a_job_that_fails(site: Site) -> None:
    job = submit(site, "exit 3")
    site.wait_job(job, ["FAILED"])
    ends_partial(site, job, "FAILED")


def test_cancelled_while_its_input_is_sent(site: Site) -> None:
    job = submit(site, data="big")
    wait_stage(site, job, lambda row: row["state"] == "uploading", "it is being sent")
    site.cluster.sh(f"scancel {job}", "ada")
    site.wait_job(job, ["CANCELLED"])
    wait_over(site, job)
    assert not site.cluster.sh("ls results", "ada", check=False).startswith("copy")


def test_cancelled_while_it_runs(site: Site) -> None:
    job = submit(site, "sleep 100")
    site.wait_job(job, ["RUNNING"])
    site.cluster.sh(f"scancel {job}", "ada")
    ends_partial(site, job, "CANCELLED")


@pytest.mark.thorough
def test_its_time_is_over(site: Site) -> None:
    job = submit(site, "sleep 100")
    site.wait_job(job, ["RUNNING"])
    site.cluster.sh(f"scontrol update jobid={job} endtime=now+1")
    site.wait_job(job, ["STAGE_OUT", "TIMEOUT"], timeout_s=90)
    ends_partial(site, job, "TIMEOUT")


@pytest.mark.thorough
def test_chained_jobs(site: Site) -> None:
    """The second one's input is the first one's output: it waits until that is home, and none of it is sent again."""
    make = f'head -c {BIG_MB}M /dev/urandom > "$BURST_OUT/large"; echo small > "$BURST_OUT/small"'
    first = submit(site, make)
    script = """#!/bin/sh
#BURST stage_in results as before
#BURST stage_out sum to results/sum
cat "$BURST_IN/before/large" "$BURST_IN/before/small" | sha256sum > "$BURST_OUT/sum"
"""
    second = site.submit_script(script, f"-p burst -c1 --mem=100 --dependency=afterok:{first}")
    site.wait_job(second, timeout_s=90)
    sums = site.cluster.sh("cat results/large results/small | sha256sum; cat results/sum", "ada").splitlines()
    assert sums[0] == sums[1]
    row = stage(site, second)
    assert row["bytes_in"] > BIG_MB << 20
    assert row["bytes_sent"] < 1 << 20, "the list of its files, and burstd's own manifest"
    wait_over(site, first)
    wait_over(site, second)


@pytest.mark.thorough
def test_cancelled_while_its_output_comes_home(site: Site) -> None:
    """Slurm takes no notice of it; with --hurry the output is given up."""
    job = submit(site, f'head -c {BIG_MB}M /dev/urandom > "$BURST_OUT/large"')
    wait_stage(site, job, lambda row: row["state"] == "delivering", "its output comes home")
    site.cluster.sh(f"scancel {job}", "ada")
    wait_over(site, job)
    assert site.cluster.sh("stat -c %s results/large", "ada").strip() == str(BIG_MB << 20)
    hurried = submit(site, f'head -c {BIG_MB}M /dev/urandom > "$BURST_OUT/large2"')
    wait_stage(site, hurried, lambda row: row["state"] == "delivering", "its output comes home")
    site.cluster.sh(f"scancel --hurry {hurried}", "ada")
    wait_over(site, hurried)
    assert not site.cluster.sh("find results -name '*large2*'", "ada")


def test_a_node_that_dies_under_the_job(site: Site) -> None:
    """What was on it is lost, and said to be; the job runs again with its input, which is not sent again."""
    job = submit(site, "sleep 5", words="-p burst -c1 --mem=100 --requeue")
    site.wait_job(job, ["RUNNING"])
    (instance,) = site.instances()
    site.cloud.interrupt(instance)
    site.wait(lambda: site.job(job).get("Restarts") == "1", 90, "it is requeued")
    start_now(site, job)
    site.wait_job(job, timeout_s=120)
    wait_over(site, job)
    assert manifest(site, job)["complete"]
    assert stage(site, job)["bytes_sent"] == 0


def start_now(site: Site, job: str) -> None:
    """Slurm waits two minutes before it starts a requeued job."""
    command = f"scontrol update jobid={job} starttime=now; echo $?"
    site.wait(lambda: site.cluster.sh(command, check=False).strip() == "0", 60, "now")


@pytest.mark.thorough
def test_a_node_that_dies_while_the_input_is_placed(site: Site) -> None:
    """Slurm starts the job again only when the pre_run of its dead node was answered."""
    job = submit(site, data="big", words="-p burst -c1 --mem=100 --requeue")
    wait_stage(site, job, lambda row: row["state"] == "fetching", "it is placing")
    (node,) = stage(site, job)["nodes"]
    (instance,) = site.instances()
    site.cloud.interrupt(instance)
    # As slurmctld does by itself after SlurmdTimeout.
    site.cluster.sh(f"scontrol update nodename={node} state=down reason=dead")
    site.wait(lambda: site.job(job).get("Restarts") == "1", 30, "it is requeued")
    site.wait(lambda: site.job(job).get("Reason") not in ("Cleaning", "None"), 60, "it is cleaned up")
    start_now(site, job)
    site.wait_job(job, timeout_s=120)
    wait_over(site, job)
    assert manifest(site, job)["complete"]


@pytest.mark.parametrize(
    "moment",
    [
        "uploading",
        "delivering",
        *(pytest.param(m, marks=pytest.mark.thorough) for m in ("fetching", "fetched", "collecting")),
    ],
)
def test_burstd_killed(site: Site, moment: str) -> None:
    """Whenever it dies, the job goes on, its output comes home, and what was sent is not sent again."""
    job = submit(site, 'sleep 1; cp "$BURST_IN/set/large" "$BURST_OUT/large"', "big")

    def reached(row: dict[str, Any]) -> bool:
        done = sum(t["bytes_sent"] for t in row["transfers"])
        return row["state"] == moment and (moment != "uploading" or done > OBJECT_MB << 20)

    wait_stage(site, job, reached, f"it is {moment}")
    site.kill_burstd("KILL")
    site.start_burstd()
    site.wait_job(job, timeout_s=90)
    wait_over(site, job)
    assert site.cluster.sh("cmp data/big/large results/large && echo same", "ada") == "same\n"
    assert manifest(site, job)["complete"]
    if moment == "uploading":
        # One object that was on its way is lost at most for each lane.
        assert stage(site, job)["bytes_sent"] <= (BIG_MB - OBJECT_MB + 1) << 20
