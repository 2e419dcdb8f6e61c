"""burstctl status"""

from __future__ import annotations

import typer
from rich.text import Text

from burstd.cli.output import Answer, Paper, count, names, plural, print_json, styled, sums
from burstd.cli.provider import left_alone
from burstd.cli.session import Json, Socket, session
from burstd.cli.stage_pages import at_a_glance
from burstd.cli.times import ago, ahead, clock, length

_SORTS = ("wanted", "booting", "ready", "busy", "idle", "leaving", "failed", "free", "slots")
_HEADS = ("POOL", "WANTED>", "BOOT>", "READY>", "BUSY>", "IDLE>", "LEAVE>", "FAIL>", "FREE>", "SLOTS>")
_BREAKERS = 5
_OK = Text("ok", "green")


def status(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """What is wanted, booting, open and leaving; what waits and why; what it costs now."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/status")
    if burstd.json:
        print_json(answer)
        return
    paper = Paper()
    _daemon(paper, answer)
    if answer["pools"]:
        paper.blank()
        _pools(paper, answer)
        paper.blank()
        _outside(paper, answer)
    paper.blank()
    if answer["data"]:
        at_a_glance(paper, answer["data"])
    _waiting(paper, answer)


def _daemon(paper: Paper, answer: Answer) -> None:
    daemon, now = answer["daemon"], answer["now"]
    seen = f"looked {ago(answer['seen'], now)}" if answer["seen"] else "has not looked yet"
    paper.line(
        (f"burstd {daemon['version']}", "bold"), f" on {daemon['cluster']}, up {length(daemon['up_s'])}, {seen}, now ",
        (f"{sums(answer['cost_per_hour'])}/h", "bold"),
    )  # fmt: skip
    if daemon["paused"]:
        paper.note(f"on hold, nothing is booted or closed (burstctl unhold): {daemon['paused']}", "bold yellow")
    for alarm in answer["alarms"]:
        paper.note(f"! {alarm}", "bold red")


def _pools(paper: Paper, answer: Answer) -> None:
    currencies = {amount["currency"] for amount in answer["cost_per_hour"]}
    one = currencies.pop() if len(currencies) == 1 else ""
    rows = [
        (pool["name"], *(count(pool[sort]) for sort in _SORTS), sums(pool["cost_per_hour"]).removesuffix(f" {one}"))
        for pool in answer["pools"]
    ]
    if not paper.table((*_HEADS, f"{one or 'COST'}/H>"), rows, whole=True):
        for pool in answer["pools"]:
            some = ", ".join(f"{sort} {pool[sort]}" for sort in _SORTS if pool[sort])
            paper.line((pool["name"], "bold"), f": {some}, {sums(pool['cost_per_hour'])}/h")
    now = answer["now"]
    for pool in answer["pools"]:
        for pin in pool["pins"]:
            word = {"exact": "exactly", "floor": "at least", "ceiling": "at most"}[pin["kind"]]
            until = (
                f"until {clock(pin['until'], now)} ({ahead(pin['until'], now)} more)" if pin["until"] else "for good"
            )
            paper.note(f"{pool['name']}: {word} {plural(pin['nodes'], 'node')} {until}, by {pin['by']}", "yellow")
        if pool["held"]:
            paper.note(f"{pool['name']}: {plural(pool['held'], 'slot')} held (burstctl node list)", "yellow")


def _outside(paper: Paper, answer: Answer) -> None:
    now = answer["now"]
    paper.table(("", "", "*"), [_slurm(answer["slurm"], now), *(_provider(p, now) for p in answer["providers"])])
    breakers = [breaker for provider in answer["providers"] for breaker in provider["breakers"]]
    for breaker in breakers[:_BREAKERS]:
        paper.note(left_alone(breaker, now), "yellow")
    if len(breakers) > _BREAKERS:
        paper.note(f"and {len(breakers) - _BREAKERS} more are left alone (--json)", "dim")


def _slurm(slurm: Answer, now: str) -> tuple[str, Text, str]:
    name = f"Slurm {slurm['version']}".strip()
    if not slurm["ok"]:
        return _down(name, slurm, now)
    return name, _OK, f"{plural(slurm['nodes'], 'node')}, {plural(slurm['jobs'], 'job')}"


def _provider(provider: Answer, now: str) -> tuple[str, Text, str]:
    if not provider["ok"]:
        return _down(provider["name"], provider, now)
    parts = [f"{number} {state}" for state, number in provider["instances"].items()] or ["no instance"]
    parts.append(plural(provider["offers"], "offer"))
    if provider["calls"]:
        parts.append(f"{plural(provider['calls'], 'call')} under way")
    if provider["leftovers"]:
        parts.append(plural(provider["leftovers"], "leftover"))
    return provider["name"], _OK, ", ".join(parts)


def _down(name: str, reach: Answer, now: str) -> tuple[str, Text, str]:
    known = f"; last known {ago(reach['last_known'], now)}" if reach["last_known"] else ""
    return name, Text("down", "bold red"), f"{reach['error']}{known}"


def _waiting(paper: Paper, answer: Answer) -> None:
    waiting = answer["waiting"]
    if not waiting["jobs"]:
        paper.line("No job waits.")
        return
    tasks = f" ({waiting['tasks']} with every array task)" if waiting["tasks"] != waiting["jobs"] else ""
    sorts = ", ".join(f"{n} {verdict}" for verdict, n in waiting["verdicts"].items())
    waits = "waits" if waiting["jobs"] == 1 else "wait"
    paper.line((f"{plural(waiting['jobs'], 'job')} {waits}{tasks}", "bold"), f": {sorts}")
    if waiting["groups"]:
        paper.table(("", ">", "*", "*"), [
            (styled(g["verdict"]), str(g["jobs"]), g["reason"], f"job {names(g['examples'], 3)}")
            for g in waiting["groups"]
        ], indent=2)  # fmt: skip
    if waiting["more_groups"]:
        paper.note(f"and {waiting['more_groups']} more reasons (burstctl job list)", "dim")
    if not answer["you"]["admin"]:
        paper.note(f"Only jobs of {answer['you']['user']} are shown.", "dim")
