"""Which offers may fill a pool now, in which order, and what keeps one that failed from being tried again at once.

Order: places where too many machines were bad come last (bad_places.py), then price of an hour (converted by
``Rates``; offers whose price cannot be compared with the others' are left out), then on-demand before spot, then the
order of the pool's rules, then the offer's name, so that the order is always the same.

A breaker names what failed, not the claim that met it: a zone without capacity opens one for the type and market
that lacked it, a wrong image for the type, bad credentials for the whole provider; one for a check that the pool's own
settings ask for names the pool, and holds for it alone. It closes by itself at ``until``;
another failure of the same kind doubles the wait, a success (``breakers_closed_by``) closes it. A place's record
outlives both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.billing.rates import Rates
from burstd.domain.claim import USABLE
from burstd.domain.clock import backoff_s
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import CircuitBreaker, Snapshot, Unavailable


@dataclass(frozen=True, slots=True)
class OfferEvaluation:
    """An offer, or what stands for the offers of a provider that could not be read, and whether it may be used."""

    subject: str
    """The offer's id, or the provider's name."""
    offer: Offer | None
    rejected_because: str
    """Why not; empty: it may be used."""
    ever_usable: bool = True
    """False: as the settings and the cloud's offers are, it can never be used."""
    last_because: str = ""
    """Why it comes after all others; empty: it does not."""


class BreakerIndex:
    """Breakers, kept so that those of one offer are found without a look at all of them: both may be thousands."""

    def __init__(self, breakers: Iterable[CircuitBreaker]) -> None:
        self._by_named_fields: dict[tuple[int, ...], dict[tuple[str, ...], list[tuple[int, CircuitBreaker]]]] = {}
        for position, breaker in enumerate(breakers):
            wanted = breaker.key.split("/")
            if len(wanted) in (_FIELDS, _FIELDS_WITH_POOL):
                named = tuple(field for field, value in enumerate(wanted) if value != "*")
                alike = self._by_named_fields.setdefault(named, {})
                alike.setdefault(tuple(wanted[field] for field in named), []).append((position, breaker))

    def breakers_for(self, offer: Offer, pool: str = "") -> list[CircuitBreaker]:
        """Those that name the offer, or what it is part of, in the order in which they were given.

        Of those that hold for one pool only the ones of ``pool``; empty: none.
        """
        if not self._by_named_fields:
            return []
        parts = _key_fields(offer, pool)
        found: list[tuple[int, CircuitBreaker]] = []
        for named, alike in self._by_named_fields.items():
            found += alike.get(tuple(parts[field] for field in named), ())
        return [breaker for _, breaker in sorted(found, key=lambda f: f[0])]


def open_breakers(snapshot: Snapshot) -> BreakerIndex:
    """The circuit breakers that are open."""
    return BreakerIndex(b for b in snapshot.breakers if b.until > snapshot.now)


@dataclass(frozen=True, slots=True)
class _Backoff:
    scope: tuple[bool, bool, bool, bool]
    """Whether the breaker names region, zone, type and market; the provider it always names."""
    first_s: float
    most_s: float


_FIELDS = 5
"""Of a breaker's key: provider, region, zone, type, market."""
_FIELDS_WITH_POOL = _FIELDS + 1
POOL_CHECKS = frozenset(
    {
        "cpus",
        "fabric_test",
        "frameworks",
        "gpu_memory_limit",
        "gpu_test",
        "gpu_tools",
        "gpu_type",
        "memory",
        "mig",
        "mounts",
        "sentinels",
    }
)
"""Checks that the pool's own settings ask for: a failure says nothing to another pool."""
_PROVIDER = (False, False, False, False)
_TYPE = (False, False, True, False)
_ZONE_AND_TYPE = (True, True, True, False)
_TYPE_AND_MARKET = (False, False, True, True)
_OFFER = (True, True, True, True)

