"""What is handed on of a bill: its single charges, in pages, and the sheet."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from math import ceil
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator, TypeAdapter, ValidationError

from burstd.api.answers.base import Money
from burstd.api.answers.charges import ChargedView, ChargesView, ChargeView, SiteChargesView, SiteChargeView
from burstd.api.answers.plan import BillSheetView
from burstd.api.backend import SLICE
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, Timestamp
from burstd.api.routers.closed_months import bill_months
from burstd.api.routers.status import bill_view, bill_window, current_rates
from burstd.db import ChargeLine, Cursor
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.site_runs import SiteCharge
from burstd.domain.billing.use import DAY_S, Kind, day_text
from burstd.domain.claim import Claim
from burstd.domain.cloud.bounds import MAX_TIME_S
from burstd.domain.volume import Volume

_EPOCH = date(1970, 1, 1)
_MAX_PAGE = 5000
_SHEET_GROUPS: tuple[BillGrouping, ...] = ("account", "user", "day", "job")
_SHEET_JOBS = 30
_MAX_NUMBER = 2**63 - 1
"""That a database takes."""


def _checked(place: Cursor) -> Cursor:
    numbers = (place.day, place.number)
    if not 0 <= place.moment <= MAX_TIME_S or max(map(abs, numbers)) > _MAX_NUMBER or "\0" in place.thing:
        raise ValueError("no cursor of burstd's")
    return place


_CURSOR = TypeAdapter(Annotated[Cursor, AfterValidator(_checked)])

router = APIRouter(prefix="/v1")


@router.get("/bill/charges")
def get_charges(
    caller: CallerDep,
    backend: BackendDep,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    cursor: Annotated[str, Query(max_length=500)] = "",
    limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 1000,
) -> ChargesView:
    """Each charge of a bill, about ``limit`` a page; they add up to ``/v1/bill`` of the same time.

    ``cursor``: ``next`` of the page before. Machines that end while pages are read are shown as they were at the first;
    one that is handed over to another pool meanwhile may be missing or shown twice.
    Who is no administrator sees what he is charged for.
    """
    now = backend.now()
    place = _parse_cursor(cursor) if cursor else Cursor(now)
    begin, end = bill_window(place.moment, since, until)
    precedence = backend.precedence()
    precedence.wait()
    lines, after = backend.reader.charge_page(begin, end, place, limit, "" if caller.admin else caller.user)
    cluster = backend.daemon_info().cluster
    things: dict[str, ChargedView] = {}
    charges = []
    for line in precedence.slices(lines, SLICE):
        if line.id not in things:
            things[line.id] = _charged_view(line)
        charges.append(_charge_view(line))
    return ChargesView(
        now=now, since=begin, until=end, cluster=cluster, charges=charges, things=[*things.values()],
        next="" if after is None else _CURSOR.dump_json(after).decode(),
    )  # fmt: skip


@router.get("/bill/site-charges")
def get_site_charges(
    caller: CallerDep,
    backend: BackendDep,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    day: date | None = None,
) -> SiteChargesView:
    """Each charge of a day on nodes of the site, which are no part of the bill; the first day unless told otherwise.

    Times as in ``/v1/bill``. Who is no administrator sees those of his jobs.
    """
    begin, end = bill_window(backend.now(), since, until)
    backend.precedence().wait()
    number = int(begin // DAY_S) if day is None else (day - _EPOCH).days
    charges = backend.reader.site_charges(range(number, number + 1), "" if caller.admin else caller.user)
    return SiteChargesView(
        cluster=backend.daemon_info().cluster,
        charges=[_site_charge_view(one) for one in backend.precedence().slices(charges, SLICE)],
        next=_EPOCH + timedelta(number + 1) if number + 1 < ceil(end / DAY_S) else None,
    )


@router.get("/bill/sheet")
def get_sheet(
    caller: CallerDep, backend: BackendDep, since: Timestamp | None = None, until: Timestamp | None = None
) -> BillSheetView:
    """A bill as it is handed on: by account, user, day and job, the dearest of these.

    Times and what is seen as in ``/v1/bill``.
    """
    now = backend.now()
    begin, end = bill_window(now, since, until)
    backend.precedence().wait()
    user = "" if caller.admin else caller.user
    reader, rates = backend.reader, current_rates(backend)
    months = bill_months(reader, begin, end, admin=caller.admin)
    bills = {}
    for group, lines in reader.bills(_SHEET_GROUPS, begin, end, user, _SHEET_JOBS).items():
        site = reader.site_bill(group, begin, end, user, _SHEET_JOBS)
        bills[group] = bill_view(lines, group, begin, end, now, [], rates, months, site)
    return BillSheetView(
        cluster=backend.daemon_info().cluster, user=user, accounts=bills["account"], users=bills["user"],
        days=bills["day"], jobs=bills["job"],
    )  # fmt: skip


def _parse_cursor(text: str) -> Cursor:
    try:
        return _CURSOR.validate_json(text)
    except ValidationError:
        raise ApiError(422, "cursor must be what the answer before had as 'next'.") from None


def _charge_view(line: ChargeLine) -> ChargeView:
    charge, payer = line.charge, line.charge.payer
    return ChargeView(
        of=line.id, day=day_text(charge.day), kind=charge.kind, cause=charge.cause, pool=line.pool, job=payer.job,
        user=payer.user, account=payer.account, partition=payer.partition, cost=charge.amount * MICRO,
        currency=line.currency, machine_s=charge.milliseconds / 1000, corrects=charge.corrects,
        bytes_out=charge.bytes_out,
    )  # fmt: skip


def _site_charge_view(one: SiteCharge) -> SiteChargeView:
    charge, payer = one.charge, one.charge.payer
    return SiteChargeView(
        day=_EPOCH + timedelta(charge.day), group=one.group, nodes=one.nodes, job=payer.job, user=payer.user,
        account=payer.account, partition=payer.partition, cost=charge.amount * MICRO, currency=one.currency,
        milliseconds=charge.milliseconds, corrects=charge.corrects,
    )  # fmt: skip


def _charged_view(line: ChargeLine) -> ChargedView:
    resource_id = name = region = zone = sku = ""
    price: Money | None = None
    egress_price: Money | None = None
    address_price = Decimal(0)
    spot = False
    match line.thing:
        case Claim() as claim:
            offer = claim.offer
            resource_id, name, sku, spot = claim.instance_id, claim.slot, offer.instance_type, offer.spot
            region, zone, price = offer.region, offer.zone, Money(amount=offer.price, currency=offer.currency)
            address_price = offer.address_price
            if offer.egress_price:
                egress_price = Money(amount=offer.egress_price, currency=offer.currency)
        case Volume() as volume:
            resource_id, name, region, zone = volume.disk_id, volume.name, volume.region, volume.zone
            price = Money(amount=volume.price, currency=volume.currency)
    return ChargedView(
        id=line.id, volume=line.charge.kind is Kind.VOLUME, resource_id=resource_id, name=name,
        provider=line.provider, region=region, zone=zone, sku=sku, spot=spot, price=price,
        address_price=address_price, egress_price=egress_price,
    )  # fmt: skip
