"""Whether machines have a network, floating IPs, and groups that let burstd and Slurm in."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from burstd.domain.errors import NotFound, ProviderError
from burstd.domain.plugins.provider import Finding
from providers.openstack.calls import OpenStackCalls
from providers.openstack.checks.findings import finding_for_error
from providers.openstack.launch.networks import ProjectNetworks
from providers.openstack.settings import OpenStackSettings

_SSH, _SLURMD, _SLURMCTLD = 22, 6818, 6817
_V4 = "IPv4"
_FEW = 16
"""Free addresses of a network below which they soon run out."""
NetworkJson = Mapping[str, Any]


def check_networks(
    settings: OpenStackSettings, calls: OpenStackCalls, known: ProjectNetworks, project: str
) -> Generator[Finding, None, tuple[Sequence[NetworkJson], str]]:
    """Each one: up, with subnets and addresses left.

    Returns those that are there, in the settings' order, and of which family burstd's address of a machine is.
    """
    try:
        ids = known.network_ids()
        listed = calls.pages("network", "/networks", "networks", "list networks", id=list(ids))
        found = {one["id"]: one for one in listed}
        listed = calls.pages("network", "/subnets", "subnets", "list subnets", network_id=list(ids))
        subnets = list(listed)
    except ProviderError as error:
        yield finding_for_error("networks", error, "set networks to some of 'openstack network list'")
        return (), _V4
    there = [found[one] for one in ids if one in found]
    for network in there:
        word = next(word for word in settings.networks if word in (network["id"], network["name"]))
        own = [one for one in subnets if one["network_id"] == network["id"]]
        yield _network(settings, calls, f"network {word}", network, own, project)
    first = {one["ip_version"] for one in subnets if there and one["network_id"] == there[0]["id"]}
    return there, "IPv6" if first == {6} and not settings.floating_network else _V4


def _network(
    settings: OpenStackSettings,
    calls: OpenStackCalls,
    subject: str,
    network: NetworkJson,
    subnets: Sequence[NetworkJson],
    project: str,
) -> Finding:
    summary = f"{network['name']}, {network['id']}"
    if not network["admin_state_up"] or network["status"] not in ("ACTIVE", ""):
        summary += f", {network['status'] if network['admin_state_up'] else 'down'}"
        return Finding(
            subject, False, summary, f"openstack network set --enable {network['id']}, or take another network"
        )
    if not subnets:
        return Finding(
            subject, False, f"{summary}, without a subnet: machines would have no address",
            f"openstack subnet create --network {network['id']} --subnet-range RANGE NAME, or take another network",
        )  # fmt: skip
    if network.get("port_security_enabled") is False and settings.security_groups:
        return Finding(
            subject, False, f"{summary}, has port security off: Neutron refuses ports with security groups there",
            "set port_security = false and take out security_groups, or openstack network set --enable-port-security",
        )  # fmt: skip
    if not settings.port_security and network["project_id"] != project:
        return Finding(
            subject, None, f"{summary}, is another project's: by Neutron's own rules only that may make ports without "
            "port security", "take out port_security, or ask the cloud's operator for the right",
        )  # fmt: skip
    if network.get("router:external") and not network.get("shared"):
        return Finding(
            subject, None, f"{summary}, is an external network: Nova lets no machine of a common user into one",
            "set networks to a network of the project, and floating_network to this one",
        )  # fmt: skip
    summary += f", {', '.join(one['cidr'] for one in subnets)}"
    if not settings.config_drive and not any(_assigns_addresses(one) for one in subnets):
        return Finding(
            subject, None, f"{summary}, without DHCP: machines may not learn their address", "set config_drive = true"
        )
    return _addresses(calls, subject, summary, network, subnets, project)


def _assigns_addresses(subnet: NetworkJson) -> bool:
    return bool(subnet["enable_dhcp"] or subnet.get("ipv6_address_mode") == "slaac")


def _addresses(
    calls: OpenStackCalls,
    subject: str,
    summary: str,
    network: NetworkJson,
    subnets: Sequence[NetworkJson],
    project: str,
) -> Finding:
    """How many are free, of the family that has fewest: a port has one of each. Others' use shows to the owner only."""
    pools: dict[int, int] = {}
    for one in subnets:
        size = sum(_size(pool) for pool in one["allocation_pools"])
        pools[one["ip_version"]] = pools.get(one["ip_version"], 0) + size
    remedy = "take a larger network, or remove ports that nobody uses ('openstack port list --network')"
    if network["project_id"] != project:
        summary += f", {min(pools.values())} addresses, of which others' use does not show"
        if min(pools.values()) < _FEW:
            return Finding(subject, False, summary, remedy)
        return Finding(subject, True, summary)
    try:
        ports = calls.pages(
            "network", "/ports", "ports", "list ports", network_id=[network["id"]], fields=["id", "fixed_ips"]
        )
        used = [one["subnet_id"] for port in ports for one in port["fixed_ips"]]
    except ProviderError as error:
        return finding_for_error(subject, error, remedy)
    family = {one["id"]: one["ip_version"] for one in subnets}
    for subnet_id in used:
        if subnet_id in family:
            pools[family[subnet_id]] -= 1
    free = max(min(pools.values()), 0)
    summary += f", {free} free addresses"
    return Finding(subject, False, summary, remedy) if free < _FEW else Finding(subject, True, summary)


def _size(pool: NetworkJson) -> int:
    return int(ip_address(pool["end"])) - int(ip_address(pool["start"])) + 1