TOO_LATE = "too_late"
"""A machine was ready when what a budget has reserved for it did not cover its jobs any more: that it is ready, or its
launch carried out, disproves nothing; the wait ends by itself, and is long, as each try is paid for."""
BACKOFF: dict[str, _Backoff] = {
    "capacity": _Backoff(_OFFER, 60, 3600),
    "quota": _Backoff(_TYPE_AND_MARKET, 60, 3600),
    "rate": _Backoff(_PROVIDER, 15, 600),
    "auth": _Backoff(_PROVIDER, 60, 1800),
    "denied": _Backoff(_TYPE_AND_MARKET, 60, 1800),
    "unavailable": _Backoff(_PROVIDER, 30, 600),
    "request": _Backoff(_TYPE, 300, 4 * 3600),
    "image": _Backoff(_TYPE, 300, 4 * 3600),
    "user_data": _Backoff(_PROVIDER, 30, 300),
    "interrupted": _Backoff(_OFFER, 120, 3600),
    TOO_LATE: _Backoff(_ZONE_AND_TYPE, 1800, 4 * 3600),
}
"""By the cause of an error (ProviderError.cause, Claim.error)."""
MAX_ALTERNATIVES = 30
"""Most of them in one request: what a cloud's call takes, and what a reader of the record can bear."""
_BOOT = _Backoff(_ZONE_AND_TYPE, 120, 3600)
"""Every other cause (boot, boot_timeout, validation, node_down ...): this place does not bring up this type."""
LAUNCH_CAUSES = frozenset(
    {
        "capacity",
        "quota",
        "rate",
        "auth",
        "denied",
        "unavailable",
        "request",
        "image",
        "user_data",
        "notfound",
        "unknown",
    }
)
"""Causes that a launch which was carried out disproves; the others are disproved by a node that is ready."""
LATE_LAUNCH_CAUSES = frozenset({"capacity", "image", "request"})
"""Of these, what some clouds find only after they have taken the launch: a node that is ready disproves it."""


def evaluate_offers(snapshot: Snapshot, pool: Pool) -> tuple[OfferEvaluation, ...]:
    """Every offer of the providers that the pool's rules name: the usable ones first, best first, then the others."""
    usable: list[tuple[tuple[bool, Decimal, bool, int, str], OfferEvaluation]] = []
    rejected: list[OfferEvaluation] = []
    breakers, places = open_breakers(snapshot), fabric_places(snapshot, pool)
    matching: list[Offer] = []
    for provider in dict.fromkeys(rule.provider for rule in pool.rules):
        cloud = snapshot.clouds.get(provider)
        if cloud is None:
            rejected.append(OfferEvaluation(provider, None, "the provider has not answered yet"))
        elif isinstance(cloud.offers, Unavailable):
            rejected.append(OfferEvaluation(provider, None, f"cannot read its offers: {cloud.offers.error}"))
        else:
            for offer in cloud.offers:
                if reason := mismatch(pool, offer):
                    rejected.append(OfferEvaluation(offer.id, offer, reason, ever_usable=False))
                else:
                    matching.append(offer)
    currency = _common_currency(pool, snapshot.rates, matching)
    for offer in matching:
        if reason := (
            _without_rate(offer, currency, snapshot.rates)
            or _rejection(pool, offer, breakers, snapshot)
            or _elsewhere(offer, places)
        ):
            rejected.append(OfferEvaluation(offer.id, offer, reason))
        else:
            last = bad_place_reason(snapshot, offer)
            order = (bool(last), *_order(pool, snapshot.rates, offer))
            usable.append((order, OfferEvaluation(offer.id, offer, "", last_because=last)))
    usable.sort(key=lambda u: u[0])
    return (*(judged for _, judged in usable), *sorted(rejected, key=lambda j: j.subject))


def bad_place_reason(snapshot: Snapshot, offer: Offer) -> str:
    """Why others come before the offer: what its place is known for; empty: none do."""
    record = snapshot.places.get(offer.place) if snapshot.places else None
    return str(record) if record is not None and record.avoided else ""


def usable_offers(snapshot: Snapshot, pool: Pool) -> tuple[Offer, ...]:
    """The offers that may fill the pool now, best first."""
    return tuple(j.offer for j in evaluate_offers(snapshot, pool) if j.offer is not None and not j.rejected_because)


def none_ever_usable(evaluations: Iterable[OfferEvaluation]) -> bool:
    """True where the clouds have been read and none of their offers can ever fill the pool."""
    return all(j.rejected_because and not j.ever_usable for j in evaluations)


def no_offer_reason(evaluations: Iterable[OfferEvaluation], most: int = 3) -> str:
    """Why no offer is left, in a sentence. Offers that the rules leave out say nothing here."""
    reasons = [
        f"{j.subject}: {j.rejected_because}"
        for j in evaluations
        if j.rejected_because and j.rejected_because != BY_RULE
    ]
    if not reasons:
        return "the pool's rules allow no offer of any provider"
    more = f" and {len(reasons) - most} more" if len(reasons) > most else ""
    return "; ".join(reasons[:most]) + more


