"""What ``burstctl provider`` shows: clouds, their offers, and the findings of their self-checks."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Self

from burstd.api.answers.base import AnswerView, Money, OptionalTime, ReachabilityView, Time, current_user
from burstd.api.answers.status import BreakerView, ProviderView

if TYPE_CHECKING:
    from burstd.domain.plugins.provider import Finding


class ProviderStateView(ProviderView):
    """One cloud, with what it has and who uses it."""

    listed: OptionalTime
    """When the last listing of instances began."""
    instance_types: int
    zones: list[str]
    markets: list[str]
    pools: list[str]
    """Those whose rules name it."""
    alarms: list[str]
    """What cannot be read, each with the reason."""
    checks_itself: bool
    """Whether it has a self-check for ``burstctl provider check``."""


class ProvidersView(AnswerView):
    """``burstctl provider list``."""

    now: Time
    providers: list[ProviderStateView]


class GpuView(AnswerView):
    """GPUs of one type, as slurm.conf names it; ``memory_mib`` of each, 0: not said."""

    type: str
    count: int
    memory_mib: int


class OfferView(AnswerView):
    """One way to get a machine. Texts are empty and numbers 0 where the provider says nothing."""

    id: str
    region: str
    zone: str
    instance_type: str
    market: str
    cpus: int
    memory_mib: int
    gpus: list[GpuView]
    architecture: str
    fabric: str
    """What binds nodes of one job: ``placement-group+efa``; ``none``: the common network only."""
    placement: str = ""
    """The first part of ``fabric``: what its provider keeps these nodes near each other by."""
    local_disk_gib: int
    price_per_hour: Money
    price_source: str
    price_at: OptionalTime
    """When the price was learned."""
    address_price: Decimal = Decimal(0)
    """Of ``price_per_hour``, what is for the machine's public address."""
    pools: list[str]
    """Pools that can use it, now or when what ``refused`` says of them, or ``breakers``, is over."""
    refused: dict[str, str]
    """Pools whose rules name it and that cannot use it now, with the reason."""
    breakers: list[BreakerView]
    """Open circuit breakers that block it."""
    machines: int = 0
    """Past machines of its place (zone and type, spot or not); 0 where none of them was bad."""
    bad_machines: int = 0
    avoided: str = ""
    """Why other offers come first, or it is refused: too many machines of its place were bad; empty: they were not."""


class OffersView(ReachabilityView):
    """``burstctl provider offers``, cheapest first."""

    now: Time
    provider: str
    offers: list[OfferView]
    hidden: int
    """How many more there are that no pool can use (``all`` shows them)."""


class FindingView(AnswerView):
    """One checked item. ``ok`` None: it could not be checked."""

    subject: str
    ok: bool | None
    text: str
    remedy: str


class CheckView(AnswerView):
    """``burstctl provider check``. ``ok``: nothing is known to be wrong."""

    now: OptionalTime
    """None: burstctl itself made the check."""
    provider: str
    ok: bool
    user: str
    """Whose credentials were used: the user that the check ran as."""
    findings: list[FindingView]

    @classmethod
    def from_findings(cls, provider: str, findings: Iterable[Finding], now: float | None) -> Self:
        """The findings, in the order of the checks, of a check that this process made."""
        views = [FindingView.from_fields(finding) for finding in findings]
        ok = all(finding.ok is not False for finding in views)
        return cls(now=now, provider=provider, ok=ok, user=current_user(), findings=views)
