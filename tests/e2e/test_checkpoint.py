"""A job that counts, whose machines die: it goes on from its last checkpoint, and counts nothing twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import TYPES_WITH_SPOT, database, site_up, wait_all_gone
from tests.e2e.test_spot import SPOT
from tests.e2e.test_staging import stage, start_now, wait_over, wait_stage
from tests.lab.releases import releases
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

EVERY_S = 10
NOTICE_S = 45.0
LAST = 120
COUNT = """#!/bin/sh
#SBATCH -p burst -c1 --mem=100 -t9 --requeue
#BURST stage_out numbers to results
#BURST checkpoint {line}
save() {{ cp numbers state.tmp && mv state.tmp state; }}
cd "$BURST_OUT"
: > numbers
[ -z "$BURST_CHECKPOINT" ] || cp "$BURST_CHECKPOINT" numbers
n=$(wc -l < numbers)
{trap}
# The first run does not end by itself.
until [ $n -ge 120 ] && [ ${{SLURM_RESTART_COUNT:-0}} -gt 0 ]; do
  if [ $n -lt 120 ]; then
    n=$((n + 1))
    echo "$n run ${{SLURM_RESTART_COUNT:-0}}" >> numbers
    {each}
  fi
  sleep 0.2
done
"""


def on(release: str) -> pytest.MarkDecorator:
    """Each release of Slurm in one test, in the long run in all."""
    others = {"bookworm", "trixie"} - {release}
    return pytest.mark.parametrize("site", releases(release, *others), indirect=True, scope="module")


GANG = """#!/bin/sh
#SBATCH -p burst -N2 --ntasks-per-node=1 -c1 --mem=100 -t9 --requeue
#BURST stage_in count
#BURST stage_in save
#BURST stage_out numbers.* to results
#BURST checkpoint state every=1h within=25s command='srun --overlap sh "$BURST_IN/save" && echo saved'
cd "$BURST_OUT" && srun --overlap sh "$BURST_IN/count"
"""
SAVE = "cp numbers.$SLURM_NODEID state.tmp && mv state.tmp state"
COUNT_ON_NODE = """numbers=numbers.$SLURM_NODEID
: > $numbers
[ -z "$BURST_CHECKPOINT" ] || cp "$BURST_CHECKPOINT" $numbers
n=$(wc -l < $numbers)
until [ $n -ge 120 ] && [ ${SLURM_RESTART_COUNT:-0} -gt 0 ]; do
  if [ $n -lt 120 ]; then
    n=$((n + 1))
    echo "$n run ${SLURM_RESTART_COUNT:-0}" >> $numbers
  fi
  sleep 0.2
