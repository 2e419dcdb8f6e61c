"""Whether machines have a network: subnets, and groups that let burstd and Slurm in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.aws.checks.account import CheckedAccount
from providers.checks import Verdict, bad, good

_FEW = 16
"""Free addresses of a subnet below which they soon run out."""


def judge_subnet(at: CheckedAccount, name: str) -> Verdict:
    """It is there, with addresses left."""
    (said,) = at.calls.query("ec2", "describe_subnets", SubnetIds=[name])["Subnets"]
    zone, vpc, free = said["AvailabilityZone"], said["VpcId"], said["AvailableIpAddressCount"]
    at.vpcs.add(vpc)
    used = at.subnets.setdefault(zone, name)
    summary = f"{zone}, {vpc}, {free} free addresses"
    if used != name:
        return good(f"{summary}; not used, as {used} comes before it in its zone")
    if free < _FEW:
        return bad(summary, "take a larger subnet, or remove what is not used in this one")
    return good(summary)


def judge_vpcs(at: CheckedAccount) -> Verdict | None:
    """All subnets are in one VPC."""
    if len(at.vpcs) < 2:
        return None
    return bad(
        f"the subnets are in {len(at.vpcs)} VPCs ({', '.join(sorted(at.vpcs))})",
        "take the subnets of one VPC; security groups belong to one",
    )


def judge_security_group(at: CheckedAccount, name: str) -> Verdict:
    """It is there, in the subnets' VPC."""
    (said,) = at.calls.query("ec2", "describe_security_groups", GroupIds=[name])["SecurityGroups"]
    at.groups_read += 1
    at.rules += said.get("IpPermissions", ())
    summary = f"{said.get('GroupName', '')}, {said['VpcId']}"
    if at.vpcs and said["VpcId"] not in at.vpcs:
        return bad(f"{summary}: not the subnets' VPC", "take a group of the subnets' VPC")
    return good(summary)


def judge_ports(at: CheckedAccount) -> Iterator[Verdict]:
    """Whether the groups together let in what must get in; not asked where one of them could not be read."""
    if at.groups_read < len(at.settings.security_groups):
        return
    for port, what, ok in ((22, "ssh from the head", False), (6818, "slurmd from head and nodes", None)):
        if any(_lets_in(rule, port) for rule in at.rules):
            yield good(f"the groups let it in from somewhere ({what})", f"port {port}")
        else:
            yield Verdict(
                ok, f"no rule of the groups lets it in ({what})",
                f"aws ec2 authorize-security-group-ingress --group-id {at.settings.security_groups[0]} --protocol tcp "
                f"--port {port} --cidr YOUR_NETWORK", f"port {port}",
            )  # fmt: skip


def _lets_in(rule: Mapping[str, Any], port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return rule.get("IpProtocol") == "tcp" and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)
