"""A plain script where nodes do not show the site's trees: its working directory is copied to them and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.sites import MISSED_SOON, QUICK, site_up
from tests.lab.releases import releases
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

WORDS = "-p burst -t5 --mem=100"
SETTINGS = QUICK.replace("keep_alive_s = 2", "keep_alive_s = 600")
WAITS = "touch begun; until [ -e go ]; do sleep 0.2; done\n"
"""Until somebody says ``go`` on the node."""


@pytest.fixture(scope="module", params=releases("bookworm", "forky"))
def whole_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    staging = "retries = 2\n"
    with site_up(
        request.param, pools=[CPU], settings=SETTINGS, staging=staging, extra_conf=MISSED_SOON,
        workdir_partitions=("burst",),
    ) as up:  # fmt: skip
        yield up


@pytest.fixture
def site(whole_site: Site) -> Site:
    """No job, nothing of one in the store, and a project of ada's as in the beginning."""
    whole_site.cluster.sh("scancel --hurry -u ada")
    whole_site.wait(lambda: not whole_site.api("/v1/stage")["jobs"], 60, "no job's data")
    whole_site.cluster.sh(
        "rm -rf project; mkdir -p project/src project/data; cd project; echo input >input.txt; echo code >src/code; "
        "echo large >data/large; touch -d @1700000000 input.txt; printf 'data/\\nlogs/\\n*.tmp\\n' >.burstignore; "
        "mkdir logs",
        "ada",
    )
    return whole_site


def sbatch(site: Site, script: str, words: str = WORDS, folder: str = "project") -> str:
    """As a user does it: a script in a folder at home, and no other line."""
    path = site.cluster.head.path(f"/home/ada/{folder}/train.sh")
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    return site.cluster.sh(f"cd ~/{folder} && sbatch --parsable {words} train.sh", "ada").strip()


def at_home(site: Site, path: str) -> str:
    return site.cluster.sh(f"cat ~/{path}", "ada", check=False)


def listing(site: Site) -> list[str]:
    return site.cluster.sh("cd project; find . -type f | sort", "ada").split()


def stage(site: Site, job: str) -> dict[str, Any]:
    found: dict[str, Any] = site.api(f"/v1/stage/{job}")["job"]
    return found


def begun(site: Site, job: str) -> None:
    """Waits until a script with WAITS waits."""
    there = ("job", "shell", "--via", "node", job, "--", "test", "-e", "/home/ada/project/begun")
    site.wait(lambda: site.burstctl(*there, user="ada", check=False).returncode == 0, 60, "the script has begun")


def go(site: Site, job: str) -> None:
    site.burstctl("job", "shell", "--via", "node", job, "--", "touch", "/home/ada/project/go", user="ada")


def test_a_plain_script(site: Site) -> None:
    number = sbatch(
        site,
        "pwd; id -un; cat input.txt /home/ada/project/src/code; ls data 2>&1; ln -s code src/link\n"
        "echo more >>src/code; mkdir -p out; (umask 027; echo result >out/result.txt); rm input.txt; echo x >a.tmp",
        f"{WORDS} --output=logs/%j.out",
    )
    site.wait_job(number)
    said = at_home(site, f"project/logs/{number}.out").splitlines()
    assert said[:4] == ["/home/ada/project", "ada", "input", "code"]
    assert "No such file" in said[4]
    assert at_home(site, "project/src/code") == "code\nmore\n"
    assert at_home(site, "project/src/link") == "code\nmore\n"
    assert site.cluster.sh("stat -c '%U %a %n' project/out/result.txt", "ada") == "ada 640 project/out/result.txt\n"
    # Deleted there stays here; nothing ignored comes, and nothing beside it: no manifest, no marker.
    assert listing(site) == sorted(
        ["./.burstignore", "./data/large", "./input.txt", f"./logs/{number}.out", "./out/result.txt", "./src/code",
         "./train.sh"]
    )  # fmt: skip
    assert site.cluster.sh("stat -c %Y project/input.txt project/train.sh", "ada").split()[0] == "1700000000"
    shown = site.burstctl("stage", "status", number, user="ada").stdout
    assert "/home/ada/project" in shown


