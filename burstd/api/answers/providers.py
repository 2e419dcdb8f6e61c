"""What ``burstctl provider`` shows: clouds, their offers, and the findings of their self-checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from burstd.api.answers.money import money_view
from burstd.api.answers.status import breaker_view, provider_view
from burstd.api.answers.types import (
    AnswerView,
    BreakerView,
    Money,
    ProviderView,
    ReachabilityView,
    utc_datetime,
    utc_datetime_or_none,
)
from burstd.api.backend import DaemonInfo
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.provider import Finding
from burstd.domain.snapshot import CloudView, Snapshot, Unavailable
from burstd.planner.offers.offers import evaluate_offers, open_breakers, usable_offers


class ProviderStateView(ProviderView):
    """One cloud, with what it has and who uses it."""

    listed: datetime | None
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

    now: datetime
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
    local_disk_gib: int
    price_per_hour: Money
    price_source: str
    price_at: datetime | None
    """When the price was learned."""
    pools: list[str]
    """Pools that could use it if its ``breakers`` were closed."""
    refused: dict[str, str]
    """Pools whose rules name it and that cannot use it now, with the reason."""
    breakers: list[BreakerView]
    """Open circuit breakers that block it."""


class OffersView(ReachabilityView):
    """``burstctl provider offers``, cheapest first."""

    now: datetime
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

    now: datetime
    provider: str
    ok: bool
    user: str
    """Whose credentials were used: the user that the check ran as."""
    findings: list[FindingView]


def providers_view(
    facts: DaemonInfo, snapshot: Snapshot, self_check_support: Mapping[str, bool], now: float
) -> ProvidersView:
    """All that are configured; one that was not read yet is not ok."""
    return ProvidersView(
        now=utc_datetime(now),
        providers=[
            _provider_state(name, snapshot.clouds.get(name), facts, snapshot, checks=checks)
            for name, checks in sorted(self_check_support.items())
        ],
    )


def offers_view(name: str, snapshot: Snapshot, now: float, *, include_unusable: bool) -> OffersView:
    """The offers that some pool could use, or ``every`` one."""
    cloud = snapshot.clouds.get(name)
    offers: tuple[Offer, ...] | Unavailable = Unavailable(_NOT_READ, 0.0) if cloud is None else cloud.offers
    if isinstance(offers, Unavailable):
        return OffersView(
            ok=False,
            error=offers.error,
            last_known=utc_datetime_or_none(offers.since),
            now=utc_datetime(now),
            provider=name,
            offers=[],
            hidden=0,
        )
    provider_pools = _provider_pools(name, snapshot)
    without_breakers = replace(snapshot, breakers=())
    usable = {pool.name: {o.id for o in usable_offers(without_breakers, pool)} for pool in provider_pools}
    rejections = {
        pool.name: {j.subject: j.rejected_because for j in evaluate_offers(snapshot, pool)} for pool in provider_pools
    }
    breakers = open_breakers(snapshot)
    views = []
    for offer in sorted(offers, key=lambda o: (o.price, o.id)):
        pools = [pool.name for pool in provider_pools if offer.id in usable[pool.name]]
        if pools or include_unusable:
            named = [pool.name for pool in provider_pools if any(rule.allows(offer) for rule in pool.rules)]
            refused = {pool: why for pool in named if (why := rejections[pool].get(offer.id, ""))}
            views.append(_offer(offer, pools, refused, [breaker_view(b) for b in breakers.breakers_for(offer)]))
    return OffersView(
        ok=True,
        last_known=utc_datetime_or_none(cloud.instances_listed if cloud else None),
        now=utc_datetime(now),
        provider=name,
        offers=views,
        hidden=len(offers) - len(views),
    )


def check_view(name: str, findings: Sequence[Finding], user: str, now: float) -> CheckView:
    """The findings, in the order of the checks."""
    return CheckView(
        now=utc_datetime(now),
        provider=name,
        ok=all(finding.ok is not False for finding in findings),
        user=user,
        findings=[FindingView(subject=f.subject, ok=f.ok, text=f.text, remedy=f.remedy) for f in findings],
    )


_NOT_READ = "not read yet"


def _provider_state(
    name: str, cloud: CloudView | None, facts: DaemonInfo, snapshot: Snapshot, *, checks: bool
) -> ProviderStateView:
    known = cloud or CloudView(Unavailable(_NOT_READ, 0.0), Unavailable(_NOT_READ, 0.0))
    offers = () if isinstance(known.offers, Unavailable) else known.offers
    parts = (("instances", known.instances), ("offers", known.offers), ("leftovers", known.leftovers))
    glance = provider_view(name, known, snapshot, facts.calls_in_flight)
    return ProviderStateView(
        **glance.model_dump(),
        listed=utc_datetime_or_none(known.instances_listed),
        instance_types=len({o.instance_type for o in offers}),
        zones=sorted({o.zone for o in offers}),
        markets=sorted({_market(o) for o in offers}),
        pools=[pool.name for pool in _provider_pools(name, snapshot)],
        alarms=[f"{what} cannot be read: {part.error}" for what, part in parts if isinstance(part, Unavailable)],
        checks_itself=checks,
    )


def _provider_pools(name: str, snapshot: Snapshot) -> list[Pool]:
    """The pools, storage nodes' included, whose rules name the provider."""
    pools = (*snapshot.pools.values(), *(node.pool for node in snapshot.storage_nodes))
    return [pool for pool in pools if any(rule.provider == name for rule in pool.rules)]


def _offer(offer: Offer, pools: list[str], refused: dict[str, str], breakers: list[BreakerView]) -> OfferView:
    hardware = offer.hardware
    return OfferView(
        id=offer.id,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        market=_market(offer),
        cpus=offer.shape.cpus,
        memory_mib=offer.shape.memory_mib,
        gpus=[
            GpuView(type=g.type, count=g.count, memory_mib=hardware.gpu_memory_mib)
            for g in offer.shape.gres if g.name == "gpu"
        ],
        architecture=hardware.architecture,
        fabric=hardware.fabric,
        local_disk_gib=hardware.local_disk_gib,
        price_per_hour=money_view(offer.price, offer.currency),
        price_source=offer.price_source,
        price_at=utc_datetime_or_none(offer.price_at),
        pools=pools,
        refused=refused,
        breakers=breakers,
    )  # fmt: skip


def _market(offer: Offer) -> str:
    return "spot" if offer.spot else "on-demand"
