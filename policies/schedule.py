"""Calendar and cron: what may burst when, how many nodes at most, and how many are warm before the morning.

Use it where the answer hangs on the clock: no bursting while power is cheap here, more nodes at night, a few warm ones
before people come, nothing at all during a maintenance. A window opens whenever its ``cron`` (minute, hour, day, month,
weekday: as in crontab) comes round and stays open for its ``length``; or it is open once, from ``begin`` to ``end``.
Where several are open, all of them hold; where none is, this policy does nothing. Times are those of ``timezone``.

    [policies.schedule]
    timezone = "Europe/Berlin"
    [policies.schedule.windows.office]
    cron = "0 8 * * mon-fri"
    length = "10h"
    pools = ["gpu*"]
    accounts = ["!students"]
    max_nodes = 20
    [policies.schedule.windows.warm]
    cron = "30 7 * * mon-fri"
    length = "1h"
    min_nodes = 2
    [policies.schedule.windows.maintenance]
    begin = "2026-12-01T08:00"
    end = "2026-12-02"
    burst = false

In the chain it stands behind ``idle``, so that its windows bound minimum and spare nodes as well. What an administrator
asks for with ``burstctl scale`` is started all the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from burstd.domain.claim import Cause
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.policy import (
    PolicyPlugin,
    Remark,
    Target,
    Want,
    gang_units,
    remarks_on_dropped_wants,
    without_jobs,
    without_offers,
)
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot
from policies.cron import DAY_S, check_cron, cron_times, time_zone

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": DAY_S}
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h|d)")


def _seconds(given: object) -> object:
    """``12h``, ``90min`` or seconds."""
    found = _LENGTH.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is not None:
        return float(found[1]) * _UNITS[found[2]]
    if isinstance(given, str):
        raise ValueError("must be seconds, or a number and a unit: s, min, h or d")  # noqa: TRY004  # pydantic's way
    return given


class ScheduleWindow(BaseModel):
    """``[policies.schedule.windows.NAME]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cron: str = ""
    """When it opens: ``30 7 * * mon-fri``."""
    length: Annotated[float, BeforeValidator(_seconds)] = Field(default=0.0, ge=0, le=31 * DAY_S)
    """How long it is open then: seconds, or ``12h``."""
    begin: datetime | None = None
    """Instead of ``cron``: the date, or date and time, from which it is open, once."""
    end: datetime | None = None
    """The first moment at which it is closed again."""
    pools: tuple[str, ...] = ("*",)
    """Patterns of the pools that it is for."""
    burst: bool = True
    """False: no machine is started."""
    users: tuple[str, ...] = ()
    """Only for jobs of these users machines are started; patterns, with ``!`` in front for all others. None: all."""
    accounts: tuple[str, ...] = ()
    """The same for accounts."""
    providers: tuple[str, ...] = ()
    """Only machines of these providers are started; patterns as for users."""
    max_nodes: int | None = Field(default=None, ge=0)
    """Most nodes of these pools together."""
    min_nodes: int = Field(default=0, ge=0)
    """Nodes of each of these pools that are there, with or without jobs."""

    @field_validator("cron")
    @classmethod
    def _is_cron(cls, text: str) -> str:
        if text:
            check_cron(text)
        return text

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if bool(self.cron) == bool(self.begin or self.end):
            raise ValueError("a window has either 'cron' and 'length', or 'begin' and 'end'")
        if self.cron and not self.length:
            raise ValueError("'length' must say how long the window is open, such as \"12h\"")
        if not self.cron and (self.begin is None or self.end is None or self.length):
            raise ValueError("a window without 'cron' has both 'begin' and 'end', and no 'length'")
        if self.min_nodes and not self.burst:
            raise ValueError("'min_nodes' starts machines, and 'burst = false' forbids it: leave one of them out")
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise ValueError(f"'max_nodes' ({self.max_nodes}) is less than 'min_nodes' ({self.min_nodes})")
        return self


