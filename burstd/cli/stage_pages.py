"""Prints the data of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from burstd.cli.output import Cell, ConsoleOutput, JsonObject, plural, progress_bar, size_text, styled_state
from burstd.cli.times import ago, duration_text, elapsed_text, local_time_text, remaining_text

_TRANSFER_NAMES = {"in": "to the store", "link": "links to its sources"}
_TRANSFER_HEADS = ("", "", "DONE>", "RATE>", "ETA>", "HITS>")


def print_staging_list(out: ConsoleOutput, answer: JsonObject) -> None:
    """All jobs, each with its transfers below it."""
    _note_if_off(out, answer)
    now = answer["now"]
    if not answer["jobs"]:
        out.line("No job has data here.")
    else:
        out.table(
            ("JOB", "USER", "STATE", "SINCE>", "IN>", "SENT>", "OUT>", "WHY*"),
            [
                (
                    job["job"],
                    job["user"],
                    styled_state(job["state"]),
                    elapsed_text(job["since"], now),
                    _size_or_blank(job["bytes_in"]),
                    _size_or_blank(job["bytes_sent"]) if job["staged"] else "",
                    _size_or_blank(job["bytes_out"]),
                    job["error"] or job["reason"],
                )
                for job in answer["jobs"]
            ],
        )
    moving = [(job["job"], transfer) for job in answer["jobs"] for transfer in job["transfers"]]
    if moving:
        out.blank()
        out.table(("JOB", *_TRANSFER_HEADS), [(job, *_transfer_row(transfer)) for job, transfer in moving])
    _print_retained_nodes(out, answer)
    if answer["more"]:
        out.note("There is more (-n).", "dim")


def print_job_staging(out: ConsoleOutput, answer: JsonObject) -> None:
    """One job: its inputs, outputs, transfers."""
    _note_if_off(out, answer)
    job, now = answer["job"], answer["now"]
    ready = ""
    if job["estimated_ready"]:
        ready = local_time_text(job["estimated_ready"], now)
        ready += (
            f", was there at {local_time_text(job['staged'], now)}"
            if job["staged"]
            else f" (in {remaining_text(job['estimated_ready'], now)})"
        )
    hits = f", {size_text(job['bytes_hits'])} were there already" if job["bytes_hits"] else ""
    out.pairs([
        ("job", f"{job['job']} of {job['user']}" + (f" ({job['account']})" if job["account"] else "")),
        ("data", Text.assemble(styled_state(job["state"]), f" for {elapsed_text(job['since'], now)}: {job['reason']}")),
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
        out.blank()
        out.table(("INPUT", "", "FROM*", "SIZE>", "FILES>"), [
            (i["name"], "in place" if i["place"] else i["access"].replace("_", " "), i["dataset"] or i["source"],
             "" if i["place"] or i["bytes"] is None else size_text(i["bytes"]),
             "" if i["place"] or i["entries"] is None else str(i["entries"]))
            for i in job["inputs"]
        ])  # fmt: skip
    if job["outputs"]:
        out.blank()
        out.table(("OUTPUT", "TO*", "ON"), [(o["pattern"], o["destination"], o["when"]) for o in job["outputs"]])
    for collected in job["collected"]:
        out.note(
            f"{collected['node']}: {size_text(collected['bytes'])} in {plural(collected['entries'], 'file')} is in the"
            " store",
            "dim",
        )
    if job["transfers"]:
        out.blank()
        out.table(_TRANSFER_HEADS, [_transfer_row(transfer) for transfer in job["transfers"]])
    _print_retained_nodes(out, answer)


def print_staging_usage(out: ConsoleOutput, answer: JsonObject) -> None:
    """The store, quotas, usage."""
    _note_if_off(out, answer)
    store, now = answer["store"], answer["now"]
    if store is None:
        return
    if store["looked"]:
        free = f", {size_text(store['free'])} free" if store["free"] is not None else ""
        left = f", {plural(store['leftovers'], 'leftover')} to be removed" if store["leftovers"] else ""
        out.line(
            (f"store {store['name']}", "bold"),
            f" ({store['kind']}): {size_text(store['bytes'])} in {plural(store['objects'], 'object')}{free}{left},"
            f" looked {ago(store['looked'], now)}",
        )
    else:
        out.line((f"store {store['name']}", "bold"), f" ({store['kind']}): not read yet")
    if store["error"]:
        out.note(f"! {store['error']}", "bold red")
    for head, rows in (("USER", answer["users"]), ("ACCOUNT", answer["projects"])):
        if rows:
            out.blank()
            out.table((head, "USED>", "QUOTA>", ""), [_usage_row(row) for row in rows])


def print_staging_summary(out: ConsoleOutput, data: JsonObject) -> None:
    """One line for ``burstctl status``."""
    states = ", ".join(f"{number} {state}" for state, number in data["states"].items()) or "none"
    rate = f", {size_text(round(data['rate']))}/s" if data["rate"] else ""
    out.line(("data", "bold"), f" of {plural(data['jobs'], 'job')}: {states}{rate} (store {data['store']})")
    if data["states"].get("held"):
        out.note(f"{plural(data['states']['held'], 'job')} held (burstctl stage status)", "yellow")
    if data["kept"]:
        out.note(f"{plural(data['kept'], 'node')} kept for output that is not home yet", "yellow")
    if data["error"]:
        out.note(f"! the store {data['store']} cannot be used: {data['error']}", "bold red")


def _transfer_row(transfer: JsonObject) -> Sequence[Cell]:
    done, total = transfer["bytes_done"], transfer["bytes_total"]
    name: str = transfer["name"]
    amount = f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return (
        _TRANSFER_NAMES.get(name, name),
        progress_bar(done, total),
        amount,
        f"{size_text(round(transfer['rate']))}/s" if transfer["rate"] else "",
        duration_text(transfer["eta_s"]) if transfer["eta_s"] is not None else "",
        size_text(transfer["bytes_hits"]) if transfer["bytes_hits"] else "",
    )


def _usage_row(row: JsonObject) -> Sequence[Cell]:
    used, quota = row["bytes"], row["quota"]
    over = quota is not None and used > quota
    return (
        row["name"],
        Text(size_text(used), "bold red" if over else ""),
        "none" if quota is None else size_text(quota),
        "" if quota is None else progress_bar(min(used, quota), quota),
    )


def _print_retained_nodes(out: ConsoleOutput, answer: JsonObject) -> None:
    for retained in answer["kept"]:
        left = remaining_text(retained["until"], answer["now"])
        out.note(
            f"{retained['node']} is kept {left} more for the output of job {retained['job']}, then both are gone:"
            f" {retained['reason']}",
            "bold yellow",
        )


def _note_if_off(out: ConsoleOutput, answer: JsonObject) -> None:
    if not answer["on"]:
        out.note("burstd stages nothing: its settings have no table [staging].", "yellow", 0)


def _size_or_blank(size: int) -> str:
    return size_text(size) if size else ""
