"""Whether machines have a network, floating IPs, and groups that let burstd and Slurm in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from burstd.domain.errors import NotFound, ProviderError
from providers.checks import Verdict, bad, good, unclear
from providers.openstack.checks.project import CheckedProject, NetworkJson, error_verdict

_FEW = 16
"""Free addresses of a network below which they soon run out."""


def judge_networks(at: CheckedProject) -> Iterator[Verdict]:
    """Each one: up, with subnets and addresses left."""
    ids = at.known_networks.network_ids()
    listed = at.calls.pages("network", "/networks", "networks", "list networks", id=list(ids))
    found = {one["id"]: one for one in listed}
    subnets = list(at.calls.pages("network", "/subnets", "subnets", "list subnets", network_id=list(ids)))
    at.networks = [found[one] for one in ids if one in found]
    if at.networks and not at.settings.floating_network:
        first = {one["ip_version"] for one in subnets if one["network_id"] == at.networks[0]["id"]}
        at.family = "IPv6" if first == {6} else "IPv4"
    for network in at.networks:
        word = next(word for word in at.settings.networks if word in (network["id"], network["name"]))
        own = [one for one in subnets if one["network_id"] == network["id"]]
        yield replace(_network(at, network, own), subject=f"network {word}")


def _network(at: CheckedProject, network: NetworkJson, subnets: Sequence[NetworkJson]) -> Verdict:
    summary = f"{network['name']}, {network['id']}"
    if not network["admin_state_up"] or network["status"] not in ("ACTIVE", ""):
        summary += f", {network['status'] if network['admin_state_up'] else 'down'}"
        return bad(summary, f"openstack network set --enable {network['id']}, or take another network")
    if not subnets:
        return bad(
            f"{summary}, without a subnet: machines would have no address",
            f"openstack subnet create --network {network['id']} --subnet-range RANGE NAME, or take another network",
        )
    if network.get("port_security_enabled") is False and at.settings.security_groups:
        return bad(
            f"{summary}, has port security off: Neutron refuses ports with security groups there",
            "set port_security = false and take out security_groups, or openstack network set --enable-port-security",
        )
    if not at.settings.port_security and network["project_id"] != at.id:
        return unclear(
            f"{summary}, is another project's: by Neutron's own rules only that may make ports without port security",
            "take out port_security, or ask the cloud's operator for the right",
        )
    if network.get("router:external") and not network.get("shared"):
        return unclear(
            f"{summary}, is an external network: Nova lets no machine of a common user into one",
            "set networks to a network of the project, and floating_network to this one",
        )
    summary += f", {', '.join(one['cidr'] for one in subnets)}"
    assigned = [one for one in subnets if one["enable_dhcp"] or one.get("ipv6_address_mode") == "slaac"]
    if not at.settings.config_drive and not assigned:
        return unclear(f"{summary}, without DHCP: machines may not learn their address", "set config_drive = true")
    return _addresses(at, summary, network, subnets)


def _addresses(at: CheckedProject, summary: str, network: NetworkJson, subnets: Sequence[NetworkJson]) -> Verdict:
    """How many are free, of the family that has fewest: a port has one of each. Others' use shows to the owner only."""
    free: dict[int, int] = {}
    for one in subnets:
        sizes = [int(ip_address(pool["end"])) - int(ip_address(pool["start"])) + 1 for pool in one["allocation_pools"]]
        free[one["ip_version"]] = free.get(one["ip_version"], 0) + sum(sizes)
    remedy = "take a larger network, or remove ports that nobody uses ('openstack port list --network')"
    if network["project_id"] == at.id:
        family = {one["id"]: one["ip_version"] for one in subnets}
        try:
            for port in _ports(at, network, "fixed_ips"):
                for address in port["fixed_ips"]:
                    if address["subnet_id"] in family:
                        free[family[address["subnet_id"]]] -= 1
        except ProviderError as error:
            return error_verdict(error, remedy)
        summary += f", {max(min(free.values()), 0)} free addresses"
    else:
        summary += f", {min(free.values())} addresses, of which others' use does not show"
    return bad(summary, remedy) if min(free.values()) < _FEW else good(summary)


def _ports(at: CheckedProject, network: NetworkJson, key: str) -> Iterator[NetworkJson]:
    return at.calls.pages("network", "/ports", "ports", "list ports", network_id=[network["id"]], fields=["id", key])


