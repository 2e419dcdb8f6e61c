"""burstctl provider"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.cli.complete import providers
from burstd.cli.config import DEFAULT, File
from burstd.cli.output import Answer, Paper, money, names, plural, print_json
from burstd.cli.session import Code, Json, NotRunning, Session, Socket, Unreachable, session, whoami
from burstd.cli.times import ago, ahead

if TYPE_CHECKING:
    from burstd.domain.plugins.provider import Finding

app = typer.Typer(help="The clouds: their state, what they offer, whether launching would work.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A provider of burstd.toml.", autocompletion=providers)]
CHECK_TIMEOUT_S = 150.0
"""Longer than the daemon lets a provider look."""
_MARKS = {True: ("ok", "green"), False: ("not ok", "bold red"), None: ("?", "yellow")}


@app.command("list")
def list_providers(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """All clouds: when they were last listed, what they have, who uses them, what is wrong."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/providers")
    if burstd.json:
        print_json(answer)
        return
    paper, now = Paper(), answer["now"]
    if not answer["providers"]:
        paper.line("The settings name no provider.")
        return
    paper.table(("PROVIDER", "", "LISTED>", "INSTANCES*", "OFFERS>", "TYPES>", "ZONES*", "POOLS*"), [
        (
            p["name"], Text("ok", "green") if p["ok"] else Text("down", "bold red"), ago(p["listed"], now),
            ", ".join(f"{n} {state}" for state, n in p["instances"].items()) or "none",
            str(p["offers"]), str(p["instance_types"]), names(p["zones"], 4), names(p["pools"], 4),
        )
        for p in answer["providers"]
    ])  # fmt: skip
    for p in answer["providers"]:
        for alarm in p["alarms"]:
            paper.note(f"! {p['name']}: {alarm}", "bold red")
        if p["leftovers"]:
            paper.note(f"{p['name']}: {plural(p['leftovers'], 'leftover')} to be removed", "yellow")
        for breaker in p["breakers"]:
            paper.note(left_alone(breaker, now), "yellow")


