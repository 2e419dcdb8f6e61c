"""How many nodes there may be, and how many may be started in a minute: in all, and for each pool, provider and user.

Use it always: it is what stands between a runaway queue and the bill. ``"*"`` names every pool, provider or user that
has no entry of its own. Machines count from the moment they are claimed until the provider lists them no more. A
multi-node job is never split; one that is larger than a limit of nodes waits for ever (and is told so), one that is
larger than a rate goes alone, when nothing else was started for a minute: those behind it in the queue wait for that.
Limits hold for all that other policies and ``burstctl scale`` ask for as well.

    [policies.limits]
    nodes = 100
    launches_per_minute = 60
    [policies.limits.providers.aws]
    nodes = 40
    [policies.limits.users."*"]
    nodes = 8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import PolicyPlugin, Remark, Target, Want, gang_units, remarks_on_dropped_wants
from burstd.domain.snapshot import SlurmView, Snapshot

MINUTE_S = 60.0
_ALL = ("", "")


class NodeLimit(BaseModel):
    """Limits of one pool, provider or user; none: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: int | None = Field(default=None, ge=0)
    """Most machines at a time."""
    launches_per_minute: int | None = Field(default=None, ge=0)
    """Most machines started within 60 seconds."""


class LimitsSettings(NodeLimit):
    """``[policies.limits]``; ``nodes`` and ``launches_per_minute`` here hold for all together."""

    pools: dict[str, NodeLimit] = {}
    providers: dict[str, NodeLimit] = {}
    users: dict[str, NodeLimit] = {}


LimitKey = tuple[str, str]
"""What a limit is kept for: ``("pool", "gpu")``, ``("user", "ada")``, ``("", "")`` for all."""
_Limits = tuple[tuple[LimitKey, NodeLimit], ...]


class _LimitLookup:
    """Which limits there are for machines that are alike."""

    def __init__(self, settings: LimitsSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str, tuple[str, ...]], _Limits] = {}

    def limits_for(self, pool: str, provider: str, users: tuple[str, ...]) -> _Limits:
        """All that hold for machines of this pool from this provider for these users."""
        users = users if self._settings.users else ()
        found = self._known.get((pool, provider, users))
        if found is None:
            keys = (_ALL, ("pool", pool), ("provider", provider), *(("user", user) for user in dict.fromkeys(users)))
            limits = ((key, self._limit(key)) for key in keys)
            found = tuple((key, limit) for key, limit in limits if limit is not None)
            self._known[pool, provider, users] = found
        return found

    def limits_for_user(self, user: str) -> _Limits:
        """His alone."""
        limit = self._limit(("user", user))
        return ((("user", user), limit),) if limit is not None else ()

    def _limit(self, key: LimitKey) -> NodeLimit | None:
        kind, name = key
        if not kind:
            return self._settings
        of: Mapping[str, NodeLimit] = {
            "pool": self._settings.pools,
            "provider": self._settings.providers,
            "user": self._settings.users,
        }[kind]
        return of.get(name, of.get("*"))


@dataclass(slots=True)
class _Usage:
    """Machines, and machines started in the last minute, of what there is a limit for."""

    known: _LimitLookup
    nodes: dict[LimitKey, int] = field(default_factory=dict)
    started: dict[LimitKey, int] = field(default_factory=dict)
    blocked_rates: dict[LimitKey, str] = field(default_factory=dict)
    """Rates for which a job of several nodes waits: those behind it wait, too, or it would never have its minute."""

    def copy(self) -> _Usage:
        return _Usage(self.known, dict(self.nodes), dict(self.started), self.blocked_rates)

    def add(self, limits: _Limits, nodes: int) -> None:
        for key, _ in limits:
            self.nodes[key] = self.nodes.get(key, 0) + nodes
            self.started[key] = self.started.get(key, 0) + nodes


