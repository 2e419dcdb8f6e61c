"""Whether there is anything to be had: instance types, reservations, quotas; notices, and Amazon's services' roles."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import AuthFailed, ProviderError
from burstd.domain.plugins.provider import Finding, Quota
from providers.aws.calls import AwsCalls
from providers.aws.catalog.catalog import AwsCatalog, Ec2InstanceType
from providers.aws.catalog.quotas import AwsQuotas, parse_quota_name, quota_covers
from providers.aws.checks.network import CheckedNetwork
from providers.aws.checks.rights import POLICY, finding_for_error
from providers.aws.settings import AwsSettings
from providers.findings import first_few

_PAGE = 5


def check_offers(catalog: AwsCatalog) -> Generator[Finding, None, Sequence[Offer]]:
    """What can be started, cheapest first; findings where that cannot be told, and on prices."""
    found: Sequence[Offer] = ()
    try:
        found = sorted(catalog.offers(), key=lambda offer: (offer.price, offer.id))
        unpriced = catalog.unpriced()
    except ProviderError as error:
        yield finding_for_error("offers", error, "mend what it names in the provider's table")
        return found
    sources = Counter(offer.price_source for offer in found)
    summary = ", ".join(f"{number} from {source}" for source, number in sources.items())
    if unpriced:
        yield Finding(
            "prices", False, f"without one in some market, and so not offered there: {first_few(unpriced)}",
            f'set prices = {{ "{unpriced[0]}" = "..." }} (spot_prices likewise), or mend the source below',
        )  # fmt: skip
    else:
        yield Finding("prices", True, f"of {len(found)} offers: {summary}")
    for source, trouble in catalog.prices.failures.items():
        yield Finding(
            f"prices from {source}", False, trouble,
            f"give burstd's user the statement Look of {POLICY}, or set prices and price_list = false",
        )  # fmt: skip
    return found


def check_instance_types(
    settings: AwsSettings, calls: AwsCalls, network: CheckedNetwork, there: Sequence[Offer]
) -> Iterator[Finding]:
    """Each pattern of ``instance_types``: what it stands for, and what keeps all types of it from being offered."""
    offered = defaultdict(set)
    for offer in there:
        offered[offer.instance_type].add("spot" if offer.spot else "on demand")
    for pattern in settings.instance_types:
        subject = f"instance types {pattern}"
        good = [name for name in sorted(offered) if fnmatchcase(name, pattern)]
        if good:
            markets = ", ".join(sorted(set().union(*(offered[name] for name in good))))
            yield Finding(subject, True, f"{len(good)} offered: {first_few(good)}; {markets}")
        else:
            yield _nothing_offered(settings, calls, network, pattern)


def _nothing_offered(settings: AwsSettings, calls: AwsCalls, network: CheckedNetwork, pattern: str) -> Finding:
    """Why nothing of this pattern is offered."""
    subject = f"instance types {pattern}"
    # Filters know * and ? only.
    wide = pattern.partition("[")[0] + "*" if "[" in pattern else pattern
    zones: dict[str, set[str]] = defaultdict(set)
    try:
        for one in calls.pages(
            "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", limit=settings.page,
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [wide]}],
        ):  # fmt: skip
            if fnmatchcase(one["InstanceType"], pattern):
                zones[one["InstanceType"]].add(one["Location"])
    except ProviderError as error:
        return finding_for_error(subject, error, "mend instance_types")
    if not zones:
        return Finding(
            subject, False, f"{settings.region} has none of that name",
            "look at 'aws ec2 describe-instance-type-offerings' for the names that there are",
        )  # fmt: skip
    places = sorted(set().union(*zones.values()))
    if not network.subnets.keys() & set(places):
        return Finding(
            subject, False, f"{first_few(sorted(zones))} are in {', '.join(places)} only, where no subnet is",
            "add a subnet in one of these zones to subnets",
        )  # fmt: skip
    return Finding(
        subject,
        False,
        f"{first_few(sorted(zones))} are sold here and not offered: no price, or a reservation that ended",
        "look at the findings on prices and reservations",
    )


def check_reservations(settings: AwsSettings, calls: AwsCalls, network: CheckedNetwork) -> Iterator[Finding]:
    """Each capacity reservation or block: usable by types and zones of the settings, and how much of it is free."""
    for name in settings.reservations:
        subject = f"reservation {name}"
        try:
            (said,) = calls.query(
                "ec2", "describe_capacity_reservations", CapacityReservationIds=[name]
            )["CapacityReservations"]  # fmt: skip
        except ProviderError as error:
            yield finding_for_error(
                subject, error, "set reservations to some of 'aws ec2 describe-capacity-reservations'"
            )
            continue
        kind, zone, state = said["InstanceType"], said["AvailabilityZone"], said["State"]
        free, total = said.get("AvailableInstanceCount", 0), said.get("TotalInstanceCount", 0)
        summary = f"{kind} in {zone}, {state}, {free} of {total} free"
        if "EndDate" in said:
            summary += f", ends {said['EndDate']:%Y-%m-%d %H:%M} UTC"
        if not any(fnmatchcase(kind, pattern) for pattern in settings.instance_types):
            yield Finding(subject, False, summary, f'add "{kind}" to instance_types')
        elif zone not in network.subnets:
            yield Finding(subject, False, summary, f"add a subnet in {zone} to subnets")
        elif state not in ("active", "scheduled"):
            yield Finding(subject, False, summary, "take it out of reservations")
        else:
            yield Finding(subject, True, summary)


def check_quotas(quotas: AwsQuotas, there: Sequence[Ec2InstanceType]) -> Iterator[Finding]:
    """Each limit that bears on the types, and how many of the largest and the smallest there is room for."""
    try:
        limits = quotas.read_quotas()
    except ProviderError as error:
        yield finding_for_error("quotas", error, "look at the page of Amazon EC2 in the Service Quotas console")
        return
    for limit in limits:
        families, spot = parse_quota_name(limit.name) or (frozenset(), False)
        bearing = [k for k in there if quota_covers(families, k.name) and (k.spot if spot else k.on_demand)]
        yield _quota(limit, sorted(bearing, key=lambda kind: (kind.vcpus, kind.name)))


def _quota(limit: Quota, bearing: Sequence[Ec2InstanceType]) -> Finding:
    """``bearing`` are the types that it bears on, smallest first."""
    subject, text = f"quota {limit.name}", f"{limit.used} of {limit.limit} {limit.unit} in use"
    if not bearing:
        return Finding(subject, True, text)
    smallest, largest = bearing[0], bearing[-1]
    free = max(limit.limit - limit.used, 0)
    text += f", room for {free // largest.vcpus} {largest.name} ({largest.vcpus} each)"
    if smallest.vcpus < largest.vcpus:
        text += f" or {free // smallest.vcpus} {smallest.name}"
    if limit.limit < smallest.vcpus:
        return Finding(
            subject, False, text,
            "ask for an increase: aws service-quotas list-service-quotas --service-code ec2 --query "
            f"\"Quotas[?QuotaName=='{limit.name}'].QuotaCode\", then aws service-quotas "
            f"request-service-quota-increase --service-code ec2 --quota-code CODE --desired-value {largest.vcpus}",
        )  # fmt: skip
    if free < smallest.vcpus:
        return Finding(subject, None, f"{text}: all is taken now")
    return Finding(subject, True, text)


def check_notices_queue(settings: AwsSettings, calls: AwsCalls) -> Iterator[Finding]:
    """The queue of interruption warnings, where there is one."""
    url = settings.notices_queue
    if not url:
        return
    subject = f"queue {url.rpartition('/')[2]}"
    names = ["ApproximateNumberOfMessages", "Policy"]
    try:
        said = calls.query("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=names).get("Attributes", {})
    except ProviderError as error:
        yield finding_for_error(subject, error, "set notices_queue to the QueueUrl of 'aws sqs list-queues'")
        return
    summary = f"{said.get('ApproximateNumberOfMessages', '0')} messages wait"
    if "events.amazonaws.com" in json.dumps(said.get("Policy", "")):
        yield Finding(subject, True, summary)
    else:
        yield Finding(
            subject, False, f"{summary}; its policy does not let EventBridge put any in",
            "set the queue's policy from config/aws/notices-queue-policy.json (aws sqs set-queue-attributes)",
        )  # fmt: skip


def check_service_roles(calls: AwsCalls, *, spot: bool) -> Iterator[Finding]:
    """Roles that Amazon's own services need once in each account. Whether they are there shows by their works only."""
    fleets = {"Filters": [{"Name": "tag-key", "Values": ["aws:ec2:fleet-id"]}]}
    wanted = [("ec2fleet", "describe_instances", "Reservations", fleets)]
    if spot:
        wanted.append(("spot", "describe_spot_instance_requests", "SpotInstanceRequests", {}))
    for service, operation, key, words in wanted:
        subject = f"role of {service}.amazonaws.com"
        try:
            seen = next(iter(calls.pages("ec2", operation, key, limit=_PAGE, **words)), None)
        except AuthFailed:
            continue  # The right to look was told of before.
        except ProviderError as error:
            yield finding_for_error(subject, error, "try again later")
            continue
        if seen:
            yield Finding(subject, True, "is there: the account has used the service")
        else:
            yield Finding(
                subject, None, "the service was not used lately, so whether its role is there does not show",
                f"once in an account, as its administrator: aws iam create-service-linked-role --aws-service-name "
                f"{service}.amazonaws.com (harmless where it is there)",
            )  # fmt: skip
