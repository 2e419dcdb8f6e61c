"""Single charges: what machines and volumes cost day by day, for what, and who is charged."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from burstd.api.answers.base import AnswerView, Money, Time


class ChargedView(AnswerView):
    """What charges are for: a machine or a volume."""

    id: str
    """Of the claim or volume."""
    volume: bool
    resource_id: str
    """The cloud's own id; empty: none is known."""
    name: str
    """The node's, the storage node's, the volume's."""
    provider: str
    region: str
    zone: str
    sku: str
    """The instance type; of a volume empty."""
    spot: bool
    price: Money | None
    """For an hour. None: burstd knows it no more."""
    address_price: Decimal = Decimal(0)
    """Of ``price``, what is for the machine's public address."""
    egress_price: Money | None = None
    """Of a GB (10^9 bytes) that leaves its provider. None: burstd knows it no more, or it costs nothing."""


class ChargeView(AnswerView):
    """What one payer is charged for one kind of use in one day (UTC)."""

    of: str
    """``ChargedView.id``."""
    day: date
    kind: str
    """As in ``BillPartView``. Of ``traffic`` there is no time of the machine, but bytes."""
    cause: str
    pool: str
    """That the machine was in then; of a volume empty."""
    job: str
    user: str
    """Empty: nobody is charged."""
    account: str
    partition: str
    cost: Decimal
    """In the currency of this charge."""
    currency: str
    machine_s: float
    """Of the machine or volume, shared as the cost is."""
    corrects: str = ""
    """The closed month that it puts right: ``2026-10``."""
    bytes_out: int = 0
    """Of traffic."""


class SiteChargeView(AnswerView):
    """What one run of a job is charged in one day (UTC) on nodes of the site that cost the same."""

    day: date
    group: str
    """Of ``[site.cost]``."""
    nodes: str
    """Slurm's host list; empty: the run began before burstd recorded it."""
    job: str
    user: str
    account: str
    partition: str
    cost: Decimal
    """In the currency of this charge."""
    currency: str
    milliseconds: int
    """Of nodes, by the job's share of them."""
    corrects: str = ""
    """As in ``ChargeView``."""


class SiteChargesView(AnswerView):
    """The charges of a day (UTC) on nodes of the site."""

    cluster: str
    charges: list[SiteChargeView]
    next: date | None
    """``day`` of the next answer; null: this was the last."""


class ChargesView(AnswerView):
    """A page of the charges of whole days (UTC)."""

    now: Time
    since: Time
    until: Time
    cluster: str
    charges: list[ChargeView]
    things: list[ChargedView]
    """All that the charges of this page are for."""
    next: str
    """``cursor`` of the next page; empty: this was the last."""