done
"""


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    try:
        ensure_rootfs(request.param)
    except SandboxError as error:
        pytest.skip(str(error))
    with site_up(request.param, pools=[SPOT], types=TYPES_WITH_SPOT, staging="") as up:
        up.cluster.sh("mkdir -p results", "ada")
        yield up


def numbers(site: Site, file: str) -> list[tuple[int, int]]:
    """What came home: each number, and the run that wrote it."""
    lines = site.cluster.sh(f"cat results/{file}", "ada").splitlines()
    return [(int(line.split()[0]), int(line.split()[2])) for line in lines]


@on("bookworm")
def test_a_job_that_counts_outlives_its_machines(site: Site, figure: Callable[[str], None]) -> None:
    line = f"state every={EVERY_S}s keep=2"
    job = site.submit_script(COUNT.format(line=line, trap="", each="save"))
    wait_stage(site, job, lambda row: len(row["checkpoints"]) == 2, "it has two checkpoints", 90)
    (instance,) = site.instances()
    newest = stage(site, job)["checkpoints"][-1]["path"]
    assert f"checkpoint {newest} has " in site.burstctl("explain", job).stdout
    end = time.monotonic() + random.uniform(0, EVERY_S)  # noqa: S311 - any moment will do
    site.wait(lambda: time.monotonic() > end, EVERY_S + 5, "that moment")
    kept = site.api(f"/v1/stage/{job}")
    now, taken = (datetime.fromisoformat(one) for one in (kept["now"], kept["job"]["checkpoints"][-1]["taken"]))
    assert (now - taken).total_seconds() < 2 * EVERY_S
    site.cloud.interrupt(instance)
    damage_newest(site, job)
    starts_again(site, job)
    # Its variables name what is gone, so it is started once more, with the one before.
    site.wait(lambda: "is given up" in said_of(site, job), 60, "the damage is found")
    site.wait(lambda: site.job(job)["Restarts"] == "2", 30, "it is requeued once more")
    start_now(site, job)
    (found,) = ends_whole(site, job, ["numbers"])
    figure(f"{site.release}: {run_of_first(found)} of {LAST} numbers were counted before the machine died")
    wait_all_gone(site)


@pytest.mark.thorough
@on("trixie")
def test_a_job_that_is_told_before_its_machine_goes_loses_nothing(site: Site, figure: Callable[[str], None]) -> None:
    line = "state every=1h signal=B:USR1 within=20s"
    job = site.submit_script(COUNT.format(line=line, trap="trap save USR1", each=":"))
    site.wait_job(job, ["RUNNING"], 90)
    site.wait(lambda: "step" in site.cluster.sh(f"squeue -h -s -j {job} -o '%i step'"), 20, "its batch step")
    (instance,) = site.instances()
    site.cloud.interrupt(instance, NOTICE_S)
    starts_again(site, job)
    (found,) = ends_whole(site, job, ["numbers"])
    figure(f"{site.release}: {run_of_first(found)} of {LAST} numbers were counted before the job was told")
    wait_all_gone(site)


@pytest.mark.thorough
@on("trixie")
def test_a_command_saves_a_job_of_two_nodes_before_one_of_them_goes(site: Site) -> None:
    for name, text in (("count", COUNT_ON_NODE), ("save", SAVE)):
        (site.cluster.head.path("/home/ada") / name).write_text(text, encoding="utf-8")
    job = site.submit_script(GANG)
    site.wait_job(job, ["RUNNING"], 90)
    site.wait(lambda: f"{job}.0" in site.cluster.sh(f"squeue -h -s -j {job} -o %i"), 20, "its step")
    site.cloud.interrupt(site.instances()[-1], NOTICE_S)
    site.wait(lambda: "saved" in site.cluster.sh(f"cat slurm-{job}.out", "ada", check=False), 90, "what it said")
    assert "the checkpoint command ended with exit code 0" in said_of(site, job)
    starts_again(site, job)
    ends_whole(site, job, ["numbers.0", "numbers.1"])
    wait_all_gone(site)


def damage_newest(site: Site, job: str) -> None:
    """The store loses what the newest checkpoint begins with; burstd is killed for a moment."""
    with database(site, "KILL") as reader:
        older, newest = reader.staging(job).checkpoints
    assert older.trees["0"].digest != newest.trees["0"].digest
    key = newest.trees["0"].manifest[0].key
    found = site.storage.box.run(["sh", "-c", f"find / -path '*/checkpoint/{job}/*' -name {key} -print -delete"]).stdout
    assert found
    site.start_burstd()


def run_of_first(found: list[tuple[int, int]]) -> int:
    """How many numbers the first run has counted."""
    return sum(1 for _, run in found if run == 0)


def said_of(site: Site, job: str) -> str:
    """burstd's log of a job, on one line."""
    return " ".join(site.burstctl("event", "list", "--job", job).stdout.split())


def starts_again(site: Site, job: str) -> None:
    """Its machine is gone, and it does not wait as long as Slurm has it wait."""
    site.wait(lambda: site.job(job).get("Restarts") == "1", 90, "it is requeued")
    start_now(site, job)


def ends_whole(site: Site, job: str, files: list[str]) -> list[list[tuple[int, int]]]:
    """Its second run goes on where the first one was saved, and nothing of it is left in the store."""
    site.wait_job(job, timeout_s=120)
    wait_over(site, job)
    each = [numbers(site, file) for file in files]
    for found in each:
        assert [number for number, _ in found] == list(range(1, LAST + 1)), "whole, and nothing twice"
        assert run_of_first(found)
    assert not site.storage.box.run(["sh", "-c", f"find / -path '*/checkpoint/{job}/*' -type f"]).stdout
    return each
