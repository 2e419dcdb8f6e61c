"""How the data of jobs looks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from burstd.cli.output import Answer, Cell, Paper, bar, plural, size_text, styled
from burstd.cli.times import age, ago, ahead, clock, length

_NAMES = {"in": "to the store", "link": "links to its sources"}
_HEADS = ("", "", "DONE>", "RATE>", "ETA>", "HITS>")


def overview(paper: Paper, answer: Answer) -> None:
    """All jobs, each with its transfers below it."""
    _off(paper, answer)
    now = answer["now"]
    if not answer["jobs"]:
        paper.line("No job has data here.")
    else:
        paper.table(("JOB", "USER", "STATE", "SINCE>", "IN>", "SENT>", "OUT>", "WHY*"), [
            (job["job"], job["user"], styled(job["state"]), age(job["since"], now), _size(job["bytes_in"]),
             _size(job["bytes_sent"]) if job["staged"] else "", _size(job["bytes_out"]), job["error"] or job["reason"])
            for job in answer["jobs"]
        ])  # fmt: skip
    moving = [(job["job"], transfer) for job in answer["jobs"] for transfer in job["transfers"]]
    if moving:
        paper.blank()
        paper.table(("JOB", *_HEADS), [(job, *_transfer(transfer)) for job, transfer in moving])
    _kept(paper, answer)
    if answer["more"]:
        paper.note("There is more (-n).", "dim")


def one_job(paper: Paper, answer: Answer) -> None:
    """One job: its inputs, outputs, transfers."""
    _off(paper, answer)
    job, now = answer["job"], answer["now"]
    ready = ""
    if job["estimated_ready"]:
        ready = clock(job["estimated_ready"], now)
        ready += (
            f", was there at {clock(job['staged'], now)}"
            if job["staged"]
            else f" (in {ahead(job['estimated_ready'], now)})"
        )
    hits = f", {size_text(job['bytes_hits'])} were there already" if job["bytes_hits"] else ""
    paper.pairs([
        ("job", f"{job['job']} of {job['user']}" + (f" ({job['account']})" if job["account"] else "")),
        ("data", Text.assemble(styled(job["state"]), f" for {age(job['since'], now)}: {job['reason']}")),
        ("error", Text(job["error"], "bold red")),
        ("goes on", f"from {job['resume']}, when told to (burstctl stage retry {job['job']})" if job["resume"] else ""),
        ("tried", f"{job['attempts']} times" if job["attempts"] > 1 else ""),
        ("ended", f"{job['job_state']} {job['exit_code']}".strip()),
        ("input", f"{size_text(job['bytes_in'])}, {size_text(job['bytes_sent'])} sent{hits}" if job["staged"] else ""),
        ("expected", ready),
        ("output", size_text(job["bytes_out"]) if job["bytes_out"] else ""),
        ("scratch", size_text(job["scratch_bytes"]) if job["scratch_bytes"] else ""),
        ("nodes", ", ".join(job["nodes"])),
        ("store", job["store"]),
    ])  # fmt: skip
    if job["inputs"]:
        paper.blank()
        paper.table(("INPUT", "", "FROM*", "SIZE>", "FILES>"), [
            (i["name"], "in place" if i["place"] else i["access"].replace("_", " "), i["dataset"] or i["source"],
             "" if i["place"] or i["bytes"] is None else size_text(i["bytes"]),
             "" if i["place"] or i["entries"] is None else str(i["entries"]))
            for i in job["inputs"]
        ])  # fmt: skip
    if job["outputs"]:
        paper.blank()
        paper.table(("OUTPUT", "TO*", "ON"), [(o["pattern"], o["destination"], o["when"]) for o in job["outputs"]])
    for collected in job["collected"]:
        paper.note(
            f"{collected['node']}: {size_text(collected['bytes'])} in {plural(collected['entries'], 'file')} is in the"
            " store",
            "dim",
        )
    if job["transfers"]:
        paper.blank()
        paper.table(_HEADS, [_transfer(transfer) for transfer in job["transfers"]])
    _kept(paper, answer)


def usage_page(paper: Paper, answer: Answer) -> None:
    """The store, quotas, usage."""
    _off(paper, answer)
    store, now = answer["store"], answer["now"]
    if store is None:
        return
    if store["looked"]:
        free = f", {size_text(store['free'])} free" if store["free"] is not None else ""
        left = f", {plural(store['leftovers'], 'leftover')} to be removed" if store["leftovers"] else ""
        paper.line(
            (f"store {store['name']}", "bold"),
            f" ({store['kind']}): {size_text(store['bytes'])} in {plural(store['objects'], 'object')}{free}{left},"
            f" looked {ago(store['looked'], now)}",
        )
    else:
        paper.line((f"store {store['name']}", "bold"), f" ({store['kind']}): has not been looked at yet")
    if store["error"]:
        paper.note(f"! {store['error']}", "bold red")
    for head, rows in (("USER", answer["users"]), ("ACCOUNT", answer["projects"])):
        if rows:
            paper.blank()
            paper.table((head, "USED>", "QUOTA>", ""), [_use(row) for row in rows])


def at_a_glance(paper: Paper, data: Answer) -> None:
    """One line for ``burstctl status``."""
    sorts = ", ".join(f"{number} {state}" for state, number in data["states"].items()) or "none"
    rate = f", {size_text(round(data['rate']))}/s" if data["rate"] else ""
    paper.line(("data", "bold"), f" of {plural(data['jobs'], 'job')}: {sorts}{rate} (store {data['store']})")
    if data["states"].get("held"):
        paper.note(f"{plural(data['states']['held'], 'job')} held (burstctl stage status)", "yellow")
    if data["kept"]:
        paper.note(f"{plural(data['kept'], 'node')} kept for output that is not home yet", "yellow")
    if data["error"]:
        paper.note(f"! the store {data['store']} cannot be used: {data['error']}", "bold red")


def _transfer(transfer: Answer) -> Sequence[Cell]:
    done, total = transfer["bytes_done"], transfer["bytes_total"]
    name: str = transfer["name"]
    amount = f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return (
        _NAMES.get(name, name),
        bar(done, total),
        amount,
        f"{size_text(round(transfer['rate']))}/s" if transfer["rate"] else "",
        length(transfer["eta_s"]) if transfer["eta_s"] is not None else "",
        size_text(transfer["bytes_hits"]) if transfer["bytes_hits"] else "",
    )


def _use(row: Answer) -> Sequence[Cell]:
    used, quota = row["bytes"], row["quota"]
    over = quota is not None and used > quota
    return (
        row["name"],
        Text(size_text(used), "bold red" if over else ""),
        "none" if quota is None else size_text(quota),
        "" if quota is None else bar(min(used, quota), quota),
    )


def _kept(paper: Paper, answer: Answer) -> None:
    for kept in answer["kept"]:
        left = ahead(kept["until"], answer["now"])
        paper.note(
            f"{kept['node']} is kept {left} more for the output of job {kept['job']}, then both are gone:"
            f" {kept['reason']}",
            "bold yellow",
        )


def _off(paper: Paper, answer: Answer) -> None:
    if not answer["on"]:
        paper.note("burstd stages nothing: its settings have no table [staging].", "yellow", 0)


def _size(size: int) -> str:
    return size_text(size) if size else ""