class ScheduleSettings(BaseModel):
    """``[policies.schedule]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timezone: str = "UTC"
    """In which ``cron``, ``begin`` and ``end`` are meant: ``Europe/Berlin``."""
    windows: dict[str, ScheduleWindow] = {}

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        time_zone(name)
        return name

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name, window in self.windows.items():
            if window.begin and window.end and _at(window.begin, self.timezone) >= _at(window.end, self.timezone):
                raise ValueError(f"window {name} ends before it begins")
        return self


@dataclass(frozen=True, slots=True)
class _OpenWindow:
    """A window that is open now."""

    name: str
    window: ScheduleWindow
    until: str
    """For a person."""

    def covers(self, pool: str) -> bool:
        return _any(self.window.pools, pool)


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """The policy."""

    settings: ScheduleSettings
    name: str = "schedule"

    def evaluate(self, snapshot: Snapshot, target: Target) -> Target:
        """Applies the windows that are open: first what is to be there, then what bounds it."""
        if not isinstance(snapshot.slurm, SlurmView):
            return target
        windows = self._open(snapshot.now)
        for one in windows:
            target = self._at_least(snapshot, target, one)
        for one in windows:
            window = one.window
            if not window.burst:
                target = self._without_bursting(target, one)
            if window.users or window.accounts:
                target = self._only_for(snapshot, target, one)
            if window.providers:
                target = self._only_from(target, one)
            if window.max_nodes is not None:
                target = self._at_most(snapshot, target, one, window.max_nodes)
        return target

    def _open(self, now: float) -> list[_OpenWindow]:
        found = []
        for name, window in self.settings.windows.items():
            end = _closing_time(window, self.settings.timezone, now)
            if end is not None:
                shown = datetime.fromtimestamp(end, time_zone(self.settings.timezone)).strftime("%a %Y-%m-%d %H:%M %Z")
                found.append(_OpenWindow(name, window, shown))
        return found

    def _without_bursting(self, target: Target, one: _OpenWindow) -> Target:
        why = f"schedule window {one.name} allows no launches until {one.until}"
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        for unit in gang_units(target.wants):
            if any(one.covers(want.pool) for want in unit):
                out += [(want, why) for want in unit]
            else:
                wants += unit
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks_on_dropped_wants(out, self.name)))

    def _only_for(self, snapshot: Snapshot, target: Target, one: _OpenWindow) -> Target:
        def refusal(want: Want, job: Job) -> str:
            if not one.covers(want.pool):
                return ""
            for kind, name, allowed in (
                ("user", job.user, one.window.users),
                ("account", job.account, one.window.accounts),
            ):
                if not _allowed(allowed, name):
                    whose = f"{kind} {name}" if name else f"no {kind}"
                    return f"schedule window {one.name} allows no launches for {whose} until {one.until}"
            return ""

        return without_jobs(target, self.name, snapshot, refusal)

    def _only_from(self, target: Target, one: _OpenWindow) -> Target:
        def refusal(want: Want, offer: Offer) -> str:
            if not one.covers(want.pool) or _allowed(one.window.providers, offer.provider):
                return ""
            return f"schedule window {one.name} excludes provider {offer.provider} until {one.until}"

        return without_offers(target, self.name, refusal, grouping_key=lambda want: want.pool)

    def _at_most(self, snapshot: Snapshot, target: Target, one: _OpenWindow, most: int) -> Target:
        there = sum(1 for claim in snapshot.claims if one.covers(claim.pool))
        wants: list[Want] = []
        out: list[tuple[Want, str]] = []
        for unit in gang_units(target.wants):
            more = sum(want.nodes for want in unit if one.covers(want.pool))
            if more and there + more > most:
                why = f"schedule window {one.name} allows {most} node(s) until {one.until}; {there} running or starting"
                out += [(want, why) for want in unit]
                continue
            there += more
            wants += unit
        return replace(target, wants=tuple(wants), remarks=(*target.remarks, *remarks_on_dropped_wants(out, self.name)))

    def _at_least(self, snapshot: Snapshot, target: Target, one: _OpenWindow) -> Target:
        least = one.window.min_nodes
        for pool in snapshot.pools if least else ():
            if not one.covers(pool):
                continue
            good = {claim.id for claim in snapshot.claims if claim.pool == pool and snapshot.accepts_any_job(claim)}
            going = [release for release in target.releases if release.claim_id in good]
            coming = sum(want.nodes for want in target.wants if want.pool == pool and not want.dedicated)
            missing = least - (len(good) - len(going) + coming)
            if missing <= 0:
                continue
            why = f"schedule window {one.name} keeps {least} node(s) until {one.until}"
            kept_claims = {release.claim_id for release in going[:missing]}
            remarks = [Remark(self.name, f"claim:{claim_id}", "keep", why) for claim_id in kept_claims]
            missing -= len(kept_claims)
            offers = target.offers.get(pool, ())
            # One want each: as many as there are slots and offers for, not all or none.
            wants = [Want(pool, 1, Cause.FLOOR, why, offers) for _ in range(missing)] if offers else []
            if wants:
                remarks.append(Remark(self.name, f"pool:{pool}", "add", f"{missing} node(s): {why}"))
            elif missing:
                remarks.append(
                    Remark(self.name, f"pool:{pool}", "wait", f"{missing} node(s) missing ({why}): no offer available")
                )
            target = replace(
                target,
                wants=(*target.wants, *wants),
                releases=tuple(r for r in target.releases if r.claim_id not in kept_claims),
                remarks=(*target.remarks, *remarks),
            )
        return target


def _closing_time(window: ScheduleWindow, timezone: str, now: float) -> float | None:
    """When a window that is open now closes, in seconds since 1970; None: it is closed."""
    if window.begin is not None and window.end is not None:
        begin, end = _at(window.begin, timezone), _at(window.end, timezone)
        return end if begin <= now < end else None
    for day in range(int(now // DAY_S), int((now - window.length) // DAY_S) - 1, -1):
        opened = cron_times(window.cron, timezone, day)
        if before := bisect_right(opened, now):
            closes = opened[before - 1] + window.length
            return closes if now < closes else None
    return None


def _at(given: datetime, timezone: str) -> float:
    """A moment in seconds since 1970; without a zone of its own it is meant in the schedule's."""
    return (given if given.tzinfo else given.replace(tzinfo=time_zone(timezone))).timestamp()


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _allowed(patterns: tuple[str, ...], name: str) -> bool:
    """Those named and none of those with ``!``; where only such are named, all others."""
    without = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    named = [pattern for pattern in patterns if not pattern.startswith("!")]
    return not _any(without, name) and (not named or _any(named, name))


plugin = PolicyPlugin("schedule", ScheduleSettings, SchedulePolicy)