def test_what_changed_at_home_stays(site: Site) -> None:
    number = sbatch(site, f"{WAITS}echo job >>src/code; echo job >new.txt; echo job >input.txt; echo said")
    begun(site, number)
    site.cluster.sh("cd project; echo user >>src/code; echo user >new.txt", "ada")
    go(site, number)
    site.wait_job(number)
    assert at_home(site, "project/src/code") == "code\nuser\n"
    assert at_home(site, f"project/src/code.burst-{number}") == "code\njob\n"
    assert at_home(site, "project/new.txt") == "user\n"
    assert at_home(site, f"project/new.txt.burst-{number}") == "job\n"
    assert at_home(site, "project/input.txt") == "job\n"
    assert at_home(site, f"project/slurm-{number}.out") == "said\n"
    told = json.loads(at_home(site, f"project/burst-{number}.json"))
    assert told["complete"]
    assert [w for w in told["warnings"] if f"src/code.burst-{number}" in w], told
    assert f"src/code.burst-{number}" in site.burstctl("stage", "status", number, user="ada").stdout


def test_several_nodes_and_other_lines(site: Site) -> None:
    site.cluster.sh("mkdir -p results; echo set >set.txt", "ada")
    number = sbatch(
        site,
        "#BURST stage_in ~/set.txt as set\n#BURST stage_out . to ~/results\n"
        "cp $BURST_IN/set $BURST_OUT/copy\n"
        "srun sh -c 'echo $SLURMD_NODENAME >rank.$SLURM_PROCID; hostname >same; echo x >>src/code'",
        f"{WORDS} -N2 --bb='#BURST scratch 1M'",
    )
    site.wait_job(number)
    row = stage(site, number)
    assert ([i["name"] for i in row["inputs"]], row["scratch_bytes"]) == (["set", "workdir"], 1 << 20)
    nodes = {at_home(site, f"project/rank.{rank}").strip() for rank in (0, 1)}
    assert len(nodes) == 2
    (second,) = (name for name in listing(site) if name.startswith("./same."))
    assert second.removeprefix("./same.") in nodes
    assert at_home(site, "results/copy") == "set\n"
    assert at_home(site, "project/src/code") == "code\nx\n"


def test_too_large(site: Site) -> None:
    site.cluster.sh("truncate -s 11G project/huge", "ada")
    with pytest.raises(Exception, match="huge") as refused:
        sbatch(site, "true")
    assert ".burstignore" in str(refused.value)
    site.cluster.sh("echo /huge >>project/.burstignore", "ada")
    site.wait_job(sbatch(site, "true"))
    with pytest.raises(Exception, match="is your home directory"):
        sbatch(site, "true", folder="")
    site.wait_job(sbatch(site, "#BURST workdir off\ntrue", folder=""))


@pytest.mark.parametrize("whole_site", ["bookworm"], indirect=True)
def test_a_lost_node(site: Site) -> None:
    number = sbatch(site, f"cat input.txt >>seen\n{WAITS}", f"{WORDS} --requeue")
    begun(site, number)
    site.cluster.sh("echo again >project/input.txt", "ada")
    node = site.job(number)["NodeList"]
    (claim,) = (row for row in site.api("/v1/nodes")["nodes"] if row["slot"] == node)
    site.cloud.interrupt(claim["instance"])
    site.wait(lambda: site.job(number).get("Restarts") == "1", 90, "it is requeued")
    start = f"scontrol update jobid={number} starttime=now; echo $?"
    site.wait(lambda: site.cluster.sh(start, check=False).strip() == "0", 60, "it may start")
    begun(site, number)
    go(site, number)
    site.wait_job(number)
    assert at_home(site, "project/seen") == "again\n"
