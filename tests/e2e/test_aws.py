"""From sbatch to a job on EC2 and back to an empty account: the real provider, the mock's API, a box for each instance.

Each test has a pool, and types of instances, of its own. The jobs that have to wait for a time limit begin first, and
are looked at last. Beside the site's machines the account holds a neighbour's, which nobody may touch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.rollouts import ROLL_S, Rollout, broken_build
from tests.e2e.sites import COPY, QUICK, SET_COMMENT, claims_of, comments_of, events, restarts, try_provider
from tests.lab import programs
from tests.lab.aws.site import AwsSite
from tests.lab.patience import patience_s
from tests.lab.remains import remains

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

TYPES = {
    "main": ("g4dn.xlarge",), "short": ("c5d.large", "m5d.large"), "pair": ("c5n.large",), "lost": ("r5.large",),
    "spot": ("m5.large",), "roll": ("m5a.large",), "hang": ("c5a.large",),
}  # fmt: skip
"""By pool; the first is the cheapest."""
BOOT_TIMEOUT_S = 25.0
Things = dict[str, Mapping[str, Any]]
"""By id, as EC2 describes them."""
DOUBLE = "tests/e2e: the neighbour's"


def _pool(name: str) -> Pool:
    gres = (Gres("gpu", "t4", 1),) if name == "main" else ()
    markets = ("spot",) if name == "spot" else ("on-demand",)
    image = f"name:{name}-*" if name in ("roll", "hang") else ""
    rule = OfferRule("aws", TYPES[name], markets=markets, image=image)
    return Pool(name, (f"{name}1", f"{name}2"), ("burst",), Shape(2, 1000, gres, frozenset({name})), (rule,))


def things(site: AwsSite) -> Things:
    """Everything in the account that costs money or may be left behind, by id; ended instances and requests not."""
    with site.ec2() as ec2:
        found: Things = {}

        def pages(operation: str, key: str, id_key: str) -> None:
            for page in ec2.get_paginator(operation).paginate():
                found.update({one[id_key]: one for one in page[key]})

        for page in ec2.get_paginator("describe_instances").paginate():
            rows = [one for reservation in page["Reservations"] for one in reservation["Instances"]]
            found.update({one["InstanceId"]: one for one in rows if one["State"]["Name"] != "terminated"})
        pages("describe_volumes", "Volumes", "VolumeId")
        pages("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId")
        pages("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId")
        requests = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
        found.update({one["SpotInstanceRequestId"]: one for one in requests if one["State"] in ("open", "active")})
        found.update({one["GroupId"]: one for one in ec2.describe_placement_groups()["PlacementGroups"]})
    return found


def instances(site: AwsSite, pool: str) -> list[Mapping[str, Any]]:
    """Every instance that was ever made for a pool of ours, oldest first."""
    filters = [{"Name": "tag:burstd-cluster", "Values": ["lab"]}, {"Name": "tag:burstd-pool", "Values": [pool]}]
    with site.ec2() as ec2:
        pages = list(ec2.get_paginator("describe_instances").paginate(Filters=filters))
    rows = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    return sorted(rows, key=lambda one: one["LaunchTime"])


def somebodys(ec2: Any, site: AwsSite, name: str, tags: Mapping[str, str]) -> None:
    """A machine, a disk, a port, a launch template and a placement group, with these tags."""
    account, listed = site.account, [{"Key": key, "Value": value} for key, value in tags.items()]
    zone, subnet = next(iter(account.subnets.items()))

    def tagged(*kinds: str) -> dict[str, Any]:
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": listed} for kind in kinds]} if tags else {}

    machine = {"ImageId": account.image, "InstanceType": "t3.nano", "SubnetId": subnet, "MinCount": 1, "MaxCount": 1}
    ec2.run_instances(**machine, **tagged("instance", "volume", "network-interface"))
    ec2.create_volume(AvailabilityZone=zone, Size=8, **tagged("volume"))
    ec2.create_network_interface(SubnetId=subnet, **tagged("network-interface"))
    template = {"LaunchTemplateName": name, "LaunchTemplateData": {"ImageId": account.image}}
    ec2.create_launch_template(**template, **tagged("launch-template"))
    ec2.create_placement_group(GroupName=name, Strategy="cluster", **tagged("placement-group"))


def _pending(site: AwsSite) -> bool:
    return any(one.get("State") == {"Code": 0, "Name": "pending"} for one in things(site).values())


@pytest.fixture(scope="module")
def site() -> Iterator[AwsSite]:
    prices = {name: f"{0.10 + 0.01 * place:.2f}" for names in TYPES.values() for place, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        recipe = programs.node_image(ensure_rootfs("bookworm"))
        up = AwsSite(
            pools=[*map(_pool, TYPES)], prices=prices, settings=QUICK, staging="", extra_conf="SlurmdTimeout=6",
            daemon={"boot_timeout_s": patience_s(BOOT_TIMEOUT_S)},
            builds={"recipe": [recipe], "broken": [broken_build(Path(folder))]},
        )  # fmt: skip
        with up:
            yield up
    left = remains(up.cluster.lab.network.name, up.cluster.state)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def theirs(site: AwsSite) -> Things:
    """What the account holds before burstd does anything: another burstd's things, and things with names like ours."""
    with site.ec2() as ec2:
        somebodys(ec2, site, "another", {"burstd-cluster": "lab2", "burstd-claim": "theirs"})
        somebodys(ec2, site, "burstd-lab-like", {})
    site.wait(lambda: not _pending(site), 10, "their machines run")
    return things(site)


