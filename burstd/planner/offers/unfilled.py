"""Rules of pools that clouds' catalogs do not fill: patterns that match nothing, machines smaller than the slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from burstd.domain.cloud.offer import Offer, OfferRule, Pool
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import Snapshot, Unavailable
from burstd.planner.offers.offers import mismatch

_MOST_NAMES = 4
_MARKETS = ("on-demand", "spot")


@dataclass(frozen=True, slots=True)
class UnfilledRule:
    """One pattern of a rule, or all of the rule, for which no machine can be launched."""

    pool: str
    rule: int
    """Its place in the pool's ``offers``, from 0."""
    provider: str
    wanted: str
    found: str
    remedy: str
    pool_is_empty: bool
    """Every other rule of the pool is so too: no machine can be launched for it at all."""

    @property
    def key(self) -> str:
        """``pools.gpu.offers[0]``, as burstd.toml has it."""
        return f"pools.{self.pool}.offers[{self.rule}]"


def unfilled_rules(pools: Iterable[Pool], catalogs: Mapping[str, Sequence[Offer]]) -> list[UnfilledRule]:
    """All of them. ``catalogs``: the offers of the providers that could be read; nothing is said of other providers."""
    found: list[UnfilledRule] = []
    for pool in pools:
        read = [rule for rule in pool.rules if rule.provider in catalogs]
        filled = any(not mismatch(pool, offer) for rule in read for offer in catalogs[rule.provider])
        for position, rule in enumerate(pool.rules):
            if rule.provider in catalogs:
                for wanted, there, remedy in _faults(pool, position, catalogs[rule.provider]):
                    found.append(
                        UnfilledRule(
                            pool.name, position, rule.provider, wanted, there, remedy,
                            pool_is_empty=not filled and len(read) == len(pool.rules),
                        )
                    )  # fmt: skip
    return found


class UnfilledPools:
    """The alarms of pools for which no machine can be launched.

    It takes tens of milliseconds to look at thousands of offers, so what it says of a pool is kept for as long as the
    pool and its clouds' offers stay the same.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, str]] = {}
        """By pool what it was made from, and the alarm; empty: none."""

    def alarms(self, snapshot: Snapshot, target: Target) -> list[str]:
        """One for each pool that stays empty as the settings are, all of its clouds' offers read."""
        catalogs = {n: c.offers for n, c in snapshot.clouds.items() if not isinstance(c.offers, Unavailable)}
        # Most pools have offers that can be used now.
        unsure = [name for name in sorted(snapshot.pools) if not target.offers.get(name)]
        return [alarm for name in unsure if (alarm := self._alarm(snapshot.pools[name], catalogs))]

    def _alarm(self, pool: Pool, catalogs: Mapping[str, Sequence[Offer]]) -> str:
        made_from = pool, [catalogs.get(rule.provider) for rule in pool.rules]
        if pool.name not in self._known or self._known[pool.name][0] != made_from:
            found = next((rule for rule in unfilled_rules([pool], catalogs) if rule.pool_is_empty), None)
            self._known[pool.name] = made_from, _alarm_text(found) if found is not None else ""
        return self._known[pool.name][1]


def _alarm_text(rule: UnfilledRule) -> str:
    return (
        f"no machine can be launched for pool {rule.pool}: {rule.key}: wanted {rule.wanted}, found {rule.found}: "
        f"{rule.remedy}"
    )


def _faults(pool: Pool, position: int, catalog: Sequence[Offer]) -> Iterator[tuple[str, str, str]]:
    """What was wanted, what was found, what to do: of each pattern of instance types, or of the rule."""
    rule = pool.rules[position]
    if not catalog:
        wanted, remedy = f"machines of {rule.provider}", f"burstctl provider check {rule.provider}"
        yield wanted, "it offers none", remedy
        return
    for pattern in rule.instance_types or ("",):
        alone = replace(rule, instance_types=(pattern,) if pattern else ())
        named = [offer for offer in catalog if alone.allows(offer)]
        reasons = {offer.instance_type: mismatch(replace(pool, rules=(alone,)), offer) for offer in named}
        if not named:
            yield _unmatched(alone, pattern, catalog)
        elif all(reasons.values()):
            yield _unfit(pool, alone, reasons, catalog)


def _unmatched(rule: OfferRule, pattern: str, catalog: Sequence[Offer]) -> tuple[str, str, str]:
    """Of a rule of one pattern that names no offer: the first of type, zone and market that leaves none."""
    provider, anywhere = rule.provider, replace(rule, zones=(), markets=_MARKETS)
    of_type = [offer for offer in catalog if anywhere.allows(offer)]
    if not of_type:
        types = sorted({offer.instance_type for offer in catalog})
        near = get_close_matches(pattern, types, _MOST_NAMES, cutoff=0.75)
        there = (
            f"the nearest {'is' if len(near) == 1 else 'are'} {_names(near)}" if near else f"there are {_names(types)}"
        )
        return f"instance types {pattern}", f"{provider} has none", f"correct instance_types; {there}"
    what = pattern or f"offers of {provider}"
    in_zone = [offer for offer in of_type if replace(rule, markets=_MARKETS).allows(offer)]
    if not in_zone:
        there = _names(sorted({offer.zone for offer in of_type}))
        return (
            f"{what} in zone {_names(rule.zones)}",
            f"{provider} has them in {there}",
            "correct zones, or remove them",
        )
    there = _names(sorted({offer.market for offer in in_zone}))
    return f"{what} {_names(rule.markets)}", f"{provider} has them {there} only", "correct markets"


def _unfit(pool: Pool, rule: OfferRule, reasons: Mapping[str, str], catalog: Sequence[Offer]) -> tuple[str, str, str]:
    """Of a rule of one pattern whose machines all lack something; ``reasons``: what, by instance type."""
    slot = pool.machine_shape()
    wanted = ", ".join(
        [f"{slot.cpus} CPUs", f"{slot.memory_mib} MiB", *map(str, slot.gres), *filter(None, [pool.fabric])]
    )
    nearest = min(reasons, key=lambda name: (reasons[name].count(","), name))
    more = f", and {len(reasons) - 1} more like it" if len(reasons) > 1 else ""
    every_type = replace(pool, rules=(replace(rule, instance_types=()),))
    fit = [offer for offer in catalog if not mismatch(every_type, offer)]
    names = list(dict.fromkeys(o.instance_type for o in sorted(fit, key=lambda o: (o.price, o.instance_type))))
    agree = f"make cpus, memory and gres of pool {pool.name} agree with its machines, here and in slurm.conf"
    there = f"name {_names(names)} in instance_types, or {agree}" if names else agree
    return f"machines of {wanted}", f"{nearest} {reasons[nearest]}{more}", there


def _names(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_NAMES} more" if len(words) > _MOST_NAMES else ""
    return ", ".join(words[:_MOST_NAMES]) + more
