"""A project in memory that answers what is only looked at: flavors, limits, networks, who one is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

from burstd.domain.errors import BadRequest, NotFound, ProviderError
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

PROJECT = "p1"
Thing = dict[str, Any]
_ID = "00000000-0000-4000-8000-00000000000"
INSIDE, OUTSIDE, GROUP = f"{_ID}1", f"{_ID}2", f"{_ID}3"


class FakeCloud(OpenStackCalls):
    """``answers`` by service and path; an error is raised. What is not there is NotFound. Tests change it at will."""

    def __init__(self, settings: OpenStackSettings, answers: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self.answers: dict[str, Any] = {**deepcopy(SET_UP), **(answers or {})}
        self.said: list[str] = []
        self.services = {"compute", "network", "image"}
        self.regions = ["north"]
        self.newest: tuple[int, int] | None = (2, 90)
        self.token = SimpleNamespace(
            username="burstd", user_id="u1", project_id=PROJECT, project_name="lab", role_names=["member", "reader"],
            application_credential_id="ac1",
        )  # fmt: skip
        self.broken: ProviderError | None = None

    @property
    def connection(self) -> Any:
        if self.broken is not None:
            raise self.broken
        return SimpleNamespace(
            session=SimpleNamespace(auth=SimpleNamespace(get_access=lambda _session: self.token)),
            compute=SimpleNamespace(get_endpoint_data=lambda: SimpleNamespace(max_microversion=self.newest)),
            current_project_id=PROJECT,
        )

    def region(self, service_type: str = "compute") -> str:  # noqa: ARG002 - as in Calls
        if len(self.regions) > 1:
            raise BadRequest("several regions: set region")
        return self._settings.region or self.regions[0]

    def has_service(self, service_type: str) -> bool:
        return service_type in self.services

    def query(self, service: str, path: str, what: str, *, version: str = "", **query: Any) -> Any:
        key = f"{service} {path}"
        _fits(key, what, version, query)
        self.said.append(key)
        answer = self.answers.get(key, NotFound(f"no {path} here"))
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    def pages(
        self, service: str, path: str, key: str, what: str, *, version: str = "", **query: Any
    ) -> Iterator[Mapping[str, Any]]:
        wanted = {name: value for name, value in query.items() if name in ("id", "name", "network_id", "project_id")}
        for one in self.query(service, path, what, version=version, **query)[key]:
            if all(one.get(name) in value for name, value in wanted.items()):
                yield one


def _fits(key: str, what: str, version: str, query: Mapping[str, Any]) -> None:
    """Lists of a cloud that may be long have pages; Nova gives extra specs to who asks for that version."""
    assert what
    assert key != "compute /flavors/detail" or (version == "2.61" and query["limit"])


def flavor(name: str, specs: Mapping[str, str] | None = None, **more: Any) -> Thing:
    said = {
        "id": f"f-{name}",
        "name": name,
        "vcpus": 4,
        "ram": 16384,
        "disk": 20,
        "OS-FLV-EXT-DATA:ephemeral": 0,
        **more,
    }
    return said if specs is None else {**said, "extra_specs": dict(specs)}


def rule(
    port: int | None, *, direction: str = "ingress", of: str | None = None, protocol: str | None = "tcp",
    ethertype: str = "IPv4",
) -> Thing:  # fmt: skip
    return {
        "direction": direction, "protocol": protocol, "port_range_min": port, "port_range_max": port,
        "remote_group_id": of, "ethertype": ethertype,
    }  # fmt: skip


def network(of: str, name: str, **more: Any) -> Thing:
    return {
        "id": of, "name": name, "project_id": PROJECT, "admin_state_up": True, "status": "ACTIVE", "shared": False,
        "router:external": False, "port_security_enabled": True, **more,
    }  # fmt: skip


def subnet(of: str, *, last: int = 254, **more: Any) -> Thing:
    return {
        "id": f"s-{of}", "network_id": of, "cidr": "10.9.0.0/24", "ip_version": 4, "enable_dhcp": True,
        "ipv6_address_mode": None,
        "allocation_pools": [{"start": "10.9.0.2", "end": f"10.9.0.{last}"}], **more,
    }  # fmt: skip


def zones(**up: bool) -> Thing:
    return {"availabilityZoneInfo": [{"zoneName": name, "zoneState": {"available": one}} for name, one in up.items()]}


def limits(**more: int) -> Thing:
    said = {
        "maxTotalInstances": 10, "totalInstancesUsed": 2, "maxTotalCores": 40, "totalCoresUsed": 8,
        "maxTotalRAMSize": 200000, "totalRAMUsed": 32768, "maxServerGroups": 5, "totalServerGroupsUsed": 1,
        "maxServerGroupMembers": 10,
    }  # fmt: skip
    return {"limits": {"absolute": {**said, **more}}}


SET_UP: Mapping[str, Any] = {
    "identity /users/u1/application_credentials/ac1": {
        "application_credential": {"name": "burstd", "expires_at": None, "unrestricted": None}
    },
    "compute /flavors/detail": {
        "flavors": [flavor("cpu", {}), flavor("gpu", {"pci_passthrough:alias": "h100:1"}, vcpus=8, ram=65536)]
    },
    "compute /os-availability-zone": zones(z1=True),
    "compute /limits": limits(),
    "compute /os-keypairs/ops": {"keypair": {"fingerprint": "aa:bb"}},
    "compute /os-server-groups": {"server_groups": [{"id": "g1", "name": "spread"}]},
    "compute /os-server-groups/g1": {"server_group": {"policies": ["anti-affinity"], "members": ["s1", "s2"]}},
    "image /images": {
        "images": [
            {
                "id": "i1", "name": "debian", "status": "active", "min_disk": 10, "architecture": "x86_64",
                "owner": PROJECT, "visibility": "private",
            }
        ]
    },
    "network /networks": {
        "networks": [network(INSIDE, "inside"), network(OUTSIDE, "outside", **{"router:external": True})]
    },
    f"network /networks/{OUTSIDE}": {"network": network(OUTSIDE, "outside", **{"router:external": True})},
    f"network /networks/{INSIDE}": {"network": network(INSIDE, "inside")},
    "network /subnets": {"subnets": [subnet(INSIDE)]},
    "network /ports": {
        "ports": [
            {"id": "gate", "network_id": INSIDE, "device_id": "r1", "fixed_ips": [{"subnet_id": f"s-{INSIDE}"}]},
        ]
    },
    "network /routers": {"routers": [{"id": "r1", "external_gateway_info": {"network_id": OUTSIDE}}]},
    "network /security-groups": {
        "security_groups": [
            {
                "id": GROUP, "name": "nodes", "project_id": PROJECT,
                "security_group_rules": [rule(22), rule(6818), rule(None, direction="egress", protocol=None)],
            }
        ]
    },
    f"network /quotas/{PROJECT}/details.json": {
        "quota": {
            "port": {"limit": 50, "used": 1, "reserved": 0},
            "floatingip": {"limit": -1, "used": 0, "reserved": 0},
        }
    },
}  # fmt: skip
"""A project as docs/providers/openstack.md sets it up."""
