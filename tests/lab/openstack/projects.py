"""Projects of the lab's OpenStack, as a test or a site gets one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from openstack.config import OpenStackConfig
from openstack.connection import Connection

from tests.lab.openstack import conf, seed

SUBNET = "10.77.64.0/18"
"""Of every project's own network, in a lab's; what is left of it belongs to the site that bursts."""
SECURITY_GROUP = "burst"
KEY = "burst"
_PORTS = (("tcp", 22), ("tcp", 6818))
_PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEYTXQw2xp8r4Zf0Nqk0dXlqk3nA6fN1pX9m0kQ4h1Zt lab"


@dataclass(frozen=True)
class Project:
    """A project, and its user: member and reader, as a site's administrator would have it."""

    name: str
    id: str
    user_id: str
    auth_url: str
    password: str
    network: str
    """Its name; that of the subnet is the same."""
    network_id: str
    credential_id: str
    credential_secret: str
    """An application credential of the user's."""

    def cloud(self, *, password: bool = False) -> dict[str, Any]:
        """What clouds.yaml has of it."""
        auth: dict[str, str] = {"auth_url": self.auth_url}
        more = {} if password else {"auth_type": "v3applicationcredential"}
        if password:
            domain = {"user_domain_name": "Default", "project_domain_name": "Default"}
            auth |= {"username": self.name, "password": self.password, "project_name": self.name, **domain}
        else:
            auth |= {
                "application_credential_id": self.credential_id,
                "application_credential_secret": self.credential_secret,
            }
        return {**more, "auth": auth, "region_name": conf.REGION}

    def clouds_yaml(self, cloud: str = "burst", *, password: bool = False) -> str:
        """A file with one cloud: by the application credential, or by the user's name and password."""
        # JSON is YAML.
        return json.dumps({"clouds": {cloud: self.cloud(password=password)}}, indent=2) + "\n"

    @contextmanager
    def connect(self, *, password: bool = False) -> Iterator[Any]:
        """A connection of the user's; the calling thread must reach the APIs."""
        words = self.cloud(password=password)
        config = OpenStackConfig(config_files=[], load_envvars=False, load_yaml_config=False).get_one(**words)
        with Connection(config=config) as connection:
            yield connection


def make_project(
    admin: Any, auth_url: str, name: str, *, subnet: str = SUBNET, router: bool = False, bare: bool = False
) -> Project:
    """A new project. Its network is named as it is; ``router``: it leads to the network of floating IPs.

    With a security group ``burst`` that lets in 22 and 6818, and a key pair ``burst``; ``bare``: without those.
    """
    password = secrets.token_urlsafe(12)
    project = admin.identity.create_project(name=name, domain_id="default")
    user = admin.identity.create_user(name=name, password=password, domain_id="default", default_project_id=project.id)
    for role in ("member", "reader"):
        admin.identity.assign_project_role_to_user(project, user, admin.identity.find_role(role))
    # The credential is the user's own to make.
    made = Project(name, project.id, user.id, auth_url, password, name, "", "", "")
    with made.connect(password=True) as client:
        network = client.network.create_network(name=name)
        ours = client.network.create_subnet(
            name=name, network_id=network.id, ip_version=4, cidr=subnet, is_dhcp_enabled=False
        )
        if router:
            outside = client.network.find_network(seed.EXTERNAL, ignore_missing=False)
            gate = client.network.create_router(name=name, external_gateway_info={"network_id": outside.id})
            client.network.add_interface_to_router(gate, subnet_id=ours.id)
        if not bare:
            group = client.network.create_security_group(name=SECURITY_GROUP)
            for protocol, port in _PORTS:
                client.network.create_security_group_rule(
                    security_group_id=group.id, direction="ingress", ethertype="IPv4", protocol=protocol,
                    port_range_min=port, port_range_max=port,
                )  # fmt: skip
            client.compute.create_keypair(name=KEY, public_key=_PUBLIC_KEY)
        credential = client.identity.create_application_credential(user.id, name="burstd")
    return Project(
        name, project.id, user.id, auth_url, password, name, network.id, credential.id, credential.secret
    )  # fmt: skip
