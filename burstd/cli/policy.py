"""burstctl policy"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from burstd.cli.config import DEFAULT, File
from burstd.cli.output import Answer, Paper, names, plural, print_json
from burstd.cli.scale import say
from burstd.cli.session import Code, Json, Session, Socket, Unreachable, session
from burstd.cli.times import ago

app = typer.Typer(help="The policies that decide what is booted and what is let go.", no_args_is_help=True)
TIMEOUT_S = 150.0
"""Longer than a chain of policies takes, each of which is interrupted at its limit."""
_CHANGES = {"comes": ("+", "green"), "goes": ("-", "red"), "changes": ("~", "yellow")}


@app.command("list")
def list_policies(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """All policies: where they come from, their place in the chain, their settings, how they fare."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/policies")
    if burstd.json:
        print_json(answer)
    else:
        _list(Paper(), answer)


@app.command("check")
def check_policies(
    ctx: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A policy's file or package; default: all there are.")
    ] = None,
    file: File = DEFAULT,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Load policies as they are on disk and try them on sample situations; the daemon need not run."""
    # pydantic and the plug-ins take longer to load than the other commands take.
    from burstd.cli.policy_check import check_all, check_one  # noqa: PLC0415

    burstd = session(ctx, json, socket)
    if path is not None and not path.exists():
        burstd.fail(Code.NOT_FOUND, f"There is no file {path}.")
    report = check_all(file) if path is None else check_one(path.absolute(), file)
    if burstd.json:
        print_json(report.as_json())
    else:
        _report(Paper(), report.as_json())
    if not report.ok:
        raise typer.Exit(Code.NO)


@app.command("test")
def try_policies(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """Ask the policies as they are on disk, on what is there now, and show what would be otherwise. Does nothing."""
    burstd = session(ctx, json, socket)
    answer = _asked(burstd, "/policies/test")
    if burstd.json:
        print_json(answer)
    else:
        _compare(Paper(), answer)
    if answer["failed"]:
        raise typer.Exit(Code.NO)


@app.command("reload")
def reload_policies(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """Have the daemon take policies and settings as they are on disk; faulty ones are refused, the old ones stay."""
    burstd = session(ctx, json, socket)
    say(burstd, _asked(burstd, "/reload"))


def _asked(burstd: Session, path: str) -> Answer:
    try:
        found: Answer = burstd.answered(*burstd.talk("POST", path, timeout_s=TIMEOUT_S))
    except Unreachable as error:
        burstd.fail(Code.UNREACHABLE, str(error))
    return found


def _list(paper: Paper, answer: Answer) -> None:
    paper.table((">", "POLICY", "STATE", "TOOK>", "FROM*", "SETTINGS*"), [
        (
            str(p["place"] or "-"), Text(p["name"], "" if p["place"] else "dim"), _state(p), _took(p["took_s"]),
            p["origin"], _settings(p["settings"]),
        )
        for p in answer["policies"]
    ])  # fmt: skip
    for p in answer["policies"]:
        if p["failed_at"]:
            now = "fails" if p["failing"] else "failed last"
            paper.note(f"{p['name']} {now} ({ago(p['failed_at'], answer['now'])}): {p['error']}",
                       "bold red" if p["failing"] else "")  # fmt: skip
    for text in answer["warnings"]:
        paper.note(f"! {text}", "yellow")
    if answer["unread"]:
        paper.note(f"not read since it changed: {names(answer['unread'])}; 'burstctl policy reload' takes it", "yellow")
    for text in answer["restart"]:
        paper.note(f"! {text}", "yellow")


def _state(policy: Answer) -> Text:
    if not policy["place"]:
        return Text("not in the chain", "dim")
    word = Text("fails", "bold red") if policy["failing"] else Text("ok", "green")
    return Text.assemble(word, ", hard") if policy["hard"] else word


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _settings(settings: Answer) -> str:
    return ", ".join(f"{key} = {_value(value)}" for key, value in settings.items() if value not in (None, {}, []))


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(one)}" for key, one in value.items() if one is not None) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _report(paper: Paper, report: Answer) -> None:
    for fault in report["faults"]:
        place = f"line {fault['line']}: " if fault["line"] else ""
        key = f"{fault['key']}: " if fault["key"] else ""
        paper.line(("not ok ", "bold red"), f"{report['file']}: {place}{key}{fault['text']}")
    marks = {True: Text("ok", "green"), False: Text("not ok", "bold red")}
    paper.table(("", "", "", "*"), [
        (
            marks[not p["faults"]], p["name"], f"{p['place']} in the chain" if p["place"] else "not in the chain",
            f"{p['origin']}" if not p["faults"] else "\n".join(p["faults"]),
        )
        for p in report["policies"]
    ])  # fmt: skip
    for text in report["warnings"]:
        paper.note(f"! {text}", "yellow")
    if report["ok"]:
        tried = len(report["policies"])
        many = "1 policy keeps" if tried == 1 else f"{tried} policies keep"
        paper.line(("All is well", "bold"), f": {many} the contract in {report['situations']} situations.")


def _compare(paper: Paper, answer: Answer) -> None:
    if answer["paused"]:
        paper.line(("On hold", "bold yellow"), f" (burstctl unhold): {answer['paused']}")
    for failed in answer["failing"]:
        paper.line(("! ", "bold red"), f"in force: {failed}; nothing is booted or let go until it is mended")
    for failed in answer["failed"]:
        paper.line(("! ", "bold red"), f"on disk: {failed}; nothing would be booted or let go")
    if not answer["changes"]:
        if answer["failed"]:
            return
        found = f"{plural(answer['wants'], 'want')}, {plural(answer['releases'], 'release')}"
        paper.line(f"The policies on disk decide as those in force do: {found}.")
        return
    paper.line((f"By the policies on disk {plural(len(answer['changes']), 'thing')} would be otherwise:", "bold"))
    paper.table(("", "", "POOL", "NODES>", "JOBS", "WHY*"), [
        (
            Text(*_CHANGES[c["change"]]), c["kind"] if c["kind"] == "want" else f"let {names(c['slots'], 1)} go",
            c["pool"], _nodes(c), names(c["jobs"], 3), _why(c),
        )
        for c in answer["changes"]
    ])  # fmt: skip


def _nodes(change: Answer) -> str:
    if change["kind"] != "want":
        return ""
    before, after = change["nodes_before"], change["nodes"]
    return str(after or before) if change["change"] != "changes" or before == after else f"{before} -> {after}"


def _why(change: Answer) -> str:
    by = f"{change['by']}: " if change["by"] else ""
    moved = change["change"] == "changes" and change["offer"] != change["offer_before"]
    return f"{by}{change['reason']}" + (f" ({change['offer_before']} -> {change['offer']})" if moved else "")
