"""burstctl status"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from rich.text import Text

from burstd.api.answers.text import (
    abbreviated_list,
    ago,
    duration_text,
    elapsed_text,
    local_time_text,
    money_sums_text,
    plural,
    remaining_text,
)
from burstd.cli.output import Cell, ConsoleOutput, faint_zero, styled_state
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode
from burstd.cli.watch import listing
from burstd.domain.units import size_text

if TYPE_CHECKING:
    from burstd.api.answers.base import ReachabilityView
    from burstd.api.answers.standby import StandbyView
    from burstd.api.answers.status import (
        BreakerView,
        PoolView,
        ProviderView,
        SlotHoldView,
        SlurmStateView,
        StageStatusView,
        StatusView,
    )

_POOL_COUNTS = ("wanted", "booting", "ready", "busy", "idle", "leaving", "failed", "free", "slots")
_POOL_HEADS = ("POOL", "WANTED>", "BOOT>", "READY>", "BUSY>", "IDLE>", "LEAVE>", "FAIL>", "FREE>", "SLOTS>")
_MAX_BREAKERS = 5
_MAX_PROJECTS = 5
_MAX_HOLDS = 3
_OK = Text("ok", "green")


@listing
def status(burstd: ApiClient) -> None:
    """Nodes wanted, booting, open and leaving; waiting jobs and why they wait; the cost per hour."""
    from burstd.api.answers.standby import StandbyView
    from burstd.api.answers.status import StatusView

    try:
        found, answer = burstd.request_status("GET", "/status")
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))
    if found == HTTPStatus.MISDIRECTED_REQUEST:
        burstd.show(StandbyView, burstd.get_json("/standby"), _print_standby)
    else:
        burstd.show(StatusView, burstd.answer_or_exit(found, answer), print_status)


def _print_standby(out: ConsoleOutput, answer: StandbyView) -> None:
    leader = f"the leader is {answer.leader}" if answer.leader else "no head leads now"
    out.line((f"burstd {answer.version}", "bold"), f" on {answer.cluster}, standby on {answer.host}: {leader}")
    for alarm in answer.alarms:
        out.note(f"! {alarm}", "bold red")


def print_status(out: ConsoleOutput, answer: StatusView) -> None:
    """The whole state, as burstctl status shows it."""
    _print_daemon(out, answer)
    if answer.pools:
        out.blank()
        _print_pools(out, answer)
        out.blank()
        _print_services(out, answer)
    out.blank()
    if answer.data:
        _print_staging_summary(out, answer.data)
    if answer.idle_gpus is not None:
        idle = answer.idle_gpus
        cost = f", {money_sums_text(idle.cost_per_hour)}/h" if idle.cost_per_hour else ""
        out.line((f"{plural(idle.gpus, 'GPU')} of {plural(idle.jobs, 'job')} idle{cost}", "yellow"))
    for text in answer.projects[:_MAX_PROJECTS]:
        out.line(text)
    if len(answer.projects) > _MAX_PROJECTS:
        out.note(f"and {len(answer.projects) - _MAX_PROJECTS} more projects (burstctl project list)", "dim")
    _print_waiting(out, answer)


def _print_daemon(out: ConsoleOutput, answer: StatusView) -> None:
    daemon, now = answer.daemon, answer.now
    seen = f"last loop {ago(answer.seen, now)}" if answer.seen else "no loop yet"
    out.line(
        (f"burstd {daemon.version}", "bold"),
        f" on {daemon.cluster}, up {duration_text(daemon.up_s)}, {seen}, now ",
        (f"{money_sums_text(answer.cost_per_hour)}/h", "bold"),
    )
    if daemon.standbys:
        out.note(f"standby: {daemon.standbys}")
    if daemon.paused:
        since = f" for {elapsed_text(daemon.paused_since, now)}, by {daemon.paused_by}" if daemon.paused_since else ""
        out.note(f"on hold{since}: no node is booted or terminated (burstctl unhold): {daemon.paused}", "bold yellow")
    for alarm in answer.alarms:
        out.note(f"! {alarm}", "bold red")


def _print_pools(out: ConsoleOutput, answer: StatusView) -> None:
    currencies = {amount.currency for amount in answer.cost_per_hour}
    one = currencies.pop() if len(currencies) == 1 else ""
    rows: list[Sequence[Cell]] = [
        (
            pool.name,
            *(faint_zero(getattr(pool, sort)) for sort in _POOL_COUNTS),
            money_sums_text(pool.cost_per_hour).removesuffix(f" {one}"),
        )
        for pool in answer.pools
    ]
    if not out.table((*_POOL_HEADS, f"{one or 'COST'}/H>"), rows, only_if_fits=True):
        for pool in answer.pools:
            counts = ((name, getattr(pool, name)) for name in _POOL_COUNTS)
            some = ", ".join(f"{name} {count}" for name, count in counts if count)
            out.line((pool.name, "bold"), f": {some}, {money_sums_text(pool.cost_per_hour)}/h")
    now = answer.now
    for pool in answer.pools:
        for pin in pool.pins:
            pin_text = {"exact": "exactly", "floor": "at least", "ceiling": "at most"}[pin.kind]
            until = (
                f"until {local_time_text(pin.until, now)} ({remaining_text(pin.until, now)} more)"
                if pin.until
                else "for good"
            )
            out.note(f"{pool.name}: {pin_text} {plural(pin.nodes, 'node')} {until}, by {pin.by}", "yellow")
        if pool.shards:
            out.note(f"{pool.name}: {pool.free_shards} of {plural(pool.shards, 'shard')} free on nodes in service")
        _print_holds(out, pool, now)


def _print_holds(out: ConsoleOutput, pool: PoolView, now: datetime) -> None:
    """Slots that were drained together in a line."""
    together: dict[tuple[str, str], list[SlotHoldView]] = {}
    for hold in pool.holds:
        together.setdefault((hold.by, hold.reason), []).append(hold)
    for (by, reason), holds in [*together.items()][:_MAX_HOLDS]:
        slots = abbreviated_list([hold.slot for hold in holds])
        why = f": {reason}" if reason else ""
        out.note(f"{pool.name}: {slots} held for {elapsed_text(holds[0].since, now)}, by {by}{why}", "yellow")
    if len(together) > _MAX_HOLDS:
        out.note(f"{pool.name}: {plural(pool.held, 'slot')} held in all (burstctl node list)", "yellow")


def _print_services(out: ConsoleOutput, answer: StatusView) -> None:
    now = answer.now
    out.table(("", "", "*"), [_slurm_row(answer.slurm, now), *(_provider_row(p, now) for p in answer.providers)])
    breakers = [breaker for provider in answer.providers for breaker in provider.breakers]
    for breaker in breakers[:_MAX_BREAKERS]:
        out.note(breaker_text(breaker, now), "yellow")
    if len(breakers) > _MAX_BREAKERS:
        out.note(f"and {len(breakers) - _MAX_BREAKERS} more circuit breakers are open (--json)", "dim")
    bad_places = [place for provider in answer.providers for place in provider.bad_places.items()]
    for place in bad_places[:_MAX_BREAKERS]:
        out.note(bad_place_text(*place), "yellow")
    if len(bad_places) > _MAX_BREAKERS:
        out.note(f"and {len(bad_places) - _MAX_BREAKERS} more places are avoided (--json)", "dim")


def bad_place_text(place: str, why: str) -> str:
    """A place that is avoided for its past machines."""
    return f"{place}: avoided, {why}"


def breaker_text(breaker: BreakerView, now: datetime, *, short: bool = False) -> str:
    """An open circuit breaker: what it blocks, for how long, and why."""
    why = f": {breaker.error}" if breaker.error else ""
    subject = "" if short else f"{breaker.key}: "
    if not breaker.failures:
        return f"{subject}circuit breaker open{why}"
    return (
        f"{subject}circuit breaker open for {remaining_text(breaker.until, now)} after "
        f"{plural(breaker.failures, 'failure')}"
        f" ({breaker.cause}{why})"
    )


def _slurm_row(slurm: SlurmStateView, now: datetime) -> tuple[str, Text, str]:
    name = f"Slurm {slurm.version}".strip()
    if not slurm.ok:
        return _unreachable_row(name, slurm, now)
    return name, _OK, f"{plural(slurm.nodes, 'node')}, {plural(slurm.jobs, 'job')}"


def _provider_row(provider: ProviderView, now: datetime) -> tuple[str, Text, str]:
    if not provider.ok:
        return _unreachable_row(provider.name, provider, now)
    parts = [f"{number} {state}" for state, number in provider.instances.items()] or ["no instance"]
    parts.append(plural(provider.offers, "offer"))
    if provider.calls:
        parts.append(f"{plural(provider.calls, 'call')} under way")
    if provider.leftovers:
        parts.append(plural(provider.leftovers, "leftover"))
    return provider.name, _OK, ", ".join(parts)


def _unreachable_row(name: str, reach: ReachabilityView, now: datetime) -> tuple[str, Text, str]:
    known = f"; last known {ago(reach.last_known, now)}" if reach.last_known else ""
    return name, Text("down", "bold red"), f"{reach.error}{known}"


def _print_waiting(out: ConsoleOutput, answer: StatusView) -> None:
    waiting = answer.waiting
    if not waiting.jobs:
        out.line("No job waits.")
        return
    tasks = f" ({waiting.tasks} with every array task)" if waiting.tasks != waiting.jobs else ""
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in waiting.verdicts.items())
    waits = "waits" if waiting.jobs == 1 else "wait"
    out.line((f"{plural(waiting.jobs, 'job')} {waits}{tasks}", "bold"), f": {verdicts}")
    if waiting.groups:
        out.table(("", ">", "*", "*"), [
            (styled_state(g.verdict), str(g.jobs), g.reason, f"job {abbreviated_list(g.examples, 3)}")
            for g in waiting.groups
        ], indent=2)  # fmt: skip
    if waiting.more_groups:
        out.note(f"and {waiting.more_groups} more reasons (burstctl job list)", "dim")
    if not answer.you.admin:
        out.note(f"Only jobs of {answer.you.user} are shown.", "dim")


def _print_staging_summary(out: ConsoleOutput, data: StageStatusView) -> None:
    """One line for ``burstctl status``."""
    states = ", ".join(f"{number} {state}" for state, number in data.states.items()) or "none"
    rate = f", {size_text(round(data.rate))}/s" if data.rate else ""
    out.line(("data", "bold"), f" of {plural(data.jobs, 'job')}: {states}{rate} (store {data.store})")
    if held := data.states.get("held"):
        out.note(f"{plural(held, 'job')} held (burstctl stage status)", "yellow")
    if data.kept:
        out.note(f"{plural(data.kept, 'node')} kept for output that is not home yet", "yellow")
    if data.error:
        out.note(f"! the store {data.store} cannot be used: {data.error}", "bold red")
