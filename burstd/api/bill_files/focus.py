"""The bill as a FOCUS 1.2 file (FinOps Open Cost and Usage Specification): a row for each charge.

Columns for what burstd does not have are left out: commitments, reservations, invoices, prices in other currencies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from burstd.api.answers.base import Money
from burstd.api.answers.charges import ChargedView, ChargesView, ChargeView, SiteChargesView, SiteChargeView
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.traffic import GB
from burstd.domain.billing.use import Kind
from burstd.slurm.hostlist import expand

_HOUR_S = 3600
_QUANTITY = Decimal("0.000000000001")
"""Of hours and gigabytes: times the price it is the cost to a millionth."""
_NOTHING = ChargedView(
    id="",
    volume=False,
    resource_id="",
    name="",
    provider="",
    region="",
    zone="",
    sku="",
    spot=False,
    price=None,
)
_NO_CHARGE = ChargeView(
    of="", day=date(1970, 1, 1), kind="", cause="", pool="", job="", user="", account="", partition="", cost=Decimal(0),
    currency="", machine_s=0.0,
)  # fmt: skip
"""The head has the names of its columns."""


@dataclass(frozen=True, slots=True)
class _Sort:
    """What charges of a sort have in common; the last are units."""

    resource: str
    category: str
    subcategory: str
    service: str
    meter: str
    pricing: str = "Hours"
    consumed: str = "Seconds"


_MACHINE = _Sort("Virtual Machine", "Compute", "Virtual Machines", "Machines", "Machine Hours")
_VOLUME = _Sort("Volume", "Storage", "Block Storage", "Volumes", "Volume Hours")
_TRAFFIC = _Sort("Virtual Machine", "Networking", "Network Connectivity", "Traffic", "Gigabytes Out", "GB", "GB")


def focus_rows(pages: Iterable[ChargesView]) -> Iterator[Sequence[str]]:
    """The head and the rows, page by page. Null is an empty cell."""
    yield tuple(_row(_NO_CHARGE, _NOTHING, ""))
    for page in pages:
        things = {thing.id: thing for thing in page.things}
        for charge in page.charges:
            yield tuple(_row(charge, things[charge.of], page.cluster).values())


def site_focus_rows(days: Iterable[SiteChargesView]) -> Iterator[Sequence[str]]:
    """The same of nodes of the site, whose provider is the cluster.

    A charge goes to the nodes of its run in equal parts, which add up to it.
    """
    yield tuple(_row(_NO_CHARGE, _NOTHING, ""))
    for day in days:
        for charge in day.charges:
            yield from _site_rows(charge, expand(charge.nodes) or [charge.group], day.cluster)


def _site_rows(charge: SiteChargeView, nodes: Sequence[str], cluster: str) -> Iterator[Sequence[str]]:
    costs, times = _equal_parts(int(charge.cost / MICRO), nodes), _equal_parts(charge.milliseconds, nodes)
    sku = f"{cluster}/{charge.group}"
    for node, cost, milliseconds in zip(nodes, costs, times, strict=True):
        part = ChargeView(
            of=node, day=charge.day, kind="site", cause="", pool="", job=charge.job, user=charge.user,
            account=charge.account, partition=charge.partition, cost=cost * MICRO, currency=charge.currency,
            machine_s=milliseconds / 1000, corrects=charge.corrects,
        )  # fmt: skip
        thing = _NOTHING.model_copy(update={"id": node, "name": node, "provider": cluster})
        row = {
            **_row(part, thing, cluster),
            "ResourceType": "Node",
            "ServiceName": "Nodes",
            "ServiceSubcategory": "Other (Compute)",
            "SkuId": sku,
            "SkuMeter": "Node Hours",
            "SkuPriceDetails": "",
            "SkuPriceId": sku,
            "Tags": json.dumps({"burstd/group": charge.group}),
            "x_Claim": "",
        }
        yield tuple(row.values())


def _equal_parts(whole: int, nodes: Sequence[str]) -> Iterator[int]:
    part, more = divmod(whole, len(nodes))
    return (part + (number < more) for number in range(len(nodes)))


def _row(charge: ChargeView, thing: ChargedView, cluster: str) -> Mapping[str, str]:
    traffic = charge.kind == Kind.TRAFFIC
    sort = _VOLUME if thing.volume else _TRAFFIC if traffic else _MACHINE
    cost = f"{charge.cost:f}"
    first = charge.day.replace(day=1)
    unit_price = thing.egress_price if traffic else thing.price
    price = "" if unit_price is None else f"{unit_price.amount:f}"
    product = "traffic" if traffic else thing.sku or "volume"
    sku = "/".join(filter(None, (thing.provider, thing.region, thing.zone, product)))
    spot = thing.spot and not traffic
    return {
        "AvailabilityZone": thing.zone,
        "BilledCost": cost,
        "BillingAccountId": cluster,
        "BillingAccountName": cluster,
        "BillingAccountType": "Cluster",
        "BillingCurrency": charge.currency,
        "BillingPeriodEnd": _midnight((first + timedelta(days=31)).replace(day=1)),
        "BillingPeriodStart": _midnight(first),
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if charge.corrects else "",
        "ChargeDescription": _description(charge, thing),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _midnight(charge.day + timedelta(days=1)),
        "ChargePeriodStart": _midnight(charge.day),
        "CommitmentDiscountId": "",
        "CommitmentDiscountStatus": "",
        "ConsumedQuantity": f"{Decimal(charge.bytes_out) / GB:f}" if traffic else f"{charge.machine_s:.3f}",
        "ConsumedUnit": sort.consumed,
        "ContractedCost": cost,
        "ContractedUnitPrice": price,
        "EffectiveCost": cost,
        "InvoiceId": "",
        "InvoiceIssuerName": thing.provider,
        "ListCost": cost,
        "ListUnitPrice": price,
        "PricingCategory": "Dynamic" if spot else "Standard",
        "PricingQuantity": f"{_quantity(charge, unit_price):f}",
        "PricingUnit": sort.pricing,
        "ProviderName": thing.provider,
        "PublisherName": thing.provider,
        "RegionId": thing.region,
        "RegionName": thing.region,
        "ResourceId": thing.resource_id or thing.id,
        "ResourceName": thing.name,
        "ResourceType": sort.resource,
        "ServiceCategory": sort.category,
        "ServiceName": sort.service,
        "ServiceSubcategory": sort.subcategory,
        "SkuId": sku,
        "SkuMeter": sort.meter,
        "SkuPriceDetails": json.dumps({"InstanceType": thing.sku}) if sort is _MACHINE else "",
        "SkuPriceId": f"{sku}/{'spot' if spot else 'on-demand'}",
        "SubAccountId": charge.account,
        "SubAccountName": charge.account,
        "SubAccountType": "Project" if charge.account else "",
        "Tags": json.dumps({"burstd/pool": charge.pool} if charge.pool else {}),
        "x_Account": charge.account,
        "x_Claim": "" if thing.volume else thing.id,
        "x_CorrectedMonth": charge.corrects,
        "x_IdleCause": charge.cause,
        "x_Job": charge.job,
        "x_Kind": charge.kind,
        "x_Partition": charge.partition,
        "x_Pool": charge.pool,
        "x_User": charge.user,
    }


def _quantity(charge: ChargeView, unit_price: Money | None) -> Decimal:
    """What the cost is at the price. ``machine_s`` and ``bytes_out``, which are whole, may differ a little."""
    if unit_price is not None and unit_price.amount:
        return (charge.cost / unit_price.amount).quantize(_QUANTITY)
    return (Decimal(charge.bytes_out) / GB + Decimal(f"{charge.machine_s:.3f}") / _HOUR_S).quantize(_QUANTITY)


def _description(charge: ChargeView, thing: ChargedView) -> str:
    kind = f"{charge.kind} ({charge.cause.replace('_', ' ')})" if charge.cause else charge.kind
    return f"{kind}{f' of job {charge.job}' if charge.job else ''}, {thing.name or thing.id}"


def _midnight(day: date) -> str:
    return f"{day:%Y-%m-%d}T00:00:00Z"