@pytest.fixture(scope="module", autouse=True)
def pair(site: AwsSite, theirs: Things) -> str:
    """Asks for two nodes where each zone has room for one; when it was refused, there is room, and a minute's rest."""
    zones = site.account.subnets
    site.faults(cap={f"c5n.large@{zone}": 1 for zone in zones})
    job = site.submit("-p burst -C pair -N2 --exclusive -t5", SET_COMMENT % "srun hostname | sort | xargs")
    site.wait(lambda: _refused(site, job) >= 2, 30, "the pair is refused")
    assert instances(site, "pair") == [], "not even for a moment"
    assert site.api("/v1/bill")["lines"] == []
    site.faults(cap={f"c5n.large@{zone}": 2 for zone in zones})
    return job


def _refused(site: AwsSite, job: str) -> int:
    return sum(claim["error"] == "capacity" for claim in claims_of(site, job))


def rollout(site: AwsSite, pool: str) -> Rollout:
    """Of AMIs."""

    def machines() -> dict[str, str]:
        return {one["InstanceId"]: one["ImageId"] for one in instances(site, pool)}

    return Rollout(site, "aws", pool, site.register_image, machines)


@pytest.fixture(scope="module", autouse=True)
def roll(site: AwsSite, pair: str) -> Rollout:
    """One node, kept whatever jobs there are, of an image that config/images/node.sh has made."""
    made = rollout(site, "roll")
    made.register("recipe")
    made.keep(1)
    return made


@pytest.fixture(scope="module", autouse=True)
def hang(site: AwsSite, pair: str) -> Rollout:
    """The same, of the site's plain image."""
    made = rollout(site, "hang")
    made.register("plain")
    made.keep(1)
    return made


def submit(site: AwsSite, name: str, script: str = "true") -> str:
    return site.submit(f"-p burst -C {name} -c1 --mem=100 -t5", script)


def types_of(site: AwsSite, pool: str) -> list[str]:
    return [one["InstanceType"] for one in instances(site, pool)]


@dataclass(frozen=True, slots=True)
class Spot:
    """A job on a spot machine."""

    job: str
    instance: str


@pytest.fixture(scope="module")
def spot(site: AwsSite, theirs: Things) -> Spot:
    """It runs."""
    seen: set[str] = set()

    def has_all() -> bool:
        # A launch template goes seconds after the launch.
        seen.update(thing.partition("-")[0] for thing in things(site).keys() - theirs.keys())
        return seen >= {"i", "vol", "eni", "lt", "sir"}

    job = submit(site, "spot", "sleep $((SLURM_RESTART_COUNT ? 0 : 100))")
    site.wait(has_all, 60, "the machine and all its things, which are looked for in the end")
    site.wait_job(job, ["RUNNING"])
    (machine,) = instances(site, "spot")
    assert machine["InstanceLifecycle"] == "spot"
    return Spot(job, machine["InstanceId"])


def test_the_check_finds_the_rights_with_a_machine_that_runs(site: AwsSite, spot: Spot) -> None:
    assert "ec2:TerminateInstances: allowed" in site.burstctl("provider", "check", "aws").stdout


def test_a_node_of_the_recipe_s_image_passes_the_checks(roll: Rollout, hang: Rollout) -> None:
    """Then comes a broken image for the one pool, and for the other one of which no machine ever answers."""
    roll.wait(0)
    hang.wait(0)
    roll.register("broken")
    hang.register("hangs")
    hang.keep(2)


def test_a_spot_machine_is_drained_when_its_own_metadata_says_that_it_ends(site: AwsSite, spot: Spot) -> None:
    site.interrupt(spot.instance, notice_s=30)
    slot = site.job(spot.job)["NodeList"]
    site.wait(lambda: "interruption" in site.cluster.sh(f"sinfo -hN -n {slot} -o %E"), 20, "the node's reason")
    site.wait(lambda: site.job(spot.job)["Restarts"] == "1", 30, "Slurm has requeued the job")


