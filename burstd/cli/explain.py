"""burstctl explain"""

from __future__ import annotations

import typer
from rich.text import Text

from burstd.cli.job import JobId, remarks
from burstd.cli.output import Answer, Paper, money, names, plural, print_json, size_text, styled
from burstd.cli.session import Json, Socket, session
from burstd.cli.times import about, ago, seconds

_CANDIDATES = 6
_BY_RULE = "the pool's rules leave it out"
_BASIS = {
    "slurm": "says Slurm's backfill scheduler",
    "queue": "by what runs and waits before it",
    "history": "by how long jobs like it waited",
}


def explain(ctx: typer.Context, job_id: JobId, json: Json = False, socket: Socket = None) -> None:
    """Why a job does or does not start: every choice there was, what it costs, and what would start it."""
    burstd = session(ctx, json, socket)
    answer = burstd.get(f"/jobs/{job_id}/explanation")
    if burstd.json:
        print_json(answer)
        return
    paper, job = Paper(), answer["job"]
    word = styled(answer["verdict"])
    paper.line(
        (f"Job {answer['id']}", "bold"), f" of {job['user']}: " if job else ": ",
        (word.plain, f"bold {word.style}".strip()), f": {answer['summary']}.",
    )  # fmt: skip
    if answer["asks"]:
        paper.note(f"It asks for {answer['asks']}.")
    if answer["slurm"]:
        reason = f" ({job['slurm_reason']})" if job and job["slurm_reason"] else ""
        paper.note(f"Slurm says: {answer['slurm']}{reason}.")
    for sentence in (_outlook(answer), _cost(answer), _data(answer)):
        if sentence:
            paper.note(sentence)
    for remedy in answer["remedies"]:
        paper.note(f"What would help: {remedy}.", "bold")
    _changes(paper, answer["changes"])
    if len(answer["remarks"]) > 1 or (answer["remarks"] and job is None):
        remarks(paper, answer)
    if answer["serving"]:
        paper.blank()
        paid = any(s["reserved"] for s in answer["serving"])
        paper.table(("NODE", "STATE", "SINCE>", *(("AT MOST>",) if paid else ()), "WHY*"), [
            (
                s["slot"], styled(s["state"]), ago(s["since"], answer["now"]) if s["since"] else "",
                *((money(s["reserved"]),) if paid else ()), s["reason"],
            )
            for s in answer["serving"]
        ])  # fmt: skip
    for way in answer["ways"]:
        _way(paper, way)


def _outlook(answer: Answer) -> str:
    outlook = answer["outlook"]
    if answer["verdict"] == "covered":
        line = answer["line"]
        return f"{line[0].upper()}{line[1:]}." if line.startswith("node") else ""
    if outlook is None or answer["verdict"] == "impossible":
        return ""
    basis = _BASIS.get(outlook["premises_basis"], "")
    if outlook["premises_at"] is None:
        premises = "never"
    else:
        left = seconds(outlook["premises_at"]) - seconds(answer["now"])
        premises = f"{about(left)}{f' ({basis})' if basis else ''}"
    cloud = about(outlook["cloud_s"]) if answer["cost"] or answer["serving"] else "no machine can be had for it now"
    return f"It would start on premises: {premises}; in the cloud: {cloud}."


def _cost(answer: Answer) -> str:
    outlook, cost = answer["outlook"], answer["cost"]
    runs = ""
    if outlook is not None and outlook["run_s"] and answer["verdict"] != "impossible":
        runs = f"It is expected to run {about(outlook['run_s'], '')} ({outlook['run_basis']})"
    if cost is None or not (cost["expected"] or cost["worst"]):
        return f"{runs}." if runs else ""
    machines = f"{cost['nodes']} machines" if cost["nodes"] > 1 else "its machine"
    amounts = [f"about {money(cost['expected'])}"] if cost["expected"] else []
    amounts += [f"at most {money(cost['worst'])} by its time limit"] if cost["worst"] else ["and it has no time limit"]
    text = f"{machines} would cost {', '.join(amounts)}"
    return f"{runs}; {text}." if runs else f"{text[0].upper()}{text[1:]}."


def _data(answer: Answer) -> str:
    data = answer["data"]
    if data is None:
        return ""
    size = f" ({size_text(data['left'])} of {size_text(data['size'])} to go)" if data["size"] and data["left"] else ""
    ready = about(seconds(data["ready_at"]) - seconds(answer["now"])) if data["ready_at"] else ""
    return f"Its data: {data['state']}{size}{f', there {ready}' if ready else ''}{_error(data['error'])}."


def _error(error: str) -> str:
    return f"; {error}" if error else ""


def _changes(paper: Paper, changes: list[Answer]) -> None:
    if not changes:
        return
    paper.blank()
    paper.line(("The smallest changes that would start it", "bold"))
    for change in changes:
        price = f", {money(change['price_per_hour'])}/h" if change["price_per_hour"] else ""
        when = f"{about(change['start_s'])} on {names(change['where'], 3)}{price}"
        paper.note(f"{change['before']} -> {change['after']}: {when}", "green")
        if change["command"]:
            paper.note(change["command"], "dim", indent=4)


def _way(paper: Paper, way: Answer) -> None:
    paper.blank()
    state = f"lacks {way['lacks']}" if way["lacks"] else f"{way['free']} of {way['slots']} slots free"
    paper.line((f"Pool {way['pool']}", "bold"), f": {state}")
    if way["lacks"]:
        return
    allowed = [c for c in way["candidates"] if c["refused"] != _BY_RULE]
    shown, ruled_out = allowed[:_CANDIDATES], len(way["candidates"]) - len(allowed)
    paper.table(("", ">", "*"), [
        (c["offer"], f"{money(c['price_per_hour'])}/h" if c["price_per_hour"] else "", _use(c)) for c in shown
    ], indent=2)  # fmt: skip
    if len(allowed) > len(shown):
        paper.note(f"and {len(allowed) - len(shown)} more (--json)", "dim")
    if ruled_out:
        paper.note(f"The pool's rules leave out {plural(ruled_out, 'other offer')}.", "dim")


def _use(candidate: Answer) -> Text:
    if candidate["chosen"]:
        return Text("chosen", "bold green")
    if candidate["refused"]:
        by = f"{candidate['by']}: " if candidate["by"] else ""
        return Text(f"{by}{candidate['refused']}", "yellow")
    return Text(candidate["note"] or "may be used", "green")
