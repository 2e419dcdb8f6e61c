"""Whether machines have a network: subnets, and groups that let burstd and Slurm in."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import Finding
from providers.aws.calls import AwsCalls
from providers.aws.checks.rights import finding_for_error
from providers.aws.settings import AwsSettings

_SSH, _SLURMD = 22, 6818
_FEW = 16
"""Free addresses of a subnet below which they soon run out."""


@dataclass(slots=True)
class CheckedNetwork:
    """What was found of it. ``subnets``: those that are used, by zone."""

    subnets: dict[str, str] = field(default_factory=dict)
    vpcs: set[str] = field(default_factory=set)


def check_subnets(settings: AwsSettings, calls: AwsCalls) -> Generator[Finding, None, CheckedNetwork]:
    """Each one: there, with addresses left, all in one VPC."""
    network = CheckedNetwork()
    for name in settings.subnets:
        subject = f"subnet {name}"
        try:
            (said,) = calls.query("ec2", "describe_subnets", SubnetIds=[name])["Subnets"]
        except ProviderError as error:
            yield finding_for_error(subject, error, "set subnets to some of 'aws ec2 describe-subnets'")
            continue
        zone, vpc, free = said["AvailabilityZone"], said["VpcId"], said["AvailableIpAddressCount"]
        network.vpcs.add(vpc)
        used = network.subnets.setdefault(zone, name)
        summary = f"{zone}, {vpc}, {free} free addresses"
        if used != name:
            yield Finding(subject, True, f"{summary}; not used, as {used} comes before it in its zone")
        elif free < _FEW:
            yield Finding(subject, False, summary, "take a larger subnet, or remove what is not used in this one")
        else:
            yield Finding(subject, True, summary)
    if len(network.vpcs) > 1:
        summary = f"the subnets are in {len(network.vpcs)} VPCs ({', '.join(sorted(network.vpcs))})"
        yield Finding("subnets", False, summary, "take the subnets of one VPC; security groups belong to one")
    return network


def check_security_groups(settings: AwsSettings, calls: AwsCalls, network: CheckedNetwork) -> Iterator[Finding]:
    """Each security group, and whether all together let in what must get in."""
    rules: list[Mapping[str, Any]] = []
    unread = False
    for name in settings.security_groups:
        subject = f"security group {name}"
        try:
            (said,) = calls.query("ec2", "describe_security_groups", GroupIds=[name])["SecurityGroups"]
        except ProviderError as error:
            unread = True
            yield finding_for_error(subject, error, "set security_groups to some of 'aws ec2 describe-security-groups'")
            continue
        rules += said.get("IpPermissions", ())
        summary = f"{said.get('GroupName', '')}, {said['VpcId']}"
        if network.vpcs and said["VpcId"] not in network.vpcs:
            yield Finding(subject, False, f"{summary}: not the subnets' VPC", "take a group of the subnets' VPC")
        else:
            yield Finding(subject, True, summary)
    if unread:
        return
    for port, what, sure in ((_SSH, "ssh from the head", True), (_SLURMD, "slurmd from head and nodes", False)):
        if any(_lets_in(rule, port) for rule in rules):
            yield Finding(f"port {port}", True, f"the groups let it in from somewhere ({what})")
        else:
            yield Finding(
                f"port {port}", False if sure else None, f"no rule of the groups lets it in ({what})",
                f"aws ec2 authorize-security-group-ingress --group-id {settings.security_groups[0]} --protocol tcp "
                f"--port {port} --cidr YOUR_NETWORK",
            )  # fmt: skip


def _lets_in(rule: Mapping[str, Any], port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return rule.get("IpProtocol") == "tcp" and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)
