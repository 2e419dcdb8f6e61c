"""From sbatch to a job on OpenStack and back to a project as it was: the real services, a box for each server.

Each machine has a root volume and a floating IP, so that everything that may be left behind is made. Each test has a
pool of its own. Beside the site's machines the project holds a neighbour's, which nobody may touch.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.docs.blocks import Block, shell_blocks
from tests.docs.test_openstack_docs import DOCUMENT, FIRST_JOBS
from tests.e2e.sites import COPY, QUICK, SET_COMMENT, claims_of, comments_of, node_box, restarts
from tests.lab import programs
from tests.lab.boxes import line_cut
from tests.lab.openstack import conf, seed
from tests.lab.openstack.site import OpenStackSite
from tests.lab.remains import remains

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

FLAVORS = {"main": "gpu.1", "pair": "cpu.small", "lost": "cpu.large", "plain": "cpu.small"}
"""By pool."""
PRICES = {"cpu.small": "0.10", "cpu.large": "0.50", "gpu.1": "2.00"}
SETTINGS: Mapping[str, object] = {
    "root": {"gib": 10},
    "floating_network": seed.EXTERNAL,
    "gang_policy": "affinity",
    "config_drive": True,
}
MOUNTS = '[mounts.trees]\nhome = { path = "/home/{user}", pools = ["plain"] }\n'
PROLOG = f"PrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
PLAIN = """#!/bin/bash
pwd; cat input.txt; echo ready
i=0; while [ ! -e go ]; do i=$((i+1)); echo $i >>log; sleep 0.05; done
umask 027; mkdir ../elsewhere; cd ../elsewhere; echo result >result
"""
CUT_S = 3.0
KINDS = {
    "server": ("compute", "/servers/detail", "servers"),
    "group": ("compute", "/os-server-groups", "server_groups"),
    "port": ("network", "/ports", "ports"),
    "floating IP": ("network", "/floatingips", "floatingips"),
    "volume": ("block_storage", "/volumes/detail", "volumes"),
    "snapshot": ("block_storage", "/snapshots/detail", "snapshots"),
}
"""Service, path and key of the answer, of everything that costs money or may be left behind."""
PATIENCE_S = 120.0
"""For anything: fifteen services share this machine."""
Things = dict[tuple[str, str], Mapping[str, Any]]
"""By kind and id, as the services describe them."""
USER_DATA = 2400
"""Bytes that it has at least, as it is sent; no other call to Nova has as many."""


def _pool(name: str) -> Pool:
    gres = (Gres("gpu", "h100", 1),) if name == "main" else ()
    rule = OfferRule("openstack", (FLAVORS[name],))
    return Pool(name, (f"{name}1", f"{name}2"), ("burst",), Shape(2, 1000, gres, frozenset({name})), (rule,))


def things(site: OpenStackSite, *kinds: str) -> Things:
    """Everything in the project, or all of these kinds."""
    found: Things = {}
    with site.client() as client:
        for kind in kinds or KINDS:
            service, path, key = KINDS[kind]
            answer = getattr(client, service).get(path)
            assert answer.ok, answer.text
            found.update({(kind, one["id"]): one for one in answer.json()[key]})
    return found


def ever(site: OpenStackSite, pool: str) -> list[Mapping[str, Any]]:
    """All servers that were ever made for a pool of ours, as Nova tells its administrator."""
    rows: list[Mapping[str, Any]] = []
    with site.plane.admin() as admin:
        for deleted in ("true", "false"):
            query = {"all_tenants": "1", "project_id": site.project.id, "deleted": deleted}
            rows += admin.compute.get("/servers/detail", params=query).json()["servers"]
    return [one for one in rows if one["metadata"].items() >= {"burstd-cluster": "lab", "burstd-pool": pool}.items()]


def somebodys(client: Any, site: OpenStackSite, name: str, mark: str, metadata: Mapping[str, str]) -> None:
    """A machine with a port, a floating IP, and a volume beside it, and a server group, with these marks."""
    port = client.network.create_port(name=name, description=mark, network_id=site.project.network_id)
    outside = client.network.find_network(seed.EXTERNAL, ignore_missing=False)
    client.network.create_ip(floating_network_id=outside.id, port_id=port.id, description=mark)
    volume = client.block_storage.create_volume(name=name, size=1, metadata=metadata)
    client.block_storage.wait_for_status(volume, wait=60)
    client.compute.create_server_group(name=name, policy="soft-affinity")
    image = client.image.find_image(seed.IMAGE, ignore_missing=False)
    flavor = client.compute.find_flavor("cpu.small", ignore_missing=False)
    server = client.compute.create_server(
        name=name, image_id=image.id, flavor_id=flavor.id, networks=[{"port": port.id}], metadata=metadata
    )
    client.compute.wait_for_server(server, wait=120)


@pytest.fixture(scope="module")
def site() -> Iterator[OpenStackSite]:
    up = OpenStackSite(
        pools=[*map(_pool, FLAVORS)], prices=PRICES, openstack=SETTINGS, settings=QUICK + MOUNTS, staging="",
        extra_conf=PROLOG,
    )  # fmt: skip
    with up:
        yield up
    name = up.cluster.lab.network.name
    left = remains(name, up.cluster.state) + remains(name, up.plane.state)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def theirs(site: OpenStackSite) -> Things:
    """What the project holds before burstd does anything: another burstd's things, and things with names like ours."""
    with site.client() as client:
        other = {"burstd-cluster": "lab2", "burstd-claim": "theirs"}
        somebodys(client, site, "burstd/lab2/1/gang", "burstd-cluster=lab2 burstd-claim=theirs", other)
        somebodys(client, site, "lab-main1-like", "burstd-cluster=lab", {"burstd-claim": "like"})
    return things(site)


