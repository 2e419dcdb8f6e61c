"""burstctl policy"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from burstd.api.answers.text import abbreviated_list, ago, plural
from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, ExitCode, with_client
from burstd.cli.watch import listing

if TYPE_CHECKING:
    from burstd.api.answers.policies import PoliciesView, PolicyChangeView, PolicyTestView, PolicyView
    from burstd.cli.checks.policies import PolicyCheckReport

app = typer.Typer(help="The policies that decide which nodes are booted and terminated.", no_args_is_help=True)
POLICY_REQUEST_TIMEOUT_S = 150.0
"""Longer than a chain of policies takes, each of which is interrupted at its limit."""
_CHANGE_STYLES = {"comes": ("+", "green"), "goes": ("-", "red"), "changes": ("~", "yellow")}


@app.command("list")
@listing
def list_policies(burstd: ApiClient) -> None:
    """All policies: where they come from, their place in the chain, their settings, how they fare."""
    from burstd.api.answers.policies import PoliciesView

    burstd.show(PoliciesView, burstd.get_json("/policies"), _print_policies)


@app.command("check")
@with_client
def check_policies(
    burstd: ApiClient,
    path: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A policy's file or package; default: all there are.")
    ] = None,
    file: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Load policies as they are on disk and try them on sample situations; the daemon need not run."""
    # pydantic and the plug-ins take longer to load than the other commands take.
    from burstd.cli.checks.policies import check_all, check_one

    if path is not None and not path.exists():
        burstd.fail(ExitCode.NOT_FOUND, f"There is no file {path}.")
    report = check_all(file) if path is None else check_one(path.absolute(), file)
    if burstd.json:
        print_json(report.as_json())
    else:
        _print_report(ConsoleOutput(), report)
    if not report.ok:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("test")
@with_client
def try_policies(burstd: ApiClient) -> None:
    """Ask the policies as they are on disk, on what is there now, and show what would be otherwise. Does nothing."""
    from burstd.api.answers.policies import PolicyTestView

    answer = burstd.request("POST", "/policies/test", timeout_s=POLICY_REQUEST_TIMEOUT_S)
    burstd.show(PolicyTestView, answer, _print_changes)
    if answer["failed"]:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("reload")
@with_client
def reload_policies(burstd: ApiClient) -> None:
    """Have the daemon take policies and settings as they are on disk; faulty ones are refused, the old ones stay."""
    burstd.run_command("POST", "/reload", timeout_s=POLICY_REQUEST_TIMEOUT_S)


def _print_policies(out: ConsoleOutput, answer: PoliciesView) -> None:
    out.table(
        (">", "POLICY", "STATE", "TOOK>", "FROM*", "SETTINGS*"),
        [
            (
                str(p.place or "-"),
                Text(p.name, "" if p.place else "dim"),
                _state(p),
                _duration_text(p.took_s),
                p.origin,
                _settings_text(p.settings),
            )
            for p in answer.policies
        ],
    )
    for p in answer.policies:
        if p.failed_at:
            now = "fails" if p.failing else "failed last"
            out.note(f"{p.name} {now} ({ago(p.failed_at, answer.now)}): {p.error}",
                       "bold red" if p.failing else "")  # fmt: skip
    for text in answer.warnings:
        out.note(f"! {text}", "yellow")
    if answer.unread:
        out.note(
            f"not read since it changed: {abbreviated_list(answer.unread)}; 'burstctl policy reload' takes it", "yellow"
        )
    for text in answer.restart:
        out.note(f"! {text}", "yellow")


def _state(policy: PolicyView) -> Text:
    if not policy.place:
        return Text("not in the chain", "dim")
    text = Text("fails", "bold red") if policy.failing else Text("ok", "green")
    return Text.assemble(text, ", hard") if policy.hard else text


def _duration_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _settings_text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {_value_text(value)}" for key, value in settings.items() if value not in (None, {}, []))


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value_text(one)}" for key, one in value.items() if one is not None) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print_report(out: ConsoleOutput, report: PolicyCheckReport) -> None:
    for fault in report.faults:
        out.line(("not ok ", "bold red"), f"{report.file}: {fault}")
    verdict_texts = {True: Text("ok", "green"), False: Text("not ok", "bold red")}
    out.table(
        ("", "", "", "*"),
        [
            (
                verdict_texts[not p.faults],
                p.name,
                f"{p.place} in the chain" if p.place else "not in the chain",
                p.origin if not p.faults else "\n".join(p.faults),
            )
            for p in report.policies
        ],
    )
    for text in report.warnings:
        out.note(f"! {text}", "yellow")
    if report.ok:
        tried = len(report.policies)
        many = "1 policy keeps" if tried == 1 else f"{tried} policies keep"
        out.line(("All is well", "bold"), f": {many} the contract in {report.situations()} situations.")


def _print_changes(out: ConsoleOutput, answer: PolicyTestView) -> None:
    if answer.paused:
        out.line(("On hold", "bold yellow"), f" (burstctl unhold): {answer.paused}")
    for failed in answer.failing:
        out.line(("! ", "bold red"), f"in force: {failed}; no node is booted or terminated until it works again")
    for failed in answer.failed:
        out.line(("! ", "bold red"), f"on disk: {failed}; no node would be booted or terminated")
    if not answer.changes:
        if answer.failed:
            return
        found = f"{plural(answer.wants, 'want')}, {plural(answer.releases, 'release')}"
        out.line(f"The policies on disk decide as those in force do: {found}.")
        return
    out.line((f"By the policies on disk {plural(len(answer.changes), 'thing')} would be otherwise:", "bold"))
    out.table(
        ("", "", "POOL", "NODES>", "JOBS", "WHY*"),
        [
            (
                Text(*_CHANGE_STYLES[c.change]),
                c.kind if c.kind == "want" else f"let {abbreviated_list(c.slots, 1)} go",
                c.pool,
                _nodes_text(c),
                abbreviated_list(c.jobs, 3),
                _reason_text(c),
            )
            for c in answer.changes
        ],
    )


def _nodes_text(change: PolicyChangeView) -> str:
    if change.kind != "want":
        return ""
    before, after = change.nodes_before, change.nodes
    return str(after or before) if change.change != "changes" or before == after else f"{before} -> {after}"


def _reason_text(change: PolicyChangeView) -> str:
    by = f"{change.by}: " if change.by else ""
    moved = change.change == "changes" and change.offer != change.offer_before
    return f"{by}{change.reason}" + (f" ({change.offer_before} -> {change.offer})" if moved else "")
