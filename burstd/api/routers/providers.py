"""Providers: their state and offers, for everybody; their self-checks, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.base import CommandResultView, money_view
from burstd.api.answers.providers import CheckView, GpuView, OffersView, OfferView, ProviderStateView, ProvidersView
from burstd.api.answers.status import BreakerView
from burstd.api.backend import Backend, DaemonInfo
from burstd.api.dependencies import (
    AdminDep,
    ApiError,
    BackendDep,
    CallerDep,
    RequestBody,
    ShortText,
    command_answer,
    require_latest_loop,
)
from burstd.api.routers.status import provider_view
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.command import ForgetMachines
from burstd.domain.machine_outcomes import PlaceRecord
from burstd.domain.snapshot import NOT_READ_YET, CircuitBreaker, CloudView, Snapshot, Unavailable
from burstd.planner.offers.mended import breakers_of_place
from burstd.planner.offers.named_images import explicit_images
from burstd.planner.offers.offers import evaluate_offers, usable_offers
from burstd.planner.offers.offers import open_breakers as blocking_breakers
from burstd.reconciler.pollers.provider_checks import CheckInProgress

router = APIRouter(prefix="/v1/providers")


@router.get("")
def get_providers(caller: CallerDep, backend: BackendDep) -> ProvidersView:
    """All clouds with their state."""
    del caller
    snapshot, facts = require_latest_loop(backend)[0], backend.daemon_info()
    return ProvidersView(
        now=backend.now(),
        providers=[
            _provider_state(name, snapshot, facts, checks=checks)
            for name, checks in sorted(backend.checks.self_check_support().items())
        ],
    )


@router.get("/{name}/offers")
def get_offers(
    name: str, caller: CallerDep, backend: BackendDep, *, include_unusable: Annotated[bool, Query(alias="all")] = False
) -> OffersView:
    """What one cloud can start and some pool can use; with ``all`` everything."""
    del caller
    _require_provider(name, backend)
    return _offers_view(name, require_latest_loop(backend)[0], backend.now(), include_unusable=include_unusable)


@router.post("/{name}/check")
def post_check(name: str, caller: AdminDep, backend: BackendDep) -> CheckView:
    """Checks whether one cloud could launch machines."""
    del caller
    if not _require_provider(name, backend):
        raise ApiError(409, f"Provider {name} has no self-check: its kind does not offer one.")
    snapshot, _ = require_latest_loop(backend)
    pools = (*snapshot.pools.values(), *(node.pool for node in snapshot.storage_nodes))
    try:
        found = backend.checks.run_check(name, explicit_images(name, pools))
    except CheckInProgress as error:
        raise ApiError(409, f"{error}.") from None
    return CheckView.from_findings(name, found, backend.now())


class ForgetRequest(RequestBody):
    """Empty: all."""

    zone: ShortText = ""
    instance_type: ShortText = ""


@router.post("/{name}/forget")
def post_forget(name: str, body: ForgetRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Past machines of the places that fit do not speak against them any more, and their breakers are closed."""
    _require_provider(name, backend)
    snapshot, _ = require_latest_loop(backend)
    for what, one, there in zip(
        ("zone", "instance type"), (body.zone, body.instance_type), _zones_and_types(name, snapshot), strict=True
    ):
        if one and one not in there:
            pattern = f"A pattern names no {what} here. " if set("*?[") & set(one) else ""
            known = ", ".join(sorted(there)) or "none, as its offers are not read yet"
            raise ApiError(404, f"{pattern}{name} has no {what} {one}; there are: {known}.", sorted(there))
    wanted = [part.replace("/", "%2F") for part in (name, body.zone, body.instance_type)]
    places = tuple(
        place
        for place in snapshot.places
        for provider, _, zone, instance_type in [place.split("/")]
        if all(not one or one == other for one, other in zip(wanted, (provider, zone, instance_type), strict=True))
    )
    breakers = tuple(
        (b.key, b.cause)
        for b in breakers_of_place(snapshot.breakers, name, body.zone, body.instance_type)
        if b.failures
    )
    if not places and not breakers:
        raise ApiError(
            404,
            f"No bad machine and no circuit breaker is known of such a place of {name}; "
            f"see burstctl provider offers {name}.",
        )
    return command_answer(backend, ForgetMachines(places, caller.actor, breakers))