def submit(site: OpenStackSite, name: str, script: str = "true") -> str:
    return site.submit(f"-p burst -C {name} -c1 --mem=100 -t5", script)


def test_the_check_finds_nothing_wrong(site: OpenStackSite) -> None:
    said = site.burstctl("provider", "check", "openstack").stdout
    unclear = [line for line in said.splitlines() if line.startswith("?")]
    # The lab is in a hurry: ``unused_s`` is shorter than a site would have it.
    assert [line.split()[1] for line in unclear] == ["gang_policy"], said


def test_from_sbatch_to_an_empty_project(site: OpenStackSite, theirs: Things) -> None:
    """Data in, a GPU, data home; the machine boots from the config drive that Nova makes, and ends."""
    site.cluster.sh("mkdir -p data; echo hello > data/a.txt", "ada")
    job = site.submit_script(COPY, "-p burst -C main --gres=gpu:h100:1 -c1 --mem=100 -t5")

    def made() -> Things:
        return {key: one for key, one in things(site).items() if key not in theirs}

    parts = ["floating IP", "port", "server", "volume"]
    site.wait(lambda: sorted(kind for kind, _ in made()) == parts, PATIENCE_S, "a machine and all its things")
    (server,) = (one for (kind, _), one in made().items() if kind == "server")
    assert server["image"] == "", "it boots from its volume"
    site.wait_job(job, timeout_s=PATIENCE_S)
    (claim,) = claims_of(site, job)
    assert claim["instance"] == server["id"]
    assert server["metadata"]["burstd-claim"] == claim["claim"]
    assert site.cluster.sh("cat results/copy.txt results/gpus.txt", "ada") == "hello\n0\n"
    site.wait(lambda: things(site).keys() <= theirs.keys(), PATIENCE_S, "nothing of it is left")


def test_a_plain_script(site: OpenStackSite) -> None:
    """Its closed home is there, its output is seen while it runs, and it notices neither burstd's end nor a cut line;
    another user beside it reads nothing of it."""
    site.cluster.sh("chmod 700 .; mkdir -m 700 project; echo input >project/input.txt", "ada")
    site.write("/home/ada/project/train.sh", PLAIN)
    words = "sbatch --parsable -p burst -C plain -c1 --mem=100 -t5"
    job = site.cluster.sh(f"cd project && {words} train.sh", "ada").strip()
    said = f"/home/ada/project/slurm-{job}.out"
    site.wait(lambda: "ready" in site.cluster.sh(f"cat {said}", check=False), PATIENCE_S, "live output at home")
    assert site.cluster.sh(f"cat {said}").splitlines() == ["/home/ada/project", "input", "ready"]
    log = site.cluster.head.path("/home/ada/project/log")

    def counts_on(more: int) -> None:
        goal = len(log.read_text().splitlines()) + more
        site.wait(lambda: len(log.read_text().splitlines()) > goal, PATIENCE_S, "it counts on")

    node = site.job(job)["NodeList"]
    host = node_box(site, node).name
    site.kill_burstd()
    counts_on(20)
    with line_cut(site.cluster.lab.network, host):
        before = len(log.read_text().splitlines())
        time.sleep(CUT_S)  # how long the line is cut is what is tried
        assert len(log.read_text().splitlines()) <= before + 1
    counts_on(20)
    site.start_burstd()
    counts_on(20)
    other = site.submit(f"-p burst -w {node} -c1 --mem=100 -t5", "pwd; cat /home/ada/project/input.txt", "bob")
    site.wait_job(other, ("FAILED",), timeout_s=PATIENCE_S)
    refused = site.cluster.sh(f"cat slurm-{other}.out", "bob")
    assert refused.startswith("/home/bob\n")
    assert "Permission denied" in refused
    array = site.submit(f"-p burst -w {node} -c1 --mem=100 -t5 --array=1-2", "echo $SLURM_ARRAY_TASK_ID >>tasks")
    for task in ("1", "2"):
        site.wait_job(f"{array}_{task}", timeout_s=PATIENCE_S)
    assert sorted(site.cluster.sh("cat tasks", "ada").split()) == ["1", "2"]
    site.cluster.sh("touch project/go", "ada")
    site.wait_job(job, timeout_s=PATIENCE_S)
    found = site.cluster.sh("stat -c '%U %a' elsewhere/result; cat elsewhere/result", "ada")
    assert found == "ada 640\nresult\n"
    numbers = log.read_text().split()
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)], "nothing is lost or doubled"
    assert restarts(site, [job]) == {job: 0}


