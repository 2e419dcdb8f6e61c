"""burstctl explain"""

from __future__ import annotations

import typer
from rich.text import Text

from burstd.cli.job import JobArgument, print_remarks
from burstd.cli.output import (
    ConsoleOutput,
    JsonObject,
    abbreviated_list,
    money_text,
    plural,
    print_json,
    size_text,
    styled_state,
)
from burstd.cli.session import JsonOption, SocketOption, api_client
from burstd.cli.times import ago, epoch_seconds, rough_duration_text

_MAX_CANDIDATES = 6
_REFUSED_BY_RULE = "excluded by the pool's rules"
_FORECAST_BASIS = {
    "slurm": "says Slurm's backfill scheduler",
    "queue": "by what runs and waits before it",
    "history": "by how long jobs like it waited",
}


def explain(ctx: typer.Context, job_id: JobArgument, json: JsonOption = False, socket: SocketOption = None) -> None:
    """Why a job does or does not start: its options, their cost, and what would start it."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get(f"/jobs/{job_id}/explanation")
    if burstd.json:
        print_json(answer)
        return
    out, job = ConsoleOutput(), answer["job"]
    verdict_text = styled_state(answer["verdict"])
    out.line(
        (f"Job {answer['id']}", "bold"), f" of {job['user']}: " if job else ": ",
        (verdict_text.plain, f"bold {verdict_text.style}".strip()), f": {answer['summary']}.",
    )  # fmt: skip
    if answer["asks"]:
        out.note(f"It asks for {answer['asks']}.")
    if answer["slurm"]:
        reason = f" ({job['slurm_reason']})" if job and job["slurm_reason"] else ""
        out.note(f"Slurm says: {answer['slurm']}{reason}.")
    for sentence in (_outlook_text(answer), _cost_text(answer), _data_text(answer)):
        if sentence:
            out.note(sentence)
    for remedy in answer["remedies"]:
        out.note(f"What would help: {remedy}.", "bold")
    _print_changes(out, answer["changes"])
    if len(answer["remarks"]) > 1 or (answer["remarks"] and job is None):
        print_remarks(out, answer)
    if answer["serving"]:
        out.blank()
        paid = any(s["reserved"] for s in answer["serving"])
        out.table(("NODE", "STATE", "SINCE>", *(("AT MOST>",) if paid else ()), "WHY*"), [
            (
                s["slot"], styled_state(s["state"]), ago(s["since"], answer["now"]) if s["since"] else "",
                *((money_text(s["reserved"]),) if paid else ()), s["reason"],
            )
            for s in answer["serving"]
        ])  # fmt: skip
    for way in answer["ways"]:
        _print_pool(out, way)


def _outlook_text(answer: JsonObject) -> str:
    outlook = answer["outlook"]
    if answer["verdict"] == "covered":
        line = answer["line"]
        return f"{line[0].upper()}{line[1:]}." if line.startswith("node") else ""
    if outlook is None or answer["verdict"] == "impossible":
        return ""
    basis = _FORECAST_BASIS.get(outlook["premises_basis"], "")
    if outlook["premises_at"] is None:
        premises = "never"
    else:
        left = epoch_seconds(outlook["premises_at"]) - epoch_seconds(answer["now"])
        premises = f"{rough_duration_text(left)}{f' ({basis})' if basis else ''}"
    cloud = (
        rough_duration_text(outlook["cloud_s"])
        if answer["cost"] or answer["serving"]
        else "no machine is available now"
    )
    return f"It would start on premises: {premises}; in the cloud: {cloud}."


def _cost_text(answer: JsonObject) -> str:
    outlook, cost = answer["outlook"], answer["cost"]
    runs = ""
    if outlook is not None and outlook["run_s"] and answer["verdict"] != "impossible":
        runs = f"It is expected to run {rough_duration_text(outlook['run_s'], '')} ({outlook['run_basis']})"
    if cost is None or not (cost["expected"] or cost["worst"]):
        return f"{runs}." if runs else ""
    machines = f"{cost['nodes']} machines" if cost["nodes"] > 1 else "its machine"
    amounts = [f"about {money_text(cost['expected'])}"] if cost["expected"] else []
    amounts += (
        [f"at most {money_text(cost['worst'])} by its time limit"] if cost["worst"] else ["and it has no time limit"]
    )
    text = f"{machines} would cost {', '.join(amounts)}"
    return f"{runs}; {text}." if runs else f"{text[0].upper()}{text[1:]}."


def _data_text(answer: JsonObject) -> str:
    data = answer["data"]
    if data is None:
        return ""
    size = f" ({size_text(data['left'])} of {size_text(data['size'])} to go)" if data["size"] and data["left"] else ""
    ready = (
        rough_duration_text(epoch_seconds(data["ready_at"]) - epoch_seconds(answer["now"])) if data["ready_at"] else ""
    )
    return f"Its data: {data['state']}{size}{f', there {ready}' if ready else ''}{_error_text(data['error'])}."


def _error_text(error: str) -> str:
    return f"; {error}" if error else ""


def _print_changes(out: ConsoleOutput, changes: list[JsonObject]) -> None:
    if not changes:
        return
    out.blank()
    out.line(("The smallest changes that would start it", "bold"))
    for change in changes:
        price = f", {money_text(change['price_per_hour'])}/h" if change["price_per_hour"] else ""
        when = f"{rough_duration_text(change['start_s'])} on {abbreviated_list(change['where'], 3)}{price}"
        out.note(f"{change['before']} -> {change['after']}: {when}", "green")
        if change["command"]:
            out.note(change["command"], "dim", indent=4)


def _print_pool(out: ConsoleOutput, pool_candidates: JsonObject) -> None:
    out.blank()
    state = (
        f"lacks {pool_candidates['lacks']}"
        if pool_candidates["lacks"]
        else f"{pool_candidates['free']} of {pool_candidates['slots']} slots free"
    )
    out.line((f"Pool {pool_candidates['pool']}", "bold"), f": {state}")
    if pool_candidates["lacks"]:
        return
    allowed = [c for c in pool_candidates["candidates"] if c["refused"] != _REFUSED_BY_RULE]
    shown, ruled_out = allowed[:_MAX_CANDIDATES], len(pool_candidates["candidates"]) - len(allowed)
    out.table(
        ("", ">", "*"),
        [
            (c["offer"], f"{money_text(c['price_per_hour'])}/h" if c["price_per_hour"] else "", _candidate_text(c))
            for c in shown
        ],
        indent=2,
    )
    if len(allowed) > len(shown):
        out.note(f"and {len(allowed) - len(shown)} more (--json)", "dim")
    if ruled_out:
        out.note(f"The pool's rules leave out {plural(ruled_out, 'other offer')}.", "dim")


def _candidate_text(candidate: JsonObject) -> Text:
    if candidate["chosen"]:
        return Text("chosen", "bold green")
    if candidate["refused"]:
        by = f"{candidate['by']}: " if candidate["by"] else ""
        return Text(f"{by}{candidate['refused']}", "yellow")
    return Text(candidate["note"] or "may be used", "green")
