"""docs/projects.md: its commands, run on a real Slurm with slurmdbd and projects, and what it says of failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.blocks import shell_blocks
from tests.e2e.sites import QUICK, site_up
from tests.lab import accounting, demo_projects
from tests.lab.programs import PREFIX, PROJECT
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

DOCUMENT = PROJECT / "docs" / "projects.md"
SETTINGS = QUICK + demo_projects.SETTINGS
"""Four quotas give away all GPUs, as at the prompt of ``make demo-shell``."""
LOWER = "project set d --quota 5"
NEW = "project create e --account team-e --quota 2 --partitions onprem"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    gpus = demo_projects.GPUS_OF_A_NODE
    # Its sacctmgr takes a sixth of the time of 22.05's; tests/slurm/test_projects.py has all three.
    with site_up("trixie", settings=SETTINGS, projects=demo_projects.PROJECTS, onprem_gpus=gpus) as up:
        yield up


def burstctl(site: Site, words: str) -> tuple[int, str]:
    done = site.burstctl(*words.split(), check=False)
    return done.returncode, done.stdout + done.stderr


def pending(site: Site) -> dict[str, str]:
    return {project["name"]: project["pending"] for project in site.api("/v1/projects")["projects"]}


def test_the_commands_of_the_document(site: Site) -> None:
    said: list[str] = []
    for block in shell_blocks(DOCUMENT):
        home = "/root" if block.user == "root" else f"/home/{block.user}"
        words = ["timeout", "50", "bash", "-eu", "-o", "pipefail", "-c", f"PATH=$PATH:{PREFIX}/bin\n{block.text}"]
        done = site.cluster.head.run(words, user=block.user, cwd=home, check=False)
        assert done.returncode == 0, f"{DOCUMENT.name}, line {block.line}:\n{done.stdout}{done.stderr}"
        said.append(done.stdout)
    job, listed, lowered, dry_run, made, changed, deleted = said
    site.wait(lambda: "RUNNING" in site.cluster.sh(f"squeue -h -j {job.split()[-1]} -o %T,%P"), 30, "the job's start")
    assert site.cluster.sh(f"squeue -h -j {job.split()[-1]} -o %P") == "q-a\n"
    assert [line.split()[0] for line in listed.splitlines()[1:5]] == ["a", "b", "c", "d"]
    assert "project d: quota 8 -> 5" in lowered
    commands = dry_run.splitlines()
    assert [command.split()[0] for command in commands] == ["sacctmgr"] * 3 + ["scontrol"] * 2
    assert "to take it back: burstctl project delete e" in made
    assert "project e: quota 2 -> 3, limit none -> 6" in made
    assert "project a: quota 3 -> 4" in changed
    assert deleted.startswith("project e is deleted")
    assert "e" not in pending(site)
    assert "-e" not in site.cluster.sh("sinfo -h -o %P; sacctmgr -nP show qos format=name")
    assert "team-e" in site.cluster.sh("sacctmgr -nP show account format=account")
    site.cluster.sh("scancel -u ada")


def test_jobs_get_the_partitions_of_a_project_that_was_made_and_keep_it_from_being_deleted(site: Site) -> None:
    code, why = burstctl(site, "project set d --reset")
    assert code == 0, why
    code, why = burstctl(site, NEW)
    assert (code, "quotas add up to 18" in why) == (1, True), why
    assert burstctl(site, LOWER)[0] == 0
    assert burstctl(site, NEW)[0] == 0
    site.cluster.sh("sacctmgr -i add user ada account=team-e")
    job = site.submit("-A team-e -p onprem --gres=gpu:1 --mem=1", "sleep 600")
    site.wait(lambda: site.cluster.sh(f"squeue -h -j {job} -o %T,%P") == "RUNNING,q-e\n", 30, "the job's start")
    site.wait(lambda: "1 job(s)" in burstctl(site, "project delete e --dry-run")[1], 10, "burstd's next loop")
    code, why = burstctl(site, "project delete e --yes")
    assert code == 1
    remedy = why.rpartition("cancel them: ")[2]
    site.cluster.sh(remedy)
    site.wait(lambda: burstctl(site, "project delete e --yes")[0] == 0, 30, "the project's end")


def test_a_name_that_the_site_has_is_refused_and_left_as_it_is(site: Site) -> None:
    assert burstctl(site, LOWER)[0] == 0
    site.cluster.sh("scontrol create PartitionName=o-e Nodes=op1; sacctmgr -i add qos q-f Description=ours")
    for name in "ef":
        code, why = burstctl(site, f"project create {name} --account team-{name} --quota 2 --partitions onprem")
        assert (code, f"was not made for project {name}" in why) == (1, True), why
    assert pending(site).keys() == set("abcd")
    assert "q-f|ours" in site.cluster.sh("sacctmgr -nP show qos format=name,description")
    assert "AllowAccounts=ALL" in site.cluster.sh("scontrol show partition o-e")
    assert "q-e" not in site.cluster.sh("sinfo -h -o %P; sacctmgr -nP show qos format=name")
    site.cluster.sh("scontrol delete PartitionName=o-e; sacctmgr -i delete qos q-f")


def test_without_slurmdbd_a_project_is_refused_and_what_was_begun_is_taken_up_again(site: Site) -> None:
    assert burstctl(site, LOWER)[0] == 0
    site.cluster.sh("pkill -x slurmdbd")
    code, why = burstctl(site, NEW)
    assert (code, "slurmdbd does not answer" in why) == (3, True), why
    assert "e" not in pending(site)
    # Begun, and cut off by kill -9: what is on record is set up when slurmdbd is back.
    site.cluster.sh(accounting.SETUP[1][2])
    assert burstctl(site, NEW)[0] == 0
    site.kill_burstd()
    site.cluster.sh("scontrol delete PartitionName=o-e; sacctmgr -i delete qos o-e")
    site.start_burstd()
    site.wait(lambda: "o-e" in site.cluster.sh("sinfo -h -o %P"), 30, "the partition made again")
    assert burstctl(site, "project delete e --yes")[0] == 0