def test_a_frozen_api_and_a_death_make_one_machine(site: OpenStackSite) -> None:
    """Nova has the whole call and does not answer; whoever made it is gone; then it answers nobody, and builds."""
    with ExitStack() as until_killed:
        # Its volume is the last thing that a machine needs before it can be asked for.
        with site.plane.frozen("cinder-api"):
            job = submit(site, "lost")
            site.wait(lambda: _has_address(site, job), PATIENCE_S, "the machine's floating IP")
            until_killed.enter_context(site.plane.frozen("nova-api"))
        site.wait(lambda: _unread(site, conf.NOVA) > USER_DATA, PATIENCE_S, "the server is asked for")
        site.kill_burstd("KILL")
    site.wait(lambda: len(ever(site, "lost")) == 1, PATIENCE_S, "it was made, and nobody heard of it")
    site.start_burstd()
    site.wait_job(job, timeout_s=PATIENCE_S)
    (server,) = ever(site, "lost")
    assert [claim["instance"] for claim in claims_of(site, job)] == [server["id"]]


def _has_address(site: OpenStackSite, job: str) -> bool:
    addresses = things(site, "floating IP").values()
    return any(claim["claim"] in one["description"] for claim in claims_of(site, job) for one in addresses)


def _unread(site: OpenStackSite, port: int) -> int:
    """Bytes that a service was sent and has not read, on the connection that has most. ss(8)."""
    words = [*site.cluster.lab.network.enter(), "ss", "-Htn", "state", "established", "sport", "=", f":{port}"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return max(map(int, re.findall(r"^(\d+)", said, re.MULTILINE)), default=0)


@pytest.mark.thorough
def test_two_nodes_close_to_each_other(site: OpenStackSite) -> None:
    job = site.submit("-p burst -C pair -N2 --exclusive -t5", SET_COMMENT % "srun hostname | sort | xargs")
    site.wait(
        lambda: 2 in [len(group["members"]) for group in things(site, "group").values()], PATIENCE_S, "a group of both"
    )
    site.wait_job(job, timeout_s=PATIENCE_S)
    (names,) = comments_of(site, job)
    assert len(set(names.split())) == 2, names
    first, second = ever(site, "pair")
    assert first["OS-EXT-SRV-ATTR:host"] == second["OS-EXT-SRV-ATTR:host"]


def test_the_first_jobs_as_the_document_has_them(site: OpenStackSite) -> None:
    blocks = [block for block in shell_blocks(DOCUMENT) if block.section == FIRST_JOBS]
    assert [block.user for block in blocks] == ["root", "ada", "root"]

    def types(block: Block) -> str:
        # The site has started burstd in its own way.
        text = block.text.replace("systemctl restart burstd", "")
        words = f"set -eu; PATH={programs.PREFIX}/bin:$PATH\n{text}"
        return site.cluster.sh(words, block.user, timeout_s=2 * PATIENCE_S)

    offers, jobs, said = map(types, blocks)
    assert "cpu.small" in offers
    plain, gpu = map(site.job, re.findall(r"Submitted batch job (\d+)", jobs))
    assert (plain["JobState"], gpu["JobState"], gpu["NodeList"]) == ("COMPLETED", "COMPLETED", "main1")
    assert "main1" in said


def test_in_the_end_only_the_neighbours_things_are_left(site: OpenStackSite, theirs: Things) -> None:
    site.wait_empty(PATIENCE_S)
    site.wait(lambda: things(site).keys() <= theirs.keys(), PATIENCE_S, "nothing of ours is left")
    assert things(site) == theirs