def check_floating_network(
    settings: OpenStackSettings,
    calls: OpenStackCalls,
    known: ProjectNetworks,
    there: Sequence[NetworkJson],
    project: str,
) -> Iterator[Finding]:
    """The network of floating IPs, and whether a router leads to it from the first of ``there``."""
    if not settings.floating_network:
        return
    subject = f"floating_network {settings.floating_network}"
    try:
        network = calls.query(
            "network", f"/networks/{known.floating_network_id()}", "read the network of floating IPs"
        )["network"]
    except ProviderError as error:
        yield finding_for_error(subject, error, "set floating_network to one of 'openstack network list --external'")
        return
    if not network.get("router:external"):
        yield Finding(
            subject, False, f"{network['id']} is no external network: it has no floating IPs",
            "set floating_network to one of 'openstack network list --external'",
        )  # fmt: skip
        return
    if not there:
        yield Finding(subject, True, network["id"])
        return
    yield _check_router(calls, subject, network, there[0], project)


def _check_router(
    calls: OpenStackCalls, subject: str, outside: NetworkJson, network: NetworkJson, project: str
) -> Finding:
    path = f"from {network['name']} to {outside['name']}"
    try:
        routers = calls.pages("network", "/routers", "routers", "list routers")
        gates = [
            one["id"] for one in routers if (one["external_gateway_info"] or {}).get("network_id") == outside["id"]
        ]
        ports = calls.pages(
            "network", "/ports", "ports", "list ports", network_id=[network["id"]], fields=["id", "device_id"]
        )
        through = [one["device_id"] for one in ports if one["device_id"] in gates]
    except NotFound:
        return Finding(
            subject,
            False,
            "this cloud has no routers, hence no floating IPs",
            "take floating_network out of the settings",
        )
    except ProviderError as error:
        return finding_for_error(subject, error, "look at 'openstack router list'")
    if through:
        return Finding(subject, True, f"{outside['id']}; router {through[0]} leads there {path}")
    if network["project_id"] != project:
        return Finding(
            subject, None, f"no router that leads {path} shows to this project", "ask the cloud's operator for the way"
        )
    return Finding(
        subject, False, f"no router leads {path}",
        f"openstack router create NAME; openstack router set --external-gateway {outside['id']} NAME; "
        "openstack router add subnet NAME SUBNET",
    )  # fmt: skip


def check_security_groups(
    settings: OpenStackSettings, calls: OpenStackCalls, known: ProjectNetworks, project: str, family: str
) -> Iterator[Finding]:
    """Whether the security groups of the ports let in what must get in, and out what must get out, by IP of the
    ``family``.
    """
    if not settings.port_security:
        yield Finding("security groups", True, "none: port_security is off, so that nothing is kept out")
        return
    try:
        ids = known.security_group_ids()
        query: dict[str, Any] = {"id": list(ids)} if ids else {"name": ["default"], "project_id": project}
        found = list(calls.pages("network", "/security-groups", "security_groups", "list security groups", **query))
    except ProviderError as error:
        yield finding_for_error(
            "security groups", error, "set security_groups to some of 'openstack security group list'"
        )
        return
    names = ", ".join(one["name"] for one in found) or "none"
    every = [rule for group in found for rule in group["security_group_rules"]]
    rules = [rule for rule in every if rule.get("ethertype", family) == family]
    own = {group["id"] for group in found}
    chosen = "" if ids else ", the project's own, as the settings name none"
    yield Finding("security groups", True, f"{names}{chosen}; {len(rules)} rules of {family}")
    group = found[0]["id"] if found else "GROUP"
    group = group if family == _V4 else f"--ethertype {family} {group}"
    for port, what, sure in ((_SSH, "ssh from the head", True), (_SLURMD, "slurmd, from head and nodes", False)):
        yield _check_port(
            f"port {port}",
            [rule for rule in rules if _rule_covers(rule, "ingress", port)],
            own,
            what,
            group,
            port,
            sure,
        )
    if not any(_rule_covers(rule, "egress", _SLURMCTLD) for rule in rules):
        yield Finding(
            f"port {_SLURMCTLD}", None, "no rule of the groups lets it out (to slurmctld)",
            f"openstack security group rule create --egress --protocol tcp {group}",
        )  # fmt: skip


def _check_port(
    subject: str, rules: Sequence[NetworkJson], own: set[str], what: str, group: str, port: int, sure: bool
) -> Finding:
    """``sure``: nothing works without it; else the site may have another port."""
    remedy = f"openstack security group rule create --protocol tcp --dst-port {port} --remote-ip YOUR_NETWORK {group}"
    if any(not rule.get("remote_group_id") for rule in rules):
        return Finding(subject, True, f"the groups let it in from somewhere ({what})")
    others = sorted({rule["remote_group_id"] for rule in rules} - own)
    if others:
        return Finding(
            subject, None, f"let in from members of {', '.join(others)} only ({what}): is the head one?", remedy
        )
    inside = ", but from machines of the groups themselves" if rules else ""
    return Finding(subject, False if sure else None, f"no rule of the groups lets it in{inside} ({what})", remedy)


def _rule_covers(rule: NetworkJson, direction: str, port: int) -> bool:
    if rule["direction"] != direction or str(rule["protocol"]).lower() not in ("none", "any", "tcp", "6", "0"):
        return False
    low, high = rule["port_range_min"], rule["port_range_max"]
    return low is None or high is None or low <= port <= high