def configured_image(pool: Pool, offer: Offer) -> str:
    """The image that the pool names for the offer: that of the first rule that allows it; empty: the provider's."""
    return next((rule.image for rule in pool.rules if rule.allows(offer)), "")


def alternative_offers(pool: Pool, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """The offers that one launch call may take in place of the first: those of its provider, market and image.

    Where the pool has a fabric, those of its zone.
    """
    first = offers[0]
    image = configured_image(pool, first)
    alike = (o for o in offers[1:] if (o.provider, o.spot, o.currency) == (first.provider, first.spot, first.currency))
    if pool.fabric:
        alike = (o for o in alike if _place(o) == _place(first))
    return tuple(o for o in alike if configured_image(pool, o) == image)[:MAX_ALTERNATIVES]


def breaker_key(offer: Offer, cause: str, pool: str = "") -> str:
    """The key under which a failure of this cause is kept: the offer's id with ``*`` where the cause says nothing.

    Of one of POOL_CHECKS with the pool behind it.
    """
    names = BACKOFF.get(cause, _BOOT).scope
    parts = _key_fields(offer)[:_FIELDS]
    key = [parts[0], *(part if named else "*" for part, named in zip(parts[1:], names, strict=True))]
    return "/".join(key + ([_escaped(pool)] if pool and cause in POOL_CHECKS else []))


def next_breaker(
    breaker: CircuitBreaker | None,
    offer: Offer,
    cause: str,
    now: float,
    error: str = "",
    retry_after_s: float = 0.0,
    pool: str = "",
) -> CircuitBreaker:
    """The breaker after one more failure. ``breaker`` is the one of the same key and cause, if there is one.

    Failures while it is still open (launches that were under way together) do not double the wait. One whose
    last failure is long past (the longest wait after its end) starts anew.
    """
    backoff, key = BACKOFF.get(cause, _BOOT), breaker_key(offer, cause, pool)
    return extended_breaker(breaker, key, cause, backoff.first_s, backoff.most_s, now, error, retry_after_s)


def extended_breaker(
    breaker: CircuitBreaker | None,
    key: str,
    cause: str,
    first_s: float,
    most_s: float,
    now: float,
    error: str,
    retry_after_s: float = 0.0,
) -> CircuitBreaker:
    """The breaker of a key and cause after one more failure, as ``next_breaker`` has it; its wait in seconds."""
    failures = breaker.failures if breaker is not None and now < breaker.until + most_s else 0
    if breaker is None or now >= breaker.until:
        failures += 1
    wait = max(backoff_s(failures, first_s, most_s), retry_after_s)
    until = max(now + wait, breaker.until) if breaker is not None and now < breaker.until else now + wait
    return CircuitBreaker(key, cause, failures, until, error)


def breakers_closed_by(
    breakers: Iterable[CircuitBreaker], offer: Offer, *, ready: bool, pool: str = ""
) -> tuple[CircuitBreaker, ...]:
    """Breakers that a success of this offer disproves: of a launch, or (``ready``) of booting and validating a node.

    ``pool``: of which it was a node; those of other pools stay.
    """
    parts = _key_fields(offer, pool)
    launch_causes = LAUNCH_CAUSES - LATE_LAUNCH_CAUSES
    return tuple(
        b for b in breakers if b.cause != TOO_LATE and ready == (b.cause not in launch_causes) and _covers(b.key, parts)
    )


def free_slots_reason(snapshot: Snapshot, pool: Pool, free: int) -> str:
    """Who has the slots of a pool of which so many are free: ``8 in use ..., 1 held by root ...``."""
    slots = set(pool.slots)
    claimed = {claim.slot for claim in snapshot.claims if claim.slot in slots}
    held: dict[str, list[str]] = {}
    for slot in pool.slots:
        if slot not in claimed and (by := snapshot.drained_by.get(slot)):
            held.setdefault(by, []).append(slot)
    rest = len(pool.slots) - len(claimed) - free - sum(map(len, held.values()))
    parts = [f"{len(claimed)} in use, launching or terminating"]
    parts += [
        f"{len(some)} held by {by} (burstctl node release {some[0] if len(some) == 1 else 'NODE'})"
        for by, some in held.items()
    ]
    return ", ".join([*parts, *([f"{rest} drained, held or not powered down"] if rest > 0 else [])])


BY_RULE = "excluded by the pool's rules"
"""Of an offer that no rule of the pool names."""


def mismatch(pool: Pool, offer: Offer) -> str:
    """Why the offer can never fill the pool as the settings are; empty: it can."""
    if not any(rule.allows(offer) for rule in pool.rules):
        return BY_RULE
    if lacking := _too_small(pool, offer):
        return f"smaller than the pool's slots: {lacking}"
    if pool.fabric and offer.hardware.fabric not in ("", pool.fabric):
        there = offer.hardware.fabric
        return f"without {pool.fabric}, which the pool's nodes have" + (f"; it has {there}" if there != "none" else "")
    return ""


def fabric_places(snapshot: Snapshot, pool: Pool) -> frozenset[tuple[str, str, str]]:
    """Where the nodes of a pool with a fabric are: none reaches further, and Slurm may start a job on any of them."""
    if not pool.fabric:
        return frozenset()
    return frozenset(_place(c.offer) for c in snapshot.claims if c.pool == pool.name and c.state in USABLE)


def _place(offer: Offer) -> tuple[str, str, str]:
    return offer.provider, offer.region, offer.zone


def _elsewhere(offer: Offer, places: frozenset[tuple[str, str, str]]) -> str:
    if not places or _place(offer) in places:
        return ""
    return f"the pool has nodes, with their fabric, in {', '.join('/'.join(p) for p in sorted(places))}"


def _rejection(pool: Pool, offer: Offer, breakers: BreakerIndex, snapshot: Snapshot) -> str:
    image = configured_image(pool, offer)
    if snapshot.images.get(offer.provider, {}).get(image) == ():
        return f"the versions of image {image or 'of the settings'} are not known yet"
    failures = breakers.breakers_for(offer, pool.name)
    if failures:
        last = max(failures, key=lambda b: b.until)
        if not last.failures:
            return last.error
        error = f": {last.error}" if last.error else ""
        return (
            f"failed {last.failures} time(s) ({last.cause}{error}), next attempt in {last.until - snapshot.now:.0f} s"
        )
    record = snapshot.places.get(offer.place) if snapshot.places else None
    return f"{record} (bad_places = 'refuse')" if record is not None and record.refused else ""


def _too_small(pool: Pool, offer: Offer) -> str:
    """Each figure of the offer's machine that is below the slots'; empty: none is."""
    slot, shape = pool.machine_shape(), offer.shape
    lacking = []
    if shape.cpus < slot.cpus:
        lacking.append(f"{shape.cpus} CPUs of {slot.cpus}")
    if shape.memory_mib < slot.memory_mib:
        lacking.append(f"{shape.memory_mib} MiB of {slot.memory_mib}")
    for gres in slot.gres:
        there = _count(shape.gres, gres)
        if there < gres.count:
            text = f"{there} {gres.name}:{gres.type} of {gres.count}" if gres.type else f"{there} of {gres}"
            others = [str(g) for g in shape.gres if g.name == gres.name and gres.type not in ("", g.type)]
            lacking.append(f"{text} (it has {', '.join(others)})" if others else text)
    return ", ".join(lacking)


def _count(there: tuple[Gres, ...], wanted: Gres) -> int:
    return sum(g.count for g in there if g.name == wanted.name and (not wanted.type or g.type == wanted.type))


def _order(pool: Pool, rates: Rates, offer: Offer) -> tuple[Decimal, bool, int, str]:
    return rates.price(offer)[1], offer.spot, _rule_index(pool, offer), offer.id


def _rule_index(pool: Pool, offer: Offer) -> int:
    return next(index for index, rule in enumerate(pool.rules) if rule.allows(offer))


def _common_currency(pool: Pool, rates: Rates, matching: Sequence[Offer]) -> str:
    """In which the pool's prices are compared: that of its first rule where there is no rate."""
    if len({offer.currency for offer in matching}) > 1:
        matching = sorted(matching, key=lambda offer: (_rule_index(pool, offer), offer.id))
    return rates.common_currency(matching)


def _without_rate(offer: Offer, currency: str, rates: Rates) -> str:
    """Why the offer's price cannot be compared; empty: it can."""
    if rates.price(offer)[0] == currency:
        return ""
    return f"its price is in {offer.currency}, others of the pool are compared in {currency}, and [rates] has no rate"


def _key_fields(offer: Offer, pool: str = "") -> list[str]:
    return [*offer.place.split("/"), offer.market, _escaped(pool)]


def _escaped(name: str) -> str:
    return name.replace("/", "%2F")


def _covers(key: str, parts: Sequence[str]) -> bool:
    wanted = key.split("/")
    if len(wanted) not in (_FIELDS, _FIELDS_WITH_POOL):
        return False
    return all(k in ("*", part) for k, part in zip(wanted, parts, strict=False))