@dataclass(frozen=True, slots=True)
class LimitsPolicy:
    """The policy."""

    settings: LimitsSettings
    name: str = "limits"
    hard: ClassVar[bool] = True
    """Asked again when all others have been: nothing that they add gets past it."""
    last: ClassVar[int] = 1
    """Asked behind those that may take machines away: what they refuse is not to count."""

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Takes away what is too much, from the last want on; takes away offers of providers that are full."""
        if self.settings == LimitsSettings():
            return target
        usage = self._usage(snapshot)
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        remarks: list[Remark] = []
        jobs = snapshot.slurm.jobs if self.settings.users and isinstance(snapshot.slurm, SlurmView) else ()
        user_of = {job.id: job.user for job in jobs}
        for whole in gang_units(target.wants):
            unit, left_out = self._without_users(whole, usage, user_of)
            remarks += left_out
            narrowed, reason = self._narrow(unit, usage)
            if reason:
                out += [(want, reason) for want in unit]
                self._block_rates(unit, usage)
                continue
            for want, before in zip(narrowed, unit, strict=True):
                provider = want.offers[0].provider if want.offers else ""
                usage.add(usage.known.limits_for(want.pool, provider, want.users), want.nodes)
                if len(want.offers) < len(before.offers):
                    gone = sorted({o.provider for o in before.offers} - {o.provider for o in want.offers})
                    reason = f"no node from {', '.join(gone)} ({before.reason}): limit reached"
                    remarks.append(Remark(self.name, f"pool:{want.pool}", "drop", reason))
            wants += narrowed
        # Many tasks of one array share machines with others: each job is told once.
        deduplicated = dict.fromkeys((*remarks_on_dropped_wants(out, self.name), *remarks))
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *deduplicated))

    def _without_users(
        self, unit: tuple[Want, ...], usage: _Usage, user_of: Mapping[str, str]
    ) -> tuple[tuple[Want, ...], list[Remark]]:
        """The unit without the jobs of users who have reached their limit, where others share its one node."""
        want = unit[0]
        if len(unit) > 1 or want.gang or len(want.users) < 2 or not self.settings.users:
            return unit, []
        reasons = {u: self._excess(usage.known.limits_for_user(u), want.nodes, usage, unit, usage) for u in want.users}
        jobs = tuple(job for job in want.jobs if not reasons.get(user_of.get(job, ""), ""))
        out = [job for job in want.jobs if job not in jobs]
        if not out or not jobs:
            return unit, []
        shown = ", ".join(out[:3]) + (f" and {len(out) - 3} more" if len(out) > 3 else "")
        users = tuple(user for user, reason in reasons.items() if not reason)
        rest = replace(want, jobs=jobs, users=users, reason=f"{want.reason}, without {shown}")
        return (rest,), [Remark(self.name, f"job:{job}", "wait", reasons[user_of[job]]) for job in out]

    def _usage(self, snapshot: Snapshot) -> _Usage:
        usage = _Usage(_LimitLookup(self.settings))
        for claim in (*snapshot.claims, *snapshot.quarantined_claims):
            for key, _ in usage.known.limits_for(claim.pool, claim.offer.provider, claim.users):
                usage.nodes[key] = usage.nodes.get(key, 0) + 1
                if claim.state is ClaimState.PLANNED and claim.launch_called is None:
                    # It will be started at once: it counts before the record of launches has it.
                    usage.started[key] = usage.started.get(key, 0) + 1
        for launch in snapshot.recent_launches:
            if launch.at > snapshot.now - MINUTE_S:
                for key, _ in usage.known.limits_for(launch.pool, launch.provider, launch.users):
                    usage.started[key] = usage.started.get(key, 0) + 1
        return usage

    def _narrow(self, unit: tuple[Want, ...], usage: _Usage) -> tuple[list[Want], str]:
        """The unit with the offers that are within the limits, and why it cannot be had at all."""
        tentative = usage.copy() if len(unit) > 1 else usage
        narrowed: list[Want] = []
        for want in unit:
            reasons: dict[str, str] = {}
            for provider in dict.fromkeys([offer.provider for offer in want.offers]):
                limits = usage.known.limits_for(want.pool, provider, want.users)
                reasons[provider] = self._excess(limits, want.nodes, tentative, unit, usage)
            full = any(reasons.values())
            offers = tuple(o for o in want.offers if not reasons[o.provider]) if full else want.offers
            if want.offers and not offers:
                return [], "; ".join(dict.fromkeys(reasons.values()))
            narrowed.append(replace(want, offers=offers) if len(offers) < len(want.offers) else want)
            if tentative is not usage:
                tentative.add(
                    usage.known.limits_for(want.pool, offers[0].provider if offers else "", want.users), want.nodes
                )
        return narrowed, ""

    def _block_rates(self, unit: tuple[Want, ...], usage: _Usage) -> None:
        """Where nothing but a rate keeps a job of several nodes waiting, nobody behind it uses that rate up."""
        if sum(want.nodes for want in unit) < 2:
            return
        tentative, rates = usage.copy(), set[LimitKey]()
        for want in unit:
            providers = dict.fromkeys(offer.provider for offer in want.offers)
            limits_by_provider = (usage.known.limits_for(want.pool, provider, want.users) for provider in providers)
            limits = next(
                (limits for limits in limits_by_provider if not self._full(limits, want.nodes, tentative)), None
            )
            if limits is None:
                return
            tentative.add(limits, want.nodes)
            rates |= {key for key, limit in limits if limit.launches_per_minute}
        for key in rates:
            usage.blocked_rates.setdefault(key, f"{unit[0].reason} is next, after a minute without launches")

    def _excess(self, limits: _Limits, nodes: int, tentative: _Usage, unit: tuple[Want, ...], before: _Usage) -> str:
        """Which limit so many nodes more would break; empty: none."""
        if full := self._full(limits, nodes, tentative):
            return full
        gang = len(unit) > 1 or unit[0].nodes > 1
        for key, limit in limits:
            if limit.launches_per_minute is None:
                continue
            rate, started = limit.launches_per_minute, tentative.started.get(key, 0)
            limit_name = f"launch limit{_limit_owner(key)}"
            if key in tentative.blocked_rates:
                return f"{limit_name}: {tentative.blocked_rates[key]}"
            if started + nodes > rate and not (gang and not before.started.get(key, 0)):
                return f"{limit_name}: {started} of {rate} launch(es) used in the last minute"
        return ""

    @staticmethod
    def _full(limits: _Limits, nodes: int, usage: _Usage) -> str:
        """Which limit would be broken in a minute as well."""
        for key, limit in limits:
            there = usage.nodes.get(key, 0)
            if limit.nodes is not None and there + nodes > limit.nodes:
                return f"node limit{_limit_owner(key)} is {limit.nodes}; {there} running or starting"
            if limit.launches_per_minute == 0:
                return f"launch limit{_limit_owner(key)} is 0"
        return ""


def _limit_owner(key: LimitKey) -> str:
    return f" of {key[0]} {key[1]}" if key[0] else ""


plugin = PolicyPlugin("limits", LimitsSettings, LimitsPolicy)
