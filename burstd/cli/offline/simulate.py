"""burstctl simulate"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import duration_text
from burstd.cli.offline.buy_or_rent import show_buy_or_rent
from burstd.cli.offline.study_answer import answer_study, write_page
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, ExitCode, without_daemon

if TYPE_CHECKING:
    from burstd.simulate.report.report import SimulationReport
    from burstd.simulate.report.result import ChainResult
    from burstd.simulate.study import Study


@without_daemon
def simulate(
    burstctl: ApiClient,
    trace: Annotated[Path, typer.Option(metavar="FILE", help="Jobs: SWF, output of sacct -P, or CSV with GPUs.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHAIN",
            help="A chain to replay, such as wait_aware,idle or 'wait_aware(value=20),idle', or one of never,"
            " immediate, aged:SECONDS; may be repeated. Left out: the site's own and all of these.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="POLICY.KEY=VALUE", help="A setting of a policy, in all chains."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="burstd.toml, for pools, policies and their settings.")
    ] = None,
    projects: Annotated[
        bool,
        typer.Option("--projects", help="Replay the projects of --config and plain Slurm fair share, not chains."),
    ] = False,
    format_: Annotated[str, typer.Option("--format", help="Of the trace: auto, swf, sacct or philly.")] = "auto",
    window: Annotated[str | None, typer.Option(metavar="START", help="First day of the trace to replay (UTC).")] = None,
    days: Annotated[float, typer.Option(min=0, help="How many days of the trace; 0: all.")] = 14,
    load: Annotated[
        float | None,
        typer.Option(min=0.01, help="Work of these days over what the site can do in it [1.0]."),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="In place of --load.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="In place of --load.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="[8] Of the site's nodes.")] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=1, help="[64] Where the trace has no GPUs.")] = None,
    offers: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What clouds sell (TOML), in place of the next."),
    ] = None,
    price: Annotated[str | None, typer.Option(help="Of a GPU and hour [2.50], or of a CPU [0.05].")] = None,
    spot_price: Annotated[str | None, typer.Option(help="The same of a spot machine.")] = None,
    spot_loss: Annotated[float, typer.Option(min=0, help="How often an hour a spot machine is taken back.")] = 0.05,
    stockout: Annotated[float, typer.Option(min=0, max=1, help="Share of the time without machines.")] = 0.0,
    boot: Annotated[float, typer.Option(min=0, help="Seconds until a machine is open.")] = 180,
    staging: Annotated[float, typer.Option(min=0, help="Seconds until a job's input is in the store.")] = 120,
    tick: Annotated[float, typer.Option(min=1, help="Seconds between two loops.")] = 60,
    bind_depth: Annotated[int | None, typer.Option(min=0, help="As in burstd.toml.")] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 1,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="So many GPUs more on premises, bought or rented for good, beside bursting."),
    ] = None,
    site_cost: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --compare: what bought ones cost, by [site.cost.NAME] of --config."),
    ] = None,
    committed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PRICE",
            help="With --compare: of a GPU and hour, used or not, such as '1y=1.20' or '1y=1.20 EUR'; may be repeated.",
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --compare: write the plots there, as SVG and PNG.")
    ] = None,
) -> None:
    """Replay a trace of jobs through the policies: waits, cloud hours and cost of each chain. Needs no daemon."""
    from burstd.simulate.study import Study

    sites = [name for name, given in (("--load", load), ("--gpus", gpus), ("--nodes", nodes)) if given is not None]
    if len(sites) > 1:
        burstctl.fail(ExitCode.USAGE, f"{' and '.join(sites)} are both the size of the site: give one of them")
    if offers and (price or spot_price or stockout):
        burstctl.fail(ExitCode.USAGE, "--offers has prices and stockouts of its own: leave the other options out")
    study = Study(
        trace=trace,
        format=format_,
        chains=tuple(policy or ()),
        policy_overrides=tuple(sets or ()),
        config=config,
        offers=offers,
        start=_parse_start(burstctl, window),
        days=days or None,
        nodes=nodes,
        units=gpus,
        size=gpus_per_node,
        boot_s=boot,
        staging_s=staging,
        price=_parse_price(burstctl, "--price", price),
        spot_price=_parse_price(burstctl, "--spot-price", spot_price),
        losses_per_hour=spot_loss,
        stockout=stockout,
        tick_s=tick,
        bind_depth=bind_depth,
        seed=seed,
    )
    if load is not None:
        study = replace(study, load=load)
    if cpus_per_node is not None:
        study = replace(study, size=cpus_per_node)
    if compare is not None:
        if projects or len(policy or ()) > 1:
            burstctl.fail(ExitCode.USAGE, "--compare replays one chain: leave --projects out, and give --policy once")
        show_buy_or_rent(burstctl, study, compare, site_cost or "", committed or (), html, plots)
        return
    if site_cost is not None or committed or plots is not None:
        burstctl.fail(ExitCode.USAGE, "--site-cost, --committed and --plots are options of --compare 8,16")
    if projects:
        if html is not None or config is None:
            burstctl.fail(ExitCode.USAGE, "--projects needs --config, and has no page: leave --html out")
        _show_projects(burstctl, study)
        return
    found = _replay(burstctl, study)
    if html is not None:
        from burstd.simulate.report.page import render_page

        write_page(burstctl, html, render_page(found))
    if burstctl.json:
        sys.stdout.write(found.json_text())
        return
    _print_report(found)
    if html is not None:
        ConsoleOutput().line(f"Plots: {html}")


def _replay(burstctl: ApiClient, study: Study) -> SimulationReport:
    from burstd.simulate.report.report import build_report

    return answer_study(burstctl, study, lambda prepared: build_report(prepared.run_study(_progress)))


def _show_projects(burstctl: ApiClient, study: Study) -> None:
    from burstd.simulate.project_study import replay_projects

    found = answer_study(burstctl, study, replay_projects)
    if burstctl.json:
        sys.stdout.write(found.json_text())
        return
    out = ConsoleOutput()
    out.pairs([("Trace", f"{found.trace}, {found.window}"), ("Site", found.site)])
    out.blank()
    heads = ("project", "quota>", "jobs>", "mean wait>", "p95>", "fair share>", "its p95>", "evictions>", "lost GPU-h>")
    rows = [
        (
            p.project, p.quota, str(p.jobs), duration_text(p.mean_wait_s), duration_text(p.p95_wait_s),
            duration_text(p.fair_share_mean_wait_s), duration_text(p.fair_share_p95_wait_s), str(p.evictions),
            f"{p.lost_gpu_h:.1f}",
        )
        for p in found.projects
    ]  # fmt: skip
    out.table(heads, rows)
    out.blank()
    out.table(
        ("share", *(f"{number}/8>" for number in range(1, 9))),
        [(p.project, *(f"{gpus:g}" for gpus in p.shares)) for p in found.projects],
    )
    out.blank()
    for note in found.notes:
        out.note(note, "dim", indent=0)


def _progress(result: ChainResult) -> None:
    """Tells a person who waits which chain is done."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{result.chain}: {result.figures.elapsed_s:.0f} s\n")


def _parse_start(burstctl: ApiClient, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        burstctl.fail(ExitCode.USAGE, f"--window {text!r} is no date; write 2017-10-02 or 2017-10-02T12:00")
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _parse_price(burstctl: ApiClient, option: str, text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal(-1)
    if not found.is_finite() or found < 0:
        burstctl.fail(ExitCode.USAGE, f"{option} {text!r} is no price; write 2.50")
    return found


def _print_report(found: SimulationReport) -> None:
    from burstd.simulate.report.columns import summary_sentences, table_heads, table_rows

    out = ConsoleOutput()
    out.line((found.title, "bold"))
    out.pairs([("Trace", found.trace), ("Site", found.site), ("Cloud", found.cloud), ("Seed", str(found.seed))])
    out.blank()
    out.table(table_heads(found), table_rows(found))
    out.blank()
    for sentence in summary_sentences(found):
        out.line(sentence)
    for note in found.notes:
        out.note(note, "dim", indent=0)
