"""burstctl status"""

from __future__ import annotations

import typer
from rich.text import Text

from burstd.cli.output import (
    ConsoleOutput,
    JsonObject,
    abbreviated_list,
    faint_zero,
    money_sums_text,
    plural,
    print_json,
    styled_state,
)
from burstd.cli.provider import breaker_text
from burstd.cli.session import JsonOption, SocketOption, api_client
from burstd.cli.stage_pages import print_staging_summary
from burstd.cli.times import ago, duration_text, local_time_text, remaining_text

_POOL_COUNTS = ("wanted", "booting", "ready", "busy", "idle", "leaving", "failed", "free", "slots")
_POOL_HEADS = ("POOL", "WANTED>", "BOOT>", "READY>", "BUSY>", "IDLE>", "LEAVE>", "FAIL>", "FREE>", "SLOTS>")
_MAX_BREAKERS = 5
_OK = Text("ok", "green")


def status(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """Nodes wanted, booting, open and leaving; waiting jobs and why they wait; the cost per hour."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get("/status")
    if burstd.json:
        print_json(answer)
        return
    out = ConsoleOutput()
    _print_daemon(out, answer)
    if answer["pools"]:
        out.blank()
        _print_pools(out, answer)
        out.blank()
        _print_services(out, answer)
    out.blank()
    if answer["data"]:
        print_staging_summary(out, answer["data"])
    _print_waiting(out, answer)


def _print_daemon(out: ConsoleOutput, answer: JsonObject) -> None:
    daemon, now = answer["daemon"], answer["now"]
    seen = f"last loop {ago(answer['seen'], now)}" if answer["seen"] else "no loop yet"
    out.line(
        (f"burstd {daemon['version']}", "bold"),
        f" on {daemon['cluster']}, up {duration_text(daemon['up_s'])}, {seen}, now ",
        (f"{money_sums_text(answer['cost_per_hour'])}/h", "bold"),
    )
    if daemon["paused"]:
        out.note(f"on hold: no node is booted or terminated (burstctl unhold): {daemon['paused']}", "bold yellow")
    for alarm in answer["alarms"]:
        out.note(f"! {alarm}", "bold red")


def _print_pools(out: ConsoleOutput, answer: JsonObject) -> None:
    currencies = {amount["currency"] for amount in answer["cost_per_hour"]}
    one = currencies.pop() if len(currencies) == 1 else ""
    rows = [
        (
            pool["name"],
            *(faint_zero(pool[sort]) for sort in _POOL_COUNTS),
            money_sums_text(pool["cost_per_hour"]).removesuffix(f" {one}"),
        )
        for pool in answer["pools"]
    ]
    if not out.table((*_POOL_HEADS, f"{one or 'COST'}/H>"), rows, only_if_fits=True):
        for pool in answer["pools"]:
            some = ", ".join(f"{count_name} {pool[count_name]}" for count_name in _POOL_COUNTS if pool[count_name])
            out.line((pool["name"], "bold"), f": {some}, {money_sums_text(pool['cost_per_hour'])}/h")
    now = answer["now"]
    for pool in answer["pools"]:
        for pin in pool["pins"]:
            pin_text = {"exact": "exactly", "floor": "at least", "ceiling": "at most"}[pin["kind"]]
            until = (
                f"until {local_time_text(pin['until'], now)} ({remaining_text(pin['until'], now)} more)"
                if pin["until"]
                else "for good"
            )
            out.note(f"{pool['name']}: {pin_text} {plural(pin['nodes'], 'node')} {until}, by {pin['by']}", "yellow")
        if pool["held"]:
            out.note(f"{pool['name']}: {plural(pool['held'], 'slot')} held (burstctl node list)", "yellow")


def _print_services(out: ConsoleOutput, answer: JsonObject) -> None:
    now = answer["now"]
    out.table(("", "", "*"), [_slurm_row(answer["slurm"], now), *(_provider_row(p, now) for p in answer["providers"])])
    breakers = [breaker for provider in answer["providers"] for breaker in provider["breakers"]]
    for breaker in breakers[:_MAX_BREAKERS]:
        out.note(breaker_text(breaker, now), "yellow")
    if len(breakers) > _MAX_BREAKERS:
        out.note(f"and {len(breakers) - _MAX_BREAKERS} more circuit breakers are open (--json)", "dim")


def _slurm_row(slurm: JsonObject, now: str) -> tuple[str, Text, str]:
    name = f"Slurm {slurm['version']}".strip()
    if not slurm["ok"]:
        return _unreachable_row(name, slurm, now)
    return name, _OK, f"{plural(slurm['nodes'], 'node')}, {plural(slurm['jobs'], 'job')}"


def _provider_row(provider: JsonObject, now: str) -> tuple[str, Text, str]:
    if not provider["ok"]:
        return _unreachable_row(provider["name"], provider, now)
    parts = [f"{number} {state}" for state, number in provider["instances"].items()] or ["no instance"]
    parts.append(plural(provider["offers"], "offer"))
    if provider["calls"]:
        parts.append(f"{plural(provider['calls'], 'call')} under way")
    if provider["leftovers"]:
        parts.append(plural(provider["leftovers"], "leftover"))
    return provider["name"], _OK, ", ".join(parts)


def _unreachable_row(name: str, reach: JsonObject, now: str) -> tuple[str, Text, str]:
    known = f"; last known {ago(reach['last_known'], now)}" if reach["last_known"] else ""
    return name, Text("down", "bold red"), f"{reach['error']}{known}"


def _print_waiting(out: ConsoleOutput, answer: JsonObject) -> None:
    waiting = answer["waiting"]
    if not waiting["jobs"]:
        out.line("No job waits.")
        return
    tasks = f" ({waiting['tasks']} with every array task)" if waiting["tasks"] != waiting["jobs"] else ""
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in waiting["verdicts"].items())
    waits = "waits" if waiting["jobs"] == 1 else "wait"
    out.line((f"{plural(waiting['jobs'], 'job')} {waits}{tasks}", "bold"), f": {verdicts}")
    if waiting["groups"]:
        out.table(("", ">", "*", "*"), [
            (styled_state(g["verdict"]), str(g["jobs"]), g["reason"], f"job {abbreviated_list(g['examples'], 3)}")
            for g in waiting["groups"]
        ], indent=2)  # fmt: skip
    if waiting["more_groups"]:
        out.note(f"and {waiting['more_groups']} more reasons (burstctl job list)", "dim")
    if not answer["you"]["admin"]:
        out.note(f"Only jobs of {answer['you']['user']} are shown.", "dim")
