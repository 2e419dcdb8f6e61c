"""Whether there is anything to be had: instance types, reservations, quotas; notices, and Amazon's services' roles."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from burstd.domain.errors import AuthFailed
from burstd.domain.plugins.provider import Quota
from providers.aws.catalog.catalog import Ec2InstanceType
from providers.aws.catalog.quotas import parse_quota_name, quota_covers
from providers.aws.checks.account import POLICY, CheckedAccount
from providers.checks import Verdict, bad, first_few, good, judge_room, unclear

_SERVICES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ec2fleet": (
        "describe_instances", "Reservations", {"Filters": [{"Name": "tag-key", "Values": ["aws:ec2:fleet-id"]}]}
    ),
    "spot": ("describe_spot_instance_requests", "SpotInstanceRequests", {}),
}  # fmt: skip
"""What shows that the service was used: operation, key, arguments."""


def judge_offers(at: CheckedAccount) -> Iterator[Verdict]:
    """Finds what can be started; verdicts on prices."""
    at.offers = sorted(at.catalog.offers(), key=lambda offer: (offer.price, offer.id))
    if unpriced := at.catalog.unpriced():
        yield bad(
            f"without one in some market, and so not offered there: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }} (spot_prices likewise), or mend the source below', "prices",
        )  # fmt: skip
    else:
        sources = Counter(offer.price_source for offer in at.offers)
        summary = ", ".join(f"{number} from {source}" for source, number in sources.items())
        yield good(f"of {len(at.offers)} offers: {summary}", "prices")
    for source, trouble in at.catalog.prices.failures.items():
        remedy = f"give burstd's user the statement Look of {POLICY}, or set prices and price_list = false"
        yield bad(trouble, remedy, f"prices from {source}")


def judge_instance_types(at: CheckedAccount, pattern: str) -> Verdict:
    """What a pattern of ``instance_types`` stands for, and what keeps all types of it from being offered."""
    found = [offer for offer in at.offers if fnmatchcase(offer.instance_type, pattern)]
    if found:
        names = sorted({offer.instance_type for offer in found})
        markets = ", ".join(sorted({"spot" if offer.spot else "on demand" for offer in found}))
        return good(f"{len(names)} offered: {first_few(names)}; {markets}")
    # Filters know * and ? only.
    wide = pattern.partition("[")[0] + "*" if "[" in pattern else pattern
    zones: dict[str, set[str]] = defaultdict(set)
    for one in at.calls.pages(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", limit=at.settings.page,
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [wide]}],
    ):  # fmt: skip
        if fnmatchcase(one["InstanceType"], pattern):
            zones[one["InstanceType"]].add(one["Location"])
    if not zones:
        return bad(
            f"{at.settings.region} has none of that name",
            "look at 'aws ec2 describe-instance-type-offerings' for the names that there are",
        )
    some, places = first_few(sorted(zones)), sorted(set().union(*zones.values()))
    if not at.subnets.keys() & set(places):
        return bad(
            f"{some} are in {', '.join(places)} only, where no subnet is",
            "add a subnet in one of these zones to subnets",
        )
    return bad(
        f"{some} are sold here and not offered: no price, or a reservation that ended",
        "look at the findings on prices and reservations",
    )


def judge_reservation(at: CheckedAccount, name: str) -> Verdict:
    """Whether types and zones of the settings can use it, and how much of it is free."""
    (said,) = at.calls.query(
        "ec2", "describe_capacity_reservations", CapacityReservationIds=[name]
    )["CapacityReservations"]  # fmt: skip
    kind, zone, state = said["InstanceType"], said["AvailabilityZone"], said["State"]
    free, total = said.get("AvailableInstanceCount", 0), said.get("TotalInstanceCount", 0)
    summary = f"{kind} in {zone}, {state}, {free} of {total} free"
    if "EndDate" in said:
        summary += f", ends {said['EndDate']:%Y-%m-%d %H:%M} UTC"
    if not any(fnmatchcase(kind, pattern) for pattern in at.settings.instance_types):
        return bad(summary, f'add "{kind}" to instance_types')
    if zone not in at.subnets:
        return bad(summary, f"add a subnet in {zone} to subnets")
    return good(summary) if state in ("active", "scheduled") else bad(summary, "take it out of reservations")


def judge_quotas(at: CheckedAccount) -> Iterator[Verdict]:
    """Each limit that bears on the types, and how many of the largest and the smallest there is room for."""
    types = at.types
    return (judge_quota(limit, types) for limit in at.quotas.read_quotas())


def judge_quota(limit: Quota, types: Sequence[Ec2InstanceType]) -> Verdict:
    """``types``: all that are offered; those that the limit does not bear on are left out here."""
    families, spot = parse_quota_name(limit.name) or (frozenset(), False)
    bearing = [kind for kind in types if quota_covers(families, kind.name) and (kind.spot if spot else kind.on_demand)]
    verdict = judge_room(
        f"{limit.used} of {limit.limit} {limit.unit} in use", limit.limit - limit.used, limit.limit,
        {f"{kind.name} ({kind.vcpus} each)": kind.vcpus for kind in bearing},
        "ask for an increase: aws service-quotas list-service-quotas --service-code ec2 --query "
        f"\"Quotas[?QuotaName=='{limit.name}'].QuotaCode\", then aws service-quotas "
        "request-service-quota-increase --service-code ec2 --quota-code CODE --desired-value {}",
    )  # fmt: skip
    return replace(verdict, subject=f"quota {limit.name}")


def judge_notices_queue(at: CheckedAccount, _: str) -> Verdict:
    """The queue of interruption warnings."""
    names = ["ApproximateNumberOfMessages", "Policy"]
    said = at.calls.query("sqs", "get_queue_attributes", QueueUrl=at.settings.notices_queue, AttributeNames=names)
    found = said.get("Attributes", {})
    summary = f"{found.get('ApproximateNumberOfMessages', '0')} messages wait"
    if "events.amazonaws.com" in json.dumps(found.get("Policy", "")):
        return good(summary)
    return bad(
        f"{summary}; its policy does not let EventBridge put any in",
        "set the queue's policy from config/aws/notices-queue-policy.json (aws sqs set-queue-attributes)",
    )


def services_with_roles(at: CheckedAccount) -> list[str]:
    """Amazon's own services that need a role, once in each account."""
    return ["ec2fleet", "spot"] if any(offer.spot for offer in at.offers) else ["ec2fleet"]


def judge_service_role(at: CheckedAccount, service: str) -> Verdict | None:
    """Whether the role is there shows only by what the service has made."""
    operation, key, words = _SERVICES[service]
    try:
        used = next(iter(at.calls.pages("ec2", operation, key, limit=5, **words)), None)
    except AuthFailed:
        return None  # The finding on this right has said so.
    if used:
        return good("is there: the account has used the service")
    return unclear(
        "the service was not used lately, so whether its role is there does not show",
        f"once in an account, as its administrator: aws iam create-service-linked-role --aws-service-name "
        f"{service}.amazonaws.com (harmless where it is there)",
    )
