"""What ``burstctl provider`` shows: clouds, their offers, and what they find when they look at themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from burstd.api.answers.money import money
from burstd.api.answers.status import breaker_view, provider_view
from burstd.api.answers.types import BreakerView, Money, ProviderView, ReachView, View, when, when_set
from burstd.api.backend import Facts
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plugins.provider import Finding
from burstd.domain.snapshot import CloudView, Snapshot, Unavailable
from burstd.planner.offers.offers import candidates, closed_now, usable_offers


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
    """Whether ``burstctl provider check`` can ask it."""


class ProvidersView(View):
    """``burstctl provider list``."""

    now: datetime
    providers: list[ProviderStateView]


class GpuView(View):
    """GPUs of one type, as slurm.conf names it; ``memory_mib`` of each, 0: not said."""

    type: str
    count: int
    memory_mib: int


class OfferView(View):
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
    """Those that could be filled by it, were it not for ``breakers``."""
    refused: dict[str, str]
    """Pools whose rules name it and that cannot use it now, with the reason."""
    breakers: list[BreakerView]
    """What keeps it from being tried."""


class OffersView(ReachView):
    """``burstctl provider offers``, cheapest first."""

    now: datetime
    provider: str
    offers: list[OfferView]
    hidden: int
    """How many more there are that no pool can use (``all`` shows them)."""


class FindingView(View):
    """One thing that was looked at. ``ok`` None: it could not be told."""

    subject: str
    ok: bool | None
    text: str
    remedy: str


class CheckView(View):
    """``burstctl provider check``. ``ok``: nothing is known to be wrong."""

    now: datetime
    provider: str
    ok: bool
    user: str
    """Whose credentials were used: the user that the check ran as."""
    findings: list[FindingView]


def providers_view(facts: Facts, snapshot: Snapshot, able: Mapping[str, bool], now: float) -> ProvidersView:
    """All that are configured; one that was not read yet is not ok."""
    return ProvidersView(
        now=when(now),
        providers=[
            _state(name, snapshot.clouds.get(name), facts, snapshot, checks=checks)
            for name, checks in sorted(able.items())
        ],
    )


def offers_view(name: str, snapshot: Snapshot, now: float, *, every: bool) -> OffersView:
    """The offers that some pool could use, or ``every`` one."""
    cloud = snapshot.clouds.get(name)
    offers: tuple[Offer, ...] | Unavailable = Unavailable(_NOT_READ, 0.0) if cloud is None else cloud.offers
    if isinstance(offers, Unavailable):
        return OffersView(
            ok=False, error=offers.error, last_known=when_set(offers.since), now=when(now), provider=name, offers=[],
            hidden=0,
        )  # fmt: skip
    users = _users(name, snapshot)
    willing = replace(snapshot, breakers=())
    could = {pool.name: {o.id for o in usable_offers(willing, pool)} for pool in users}
    said = {pool.name: {j.subject: j.refused for j in candidates(snapshot, pool)} for pool in users}
    closed = closed_now(snapshot)
    views = []
    for offer in sorted(offers, key=lambda o: (o.price, o.id)):
        pools = [pool.name for pool in users if offer.id in could[pool.name]]
        if pools or every:
            named = [pool.name for pool in users if any(rule.allows(offer) for rule in pool.rules)]
            refused = {pool: why for pool in named if (why := said[pool].get(offer.id, ""))}
            views.append(_offer(offer, pools, refused, [breaker_view(b) for b in closed.of(offer)]))
    return OffersView(
        ok=True, last_known=when_set(cloud.listed if cloud else None), now=when(now), provider=name, offers=views,
        hidden=len(offers) - len(views),
    )  # fmt: skip


def check_view(name: str, findings: Sequence[Finding], user: str, now: float) -> CheckView:
    """What was found, in the order in which it was looked at."""
    return CheckView(
        now=when(now),
        provider=name,
        ok=all(finding.ok is not False for finding in findings),
        user=user,
        findings=[FindingView(subject=f.subject, ok=f.ok, text=f.text, remedy=f.remedy) for f in findings],
    )


_NOT_READ = "it has not been read yet"


def _state(name: str, cloud: CloudView | None, facts: Facts, snapshot: Snapshot, *, checks: bool) -> ProviderStateView:
    unread = cloud or CloudView(Unavailable(_NOT_READ, 0.0), Unavailable(_NOT_READ, 0.0))
    offers = () if isinstance(unread.offers, Unavailable) else unread.offers
    parts = (("instances", unread.instances), ("offers", unread.offers), ("leftovers", unread.leftovers))
    glance = provider_view(name, unread, snapshot, facts.calls)
    return ProviderStateView(
        **glance.model_dump(),
        listed=when_set(unread.listed),
        instance_types=len({o.instance_type for o in offers}),
        zones=sorted({o.zone for o in offers}),
        markets=sorted({_market(o) for o in offers}),
        pools=[pool.name for pool in _users(name, snapshot)],
        alarms=[f"{what} cannot be read: {part.error}" for what, part in parts if isinstance(part, Unavailable)],
        checks_itself=checks,
    )


def _users(name: str, snapshot: Snapshot) -> list[Pool]:
    """The pools, storage nodes' included, whose rules name the provider."""
    pools = (*snapshot.pools.values(), *(node.pool for node in snapshot.store_nodes))
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
        price_per_hour=money(offer.price, offer.currency),
        price_source=offer.price_source,
        price_at=when_set(offer.price_at),
        pools=pools,
        refused=refused,
        breakers=breakers,
    )  # fmt: skip


def _market(offer: Offer) -> str:
    return "spot" if offer.spot else "on-demand"