@app.command("offers")
def list_offers(
    ctx: typer.Context,
    name: Name,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that no pool can use.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """What a cloud can start and pools can use, cheapest first, and what is left alone for now."""
    burstd = session(ctx, json, socket)
    answer = burstd.get(f"/providers/{name}/offers", {"all": str(every).lower()})
    if burstd.json:
        print_json(answer)
    else:
        _page(Paper(), answer, every)
    if not answer["ok"]:
        raise typer.Exit(Code.UNREACHABLE)


@app.command("check")
def check_provider(
    ctx: typer.Context,
    name: Name,
    here: Annotated[bool, typer.Option("--here", help="By burstctl itself, from the settings, as you.")] = False,
    file: File = DEFAULT,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Have a cloud look whether launching would work, and say what to do where not. Makes nothing.

    The daemon does it, with its user's credentials; where none runs, burstctl does, with yours.
    """
    burstd = session(ctx, json, socket)
    answer = None if here else _asked(burstd, name)
    by_daemon = answer is not None
    if answer is None:
        answer = _looked(burstd, name, file)
    if burstd.json:
        print_json(answer)
    else:
        who = "burstd" if by_daemon else f"burstctl itself, from {file}"
        _findings(Paper(), answer, who)
    if not answer["ok"]:
        raise typer.Exit(Code.NO)


def _asked(burstd: Session, name: str) -> Answer | None:
    """The daemon's answer; None where none runs."""
    try:
        found = burstd.answered(*burstd.talk("POST", f"/providers/{name}/check", timeout_s=CHECK_TIMEOUT_S))
    except NotRunning:
        return None
    except Unreachable as error:
        burstd.fail(Code.UNREACHABLE, str(error))
    answer: Answer = found
    return answer


def _looked(burstd: Session, name: str, file: Path) -> Answer:
    """The same, found out in this process."""
    from burstd.domain.plugins.provider import SelfCheck  # noqa: PLC0415
    from burstd.planner.offers.named_images import images_named  # noqa: PLC0415  # pydantic and the plug-ins take their time
    from burstd.settings import Plugins, SettingsError, load, pools, resolve_provider  # noqa: PLC0415
    from burstd.slurm.hostlist import expand  # noqa: PLC0415

    try:
        settings = load(file, check_files=False)
        if name not in settings.providers:
            known = ", ".join(settings.providers) or "none"
            burstd.fail(Code.NOT_FOUND, f"{file} has no provider {name!r}; there are: {known}.")
        chosen = resolve_provider(settings, Plugins.installed(), name)
        images = images_named(name, pools(settings, expand).values())
    except SettingsError as error:
        burstd.fail(Code.NO, str(error))
    with closing(chosen.plugin.make(name, settings.cluster, chosen.settings)) as provider:
        if not isinstance(provider, SelfCheck):
            burstd.fail(Code.NO, f"Provider {name} has no check of its own: its kind does not offer one.")
        found: Sequence[Finding] = list(provider.check(images))
    return {
        "now": None,
        "provider": name,
        "ok": all(finding.ok is not False for finding in found),
        "user": whoami(),
        "findings": [asdict(finding) for finding in found],
    }


def _findings(paper: Paper, answer: Answer, who: str) -> None:
    findings = answer["findings"]
    paper.line((f"Provider {answer['provider']}", "bold"), f", looked at by {who}, as user {answer['user']}:")
    paper.table(("", "*"), [(Text(*_MARKS[f["ok"]]), _told(f)) for f in findings])
    wrong, unclear = (sum(f["ok"] is state for f in findings) for state in (False, None))
    told = f", {plural(unclear, 'thing')} could not be told" if unclear else ""
    if wrong:
        paper.line((f"{plural(wrong, 'thing')} not ok{told}.", "bold red"))
    else:
        paper.line(("Nothing is known to be wrong" if unclear else "All is well", "bold"), f"{told}.")


def _told(finding: Answer) -> Text:
    text = Text.assemble((finding["subject"], "bold"), f": {finding['text']}")
    return text.append(f"\nRemedy: {finding['remedy']}", "italic") if finding["remedy"] else text


def _page(paper: Paper, answer: Answer, every: bool) -> None:
    name = answer["provider"]
    if not answer["ok"]:
        known = f"; last known {ago(answer['last_known'], answer['now'])}" if answer["last_known"] else ""
        paper.line(("down ", "bold red"), f"The offers of {name} cannot be read: {answer['error']}{known}")
    elif answer["offers"]:
        _offers(paper, answer)
    else:
        paper.line(f"{name} has no offer{'' if every else ' that a pool can use'}.")
    if answer["hidden"]:
        paper.note(f"and {plural(answer['hidden'], 'offer')} that no pool can use (--all)", "dim")


def _offers(paper: Paper, answer: Answer) -> None:
    offers, now = answer["offers"], answer["now"]
    columns = [
        ("TYPE", [o["instance_type"] for o in offers]),
        ("ZONE", [o["zone"] for o in offers]),
        ("MARKET", [o["market"] for o in offers]),
        ("CPUS>", [str(o["cpus"]) for o in offers]),
        ("MEMORY>", [f"{o['memory_mib'] / 1024:.4g} GiB" for o in offers]),
        ("GPUS", [_gpus(o) for o in offers]),
        ("ARCH", [o["architecture"] for o in offers]),
        ("FABRIC", [o["fabric"] for o in offers]),
        ("DISK>", [f"{o['local_disk_gib']} GiB" if o["local_disk_gib"] else "" for o in offers]),
        ("PRICE/H>", [money(o["price_per_hour"], 4) for o in offers]),
        ("FROM", [_source(o, now) for o in offers]),
        ("FOR*", [_use(o, now) for o in offers]),
    ]
    # What no offer has needs no column.
    told = [(head, cells) for head, cells in columns if any(cells)]
    rows = list(zip(*(cells for _, cells in told), strict=True))
    if paper.table([head for head, _ in told], rows, whole=True):
        return
    for offer, row in zip(offers, rows, strict=True):
        paper.line((f"{offer['instance_type']} {offer['zone']} {offer['market']}", "bold"))
        paper.note(", ".join(
            f"{head.rstrip('>*').lower()} {cell}" for (head, _), cell in list(zip(told, row, strict=True))[3:] if cell
        ))  # fmt: skip


def _gpus(offer: Answer) -> str:
    return ", ".join(
        f"{g['type']}:{g['count']}" + (f" ({g['memory_mib'] / 1024:.4g} GiB)" if g["memory_mib"] else "")
        for g in offer["gpus"]
    )


def _source(offer: Answer, now: str) -> str:
    told = f", {ago(offer['price_at'], now)}" if offer["price_at"] else ""
    return f"{offer['price_source']}{told}"


def _use(offer: Answer, now: str) -> str:
    """Who may use it, and why not now."""
    if offer["breakers"]:
        return "; ".join(left_alone(b, now, short=True) for b in offer["breakers"])
    if offer["pools"]:
        return names(offer["pools"], 3)
    return "; ".join(f"not {pool}: {why}" for pool, why in offer["refused"].items()) or "no pool names it"


def left_alone(breaker: Answer, now: str, *, short: bool = False) -> str:
    """Why nothing is launched there for now."""
    why = f": {breaker['error']}" if breaker["error"] else ""
    if not breaker["failures"]:
        return f"{breaker['key']} is closed to launches{why}" if not short else f"closed to launches{why}"
    subject = "" if short else f"{breaker['key']} is "
    return (
        f"{subject}left alone for {ahead(breaker['until'], now)} after {plural(breaker['failures'], 'failure')}"
        f" ({breaker['cause']}{why})"
    )