def _zones_and_types(name: str, snapshot: Snapshot) -> tuple[set[str], set[str]]:
    """Those of the provider's offers, its bad places and its breakers."""
    cloud = snapshot.clouds.get(name)
    offers = () if cloud is None or isinstance(cloud.offers, Unavailable) else cloud.offers
    found = [(offer.zone, offer.instance_type) for offer in offers]
    keys = [*snapshot.places, *(b.key for b in breakers_of_place(snapshot.breakers, name, "", ""))]
    split = [[part.replace("%2F", "/") for part in key.split("/")] for key in keys]
    found += [(fields[2], fields[3]) for fields in split if fields[0] == name]
    return {zone for zone, _ in found} - {"*"}, {type_ for _, type_ in found} - {"*"}


def _require_provider(name: str, backend: Backend) -> bool:
    """Whether the provider has a self-check; refused where there is no provider of that name."""
    able = backend.checks.self_check_support()
    if name not in able:
        raise ApiError(404, f"There is no provider {name!r}; there are: {', '.join(sorted(able))}.", sorted(able))
    return able[name]


def _offers_view(name: str, snapshot: Snapshot, now: float, *, include_unusable: bool) -> OffersView:
    """The offers that some pool could use, or, with ``include_unusable``, all."""
    cloud = snapshot.clouds.get(name)
    offers: tuple[Offer, ...] | Unavailable = Unavailable(NOT_READ_YET, 0.0) if cloud is None else cloud.offers
    if isinstance(offers, Unavailable):
        return OffersView(
            ok=False, error=offers.error, last_known=offers.since, now=now, provider=name, offers=[], hidden=0
        )
    provider_pools = _provider_pools(name, snapshot)
    # What only waits, for a breaker, the pool's nodes in another place or the versions of an image, is usable.
    nothing_waits = replace(snapshot, breakers=(), places={}, claims=(), images={})
    usable = {pool.name: {o.id for o in usable_offers(nothing_waits, pool)} for pool in provider_pools}
    rejections = {
        pool.name: {j.subject: j.rejected_because for j in evaluate_offers(snapshot, pool)} for pool in provider_pools
    }
    breakers = blocking_breakers(snapshot)
    views = []
    for offer in sorted(offers, key=lambda o: (*snapshot.rates.price(o), o.id)):
        pools = [pool.name for pool in provider_pools if offer.id in usable[pool.name]]
        if pools or include_unusable:
            named = [pool.name for pool in provider_pools if any(rule.allows(offer) for rule in pool.rules)]
            refused = {pool: why for pool in named if (why := rejections[pool].get(offer.id, ""))}
            views.append(_offer(offer, pools, refused, breakers.breakers_for(offer), snapshot.places.get(offer.place)))
    return OffersView(
        ok=True,
        last_known=cloud.instances_listed if cloud else None,
        now=now,
        provider=name,
        offers=views,
        hidden=len(offers) - len(views),
    )


def _provider_state(name: str, snapshot: Snapshot, facts: DaemonInfo, *, checks: bool) -> ProviderStateView:
    known = snapshot.clouds.get(name) or CloudView(Unavailable(NOT_READ_YET, 0.0), Unavailable(NOT_READ_YET, 0.0))
    offers = () if isinstance(known.offers, Unavailable) else known.offers
    parts = (("instances", known.instances), ("offers", known.offers), ("leftovers", known.leftovers))
    glance = provider_view(name, known, snapshot, facts.calls_in_flight)
    return ProviderStateView(
        **glance.model_dump(),
        listed=known.instances_listed,
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


def _offer(
    offer: Offer,
    pools: list[str],
    refused: dict[str, str],
    breakers: Sequence[CircuitBreaker],
    record: PlaceRecord | None,
) -> OfferView:
    hardware = offer.hardware
    return OfferView.from_fields(
        offer,
        market=_market(offer),
        cpus=offer.shape.cpus,
        memory_mib=offer.shape.memory_mib,
        gpus=[
            GpuView(type=g.type, count=g.count, memory_mib=hardware.gpu_memory_mib)
            for g in offer.shape.gres if g.name == "gpu"
        ],
        architecture=hardware.architecture,
        fabric=hardware.binding,
        placement=hardware.placement,
        local_disk_gib=hardware.local_disk_gib,
        price_per_hour=money_view(offer.price, offer.currency),
        pools=pools,
        refused=refused,
        breakers=[BreakerView.from_fields(b) for b in breakers],
        machines=record.machines if record else 0,
        bad_machines=record.bad if record else 0,
        avoided=str(record) if record and record.avoided else "",
    )  # fmt: skip


def _market(offer: Offer) -> str:
    return "spot" if offer.spot else "on-demand"