def test_from_sbatch_to_an_empty_account(site: AwsSite) -> None:
    """Data in, a GPU, data home; the machine boots with what the launch template says, and ends."""
    site.cluster.sh("mkdir -p data; echo hello > data/a.txt", "ada")
    job = site.submit_script(COPY, "-p burst -C main --gres=gpu:t4:1 -c1 --mem=100 -t5")
    site.wait_job(job)
    (machine,) = instances(site, "main")
    assert site.cluster.sh("cat results/copy.txt results/gpus.txt", "ada") == "hello\n0\n"
    (claim,) = claims_of(site, job)
    assert claim["instance"] == machine["InstanceId"]
    assert machine["MetadataOptions"]["HttpTokens"] == "required"
    tags = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
    assert tags["burstd-claim"] == claim["claim"]
    site.wait(lambda: instances(site, "main")[0]["State"]["Name"] == "terminated", 40, "it is ended")


def test_a_broken_image_goes_back_by_itself(roll: Rollout) -> None:
    """The idle node makes way for it, and a node of the older image comes in its place. Then a good one comes."""
    roll.site.wait(lambda: roll.is_left_alone(1), ROLL_S, "the broken image is left alone")
    roll.wait(0)
    assert roll.launched() == [0, 1, 0]
    roll.register("plain")


def test_the_next_type_where_the_first_is_out_of_capacity(site: AwsSite) -> None:
    site.faults(ice=["c5d.large"])
    job = submit(site, "short")
    site.wait_job(job)
    assert types_of(site, "short") == ["m5d.large"]
    (claim,) = [one for one in claims_of(site, job) if not one["error"]]
    assert "/m5d.large/" in claim["offer"]
    assert [e for e in events(site, "breaker:") if "/c5d.large/" in e["subject"]], "it is left alone for a while"
    assert restarts(site, [job]) == {job: 0}


def test_a_lost_answer_and_a_death_make_one_machine(site: AwsSite) -> None:
    site.faults(lost=[{"action": "CreateFleet", "code": "cut"}])
    before = site.calls()["CreateFleet"]
    job = submit(site, "lost")
    site.wait(lambda: site.calls()["CreateFleet"] > before, 20, "the fleet is asked for")
    site.kill_burstd("KILL")
    site.wait(lambda: len(instances(site, "lost")) == 1, 60, "it was made, and nobody heard of it")
    site.start_burstd()
    site.wait_job(job)
    (machine,) = instances(site, "lost")
    (claim,) = claims_of(site, job)
    assert claim["instance"] == machine["InstanceId"]
    assert site.calls()["CreateFleet"] > before + 1, "it was asked for again"


def test_a_new_image_takes_the_place_of_the_old_one(site: AwsSite, roll: Rollout) -> None:
    """Then it is deregistered."""
    roll.wait(2)
    assert roll.launched() == [0, 1, 0, 2]
    assert roll.has_made_way(0, 1)
    assert roll.has_made_way(0, 2)
    with site.ec2() as ec2:
        ec2.deregister_image(ImageId=roll.ids[2])


def test_the_job_of_the_spot_machine_begins_anew(site: AwsSite, spot: Spot) -> None:
    """Slurm keeps it for a while; the machine that it had is gone."""
    site.wait_job(spot.job)
    old, new = instances(site, "spot")
    assert old["InstanceId"] == spot.instance != new["InstanceId"]
    assert old["State"]["Name"] == "terminated"


def test_two_nodes_or_none(site: AwsSite, pair: str) -> None:
    """First none (see ``pair``), then both, close to each other."""
    site.wait_job(pair, timeout_s=120)
    (hosts,) = comments_of(site, pair)
    assert len(set(hosts.split())) == 2, hosts
    first, second = instances(site, "pair")
    assert first["Placement"]["AvailabilityZone"] == second["Placement"]["AvailabilityZone"]
    assert first["Placement"]["GroupName"] == second["Placement"]["GroupName"] != ""


def test_an_image_that_is_gone_leaves_the_one_before(roll: Rollout) -> None:
    """Not the broken one."""
    roll.wait(0)
    assert roll.launched() == [0, 1, 0, 2, 0]
    roll.keep(0)


def test_an_image_that_hangs_at_boot_goes_back_by_itself(hang: Rollout) -> None:
    """With its second machine; no offer is left alone for it."""
    hang.wait(0, 0)
    assert hang.is_left_alone(1)
    assert hang.launched().count(1) == 2
    hang.keep(0)


def test_a_trial_launches_enters_and_ends_one_machine(site: AwsSite) -> None:
    """burstd's own machines it leaves alone."""
    before = {one["InstanceId"] for one in instances(site, "lost")}
    try_provider(site, "aws", "lost")
    (machine,) = [one for one in instances(site, "lost") if one["InstanceId"] not in before]
    assert machine["State"]["Name"] == "terminated"


def test_in_the_end_only_the_neighbours_things_are_left(site: AwsSite, theirs: Things) -> None:
    site.wait_empty()
    site.wait(lambda: things(site).keys() <= theirs.keys(), 60, "nothing of ours is left")
    assert things(site) == theirs
    assert "UnauthorizedOperation" not in site.daemon_log(), "the policy that burstd ships is enough"
