"""The accounts of the mock: how one is set up, who its users are, and whose keys are whose."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.iam.models import iam_backends
from moto.sqs.models import sqs_backends
from moto.ssm.models import ssm_backends

from tests.lab.aws.iam import Policy
from tests.lab.aws.rights import Rights
from tests.lab.aws.worlds import World

VPC = "10.77.0.0/16"
SUBNETS = {"a": "10.77.16.0/20", "b": "10.77.32.0/20", "c": "10.77.48.0/20"}
"""By the zone's letter. 10.77.0.0/20 is left to the site that bursts into the VPC."""
PARAMETER = "/burstd/node-image"
_QUEUE_POLICY = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": "*",
    },
}


@dataclass(frozen=True)
class Account:
    """What a client needs to know of an account that is set up. The keys are its owner's, who may do everything."""

    number: str
    region: str
    access_key: str
    secret_key: str
    vpc: str
    subnets: dict[str, str]
    """Zone -> subnet."""
    security_group: str
    image: str
    image_name: str
    image_parameter: str
    """Of the Parameter Store; holds the image's id."""


@dataclass(frozen=True)
class User:
    """A user of an account for one cluster, with what the cluster uses."""

    access_key: str
    secret_key: str
    role: str
    """Name of the machines' role and of its instance profile."""
    queue: str
    """URL of the SQS queue that gets the account's interruption warnings."""


class Worlds:
    """All accounts. A new one takes some 50 ms, so that every test can have its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._worlds: dict[str, World] = {}
        self._keys: dict[str, tuple[World, Rights]] = {}
        self._lock = threading.Lock()

    def world_of_key(self, access_key: str) -> tuple[World, Rights] | None:
        """Whose key it is, and what its user may do."""
        return self._keys.get(access_key)

    def numbered(self, number: str) -> World:
        """Raises KeyError."""
        return self._worlds[number]

    def owner_of(self, instance_id: str) -> World | None:
        """The account that has the instance."""
        return next((world for world in list(self._worlds.values()) if instance_id in world.made), None)

    def set_up(self, region: str, boot_s: float, stop_s: float, gone_s: float) -> Account:
        """A new account with a network and an image."""
        with self._lock:
            world = World(f"{next(self._numbers):012d}", region)
            world.boot_s, world.stop_s, world.gone_s = boot_s, stop_s, gone_s
            access, secret = self._key(world, Rights(world, "owner", None))
            self._worlds[world.number] = world
            return _furnish(world, access, secret)

    def user(self, number: str, cluster: str, policy: Mapping[str, Any] | None) -> User:
        """A user for a cluster, with a role ``burstd-CLUSTER-node`` and a queue ``burstd-CLUSTER-notices``."""
        world = self.numbered(number)
        with world.lock:
            rights = Rights(world, f"burstd-{cluster}", Policy(policy) if policy is not None else None)
            role, queue = f"burstd-{cluster}-node", f"burstd-{cluster}-notices"
            if queue not in world.queues:
                iam = iam_backends[number]["aws"]
                iam.create_role(
                    role_name=role, assume_role_policy_document="{}", path="/", permissions_boundary=None,
                    description="", tags=[], max_session_duration="3600",
                )  # fmt: skip
                iam.create_instance_profile(name=role, path="/", role_names=[role], tags=[])
                sqs = sqs_backends[number][world.region]
                sqs.create_queue(queue)
                sqs.set_queue_attributes(queue, {"Policy": json.dumps(_QUEUE_POLICY)})
                world.queues.append(queue)
            access, secret = self._key(world, rights)
        return User(access, secret, role, f"https://sqs.{world.region}.amazonaws.com/{number}/{queue}")

    def _key(self, world: World, rights: Rights) -> tuple[str, str]:
        access = f"AKIA{world.number}{len(self._keys):04d}"
        self._keys[access] = (world, rights)
        return access, secrets.token_hex(20)


def _furnish(world: World, access: str, secret: str) -> Account:
    backend, region, number = world.backend, world.region, world.number
    vpc = backend.create_vpc(VPC)
    subnets = {
        f"{region}{letter}": backend.create_subnet(vpc.id, block, availability_zone=f"{region}{letter}").id
        for letter, block in SUBNETS.items()
    }
    group = backend.create_security_group("burstd-nodes", "machines of burstd", vpc.id)
    backend.authorize_security_group_ingress(group.id, "-1", None, None, [{"CidrIp": VPC}], vpc_id=vpc.id)
    new, _ = (register_image(world, f"burstd-node-{day}", day) for day in ("2026-01-05", "2025-11-01"))
    ssm_backends[number][region].put_parameter(
        name=PARAMETER, description="", value=new.id, parameter_type="String", allowed_pattern="", keyid="",
        overwrite=True, tags=[], data_type="aws:ec2:image", tier="Standard", policies=None,
    )  # fmt: skip
    return Account(number, region, access, secret, vpc.id, subnets, group.id, new.id, new.name, PARAMETER)


def register_image(world: World, name: str, created: str) -> Any:
    """An AMI of the account's own. ``created``: its CreationDate, an ISO 8601 date or time."""
    image = world.backend.register_image(name, "a machine that burstd boots")
    image.root_device_name, image.root_device_type, image.architecture = "/dev/xvda", "ebs", "x86_64"
    image.virtualization_type, image.hypervisor = "hvm", "xen"
    image.creation_date = datetime.fromisoformat(created).replace(tzinfo=UTC)
    return image