def judge_floating_network(at: CheckedProject, _: str) -> Verdict:
    """The network of floating IPs, and whether a router leads to it from the first of the networks."""
    path = f"/networks/{at.known_networks.floating_network_id()}"
    outside = at.calls.query("network", path, "read the network of floating IPs")["network"]
    if not outside.get("router:external"):
        return bad(
            f"{outside['id']} is no external network: it has no floating IPs",
            "set floating_network to one of 'openstack network list --external'",
        )
    if not at.networks:
        return good(outside["id"])
    network = at.networks[0]
    path = f"from {network['name']} to {outside['name']}"
    try:
        routers = at.calls.pages("network", "/routers", "routers", "list routers")
        gates = [
            one["id"] for one in routers if (one["external_gateway_info"] or {}).get("network_id") == outside["id"]
        ]
        through = [one["device_id"] for one in _ports(at, network, "device_id") if one["device_id"] in gates]
    except NotFound:
        return bad(
            "this cloud has no routers, hence no floating IPs", "take floating_network out of the settings"
        )  # fmt: skip
    except ProviderError as error:
        return error_verdict(error, "look at 'openstack router list'")
    if through:
        return good(f"{outside['id']}; router {through[0]} leads there {path}")
    if network["project_id"] != at.id:
        return unclear(f"no router that leads {path} shows to this project", "ask the cloud's operator for the way")
    return bad(
        f"no router leads {path}",
        f"openstack router create NAME; openstack router set --external-gateway {outside['id']} NAME; "
        "openstack router add subnet NAME SUBNET",
    )


def judge_security_groups(at: CheckedProject) -> Iterator[Verdict]:
    """Whether the groups of the ports let in what must get in, and out what must get out, by IP of the family."""
    if not at.settings.port_security:
        yield good("none: port_security is off, so that nothing is kept out")
        return
    ids = at.known_networks.security_group_ids()
    query: dict[str, Any] = {"id": list(ids)} if ids else {"name": ["default"], "project_id": at.id}
    found = list(at.calls.pages("network", "/security-groups", "security_groups", "list security groups", **query))
    every = [rule for group in found for rule in group["security_group_rules"]]
    rules = [rule for rule in every if rule.get("ethertype", at.family) == at.family]
    own = {group["id"] for group in found}
    chosen = "" if ids else ", the project's own, as the settings name none"
    yield good(f"{', '.join(one['name'] for one in found) or 'none'}{chosen}; {len(rules)} rules of {at.family}")
    group = found[0]["id"] if found else "GROUP"
    group = group if at.family == "IPv4" else f"--ethertype {at.family} {group}"
    create = "openstack security group rule create"
    # Without the first nothing works; the site may have another port than the second.
    for port, what, ok in ((22, "ssh from the head", False), (6818, "slurmd, from head and nodes", None)):
        inward = [rule for rule in rules if _rule_covers(rule, "ingress", port)]
        remedy = f"{create} --protocol tcp --dst-port {port} --remote-ip YOUR_NETWORK {group}"
        yield replace(_port(inward, own, what, ok, remedy), subject=f"port {port}")
    if not any(_rule_covers(rule, "egress", 6817) for rule in rules):
        text = "no rule of the groups lets it out (to slurmctld)"
        yield unclear(text, f"{create} --egress --protocol tcp {group}", "port 6817")


def _port(rules: Sequence[NetworkJson], own: set[str], what: str, ok: bool | None, remedy: str) -> Verdict:
    """``ok``: where no rule covers the port."""
    if any(not rule.get("remote_group_id") for rule in rules):
        return good(f"the groups let it in from somewhere ({what})")
    if others := sorted({rule["remote_group_id"] for rule in rules} - own):
        return unclear(f"let in from members of {', '.join(others)} only ({what}): is the head one?", remedy)
    inside = ", but from machines of the groups themselves" if rules else ""
    return Verdict(ok, f"no rule of the groups lets it in{inside} ({what})", remedy)


def _rule_covers(rule: NetworkJson, direction: str, port: int) -> bool:
    if rule["direction"] != direction or str(rule["protocol"]).lower() not in ("none", "any", "tcp", "6", "0"):
        return False
    low, high = rule["port_range_min"], rule["port_range_max"]
    return low is None or high is None or low <= port <= high
